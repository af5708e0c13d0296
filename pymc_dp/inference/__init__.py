"""What a reader may conclude from a release, at no price: everything here is post-processing."""

from pymc_dp.inference.checks import check_working, compare_formulas
from pymc_dp.inference.products import benchmark, contrasts, exceedance, ranks, reliability

__all__ = [
    "benchmark",
    "check_working",
    "compare_formulas",
    "contrasts",
    "exceedance",
    "ranks",
    "reliability",
]
