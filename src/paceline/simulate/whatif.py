"""What if one thing cost nothing? The same network, machine and computing, with one cost taken away.

latency      messages are there at once, however far; MPI's own collectives wait for nobody
bandwidth    bytes pass through cards and shared memory in no time
overhead     neither end spends time of its own on a message
memory       gradients are added up and copied in no time
masters      those who keep the parameters need no time for what they do
stragglers   no rank is slow, nothing varies
compute      computing is divided as well as can be: a p-th of what one process takes, or of a whole batch all of it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any

from paceline.machine import Machine
from paceline.vmpi import Compute, Curves, Link, Network
from paceline.vmpi.compute import MEMORY_PASSES
from paceline.vmpi.curves import Table, interpolate
from paceline.vmpi.network import Wires

REASONS = ("latency", "bandwidth", "overhead", "memory", "masters", "stragglers", "compute")
NO_TIME = 1e-12  # how slow a rank is that needs no time: a factor must be above 0
COMPUTING = ("gradient", "factors", "part", "update")


@dataclass(frozen=True, kw_only=True)
class World:
    """What a case is simulated on."""

    network: Network
    compute: Compute
    masters: int = 0
    """The first so many ranks keep the parameters and compute no gradients."""
    pieces: int | None = None
    """Among how many ranks a batch is divided; None: each computes whole batches."""
    batch: int = 1
    parameters: int = 1

    def has(self, reason: str) -> bool:
        """Whether there is anything to take away."""
        network, compute = self.network, self.compute
        if reason == "masters":
            return self.masters > 0
        if reason == "stragglers":
            return bool(compute.slow or compute.jitter or compute.pauses or network.jitter)
        return True

    def without(self, *reasons: str) -> World:
        """The same with these costs taken away.

        >>> world = World(network=Network.named("10gbe"), compute=Compute(slow={1: 4.0}))
        >>> world.without("latency").network.latency, world.without("stragglers").compute.slow
        (0.0, {})
        """
        changed = self
        for reason in reasons:
            changed = _TAKEN_AWAY[reason](changed)
        return changed


def _latency(world: World) -> World:
    def machine(of: Machine) -> Machine:
        link = replace(of.link, flight=_each(of.link.flight, _nothing))
        waits = {
            name: _each(curves, lambda t: _less(t, interpolate(t, 0)))
            for name, curves in of.collectives.items()
        }
        return replace(of, link=link, collectives=waits)

    return _with_machine(world, machine, latency=0.0)


def _bandwidth(world: World) -> World:
    def machine(of: Machine) -> Machine:
        def starts(curves: Curves) -> Curves:
            return _each(curves, lambda table: _levels(table, of.eager_limit))

        link = Link(send=starts(of.link.send), flight=starts(of.link.flight), take=starts(of.link.take))
        alone = {
            name: _each(curves, lambda t: _level(interpolate(t, 0)))
            for name, curves in of.collectives.items()
        }
        return replace(of, link=link, collectives=alone)

    return _with_machine(world, machine, bandwidth=float("inf"), copy_bandwidth=float("inf"))


def _overhead(world: World) -> World:
    def machine(of: Machine) -> Machine:
        def rest(curves: Curves) -> Curves:
            return _each(curves, lambda table: _slopes(table, of.eager_limit))

        # Looking in vain keeps its price: who looks for nothing would look for ever at one point of time.
        return replace(of, post=0.0, link=replace(of.link, send=rest(of.link.send), take=rest(of.link.take)))

    return _with_machine(world, machine, overhead=0.0)


def _memory(world: World) -> World:
    free = _with_machine(world, lambda of: replace(of, memory={}))
    work = {kind: curves for kind, curves in world.compute.work.items() if kind not in MEMORY_PASSES}
    return replace(free, compute=replace(world.compute, work=work))


def _masters(world: World) -> World:
    slow = {**world.compute.slow, **dict.fromkeys(range(world.masters), NO_TIME)}
    values = {each.name: getattr(world.network, each.name) for each in fields(Network)}
    network = _MastersAtOnce(**values, masters=world.masters)
    return replace(world, network=network, compute=replace(world.compute, slow=slow))


def _stragglers(world: World) -> World:
    compute = replace(world.compute, slow={}, jitter=0.0, pauses=None)
    return replace(world, compute=compute, network=replace(world.network, jitter=0.0))


def _compute(world: World) -> World:
    work, share = dict(world.compute.work), world.pieces or 1
    alone = _alone(work, "gradient", world.batch), _alone(work, "update", world.parameters)
    if world.pieces is None:
        return replace(world, compute=replace(world.compute, work=_one_rank(work), cores=None))
    for kind, seconds in zip(COMPUTING, (alone[0], alone[0], 0.0, alone[1]), strict=True):
        work[kind] = Curves.of({1: [[0, seconds / share], [1, seconds / share]]})
    return replace(world, compute=replace(world.compute, work=work, cores=None))


_TAKEN_AWAY: dict[str, Callable[[World], World]] = {
    "latency": _latency,
    "bandwidth": _bandwidth,
    "overhead": _overhead,
    "memory": _memory,
    "masters": _masters,
    "stragglers": _stragglers,
    "compute": _compute,
}


@dataclass(frozen=True, kw_only=True)
class _MastersAtOnce(Network):
    """A network on which the first ranks need no time to send and to take in."""

    masters: int = 0

    def wires(self, ranks: int, random: Random | None = None) -> Wires:
        return _NoTimeAtMasters(self, ranks, random)


class _NoTimeAtMasters(Wires):
    def __init__(self, network: _MastersAtOnce, ranks: int, random: Random | None) -> None:
        super().__init__(network, ranks, random)
        self._masters = network.masters

    def send(
        self, source: int, dest: int, nbytes: int, now: float, eager: bool
    ) -> tuple[float, float, float]:
        free, arrives, taking = super().send(source, dest, nbytes, now, eager)
        return now if source < self._masters else free, arrives, 0.0 if dest < self._masters else taking

    def fetch(self, source: int, dest: int, nbytes: int, now: float) -> tuple[float, float, float]:
        arrives, taking, released = super().fetch(source, dest, nbytes, now)
        return arrives, 0.0 if dest < self._masters else taking, released


def _with_machine(world: World, change: Callable[[Machine], Machine], **of_network: Any) -> World:
    machine = change(Machine.of_network(world.network))
    return replace(world, network=replace(world.network, node=machine, **of_network))


def _alone(work: dict[str, Curves], kind: str, amount: float) -> float:
    return work[kind].at(amount, 1) if kind in work else 0.0


def _one_rank(work: dict[str, Curves]) -> dict[str, Curves]:
    """What work costs a rank that has its node for itself; passes over memory as before."""
    return {
        kind: curves if kind in MEMORY_PASSES else Curves({1: curves.tables[min(curves.tables)]})
        for kind, curves in work.items()
    }


# ---- tables: a level part up to the eager limit, another above it, and what grows with the bytes


def _each(curves: Curves, change: Callable[[Table], Table]) -> Curves:
    return Curves({ranks: change(table) for ranks, table in curves.tables.items()})


def _level(seconds: float) -> Table:
    return ((0.0, seconds), (1.0, seconds))


def _nothing(table: Table) -> Table:
    return _level(0.0)


def _less(table: Table, seconds: float) -> Table:
    """The table, lower by so much, and nowhere below 0.

    >>> _less(((0.0, 2.0), (10.0, 5.0)), 2.0)
    ((0.0, 0.0), (10.0, 3.0))
    """
    far = max(table[-1][0], 1.0)
    points = table if len(table) > 1 else ((0.0, interpolate(table, 0)), (far, interpolate(table, far)))
    return tuple((amount, max(0.0, value - seconds)) for amount, value in points)


def _starts(table: Table, limit: int) -> tuple[float, float]:
    """Where the lines of short and of long messages start, at 0 bytes."""
    last = max(table[-1][0], limit + 2.0)
    low, high = interpolate(table, limit + 1), interpolate(table, last)
    slope = max(0.0, (high - low) / (last - limit - 1))
    return interpolate(table, 0), max(0.0, low - slope * (limit + 1))


def _levels(table: Table, limit: int) -> Table:
    """What is left of messages without bytes.

    >>> _levels(((0.0, 1.0), (4.0, 5.0), (5.0, 17.0), (10.0, 22.0)), limit=4)
    ((0.0, 1.0), (4.0, 1.0), (5.0, 12.0), (6.0, 12.0))
    """
    short, long = _starts(table, limit)
    return ((0.0, short), (float(limit), short), (limit + 1.0, long), (limit + 2.0, long))


def _slopes(table: Table, limit: int) -> Table:
    """What is left of messages that cost nothing but for their bytes.

    >>> _slopes(((0.0, 1.0), (4.0, 5.0), (5.0, 17.0), (10.0, 22.0)), limit=4)
    ((0.0, 0.0), (4.0, 4.0), (5.0, 5.0), (10.0, 10.0))
    """
    short, long = _starts(table, limit)
    amounts = sorted({0.0, float(limit), limit + 1.0, max(table[-1][0], limit + 2.0), *(n for n, _ in table)})
    return tuple((n, max(0.0, interpolate(table, n) - (short if n <= limit else long))) for n in amounts)
