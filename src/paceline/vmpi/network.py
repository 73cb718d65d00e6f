"""The costs of messages: latency, bandwidth, overhead at each end, one network card per node, shared memory inside it.

    between nodes     o + L + n/B + o: each end's own time, the latency, and the bytes through the cards
    one card per node in each direction one message at a time, of any rank of the node
    above the limit   announced first (o + L), requested by the receiver (L + o), then as above
    inside a node     by the tables of a node, typical or measured; no card is involved

`Network` describes a network; `Wires` is a network in use by one run.

Culler et al., LogP (1993); Alexandrov et al., LogGP (1995).
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

from paceline.errors import UsageError, unknown
from paceline.vmpi.compute import Curves

US, GB = 1e-6, 1e9
TCP_SHARE = 1448 / 1538  # of a frame on the wire with its gap, what TCP carries at the usual 1500 bytes


@dataclass(frozen=True, kw_only=True)
class Link:
    """A message between two ranks of one node: seconds by bytes, for each number of ranks that send at the same time.

    Up to the eager limit the sender copies the message into shared memory (`send`), and the receiver copies it out
    (`take`). A longer message is announced (`send`), and the receiver copies it straight from the sender's memory
    (`take`).
    """

    send: Curves
    """The sender's own time."""
    flight: Curves
    """The time until the receiver can see it; after a long message also until the sender can see that it was taken."""
    take: Curves
    """The receiver's own time."""

    def both_ways(self, nbytes: int, ranks: int, *, eager: bool, post: float = 0.0) -> float:
        """Return the seconds that two ranks take to exchange messages (Irecv, Isend, Wait, Wait)."""
        flights = 1 if eager else 2
        there = self.send.at(nbytes, ranks) + flights * self.flight.at(nbytes, ranks)
        return post + there + self.take.at(nbytes, ranks)


@dataclass(frozen=True, kw_only=True)
class Node:
    """The costs inside a node of messages, MPI's own collectives and passes over memory.

    >>> node = Node.typical()
    >>> node.eager_limit, node.link.take.at(4096, ranks=2) < node.link.take.at(4096, ranks=16)
    (4096, True)
    """

    eager_limit: int = 4096
    """The longest message inside the node, in bytes, that is sent before the receiver asks for it."""
    post: float = 0.0
    """Seconds to post a receive."""
    poll: float = 0.0
    """Seconds of a test or probe that finds nothing."""
    link: Link
    collectives: dict[str, Curves] = field(default_factory=dict)
    """Measured collectives of the MPI library (Barrier, Allreduce), by the bytes that each rank contributes."""
    memory: dict[str, Curves] = field(default_factory=dict)
    """Passes over memory, by bytes; `combine` is what a reduction costs. See `paceline.vmpi.compute.MEMORY_PASSES`."""

    @classmethod
    def typical(cls) -> Node:
        """Return the node that is assumed if nothing was measured: a 16-core server, Open MPI, mpi4py."""
        return _typical_node()


