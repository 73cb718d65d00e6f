"""Where ranks are: on how many nodes, with how many cores, and what messages between them cost in theory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.collectives import CostModel, Nodes, cost, has_cost
from paceline.compare.laws import fit_line
from paceline.errors import UsageError
from paceline.record import Run
from paceline.record.environment import node_of

if TYPE_CHECKING:
    from paceline.machine import Machine
    from paceline.vmpi import Network

# Bytes of the messages whose times alpha and beta are fitted to.
SIZES = tuple(8 << k for k in range(0, 22, 3))
# A collective is worth naming if it takes at most this part of the time of the one in use.
CHEAPER = 0.8
WIDTH = {"float32": 4, "float64": 8}


@dataclass(frozen=True, kw_only=True)
class Place:
    """The nodes of one run."""

    ranks: int
    on_node: int
    cores: int | None
    """Cores per node; None: enough."""
    links: CostModel | None
    """What a message and a sum take, for the theory of the collectives; None: the network is unknown."""
    per_node: int | None = None
    """The most ranks that a node has; None: all are on one."""

    @property
    def layout(self) -> Nodes:
        """Which rank is on which node."""
        return Nodes(tuple(rank // self.on_node for rank in range(self.ranks)))

    def fits(self, ranks: int, threads: int = 1) -> bool:
        """Return True if each of so many ranks would have cores of its own for its threads."""
        return self.cores is None or min(self.per_node or ranks, ranks) * threads <= self.cores

    def theory(self, name: str, parameters: int, itemsize: int, *, in_place: bool = False) -> float | None:
        """Return the seconds that a collective takes in theory; None if it has no formula, or cannot be used here.

        `in_place`: with shared memory, gradients are computed there and not copied.
        """
        several = self.on_node < self.ranks
        if self.links is None or not has_cost(name) or (several and name == "shared-memory"):
            return None
        done = cost(name, n=parameters, p=self.ranks, itemsize=itemsize, nodes=self.layout)
        if in_place and name == "shared-memory":
            done = replace(done, touched=parameters)  # every rank reads its part of all ranks' gradients
        return self.links.seconds(done, itemsize)

    def cheapest(
        self, used: str, parameters: int, dtype: str, *, in_place: bool = False
    ) -> tuple[str, float] | None:
        """Return a collective that is cheaper in theory than the one used, and the part of its time that it takes.

        `auto` chooses by measurements, which are better than theory; collectives of other packages have no formula.
        """
        from paceline.names import names

        itemsize = WIDTH.get(dtype, 4)
        if used == "auto" or used not in names("collectives") or self.ranks < 2:
            return None
        now = self.theory(used, parameters, itemsize, in_place=in_place)
        if not now:
            return None
        known = {
            name: self.theory(name, parameters, itemsize, in_place=in_place) for name in names("collectives")
        }
        times = {name: t for name, t in known.items() if t is not None and name not in ("auto", "native")}
        best = min(times, key=times.__getitem__, default=used)
        part = times.get(best, now) / now
        return (best, part) if part <= CHEAPER else None


def place_of(run: Run) -> Place:
    """Return where the ranks of a run were."""
    ranks, told = run.config["ranks"], run.simulated
    on_node, cores = node_of(run)
    if told is None:
        if on_node < ranks:
            return Place(ranks=ranks, on_node=on_node, cores=cores, links=None, per_node=on_node)
        return Place(ranks=ranks, on_node=on_node, cores=cores, links=_inside(_typical(), ranks))
    network, links = _network(str(told.get("network"))), _inside(_machine(told.get("machine")), ranks)
    if network is not None and on_node < ranks:
        links = CostModel(
            alpha=network.latency + 2 * network.overhead,
            beta=1 / network.bandwidth + 2 / network.copy_bandwidth,
            gamma=links.gamma,
        )
    per_node = None if network is None else network.ranks_per_node
    return Place(ranks=ranks, on_node=on_node, cores=cores, links=links, per_node=per_node)


def _network(text: str) -> Network | None:
    """Return the network that a record names; None for the file of a machine, of which the record has a copy."""
    from paceline.machine import load_network

    try:
        return load_network(text)
    except UsageError:
        return None


def _typical() -> Machine:
    from paceline.machine import Machine

    return Machine.typical()


def _machine(values: Any) -> Machine:
    """Return the machine that a record holds, or a typical one."""
    from paceline.machine import Machine

    try:
        return Machine.of(values)
    except (TypeError, KeyError, ValueError, AttributeError):
        return Machine.typical()


def _inside(machine: Machine, ranks: int) -> CostModel:
    """Return alpha, beta and gamma of a node, from its tables."""
    times = [
        machine.link.both_ways(size, ranks, eager=size <= machine.eager_limit, post=machine.post)
        for size in SIZES
    ]
    alpha, beta = fit_line(SIZES, np.array(times))
    return CostModel(alpha=alpha, beta=beta, gamma=_slope(machine.memory.get("combine"), ranks))


def _slope(curves: Any, ranks: int) -> float:
    """Return the seconds per byte of a pass over memory; 0.1 ns if that was not measured."""
    if curves is None:
        return 1e-10
    low, high = 1 << 16, 1 << 22
    return max(0.0, float(curves.at(high, ranks) - curves.at(low, ranks)) / (high - low))
