"""Faults for a simulation: ranks die, stop or are slow; links are cut or slow; messages are late.

    run(program, ranks=8, faults=[fail_at(rank=3, step=100), slow(rank=5, by=4)])

or from a script, a Python file with such calls, which needs no imports:

    fail_at(rank=3, step=100)
    for r in range(4):
        delay(dest=r, by=0.001, at=2, until=3)

Times are virtual seconds from the start; `until=None` means forever. The ends of a link are ranks, `node(k)` for all
ranks of a node, or None for all ranks.

In a run, `Faults` sits between the kernel and the network, and gives every rank that it slows down or kills a
`RankPace`. A run without faults uses none of this. The errors that other ranks get because of a dead rank or a revoked
communicator:

    a call that waits for a dead rank, or a collective that it should take part in: ERR_PROC_FAILED
    a receive from any source: ERR_PROC_FAILED_PENDING, until the death is acknowledged
    any call on a revoked communicator, pending or new: ERR_REVOKED

Ranks learn of it through a notice that arrives like a message: what arrives before the notice still counts. The
surviving ranks recover by user-level failure mitigation (ULFM), with mpi4py 4.1's names:

    try:
        comm.Allreduce(mine, total)
    except MPI.Exception as error:         # ERR_PROC_FAILED on some ranks, ERR_REVOKED on others
        comm.Revoke()                      # ranks that still wait for someone stop waiting
        comm = comm.Shrink()               # the surviving ranks

Bland et al., Post-failure recovery of MPI communication capability (2013).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol

from greenlet import GreenletExit, getcurrent

from paceline.errors import UsageError
from paceline.files import read_text
from paceline.vmpi.buffers import write_bytes
from paceline.vmpi.errors import MPIError, find_site, format_list, format_site, mpi_error
from paceline.vmpi.groups import CollectiveRequest, CommState, Group, Meeting
from paceline.vmpi.kernel import RANK_BITS, Data, Message
from paceline.vmpi.requests import withdraw

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
        _check_not_negative("step of fail_at", self.step)
        _check_not_negative("time of fail_at", self.time)
        _check_not_negative("detected of fail_at", self.detected)

    def prepare(self, kernel: Any) -> None:
        faults, number = get_faults(kernel), _check_rank("fail_at", self.rank, kernel)
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
        _check_ends("cut_link", self.a, self.b)
        _check_window("cut_link", self.at, self.until)

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
        _check_window("delay", self.at, self.until)
        _check_not_negative("by of delay", self.by)

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
        _check_window("slow", self.at, self.until)
        _check_factor("slow", self.by)

    def prepare(self, kernel: Any) -> None:
        number = _check_rank("slow", self.rank, kernel)
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
        _check_ends("slow_link", self.a, self.b)
        _check_window("slow_link", self.at, self.until)
        _check_factor("slow_link", self.by)

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
        _check_not_negative("at of pause", self.at)
        _check_not_negative("seconds of pause", self.seconds)

    def prepare(self, kernel: Any) -> None:
        number, end = _check_rank("pause", self.rank, kernel), self.at + self.seconds
        get_faults(kernel).pace(number).windows.append((self.at, end, inf))
        kernel.schedule(kernel.ranks[number], self.at, PauseEvent(end))


@dataclass(frozen=True, kw_only=True)
class Shuffle:
    """See `shuffle`."""

    most: float
    work: float = 1.0

    def __post_init__(self) -> None:
        _check_not_negative("most of shuffle", self.most)
        _check_not_negative("work of shuffle", self.work)

    def prepare(self, kernel: Any) -> None:
        faults = get_faults(kernel)
        _add(kernel, "shuffle", None, None, 0.0, inf, lambda now, way: self.most * faults.random())
        for rank in kernel.ranks:
            faults.pace(rank.number).spread = self.work


def _add(
    kernel: Any, name: str, a: End, b: End, at: float, until: float, extra: Callable[[float, float], float],
    **more: Any,
) -> None:  # fmt: skip
    ends = (_find_ranks(name, a, kernel), _find_ranks(name, b, kernel))
    fault = LinkFault(a=ends[0], b=ends[1], at=at, until=until, extra=extra, **more)
    get_faults(kernel).link_faults.append(fault)


def _find_ranks(name: str, end: End, kernel: Any) -> Collection[int]:
    if end is None:
        return range(len(kernel.ranks))
    if not isinstance(end, node):
        return (_check_rank(name, end, kernel),)
    found = frozenset(rank for rank, place in enumerate(kernel.wires.node) if place == end.number)
    if not found:
        raise UsageError(
            f"{name}: there is no node {end.number}; the nodes are 0 to {max(kernel.wires.node)}"
        )
    return found


def _check_rank(name: str, rank: Any, kernel: Any) -> int:
    ranks = len(kernel.ranks)
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < ranks:
        raise UsageError(f"{name}: there is no rank {rank!r}; the ranks are 0 to {ranks - 1}")
    return rank


def _describe_end(end: End) -> str:
    return "all ranks" if end is None else f"node {end.number}" if isinstance(end, node) else f"rank {end}"


def _check_not_negative(what: str, value: Any) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is not None and not (number and value >= 0 and isfinite(value)):
        raise UsageError(f"{what} must be a number of at least 0; got {value!r}")


def _check_ends(name: str, a: End, b: End) -> None:
    if a == b and a is not None and not isinstance(a, node):
        raise UsageError(f"{name} needs two ranks or nodes; got rank {a} twice")


def _check_window(name: str, at: Any, until: Any) -> None:
    _check_not_negative(f"at of {name}", at)
    _check_not_negative(f"until of {name}", until)
    if until is not None and until <= at:
        raise UsageError(f"until of {name} must come after at={at}; got {until}")


def _check_factor(name: str, by: Any) -> None:
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

    def collect(make: Callable[..., Fault]) -> Callable[..., None]:
        return lambda *given, **named: found.append(make(*given, **named))

    text = read_text(path)
    names = {make.__name__: collect(make) for make in WORDS}
    try:
        exec(compile(text, str(path), "exec"), {**names, "node": node, "__name__": "faults"})
    except Exception as error:
        raise UsageError(f"{path}, line {_find_line(error, str(path))}: {_explain(error, names)}") from None
    return found


WORDS: tuple[Callable[..., Fault], ...] = (fail_at, cut_link, delay, slow, slow_link, pause, shuffle)


def _find_line(error: BaseException, path: str) -> int:
    """Return the line of the script at which it failed."""
    line = error.lineno if isinstance(error, SyntaxError) and error.lineno else 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _explain(error: Exception, names: Collection[str]) -> str:
    if isinstance(error, SyntaxError):
        return error.msg
    if isinstance(error, NameError):
        return f"{error}; choose one of {', '.join(names)}, node"
    return " ".join(str(error).split()) or type(error).__name__


# ---- the effects of faults in a run


class Killed(GreenletExit):  # type: ignore[misc]
    """An exception that unwinds a killed rank, wherever it is."""


class Death(NamedTuple):
    """The time of a rank's death, the time when others know, and the step in which it was."""

    time: float
    known: float
    step: int | None