@cache
def _typical_node() -> Node:
    limit = 4096  # Open MPI's btl_sm_eager_limit

    def line(start: float, rate: float, ends: tuple[int, int]) -> list[list[float]]:
        return [[n, start + n / rate] for n in ends]

    # A message sent with mpi4py costs each end about 1 us of its own time; one core copies about 10 GB/s, and with
    # sixteen at the same time each copies a quarter of that.
    send, flight, take = {}, {}, {}
    for ranks, rate in ((2, 10 * GB), (16, 5 * GB)):
        send[ranks] = line(0.8 * US, rate, (0, limit)) + line(0.8 * US, 1e18, (limit + 1, 1 << 22))
        flight[ranks] = [[0, 0.3 * US], [1 << 22, 0.3 * US]]
        take[ranks] = line(0.8 * US, rate, (0, limit)) + line(1.5 * US, rate, (limit + 1, 1 << 22))
    memory = {
        "combine": {1: (0.4 * US, 12 * GB), 16: (0.4 * US, 5 * GB)},
        "recombine": {1: (0.4 * US, 2 * GB), 16: (0.4 * US, 2 * GB)},
        "sum": {1: (1.0 * US, 12 * GB), 16: (1.0 * US, 8 * GB)},
        "copy": {1: (0.3 * US, 12 * GB), 16: (0.3 * US, 5 * GB)},
    }
    return Node(
        eager_limit=limit,
        post=0.5 * US,
        poll=0.3 * US,
        link=Link(send=Curves.of(send), flight=Curves.of(flight), take=Curves.of(take)),
        memory={
            kind: Curves.of({ranks: line(*figures, (0, 1 << 24)) for ranks, figures in by_ranks.items()})
            for kind, by_ranks in memory.items()
        },
    )


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network between nodes, with the costs of messages inside each node.

    >>> ethernet = Network.named("10gbe", ranks_per_node=4)
    >>> wires = ethernet.wires(8)
    >>> wires.node
    [0, 0, 0, 0, 1, 1, 1, 1]
    >>> free, arrives, taking = wires.send(0, 4, 1000, now=0.0, eager=True)
    >>> print(f"{1e6 * free:.2f} us, {1e6 * arrives:.2f} us")
    2.17 us, 19.02 us
    """

    latency: float
    """Seconds from the sender's card to the receiver's."""
    bandwidth: float
    """Bytes per second through a node's card, in each direction."""
    overhead: float = 1 * US
    """Seconds of the sender's own time, and of the receiver's, for each message."""
    copy_bandwidth: float = math.inf
    """Bytes per second that each end copies in its own time; infinite if the card reads the user's memory."""
    eager_limit: int = 65536
    """The longest message, in bytes, that is sent before the receiver asks for it."""
    ranks_per_node: int | None = 1
    """None: all ranks are on one node."""
    cores: int | None = None
    """The cores of a node. None: with a single node those of the machine that was measured, else enough for its ranks."""
    jitter: float = 0.0
    """Every latency is multiplied by a log-normal random number with this sigma."""
    node: Node | None = None
    """The costs of messages inside a node; None: those of a typical one."""
    name: str = "network"

    def __post_init__(self) -> None:
        for name in ("latency", "overhead", "jitter"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name} of {self.name} must be at least 0; got {getattr(self, name)}")
        for name in ("bandwidth", "copy_bandwidth"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{_dashed(name)} of {self.name} must be above 0; got {getattr(self, name)}")
        if self.eager_limit < 0:
            raise UsageError(f"eager-limit of {self.name} must be at least 0; got {self.eager_limit}")
        if self.cores is not None and self.cores < 1:
            raise UsageError(f"cores of {self.name} must be at least 1; got {self.cores}")
        if self.ranks_per_node is not None and self.ranks_per_node < 1:
            raise UsageError(f"ranks-per-node of {self.name} must be at least 1; got {self.ranks_per_node}")

    @classmethod
    def named(cls, name: str, **changes: Any) -> Network:
        """Return a network by name (loopback, 1gbe, 10gbe, 100gbe, infiniband), with changes."""
        found = presets().get(name)
        if found is None:
            raise unknown("network", name, presets())
        return replace(found, **changes)

    def wires(self, ranks: int, random: random.Random | None = None) -> Wires:
        """Return the network in use by one run of `ranks` ranks; `random` is the source of jitter."""
        return Wires(self, ranks, random)

    def nodes(self, ranks: int) -> int:
        """Return the number of nodes for this number of ranks."""
        return -(-ranks // (self.ranks_per_node or ranks))

    def node_cores(self, measured: int) -> int | None:
        """Return the cores of each node, given those of the machine that was measured; None: enough.

        >>> Network.named("loopback").node_cores(2), Network.named("10gbe", ranks_per_node=16).node_cores(2)
        (2, None)
        """
        return self.cores if self.cores is not None else measured if self.ranks_per_node is None else None

    def __str__(self) -> str:
        """Return the network as on the command line, without the tables of a node."""
        preset = presets().get(self.name)
        words = [
            f"{_dashed(name)}={_format_option(name, getattr(self, name))}"
            for name in (*UNITS, "ranks_per_node", "cores", "jitter")
            if getattr(self, name)
            != (getattr(preset, name) if preset else None if name == "cores" else math.nan)
        ]
        return f"{self.name}:{','.join(words)}" if words else self.name


def presets() -> dict[str, Network]:
    """Return the networks that have a name.

    Latencies are chosen so that a small message, with the own time of both ends, takes as long as commonly published
    ping-pongs between two hosts and one switch; bandwidths are those of the line without the headers.
    """
    gbit = 1e9 / 8
    return {
        # All ranks on one node; the figures of the network are never used.
        "loopback": Network(name="loopback", latency=0.0, bandwidth=math.inf, ranks_per_node=None),
        # TCP through the kernel. NetPIPE over one gigabit switch: 40 to 60 us, most of it interrupt coalescing in the
        # card. The kernel's TCP takes about 5 us at each end.
        "1gbe": Network(
            name="1gbe",
            latency=40 * US,
            bandwidth=TCP_SHARE * gbit,
            overhead=5 * US,
            copy_bandwidth=4e9,
        ),
        # TCP through the kernel: 15 to 30 us.
        "10gbe": Network(
            name="10gbe",
            latency=16 * US,
            bandwidth=10 * TCP_SHARE * gbit,
            overhead=2 * US,
            copy_bandwidth=6e9,
        ),
        # TCP through the kernel at about 10 us, one stream limited to 6 GB/s by copying at the ends, as `btl tcp` is.
        # With RoCE (UCX): 100gbe:latency=1us,overhead=0.7us,copy-bandwidth=inf, 2 to 3 us.
        "100gbe": Network(
            name="100gbe",
            latency=7 * US,
            bandwidth=100 * 0.97 * gbit,  # frames of 9000 bytes
            overhead=1.5 * US,
            copy_bandwidth=6e9,
        ),
        # HDR, 200 Gbit/s, 98 % of it data with packets of 4096 bytes; osu_latency gives 1.0 to 1.3 us from C. mpi4py adds
        # about half a microsecond at each end. NDR: infiniband:bandwidth=49GB/s.
        "infiniband": Network(
            name="infiniband",
            latency=0.8 * US,
            bandwidth=200 * 0.98 * gbit,
            overhead=0.7 * US,
            eager_limit=8192,
        ),
    }


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _format_option(name: str, value: Any) -> str:
    unit = {id(TIMES): "s", id(RATES): "B/s"}.get(id(UNITS[name][0]), "") if name in UNITS else ""
    return "all" if value is None else f"{value}{unit}"


def parse_network(text: str, load_node: Callable[[str], Node] | None = None) -> Network:
    """Create a network from its name and options.

    `load_node`: reads the file of a node that was measured, for `10gbe:machine=FILE`, or for FILE instead of a name:
    all ranks are then on that node.

    >>> parse_network("10gbe:latency=20us,ranks-per-node=4").latency
    2e-05
    >>> str(parse_network("infiniband:bandwidth=400Gbit/s"))
    'infiniband:bandwidth=50000000000.0B/s'
    >>> parse_network("10gbe:latency=20")
    Traceback (most recent call last):
    paceline.errors.UsageError: latency of 10gbe must have a unit, such as 20us; got '20'; choose one of ns, us, ms, s
    """
    name, _, rest = text.partition(":")
    words = [word for word in rest.split(",") if word]
    known = presets()
    if name in known:
        return replace(known[name], **_changes(name, words, load_node))
    if load_node is None:
        raise unknown("network", name, known)
    if name.endswith(".json") or "/" in name:
        return replace(known["loopback"], **{"node": load_node(name), **_changes(name, words, load_node)})
    raise unknown("network", name, [*known, "a machine's .json file"])


TIMES = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}  # dividing keeps 20 / 1e6 equal to 2e-5, to the last bit
RATES = {
    "Mbit/s": 1e6 / 8, "Gbit/s": 1e9 / 8, "B/s": 1.0, "MB/s": 1e6, "GB/s": 1e9, "MiB/s": 2.0**20, "GiB/s": 2.0**30,
}  # fmt: skip
SIZES = {"B": 1, "kB": 1000, "KB": 1000, "MB": 1_000_000, "KiB": 1 << 10, "MiB": 1 << 20}
UNITS: dict[str, tuple[dict[str, Any], str]] = {
    "latency": (TIMES, "20us"),
    "overhead": (TIMES, "1us"),
    "bandwidth": (RATES, "10Gbit/s"),
    "copy_bandwidth": (RATES, "6GB/s"),
    "eager_limit": (SIZES, "64KiB"),
}


def _changes(name: str, words: list[str], load_node: Callable[[str], Node] | None) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    choices = [*UNITS, "ranks_per_node", "cores", "jitter", *(["machine"] if load_node else [])]
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"{name} takes option=value; got {word!r}")
        option = key.replace("-", "_")
        if option not in choices:
            raise unknown(f"option of {name}", key, map(_dashed, choices))
        if option in changes or (option == "machine" and "node" in changes):
            raise UsageError(f"{name}: {key} is given twice")
        if option == "machine" and load_node is not None:
            changes["node"] = load_node(value)
        else:
            changes[option] = _value(name, option, value)
    return changes


