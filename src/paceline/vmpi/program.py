"""`paceline.vmpi.run`: a function of a communicator, on simulated ranks."""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import mpi4py
from greenlet import getcurrent

from paceline.errors import UsageError
from paceline.vmpi import MPI
from paceline.vmpi.communicator import Comm
from paceline.vmpi.compute import Compute
from paceline.vmpi.errors import Aborted
from paceline.vmpi.groups import Group
from paceline.vmpi.kernel import Kernel
from paceline.vmpi.network import Network, parse_network

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a simulation."""

    values: list[Any] = field(repr=False)
    """What the function returned, by rank."""
    seconds: float
    """Virtual time at which the last rank ended."""
    clocks: list[float] = field(repr=False)
    """When each rank ended."""
    messages: int
    """Point-to-point messages of all ranks."""
    bytes: int
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
) -> Outcome:
    """Run `function(comm, *arguments)` on `ranks` simulated ranks of this one process, in virtual time.

    `comm` has mpi4py's buffer interface; `comm.Compute(seconds)` lets a rank compute, `comm.Wtime()` is its clock. The
    same seed gives the same result to the bit; another one explores another order of what happens at the same time.
    `network`: a name with options (`"10gbe:ranks-per-node=4"`) or a `Network`. `strict`: changed buffers, mismatched
    types and what is left over at the end are errors. `rendezvous`: no message is buffered, so that a program that
    relies on it stops in a Deadlock. `faults`: see `paceline.vmpi.faults`.

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
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise UsageError(f"ranks must be a whole number of at least 1; got {ranks!r}")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise UsageError(f"seed must be a whole number; got {seed!r}")
    if not isinstance(faults, Sequence) or not all(hasattr(fault, "prepare") for fault in faults):
        raise UsageError(f"faults must be a list of faults, as [fail_at(rank=3, step=100)]; got {faults!r}")
    network = parse_network(network) if isinstance(network, str) else network
    wires = network.wires(ranks, random.Random(f"{seed} wires"))
    computing = None if compute is None else compute.start(wires.node, seed)
    kernel = Kernel(ranks, wires, computing, seed=seed, strict=strict, rendezvous=rendezvous, carries=carries)
    for fault in faults:
        fault.prepare(kernel)
    world = Group(kernel, range(ranks), "MPI_COMM_WORLD")

    def body(rank: int) -> Callable[[], Any]:
        return lambda: function(MPI.enter(Comm(world, rank)), *arguments)

    with _little_collecting(), replace_mpi4py(function) as kernel.MPI:
        kernel.run([body(rank) for rank in range(ranks)])
    if kernel.faults is not None:
        for sentence in kernel.faults.spared():
            log.warning(sentence)
    clocks = [rank.t for rank in kernel.ranks]
    return Outcome(
        values=[rank.value for rank in kernel.ranks], seconds=max(clocks), clocks=clocks,
        messages=kernel.messages, bytes=kernel.bytes,
        killed={} if kernel.faults is None else {rank: death.time for rank, death in kernel.faults.dead.items()},
    )  # fmt: skip


