"""What messages cost: latency, bandwidth, the ends' own time, one network card a node, shared memory inside it.

    between nodes     o + L + n/B + o: each end's own time, the way, and the bytes through the cards
    one card a node   each way one message after the other, of whichever rank of the node
    above the limit   announced first (o + L), asked for by the receiver (L + o), then as above
    inside a node     by the tables of a machine, typical or measured; no card has part in it

Culler et al., LogP (1993); Alexandrov et al., LogGP (1995).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from paceline.errors import UsageError, unknown
from paceline.machine.profile import Machine

if TYPE_CHECKING:
    from paceline.vmpi.wires import Wires

US = 1e-6
TCP_SHARE = 1448 / 1538  # of a frame on the wire with its gap, what TCP carries at the usual 1500 bytes


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network between nodes, and the machine that each node is.

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
    """Bytes a second through a node's card, each way."""
    overhead: float = 1 * US
    """Seconds of the sender's own time, and of the receiver's, for a message."""
    copy_bandwidth: float = math.inf
    """Bytes a second that either end copies in its own time; infinite where the card reads the user's memory."""
    eager_limit: int = 65536
    """Bytes up to which a message is sent before the receiver asks for it."""
    ranks_per_node: int | None = 1
    """None: all ranks are on one node."""
    cores: int | None = None
    """Of a node. None: on one node those of the machine that was measured, else enough for the node's ranks."""
    jitter: float = 0.0
    """Every latency is multiplied by a log-normal random number with this sigma."""
    machine: Machine | None = None
    """What each node is; None: a typical one."""
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
        """One of the networks that have a name: loopback, 1gbe, 10gbe, 100gbe, infiniband."""
        found = presets().get(name)
        if found is None:
            raise unknown("network", name, presets())
        return replace(found, **changes)

    def wires(self, ranks: int, random: random.Random | None = None) -> Wires:
        """The network in use by one run of `ranks` ranks; `random` is where jitter comes from."""
        from paceline.vmpi.wires import Wires

        return Wires(self, ranks, random)

    def nodes(self, ranks: int) -> int:
        """How many nodes so many ranks are on."""
        return -(-ranks // (self.ranks_per_node or ranks))

    def node_cores(self, measured: int) -> int | None:
        """The cores of each node, where a machine of so many was measured; None: enough.

        >>> Network.named("loopback").node_cores(2), Network.named("10gbe", ranks_per_node=16).node_cores(2)
        (2, None)
        """
        return self.cores if self.cores is not None else measured if self.ranks_per_node is None else None

    def node_machine(self) -> Machine:
        """What each node is."""
        return Machine.typical() if self.machine is None else self.machine

    def __str__(self) -> str:
        """As the command line spells it, a machine's tables left out."""
        preset = presets().get(self.name)
        words = [
            f"{_dashed(name)}={_spelled(name, getattr(self, name))}"
            for name in (*UNITS, "ranks_per_node", "cores", "jitter")
            if getattr(self, name)
            != (getattr(preset, name) if preset else None if name == "cores" else math.nan)
        ]
        return f"{self.name}:{','.join(words)}" if words else self.name


def presets() -> dict[str, Network]:
    """The networks that have a name.

    Latencies are such that, with both ends' own time, a small message takes what ping-pongs between two hosts and one
    switch are commonly published to take; bandwidths are the line's less what headers take.
    """
    gbit = 1e9 / 8
    return {
        # Everything on this one node; the figures of a network are never used.
        "loopback": Network(name="loopback", latency=0.0, bandwidth=math.inf, ranks_per_node=None),
        # TCP through the kernel. NetPIPE over one gigabit switch: 40 to 60 us; the card's gathering of interrupts has
        # most of it. A kernel's way through TCP is about 5 us of either end.
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
        # TCP through the kernel at about 10 us, one stream held to 6 GB/s by the ends' copying, as `btl tcp` is.
        # With RoCE (UCX): 100gbe:latency=1us,overhead=0.7us,copy-bandwidth=inf, 2 to 3 us.
        "100gbe": Network(
            name="100gbe",
            latency=7 * US,
            bandwidth=100 * 0.97 * gbit,  # frames of 9000 bytes
            overhead=1.5 * US,
            copy_bandwidth=6e9,
        ),
        # HDR, 200 Gbit/s, 98 % of it data at 4096 bytes a packet; osu_latency gives 1.0 to 1.3 us from C. mpi4py adds
        # about half a microsecond at either end. NDR: infiniband:bandwidth=49GB/s.
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


def _spelled(name: str, value: Any) -> str:
    unit = {id(TIMES): "s", id(RATES): "B/s"}.get(id(UNITS[name][0]), "") if name in UNITS else ""
    return "all" if value is None else f"{value}{unit}"


def parse_network(text: str) -> Network:
    """A network from its words, or from the file of a machine that was measured (all ranks on that node).

    >>> parse_network("10gbe:latency=20us,ranks-per-node=4").latency
    2e-05
    >>> str(parse_network("infiniband:bandwidth=400Gbit/s"))
    'infiniband:bandwidth=50000000000.0B/s'
    >>> parse_network("10gbe:latency=20")
    Traceback (most recent call last):
    paceline.errors.UsageError: latency of 10gbe must have a unit, as 20us; got '20'; choose one of ns, us, ms, s
    """
    name, _, rest = text.partition(":")
    words = [word for word in rest.split(",") if word]
    known = presets()
    if name in known:
        return replace(known[name], **_changes(name, words))
    if name.endswith(".json") or "/" in name:
        return replace(known["loopback"], **{"machine": Machine.load(name), **_changes(name, words)})
    raise unknown("network", name, [*known, "a machine's .json file"])


TIMES = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}  # in a second: 20 / 1e6 is 2e-5 to the last bit
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


def _changes(name: str, words: list[str]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    choices = [*UNITS, "ranks_per_node", "cores", "jitter", "machine"]
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"{name} takes option=value; got {word!r}")
        field = key.replace("-", "_")
        if field not in choices:
            raise unknown(f"option of {name}", key, map(_dashed, choices))
        if field in changes:
            raise UsageError(f"{name}: {key} is given twice")
        changes[field] = _value(name, field, value)
    return changes


def _value(name: str, field: str, text: str) -> Any:
    what = f"{_dashed(field)} of {name}"
    if field == "machine":
        return Machine.load(text)
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
            f"{what} must have a unit, as {example}; got {text!r}; choose one of {', '.join(units)}"
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
