"""Pages from the templates that hold their prose: every value is escaped, none may be missing."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from pymc_dp._checks import round_up, rounded

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def render(template: str, **names: Any) -> str:
    """Fill in a template of this package.

    Raises
    ------
    jinja2.UndefinedError
        If the template uses a name that is not there.
    """
    return _environment().get_template(template).render(names)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("pymc_dp.publish"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., str]] = {
        "up": round_up,
        "target": partial(rounded, digits=6),
        "g": "{:g}".format,
        "digits": "{:.3g}".format,
        "percent": _percent,
        "power": power,
        "isolated": _isolated,
    }
    environment.filters |= filters
    return environment


def power(delta: float) -> str:
    """Write a small probability.

    Examples
    --------
    >>> power(1e-06)
    '1e-6'
    """
    return np.format_float_scientific(delta, trim="-", exp_digits=1)


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


def _isolated(words: object) -> Markup:
    """Mark text from outside, so that the direction of its script stays its own."""
    from markupsafe import Markup

    return Markup("<bdi>{}</bdi>").format(str(words))
