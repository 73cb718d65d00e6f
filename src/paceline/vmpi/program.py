"""Programs on simulated ranks: a function of a communicator, or a script written for mpi4py.

During a run, `from mpi4py import MPI` imports the simulator's module (`paceline.vmpi.MPI`), so programs need no change.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import importlib.util
import logging
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import mpi4py
from greenlet import getcurrent

from paceline.errors import UsageError
from paceline.files import open_file, unreadable
from paceline.vmpi import MPI
from paceline.vmpi.communicator import current_world
from paceline.vmpi.compute import Compute, RankCompute
from paceline.vmpi.errors import Aborted, SimulationError
from paceline.vmpi.groups import CommState
from paceline.vmpi.handles import raise_unsupported
from paceline.vmpi.kernel import Kernel
from paceline.vmpi.network import Network, Wires, parse_network
from paceline.vmpi.process import Separation, call_at_exit, separate_ranks
from paceline.vmpi.rounds import can_evaluate

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a simulation."""

    values: list[Any] = field(repr=False)
    """The return value of each rank."""
    seconds: float
    """The virtual time at which the last rank ended."""
    clocks: list[float] = field(repr=False)
    """The virtual time at which each rank ended."""
    messages: int
    """The number of point-to-point messages of all ranks."""
    bytes: int
    """Their bytes."""
    collectives: int = 0
    """The number of calls of MPI's own collectives, each counted once for all of its ranks."""
    one_sided: int = 0
    """The number of messages of one-sided calls."""
    killed: dict[int, float] = field(default_factory=dict)
    """Ranks that were killed, and when."""


def run(
    function: Callable[..., Any],
    *arguments: Any,
    ranks: int,
    network: str | Network = "loopback",
    compute: Compute | None = None,
    seed: int = 0,
    faults: Sequence[Any] = (),
    strict: bool = True,
    rendezvous: bool = False,
    carries: Callable[[str, int], bool] | None = None,
    collectives_only: bool = False,
) -> Outcome:
    """Run `function(comm, *arguments)` on `ranks` simulated ranks of this one process, in virtual time.

    `comm` has mpi4py's interface; in addition `comm.Compute(seconds)` lets a rank compute. `comm.Wtime()` is its clock.

    `network`: a name with options (`"10gbe:ranks-per-node=4"`) or a `Network`. `compute`: the costs of `comm.Work`.
    `seed`: the same seed gives the same result, bit for bit; another one orders simultaneous events differently.
    `faults`: see `paceline.vmpi.faults`. `strict`: changed buffers, mismatched types and anything left over at the end
    are errors. `rendezvous`: no message is buffered, so a program that relies on buffering ends in a Deadlock.
    `carries`: for simulating time only; decides which messages carry their contents, by kind ("f4") and bytes.
    `collectives_only`: ranks send no messages except in collectives that all of them call, so that more of these can be
    evaluated for all ranks at once (`paceline.vmpi.rounds`); times are the same.

    >>> import numpy as np
    >>> def ring(comm):
    ...     mine, theirs = np.array([comm.Get_rank()]), np.array([-1])
    ...     p, r = comm.Get_size(), comm.Get_rank()
    ...     comm.Sendrecv(mine, (r + 1) % p, recvbuf=theirs, source=(r - 1) % p)
    ...     return int(theirs[0])
    >>> outcome = run(ring, ranks=5)
    >>> outcome.values, outcome.messages
    ([4, 0, 1, 2, 3], 5)
    """
    check_ranks(ranks)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise UsageError(f"seed must be a whole number; got {seed!r}")
    if not isinstance(faults, Sequence) or not all(hasattr(fault, "prepare") for fault in faults):
        raise UsageError(
            f"faults must be a list of faults, such as [fail_at(rank=3, step=100)]; got {faults!r}"
        )
    network = parse_network(network) if isinstance(network, str) else network
    wires = network.wires(ranks, random.Random(f"{seed} wires"))
    computing = start_compute(compute, network, wires, seed)
    kernel = Kernel(ranks, wires, computing, seed=seed, strict=strict, rendezvous=rendezvous, carries=carries)
    for fault in faults:
        fault.prepare(kernel)
    kernel.collectives_only = collectives_only
    kernel.revises = wires.revised = kernel.faults is None and wires.streamed
    kernel.checks |= kernel.revises
    kernel.evaluates = not faults and can_evaluate(kernel)
    world = CommState(kernel, range(ranks), "MPI_COMM_WORLD")

    def body(rank: int) -> Callable[[], Any]:
        if not arguments:  # one level less of the C stack, which is copied at every switch
            return lambda: function(MPI.enter(world, rank))
        return lambda: function(MPI.enter(world, rank), *arguments)

    with _collect_garbage_rarely(ranks), replace_mpi4py(function) as kernel.MPI:
        kernel.run([body(rank) for rank in range(ranks)])
    if kernel.faults is not None:
        for sentence in kernel.faults.describe_unused():
            log.warning(sentence)
    clocks = [rank.t for rank in kernel.ranks]
    return Outcome(
        values=[rank.value for rank in kernel.ranks], seconds=max(clocks), clocks=clocks,
        messages=kernel.messages, bytes=kernel.bytes, collectives=kernel.collectives, one_sided=kernel.one_sided,
        killed={} if kernel.faults is None else {rank: death.time for rank, death in kernel.faults.dead.items()},
    )  # fmt: skip


