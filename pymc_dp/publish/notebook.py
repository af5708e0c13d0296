"""What a notebook shows of a release: its claim and its prices, as HTML.

Prices and the record only. Text from outside is escaped, and every price says its kind of claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import xarray as xr

from pymc_dp.publish.rendering import render
from pymc_dp.record.claims import ASSUMPTIONS, mechanism_words
from pymc_dp.record.figures import draws_in_words, record_price
from pymc_dp.record.origin import unchecked


def release_html(guarantee: xr.Dataset, record: Mapping[str, Any], *, drawn: bool) -> str:
    """Tell the claim and the prices of a release, for a notebook.

    Parameters
    ----------
    guarantee : xr.Dataset
        As :attr:`PrivateRelease.guarantee`.
    record : dict
        Its record, as :func:`pymc_dp.record.claims.read_record` returns it.
    drawn : bool
        Whether the release has been drawn.

    Returns
    -------
    str
        A fragment of HTML that needs nothing else. Numbers are rounded up, to four digits.
    """
    price = record_price(guarantee, record).to_series()
    price = price[price > 0]  # without sample there is no record to protect
    declared = record["assumptions"]
    inputs = [*ASSUMPTIONS, *(name for name in sorted(declared) if name not in ASSUMPTIONS)]
    columns = [guarantee[name].values for name in ("delta", "epsilon", "epsilon_zcdp")]
    return render(
        "notebook.html.j2",
        drawn=drawn,
        target=record["target"],
        areas=guarantee.sizes["area"],
        unit=record["unit"],
        claim=record["claim"],
        claim_words=record["claim_words"],
        unchecked=unchecked(record.get("origin", {})),
        components=sorted(record["variance_components"].items())
        + [(name, "not declared public") for name in record.get("undeclared", [])],
        neighbours=record["neighbours"],
        mechanism=mechanism_words(record),
        bounds=record["bounds"],
        pure_epsilon=record["pure_epsilon"],
        price_of=draws_in_words(record),
        rho=guarantee["rho"].item(),
        mu=guarantee["mu"].item(),
        by_record=price.index.name == "record",
        paid=price.size,
        worst={"label": price.idxmax(), "rho": price.max()},
        median=price.median(),
        epsilons=[
            {"delta": delta, "exact": exact, "zcdp": zcdp}
            for delta, exact, zcdp in zip(*columns, strict=True)
        ],
        sources=[(name, declared.get(name, "not declared")) for name in inputs],
    )
