"""The one place where mpi4py.MPI is imported: importing it starts MPI, so nobody does before it is needed."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def mpi() -> ModuleType:
    """The module mpi4py.MPI, with MPI started."""
    from mpi4py import MPI

    return MPI


def is_op(op: Any) -> bool:
    """Whether `op` is an MPI.Op; it cannot be one where mpi4py.MPI was never imported."""
    module = sys.modules.get("mpi4py.MPI")
    return module is not None and isinstance(op, module.Op)