@dataclass(frozen=True, kw_only=True)
class LinkFault:
    """A delay of messages between `a` and `b` that are sent from `at` to `until`: by `extra(now, way)` seconds.

    `way`: the normal seconds of the message. `cut`: a description, if the link is cut; messages in flight at
    `at` are then late too.
    """

    a: Collection[int]
    b: Collection[int]
    one_way: bool = False
    at: float = 0.0
    until: float = inf
    extra: Callable[[float, float], float]
    cut: str = ""

    def is_between(self, source: int, dest: int) -> bool:
        """Return True if messages from one rank to another are affected."""
        if source in self.a and dest in self.b:
            return True
        return not self.one_way and source in self.b and dest in self.a

    def extra_delay(self, source: int, dest: int, now: float, way: float) -> float:
        """Return how much later a message arrives."""
        applies = self.is_between(source, dest) and self._in_force(now, way)
        return self.extra(now, way) if applies else 0.0

    def collective_delay(self, members: Sequence[int], now: float, way: float) -> float:
        """Return how much later one of MPI's own collectives ends."""
        if not self._in_force(now, way):
            return 0.0
        some, others = ([member for member in members if member in end][:2] for end in (self.a, self.b))
        between = some and others and len({*some, *others}) > 1
        return self.extra(now, way) if between else 0.0

    def _in_force(self, now: float, way: float) -> bool:
        return now < self.until and (now >= self.at or (bool(self.cut) and now + way > self.at))


