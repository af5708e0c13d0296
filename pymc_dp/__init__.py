"""Privacy in small area estimation: one posterior draw, and how private it is.

The way through the package: :mod:`~pymc_dp.survey` (records to direct estimates) ->
:mod:`~pymc_dp.models` (a ``pm.Model``) -> :mod:`~pymc_dp.reading` (proof of what it is) ->
:mod:`~pymc_dp.posterior` (its exact posterior) -> :mod:`~pymc_dp.mechanisms` and
:mod:`~pymc_dp.privacy` (prices and the safe draw) -> :mod:`~pymc_dp.release` (the draw and its
record) -> :mod:`~pymc_dp.publish`.

Names are imported when they are first used: PyMC takes seconds, and the command line's help or a
look at a ledger does not need it. They are listed once, in ``__init__.pyi``.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
