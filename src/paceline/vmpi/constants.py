"""MPI's constants in the simulator. The numbers of the real mpi4py, which differ between MPIs, are understood too."""

from __future__ import annotations

import sys
from typing import NamedTuple

ANY_SOURCE = -2
ANY_TAG = -1
PROC_NULL = -3
UNDEFINED = -32766
ROOT = -4
COMM_TYPE_SHARED = 1
LOCK_EXCLUSIVE, LOCK_SHARED = 1, 2
TAG_UB = (1 << 31) - 1
# Open MPI's numbers of error classes, including those of windows and of failed processes.
(
    ERR_BUFFER, ERR_COUNT, ERR_TYPE, ERR_TAG, ERR_COMM, ERR_RANK, ERR_REQUEST, ERR_ROOT, ERR_GROUP, ERR_OP, ERR_TOPOLOGY,
    ERR_DIMS, ERR_ARG, ERR_UNKNOWN, ERR_TRUNCATE, ERR_OTHER, ERR_INTERN, ERR_IN_STATUS, ERR_PENDING,
) = range(1, 20)  # fmt: skip
ERR_WIN, ERR_RMA_SYNC, ERR_RMA_SHARED = 53, 47, 71
ERR_PROC_FAILED, ERR_PROC_FAILED_PENDING, ERR_REVOKED = 75, 76, 77


class SpecialNumbers(NamedTuple):
    """The numbers of ANY_SOURCE, ANY_TAG and PROC_NULL."""

    any_source: int
    any_tag: int
    proc_null: int


def special_numbers() -> SpecialNumbers:
    """Return the simulator's numbers, or those of the real mpi4py.MPI if that has been imported.

    A program never sees both: during a run, the replacement of mpi4py.MPI has these numbers.

    >>> special_numbers().any_source < 0
    True
    """
    module = sys.modules.get("mpi4py.MPI")
    if module is None:
        return SpecialNumbers(ANY_SOURCE, ANY_TAG, PROC_NULL)
    return SpecialNumbers(int(module.ANY_SOURCE), int(module.ANY_TAG), int(module.PROC_NULL))
