"""MPI's numbers that stand for something, as the simulator spells them; mpi4py's own, of any MPI, are taken as well."""

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
# Open MPI's numbers for what goes wrong, with windows and when a process dies among them.
(
    ERR_BUFFER, ERR_COUNT, ERR_TYPE, ERR_TAG, ERR_COMM, ERR_RANK, ERR_REQUEST, ERR_ROOT, ERR_GROUP, ERR_OP, ERR_TOPOLOGY,
    ERR_DIMS, ERR_ARG, ERR_UNKNOWN, ERR_TRUNCATE, ERR_OTHER, ERR_INTERN, ERR_IN_STATUS, ERR_PENDING,
) = range(1, 20)  # fmt: skip
ERR_WIN, ERR_RMA_SYNC, ERR_RMA_SHARED = 53, 47, 71
ERR_PROC_FAILED, ERR_PROC_FAILED_PENDING, ERR_REVOKED = 75, 76, 77


class Meant(NamedTuple):
    """Which number means any source, any tag, nobody."""

    any_source: int
    any_tag: int
    nobody: int


def meant() -> Meant:
    """The simulator's numbers, or those of the real mpi4py.MPI where that has been imported: they differ between MPIs.

    A program sees the one or the other, never both: in a run, what stands in for mpi4py.MPI gives out these numbers.

    >>> meant().any_source < 0
    True
    """
    module = sys.modules.get("mpi4py.MPI")
    if module is None:
        return Meant(ANY_SOURCE, ANY_TAG, PROC_NULL)
    return Meant(int(module.ANY_SOURCE), int(module.ANY_TAG), int(module.PROC_NULL))