class Faults:
    """The faults of a run: those to come, and those that have happened."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.link_faults: list[LinkFault] = []
        self.random = random.Random(f"{kernel.seed} faults").random
        self.dies: dict[int, float] = {}
        """The time at which each of these ranks will be killed."""
        self.detection: dict[int, float] = {}
        """The seconds until the others learn of each rank's death."""
        self.steps: dict[int, int] = {}
        """The step in which each of these ranks will be killed."""
        self.dead: dict[int, Death] = {}
        self.lost: list[tuple[str, str]] = []
        """Everything lost permanently, with the reason."""
        self.detector = FailureDetector(self)
        self.agreements: dict[tuple[str, int, int], Agreement] = {}
        """Calls of the surviving ranks that some of them have not made yet."""
        self.agreement_calls: dict[tuple[str, int, int], int] = {}
        kernel.wires = FaultyWires(kernel.wires, self)
        kernel.plain, kernel.checks = False, True

    def pace(self, number: int) -> RankPace:
        """Return the pace of a rank, for changing it."""
        rank = self.kernel.ranks[number]
        if rank.pace is None:
            rank.pace = RankPace(rank, self)
        found: RankPace = rank.pace
        return found

    # ---- messages

    def extra_delay(self, source: int, dest: int, now: float, way: float) -> float:
        """Return how much later a message arrives; infinity if it never does."""
        extra = 0.0
        for fault in self.link_faults:
            extra += fault.extra_delay(source, dest, now, way)
        return extra

    def collective_delay(self, name: str, members: Sequence[int], now: float, end: float) -> float:
        """Return when one of MPI's own collectives ends."""
        extra = 0.0
        for fault in self.link_faults:
            found = fault.collective_delay(members, now, end - now)
            if found == inf:
                self.lost.append((f"{name} of {len(members):,} ranks", fault.cut))
            extra += found
        return end + extra

    def intercept(self, comm: Any, message: Any, dest: int, arrives: float) -> bool:
        """Return True if a message that was sent will never arrive."""
        rank = self.kernel.ranks[dest]
        if not self.detector.check_send(comm, message, rank):
            return True
        if arrives == inf:
            self.lose(rank, message)
        return arrives == inf

    def describe_unused(self) -> list[str]:
        """Describe the kills that never happened: the rank had ended before, or takes no steps."""
        ranks = self.kernel.ranks
        never = [
            f"fail_at(rank={rank}, step={step}) never happened: rank {rank} began {ranks[rank].steps:,} steps"
            for rank, step in self.steps.items()
            if rank not in self.dead
        ]
        return never + [
            f"fail_at(rank={rank}, time={time:g}) never happened: rank {rank} ended at {ranks[rank].t:g} s"
            for rank, time in self.dies.items()
            if rank not in self.dead and rank not in self.steps
        ]

    def excuses(self) -> bool:
        """Return True if something happened that explains leftover requests and messages."""
        return bool(self.dead or self.lost or self.detector.any_revoked)

    def lose(self, dest: Any, thing: Any) -> None:
        """Record something that never arrives: a message on a cut link, or one whose sender is dead."""
        if isinstance(thing, Data):
            message: Any = thing.message
        elif isinstance(thing, Message):
            message = thing
        else:  # the sender's own wait for it, or a collective, which is recorded in `collective_delay`
            return
        sender = message.sender.number
        if sender in self.dead and isinstance(thing, Data):
            self.detector.fail_unsent(sender, thing.receive)
        else:
            self.note_loss(sender, dest.number, message.describe())

    def note_loss(self, source: int, dest: int, what: str) -> None:
        """Record what was lost between two ranks because a link was cut."""
        for fault in self.link_faults:
            if fault.cut and fault.until == inf and fault.is_between(source, dest):
                self.lost.append((what, fault.cut))
                return

    def describe_losses(self) -> str:
        """Describe what was lost, for the report of a deadlock."""
        by_link: dict[str, list[str]] = {}
        for what, why in self.lost:
            by_link.setdefault(why, []).append(what)
        return "".join(
            f"\n{why} and never restored; lost on it:" + format_list(things)
            for why, things in by_link.items()
        )

    # ---- death

    def check(self, rank: Any) -> None:
        """Kill a rank if it is due to die."""
        if rank.t >= self.dies.get(rank.number, inf):
            self.die(rank, self.dies[rank.number])

    def begin_step(self, rank: Any) -> None:
        """Kill a rank if it begins the step in which it is to die."""
        if self.steps.get(rank.number) == rank.steps - 1:
            self.die(rank, rank.t)

    def die(self, rank: Any, time: float) -> NoReturn:
        """Kill a rank, from its own greenlet."""
        number = rank.number
        if rank.alive:
            known = time + self.detection.get(number, 0.0)
            self.dead[number] = Death(time, known, rank.steps - 1 if rank.steps else None)
            self.dies[number] = time
            rank.alive, rank.t, rank.value = False, time, None
            self.detector.announce_death(rank, known)
            for agreement in list(self.agreements.values()):
                agreement.try_to_end()
        raise Killed

    def describe(self, number: int) -> str:
        """Describe the death of a rank."""
        time, _, step = self.dead[number]
        in_step = "" if step is None else f" in its step {step}"
        return f"rank {number} was killed {1e3 * time:.6g} ms after the start{in_step}"


