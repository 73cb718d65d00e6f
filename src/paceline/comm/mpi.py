"""The MPI module that goes with a communicator, found without importing or starting MPI.

Whoever has a communicator has the module that it comes from: `mpi4py.MPI`, or what the simulator has instead. MPI itself
is started by `paceline.launch.mpi`, the only place that imports mpi4py.MPI.
"""

from __future__ import annotations

import sys
from typing import Any


def mpi_of(comm: Any) -> Any:
    """Return the module with the constants and classes of a communicator: mpi4py.MPI or the simulator's."""
    own = getattr(comm, "MPI", None)
    return sys.modules["mpi4py.MPI"] if own is None else own


def is_op(op: Any) -> bool:
    """Return True if `op` is an MPI.Op; it cannot be one if mpi4py.MPI was never imported."""
    module = sys.modules.get("mpi4py.MPI")
    return module is not None and isinstance(op, module.Op)
