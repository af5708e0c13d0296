"""Audits: attack a release on made-up data, and see whether its claim survives."""

from pymc_dp.audit.attacks import Audit, audit_one_release, audit_pair
from pymc_dp.audit.lattice import LatticeTest, lattice_test
from pymc_dp.audit.samplers import Sampler

__all__ = ["Audit", "LatticeTest", "Sampler", "audit_one_release", "audit_pair", "lattice_test"]