def get_faults(kernel: Any) -> Faults:
    """Return the faults of a kernel's run, created on first use."""
    if kernel.faults is None:
        kernel.faults = Faults(kernel)
        kernel.at_step = kernel.faults.begin_step
    found: Faults = kernel.faults
    return found


class FaultyWires:
    """The network of a run with faults: see `paceline.vmpi.network.Wires`."""

    uniform = False

    def __init__(self, inner: Any, faults: Faults) -> None:
        self._inner, self._faults = inner, faults

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        self.__dict__[name] = found
        return found

    def send(
        self, source: int, dest: int, nbytes: int, now: float, eager: bool
    ) -> tuple[float, float, float]:
        faults = self._faults
        # The source of a one-sided call is not always the rank that is running, which alone can be killed here.
        if source in faults.dies and (rank := faults.kernel.ranks[source]).greenlet is getcurrent():
            faults.check(rank)
        free, arrives, taking = self._inner.send(source, dest, nbytes, now, eager)
        return free, arrives + faults.extra_delay(source, dest, now, arrives - now), taking

    def fetch(
        self, source: int, dest: int, nbytes: int, now: float, taker: int | None = None
    ) -> tuple[float, float, float]:
        faults = self._faults
        if source in faults.dead and faults.dead[source].time <= now:
            return inf, 0.0, inf
        arrives, taking, released = self._inner.fetch(source, dest, nbytes, now, taker)
        extra = faults.extra_delay(source, dest, now, arrives - now)
        return arrives + extra, taking, released + extra


class RankPace:
    """The pace of a rank: a function of its clock and the seconds of some work that returns when the work is done."""

    def __init__(self, rank: Any, faults: Faults) -> None:
        self._rank, self._faults = rank, faults
        self.windows: list[tuple[float, float, float]] = []
        """(start, stop, factor): from start to stop, work takes `factor` times as long; infinity is a pause."""
        self.spread = 0.0
        """Work takes up to 1 + `spread` times as long, at random."""

    def __call__(self, now: float, seconds: float) -> float:
        if self.spread:
            seconds *= 1 + self.spread * self._faults.random()
        end = self._end(now, seconds)
        rank = self._rank
        dies = self._faults.dies.get(rank.number, inf)
        if end >= dies:
            self._faults.die(rank, dies)
        return end

    def _end(self, now: float, seconds: float) -> float:
        while seconds > 0:
            factor, until = 1.0, inf
            for start, stop, slower in self.windows:
                if start <= now < stop:
                    factor *= slower
                    until = min(until, stop)
                elif now < start:
                    until = min(until, start)
            if now + seconds * factor <= until:
                return now + seconds * factor
            seconds -= (until - now) / factor
            now = until
        return now


class PauseEvent:
    """An event that pauses the rank that processes it."""

    __slots__ = ("until",)

    def __init__(self, until: float) -> None:
        self.until = until

    def arrive(self, rank: Any) -> None:
        rank.t = max(rank.t, self.until)


class KillEvent:
    """An event that kills a waiting rank at a given time."""

    __slots__ = ()

    def arrive(self, rank: Any) -> None:
        rank.kernel.faults.check(rank)


