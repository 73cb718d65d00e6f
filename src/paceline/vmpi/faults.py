"""Faults for a simulation: ranks die, stop or are slow; links are cut or slow; messages are late.

    run(program, ranks=8, faults=[fail_at(rank=3, step=100), slow(rank=5, by=4)])

or from a script, a Python file with such calls, which needs no imports:

    fail_at(rank=3, step=100)
    for r in range(4):
        delay(dest=r, by=0.001, at=2, until=3)

Times are virtual seconds from the start; `until=None` means forever. The ends of a link are ranks, `node(k)` for all
ranks of a node, or None for all ranks. For the effects on other ranks, see `paceline.vmpi.failures`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any, Protocol

from paceline.errors import UsageError
from paceline.files import read_text
from paceline.vmpi.failures import KillEvent, LinkFault, PauseEvent, get_faults

__all__ = [
    "Fault",
    "cut_link",
    "delay",
    "fail_at",
    "load_faults",
    "node",
    "pause",
    "shuffle",
    "slow",
    "slow_link",
]


class Fault(Protocol):
    """A fault to inject into a run."""

    def prepare(self, kernel: Any) -> None:
        """Set up the fault in a run that has not started."""
        ...


@dataclass(frozen=True)
class node:  # noqa: N801 (a name used in scripts)
    """All ranks of a node, from 0, as one end of a link.

    >>> CutLink(a=node(0), b=node(1), at=2).a
    node(number=0)
    """

    number: int


End = int | node | None


@dataclass(frozen=True, kw_only=True)
class FailAt:
    """See `fail_at`."""

    rank: int
    step: int | None = None
    time: float | None = None
    detected: float = 1e-3

    def __post_init__(self) -> None:
        if (self.step is None) == (self.time is None):
            raise UsageError(f"fail_at needs either a step or a time; got step={self.step}, time={self.time}")
        _at_least_0("step of fail_at", self.step)
        _at_least_0("time of fail_at", self.time)
        _at_least_0("detected of fail_at", self.detected)

    def prepare(self, kernel: Any) -> None:
        faults, number = get_faults(kernel), _rank("fail_at", self.rank, kernel)
        faults.detection[number] = self.detected
        faults.pace(number)
        if self.step is not None:
            faults.steps[number] = min(self.step, faults.steps.get(number, self.step))
        if self.time is not None:
            faults.dies[number] = min(self.time, faults.dies.get(number, inf))
            kernel.schedule(kernel.ranks[number], self.time, KillEvent())


@dataclass(frozen=True, kw_only=True)
class CutLink:
    """See `cut_link`."""

    a: End
    b: End
    at: float = 0.0
    until: float | None = None

    def __post_init__(self) -> None:
        _window("cut_link", self.at, self.until)

    def prepare(self, kernel: Any) -> None:
        until = inf if self.until is None else self.until
        ends = f"{_describe_end(self.a)} and {_describe_end(self.b)}"
        cut = f"the link between {ends} was cut {1e3 * self.at:.6g} ms after the start"
        _add(kernel, "cut_link", self.a, self.b, self.at, until, lambda now, way: until - now, cut=cut)


@dataclass(frozen=True, kw_only=True)
class Delay:
    """See `delay`."""

    by: float
    source: End = None
    dest: End = None
    at: float = 0.0
    until: float | None = None

    def __post_init__(self) -> None:
        _window("delay", self.at, self.until)
        _at_least_0("by of delay", self.by)

    def prepare(self, kernel: Any) -> None:
        until = inf if self.until is None else self.until
        _add(kernel, "delay", self.source, self.dest, self.at, until, lambda now, way: self.by, one_way=True)


@dataclass(frozen=True, kw_only=True)
class Slow:
    """See `slow`."""

    rank: int
    by: float
    at: float = 0.0
    until: float | None = None

    def __post_init__(self) -> None:
        _window("slow", self.at, self.until)
        _factor("slow", self.by)

    def prepare(self, kernel: Any) -> None:
        number = _rank("slow", self.rank, kernel)
        if self.at == 0 and self.until is None:
            kernel.ranks[number].slow *= self.by
        else:
            until = inf if self.until is None else self.until
            get_faults(kernel).pace(number).windows.append((self.at, until, self.by))


@dataclass(frozen=True, kw_only=True)
class SlowLink:
    """See `slow_link`."""

    a: End
    b: End
    by: float
    at: float = 0.0
    until: float | None = None

    def __post_init__(self) -> None:
        _window("slow_link", self.at, self.until)
        _factor("slow_link", self.by)

    def prepare(self, kernel: Any) -> None:
        until = inf if self.until is None else self.until
        _add(kernel, "slow_link", self.a, self.b, self.at, until, lambda now, way: (self.by - 1) * way)


@dataclass(frozen=True, kw_only=True)
class Pause:
    """See `pause`."""

    rank: int
    at: float
    seconds: float

    def __post_init__(self) -> None:
        _at_least_0("at of pause", self.at)
        _at_least_0("seconds of pause", self.seconds)

    def prepare(self, kernel: Any) -> None:
        number, end = _rank("pause", self.rank, kernel), self.at + self.seconds
        get_faults(kernel).pace(number).windows.append((self.at, end, inf))
        kernel.schedule(kernel.ranks[number], self.at, PauseEvent(end))


@dataclass(frozen=True, kw_only=True)
class Shuffle:
    """See `shuffle`."""

    most: float
    work: float = 1.0

    def __post_init__(self) -> None:
        _at_least_0("most of shuffle", self.most)
        _at_least_0("work of shuffle", self.work)

    def prepare(self, kernel: Any) -> None:
        faults = get_faults(kernel)
        _add(kernel, "shuffle", None, None, 0.0, inf, lambda now, way: self.most * faults.random())
        for rank in kernel.ranks:
            faults.pace(rank.number).spread = self.work


def _add(
    kernel: Any, name: str, a: End, b: End, at: float, until: float, extra: Callable[[float, float], float],
    **more: Any,
) -> None:  # fmt: skip
    ends = (_ranks(name, a, kernel), _ranks(name, b, kernel))
    fault = LinkFault(a=ends[0], b=ends[1], at=at, until=until, extra=extra, **more)
    get_faults(kernel).link_faults.append(fault)


def _ranks(name: str, end: End, kernel: Any) -> Collection[int]:
    if end is None:
        return range(len(kernel.ranks))
    if not isinstance(end, node):
        return (_rank(name, end, kernel),)
    found = frozenset(rank for rank, place in enumerate(kernel.wires.node) if place == end.number)
    if not found:
        raise UsageError(
            f"{name}: there is no node {end.number}; the nodes are 0 to {max(kernel.wires.node)}"
        )
    return found


def _rank(name: str, rank: Any, kernel: Any) -> int:
    ranks = len(kernel.ranks)
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < ranks:
        raise UsageError(f"{name}: there is no rank {rank!r}; the ranks are 0 to {ranks - 1}")
    return rank


def _describe_end(end: End) -> str:
    return "all ranks" if end is None else f"node {end.number}" if isinstance(end, node) else f"rank {end}"


def _at_least_0(what: str, value: Any) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is not None and not (number and value >= 0 and isfinite(value)):
        raise UsageError(f"{what} must be a number of at least 0; got {value!r}")


def _window(name: str, at: Any, until: Any) -> None:
    _at_least_0(f"at of {name}", at)
    _at_least_0(f"until of {name}", until)
    if until is not None and until <= at:
        raise UsageError(f"until of {name} must come after at={at}; got {until}")


def _factor(name: str, by: Any) -> None:
    if isinstance(by, bool) or not isinstance(by, (int, float)) or not 1 <= by < inf:
        raise UsageError(f"by of {name} must be a number of at least 1; got {by!r}")


def fail_at(
    *, rank: int, step: int | None = None, time: float | None = None, detected: float = 1e-3
) -> FailAt:
    """Kill a rank when it begins a step (counted from 0) or at a time; the others learn of it `detected` seconds later.

    >>> from paceline.vmpi import run
    >>> def program(comm):
    ...     for step in range(3):
    ...         comm.Step()
    ...         comm.Compute(1.0)
    ...     return step
    >>> run(program, ranks=2, faults=[fail_at(rank=1, step=2)]).values
    [2, None]
    """
    return FailAt(rank=rank, step=step, time=time, detected=detected)


def cut_link(a: End, b: End, *, at: float = 0.0, until: float | None = None) -> CutLink:
    """Hold back messages between `a` and `b` until the link is restored; without `until` they are lost."""
    return CutLink(a=a, b=b, at=at, until=until)


def delay(
    *, source: End = None, dest: End = None, by: float, at: float = 0.0, until: float | None = None
) -> Delay:
    """Delay messages from `source` to `dest` by `by` seconds."""
    return Delay(source=source, dest=dest, by=by, at=at, until=until)


def slow(*, rank: int, by: float, at: float = 0.0, until: float | None = None) -> Slow:
    """Make a rank compute `by` times as slowly."""
    return Slow(rank=rank, by=by, at=at, until=until)


def slow_link(a: End, b: End, *, by: float, at: float = 0.0, until: float | None = None) -> SlowLink:
    """Make messages between `a` and `b` take `by` times as long."""
    return SlowLink(a=a, b=b, by=by, at=at, until=until)


def pause(*, rank: int, at: float, seconds: float) -> Pause:
    """Stop a rank for some seconds, like a stopped process."""
    return Pause(rank=rank, at=at, seconds=seconds)


def shuffle(*, most: float, work: float = 1.0) -> Shuffle:
    """Delay every message by up to `most` seconds, and slow all computing by a factor of up to 1 + `work`, at random.

    The random numbers follow from the seed of the run: each seed gives another schedule of the same program.
    """
    return Shuffle(most=most, work=work)


def load_faults(path: str | Path) -> list[Fault]:
    """Read faults from a script: a Python file in which `fail_at` and the others, and `node`, need no import."""
    found: list[Fault] = []

    def collecting(make: Callable[..., Fault]) -> Callable[..., None]:
        return lambda *given, **named: found.append(make(*given, **named))

    text = read_text(path)
    names = {make.__name__: collecting(make) for make in WORDS}
    try:
        exec(compile(text, str(path), "exec"), {**names, "node": node, "__name__": "faults"})
    except Exception as error:
        raise UsageError(f"{path}, line {_line(error, str(path))}: {_why(error, names)}") from None
    return found


WORDS: tuple[Callable[..., Fault], ...] = (fail_at, cut_link, delay, slow, slow_link, pause, shuffle)


def _line(error: BaseException, path: str) -> int:
    """Return the line of the script at which it failed."""
    line = error.lineno if isinstance(error, SyntaxError) and error.lineno else 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _why(error: Exception, names: Collection[str]) -> str:
    if isinstance(error, SyntaxError):
        return error.msg
    if isinstance(error, NameError):
        return f"{error}; choose one of {', '.join(names)}, node"
    return " ".join(str(error).split()) or type(error).__name__
