"""A network in use by one run: when each message is sent, comes and is taken, and when each card is free."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from paceline.vmpi.network import Network


# ---- What MPI's own collectives cost, by the textbook's algorithms: of those that a library may choose, the cheapest.
#
# Barrier                            dissemination: log2 p rounds
# Bcast, Reduce                      a binomial tree; or scattered and gathered, combined on the way
# Allreduce                          recursive doubling, Rabenseifner's, or a ring
# Allgather, Gather, Scatter         recursive doubling or a ring; binomial trees
# Alltoall                           Bruck's, or pair by pair
#
# Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH (2005).


class Steps(NamedTuple):
    """Seconds of an exchange, and of combining, by bytes."""

    exchange: Callable[[float], float]
    combine: Callable[[float], float]


def seconds(name: str, p: int, n: float, steps: Steps) -> float:
    """Seconds that p ranks take for the collective called `name`.

    n: the bytes that each hands in; of Scatter and Alltoall the whole of a rank's buffer, p blocks.

    >>> gigabit = Steps(lambda n: 50e-6 + 8e-9 * n, lambda n: 0.2e-9 * n)
    >>> round(seconds("Barrier", 8, 0, gigabit), 6), round(seconds("Allreduce", 8, 8, gigabit), 6)
    (0.00015, 0.00015)
    """
    if p <= 1:
        return 0.0
    rounds = math.ceil(math.log2(p))
    exchange, combine = steps

    def halving() -> float:
        """The whole of n, cut in halves in every round: what scatters, and backwards what gathers."""
        return sum(exchange(n / 2**k) for k in range(1, rounds + 1))

    def halves_combined() -> float:
        return sum(combine(n / 2**k) for k in range(1, rounds + 1))

    uneven = (
        0.0 if p & (p - 1) == 0 else exchange(n) + combine(n)
    )  # those beyond a power of two, before and after
    if name == "Barrier":
        return rounds * exchange(0)
    if name in ("Bcast", "Ibcast"):
        return min(rounds * exchange(n), halving() + min(halving(), (p - 1) * exchange(n / p)))
    if name in ("Reduce", "Reduce_scatter", "Reduce_scatter_block"):
        scattered = uneven + halving() + halves_combined()
        if name != "Reduce":
            return min(scattered, (p - 1) * (exchange(n / p) + combine(n / p)))
        return min(rounds * (exchange(n) + combine(n)), scattered + halving())
    if name in ("Allreduce", "Iallreduce", "Scan", "Exscan"):
        doubling = rounds * (exchange(n) + combine(n)) + (uneven and exchange(n))
        halved = uneven + 2 * halving() + halves_combined() + (uneven and exchange(n))
        ring = (p - 1) * (2 * exchange(n / p) + combine(n / p))
        return min(doubling, halved, ring)
    if name in ("Gather", "Gatherv"):
        return sum(exchange(n * 2**k) for k in range(rounds))
    if name in ("Scatter", "Scatterv"):
        return halving()
    if name in ("Alltoall", "Alltoallv"):
        return min(rounds * exchange(n / 2), (p - 1) * exchange(n / p))
    # Allgather, and all that lets everybody know a little of everybody else (Split, Dup, windows …)
    return min(sum(exchange(n * 2**k) for k in range(rounds)), (p - 1) * exchange(n))


KEPT = 1 << 16  # sizes whose costs are remembered
PIECE = 1 << 16  # bytes that are copied at a time
SHARING = 1 << 14  # bytes from which a copy takes longer when others copy, too
WINDOW = 3  # how many times the length of a copy it is remembered after its end
MOST_TAKERS = 256


class Wires:
    """What the simulator's kernel asks about messages. Called for each of them: plain floats, nothing made per call."""

    def __init__(self, network: Network, ranks: int, random: random.Random | None = None) -> None:
        each = network.ranks_per_node or max(ranks, 1)
        machine = network.node_machine()
        self.node = [rank // each for rank in range(ranks)]
        self.post, self.poll = machine.post, machine.poll
        self._network, self._machine = network, machine
        self._latency, self._overhead = network.latency, network.overhead
        self._per_byte, self._per_copied = 1 / network.bandwidth, 1 / network.copy_bandwidth
        self._limit, self.limit_inside = network.eager_limit, machine.eager_limit
        count = self.node[-1] + 1 if ranks else 0
        self._on_node = [min(each, ranks - node * each) for node in range(count)]
        by_number: dict[int, dict[int, Any]] = {number: {} for number in self._on_node}
        self.inside = [by_number[number] for number in self._on_node]
        """For each node, by bytes, as far as asked for: what `inside_costs` says."""
        # Each card is free from these times on, and again in the gaps before them, which few cards have.
        self._out, self._in = [0.0] * count, [0.0] * count
        self._gaps_out: dict[int, list[tuple[float, float]]] = {}
        self._gaps_in: dict[int, list[tuple[float, float]]] = {}
        # When each node's copies of long messages end, or have ended.
        self._copying: dict[int, deque[float]] = {}
        self._sigma = network.jitter if random is not None else 0.0
        self.jittered = self._sigma > 0
        """Whether messages of one pair could overtake each other."""
        self._draw: Callable[[float, float], float] = random.lognormvariate if random is not None else _one
        self._groups: dict[int, tuple[Sequence[int], int, int]] = {}
        self._collectives: dict[tuple[str, int, int, int, int], float] = {}

    def contended(self, source: int, dest: int) -> bool:
        """Whether a card has part in it, which others may want at the same time."""
        return self.node[source] != self.node[dest]

    def eager(self, source: int, dest: int, nbytes: int) -> bool:
        """Whether the message is sent before the receiver asks for it."""
        inside = self.node[source] == self.node[dest]
        return nbytes <= (self.limit_inside if inside else self._limit)

    def send(
        self, source: int, dest: int, nbytes: int, now: float, eager: bool
    ) -> tuple[float, float, float]:
        """When the sender's call returns, when message or announcement is there, the receiver's own time to take it."""
        a, b = self.node[source], self.node[dest]
        if a == b:
            costs = self.inside[a].get(nbytes)
            if costs is None:
                costs = self.inside_costs(a, nbytes)
            if eager:
                own, flight, taking = costs[0]
            else:
                own, flight, taking = costs[1]
                taking = 0.0
            if self._sigma:
                flight *= self._draw(0.0, self._sigma)
            free = now + own
            return free, free + flight, taking
        latency = self._latency * self._draw(0.0, self._sigma) if self._sigma else self._latency
        if not eager:
            free = now + self._overhead
            return free, free + latency, 0.0
        copying, first, passing = self._parts(nbytes)
        ready = now + self._overhead + first
        # Through both cards at once, as far as they are free: the first byte is there after the latency.
        leaves = _reserve(self._out, self._gaps_out, a, ready, passing, now, False)
        late = leaves > ready or self._sigma > 0
        there = _reserve(self._in, self._gaps_in, b, leaves + latency, passing, now, late)
        comes = there + first + (passing - copying if passing > copying else 0.0)
        return now + self._overhead + copying, comes, self._overhead + copying

    def fetch(self, source: int, dest: int, nbytes: int, now: float) -> tuple[float, float, float]:
        """When the data of an announced message are there, the receiver's own time, when the sender has done with it."""
        a, b = self.node[source], self.node[dest]
        if a == b:
            costs = self.inside[a].get(nbytes)
            if costs is None:
                costs = self.inside_costs(a, nbytes)
            _, flight, taking = costs[1]
            if costs[2] is not None:
                taking = self._shared_taking(a, costs[2], now)
            return now, taking, now + taking + flight
        latency = self._latency * self._draw(0.0, self._sigma) if self._sigma else self._latency
        copying, first, passing = self._parts(nbytes)
        ready = (
            now + self._overhead + latency + self._overhead + first
        )  # asked for, and the sender has understood
        leaves = _reserve(self._out, self._gaps_out, a, ready, passing, now, True)
        there = _reserve(self._in, self._gaps_in, b, leaves + latency, passing, now, True)
        comes = there + first + (passing - copying if passing > copying else 0.0)
        return comes, self._overhead + copying, leaves + passing

    def _shared_taking(self, node: int, by_takers: list[float], now: float) -> float:
        """Seconds to copy a long message while others of the node do the same.

        Whoever has just done so counts as well: ranks that exchange do it at the same time, but ask one after the other.
        """
        until = self._copying.get(node)
        if until is None:
            until = self._copying[node] = deque()
        since = now - WINDOW * by_takers[1]
        while until and until[0] < since:
            until.popleft()
        takers = len(until) + 1
        taking = by_takers[takers] if takers < len(by_takers) else by_takers[-1]
        until.append(now + taking)
        return taking

    def _parts(self, nbytes: int) -> tuple[float, float, float]:
        """Seconds that an end copies, that it copies before the first bytes can go on, that a card is held.

        Copying goes on piece by piece while the card sends, or receives: only a piece of it is waited for.
        """
        pieces = nbytes if nbytes < PIECE else PIECE
        return nbytes * self._per_copied, pieces * self._per_copied, nbytes * self._per_byte

    def collective(self, name: str, members: Sequence[int], nbytes: int) -> float:
        """Seconds that MPI's own collective takes the members, each of which hands in `nbytes`, from the last's coming."""
        known = self._groups.get(id(members))
        if known is None or known[0] is not members:
            on_node: dict[int, int] = {}
            for rank in members:
                on_node[self.node[rank]] = on_node.get(self.node[rank], 0) + 1
            known = (members, len(on_node), max(on_node.values(), default=1))
            self._groups[id(members)] = known  # with the members themselves: nobody else can have their id
        _, nodes, largest = known
        key = (name, len(members), nodes, largest, nbytes)
        found = self._collectives.get(key)
        if found is None:
            found = self._collectives[key] = self._collective(name, len(members), nodes, largest, nbytes)
        return found

    def _collective(self, name: str, members: int, nodes: int, largest: int, nbytes: int) -> float:
        machine = self._machine
        on_node = self._on_node[0]

        def combine(n: float) -> float:
            return machine.memory["combine"].at(n, on_node) if "combine" in machine.memory else 0.0

        def inside(n: float) -> float:
            return machine.link.both_ways(int(n), on_node, eager=n <= machine.eager_limit, post=machine.post)

        def between(n: float) -> float:
            copying, first, passing = self._parts(int(n))
            asked = 0.0 if n <= self._limit else 2 * (self._latency + self._overhead)
            return machine.post + 2 * (self._overhead + first) + self._latency + asked + max(passing, copying)

        def in_node(name: str, ranks: int, n: float) -> float:
            if ranks <= 1:
                return 0.0
            measured = machine.collectives.get(name)
            if measured is not None:
                return measured.at(n, ranks)
            steps = Steps(inside, combine)
            found, like = seconds(name, ranks, n, steps), machine.collectives.get("Allreduce")
            if like is None:
                return found
            # The library is faster inside than its messages are from Python: by as much as where it was measured.
            return found * min(1.0, like.at(n, ranks) / seconds("Allreduce", ranks, n, steps))

        if nodes <= 1:
            return in_node(name, members, nbytes)
        return _two_level(name, members, nodes, largest, nbytes, in_node, Steps(between, combine))

    def inside_costs(self, node: int, nbytes: int) -> tuple[Any, Any, list[float] | None]:
        """(send, flight, take) of an eager message and of an announced one; take of a long one, by how many take."""
        link, limit, ranks = self._machine.link, self.limit_inside, self._on_node[node]
        by_takers = None

        def of(n: int) -> tuple[float, float, float]:
            return link.send.at(n, ranks), link.flight.at(n, ranks), link.take.at(n, ranks)

        if nbytes <= limit:
            own, flight, _ = of(limit + 1)
            costs = (of(nbytes), (own, flight, of(nbytes)[2]))
        else:
            own, flight, _ = of(limit)
            # Copying in is taken to last as long as copying out.
            more = max(0.0, of(nbytes)[2] - of(limit + 1)[2])
            costs = ((own + more, flight, of(nbytes)[2]), of(nbytes))
            if nbytes >= SHARING and len(link.take.tables) > 1:
                by_takers = [
                    link.take.at(nbytes, max(takers, 1)) for takers in range(min(ranks, MOST_TAKERS) + 1)
                ]
        kept = self.inside[node]
        if len(kept) >= KEPT:
            kept.clear()
        kept[nbytes] = found = (*costs, by_takers)
        return found


def _reserve(
    free: list[float],
    gaps: dict[int, list[tuple[float, float]]],
    card: int,
    ready: float,
    passing: float,
    now: float,
    early: bool,
) -> float:
    """When a message that is ready can begin to pass through a card; it holds it for `passing`.

    `early`: it is reserved before its time, so that another one may still come in before it: the gap is kept.
    """
    begin = free[card]
    if ready >= begin:
        if early and ready > begin:
            kept = gaps.setdefault(card, [])
            while kept and kept[0][1] <= now:
                kept.pop(0)
            kept.append((max(begin, now), ready))
        free[card] = ready + passing
        return ready
    for i, (start, end) in enumerate(gaps.get(card, ())):
        at = start if start > ready else ready
        if at + passing <= end:
            gaps[card][i : i + 1] = [gap for gap in ((start, at), (at + passing, end)) if gap[0] < gap[1]]
            return at
    free[card] = begin + passing
    return begin


def _two_level(
    name: str,
    members: int,
    nodes: int,
    largest: int,
    nbytes: float,
    in_node: Callable[[str, int, float], float],
    between: Steps,
) -> float:
    """First inside the nodes, then between one rank of each, then inside the nodes again."""
    every = nbytes * members
    if name in ("Barrier", "Allreduce", "Reduce_scatter", "Scan", "Exscan"):
        down = "Barrier" if name == "Barrier" else "Bcast"
        up = "Barrier" if name == "Barrier" else "Reduce"
        return (
            in_node(up, largest, nbytes)
            + seconds(name, nodes, nbytes, between)
            + in_node(down, largest, nbytes)
        )
    if name == "Bcast":
        return seconds(name, nodes, nbytes, between) + in_node(name, largest, nbytes)
    if name == "Reduce":
        return in_node(name, largest, nbytes) + seconds(name, nodes, nbytes, between)
    if name == "Gather":
        return in_node(name, largest, nbytes) + seconds(name, nodes, nbytes * largest, between)
    if name == "Scatter":
        return seconds(name, nodes, nbytes, between) + in_node(name, largest, nbytes / nodes)
    if name == "Alltoall":  # every byte that leaves the node goes through its one card
        return in_node(name, largest, nbytes / nodes) + seconds(name, nodes, nbytes * largest, between)
    gathered = seconds("Allgather", nodes, nbytes * largest, between)
    return in_node("Gather", largest, nbytes) + gathered + in_node("Bcast", largest, every)


def _one(mean: float, sigma: float) -> float:
    return 1.0