# ---- what ranks know of failures

# Receives that end with the error, because the program has no request to wait for.
BLOCKING = ("Recv", "Sendrecv (recv)")


class Notice:
    """A notification for a rank, which takes effect when the rank processes it."""

    __slots__ = ("heard",)

    def __init__(self, heard: Callable[[Any], None]) -> None:
        self.heard = heard

    def arrive(self, rank: Any) -> None:
        self.heard(rank)


class FailureDetector:
    """The deaths and revocations known to each rank, and the requests that fail because of them."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._kernel = faults.kernel
        self._dead: dict[int, list[int]] = {}
        """For each rank: the dead ranks that it knows of, in the order in which it learned of them."""
        self._seen: dict[tuple[int, int], int] = {}
        """For each communicator and rank: the number of these deaths that it has acknowledged."""
        self._revoked: set[tuple[int, int]] = set()
        """The (context, rank) pairs that know of a revocation."""
        self._revoking: dict[int, float] = {}
        """The revoked communicators, and when all their ranks will know."""
        self._places: dict[int, dict[int, int]] = {}

    # ---- questions of a communicator before it waits for others

    def list_known(self, comm: Any) -> list[int]:
        """Return the dead ranks of a communicator that its rank knows of, by their numbers in the world."""
        return self._list_known(comm.me, comm.state)

    def list_acknowledged(self, comm: Any) -> list[int]:
        """Return those that its rank has acknowledged."""
        return self.list_known(comm)[: self._seen.get((comm.context, comm.me.number), 0)]

    def is_revoked(self, comm: Any) -> bool:
        """Return True if the rank knows that the communicator was revoked."""
        return (comm.context, comm.me.number) in self._revoked

    def begin(self, comm: Any, name: str) -> bool:
        """Check that a collective call can succeed, or raise. Return True if it should be skipped silently."""
        self._faults.check(comm.me)
        dead = self.list_known(comm)
        if name.endswith("Free"):
            return bool(dead) or self.is_revoked(comm)
        self.refuse(comm, name)
        if dead:
            raise self._failure(comm.me, name, dead[0])
        return False

    def check_receive(self, comm: Any, receive: Any) -> None:
        """Complete a newly posted receive with an error if no message can arrive for it."""
        self._faults.check(comm.me)
        if self.is_revoked(comm):
            _forget(receive)
            self.refuse(comm, receive.name)
        for dead in self.list_known(comm):
            self._lose(comm.me, comm.state, receive, dead)

    def check_send(self, comm: Any, message: Any, dest: Any) -> bool:
        """Return True if a message that was sent has a living receiver."""
        if self.is_revoked(comm):
            _forget(message)
            self.refuse(comm, message.name)
        if not message.eager:
            if comm.context in self._revoking:
                self._fail_later(message, self._revoking[comm.context], self._revocation)
            if not dest.alive:
                self._fail_for(dest.number, message)
        return bool(dest.alive)

    def check_probe(self, comm: Any, source: int | None) -> None:
        """Raise if a probe that found no message waits for a dead rank."""
        name = "Probe"
        self._faults.check(comm.me)
        self.refuse(comm, name)
        if source is None:
            mourned = self.list_acknowledged(comm)
            lost = [dead for dead in self.list_known(comm) if dead not in mourned]
        else:
            lost = [dead for dead in self.list_known(comm) if dead == comm.peers[source]]
        if lost:
            raise self._failure(comm.me, name, lost[0])

    def check_access(self, comm: Any, name: str, dead: int) -> None:
        """Raise if a one-sided call accesses the memory of a rank that has died, as soon as that is known."""
        me = comm.me
        self._faults.check(me)
        death = self._faults.dead.get(dead)
        if death is not None and death.time <= me.t:
            me.t = max(me.t, death.known)
            raise self._failure(me, name, dead)

    @property
    def any_revoked(self) -> bool:
        return bool(self._revoking)

    # ---- a rank has died

    def announce_death(self, rank: Any, known: float) -> None:
        """Notify the other ranks, and fail the sends that wait for the dead rank to receive."""
        number = rank.number
        for other in self._kernel.ranks:
            if other.alive:
                self._kernel.schedule(other, known, Notice(lambda hearing: self._hear(hearing, number)))
        for message in _find_unreceived(rank):
            self._fail_for(number, message)

    def fail_unsent(self, sender: int, receive: Any) -> None:
        """Fail a receive whose sender died after announcing the message and before sending its data."""
        self._fail_for(sender, receive)

    def _hear(self, rank: Any, dead: int) -> None:
        self._dead.setdefault(rank.number, []).append(dead)
        states = self._kernel.states
        contexts = {queue >> RANK_BITS for queue in rank.posted} | set(rank.wild)
        for context in contexts:
            state = states.get(context)  # None: its communicator has been freed
            if state is not None and dead in self._place(state):
                for receive in _receives(rank, context):
                    self._lose(rank, state, receive, dead)
        for state in list(states.values()):
            if state.meetings and dead in self._place(state):
                for met in self._meetings(rank, state):
                    _fail(met, self._failure(rank, met.name, dead, met.origin))

    def _lose(self, rank: Any, state: Any, receive: Any, dead: int) -> None:
        """Fail a receive if it waits for a dead rank."""
        source = receive.wanted_source
        if receive.done or (source is not None and state.peer(rank.number, source) != dead):
            return
        if source is None and self._list_known(rank, state).index(dead) < self._seen.get(
            (state.context, rank.number), 0
        ):
            return
        if source is not None or receive.name in BLOCKING:
            withdraw(rank, receive)
            _fail(receive, self._failure(rank, receive.name, dead, receive.origin))
            return
        # It stays posted: another rank may still send.
        receive.error = self._failure(rank, receive.name, dead, receive.origin, "ERR_PROC_FAILED_PENDING")
        receive.error.pending = True
        receive.done = True

    def acknowledge(self, comm: Any, most: int | None) -> int:
        """Let receives from any source wait again; return how many deaths are acknowledged."""
        dead, key = self.list_known(comm), (comm.context, comm.me.number)
        count = len(dead) if most is None else min(max(most, 0), len(dead))
        self._seen[key] = count = max(count, self._seen.get(key, 0))
        if count == len(dead):
            for receive in comm.me.wild.get(comm.context, ()):
                receive.error, receive.done = None, False
        return count

    # ---- a communicator is revoked

    def revoke(self, comm: Any) -> None:
        """Notify all ranks of a communicator that it was revoked."""
        state, ranks = comm.state, self._kernel.ranks
        if state.context not in self._revoking:
            reach = comm.me.t + self._kernel.wires.collective("Bcast", state.members, 0)
            self._revoking[state.context] = reach
            for rank in (ranks[number] for number in state.members):
                if rank.alive and rank is not comm.me:
                    self._kernel.schedule(
                        rank, reach, Notice(lambda hearing: self._hear_revoked(hearing, state))
                    )
                for message in _find_unreceived(rank):
                    if message.context == state.context:
                        self._fail_later(message, reach, self._revocation)
        self._hear_revoked(comm.me, state)

    def _hear_revoked(self, rank: Any, state: Any) -> None:
        if (state.context, rank.number) in self._revoked:
            return
        self._revoked.add((state.context, rank.number))
        for receive in _receives(rank, state.context):
            withdraw(rank, receive)
            receive.done = False  # a receive from any source is done while a death is not acknowledged
            _fail(receive, self._revocation(receive))
        for met in self._meetings(rank, state):
            _fail(met, self._revocation(met))

    def refuse(self, comm: Any, name: str) -> None:
        """Raise if the rank knows that the communicator was revoked."""
        if self.is_revoked(comm):
            raise self._make_error("ERR_REVOKED", comm.me, name, None, f"{comm.name} was revoked")

    # ---- errors

    def _fail_for(self, dead: int, request: Any) -> None:
        def failure(request: Any) -> MPIError:
            return self._failure(request.rank, request.name, dead, request.origin)

        self._fail_later(request, self._faults.dead[dead].known, failure)

    def _fail_later(self, request: Any, at: float, error: Callable[[Any], MPIError]) -> None:
        rank = request.rank
        if rank.alive:
            self._kernel.schedule(rank, max(at, rank.t), Notice(lambda _: _fail(request, error(request))))

    def _failure(
        self, rank: Any, name: str, dead: int, origin: Any = None, kind: str = "ERR_PROC_FAILED"
    ) -> MPIError:
        return self._make_error(kind, rank, name, origin, self._faults.describe(dead))

    def _revocation(self, request: Any) -> MPIError:
        return self._make_error(
            "ERR_REVOKED", request.rank, request.name, request.origin, "the communicator was revoked"
        )

    def _make_error(self, kind: str, rank: Any, name: str, origin: Any, what: str) -> MPIError:
        line = format_site(find_site() if origin is None else origin)
        return mpi_error(kind, f"{what}; rank {rank.number} noticed in {name} at {line}")

    # ---- ranks and communicators

    def _list_known(self, rank: Any, state: Any) -> list[int]:
        places = self._place(state)
        return [number for number in self._dead.get(rank.number, ()) if number in places]

    def _place(self, state: Any) -> dict[int, int]:
        """Return the rank of each member in a communicator, by its number in the world."""
        found = self._places.get(state.context)
        if found is None:
            found = self._places[state.context] = {number: rank for rank, number in enumerate(state.members)}
        return found

    def _meetings(self, rank: Any, state: Any) -> Iterator[Any]:
        """Yield a rank's requests in collective calls that other ranks have not made yet."""
        place = self._place(state).get(rank.number)
        if place is not None:
            for meeting in list(state.meetings.values()):
                if isinstance(meeting, Meeting) and meeting.requests[place] is not None:
                    yield meeting.requests[place]


