"""The communicator of all ranks of this job, whoever started them."""

from __future__ import annotations

from typing import Any, Literal

from paceline.comm._mpi import mpi
from paceline.comm._processes import Processes, started


def communicator(launcher: Literal["mpi", "torch"] = "mpi") -> Any:
    """All ranks of this job; `launcher`: what a process that nobody started with others is alone in.

    >>> communicator("torch").Get_size()
    1
    """
    together = started()
    if together is not None:
        return together
    return Processes(0, []) if launcher == "torch" else mpi().COMM_WORLD
