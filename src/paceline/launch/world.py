"""Whether this process is a rank of a job, as its launcher's variables say: known before MPI is started."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from paceline.errors import UsageError

# What each mpiexec tells its ranks: the variables for size; for rank, rank on the node, ranks on the node.
LAUNCHERS = {
    "OMPI_COMM_WORLD_SIZE": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "mpiexec of Open MPI",
    ),
    "PMI_SIZE": ("PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "mpiexec of MPICH"),
    "PACELINE_SIZE": ("PACELINE_RANK", "PACELINE_RANK", "PACELINE_SIZE", "torch.multiprocessing"),
}


@dataclass(frozen=True, kw_only=True)
class World:
    """What the launcher promised this process."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    launcher: (
        str  # "mpiexec of Open MPI", "mpiexec of MPICH", "srun" or, with no MPI, "torch.multiprocessing"
    )


def world(environment: Mapping[str, str] | None = None) -> World | None:
    """The job that this process is a rank of, or None: a plain process, or a shell inside an allocation.

    >>> world({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"})
    World(rank=1, size=4, local_rank=1, local_size=4, launcher='mpiexec of MPICH')
    >>> world({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}) is None
    True
    """
    given = os.environ if environment is None else environment
    for size, (rank, here, among, launcher) in LAUNCHERS.items():
        if size in given and among in given:
            return World(
                rank=int(given[rank]),
                size=int(given[size]),
                local_rank=int(given[here]),
                local_size=int(given[among]),
                launcher=launcher,
            )
    # Slurm says NTASKS in every shell of an allocation, STEP_NUM_TASKS only in what srun started; one task is
    # an interactive shell (`srun --pty bash`) as often as a job.
    if int(given.get("SLURM_STEP_NUM_TASKS") or 1) > 1 and "SLURM_PROCID" in given:
        return World(
            rank=int(given["SLURM_PROCID"]),
            size=int(given["SLURM_STEP_NUM_TASKS"]),
            local_rank=int(given.get("SLURM_LOCALID") or 0),
            local_size=_tasks_here(given),
            launcher="srun",
        )
    return None


def launcher_process() -> int | None:
    """The process that started the ranks of this job here: the nearest one above that is not a rank's itself.

    None in a process that is no rank, or where that cannot be seen.
    """
    if world() is None:
        return None
    names = [
        rank for size, (rank, _, among, _) in LAUNCHERS.items() if size in os.environ and among in os.environ
    ]
    mark = f"{(names or ['SLURM_PROCID'])[0]}=".encode()
    above = os.getppid()
    try:
        while above > 1 and any(
            word.startswith(mark) for word in Path(f"/proc/{above}/environ").read_bytes().split(b"\0")
        ):
            above = int(Path(f"/proc/{above}/stat").read_text().rpartition(") ")[2].split()[1])
    except PermissionError:  # another user's: slurmstepd
        pass
    except OSError:
        return None
    return above if above > 1 else None


def _tasks_here(given: Mapping[str, str]) -> int:
    """This node's part of `SLURM_STEP_TASKS_PER_NODE`."""
    counts = by_node(given.get("SLURM_STEP_TASKS_PER_NODE") or "1")
    node = int(given.get("SLURM_NODEID") or 0)
    return counts[node] if node < len(counts) else counts[0]


def by_node(text: str) -> list[int]:
    """A number for each node, as Slurm's variables spell it.

    >>> by_node("4(x2),3")
    [4, 4, 3]
    """
    counts: list[int] = []
    for word in text.split(","):
        count, _, times = word.partition("(x")
        counts += [int(count)] * int(times.rstrip(")") or 1)
    return counts


def verify(size: int, promised: int | None = None) -> None:
    """Refuses a job that fell apart: a launcher of another MPI starts P jobs of one rank each.

    `size` is what MPI says of this job, `promised` what was asked for (by default: what the launcher's
    variables say). Of P such processes only the first raises a UsageError; the others exit with 2, silently.
    """
    here = world()
    wanted = promised if promised is not None else here.size if here is not None else size
    mpi = sys.modules.get("mpi4py.MPI")
    if wanted == size or (mpi is not None and mpi.COMM_WORLD.Get_size() == wanted):
        return
    if here is None:
        raise UsageError(mismatch(wanted, loaded_library(mpi), "the launcher"))
    refuse(here, loaded_library(mpi))


def refuse(here: World, library: str) -> NoReturn:
    """A UsageError on the first of the processes that should have been one job; the others end silently."""
    if here.rank != 0:
        raise SystemExit(2)
    raise UsageError(mismatch(here.size, library, here.launcher))


def mismatch(wanted: int, library: str, launcher: str) -> str:
    """The sentence for a job of `wanted` ranks that fell apart, and what to do.

    >>> mismatch(4, "Open MPI 5.0.11", "mpiexec of MPICH").partition(";")[0]
    'mpiexec of MPICH cannot start Open MPI 5.0.11: 4 ranks would be 4 jobs of 1'
    """
    if launcher == "srun" and "Open MPI" in library:
        cure = f"use `salloc -n {wanted} mpiexec …`, or the wheel that srun can start: paceline[mpich]"
    elif launcher == "srun":
        cure = f"use `srun --mpi=pmi2 -n {wanted} …`, or the mpiexec of {library}"
    else:
        cure = f"use the mpiexec of {library}: `paceline train -n {wanted} …` finds it"
    return f"{launcher} cannot start {library}: {wanted} ranks would be {wanted} jobs of 1; {cure}"


def loaded_library(mpi: object) -> str:
    """The MPI library in this process, by name and version.

    >>> loaded_library(None)
    'this MPI library'
    """
    said = str(mpi.Get_library_version()) if mpi is not None else ""  # type: ignore[attr-defined]
    words = said.replace("Version:", " ").replace(",", " ").split()
    if "Open" in words[:1]:
        return f"Open MPI {words[2].lstrip('v')}"
    return " ".join(words[:2]) or "this MPI library"
