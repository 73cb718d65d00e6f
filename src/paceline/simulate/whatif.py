"""Scenarios in which some costs are removed from a network, a machine and its computing.

latency      messages arrive at once; MPI's own collectives have no start-up time
bandwidth    bytes pass through network cards and shared memory in no time
overhead     neither end spends its own time on a message
memory       gradients are summed and copied in no time
masters      the ranks that hold the parameters need no time for their work
stragglers   no rank is slow, and nothing varies
compute      computing is divided perfectly: a p-th of what one process takes, or its time for the batch of a rank
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from math import inf
from random import Random
from typing import Any

from paceline.machine import Machine
from paceline.vmpi import Compute, Curves, Link, Network
from paceline.vmpi.compute import MEMORY_PASSES, Table, interpolate
from paceline.vmpi.network import Wires

REASONS = ("latency", "bandwidth", "overhead", "memory", "masters", "stragglers", "compute")
NO_TIME = 1e-12  # the slowness of a rank that needs no time: a factor must be above 0
COMPUTING = ("gradient", "factors", "part", "update")


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """The network and the computing of a simulation, and how the strategy uses them."""

    network: Network
    compute: Compute
    masters: int = 0
    """The number of ranks, the first ones, that hold the parameters and compute no gradients."""
    pieces: int | None = None
    """The number of ranks that divide a batch; None: the samples of a rank do not depend on the number of ranks."""
    batch: int = 1
    """Samples of all ranks that divide a batch, or of each rank."""
    parameters: int = 1

    def has(self, reason: str) -> bool:
        """Return True if the scenario has this cost."""
        network, compute = self.network, self.compute
        if reason == "masters":
            return self.masters > 0
        if reason == "stragglers":
            return bool(compute.slow or compute.jitter or compute.pauses or network.jitter)
        return True

    def without(self, *reasons: str) -> Scenario:
        """Return the scenario without these costs.

        >>> scenario = Scenario(network=Network.named("10gbe"), compute=Compute(slow={1: 4.0}))
        >>> scenario.without("latency").network.latency, scenario.without("stragglers").compute.slow
        (0.0, {})
        """
        changed = self
        for reason in reasons:
            changed = _REMOVE[reason](changed)
        return changed


def _latency(scenario: Scenario) -> Scenario:
    def machine(of: Machine) -> Machine:
        link = replace(of.link, flight=_each(of.link.flight, lambda table: _level(0.0)))
        waits = {
            name: _each(curves, lambda t: _less(t, interpolate(t, 0)))
            for name, curves in of.collectives.items()
        }
        return replace(of, link=link, collectives=waits)

    return _with_machine(scenario, machine, latency=0.0, socket_latency=0.0)


def _bandwidth(scenario: Scenario) -> Scenario:
    def machine(of: Machine) -> Machine:
        def starts(curves: Curves) -> Curves:
            return _each(curves, lambda table: _levels(table, of.eager_limit))

        link = Link(send=starts(of.link.send), flight=starts(of.link.flight), take=starts(of.link.take))
        alone = {
            name: _each(curves, lambda t: _level(interpolate(t, 0)))
            for name, curves in of.collectives.items()
        }
        return replace(of, link=link, collectives=alone)

    return _with_machine(
        scenario, machine, bandwidth=inf, copy_bandwidth=inf, stream=inf, socket_bandwidth=inf
    )


def _overhead(scenario: Scenario) -> Scenario:
    def machine(of: Machine) -> Machine:
        def rest(curves: Curves) -> Curves:
            return _each(curves, lambda table: _slopes(table, of.eager_limit))

        # A poll still costs time: without it, a polling rank would never advance its clock.
        return replace(of, post=0.0, link=replace(of.link, send=rest(of.link.send), take=rest(of.link.take)))

    return _with_machine(scenario, machine, overhead=0.0)


def _memory(scenario: Scenario) -> Scenario:
    free = _with_machine(scenario, lambda of: replace(of, memory={}))
    work = {kind: curves for kind, curves in scenario.compute.work.items() if kind not in MEMORY_PASSES}
    return replace(free, compute=replace(scenario.compute, work=work))


def _masters(scenario: Scenario) -> Scenario:
    slow = {**scenario.compute.slow, **dict.fromkeys(range(scenario.masters), NO_TIME)}
    values = {each.name: getattr(scenario.network, each.name) for each in fields(Network)}
    network = _InstantMasterNetwork(**values, masters=scenario.masters)
    return replace(scenario, network=network, compute=replace(scenario.compute, slow=slow))


def _stragglers(scenario: Scenario) -> Scenario:
    compute = replace(scenario.compute, slow={}, jitter=0.0, pauses=None)
    return replace(scenario, compute=compute, network=replace(scenario.network, jitter=0.0))


def _compute(scenario: Scenario) -> Scenario:
    work, share = dict(scenario.compute.work), scenario.pieces or 1
    alone = _alone(work, "gradient", scenario.batch), _alone(work, "update", scenario.parameters)
    if scenario.pieces is None:
        return replace(scenario, compute=replace(scenario.compute, work=_one_rank(work), cores=None))
    for kind, seconds in zip(COMPUTING, (alone[0], alone[0], 0.0, alone[1]), strict=True):
        work[kind] = Curves.of({1: [[0, seconds / share], [1, seconds / share]]})
    return replace(scenario, compute=replace(scenario.compute, work=work, cores=None))


_REMOVE: dict[str, Callable[[Scenario], Scenario]] = {
    "latency": _latency,
    "bandwidth": _bandwidth,
    "overhead": _overhead,
    "memory": _memory,
    "masters": _masters,
    "stragglers": _stragglers,
    "compute": _compute,
}


@dataclass(frozen=True, kw_only=True)
class _InstantMasterNetwork(Network):
    """A network on which the first ranks need no time to send and to receive."""

    masters: int = 0

    def wires(self, ranks: int, random: Random | None = None) -> Wires:
        return _InstantMasterWires(self, ranks, random)


class _InstantMasterWires(Wires):
    def __init__(self, network: _InstantMasterNetwork, ranks: int, random: Random | None) -> None:
        super().__init__(network, ranks, random)
        self._masters = network.masters

    def send(
        self, source: int, dest: int, nbytes: int, now: float, eager: bool
    ) -> tuple[float, float, float]:
        free, arrives, taking = super().send(source, dest, nbytes, now, eager)
        return now if source < self._masters else free, arrives, 0.0 if dest < self._masters else taking

    def fetch(
        self, source: int, dest: int, nbytes: int, now: float, taker: int | None = None
    ) -> tuple[float, float, float]:
        arrives, taking, released = super().fetch(source, dest, nbytes, now, taker)
        return arrives, 0.0 if dest < self._masters else taking, released


def _with_machine(scenario: Scenario, change: Callable[[Machine], Machine], **of_network: Any) -> Scenario:
    machine = change(Machine.of_network(scenario.network))
    return replace(scenario, network=replace(scenario.network, node=machine, **of_network))


def _alone(work: dict[str, Curves], kind: str, amount: float) -> float:
    return work[kind].at(amount, 1) if kind in work else 0.0


def _one_rank(work: dict[str, Curves]) -> dict[str, Curves]:
    """Return the costs of a rank that has its node to itself; passes over memory are unchanged."""
    return {
        kind: curves if kind in MEMORY_PASSES else Curves({1: curves.tables[min(curves.tables)]})
        for kind, curves in work.items()
    }


# Tables have a constant part up to the eager limit, another above it, and a part that grows with the bytes.


def _each(curves: Curves, change: Callable[[Table], Table]) -> Curves:
    return Curves({ranks: change(table) for ranks, table in curves.tables.items()})


def _level(seconds: float) -> Table:
    return ((0.0, seconds), (1.0, seconds))


def _less(table: Table, seconds: float) -> Table:
    """Subtract a constant from a table, without going below 0.

    >>> _less(((0.0, 2.0), (10.0, 5.0)), 2.0)
    ((0.0, 0.0), (10.0, 3.0))
    """
    far = max(table[-1][0], 1.0)
    points = table if len(table) > 1 else ((0.0, interpolate(table, 0)), (far, interpolate(table, far)))
    return tuple((amount, max(0.0, value - seconds)) for amount, value in points)


def _starts(table: Table, limit: int) -> tuple[float, float]:
    """Return the costs of short and of long messages, extrapolated to 0 bytes."""
    last = max(table[-1][0], limit + 2.0)
    low, high = interpolate(table, limit + 1), interpolate(table, last)
    slope = max(0.0, (high - low) / (last - limit - 1))
    return interpolate(table, 0), max(0.0, low - slope * (limit + 1))


def _levels(table: Table, limit: int) -> Table:
    """Return the table without the cost of the bytes.

    >>> _levels(((0.0, 1.0), (4.0, 5.0), (5.0, 17.0), (10.0, 22.0)), limit=4)
    ((0.0, 1.0), (4.0, 1.0), (5.0, 12.0), (6.0, 12.0))
    """
    short, long = _starts(table, limit)
    return ((0.0, short), (float(limit), short), (limit + 1.0, long), (limit + 2.0, long))


def _slopes(table: Table, limit: int) -> Table:
    """Return the table with only the cost of the bytes.

    >>> _slopes(((0.0, 1.0), (4.0, 5.0), (5.0, 17.0), (10.0, 22.0)), limit=4)
    ((0.0, 0.0), (4.0, 4.0), (5.0, 5.0), (10.0, 10.0))
    """
    short, long = _starts(table, limit)
    amounts = sorted({0.0, float(limit), limit + 1.0, max(table[-1][0], limit + 2.0), *(n for n, _ in table)})
    return tuple((n, max(0.0, interpolate(table, n) - (short if n <= limit else long))) for n in amounts)
