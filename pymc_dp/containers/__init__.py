"""What holds results: InferenceData and DataTree, files with one group, and what a fit tells."""

from pymc_dp.containers.groups import (
    GROUP,
    as_dataset,
    attach,
    check_container,
    groups,
    new_container,
    read_group,
    release_group,
)

__all__ = [
    "GROUP",
    "as_dataset",
    "attach",
    "check_container",
    "groups",
    "new_container",
    "read_group",
    "release_group",
]
