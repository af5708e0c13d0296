"""Made inputs that several test modules share."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