def _receives(rank: Any, context: int) -> list[Any]:
    """Return the posted receives of a rank in one communicator."""
    found = list(rank.wild.get(context, ()))
    for number, queue in rank.posted.items():
        if number >> RANK_BITS == context:
            found += queue
    return found


def _find_unreceived(rank: Any) -> list[Any]:
    """Return the messages to a rank whose senders wait until it receives them."""
    every = [message for queue in rank.unexpected.values() for message in queue]
    every += [thing for _, _, thing in rank.inbox if hasattr(thing, "sender")]
    return [message for message in every if not message.eager]


def _fail(request: Any, error: MPIError) -> None:
    """Complete a request with an error; its buffer stays unchanged."""
    if request.done:
        return
    if request.receives:
        _give_back(request)
    if hasattr(request, "take"):
        request.take = None
    if not request.name.endswith("Free"):
        request.error = error
    request.done = True


def _forget(request: Any) -> None:
    """Undo a call that is refused."""
    if request.receives:
        withdraw(request.rank, request)
        _give_back(request)
    request.Free()


def _give_back(receive: Any) -> None:
    if receive.saved is not None:
        write_bytes(receive.view, receive.saved)
        receive.saved = None


# ---- the recovery of the surviving ranks

Given = dict[int, Any]


class SurvivalCalls:
    """The calls of a communicator that work when some of its ranks are dead (ULFM)."""

    __slots__ = ()
    me: Any

    def Revoke(self) -> None:
        """Make all pending and future calls on this communicator fail, on all its ranks."""
        _faults(self).detector.revoke(self)

    def Is_revoked(self) -> bool:
        """Return True if this rank knows that the communicator was revoked."""
        faults = self.me.kernel.faults
        return faults is not None and faults.detector.is_revoked(self)

    def Get_failed(self) -> Any:
        """Return the group of the dead ranks that this rank knows of."""
        kernel = self.me.kernel
        kernel.take_arrived(self.me)
        return Group(() if kernel.faults is None else kernel.faults.detector.list_known(self), self.me.number)

    def Ack_failed(self, num_to_ack: int | None = None) -> int:
        """Let receives from any source wait again although some ranks are dead; return how many are acknowledged."""
        faults = self.me.kernel.faults
        return 0 if faults is None else faults.detector.acknowledge(self, num_to_ack)

    def Agree(self, flag: int) -> int:
        """Return the bitwise AND of the flags of the living ranks; raise on all if some have not acknowledged a death."""
        faults = _faults(self)
        met = _agreement_call(
            self, "Agree", (int(flag), set(faults.detector.list_acknowledged(self))), _agree
        )
        met.Wait()
        agreed, unseen = met.result
        if unseen:
            line = format_site(find_site())
            death = faults.describe(unseen[0])
            raise mpi_error("ERR_PROC_FAILED", f"{death}; rank {self.me.number} noticed in Agree at {line}")
        return int(agreed)

    def Shrink(self) -> Any:
        """Create a communicator of the living ranks, in the same order."""
        shrunk, request = self.Ishrink()
        request.Wait()
        return shrunk

    def Ishrink(self) -> tuple[Any, CollectiveRequest]:
        """Return a communicator of the living ranks, which may be used when the request is done."""
        made: Any = self._make_null()  # type: ignore[attr-defined]
        return made, _agreement_call(self, "Shrink", None, _shrink, lambda found: made._fill(*found))

    def Iagree(self, flag: Any) -> CollectiveRequest:
        """Start an agreement on the integer in a buffer, which is the result when the request is done."""
        view = memoryview(flag)
        if view.nbytes != 4:
            raise ValueError(f"an agreement needs a buffer of one C int, 4 bytes; got {view.nbytes}")
        number = view.cast("B").cast("i")
        faults = _faults(self)

        def take(result: Any) -> None:
            number[0] = result[0]

        acknowledged = set(faults.detector.list_acknowledged(self))
        return _agreement_call(self, "Agree", (number[0], acknowledged), _agree, take)


