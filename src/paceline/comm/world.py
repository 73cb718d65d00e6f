"""The one place where mpi4py.MPI is imported: importing it starts MPI, so nobody does before it is needed."""

from __future__ import annotations

import sys
import warnings
from functools import cache
from types import ModuleType
from typing import Any, Literal

from paceline.comm.torch_processes import Processes, started


def mpi() -> ModuleType:
    """The module mpi4py.MPI, with MPI started; on simulated ranks what stands in for it."""
    found = sys.modules.get("mpi4py.MPI")
    return found if found is not None and hasattr(found, "simulated") else _started()


@cache
def _started() -> ModuleType:
    import mpi4py

    if "mpi4py.MPI" not in sys.modules:
        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"\s*suspicious MPI", RuntimeWarning)  # `prepared` says it better
        from mpi4py import MPI
    if not MPI.Is_initialized():
        from paceline.launch import prepared

        with prepared(*MPI.get_vendor()):
            MPI.Init_thread()
    return MPI


def is_op(op: Any) -> bool:
    """Whether `op` is an MPI.Op; it cannot be one where mpi4py.MPI was never imported."""
    module = sys.modules.get("mpi4py.MPI")
    return module is not None and isinstance(op, module.Op)


# ---- The communicator of all ranks of this job, whoever started them.


def communicator(launcher: Literal["mpi", "torch"] = "mpi") -> Any:
    """All ranks of this job; `launcher`: what a process that nobody started with others is alone in.

    >>> communicator("torch").Get_size()
    1
    """
    together = started()
    if together is not None:
        return together
    return Processes(0, []) if launcher == "torch" else mpi().COMM_WORLD