def _value(name: str, field: str, text: str) -> Any:
    what = f"{_dashed(field)} of {name}"
    if field == "ranks_per_node":
        if text == "all":
            return None
        if not text.isdecimal():
            raise UsageError(f"{what} must be a whole number, or all; got {text!r}")
        return int(text)
    if field == "cores":
        if not text.isdecimal():
            raise UsageError(f"{what} must be a whole number; got {text!r}")
        return int(text)
    if field == "jitter":
        return _number(what, text)
    units, example = UNITS[field]
    unit = next((u for u in sorted(units, key=len, reverse=True) if text.endswith(u)), "")
    number = _number(what, text.removesuffix(unit))
    if units is SIZES:
        return int(number * units[unit or "B"])
    if not unit and number not in (0.0, math.inf):
        raise UsageError(
            f"{what} must have a unit, such as {example}; got {text!r}; choose one of {', '.join(units)}"
        )
    scale = units.get(unit, 1.0)
    return number / scale if units is TIMES else number * scale


def _number(what: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isnan(number):
        raise UsageError(f"{what} must be a number; got {text!r}")
    return number


# MPI's own collectives, by textbook algorithms; of those that a library may choose, the cheapest is assumed.
#
# Barrier                            dissemination: log2 p rounds
# Bcast, Reduce                      a binomial tree; or scatter and allgather, reduce-scatter and gather
# Allreduce                          recursive doubling, Rabenseifner's, or a ring
# Allgather, Gather, Scatter         recursive doubling or a ring; binomial trees
# Alltoall                           Bruck's, or pairwise
#
# Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH (2005).


class StepCosts(NamedTuple):
    """Seconds of one exchange, and of combining two arrays, by bytes."""

    exchange: Callable[[float], float]
    combine: Callable[[float], float]


def collective_seconds(name: str, p: int, n: float, steps: StepCosts) -> float:
    """Return the seconds that p ranks take for the collective called `name`.

    n: the bytes that each rank contributes; for Scatter and Alltoall a rank's whole buffer, p blocks.

    >>> gigabit = StepCosts(lambda n: 50e-6 + 8e-9 * n, lambda n: 0.2e-9 * n)
    >>> round(collective_seconds("Barrier", 8, 0, gigabit), 6), round(collective_seconds("Allreduce", 8, 8, gigabit), 6)
    (0.00015, 0.00015)
    """
    if p <= 1:
        return 0.0
    rounds = math.ceil(math.log2(p))
    exchange, combine = steps

    def halving() -> float:
        """Return the cost of n bytes halved in every round: a scatter or, backwards, a gather."""
        return sum(exchange(n / 2**k) for k in range(1, rounds + 1))

    def halves_combined() -> float:
        return sum(combine(n / 2**k) for k in range(1, rounds + 1))

    # The ranks beyond a power of two, before and after.
    uneven = 0.0 if p & (p - 1) == 0 else exchange(n) + combine(n)
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
    # Allgather, and calls in which every rank learns a little about every other (Split, Dup, windows …)
    return min(sum(exchange(n * 2**k) for k in range(rounds)), (p - 1) * exchange(n))


CACHED = 1 << 16  # sizes whose costs are cached
PIECE = 1 << 16  # bytes that are copied at a time
SHARING = 1 << 14  # bytes from which a copy takes longer when other ranks copy at the same time
WINDOW = 3  # a copy counts as concurrent for this many times its length after its end
MOST_TAKERS = 256


class Wires:
    """A network in use by one run: when messages are sent, arrive and are taken, and when each card is free."""

    def __init__(self, network: Network, ranks: int, random: random.Random | None = None) -> None:
        each = network.ranks_per_node or max(ranks, 1)
        node = network.node or Node.typical()
        self.node = [rank // each for rank in range(ranks)]
        self.post, self.poll = node.post, node.poll
        self._network, self._node = network, node
        self._latency, self._overhead = network.latency, network.overhead
        self._per_byte, self._per_copied = 1 / network.bandwidth, 1 / network.copy_bandwidth
        self._limit, self.limit_inside = network.eager_limit, node.eager_limit
        count = self.node[-1] + 1 if ranks else 0
        self._on_node = [min(each, ranks - node * each) for node in range(count)]
        by_number: dict[int, dict[int, Any]] = {number: {} for number in self._on_node}
        self.inside = [by_number[number] for number in self._on_node]
        """For each node, by bytes: cached results of `inside_costs`."""
        # Each card is free from these times on, and in the gaps before them, which few cards have.
        self._out, self._in = [0.0] * count, [0.0] * count
        self._gaps_out: dict[int, list[tuple[float, float]]] = {}
        self._gaps_in: dict[int, list[tuple[float, float]]] = {}
        # The end times of each node's copies of long messages.
        self._copying: dict[int, deque[float]] = {}
        self._sigma = network.jitter if random is not None else 0.0
        self.jittered = self._sigma > 0
        """True if messages between the same two ranks could overtake each other."""
        self._draw: Callable[[float, float], float] = (
            random.lognormvariate if random is not None else lambda mean, sigma: 1.0
        )
        self._groups: dict[int, tuple[Sequence[int], int, int]] = {}
        self._collectives: dict[tuple[str, int, int, int, int], float] = {}

    def contended(self, source: int, dest: int) -> bool:
        """Return True if the message goes through a card, which other ranks may need at the same time."""
        return self.node[source] != self.node[dest]

    def eager(self, source: int, dest: int, nbytes: int) -> bool:
        """Return True if the message is sent before the receiver asks for it."""
        inside = self.node[source] == self.node[dest]
        return nbytes <= (self.limit_inside if inside else self._limit)

    def send(
        self, source: int, dest: int, nbytes: int, now: float, eager: bool
    ) -> tuple[float, float, float]:
        """Return when the sender's call returns, when the message or its announcement arrives, the receiver's own time."""
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
        # Through both cards at once, if they are free: the first byte arrives after the latency.
        leaves = _reserve(self._out, self._gaps_out, a, ready, passing, now, False)
        late = leaves > ready or self._sigma > 0
        there = _reserve(self._in, self._gaps_in, b, leaves + latency, passing, now, late)
        comes = there + first + (passing - copying if passing > copying else 0.0)
        return now + self._overhead + copying, comes, self._overhead + copying

    def fetch(self, source: int, dest: int, nbytes: int, now: float) -> tuple[float, float, float]:
        """Return when the data of an announced message arrive, the receiver's own time, and when the sender is released."""
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
        ready = now + self._overhead + latency + self._overhead + first  # the request has reached the sender
        leaves = _reserve(self._out, self._gaps_out, a, ready, passing, now, True)
        there = _reserve(self._in, self._gaps_in, b, leaves + latency, passing, now, True)
        comes = there + first + (passing - copying if passing > copying else 0.0)
        return comes, self._overhead + copying, leaves + passing

    def _shared_taking(self, node: int, by_takers: list[float], now: float) -> float:
        """Return the seconds to copy a long message while other ranks of the node do the same.

        Ranks that have just copied count as well: ranks that exchange copy at the same time, but ask one by one.
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
        """Return the seconds that an end copies, that it copies before the first bytes can leave, and that a card is held.

        Copying and sending or receiving overlap, piece by piece: only the first piece is waited for.
        """
        pieces = nbytes if nbytes < PIECE else PIECE
        return nbytes * self._per_copied, pieces * self._per_copied, nbytes * self._per_byte

    def collective(self, name: str, members: Sequence[int], nbytes: int) -> float:
        """Return the seconds of MPI's own collective from the last member's call on, with `nbytes` from each member."""
        known = self._groups.get(id(members))
        if known is None or known[0] is not members:
            on_node: dict[int, int] = {}
            for rank in members:
                on_node[self.node[rank]] = on_node.get(self.node[rank], 0) + 1
            known = (members, len(on_node), max(on_node.values(), default=1))
            self._groups[id(members)] = known  # holding the members keeps their id from being reused
        _, nodes, largest = known
        key = (name, len(members), nodes, largest, nbytes)
        found = self._collectives.get(key)
        if found is None:
            found = self._collectives[key] = self._collective(name, len(members), nodes, largest, nbytes)
        return found

    def _collective(self, name: str, members: int, nodes: int, largest: int, nbytes: int) -> float:
        costs = self._node
        on_node = self._on_node[0]

        def combine(n: float) -> float:
            return costs.memory["combine"].at(n, on_node) if "combine" in costs.memory else 0.0

        def inside(n: float) -> float:
            return costs.link.both_ways(int(n), on_node, eager=n <= costs.eager_limit, post=costs.post)

        def between(n: float) -> float:
            copying, first, passing = self._parts(int(n))
            asked = 0.0 if n <= self._limit else 2 * (self._latency + self._overhead)
            return costs.post + 2 * (self._overhead + first) + self._latency + asked + max(passing, copying)

        def in_node(name: str, ranks: int, n: float) -> float:
            if ranks <= 1:
                return 0.0
            measured = costs.collectives.get(name)
            if measured is not None:
                return measured.at(n, ranks)
            steps = StepCosts(inside, combine)
            found, like = collective_seconds(name, ranks, n, steps), costs.collectives.get("Allreduce")
            if like is None:
                return found
            # A collective of the library is faster than messages sent from Python, by the factor that was measured.
            return found * min(1.0, like.at(n, ranks) / collective_seconds("Allreduce", ranks, n, steps))

        if nodes <= 1:
            return in_node(name, members, nbytes)
        return _two_level(name, members, nodes, largest, nbytes, in_node, StepCosts(between, combine))

    def inside_costs(self, node: int, nbytes: int) -> tuple[Any, Any, list[float] | None]:
        """Return (send, flight, take) of an eager and of an announced message, and take of a long one by takers."""
        link, limit, ranks = self._node.link, self.limit_inside, self._on_node[node]
        by_takers = None

        def of(n: int) -> tuple[float, float, float]:
            return link.send.at(n, ranks), link.flight.at(n, ranks), link.take.at(n, ranks)

        if nbytes <= limit:
            own, flight, _ = of(limit + 1)
            costs = (of(nbytes), (own, flight, of(nbytes)[2]))
        else:
            own, flight, _ = of(limit)
            # Copying in is assumed to take as long as copying out.
            more = max(0.0, of(nbytes)[2] - of(limit + 1)[2])
            costs = ((own + more, flight, of(nbytes)[2]), of(nbytes))
            if nbytes >= SHARING and len(link.take.tables) > 1:
                by_takers = [
                    link.take.at(nbytes, max(takers, 1)) for takers in range(min(ranks, MOST_TAKERS) + 1)
                ]
        kept = self.inside[node]
        if len(kept) >= CACHED:
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
    """Return when a message that is ready can begin to pass through a card, and reserve the card for `passing`.

    `early`: the card is reserved ahead of time, so another message may still go first: the gap is remembered.
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
    between: StepCosts,
) -> float:
    """Return the cost of a collective inside the nodes, then between one rank of each, then inside the nodes again."""
    every = nbytes * members
    if name in ("Barrier", "Allreduce", "Reduce_scatter", "Scan", "Exscan"):
        down = "Barrier" if name == "Barrier" else "Bcast"
        up = "Barrier" if name == "Barrier" else "Reduce"
        return (
            in_node(up, largest, nbytes)
            + collective_seconds(name, nodes, nbytes, between)
            + in_node(down, largest, nbytes)
        )
    if name == "Bcast":
        return collective_seconds(name, nodes, nbytes, between) + in_node(name, largest, nbytes)
    if name == "Reduce":
        return in_node(name, largest, nbytes) + collective_seconds(name, nodes, nbytes, between)
    if name == "Gather":
        return in_node(name, largest, nbytes) + collective_seconds(name, nodes, nbytes * largest, between)
    if name == "Scatter":
        return collective_seconds(name, nodes, nbytes, between) + in_node(name, largest, nbytes / nodes)
    if name == "Alltoall":  # every byte that leaves the node goes through its single card
        return in_node(name, largest, nbytes / nodes) + collective_seconds(
            name, nodes, nbytes * largest, between
        )
    gathered = collective_seconds("Allgather", nodes, nbytes * largest, between)
    return in_node("Gather", largest, nbytes) + gathered + in_node("Bcast", largest, every)