class Agreement:
    """A call that ends when all living members of a communicator have made it."""

    def __init__(self, faults: Faults, state: CommState, finish: Callable[[Agreement, Given], Given]) -> None:
        self.faults, self.state, self._finish = faults, state, finish
        self._requests: dict[int, CollectiveRequest] = {}
        self._given: Given = {}
        self._latest = 0.0

    def join(
        self, rank: Any, name: str, given: Any, take: Callable[[Any], None] | None = None
    ) -> CollectiveRequest:
        """Take part with this rank's contribution."""
        self._requests[rank.number] = met = CollectiveRequest(rank, name, take)
        self._given[rank.number] = given
        self._latest = max(self._latest, rank.t)
        self.try_to_end()
        return met

    @property
    def dead(self) -> list[int]:
        """The dead members."""
        return [number for number in self.state.members if number in self.faults.dead]

    def try_to_end(self) -> None:
        """End the call if all living members have made it."""
        kernel, faults = self.faults.kernel, self.faults
        living = tuple(number for number in self.state.members if number not in faults.dead)
        if not all(number in self._requests for number in living):
            return
        faults.agreements = {
            key: agreement for key, agreement in faults.agreements.items() if agreement is not self
        }
        # An agreement costs two allreduces, and cannot end before everyone can know who is dead.
        end = max([self._latest, *(faults.dead[number].known for number in self.dead)])
        if len(living) > 1:
            end += 2 * kernel.wires.collective("Allreduce", living, 8)
        results = self._finish(self, {number: self._given[number] for number in living})
        for number in living:
            self._requests[number].result = results[number]
            kernel.schedule(kernel.ranks[number], end, self._requests[number])


