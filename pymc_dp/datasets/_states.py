"""Codes of the states of the United States, as the files of their agencies have them."""

from __future__ import annotations

# FIPS codes, and the abbreviations that the Census Bureau has in the names of its files.
STATES = dict(
    pair.split()
    for pair in (
        "01 al,02 ak,04 az,05 ar,06 ca,08 co,09 ct,10 de,11 dc,12 fl,13 ga,15 hi,16 id,17 il,18 in,"
        "19 ia,20 ks,21 ky,22 la,23 me,24 md,25 ma,26 mi,27 mn,28 ms,29 mo,30 mt,31 ne,32 nv,33 nh,"
        "34 nj,35 nm,36 ny,37 nc,38 nd,39 oh,40 ok,41 or,42 pa,44 ri,45 sc,46 sd,47 tn,48 tx,49 ut,"
        "50 vt,51 va,53 wa,54 wv,55 wi,56 wy,66 gu,72 pr,78 vi"
    ).split(",")
)
CODES = {abbreviation: code for code, abbreviation in STATES.items()}


def state_code(value: str | int) -> str:
    """Two digits, of a FIPS code or an abbreviation."""
    text = str(value).strip().lower()
    code = CODES.get(text, text.zfill(2))
    if code not in STATES:
        raise ValueError(f"state must be a FIPS code or an abbreviation, got {value!r}")
    return code
