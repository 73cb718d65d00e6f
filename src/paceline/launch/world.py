"""The job that this process is a rank of, read from its launcher's variables before MPI is started."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from paceline.errors import UsageError

# The variables that each launcher sets: the size; the rank, the rank on the node, the number of ranks on the node.
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
    """The information of the launcher about this process."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    launcher: str
    """"mpiexec of Open MPI", "mpiexec of MPICH", "srun" or, without MPI, "torch.multiprocessing"."""


def world(environment: Mapping[str, str] | None = None) -> World | None:
    """Return the job that this process is a rank of, or None in a plain process or a shell inside an allocation.

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
    # Slurm sets NTASKS in every shell of an allocation, STEP_NUM_TASKS only in what srun started; one task may be an
    # interactive shell (`srun --pty bash`).
    if int(given.get("SLURM_STEP_NUM_TASKS") or 1) > 1 and "SLURM_PROCID" in given:
        return World(
            rank=int(given["SLURM_PROCID"]),
            size=int(given["SLURM_STEP_NUM_TASKS"]),
            local_rank=int(given.get("SLURM_LOCALID") or 0),
            local_size=_tasks_here(given),
            launcher="srun",
        )
    return None


def requeued_job(environment: Mapping[str, str] | None = None) -> str | None:
    """Return the number of the Slurm job that this process belongs to, if Slurm has started that job again.

    >>> requeued_job({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}), requeued_job({"SLURM_JOB_ID": "7"})
    ('7', None)
    """
    given = os.environ if environment is None else environment
    return given.get("SLURM_JOB_ID") if given.get("SLURM_RESTART_COUNT", "0") not in ("", "0") else None


def launcher_process() -> int | None:
    """Return the process that started this job's ranks on this node: the nearest ancestor that is not part of a rank.

    Returns None in a process that is not a rank, or if the launcher cannot be found.
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
    """Return this node's part of `SLURM_STEP_TASKS_PER_NODE`."""
    counts = parse_node_numbers(given.get("SLURM_STEP_TASKS_PER_NODE") or "1")
    node = int(given.get("SLURM_NODEID") or 0)
    return counts[node] if node < len(counts) else counts[0]


def parse_node_numbers(text: str) -> list[int]:
    """Return a number for each node from the text that Slurm's variables use.

    >>> parse_node_numbers("4(x2),3")
    [4, 4, 3]
    """
    counts: list[int] = []
    for word in text.split(","):
        count, _, times = word.partition("(x")
        counts += [int(count)] * int(times.rstrip(")") or 1)
    return counts


def verify(size: int, promised: int | None = None) -> None:
    """Refuse a job that fell apart: the launcher of another MPI starts P jobs of one rank each.

    `size` is the size that MPI reports, `promised` what was asked for (by default, what the launcher's variables say).
    Of P such processes only the first raises a UsageError; the others exit with 2, silently.
    """
    here = world()
    wanted = promised if promised is not None else here.size if here is not None else size
    mpi = sys.modules.get("mpi4py.MPI")
    if wanted == size or (mpi is not None and mpi.COMM_WORLD.Get_size() == wanted):
        return
    if here is None:
        raise UsageError(mismatch(wanted, loaded_library(mpi), "the launcher"))
    refuse_mismatch(here, loaded_library(mpi))


def refuse_mismatch(here: World, library: str) -> NoReturn:
    """Raise a UsageError on the first of the processes that should have been one job; end the others silently."""
    if here.rank != 0:
        raise SystemExit(2)
    raise UsageError(mismatch(here.size, library, here.launcher))


def mismatch(wanted: int, library: str, launcher: str) -> str:
    """Return the message for a job of `wanted` ranks that fell apart, with what to do about it.

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
    """Return the name and version of the MPI library in this process.

    >>> loaded_library(None)
    'this MPI library'
    """
    version = str(mpi.Get_library_version()) if mpi is not None else ""  # type: ignore[attr-defined]
    words = version.replace("Version:", " ").replace(",", " ").split()
    if "Open" in words[:1]:
        return f"Open MPI {words[2].lstrip('v')}"
    return " ".join(words[:2]) or "this MPI library"