@contextmanager
def _little_collecting() -> Iterator[None]:
    """Messages leave no cycles, and looking for some in the memory of thousands of ranks takes most of the time."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class Script:
    """A file, ready to be run by simulated ranks.

    >>> import tempfile
    >>> from paceline.vmpi import run
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "hello.py"
    ...     text = "from mpi4py.MPI import COMM_WORLD as c\\nranks = c.gather(c.rank)\\nif ranks: print(__name__, ranks)"
    ...     _ = file.write_text(text)
    ...     script = Script(file)
    ...     with script.running():
    ...         _ = run(script, ranks=2)
    __main__ [0, 1]
    """

    def __init__(self, file: Path, function: str | None = None, arguments: Sequence[str] = ()) -> None:
        self.file = file
        self.function = function
        self.arguments = list(arguments)
        self.name = "__main__" if function is None else file.stem
        self._code = compiled(file)

    def __call__(self, comm: Any) -> Any:
        """One rank."""
        names: dict[str, Any] = {
            "__name__": self.name,
            "__file__": str(self.file),
            "__builtins__": __builtins__,
        }
        getcurrent().paceline_names = names
        try:
            exec(self._code, names)
            return None if self.function is None else self._called(names)(comm, *self.arguments)
        except SystemExit as end:
            if end.code not in (None, 0) or isinstance(end, Aborted):
                raise
            return None

    def _called(self, names: dict[str, Any]) -> Callable[..., Any]:
        assert self.function is not None
        found = names.get(self.function)
        if not callable(found):
            raise UsageError(f"{self.file} has no function {self.function}")
        return found  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let Python look as it does for a program that was started by itself."""
        argv, path, before = sys.argv, sys.path[:], sys.modules.get(self.name)
        sys.argv = [str(self.file), *self.arguments]
        sys.path.insert(0, str(self.file.absolute().parent))
        sys.modules[self.name] = _Running(self.name)
        try:
            yield
        finally:
            sys.argv, sys.path[:] = argv, path
            if before is None:
                del sys.modules[self.name]
            else:
                sys.modules[self.name] = before


class _Running(ModuleType):
    """The module of the rank that is running: what looks for it (pickle, dataclasses) finds that rank's own names."""

    def __getattribute__(self, name: str) -> Any:
        names = getattr(getcurrent(), "paceline_names", None)
        if names is None:
            return super().__getattribute__(name)
        if name == "__dict__":
            return names
        try:
            return names[name]
        except KeyError:
            raise AttributeError(f"module {names['__name__']!r} has no attribute {name!r}") from None


def compiled(file: Path) -> CodeType:
    """The program, or a refusal of what is none."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {(error.strerror or str(error)).lower()}") from None
    try:
        return compile(text, str(file), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        why = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(f"{file}{where}: {why}") from None


NAME = "mpi4py.MPI"
_MISSING: Any = object()


def make_module() -> ModuleType:
    """A module that looks like mpi4py.MPI; its numbers are those of the real one, if that was imported.

    >>> make_module().Get_library_version()
    'paceline.vmpi: simulated ranks in virtual time'
    """
    module = ModuleType(NAME, MPI.__doc__)
    found = {name: value for name, value in vars(MPI).items() if not name.startswith("__")}
    vars(module).update(found, **MPI.numbers(), real=sys.modules.get(NAME))
    return module


@contextmanager
def replace_mpi4py(*functions: Callable[..., Any]) -> Iterator[ModuleType]:
    """`from mpi4py import MPI` gives the stand-in; so do the names that the functions' modules have for mpi4py's.

    >>> with replace_mpi4py() as MPI:
    ...     from mpi4py import MPI as found
    ...     found is MPI
    True
    """
    real = sys.modules.get(NAME)
    module = make_module()
    swapped = [] if real is None else _names(functions, real, module)
    attribute = vars(mpi4py).get("MPI", _MISSING)
    sys.modules[NAME] = module
    mpi4py.MPI = module
    for names, name, _, new in swapped:
        names[name] = new
    try:
        yield module
    finally:
        for names, name, old, _ in swapped:
            names[name] = old
        if real is None:
            del sys.modules[NAME]
        else:
            sys.modules[NAME] = real
        if attribute is _MISSING:
            del mpi4py.MPI
        else:
            mpi4py.MPI = attribute


def _names(
    functions: tuple[Callable[..., Any], ...], real: ModuleType, module: ModuleType
) -> list[tuple[dict[str, Any], str, Any, Any]]:
    """Where something of the real module is bound to a name: the names, which, what it is, what is to be there.

    The functions' own modules are looked at, and all others, other than mpi4py's, in which it is called MPI: everything
    in them that is the real one's, as `comm = MPI.COMM_WORLD` is.
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
    """The names that a function, a method, a partial or a callable object sees as global."""
    while hasattr(function, "func") and hasattr(function, "args"):
        function = function.func
    function = getattr(function, "__wrapped__", function)
    function = getattr(function, "__func__", function)
    if not hasattr(function, "__globals__"):
        function = vars(type(function)).get("__call__")
    return getattr(function, "__globals__", None)
