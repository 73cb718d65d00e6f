"""What goes wrong in one run: messages that are late or lost, ranks that are slow, paused or killed.

A run without faults has none of this: `Faults` puts itself between the kernel and the network, and gives a pace of its own
to every rank that it slows down or kills.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from greenlet import GreenletExit

from paceline.sim import _sites
from paceline.sim._losses import Losses
from paceline.sim._matching import Data, Message

if TYPE_CHECKING:
    from paceline.sim._survival import Rescue


class Killed(GreenletExit):  # type: ignore[misc]
    """Unwinds a rank that is killed, from wherever it is."""


class Death(NamedTuple):
    """When a rank died, when others know, and in which of its steps it was."""

    time: float
    known: float
    step: int | None


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Messages between `a` and `b`, sent from `at` to `until`, come later: by `extra(now, way)` seconds.

    `way`: how long the message would be on its way. `cut`: why; one that is on its way at `at` is late, too.
    """

    a: Collection[int]
    b: Collection[int]
    one_way: bool = False
    at: float = 0.0
    until: float = inf
    extra: Callable[[float, float], float]
    cut: str = ""

    def is_between(self, source: int, dest: int) -> bool:
        """Whether messages from one rank to another are meant."""
        if source in self.a and dest in self.b:
            return True
        return not self.one_way and source in self.b and dest in self.a

    def late(self, source: int, dest: int, now: float, way: float) -> float:
        """How much later a message comes."""
        meant = self.is_between(source, dest) and self._in_force(now, way)
        return self.extra(now, way) if meant else 0.0

    def late_among(self, members: Sequence[int], now: float, way: float) -> float:
        """How much later a collective of MPI's own ends."""
        if not self._in_force(now, way):
            return 0.0
        some = next((member for member in members if member in self.a), None)
        others = [member for member in members if member in self.b][:2]
        return self.extra(now, way) if some is not None and others not in ([], [some]) else 0.0

    def _in_force(self, now: float, way: float) -> bool:
        return now < self.until and (now >= self.at or (bool(self.cut) and now + way > self.at))