def start_compute(compute: Compute | None, network: Network, wires: Wires, seed: int) -> RankCompute | None:
    """Start the computing of a run on a network."""
    if compute is None:
        return None
    if network.sockets > 1 and compute.cores is not None:  # each socket has its share
        compute = replace(compute, cores=max(1, compute.cores // network.sockets))
    return compute.start(wires.memory, seed)


def check_faults(faults: Sequence[Any], ranks: int, network: Network) -> None:
    """Raise a UsageError if a fault names a rank or a node that such a run does not have."""
    if faults:
        kernel = Kernel(ranks, network.wires(ranks, random.Random(0)), None)
        for fault in faults:
            fault.prepare(kernel)


# Each takes about 20 kB before it does anything.
MOST_RANKS = 1 << 20


def check_ranks(ranks: int) -> None:
    """Raise a UsageError for a number of ranks that cannot be simulated.

    >>> check_ranks(0)
    Traceback (most recent call last):
    paceline.errors.UsageError: ranks must be a whole number of at least 1; got 0
    """
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise UsageError(f"ranks must be a whole number of at least 1; got {ranks!r}")
    if ranks > MOST_RANKS:
        raise UsageError(f"at most {MOST_RANKS:,} ranks can be simulated; got {ranks:,}")


@contextmanager
def _collect_garbage_rarely(ranks: int) -> Iterator[None]:
    """Collect garbage rarely: messages form no cycles, and searching the memory of thousands of ranks is slow.

    The more ranks there are, the more objects that are no garbage they make at their start.
    """
    before = gc.get_threshold()
    gc.set_threshold(200_000 + 200 * ranks, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class Script:
    """A program written for mpi4py, to be run unchanged by simulated ranks, each with its own global names.

    The file is compiled once. Every rank executes it as `__main__`, with `arguments` in `sys.argv`; or executes it as
    a module, and calls a `function` of it with the communicator.

    >>> import tempfile
    >>> from paceline.vmpi import run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "hello.py"
    ...     text = "from mpi4py.MPI import COMM_WORLD as c\\nranks = c.gather(c.rank)\\nif ranks: print(__name__, ranks)"
    ...     _ = file.write_text(text)
    ...     script = Script(file)
    ...     with script.imitate_python():
    ...         _ = run(script, ranks=2)
    __main__ [0, 1]
    """

    def __init__(self, file: Path, function: str | None = None, arguments: Sequence[str] = ()) -> None:
        self.file = file
        self.function = function
        self.arguments = list(arguments)
        self.name = "__main__" if function is None else file.stem
        self._code = compile_script(file)
        self._modules = NearbyModules(file.absolute().parent)
        self._separation: Separation | None = None

    def __call__(self, comm: Any) -> Any:
        """Run the program on one rank."""
        own = vars(builtins) | {"__import__": self._import}
        names: dict[str, Any] = {"__name__": self.name, "__file__": str(self.file), "__builtins__": own}
        running: Any = getcurrent()
        running.paceline_modules = {self.name: names, "builtins": own}
        with contextlib.nullcontext() if self._separation is None else self._separation.begin(comm.me):
            try:
                exec(self._code, names)
                value = None if self.function is None else self._find_function(names)(comm, *self.arguments)
            except SystemExit as end:
                if end.code not in (None, 0) or isinstance(end, Aborted):
                    raise
                value = None
            except SimulationError:
                raise
            except Exception as error:
                _call_excepthook(error)
                raise
            call_at_exit()
            return value

    def _import(self, *arguments: Any, **options: Any) -> Any:
        """Do what Python's `__import__` does, for the program's own code on the running rank."""
        found = self._modules.import_module(*arguments, **options)
        if self._separation is not None:
            self._separation.notice_torch()
        return found

    def _import_for_library(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Do what Python's `__import__` does, for shared code: pickle imports the modules of a program's classes."""
        if hasattr(getcurrent(), "paceline_modules") and self._modules.has(name):
            return self._modules.import_module(name, *arguments, **options)
        return _really_import(name, *arguments, **options)

    def _import_by_name(self, name: str, package: str | None = None) -> Any:
        """Do what `importlib.import_module` does, for the running rank."""
        if package and name.startswith("."):
            name = importlib.util.resolve_name(name, package)
        if hasattr(getcurrent(), "paceline_modules") and self._modules.has(name):
            return self._modules.import_module(name, fromlist=("__name__",))
        return _really_import_by_name(name, package)

    def _find_function(self, names: dict[str, Any]) -> Callable[..., Any]:
        assert self.function is not None
        found = names.get(self.function)
        if not callable(found):
            raise UsageError(f"{self.file} has no function {self.function}")
        return found  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def imitate_python(self) -> Iterator[None]:
        """Set `sys.argv`, `sys.path` and `sys.modules` as for a program started by Python itself, once for every rank.

        Each rank also has its own standard streams, environment, random numbers and more: see `paceline.vmpi.process`.
        """
        argv, path, before = sys.argv, sys.path[:], sys.modules.copy()
        sys.argv = [str(self.file), *self.arguments]
        sys.path.insert(0, str(self.file.absolute().parent))
        sys.modules[self.name] = _RankModule(self.name)
        builtins.__import__, importlib.import_module = self._import_for_library, self._import_by_name
        try:
            with separate_ranks() as self._separation:
                yield
        finally:
            self._separation = None
            builtins.__import__, importlib.import_module = _really_import, _really_import_by_name
            sys.argv, sys.path[:] = argv, path
            for name in [name for name, module in sys.modules.items() if isinstance(module, _RankModule)]:
                if name in before:
                    sys.modules[name] = before[name]
                else:
                    del sys.modules[name]


def _call_excepthook(error: Exception) -> None:
    """Call the `sys.excepthook` that the running rank has set, as Python would: it may call Abort."""
    hook = sys.excepthook
    if hook is not vars(sys)["excepthook"]:  # that of the simulator's own process
        trace = error.__traceback__
        with contextlib.suppress(Exception):  # the error itself is what counts
            hook(type(error), error, trace and trace.tb_next)


# Folders of libraries, which the ranks share.
INSTALLED = ("site-packages", "dist-packages")
_really_import, _really_import_by_name = builtins.__import__, importlib.import_module


class NearbyModules:
    """The modules of a program, of which every rank has its own, as every process of MPI has.

    They are in the folder of the script and in folders that the program adds to `sys.path`. A rank's `import` statement
    calls `import_module`. The ranks share all other modules except `builtins`, so that a rank may replace `print` in its
    own code.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._before = frozenset(sys.path)
        self._path: list[str] = []
        self._folders: set[str] = set()
        self._known: dict[str, tuple[CodeType | None, ModuleSpec] | None] = {}

    def has(self, name: str) -> bool:
        """Return True if the module, or the package that it is in, belongs to the program."""
        return self._find(name.partition(".")[0]) is not None

    def import_module(
        self, name: str, globals: Any = None, locals: Any = None,  # noqa: A002 (Python's names)
        fromlist: Sequence[str] = (), level: int = 0,
    ) -> Any:  # fmt: skip
        """Do what Python's `__import__` does, with the running rank's own modules."""
        if name == "builtins" and not level:
            return _rank_builtins
        package = (globals or {}).get("__package__") or ""
        whole = importlib.util.resolve_name("." * level + name, package) if level else name
        if not self.has(whole):
            return _really_import(name, globals, locals, fromlist, level)
        parts = whole.split(".")
        found = None
        for length in range(1, len(parts) + 1):
            found = self._load(".".join(parts[:length]))
        for each in fromlist or ():
            if not hasattr(found, each) and self._find(f"{whole}.{each}") is not None:
                self._load(f"{whole}.{each}")
        return found if fromlist else self._load(parts[0])

    def _find(self, name: str) -> tuple[CodeType | None, ModuleSpec] | None:
        """Return the code of one of the program's modules, and where it comes from; None if it is none."""
        if sys.path != self._path:
            self._path = sys.path[:]
            added = [Path(path).absolute() for path in self._path if path not in self._before]
            self._folders = {self._folder, *(str(path) for path in added if path.name not in INSTALLED)}
            self._known = {name: found for name, found in self._known.items() if found is not None}
        if name not in self._known:
            self._known[name] = self._search(name)
        return self._known[name]

    def _search(self, name: str) -> tuple[CodeType | None, ModuleSpec] | None:
        parent = name.rpartition(".")[0]
        above = self._find(parent) if parent else None
        if parent:
            folders = None if above is None else above[1].submodule_search_locations
            spec = None if folders is None else PathFinder.find_spec(name, folders)
        else:
            known = sys.modules.get(name)
            shared = known is not None and not isinstance(known, _RankModule)
            if shared or name in sys.builtin_module_names:
                return None
            spec = PathFinder.find_spec(name)
        if spec is None:
            return None
        places = spec.submodule_search_locations or [spec.origin or ""]
        if not parent and not self._folders.issuperset(
            str(Path(place).absolute().parent) for place in places
        ):
            return None
        if spec.origin is None:  # a folder without __init__.py
            return None, spec
        return (compile_script(Path(spec.origin)), spec) if spec.origin.endswith(".py") else None

    def _load(self, name: str) -> Any:
        modules: dict[str, dict[str, Any]] = getcurrent().paceline_modules
        known = sys.modules.get(name)
        if name in modules:
            return known
        parent, _, last = name.rpartition(".")
        found = self._find(name)
        if found is None:  # missing, or a module that is not written in Python
            known = _really_import_by_name(name)
            modules[parent][last] = known
            return known
        code, spec = found
        if not isinstance(known, _RankModule):
            sys.modules[name] = known = _RankModule(name)
        names: dict[str, Any] = {
            "__name__": name, "__package__": spec.parent, "__loader__": spec.loader, "__spec__": spec,
            "__builtins__": modules["builtins"],
        }  # fmt: skip
        modules[name] = names
        if spec.origin is not None:
            names["__file__"] = spec.origin
        if spec.submodule_search_locations is not None:
            names["__path__"] = spec.submodule_search_locations
        try:
            if code is not None:
                exec(code, names)
        except BaseException:
            del modules[name]
            raise
        if parent:
            modules[parent][last] = known
        return known


class _RankModule(ModuleType):
    """A module of the rank that is running: imports, pickle and dataclasses find that rank's own names in it."""

    def __getattribute__(self, name: str) -> Any:
        names = _find_names(self)
        if names is None or name == "__class__":
            return super().__getattribute__(name)
        if name == "__dict__":
            return names
        try:
            return names[name]
        except KeyError:
            if name.startswith(
                "__"
            ):  # of every module: `__doc__` may be missing, and all modules have `__dir__`
                return super().__getattribute__(name)
            if "__getattr__" in names:
                return names["__getattr__"](name)
            own = super().__getattribute__("__name__")
            raise AttributeError(f"module {own!r} has no attribute {name!r}") from None

    def __dir__(self) -> list[str]:
        names = _find_names(self) or {}
        return list(names["__dir__"]()) if "__dir__" in names else sorted(names)

    def __reduce__(self) -> Any:
        """Let dill and cloudpickle, which can pickle modules, pickle this one as a reference to the receiver's own."""
        return import_for_rank, (super().__getattribute__("__name__"),)

    def __setattr__(self, name: str, value: Any) -> None:
        names = _find_names(self)
        if names is None:
            super().__setattr__(name, value)
        else:
            names[name] = value

    def __delattr__(self, name: str) -> None:
        names = _find_names(self)
        if names is None:
            super().__delattr__(name)
        else:
            del names[name]


def import_for_rank(name: str) -> Any:
    """Import a module by its name, as the running rank has it."""
    return importlib.import_module(name)


def _find_names(module: _RankModule) -> dict[str, Any] | None:
    """Return the names that the running rank has in a module; None if it has none, or if no rank is running."""
    own: dict[str, dict[str, Any]] = getattr(getcurrent(), "paceline_modules", {})
    return own.get(object.__getattribute__(module, "__dict__")["__name__"])


_rank_builtins = _RankModule("builtins")


def compile_script(file: Path) -> CodeType:
    """Compile a file, or raise UsageError if it is not a Python program."""
    try:
        with open_file(file) as opened:
            text = opened.read()
    except OSError as error:
        raise unreadable(file, error) from None
    try:
        return compile(text, str(file), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(f"{file}{where}: {why}") from None


NAME = "mpi4py.MPI"
DEPENDENT = ("mpi4py.util", "mpi4py.futures")
_MISSING: Any = object()


def make_module() -> ModuleType:
    """Create a module that looks like mpi4py.MPI, with the constants of the real one if that has been imported.

    >>> make_module().Get_library_version()
    'paceline.vmpi: simulated ranks in virtual time'
    """
    module = ModuleType(NAME, MPI.__doc__)
    found = {name: value for name, value in vars(MPI).items() if not name.startswith("__")}
    vars(module).update(found, **MPI.numbers(), real=sys.modules.get(NAME), __getattr__=MPI.__getattr__)
    return module


_really_sleep = time.sleep


def _sleep(seconds: Any, /) -> None:
    """Let a simulated rank sleep in virtual time; outside of ranks, as in other threads, really sleep.

    So do Python's own modules, which wait for something real: `subprocess` sleeps until a process has ended.
    """
    caller = str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0]
    waits = caller in sys.stdlib_module_names
    if waits or getattr(getcurrent(), "paceline_world", None) is None:
        _really_sleep(seconds)
        return
    if not seconds >= 0:
        raise ValueError("sleep length must be non-negative")
    current_world().me.t += seconds


class _Futures(ModuleType):
    """mpi4py.futures: a pool calls MPI from threads, which simulated ranks do not have."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise_unsupported("threads, which mpi4py.futures needs")


@contextmanager
def replace_mpi4py(*functions: Callable[..., Any]) -> Iterator[ModuleType]:
    """Make `from mpi4py import MPI`, and names bound to mpi4py in the functions' modules, refer to the simulator's.

    >>> with replace_mpi4py() as MPI:
    ...     from mpi4py import MPI as found
    ...     found is MPI
    True
    """
    real = sys.modules.get(NAME)
    module = make_module()
    # Modules of mpi4py that use mpi4py.MPI are loaded again, with the simulator's.
    loaded = {name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith(DEPENDENT)}
    attributes = {name: vars(mpi4py).get(name, _MISSING) for name in ("MPI", "util", "futures")}
    sys.modules["mpi4py.futures"] = futures = _Futures("mpi4py.futures")
    vars(mpi4py)["futures"] = futures
    swapped = [] if real is None else _names(functions, real, module)
    sys.modules[NAME] = module
    mpi4py.MPI = module
    settings = mpi4py.rc
    initialize, settings.initialize = settings.initialize, True
    really_sleep, time.sleep = time.sleep, _sleep
    for names, name, _, new in swapped:
        names[name] = new
    try:
        yield module
    finally:
        settings.initialize = initialize
        time.sleep = really_sleep
        for name in [name for name in sys.modules if name.startswith(DEPENDENT)]:
            del sys.modules[name]
        sys.modules.update(loaded)
        for names, name, old, _ in swapped:
            names[name] = old
        if real is None:
            del sys.modules[NAME]
        else:
            sys.modules[NAME] = real
        for name, value in attributes.items():
            if value is not _MISSING:
                setattr(mpi4py, name, value)
            elif name in vars(mpi4py):
                delattr(mpi4py, name)


def _names(
    functions: tuple[Callable[..., Any], ...], real: ModuleType, module: ModuleType
) -> list[tuple[dict[str, Any], str, Any, Any]]:
    """Find names bound to something of the real module: the namespace, the name, the value, its replacement.

    Searched are the functions' own modules, and all modules except mpi4py's in which the real module is called MPI:
    everything in them that belongs to the real module, as in `comm = MPI.COMM_WORLD`.
    """
    instead = {id(real): module}
    for name, thing in vars(real).items():
        if not isinstance(thing, (int, str)) and not name.startswith("_") and hasattr(module, name):
            instead[id(thing)] = getattr(module, name)
    others = (getattr(other, "__dict__", None) for other in list(sys.modules.values()))
    programs = [
        names
        for names in others
        if isinstance(names, dict) and names.get("MPI") is real and names.get("__package__") != "mpi4py"
    ]
    programs += [names for names in map(_globals, functions) if names is not None]
    return [
        (names, name, thing, instead[id(thing)])
        for names in {id(names): names for names in programs}.values()
        for name, thing in names.items()
        if id(thing) in instead
    ]


def _globals(function: Any) -> dict[str, Any] | None:
    """Return the global names of a function, a method, a partial or a callable object."""
    while hasattr(function, "func") and hasattr(function, "args"):
        function = function.func
    function = getattr(function, "__wrapped__", function)
    function = getattr(function, "__func__", function)
    if not hasattr(function, "__globals__"):
        function = vars(type(function)).get("__call__")
    return getattr(function, "__globals__", None)
