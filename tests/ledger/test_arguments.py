"""What is no ledger, such as its path, is refused before anything is computed, paid or drawn."""

from __future__ import annotations

import pathlib

import pytest
import xarray as xr

import pymc_dp as pdp


@pytest.fixture(scope="module")
def direct():
    return xr.Dataset(
        {
            "estimate": ("area", [0.1, 0.3, 0.2]),
            "variance": ("area", [0.011, 0.02, 0.017]),
            "sensitivity": ("area", [0.02, 0.02, 0.03]),
        },
        coords={"area": ["north", "south", "west"]},
        attrs={"bounds": [0.0, 1.0]},
    )


@pytest.mark.parametrize("given", ["x.json", pathlib.Path("x.ledger"), {"rho": 1.0}], ids=repr)
def test_a_path_is_no_ledger(direct, given):
    release = pdp.PrivateRelease(pdp.fay_herriot(direct, sigma_u=0.05), direct["sensitivity"])
    calls = [
        lambda: release.draw(ledger=given),
        lambda: pdp.private_direct(direct, rho=0.1, ledger=given),
        lambda: pdp.private_sigma_u(direct, rho=0.1, ledger=given),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"^ledger must be a PrivacyLedger, not .*: open the "):
            call()
    assert "theta" not in release.guarantee
    release.draw()  # nothing was drawn before


def test_a_public_file_is_netcdf_or_zarr(direct, tmp_path):
    model = pdp.fay_herriot(direct, sigma_u=0.05)
    drawn = pdp.PrivateRelease(model, direct["sensitivity"]).draw()
    with pytest.raises(ValueError, match=r"must end in .nc or .zarr, not '.csv'"):
        pdp.write_public(drawn, tmp_path / "x.csv", conditional=True)
    assert not list(tmp_path.iterdir())
