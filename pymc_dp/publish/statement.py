"""The statement of a release: one page of HTML for a review board or a publication's annex.

It is built from the part of the group that may be published, and shows no value of the draw: two
data sets that differ in outcomes alone have the same page, but for the time of the draw.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pymc_dp.publish.allow_list import public_part, with_zeros
from pymc_dp.publish.facts import Facts
from pymc_dp.publish.parts import page
from pymc_dp.publish.public_file import _give_name, _group, _hidden_sibling, _refuse_existing, _sync
from pymc_dp.publish.sections import claim_box, footer, heading, sections


def write_statement(idata: Any, path: str | os.PathLike[str], *, conditional: bool = False) -> None:
    r"""Write a page that says what a release is, how private it is, and on whose word.

    Parameters
    ----------
    idata : InferenceData, DataTree or Dataset
        What :meth:`PrivateRelease.draw` or :func:`read_public` returned, its group, or
        ``release.released``; before a draw ``release.guarantee``: the page then says "planned".
    path : path
        A new file (``.html``) in an existing folder.
    conditional : bool
        Write also a claim that treats the variance components as fixed. The word "conditional"
        then stands beside every figure of the page.

    Raises
    ------
    TypeError
        If `idata` is none of these.
    ValueError
        If the claim is conditional and this was not asked for; if the group is no whole release
        or has missing values; if the path does not end in ``.html``.
    FileExistsError
        If the target exists, be it a file, a folder or a dangling link.
    OSError
        If the target cannot be written; nothing is left under its name.

    Notes
    -----
    The page needs no network, no script and no other file. It withholds what
    :func:`write_public` withholds (figures of single areas without a source of ``weights``, say)
    and has a list of it; released values are in the public file only. Prices, epsilons and rates
    of attacks are rounded up to four digits.

    With :math:`\mu = \sqrt{2\rho}` an attack with false positive rate :math:`\alpha` has a true
    positive rate of at most :math:`\Phi(\Phi^{-1}(\alpha) + \mu)` (Dong, Roth and Su 2022).

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import xarray as xr
    >>> from pymc_dp import PrivateRelease, fay_herriot
    >>> from pymc_dp import write_statement
    >>> direct = xr.Dataset(
    ...     {"estimate": ("area", [0.1, 0.3]), "variance": ("area", [0.01, 0.02])},
    ...     coords={"area": ["north", "south"]},
    ... )
    >>> public = {"sampling_variance": "2010 census", "sigma_u": "2010 census"}
    >>> model = fay_herriot(direct, sigma_u=0.05)
    >>> release = PrivateRelease(model, sensitivity=0.02, assumptions=public)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_statement(release.draw(), f"{folder}/statement.html")
    ...     text = Path(f"{folder}/statement.html").read_text(encoding="utf-8")
    >>> "Claim: formal" in text, "<script" in text
    (True, False)
    """
    target = _new_page(path)
    content = statement_html(idata, conditional=conditional).encode("utf-8")
    with _hidden_sibling(target) as hidden:
        hidden.write_bytes(content)
        _sync(hidden)
        _give_name(hidden, target)
    _sync(target.parent)


def statement_html(idata: Any, *, conditional: bool = False) -> str:
    """Tell the statement of a release as a whole document; see :func:`write_statement`.

    Parameters
    ----------
    idata : InferenceData, DataTree or Dataset
    conditional : bool

    Returns
    -------
    str
    """
    group = _group(idata)
    planned = "theta" not in group and "created_at" not in group.attrs
    public = public_part(with_zeros(group) if planned else group, conditional=conditional)
    # Zeros or the draw: neither belongs on the page, so that no figure of it can.
    facts = Facts(public.drop_vars(["theta", "theta_smoothed"], errors="ignore"), planned)
    return page(heading(facts), [claim_box(facts)], sections(facts), footer())


def _new_page(path: str | os.PathLike[str]) -> Path:
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"the path must end in .html, not {target.suffix!r}")
    _refuse_existing(target)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"no folder {str(target.parent)!r}")
    return target
