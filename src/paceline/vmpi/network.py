"""The costs of messages: latency, bandwidth, overhead at each end, one network card per node, shared memory inside it.

    between nodes     o + L + n/B + o: each end's own time, the latency, and the bytes through the cards
    one card per node in each direction one message at a time, of any rank of the node
    connections       slower than a card: messages to different ranks pass cards and uplinks at the same time, in equal
                      shares, each at most at the rate of a connection; a waiting rank copies all of them as they arrive
    above the limit   announced first (o + L), requested by the receiver (L + o), then as above
    MPI over TCP      a rank whose data are requested before its partner's announcement arrives sends them first, and its
                      own request waits behind them in the same connection (not where connections share a card)
    several cards     rank i of a node uses card i mod c
    behind switches   a message to a node of another switch also passes the uplink of each switch, shared by its nodes:
                      k nodes of rate B, oversubscribed f times, share k B / f in each direction
    inside a node     by the tables of a node, typical or measured; no card is involved
    two sockets       the ranks of a socket share its memory; a message to the other one is copied at the link's rate

`Network` describes a network; `Wires` is a network in use by one run.

Culler et al., LogP (1993); Alexandrov et al., LogGP (1995).
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from itertools import count as count_up
from typing import Any, Literal, NamedTuple

import numpy as np

from paceline.errors import UsageError, split_list, unknown
from paceline.vmpi.compute import Curves

US, GB = 1e-6, 1e9
TCP_SHARE = 1448 / 1538  # of a frame on the wire with its gap, what TCP carries at the usual 1500 bytes
ONE_STREAM = 2.4 * GB
# The longest time of a message that is accepted, in seconds, and the lowest rate, in bytes per second.
MOST_SECONDS, LEAST_RATE = 86_400.0, 1.0


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
    progress: dict[str, Curves] = field(default_factory=dict)
    """Measured progress of a non-blocking Allreduce, by bytes: `hidden`, the part of it that is done by the call that
    starts it, and while its ranks compute; `calls`, the further calls of each rank until it is done."""
    memory: dict[str, Curves] = field(default_factory=dict)
    """Passes over memory, by bytes; `combine` is what a reduction costs. See `paceline.vmpi.compute.MEMORY_PASSES`."""

    @classmethod
    def typical(cls) -> Node:
        """Return the node that is assumed if nothing was measured: a 16-core server, Open MPI, mpi4py."""
        return _typical_node()

    @classmethod
    def of_devices(cls, kind: str, bandwidth: float | None = None) -> Node:
        """Return a node of GPUs that exchange messages over links of this kind (nvlink, pcie4, …).

        `bandwidth`: bytes a second, instead of those that are usual.
        """
        found = DEVICE_LINKS.get(kind)
        if found is None:
            raise unknown("link inside a node", kind, DEVICE_LINKS)
        usual, step, memory = found
        return _device_node(usual if bandwidth is None else bandwidth, step, memory)


# Bytes a second that NCCL's ring reaches between GPUs of one node, seconds of a step of it, and bytes a second of the
# GPU's memory. docs/simulate.md has the sources.
DEVICE_LINKS: dict[str, tuple[float, float, float]] = {
    "nvlink": (120 * GB, 3.4 * US, 900 * GB),  # second generation: V100, 6 links of 25 GB/s in each direction
    "nvlink1": (60 * GB, 3.4 * US, 730 * GB),  # P100, 4 links of 20 GB/s
    "nvlink3": (230 * GB, 3.4 * US, 1_900 * GB),  # A100, 12 links of 25 GB/s
    "nvlink4": (360 * GB, 3.4 * US, 3_300 * GB),  # H100, 18 links of 25 GB/s
    # Third generation, 16 lanes: 15.75 GB/s less packets, through switches.
    "pcie": (10 * GB, 5.7 * US, 480 * GB),
    "pcie4": (20 * GB, 5.7 * US, 900 * GB),
    "pcie5": (40 * GB, 5.7 * US, 1_800 * GB),
}


@cache
def _device_node(rate: float, step: float, memory: float) -> Node:
    def line(start: float, rate: float) -> Curves:
        return Curves.of({1: [[0, start], [1 << 24, start + (1 << 24) / rate]]})

    return Node(
        eager_limit=4096,
        post=0.5 * US,
        poll=0.3 * US,
        link=Link(
            send=Curves.of({1: [[0, 0.25 * step], [1 << 24, 0.25 * step]]}),
            flight=Curves.of({1: [[0, 0.5 * step], [1 << 24, 0.5 * step]]}),
            take=line(0.25 * step, rate),
        ),
        # A sum of two arrays reads both and writes one; a copy reads one and writes one.
        memory={"combine": line(0.0, memory / 3), "recombine": line(0.0, memory / 3), "sum": line(0.0, memory),
                "copy": line(0.0, memory / 2)},
    )  # fmt: skip


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
    stream: float = math.inf
    """Bytes per second from one rank to another, however fast the card is: what one TCP connection carries."""
    eager_limit: int = 65536
    """The longest message, in bytes, that is sent before the receiver asks for it."""
    ranks_per_node: int | None = 1
    """None: all ranks are on one node."""
    cyclic: int | None = None
    """Deal the ranks to this many nodes in turn, instead of `ranks_per_node` to each: rank r is on node r mod cyclic."""
    cards: int = 1
    """The cards of a node: rank i of a node uses card i mod cards."""
    nodes_per_switch: int | None = None
    """Nodes behind one switch; None: all of them, so that no uplink is involved."""
    oversubscription: float = 1.0
    """The rate of all nodes of a switch together, divided by the rate of its uplink."""
    sockets: int = 1
    """Sockets of a node, each with its own memory; the ranks of a node are divided among them in order."""
    socket_bandwidth: float = 20 * GB
    """Bytes per second that are copied from one socket's memory to another's."""
    socket_latency: float = 0.1 * US
    """Seconds that a message to another socket takes longer."""
    inside: str | None = None
    """The links between the GPUs of a node (`DEVICE_LINKS`), if each rank has one; None: ranks share a node's memory."""
    inside_bandwidth: float | None = None
    """Bytes per second of a ring through the GPUs of a node; None: those that are usual for such links."""
    library: Literal["mpi", "nccl"] | None = None
    """Whose algorithms a communicator's collectives use: MPI's (Thakur et al.), or NCCL's rings and trees, which are the
    default if the ranks have GPUs."""
    progress: Literal["calls", "thread"] | None = None
    """When non-blocking collectives advance: while their ranks are in calls, as MPI does, or at any time, by a thread or a
    GPU, as NCCL does; None: as the library does."""
    cores: int | None = None
    """The cores of a node. None: with a single node those of the machine that was measured, else enough for its ranks."""
    jitter: float = 0.0
    """Every latency is multiplied by a log-normal random number with this sigma."""
    node: Node | None = None
    """The costs of messages inside a node; None: those of a typical one."""
    name: str = "network"

    def __post_init__(self) -> None:
        for name in ("latency", "overhead", "jitter", "socket_latency"):
            _check_time(f"{_add_dashes(name)} of {self.name}", getattr(self, name))
        for name in ("bandwidth", "copy_bandwidth", "stream", "socket_bandwidth", "inside_bandwidth"):
            value = getattr(self, name)
            if value is not None:
                _check_rate(f"{_add_dashes(name)} of {self.name}", value)
        if self.eager_limit < 0:
            raise UsageError(f"eager-limit of {self.name} must be at least 0; got {self.eager_limit}")
        for name in WHOLE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{_add_dashes(name)} of {self.name} must be at least 1; got {value}")
        if not 1 <= self.oversubscription < math.inf:
            raise UsageError(
                f"oversubscription of {self.name} must be at least 1; got {self.oversubscription}"
            )
        if self.oversubscription > 1 and self.nodes_per_switch is None:
            raise UsageError(
                f"oversubscription of {self.name} needs nodes-per-switch: with one switch there is no uplink"
            )
        for name, choices in CHOICES.items():
            if getattr(self, name) not in (None, *choices):
                raise unknown(f"{_add_dashes(name)} of {self.name}", str(getattr(self, name)), choices)
        if self.inside is None and self.inside_bandwidth is not None:
            raise UsageError(
                f"inside-bandwidth of {self.name} needs inside, the links of a node's GPUs: "
                f"one of {', '.join(DEVICE_LINKS)}"
            )
        if self.inside is not None and self.node is None:
            object.__setattr__(self, "node", Node.of_devices(self.inside, self.inside_bandwidth))

    @classmethod
    def named(cls, name: str, **changes: Any) -> Network:
        """Return a network by name (loopback, 10gbe, infiniband …: see `presets`), with changes."""
        found = presets().get(name)
        if found is None:
            raise unknown("network", name, presets())
        return replace(found, **changes)

    def wires(self, ranks: int, random: random.Random | None = None) -> Wires:
        """Return the network in use by one run of `ranks` ranks; `random` is the source of jitter."""
        return Wires(self, ranks, random)

    def nodes(self, ranks: int) -> int:
        """Return the number of nodes for this number of ranks."""
        if self.cyclic is not None:
            return min(self.cyclic, ranks)
        return -(-ranks // (self.ranks_per_node or ranks))

    def place(self, ranks: int) -> list[int]:
        """Return the node of each of this number of ranks.

        >>> Network.named("10gbe", ranks_per_node=4).place(6), Network.named("10gbe", cyclic=4).place(6)
        ([0, 0, 0, 0, 1, 1], [0, 1, 2, 3, 0, 1])
        """
        if self.cyclic is not None:
            return [rank % self.cyclic for rank in range(ranks)]
        each = self.ranks_per_node or ranks
        return [rank // each for rank in range(ranks)]

    def ranks_on_node(self, ranks: int) -> int:
        """Return how many of this number of ranks are on the node with the most of them.

        >>> Network.named("10gbe", ranks_per_node=4).ranks_on_node(6), Network.named("10gbe", cyclic=4).ranks_on_node(6)
        (4, 2)
        """
        if self.cyclic is not None:
            return -(-ranks // self.cyclic)
        return min(self.ranks_per_node or ranks, ranks)

    def node_cores(self, measured: int) -> int | None:
        """Return the cores of each node, given those of the machine that was measured; None: enough.

        >>> Network.named("loopback").node_cores(2), Network.named("10gbe", ranks_per_node=16).node_cores(2)
        (2, None)
        """
        if self.cores is not None:
            return self.cores
        return measured if self.ranks_per_node is None and self.cyclic is None else None

    @property
    def uses_nccl(self) -> bool:
        """True if a communicator's collectives use NCCL's algorithms."""
        return self.library == "nccl" or (self.library is None and self.inside is not None)

    @property
    def needs_calls(self) -> bool:
        """True if non-blocking collectives advance only while their ranks are in calls."""
        return self.progress == "calls" or (self.progress is None and not self.uses_nccl)

    @property
    def uplink(self) -> float:
        """Bytes per second from one switch to the others, in each direction; infinite with a single switch."""
        if self.nodes_per_switch is None:
            return math.inf
        return self.nodes_per_switch * self.cards * self.bandwidth / self.oversubscription

    def __str__(self) -> str:
        """Return the network as on the command line, without the tables of a node."""
        preset = presets().get(self.name)
        usual = {each.name: each.default for each in fields(self)}
        words = [
            f"{_add_dashes(name)}={_format_option(name, getattr(self, name))}"
            for name in (*UNITS, *WHOLE, *NUMBERS, *CHOICES)
            if getattr(self, name) != (getattr(preset, name) if preset else usual[name])
            and not (name == "ranks_per_node" and self.cyclic is not None)  # which has no effect then
        ]
        return f"{self.name}:{','.join(words)}" if words else self.name


@cache
def presets() -> dict[str, Network]:
    """Return the networks that have a name; docs/simulate.md has the source of each figure.

    Latencies are chosen so that a small message, with the own time of both ends, takes as long as commonly published
    ping-pongs between two hosts and one switch; bandwidths are those of the line without the headers.
    """
    gbit = 1e9 / 8
    tcp = {
        # NetPIPE over one gigabit switch: 40 to 60 us, most of it interrupt coalescing in the card. The kernel's TCP
        # takes about 5 us at each end.
        "1gbe": {"latency": 40 * US, "bandwidth": TCP_SHARE * gbit, "overhead": 5 * US, "copy_bandwidth": 4e9},
        # 15 to 30 us.
        "10gbe": {
            "latency": 16 * US, "bandwidth": 10 * TCP_SHARE * gbit, "overhead": 2 * US, "copy_bandwidth": 6e9,
        },
        # One stream carries at most about 2.4 GB/s with the usual frames: 60 % of 32 Gbit/s (NVIDIA/nccl issue 209).
        **{
            f"{rate}gbe": {
                "latency": 10 * US, "bandwidth": rate * TCP_SHARE * gbit, "overhead": 2 * US, "copy_bandwidth": 6e9,
                "stream": ONE_STREAM,
            }
            for rate in (25, 40, 50)
        },
        # About 10 us, frames of 9000 bytes, one stream limited to 6 GB/s by copying at the ends, as `btl tcp` is.
        "100gbe": {"latency": 7 * US, "bandwidth": 100 * 0.97 * gbit, "overhead": 1.5 * US, "copy_bandwidth": 6e9},
    }  # fmt: skip
    # The card reads and writes the user's memory: RoCE takes 2 to 3 us, and carries 97 % of the line.
    rdma = {
        f"{rate}gbe-rdma": {"latency": 1 * US, "bandwidth": rate * 0.97 * gbit, "overhead": 0.7 * US}
        for rate in (25, 40, 50, 100, 200, 400)
    }
    # 98 % of the rate is data with packets of 4096 bytes; osu_latency gives 1.0 to 1.3 us from C, less with each
    # generation. mpi4py adds about half a microsecond at each end.
    # QDR's 40 Gbit/s are 32 of data. Omni-Path: Birrittella et al., Intel Omni-Path architecture (2015).
    infiniband = {
        "infiniband-qdr": (1.3 * US, 32), "infiniband-fdr": (1.0 * US, 54.5), "omnipath": (1.0 * US, 100),
        "infiniband-edr": (0.9 * US, 100), "infiniband-hdr": (0.8 * US, 200),
        "infiniband-ndr": (0.8 * US, 400), "infiniband": (0.8 * US, 200),
    }  # fmt: skip
    known: dict[str, dict[str, Any]] = {
        # All ranks on one node; the figures of the network are never used.
        "loopback": {"latency": 0.0, "bandwidth": math.inf, "ranks_per_node": None},
        **tcp,
        **rdma,
        **{
            name: {
                "latency": latency,
                "bandwidth": rate * 0.98 * gbit,
                "overhead": 0.7 * US,
                "eager_limit": 8192,
            }
            for name, (latency, rate) in infiniband.items()
        },
        # All ranks on one node, each with a GPU.
        **{
            kind: {"latency": 0.0, "bandwidth": math.inf, "ranks_per_node": None, "inside": kind}
            for kind in DEVICE_LINKS
        },
    }
    return {name: Network(name=name, **figures) for name, figures in known.items()}


def _check_time(what: str, seconds: float, given: object = None) -> None:
    """Refuse a time that no message takes; `given`: the time as the user wrote it."""
    if not 0 <= seconds <= MOST_SECONDS:
        which = "at least 0" if not seconds > 0 else f"at most {MOST_SECONDS:g}"
        raise UsageError(f"{what} must be {which}; got {seconds if given is None else given}")


def _check_rate(what: str, rate: float, given: object = None) -> None:
    if not rate >= LEAST_RATE:
        which = "above 0" if not rate > 0 else f"at least {LEAST_RATE:g} B/s"
        raise UsageError(f"{what} must be {which}; got {rate if given is None else given}")


def _add_dashes(name: str) -> str:
    return name.replace("_", "-")


def _format_option(name: str, value: Any) -> str:
    """Format the value of an option as people write it: in the unit that makes it short, and reading back exactly."""
    if value is None:
        return "all" if name == "ranks_per_node" else "none"
    if name not in UNITS or value in (0, math.inf):
        return _format_number(value)
    units, example = UNITS[name]
    spellings = []
    for place, unit in enumerate(units):
        number = float(f"{value * units[unit] if units is TIMES else value / units[unit]:.15g}")
        if _convert(number, units, unit) == value:
            written = f"{_format_number(number)}{unit}"
            unusual = number < 1, len(written), number >= 1000, unit != example.lstrip("0123456789"), place
            spellings.append((unusual, written))
    plain = next(unit for unit, factor in units.items() if factor == 1)
    return min(spellings)[1] if spellings else f"{value!r}{plain}"


def _format_number(value: float) -> str:
    return str(value).removesuffix(".0")


def _convert(number: float, units: dict[str, Any], unit: str) -> Any:
    """Return a number of a unit in seconds, bytes per second, or whole bytes."""
    if units is SIZES:
        return int(number * units[unit])
    return number / units[unit] if units is TIMES else number * units[unit]


def parse_network(text: str, load_node: Callable[[str], Node | Network] | None = None) -> Network:
    """Create a network from its name and options.

    `load_node`: reads the file of a node that was measured, for `10gbe:machine=FILE`, or for FILE instead of a name:
    all ranks are then on that node, unless the file also has the network between such nodes.

    >>> parse_network("10gbe:latency=20us,ranks-per-node=4").latency
    2e-05
    >>> str(parse_network("infiniband:bandwidth=400Gbit/s"))
    'infiniband:bandwidth=50GB/s'
    >>> parse_network("10gbe:latency=20")
    Traceback (most recent call last):
    paceline.errors.UsageError: latency of 10gbe must have a unit, such as 20us; got '20'; choose one of ns, us, ms, s
    """
    name, _, rest = text.partition(":")
    words = split_list(rest, text)
    known = presets()
    network = known.get(name)
    if network is None:
        preset, comma, options = text.partition(",")
        if comma and preset in known:
            raise UsageError(f"options of a network follow a colon: {preset}:{options}; got {text!r}")
        if load_node is None:
            raise unknown("network", name, known)
        if not name.endswith(".json") and "/" not in name:
            raise unknown("network", name, [*known, "a machine's .json file"])
        found = load_node(name)
        network = found if isinstance(found, Network) else replace(known["loopback"], node=found)
    changes = _changes(name, words, load_node)
    if network.ranks_per_node is None:
        _check_one_node(name, changes)
        _check_between_nodes(network, name, changes)
    if "cyclic" in changes and "ranks_per_node" in changes:
        raise UsageError(
            f"ranks-per-node of {name} has no effect with cyclic, which deals ranks to nodes in turn"
        )
    for option in ("socket_bandwidth", "socket_latency"):
        if option in changes and changes.get("sockets", network.sockets) == 1:
            raise UsageError(f"{_add_dashes(option)} of {name} needs sockets, such as sockets=2")
    if name in DEVICE_LINKS and changes.keys() & {"inside", "inside_bandwidth"}:
        changes.setdefault("node", None)
    network = replace(network, **changes)
    each = None if network.cyclic is not None else network.ranks_per_node
    for option in ("cards", "sockets"):
        if option in changes and each is not None and changes[option] > each:
            raise UsageError(
                f"{option} of {name} must be at most ranks-per-node, because a rank uses one of them; got "
                f"{changes[option]} and {each}"
            )
    return network


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
    "stream": (RATES, "2GB/s"),
    "eager_limit": (SIZES, "64KiB"),
    "socket_bandwidth": (RATES, "20GB/s"),
    "inside_bandwidth": (RATES, "4GB/s"),
    "socket_latency": (TIMES, "100ns"),
}
WHOLE = ("ranks_per_node", "cyclic", "cards", "nodes_per_switch", "sockets", "cores")
NUMBERS = ("jitter", "oversubscription")
DIGITS = 20  # a whole number has fewer
CHOICES: dict[str, tuple[str, ...]] = {
    "inside": tuple(DEVICE_LINKS),
    "library": ("mpi", "nccl"),
    "progress": ("calls", "thread"),
}


def _changes(
    name: str, words: list[str], load_node: Callable[[str], Node | Network] | None
) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    choices = [*UNITS, *WHOLE, *NUMBERS, *CHOICES, *(["machine"] if load_node else [])]
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"{name} takes option=value; got {word!r}")
        option = key.replace("-", "_")
        if option not in choices:
            raise unknown(f"option of {name}", key, map(_add_dashes, choices))
        if option in changes or (option == "machine" and "node" in changes):
            raise UsageError(f"{name}: {key} is given twice")
        if option == "machine" and load_node is not None:
            found = load_node(value)
            changes["node"] = found.node if isinstance(found, Network) else found
        else:
            changes[option] = _parse_value(name, option, value)
    return changes


def _check_one_node(name: str, changes: dict[str, Any]) -> None:
    """Refuse options of a network between nodes if all ranks are on one."""
    if changes.get("ranks_per_node") is None and changes.get("cyclic") is None:
        for option in ("cards", "nodes_per_switch", "oversubscription"):
            if option in changes:
                raise UsageError(
                    f"{_add_dashes(option)} of {name} needs several nodes, and all ranks are on one node"
                )
        for option in ("bandwidth", "latency", "overhead", "copy_bandwidth", "stream", "eager_limit"):
            if option in changes:
                gpus = option == "bandwidth" and name in DEVICE_LINKS
                instead = "; the links of its GPUs have inside-bandwidth" if gpus else ""
                raise UsageError(
                    f"{_add_dashes(option)} of {name} is that between nodes, and all ranks are on one node{instead}"
                )


def _check_between_nodes(network: Network, name: str, changes: dict[str, Any]) -> None:
    """Refuse several nodes if nothing says what connects them: their messages would take no time."""
    for option in ("ranks_per_node", "cyclic"):
        if changes.get(option) is not None and network.bandwidth == math.inf and "bandwidth" not in changes:
            inside = (
                f",inside={name}"
                if name in DEVICE_LINKS
                else f",machine={name}"
                if name not in presets()
                else ""
            )
            raise UsageError(
                f"{_add_dashes(option)} of {name} needs a network between the nodes, such as "
                f"10gbe:{_add_dashes(option)}={changes[option]}{inside}, or its bandwidth and latency"
            )


def _parse_value(name: str, field: str, text: str) -> Any:
    what = f"{_add_dashes(field)} of {name}"
    if field == "ranks_per_node":
        if text == "all":
            return None
        if not (text.isdecimal() and len(text) < DIGITS):
            raise UsageError(f"{what} must be a whole number, or all; got {_shorten(text)!r}")
        return int(text)
    if field in WHOLE:
        if not (text.isdecimal() and len(text) < DIGITS):
            raise UsageError(f"{what} must be a whole number; got {_shorten(text)!r}")
        return int(text)
    if field in NUMBERS:
        return _parse_number(what, text)
    if field in CHOICES:
        if text not in CHOICES[field]:
            raise unknown(what, text, CHOICES[field])
        return text
    units, example = UNITS[field]
    unit = next((u for u in sorted(units, key=len, reverse=True) if text.endswith(u)), "")
    try:
        number = _parse_number(what, text.removesuffix(unit))
    except UsageError:
        raise UsageError(
            f"{what} must be a number with a unit, such as {example}; got {_shorten(text)!r}; "
            f"choose one of {', '.join(units)}"
        ) from None
    if units is SIZES:
        if not 0 <= number < math.inf:
            raise UsageError(f"{what} must be {'at least 0' if number < 0 else 'finite'}; got {text}")
        digits = text.removesuffix(unit)  # a float has no room for a whole number of more than 2^53 bytes
        return _convert(int(digits) if digits.isdecimal() else number, units, unit or "B")
    if not unit and number not in (0.0, math.inf):
        raise UsageError(
            f"{what} must have a unit, such as {example}; got {text!r}; choose one of {', '.join(units)}"
        )
    value = _convert(number, units, unit) if unit else number
    (_check_time if units is TIMES else _check_rate)(what, value, text)
    return value


def _shorten(text: str) -> str:
    return text if len(text) <= 2 * DIGITS else f"{text[:DIGITS]}…"


def _parse_number(what: str, text: str) -> float:
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
# Scan, Exscan                       recursive doubling
# Allgather, Gather, Scatter         recursive doubling or a ring; binomial trees
# Alltoall                           Bruck's, or pairwise
#
# A collective that others can replace (`_replace_by`) takes no longer than these: a Reduce no longer than an Allreduce.
#
# Calls with uneven parts (Gatherv …) cost as much as those with equal parts that move the same bytes.
#
# Between switches a step takes as long as its messages take to pass the uplinks. In a step of a ring, and in a round of a
# binomial tree, at most one message leaves each switch: in a tree those that send are as far apart as twice the distance
# that they send to. In a step of Alltoall every rank sends to the rank d after it, and of the k behind a switch
# min(d, p - d, k, p - k) send out of it. Rabenseifner's halves the array first between neighbours, so that what passes the
# uplinks is short; in all other exchanges all of a switch send out of it.
#
# Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH (2005).


class StepCosts(NamedTuple):
    """Seconds of one exchange, of combining two arrays, and of steps that use uplinks less, by bytes."""

    exchange: Callable[[float], float]
    combine: Callable[[float], float]
    to_neighbour: Callable[[float], float] | None = None
    """A step of a ring or of a tree: one message passes each uplink; None: as long as any other exchange."""
    shift: Callable[[float, int], float] | None = None
    """A step in which this many messages pass each uplink; None: as long as any other exchange."""
    behind: int = 0
    """The most ranks behind one switch."""

    def count_crossing(self, distance: int, ranks: int) -> int:
        """Return how many ranks of a switch send out of it if each sends to the one at a distance after it.

        >>> steps = StepCosts(lambda n: n, lambda n: n, behind=4)
        >>> [steps.count_crossing(distance, 8) for distance in range(1, 8)]
        [1, 2, 3, 4, 3, 2, 1]
        """
        return min(distance, ranks - distance, self.behind, ranks - self.behind)

    def count_pairs_apart(self, distance: int, ranks: int) -> int:
        """Return how many ranks of a switch send out of it if those whose numbers differ by a power of two exchange.

        >>> steps = StepCosts(lambda n: n, lambda n: n, behind=4)
        >>> [steps.count_pairs_apart(distance, 16) for distance in (1, 2, 4, 8)]
        [0, 0, 4, 4]
        """
        return _count_pairs_apart(distance, ranks, self.behind)


@cache
def _count_pairs_apart(distance: int, ranks: int, behind: int) -> int:
    numbers = np.arange(ranks)
    switch = numbers // behind
    return int(np.bincount(switch, switch != (numbers ^ distance) // behind).max())


@cache
def _count_steps_alike(ranks: int, behind: int) -> list[tuple[int, int]]:
    """Return, for the distances of an Alltoall, how many messages cross an uplink, and in how many steps."""
    distances = np.arange(1, ranks)
    crossing = np.minimum(np.minimum(distances, ranks - distances), min(behind, ranks - behind))
    return [(each, times) for each, times in enumerate(np.bincount(crossing).tolist()) if times]


COSTS_LIKE = {
    "Gatherv": "Gather",
    "Scatterv": "Scatter",
    "Allgatherv": "Allgather",
    "Alltoallv": "Alltoall",
    "Alltoallw": "Alltoall",
    "Reduce_scatter_block": "Reduce_scatter",
    "Exscan": "Scan",
}


def equal_part(lengths: Sequence[int], nodes: Sequence[int], root: int | None = None) -> int:
    """Return the bytes of each rank's part if parts of these lengths were equal, with as many bytes on the busiest wire.

    nodes: the node of each rank. root: the rank that gathers or scatters the parts, whose own part does not move. Without
    one, everybody receives the parts of all others.

    >>> equal_part([1000, 10, 10], [0, 1, 2], root=0), equal_part([0, 10, 10], [0, 1, 2], root=0)
    (10, 10)
    >>> equal_part([0, 0, 0, 10], [0, 0, 1, 1], root=0), equal_part([0, 0, 10], [0, 1, 2])
    (5, 5)
    """
    whole, found = sum(lengths), 0
    on_node: dict[int, list[int]] = {}
    for node, length in zip(nodes, lengths, strict=True):
        on_node.setdefault(node, []).append(length)
    kept = (
        [[lengths[root]], on_node[nodes[root]]] if root is not None else [[min(lengths)], *on_node.values()]
    )
    for stay in kept:
        if len(stay) < len(lengths):
            found = max(found, -(-(whole - sum(stay)) // (len(lengths) - len(stay))))
    return found


def equal_parts(sent: Sequence[Sequence[int]], nodes: Sequence[int]) -> int:
    """Return the bytes of a rank's whole buffer in an Alltoall of equal parts that takes as long as this one.

    sent: bytes by sender and receiver. All wait for the node that sends most to other nodes, or receives most from them;
    on a single node, for the rank that does.

    >>> equal_parts([[0, 10], [10, 0]], [0, 1]), equal_parts([[0, 0, 0], [6, 0, 0], [6, 0, 0]], [0, 1, 2])
    (20, 18)
    """
    if len(sent) < 2:
        return 0
    several = len(set(nodes)) > 1
    places, where = np.unique(nodes if several else range(len(nodes)), return_inverse=True)
    table = np.zeros((len(places), len(places)), np.int64)
    np.add.at(table, (where[:, None], where[None, :]), np.asarray(sent, np.int64))
    np.fill_diagonal(table, 0)
    most, largest = int(max(table.sum(0).max(), table.sum(1).max())), int(np.bincount(where).max())
    return -(-most * len(places) // ((len(places) - 1) * largest))


def collective_seconds(name: str, p: int, n: float, steps: StepCosts) -> float:
    """Return the seconds that p ranks take for the collective called `name`.

    n: the bytes that each rank contributes; for Scatter and Alltoall a rank's whole buffer, p blocks.

    >>> gigabit = StepCosts(lambda n: 50e-6 + 8e-9 * n, lambda n: 0.2e-9 * n)
    >>> round(collective_seconds("Barrier", 8, 0, gigabit), 6), round(collective_seconds("Allreduce", 8, 8, gigabit), 6)
    (0.00015, 0.00015)
    """
    if p <= 1:
        return 0.0
    if name.startswith("Neighbor"):  # n: the bytes that a rank sends to all its neighbours
        return steps.exchange(n)
    seconds = TEXTBOOK.get(COSTS_LIKE.get(name, name), _Textbook.allgather)
    return seconds(_Textbook(p, n, math.ceil(math.log2(p)), steps, steps.to_neighbour or steps.exchange))


class _Textbook(NamedTuple):
    """The costs of collectives of p ranks by textbook algorithms, of several the cheapest."""

    p: int
    n: float
    rounds: int
    steps: StepCosts
    to_neighbour: Callable[[float], float]

    def barrier(self) -> float:
        return self.rounds * self.steps.exchange(0)

    def bcast(self) -> float:
        p, n, to_neighbour = self.p, self.n, self.to_neighbour
        scattered = self._hand_down(to_neighbour)
        gathered = min(self._hand_down(self.steps.exchange), (p - 1) * to_neighbour(n / p))
        return min(self.rounds * to_neighbour(n), scattered + gathered)

    def reduce_scatter(self) -> float:
        halved = self._fold_rest() + self._halve() + self._combine_halves()
        return min(halved, self._reduce_in_ring())

    def reduce(self) -> float:
        n, to_neighbour, halve = self.n, self.to_neighbour, self._halve_nearby
        halved = self._fold_rest() + halve() + self._combine_halves() + halve()
        ring = self._reduce_in_ring() + self._hand_down(to_neighbour)
        return min(self.rounds * (to_neighbour(n) + self.steps.combine(n)), halved, ring)

    def scan(self) -> float:
        return self.rounds * (self.steps.exchange(self.n) + self.steps.combine(self.n))

    def allreduce(self) -> float:
        p, n = self.p, self.n
        rest = self._fold_rest()
        unfold = rest and self.steps.exchange(n)
        doubling = self.scan() + unfold
        halved = rest + 2 * self._halve_nearby() + self._combine_halves() + unfold
        ring = (p - 1) * (2 * self.to_neighbour(n / p) + self.steps.combine(n / p))
        return min(doubling, halved, ring)

    def gather(self) -> float:
        return self._double_parts(self.to_neighbour)

    def scatter(self) -> float:
        return self._hand_down(self.to_neighbour)

    def alltoall(self) -> float:
        """Return the cost of Bruck's rounds, or of exchanges with one rank after the other."""
        p, n, rounds, exchange, shift = self.p, self.n, self.rounds, self.steps.exchange, self.steps.shift
        if shift is None:
            return min(rounds * exchange(n / 2), (p - 1) * exchange(n / p))
        # Distances d and p - d take as long as each other, and so do all beyond the nodes of a switch.
        alike = _count_steps_alike(p, self.steps.behind)
        return min(
            sum(shift(n / 2, self.steps.count_crossing(2**k, p)) for k in range(rounds)),
            sum(times * shift(n / p, crossing) for crossing, times in alike),
        )

    def allgather(self) -> float:
        ring = (self.p - 1) * self.to_neighbour(self.n)
        return min(self._double_parts(self.steps.exchange), ring)

    # ---- parts of algorithms

    def _fold_rest(self) -> float:
        """Return the cost of adding the arrays of the ranks beyond a power of two to those of others."""
        uneven = self.p & (self.p - 1) != 0
        return self.steps.exchange(self.n) + self.steps.combine(self.n) if uneven else 0.0

    def _halve(self) -> float:
        """Return the cost of n bytes halved in every round: a scatter or, backwards, a gather."""
        return sum(self.steps.exchange(self.n / 2**k) for k in range(1, self.rounds + 1))

    def _halve_nearby(self) -> float:
        """Return the cost of n bytes halved in every round, first between neighbours; or, backwards, of a gather."""
        shift, n, rounds = self.steps.shift, self.n, self.rounds
        if shift is None:
            return self._halve()
        return sum(
            shift(n / 2 ** (k + 1), self.steps.count_pairs_apart(2**k, 2**rounds)) for k in range(rounds)
        )

    def _combine_halves(self) -> float:
        return sum(self.steps.combine(self.n / 2**k) for k in range(1, self.rounds + 1))

    def _reduce_in_ring(self) -> float:
        part = self.n / self.p
        return (self.p - 1) * (self.to_neighbour(part) + self.steps.combine(part))

    def _hand_down(self, step: Callable[[float], float]) -> float:
        """Return the cost of n bytes of which each rank gets its part, down a binomial tree; or, backwards, of a gather."""
        p, n = self.p, self.n
        return sum(step(n * min(2**k, p - 2**k) / p) for k in reversed(range(self.rounds)))

    def _double_parts(self, step: Callable[[float], float]) -> float:
        """Return the cost of parts of n bytes that are sent on, together with all that came before."""
        p, n = self.p, self.n
        return sum(step(n * min(2**k, p - 2**k)) for k in range(self.rounds))


# All others are calls in which every rank learns a little about every other (Split, Dup, windows …), as in an Allgather.
TEXTBOOK = {
    "Barrier": _Textbook.barrier,
    "Bcast": _Textbook.bcast,
    "Reduce": _Textbook.reduce,
    "Allreduce": _Textbook.allreduce,
    "Reduce_scatter": _Textbook.reduce_scatter,
    "Scan": _Textbook.scan,
    "Gather": _Textbook.gather,
    "Scatter": _Textbook.scatter,
    "Alltoall": _Textbook.alltoall,
}


def _replace_by(
    name: str, p: int, n: float, seconds: Callable[[str, float], float], measured: Container[str] = ()
) -> float:
    """Return the seconds of a collective of p ranks, or of others that have the same result if they take less.

    seconds: the cost of a collective by itself, by its name and bytes. measured: those whose cost was measured, and is
    kept. The rules are those that the model would otherwise break, of Träff, Gropp, Thakur, Self-consistent MPI
    performance guidelines (2010).

    >>> alone = {"Reduce": 9, "Allreduce": 6, "Reduce_scatter": 2, "Allgather": 3, "Gather": 4, "Alltoall": 8, "Bcast": 1}
    >>> [_replace_by(name, 4, 100, lambda name, n: float(alone[name])) for name in ("Gather", "Allreduce", "Reduce")]
    [3.0, 5.0, 5.0]
    """

    def allgather(part: float) -> float:
        return _least(seconds("Allgather", part), seconds("Alltoall", part * p))

    def allreduce() -> float:
        if "Allreduce" in measured:
            return seconds("Allreduce", n)
        return _least(
            seconds("Allreduce", n),
            seconds("Reduce_scatter", n) + allgather(n / p),
            seconds("Reduce", n) + seconds("Bcast", n),
        )

    found = seconds(name, n)
    if name == "Allgather":
        return allgather(n)
    if name == "Barrier" and name not in measured:
        return _least(found, allgather(0))
    if name == "Gather":
        return _least(found, allgather(n))
    if name == "Allreduce":
        return allreduce()
    if name == "Reduce_scatter":
        return _least(found, allreduce())
    if name == "Reduce":
        gathered = _least(seconds("Gather", n / p), allgather(n / p))
        return _least(found, allreduce(), seconds("Reduce_scatter", n) + gathered)
    if name == "Bcast":
        return _least(found, seconds("Scatter", n) + allgather(n / p), allreduce())
    return found


def _least(found: float, *others: float) -> float:
    """Return the least time, and the first one if another is less only by rounding."""
    least = min(others)
    return least if least < found * (1 - 1e-9) else found


# NCCL's collectives, by its own model of them: rings through all GPUs, each node entered and left once, or trees of nodes
# whose GPUs form a chain. A step takes as long as its slowest link; large arrays are cut into pieces that follow each
# other, so that the bytes take as long as they take to pass the slowest link.
NCCL_START = 8.4 * US  # to start a collective's kernel, and to end it
# A step between nodes takes longer than its message, by the GPU and the proxy thread of both ends.
NCCL_HOP = 10 * US
TREE_SHARE = 0.9  # of the links' rate, what a tree reaches


class Hop(NamedTuple):
    """A link that a ring or tree uses: seconds of a step of no bytes, and for each byte."""

    step: float
    per_byte: float


def nccl_seconds(
    name: str, p: int, nodes: int, n: float, *, inside: Hop, between: Hop, crossing: float = 1.0, start: float = NCCL_START
) -> float | None:  # fmt: skip
    """Return the seconds that p GPUs on this many nodes take for a collective of NCCL; None if NCCL has none like it.

    n: the bytes that each GPU contributes. `crossing`: how much slower links are when all of a switch are used at once.

    >>> wire, lane = Hop(10e-6, 1e-10), Hop(4e-6, 1e-11)
    >>> round(nccl_seconds("Allreduce", 8, 1, 1e9, inside=lane, between=wire), 4)     # 2 7/8 n
    0.0176
    >>> round(nccl_seconds("Allreduce", 8, 2, 1e9, inside=lane, between=wire), 4)
    0.1751
    """
    if p <= 1:
        return 0.0
    slowest = max(inside.per_byte if p > nodes else 0.0, between.per_byte if nodes > 1 else 0.0)
    rounds = {"Allreduce": 2, "Reduce_scatter": 1, "Allgather": 1, "Bcast": 1, "Reduce": 1}.get(name)
    if rounds is None:
        return None
    steps = rounds * (p - 1)
    entered = min(rounds * nodes, steps) if nodes > 1 else 0
    waits = start + (steps - entered) * inside.step + entered * between.step
    if name in ("Bcast", "Reduce"):
        return waits + n * slowest
    if name == "Allgather":
        return waits + (p - 1) * n * slowest
    ring = waits + steps * n / p * slowest
    if name == "Reduce_scatter" or nodes == 1:
        return ring
    across = between._replace(per_byte=between.per_byte * crossing)
    slowest = max(slowest, across.per_byte)
    levels = math.ceil(math.log2(nodes))
    hops = start + 2 * ((-(-p // nodes) - 1) * inside.step + levels * across.step)
    return min(ring, hops + 2 * n * slowest / TREE_SHARE)


CACHED = 1 << 16  # sizes whose costs are cached
PIECE = 1 << 16  # bytes that are copied at a time
SHARING = 1 << 14  # bytes from which a copy takes longer when other ranks copy at the same time
WINDOW = 3  # a copy counts as concurrent for this many times its length after its end
MOST_TAKERS = 256


class _Place(NamedTuple):
    """Where the ranks of a collective are, as far as its cost depends on it."""

    ranks: int
    nodes: int
    largest: int
    """The ranks on the node with the most of them."""
    lanes: int
    """The cards of a node that they use."""
    behind: int
    """The nodes behind the switch with the most of them; 0 if all are behind one switch, so that none uses an uplink."""


class _Group(NamedTuple):
    """The ranks of a collective, where they are, and the cards and the uplinks that they use."""

    members: Sequence[int]
    place: _Place
    cards: Sequence[int]
    switches: Sequence[int]


class _Price(NamedTuple):
    """The seconds of a collective, and how long its members and cards can do nothing else."""

    seconds: float
    working: float


Gaps = dict[int, list[tuple[float, float]]]
"""Of cards or uplinks by number: the times before the last reservation in which they are free."""


class Wires:
    """A network in use by one run: when messages are sent, arrive and are taken, and when each card is free."""

    def __init__(self, network: Network, ranks: int, random: random.Random | None = None) -> None:
        node = network.node or Node.typical()
        self.node = network.place(ranks)
        self.post, self.poll = node.post, node.poll
        self._network, self._node = network, node
        self.needs_calls = network.needs_calls
        self.latency, self.overhead = network.latency, network.overhead
        self.per_byte, self.per_copied = 1 / network.bandwidth, 1 / network.copy_bandwidth
        self.streamed = network.stream <= network.bandwidth
        """True if the connections of ranks share a card, because each carries no more than that."""
        self.flow: Flow | None = None
        """If so, the last message between nodes; None after an announcement."""
        self.revised = False
        """True if arrival times assume that nothing slows a message down: `flow` is asked again when it should be there."""
        self._flows = count_up()
        self._shares: dict[tuple[str, int], _Shared] = {}  # cards and uplinks, by kind and number
        self.copiers: dict[int, Copier] = {}
        """If so, and if ranks copy: what each receiver has copied of the messages on their way to it."""
        self.in_order = network.copy_bandwidth < math.inf and not network.uses_nccl and not self.streamed
        """True if requests wait for data in the TCP connection of two ranks."""
        self.passing: dict[tuple[int, int], tuple[float, float]] = {}
        """If so, for the data of announced messages from one rank to another: when they were asked for, and when the
        last byte leaves."""
        self._announced: dict[tuple[int, int], float] = {}  # when the last announcement arrives
        self.limit, self.limit_inside = network.eager_limit, node.eager_limit
        count = network.nodes(ranks) if ranks else 0
        self._on_node = [0] * count
        place = []  # of each rank in its node
        for node_number in self.node:
            place.append(self._on_node[node_number])
            self._on_node[node_number] += 1
        sockets = network.sockets
        self._socket = [
            i * sockets // self._on_node[node_number] for i, node_number in zip(place, self.node, strict=True)
        ]
        self.memory = [node * sockets + socket for node, socket in zip(self.node, self._socket, strict=True)]
        """For each rank, which memory it shares with others: that of its socket."""
        self._sharing = [max(1, -(-ranks // sockets)) for ranks in self._on_node]
        self._per_crossed = 1 / network.socket_bandwidth
        cards = network.cards
        self._card = [
            node_number * cards + i % cards for i, node_number in zip(place, self.node, strict=True)
        ]
        # With all nodes behind one switch nothing passes an uplink.
        switch = network.nodes_per_switch or max(count, 1)
        self._switch = [node_number // switch for node_number in self.node]
        self._per_byte_up = 1 / network.uplink
        switches = max(self._switch, default=-1) + 1
        self._up, self._down = [0.0] * switches, [0.0] * switches
        self._gaps_up: Gaps = {}
        self._gaps_down: Gaps = {}
        by_number: dict[int, dict[int, Any]] = {number: {} for number in self._on_node}
        self.inside = [by_number[number] for number in self._on_node]
        """For each node, by bytes: cached results of `inside_costs`."""
        # Each card is free from these times on, and in the gaps before them, which few cards have.
        self._out, self._in = [0.0] * (count * cards), [0.0] * (count * cards)
        self._gaps_out: Gaps = {}
        self._gaps_in: Gaps = {}
        self._slows_down = len(node.link.take.tables) > 1  # a copy of a long message, those of others
        # By the memory that is copied to: when the last copy of a long message by each rank ends, sorted and by rank.
        self._copying: dict[int, tuple[list[float], dict[int, float]]] = {}
        self._sigma = network.jitter if random is not None else 0.0
        self.uniform = not self._sigma and sockets == 1
        """True if a message inside a node costs the same between any two of its ranks, at any time."""
        self._draw: Any = None if random is None else random.lognormvariate
        # Until when each rank works on collectives that came before.
        self._engaged = [0.0] * ranks
        # Until when the one-sided calls so far use the links and processors of ranks.
        self._accessed: dict[tuple[str, int], float] = {}
        # Until when collectives hold each card and each uplink.
        self._held = [0.0] * (count * cards)
        self._held_up = [0.0] * switches
        self._groups: dict[int, _Group] = {}
        self._collectives: dict[tuple[str, _Place, int], _Price] = {}

    @property
    def is_one_node(self) -> bool:
        """True if all ranks are on one node, where every message costs the same between any two of them."""
        return self.uniform and len(self._on_node) == 1

    @property
    def has_own_cards(self) -> bool:
        """True if each rank has a node and a card for itself, and nothing else delays a message."""
        alone = len(self._on_node) == len(self._card) and self._card == list(range(len(self._card)))
        return alone and not self._sigma and not self.streamed and len(self._up) == 1

    @property
    def directions(self) -> tuple[tuple[list[float], Gaps], tuple[list[float], Gaps]]:
        """When each card is free to send and to receive, and the gaps before."""
        return (self._out, self._gaps_out), (self._in, self._gaps_in)

    def contended(self, source: int, dest: int) -> bool:
        """Return True if the message goes through a card, which other ranks may need at the same time."""
        return self.node[source] != self.node[dest]

    def slows_down(self, source: int, dest: int, nbytes: int) -> bool:
        """Return True if the copy of an announced message takes longer while other ranks of the node copy."""
        return self._slows_down and nbytes >= SHARING and self.node[source] == self.node[dest]

    def eager(self, source: int, dest: int, nbytes: int) -> bool:
        """Return True if the message is sent before the receiver asks for it."""
        inside = self.node[source] == self.node[dest]
        return nbytes <= (self.limit_inside if inside else self.limit)

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
            if self._socket[source] != self._socket[dest]:
                flight, taking = self._cross_sockets(nbytes if eager else 0, flight, taking)
            return free, free + flight, taking
        latency = self.latency * self._draw(0.0, self._sigma) if self._sigma else self.latency
        if not eager:
            self.flow = None
            free = now + self.overhead
            if self.in_order:
                self._announced[source, dest] = free + latency
            return free, free + latency, 0.0
        copying, first, passing = self._parts(nbytes)
        ready = now + self.overhead + first
        if self.streamed:
            leaves, passing = self._pass_streamed(source, dest, ready, nbytes, latency, now)
            there = leaves + latency
        else:
            # Through both cards at once, if they are free: the first byte arrives after the latency.
            leaves = _reserve(self._out, self._gaps_out, self._card[source], ready, passing, now, False)
            late = leaves > ready or self._sigma > 0
            if self._switch[source] != self._switch[dest]:
                leaves = self._pass_uplinks(source, dest, leaves, passing, nbytes, now)
                late = True
            there = _reserve(self._in, self._gaps_in, self._card[dest], leaves + latency, passing, now, late)
        comes = there + first + (passing - copying if passing > copying else 0.0)
        return now + self.overhead + copying, comes, self.overhead + copying

    def fetch(
        self, source: int, dest: int, nbytes: int, now: float, taker: int | None = None
    ) -> tuple[float, float, float]:
        """Return when the data of an announced message arrive, the receiver's own time, and when the sender is released.

        `taker`: the rank that copies a message inside a node; None: the receiver.
        """
        a, b = self.node[source], self.node[dest]
        if a == b:
            costs = self.inside[a].get(nbytes)
            if costs is None:
                costs = self.inside_costs(a, nbytes)
            _, flight, taking = costs[1]
            if costs[2] is not None:
                taking = self._shared_taking(
                    dest if taker is None else taker, self.memory[dest], costs[2], now
                )
            if self._socket[source] != self._socket[dest]:
                flight, taking = self._cross_sockets(nbytes, flight, taking)
            return now, taking, now + taking + flight
        latency = self.latency * self._draw(0.0, self._sigma) if self._sigma else self.latency
        copying, first, passing = self._parts(nbytes)
        asks = now + self.overhead
        before, end = self.passing.get((dest, source), (math.inf, 0.0))
        if before <= self._announced.get((source, dest), 0.0):
            asks = max(asks, end)
        asked = asks + latency
        ready = asked + self.overhead + first  # the request has reached the sender
        if self.streamed:
            leaves, passing = self._pass_streamed(source, dest, ready, nbytes, latency, now)
            there = leaves + latency
        else:
            leaves = _reserve(self._out, self._gaps_out, self._card[source], ready, passing, now, True)
            if self._switch[source] != self._switch[dest]:
                leaves = self._pass_uplinks(source, dest, leaves, passing, nbytes, now)
            there = _reserve(self._in, self._gaps_in, self._card[dest], leaves + latency, passing, now, True)
        comes = there + first + (passing - copying if passing > copying else 0.0)
        if self.in_order:
            before, end = self.passing.get((source, dest), (math.inf, 0.0))
            self.passing[source, dest] = before if end >= asked else asked, leaves + passing
        return comes, self.overhead + copying, leaves + passing

    def copy_access(
        self, source: int, dest: int, origin: int, nbytes: int, *, arrives: float, taking: float, eager: bool
    ) -> float:
        """Return when the bytes of a one-sided call, which have just been sent, are copied; reserve what copies them.

        Between GPUs of a node that is the link out of one and the link into the other; in the memory of a node, the
        origin's processor; between nodes, the processor at the end that they go to, unless the card writes memory.
        """
        places: tuple[tuple[str, int], ...]
        if not nbytes:
            return arrives + taking
        if self.node[source] != self.node[dest]:
            if not self.per_copied or (self.streamed and not self.revised):
                return arrives + taking
            if self.streamed and self.flow is not None:  # copied as it arrives, together with others
                begins = max(self._accessed.get(("into", dest), 0.0), self.flow.start + self.flow.later)
                self._accessed["into", dest] = begins + self.flow.copying
                return max(arrives + taking, begins + self.flow.copying)
            places = (("into", dest),)
        elif self._network.inside is not None:
            places = ("link out", source), ("link in", dest)
        elif eager:  # the origin has copied it in the call
            return arrives + taking
        else:
            places = (("inside", origin),)
        begins = max(arrives, *(self._accessed.get(place, 0.0) for place in places))
        for place in places:
            self._accessed[place] = begins + taking
        return begins + taking

    def _pass_streamed(
        self, source: int, dest: int, ready: float, nbytes: int, latency: float, now: float
    ) -> tuple[float, float]:
        """Let a message pass on a connection that carries less than a card; set `flow`.

        Return when its first byte leaves, and the seconds until the last one does as far as is known now.
        """
        out, into, up, down = self._card[source], self._card[dest], self._switch[source], self._switch[dest]
        crosses = up != down
        start = max(ready, self._held[out], self._held[into] - latency)
        if crosses:
            start = max(start, self._held_up[up], self._held_up[down])
        self.flow = flow = Flow(next(self._flows), (source, dest), nbytes, start)
        copying, first, _ = self._parts(nbytes)
        flow.finish = partial(_arrival, start, latency, first, copying)
        flow.later, flow.copying = latency + first, copying
        if copying and self.revised:
            flow.copier = self.copiers.get(dest)
            if flow.copier is None:
                flow.copier = self.copiers[dest] = Copier()
        flow.pass_through(self._share_of("out", out), 0.0, now)
        flow.pass_through(self._share_of("in", into), latency, now)
        if crosses:
            flow.pass_through(self._share_of("up", up), 0.0, now)
            flow.pass_through(self._share_of("down", down), 0.0, now)
        # Collectives wait until a card would have let all bytes pass one after the other.
        passing, crossing = nbytes * self.per_byte, nbytes * self._per_byte_up
        for free, place in ((self._out, out), (self._in, into)):
            free[place] = max(free[place], ready) + passing
        for free, place in ((self._up, up), (self._down, down)) if crosses else ():
            free[place] = max(free[place], ready) + crossing
        return start, nbytes / self._network.stream if self.revised else flow.leaves() - start

    def _share_of(self, kind: str, number: int) -> _Shared:
        found = self._shares.get((kind, number))
        if found is None:
            network = self._network
            full = network.bandwidth if kind in ("out", "in") else network.uplink
            found = self._shares[kind, number] = _Shared(full, network.stream)
        return found

    def _pass_uplinks(
        self, source: int, dest: int, leaves: float, passing: float, nbytes: int, now: float
    ) -> float:
        """Reserve the uplinks of both switches for a message; return when it would have to leave to arrive as late."""
        up = nbytes * self._per_byte_up
        out = _reserve(self._up, self._gaps_up, self._switch[source], leaves, up, now, True)
        into = _reserve(self._down, self._gaps_down, self._switch[dest], out, up, now, True)
        return max(leaves, into + up - passing)

    def _cross_sockets(self, nbytes: int, flight: float, taking: float) -> tuple[float, float]:
        """Return flight and the receiver's own time of a message to another socket of the node."""
        return flight + self._network.socket_latency, max(taking, nbytes * self._per_crossed)

    def _shared_taking(self, taker: int, memory: int, by_takers: list[float], now: float) -> float:
        """Return the seconds that a rank takes to copy a long message while others that share the memory do the same.

        Those that have just copied count as well: ranks that exchange copy at the same time, but ask one by one.
        """
        ends, latest = self._copying.setdefault(memory, ([], {}))
        since = now - WINDOW * by_takers[1]
        before = latest.get(taker)
        if before is not None:
            del ends[bisect_left(ends, before)]
        takers = len(ends) - bisect_left(ends, since) + 1
        taking = by_takers[takers] if takers < len(by_takers) else by_takers[-1]
        latest[taker] = now + taking
        insort(ends, now + taking)
        return taking

    def _parts(self, nbytes: int) -> tuple[float, float, float]:
        """Return the seconds that an end copies, that it copies before the first bytes can leave, and that a card is held.

        Copying and sending or receiving overlap, piece by piece: only the first piece is waited for.
        """
        pieces = nbytes if nbytes < PIECE else PIECE
        return nbytes * self.per_copied, pieces * self.per_copied, nbytes * self.per_byte

    def collective(self, name: str, members: Sequence[int], nbytes: int) -> float:
        """Return the seconds of MPI's own collective from the last member's call on, with `nbytes` from each member.

        Nothing else is in flight: see `join` for the time among other traffic.
        """
        return self._price(name, members, nbytes).seconds

    def join(self, name: str, members: Sequence[int], nbytes: int, start: float) -> float:
        """Return when a collective ends whose last member called at `start`, and reserve what it needs until then.

        It waits for the collectives of its members, and for all traffic through its cards, that came before; what follows
        waits for it. Only the latencies of operations in flight at the same time overlap.
        """
        price, group = self._price(name, members, nbytes), self._group(members)
        cards = group.cards
        begin = start
        for until in (self._engaged, *((self._out, self._in) if cards else ())):
            for place in members if until is self._engaged else cards:
                if until[place] > begin:
                    begin = until[place]
        until_done = begin + price.working
        if group.switches:
            # A ring crosses each uplink once, at the rate of a node, and leaves the rest of it to others.
            part = min(1.0, group.place.lanes * self._network.bandwidth / self._network.uplink)
            for until in (self._up, self._down):
                for switch in group.switches:
                    until[switch] = max(until[switch], begin) + part * price.working
                    until_done = max(until_done, until[switch])
                    self._held_up[switch] = max(self._held_up[switch], until[switch])
        for rank in members:
            self._engaged[rank] = until_done
        for card in cards:
            self._out[card] = self._in[card] = self._held[card] = until_done
        return begin + price.seconds + (until_done - (begin + price.working))

    def shares(self, members: int, nbytes: int) -> list[float]:
        """Return the parts of a non-blocking collective that its ranks' calls advance it by, from the one that starts it.

        As many rounds as halving and doubling takes, unless their number, and the part of the first, were measured.

        >>> Network.named("10gbe").wires(4).shares(4, 1000)
        [0.25, 0.25, 0.25, 0.25]
        """
        known, rounds = self._node.progress, max(2, 2 * math.ceil(math.log2(max(members, 2))))
        if "calls" in known:
            rounds = 1 + max(1, round(_within(known["calls"], nbytes, members)))
        first = 1 / rounds
        if "hidden" in known:
            first = min(1.0, _within(known["hidden"], nbytes, members))
        return [first] + [(1 - first) / (rounds - 1)] * (rounds - 1)

    def _group(self, members: Sequence[int]) -> _Group:
        known = self._groups.get(id(members))
        if known is None or known.members is not members:
            on_node: dict[int, int] = {}
            behind: dict[int, set[int]] = {}
            for rank in members:
                on_node[self.node[rank]] = on_node.get(self.node[rank], 0) + 1
                behind.setdefault(self._switch[rank], set()).add(self.node[rank])
            cards = sorted({self._card[rank] for rank in members}) if len(on_node) > 1 else ()
            crosses = len(behind) > 1
            place = _Place(
                ranks=len(members), nodes=len(on_node), largest=max(on_node.values(), default=1),
                lanes=min(Counter(card // self._network.cards for card in cards).values(), default=1),
                behind=max(map(len, behind.values())) if crosses else 0,
            )  # fmt: skip
            known = _Group(members, place, cards, sorted(behind) if crosses else ())
            self._groups[id(members)] = known  # holding the members keeps their id from being reused
        return known

    def _price(self, name: str, members: Sequence[int], nbytes: int) -> _Price:
        name = COSTS_LIKE.get(name, name)
        key = (name, self._group(members).place, nbytes)
        found = self._collectives.get(key)
        if found is None:
            seconds = self._collective(*key, latency=self.latency)
            # What remains without latencies: the own time of the ranks and the bytes through the cards.
            working = min(seconds, self._collective(*key, latency=None))
            found = self._collectives[key] = _Price(seconds, working)
        return found

    def _collective(self, name: str, place: _Place, nbytes: int, latency: float | None) -> float:
        """Return the seconds of a collective; without a latency (None), neither between nodes nor inside them."""

        def seconds(name: str, n: float) -> float:
            return self._direct(name, place, n, latency)

        if not self._network.uses_nccl:
            return _replace_by(name, place.ranks, nbytes, seconds, self._node.collectives)
        # NCCL has no trees but for Allreduce, so that its other collectives may take longer.
        found = seconds(name, nbytes)
        return _least(found, seconds("Allgather", nbytes)) if name == "Gather" else found

    def _direct(self, name: str, place: _Place, nbytes: float, latency: float | None) -> float:
        """Return the seconds of a collective by itself: by algorithms of its own."""
        network, costs = self._network, self._node
        members, nodes, largest, lanes, behind = place
        own = lanes * network.bandwidth
        uplink = network.uplink if behind else math.inf
        # Of a node, if all behind its switch use the uplink at once.
        shared = min(own, uplink / max(1, behind))
        sharing = self._sharing[0]
        flights = 0.0 if latency is None else 1.0
        latency = latency or 0.0

        def combine(n: float) -> float:
            return costs.memory["combine"].at(n, sharing) if "combine" in costs.memory else 0.0

        def inside(n: float) -> float:
            eager = n <= costs.eager_limit
            found = costs.link.both_ways(int(n), sharing, eager=eager, post=costs.post)
            if not flights:
                found -= (1 if eager else 2) * costs.link.flight.at(int(n), sharing)
            return found

        def between(n: float, rate: float = shared) -> float:
            copying, first, _ = self._parts(int(n))
            asked = 0.0 if n <= self.limit else 2 * (latency + self.overhead)
            return (
                costs.post
                + 2 * (self.overhead + first)
                + latency
                + asked
                + max(n / min(rate, network.stream), copying)
            )

        def to_neighbour(n: float) -> float:
            return between(n, min(own, uplink))

        def shift(n: float, crossing: int) -> float:
            return between(n, min(own, uplink / crossing) if crossing else own)

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

        if network.uses_nccl:
            hop = NCCL_HOP * flights + latency + 2 * self.overhead
            rate = lanes * min(network.bandwidth, network.stream, network.copy_bandwidth)
            slope = costs.link.take.at(1 << 24, 1) - costs.link.take.at(0, 1)
            found = nccl_seconds(
                name, members, nodes, nbytes,
                inside=Hop(inside(0), slope / (1 << 24)),
                between=Hop(hop, 1 / min(rate, uplink)), crossing=own / shared,
                start=NCCL_START * flights,
            )  # fmt: skip
            if found is not None:
                return found
        if nodes <= 1:
            return in_node(name, members, nbytes)
        steps = StepCosts(between, combine, to_neighbour, shift if behind else None, behind)
        return _two_level(name, members, nodes, largest, nbytes, in_node, steps)

    def inside_costs(self, node: int, nbytes: int) -> tuple[Any, Any, list[float] | None, Any]:
        """Return what a message inside a node costs: (send, flight, take) if it is eager and if it is announced.

        Then take of a long one by takers, and (send, flight, take, True if eager) of one that nobody made synchronous.
        """
        link, limit, ranks = self._node.link, self.limit_inside, self._sharing[node]
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
            if nbytes >= SHARING and self._slows_down:
                by_takers = [
                    link.take.at(nbytes, max(takers, 1)) for takers in range(min(ranks, MOST_TAKERS) + 1)
                ]
        kept = self.inside[node]
        if len(kept) >= CACHED:
            kept.clear()
        usual = (*costs[0], True) if nbytes <= limit else (*costs[1], False)
        kept[nbytes] = found = (*costs, by_takers, usual)
        return found


def _arrival(start: float, latency: float, first: float, copying: float, end: float) -> float:
    """Return when a message arrives whose bytes leave from `start` to `end`."""
    return start + latency + first + max(0.0, (end - start) - copying)


def _within(curves: Curves, amount: float, ranks: int) -> float:
    """Return the value of curves for an amount, beyond the last one the last value."""
    return curves.at(min(amount, max(table[-1][0] for table in curves.tables.values())), ranks)


class _Shared:
    """A card or an uplink that connections share equally, each at the rate of a connection at most.

    Every connection in use has had the same bytes since it began (`_served`), so that a message is through when that has
    grown by its length. A connection carries its messages one after the other.
    """

    __slots__ = (
        "_active", "_coming", "_ends", "_full", "_most", "_pending", "_served", "_targets", "_time",
    )  # fmt: skip

    def __init__(self, full: float, most: float) -> None:
        self._full, self._most = full, most
        self._time, self._served = 0.0, 0.0
        self._pending: list[tuple[float, int, Flow]] = []  # that begin later, by time
        self._targets: list[tuple[float, int, Flow]] = []  # on their way, by what must have been served
        # Of each connection in use, the target and the number of its last message.
        self._active: dict[tuple[int, int], tuple[float, int]] = {}
        # When messages pass, by number, as far as it was asked for since the last one was added; and the others in order.
        self._ends: dict[int, float] = {}
        self._coming = self._foresee()

    def add(self, flow: Flow, start: float, now: float) -> None:
        """Let a message pass from `start` on."""
        self._advance(now)
        insort(self._pending, (start, flow.number, flow))
        self._ends.clear()
        self._coming = self._foresee()

    def end_of(self, wanted: Flow) -> float:
        """Return when the last byte of a message passes, as far as is known now."""
        while wanted.number not in self._ends:
            number, end = next(self._coming)
            self._ends[number] = end
        return self._ends[wanted.number]

    def _foresee(self) -> Iterator[tuple[int, float]]:
        """Yield when the last bytes of all messages pass, in that order, as far as is known now."""
        pending, targets = self._pending, self._targets
        active = self._active.copy() if pending else self._active
        time, served, using, begun, place = self._time, self._served, len(active), 0, 0
        while True:
            begins = pending[begun][0] if begun < len(pending) else math.inf
            rate = min(self._most, self._full / max(1, using))
            through = time + (targets[place][0] - served) / rate if place < len(targets) else math.inf
            if through <= begins:
                time, (served, number, flow) = through, targets[place]
                yield number, time
                place += 1
                if number == active[flow.connection][1]:
                    using -= 1
                    if pending:
                        del active[flow.connection]
                continue
            begins = max(begins, time)
            served += rate * (begins - time) if using else 0.0
            time, (_, number, flow) = begins, pending[begun]
            begun += 1
            using += flow.connection not in active
            last = active.get(flow.connection, (served, 0))[0] + flow.nbytes
            active[flow.connection] = (last, number)
            if targets is self._targets:
                targets, place = targets[place:], 0
            insort(targets, (last, number, flow), lo=place)

    def _advance(self, now: float) -> None:
        """Let time pass."""
        pending, targets, active = self._pending, self._targets, self._active
        while pending or targets:
            begins = pending[0][0] if pending else math.inf
            through, rate = math.inf, 0.0
            if targets:
                rate = min(self._most, self._full / len(active))
                through = self._time + (targets[0][0] - self._served) / rate
            if min(begins, through) > now:
                break
            if through <= begins:
                self._time, (self._served, number, flow) = through, targets.pop(0)
                if number == active[flow.connection][1]:
                    del active[flow.connection]
                flow.ends[self] = through
                continue
            begins = max(begins, self._time)
            self._served = self._served + rate * (begins - self._time) if targets else 0.0
            self._time = begins
            _, number, flow = pending.pop(0)
            last = active.get(flow.connection, (self._served, 0))[0] + flow.nbytes
            active[flow.connection] = (last, number)
            insort(targets, (last, number, flow))
        if now > self._time:
            if targets:
                self._served += min(self._most, self._full / len(active)) * (now - self._time)
            self._time = now


class Flow:
    """A message on a connection that is slower than a card: when it arrives depends on others that come later."""

    __slots__ = (
        "_passes", "connection", "copied", "copier", "copying", "ends", "finish", "later", "nbytes", "number", "shares",
        "start",
    )  # fmt: skip

    def __init__(self, number: int, connection: tuple[int, int], nbytes: int, start: float) -> None:
        self.number, self.connection, self.nbytes, self.start = number, connection, nbytes, start
        self.later = self.copying = self.copied = 0.0
        """The seconds after which a byte that leaves can be copied, that the receiver copies, and that it has copied
        while the message was on its way."""
        self.copier: Copier | None = None
        """What the receiver has copied, if it must copy."""
        self.shares = False
        """True if other messages reach the receiver at the same time, and it copies all of them as they arrive."""
        self.ends: dict[_Shared, float] = {}
        """When its last byte has passed a card or an uplink."""
        self.finish: Callable[[float], float] = float
        """When it arrives, by the time at which its last byte leaves."""
        self._passes: list[tuple[_Shared, float]] = []

    def pass_through(self, shared: _Shared, later: float, now: float) -> None:
        """Let it pass a card or an uplink, which its bytes reach some time after they leave."""
        shared.add(self, self.start + later, now)
        self._passes.append((shared, later))

    def leaves(self) -> float:
        """Return when its last byte leaves, as far as is known now."""
        ends = self.ends
        return max(
            (ends[shared] if shared in ends else shared.end_of(self)) - later
            for shared, later in self._passes
        )

    def arrives(self) -> float:
        """Return when it arrives, as far as is known now.

        Alone, that is when its receiver begins to copy it, so that the copy ends with the last byte. Among others, it is
        when the last byte is there.
        """
        leaves = self.leaves()
        if self.copier is not None and not self.shares:
            self.copier.look_for_others(self, leaves)
        return self.finish(leaves) + self.copying if self.shares else self.finish(leaves)


class Copier:
    """What a rank copies of messages that reach it at the same time: all that has come, while it waits in a call."""

    __slots__ = ("_waited", "flows")

    def __init__(self) -> None:
        self.flows: dict[int, Flow] = {}
        """The messages on their way, by number."""
        self._waited: list[tuple[float, float]] = []  # when the rank waited, since it last copied

    def add(self, flow: Flow) -> None:
        """Let a message be on its way."""
        self.flows[flow.number] = flow

    def look_for_others(self, flow: Flow, leaves: float) -> None:
        """Find out whether a message, whose last byte leaves at this time, reaches the rank together with others."""
        if len(self.flows) < 2 or flow.number not in self.flows:
            return
        first, last = flow.start + flow.later, leaves + flow.later
        for other in self.flows.values():
            begins = other.start + other.later
            if (
                other is not flow
                and begins < last
                and (begins >= first or other.leaves() + other.later > first)
            ):
                flow.shares = other.shares = True
                return

    def wait(self, since: float, until: float) -> None:
        """Take note that the rank waited."""
        if self._waited and self._waited[-1][1] == since:
            since = self._waited.pop()[0]
        self._waited.append((since, until))

    def take(self, flow: Flow) -> float:
        """Return the seconds of the copy of a message that the rank has already done when the message has arrived."""
        if flow.shares:
            for since, until in self._waited:
                self._copy(since, until)
            self._waited.clear()
        del self.flows[flow.number]
        if not self.flows:
            self._waited.clear()
        return flow.copied if flow.shares else 0.0

    def _copy(self, since: float, until: float) -> None:
        """Copy what has come of all messages, as far as there is time; a message comes at an even rate."""
        there, begins = [], until
        for flow in self.flows.values():
            first, last = flow.start + flow.later, flow.leaves() + flow.later
            come = flow.copying if until >= last else flow.copying * max(0.0, until - first) / (last - first)
            if come > flow.copied:
                there.append((flow, come - flow.copied))
                begins = min(begins, first)
        work = sum(seconds for _, seconds in there)
        share = min(1.0, (until - max(since, begins)) / work) if work else 0.0
        for flow, seconds in there:
            flow.copied += share * seconds


def _reserve(
    free: list[float], gaps: Gaps, card: int, ready: float, passing: float, now: float, early: bool
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
    """Return the seconds of a collective inside the nodes, then between one rank of each, then inside them again."""
    # Of a node with as many ranks as the largest, whose part stays there, what the average other one has.
    others = (members - largest) / (nodes - 1)

    def across(n: float) -> float:
        return collective_seconds(name, nodes, n, between)

    if name in ("Barrier", "Allreduce", "Scan"):
        up, down = ("Barrier", "Barrier") if name == "Barrier" else ("Reduce", "Bcast")
        return in_node(up, largest, nbytes) + across(nbytes) + in_node(down, largest, nbytes)
    if name == "Bcast":
        return across(nbytes) + in_node(name, largest, nbytes)
    if name == "Reduce":
        return in_node(name, largest, nbytes) + across(nbytes)
    if name == "Gather":
        return in_node(name, largest, nbytes) + across(nbytes * others)
    if name == "Scatter":
        leaving = nbytes if others == largest else nbytes * others * nodes / members
        return across(leaving) + in_node(name, largest, nbytes / nodes)
    if name == "Reduce_scatter":
        return (
            in_node("Reduce", largest, nbytes) + across(nbytes) + in_node("Scatter", largest, nbytes / nodes)
        )
    if name.startswith("Neighbor"):  # nbytes: of the node that sends or receives most to or from others
        return across(nbytes)
    if name == "Alltoall":  # every byte that leaves the node goes through its single card
        return in_node(name, largest, nbytes / nodes) + across(nbytes * largest)
    gathered = collective_seconds("Allgather", nodes, nbytes * largest, between)
    return in_node("Gather", largest, nbytes) + gathered + in_node("Bcast", largest, nbytes * members)
