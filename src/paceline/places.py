"""Where a rank of a run is: a process among others, or one of many that are simulated in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from paceline.comm._agree import agreed, same, shared_text
from paceline.comm._clocks import common_start
from paceline.comm._processes import Processes
from paceline.errors import UsageError
from paceline.job import Job, Parts
from paceline.record._environment import environment
from paceline.record._node import nodes_of
from paceline.steps import free_of_charge

Made = TypeVar("Made")


class Place(Protocol):
    """What a rank must know of where it is."""

    comm: Any
    """mpi4py's, or one that looks like it; None where this process is the only one and needs none."""
    threads: int
    """Of each rank."""
    simulated: bool
    hollow: bool
    """Whether time alone is simulated, and nothing computed."""
    clock: Callable[[], float]
    charge: Callable[[str, float], None]

    def origin(self) -> float:
        """The reading of this rank's clock at the moment that all ranks count from. Collective."""
        ...

    def prepare(self, job: Job) -> Parts:
        """What this rank trains with."""
        ...

    def folder(self, job: Job) -> Path | None:
        """The run's folder, where one is wanted: the same for every rank."""
        ...

    def agreed(self, work: Callable[[], Made]) -> Made:
        """Do something that may be refused; what one rank refuses every rank does."""
        ...

    def asked(self) -> dict[str, Any]:
        """Where the run was to be, with the settings of that place as they were given."""
        ...

    def described(self) -> dict[str, Any]:
        """What the record's configuration says of this place."""
        ...

    def environment(self) -> dict[str, Any]:
        """What the record says of the machine."""
        ...


class Process:
    """A rank that is a process of its own: it prepares everything itself, and all agree that it is the same."""

    simulated = hollow = False

    def __init__(self, comm: Any, threads: int) -> None:
        self.comm = comm
        self.threads = threads
        self.clock = time.perf_counter
        self.charge: Callable[[str, float], None] = free_of_charge
        self._nodes: dict[str, list[int]] | None = None  # known with the folder

    def origin(self) -> float:
        return common_start(self.comm, self.clock)

    def prepare(self, job: Job) -> Parts:
        made = self.agreed(lambda: self._prepare(job))
        x = made.model.x
        same(
            self.comm,
            {"parameters": x.size, "type": x.dtype.name, "training samples": len(made.data.train)},
        )
        return made

    def _prepare(self, job: Job) -> Parts:
        ranks = 1 if self.comm is None else self.comm.Get_size()
        if job.launcher() == "torch" and ranks > 1 and not isinstance(self.comm, Processes):
            raise UsageError(
                f"{job.name()} starts its processes itself and cannot use the {ranks} ranks of an MPI job: "
                f"leave out mpiexec or srun, and say how many (-n {ranks}, or ranks={ranks} of fit)"
            )
        return job.prepare(ranks)

    def folder(self, job: Job) -> Path | None:
        if job.runs is None:
            return None
        ranks, rank = (1, 0) if self.comm is None else (self.comm.Get_size(), self.comm.Get_rank())
        made = self.agreed(lambda: job.new_folder(ranks) if rank == 0 else None)
        self._nodes = nodes_of(self.comm)
        return Path(shared_text(self.comm, str(made)))

    def agreed(self, work: Callable[[], Made]) -> Made:
        return agreed(self.comm, work)

    def asked(self) -> dict[str, Any]:
        return {"on": "mpi"}

    def described(self) -> dict[str, Any]:
        return {}

    def environment(self) -> dict[str, Any]:
        return {**environment(threads=self.threads, comm=self.comm), "nodes": self._nodes}