class Faults:
    """Everything that goes wrong in a run, and everything that already has."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.rules: list[Rule] = []
        self.random = random.Random(f"{kernel.seed} faults").random
        self.dies: dict[int, float] = {}
        """When a rank will be killed."""
        self.detection: dict[int, float] = {}
        """How long after that the others know."""
        self.steps: dict[int, int] = {}
        """In which step a rank will be killed."""
        self.dead: dict[int, Death] = {}
        self.lost: list[tuple[str, str]] = []
        """What was lost for ever, and why."""
        self.losses = Losses(self)
        self.rescues: dict[tuple[str, int, int], Rescue] = {}
        """Calls of those who live that not all of them have come to."""
        self.rescued: dict[tuple[str, int, int], int] = {}
        kernel.wires = FaultyWires(kernel.wires, self)

    def pace(self, number: int) -> Pace:
        """The pace of a rank, to be changed."""
        rank = self.kernel.ranks[number]
        if rank.pace is None:
            rank.pace = Pace(rank, self)
        found: Pace = rank.pace
        return found

    # ---- messages

    def late(self, source: int, dest: int, now: float, way: float) -> float:
        """How much later than it would a message comes; infinite where it never does."""
        extra = 0.0
        for rule in self.rules:
            extra += rule.late(source, dest, now, way)
        return extra

    def late_among(self, name: str, members: Sequence[int], now: float, end: float) -> float:
        """The same for a collective of MPI's own: when it ends."""
        extra = 0.0
        for rule in self.rules:
            found = rule.late_among(members, now, end - now)
            if found == inf:
                self.lost.append((f"{name} of {len(members):,} ranks", rule.cut))
            extra += found
        return end + extra

    def keeps(self, comm: Any, message: Any, dest: int, arrives: float) -> bool:
        """Whether a message that was sent will not come to anybody."""
        rank = self.kernel.ranks[dest]
        if not self.losses.sent(comm, message, rank):
            return True
        if arrives == inf:
            self.lose(rank, message)
        return arrives == inf

    def spared(self) -> list[str]:
        """What was to kill a rank, and did not: it had ended before, or takes no steps."""
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
        """Whether something happened after which requests and messages may well be left over."""
        return bool(self.dead or self.lost or self.losses.any_revoked)

    def lose(self, dest: Any, thing: Any) -> None:
        """Something that comes never: a message on a link that is cut, or whose sender is dead."""
        if isinstance(thing, Data):
            message: Any = thing.message
        elif isinstance(thing, Message):
            message = thing
        else:  # a sender's own waiting for it, or a collective, which is said elsewhere
            return
        sender = message.sender.number
        if sender in self.dead and isinstance(thing, Data):
            self.losses.unsent(sender, thing.receive)
            return
        for rule in self.rules:
            if rule.cut and rule.until == inf and rule.is_between(sender, dest.number):
                self.lost.append((message.spelled(), rule.cut))
                return

    def told(self) -> str:
        """What was lost, for whoever waits for it in vain."""
        by_link: dict[str, list[str]] = {}
        for what, why in self.lost:
            by_link.setdefault(why, []).append(what)
        return "".join(
            f"\n{why} for good, and lost on it" + _sites.listed(things) for why, things in by_link.items()
        )

    # ---- death

    def check(self, rank: Any) -> None:
        """Kill a rank whose time has come."""
        if rank.t >= self.dies.get(rank.number, inf):
            self.die(rank, self.dies[rank.number])

    def begin_step(self, rank: Any) -> None:
        """Told by the kernel of every step."""
        if self.steps.get(rank.number) == rank.steps - 1:
            self.die(rank, rank.t)

    def die(self, rank: Any, time: float) -> NoReturn:
        """Kill a rank, in its own greenlet: it does nothing any more."""
        number = rank.number
        if rank.alive:
            known = time + self.detection.get(number, 0.0)
            self.dead[number] = Death(time, known, rank.steps - 1 if rank.steps else None)
            self.dies[number] = time
            rank.alive, rank.t, rank.value = False, time, None
            self.losses.died(rank, known)
            for rescue in list(self.rescues.values()):
                rescue.try_to_end()
        raise Killed

    def describe(self, number: int) -> str:
        """How a rank died."""
        time, _, step = self.dead[number]
        in_step = "" if step is None else f" in its step {step}"
        return f"rank {number} was killed {1e3 * time:.6g} ms after the start{in_step}"


def faults_of(kernel: Any) -> Faults:
    """What goes wrong in a kernel's run, from now on."""
    if kernel.faults is None:
        kernel.faults = Faults(kernel)
        kernel.at_step = kernel.faults.begin_step
    found: Faults = kernel.faults
    return found


class FaultyWires:
    """The network of a run in which things go wrong: see `paceline.sim._wires.Wires`."""

    jittered = True

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
        if source in faults.dies:
            faults.check(faults.kernel.ranks[source])
        free, arrives, taking = self._inner.send(source, dest, nbytes, now, eager)
        return free, arrives + faults.late(source, dest, now, arrives - now), taking

    def fetch(self, source: int, dest: int, nbytes: int, now: float) -> tuple[float, float, float]:
        faults = self._faults
        if source in faults.dead and faults.dead[source].time <= now:
            return inf, 0.0, inf
        arrives, taking, released = self._inner.fetch(source, dest, nbytes, now)
        extra = faults.late(source, dest, now, arrives - now)
        return arrives + extra, taking, released + extra


class Pace:
    """How fast a rank computes, when: called with its clock and the seconds that work would take, says when it is done."""

    def __init__(self, rank: Any, faults: Faults) -> None:
        self._rank, self._faults = rank, faults
        self.windows: list[tuple[float, float, float]] = []
        """From when to when it takes how many times as long; infinitely long: not at all."""
        self.spread = 0.0
        """Work takes up to so much of itself longer, at random."""

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


class Pausing:
    """Comes to a rank that is to do nothing for a while: it goes on when it has been taken in."""

    __slots__ = ("until",)

    def __init__(self, until: float) -> None:
        self.until = until

    def arrive(self, rank: Any) -> None:
        rank.t = max(rank.t, self.until)


class Dying:
    """Comes to a rank that is to be killed at this moment, and is waiting."""

    __slots__ = ()

    def arrive(self, rank: Any) -> None:
        rank.kernel.faults.check(rank)