def _faults(comm: Any) -> Faults:
    return get_faults(comm.me.kernel)


def _agreement_call(
    comm: Any, name: str, given: Any, finish: Callable[[Agreement, Given], Given],
    take: Callable[[Any], None] | None = None,
) -> CollectiveRequest:  # fmt: skip
    faults = _faults(comm)
    faults.check(comm.me)
    counted = (name, comm.state.context, comm.me.number)
    call = faults.agreement_calls[counted] = faults.agreement_calls.get(counted, -1) + 1
    key = (name, comm.state.context, call)
    agreement = faults.agreements.get(key)
    if agreement is None:
        agreement = faults.agreements[key] = Agreement(faults, comm.state, finish)
    return agreement.join(comm.me, name, given, take)


def _agree(agreement: Agreement, given: Given) -> Given:
    flag = -1
    for mine, _ in given.values():
        flag &= mine
    unseen = [dead for dead in agreement.dead if any(dead not in seen for _, seen in given.values())]
    return dict.fromkeys(given, (flag, unseen))


def _shrink(agreement: Agreement, given: Given) -> Given:
    old = agreement.state
    groups: Any = None
    if old.groups:
        groups = tuple(tuple(number for number in group if number in given) for group in old.groups)
    state = CommState(old.kernel, tuple(given), old.name, groups)
    ranks = {number: rank for group in groups or (tuple(given),) for rank, number in enumerate(group)}
    return {number: (state, ranks[number]) for number in given}
