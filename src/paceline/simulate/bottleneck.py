"""Where a way of training stops scaling, and why: what buys most, once it costs nothing, is what it is lost to.

    T     seconds of a step as it is
    T_r   seconds of the same step in a world where r costs nothing
    the share of the step that is lost to r is (T - T_r) / T; without it the speedup would be T / T_r times as high

Shares need not add up: where two costs hide behind each other, taking away one alone buys little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from paceline.simulate.whatif import World

# More ranks help as long as the speedup grows by more than this part of its best.
FLAT = 0.02
# Less than this part of a step is not worth naming.
LITTLE = 0.05
# A speedup by less than this part of the number of ranks is not what they were bought for.
HALF = 0.5
# Accuracy that may be missing.
POINT = 0.01


@dataclass(frozen=True, kw_only=True)
class Point:
    """What one way of training would do on one number of ranks."""

    ranks: int
    step_seconds: float
    """Of a step that all ranks take together, or of a rank's own whole batch."""
    samples_per_second: float
    speedup: float
    """Against the simulated serial run."""
    messages: float = 0.0
    """Of all ranks together in a step."""
    bytes: float = 0.0
    steps: int = 1
    """How many were simulated."""
    without: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a step in a world in which the cost of that name is none."""
    accuracy: float | None = None
    staleness: float | None = None
    """Mean number of updates that a gradient is late."""

    @property
    def efficiency(self) -> float:
        """Speedup a rank."""
        return self.speedup / self.ranks

    def lost(self) -> dict[str, float]:
        """What part of the step's time each cost takes, largest first.

        >>> point = Point(ranks=4, step_seconds=1.0, samples_per_second=1.0, speedup=2.0,
        ...               without={"latency": 0.4, "compute": 0.9, "memory": 1.0})
        >>> {reason: round(share, 2) for reason, share in point.lost().items()}
        {'latency': 0.6, 'compute': 0.1, 'memory': 0.0}
        """
        shares = {name: max(0.0, 1 - t / self.step_seconds) for name, t in self.without.items()}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def speedup_without(self, reason: str) -> float:
        """What the speedup would be if that cost were none."""
        seconds = self.without[reason]
        return self.speedup * self.step_seconds / seconds if seconds else float("inf")


def measure_without(seconds: Callable[[str], float], reasons: Iterable[str]) -> dict[str, float]:
    """The step's seconds without each cost, by a function that simulates it.

    >>> measure_without({"latency": 0.25, "memory": 1.0}.__getitem__, ["memory", "latency"])
    {'memory': 1.0, 'latency': 0.25}
    """
    return {reason: seconds(reason) for reason in reasons}


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Where a way of training stops scaling."""

    at: Point
    """More ranks than these bring nothing more, or nothing that is wanted."""
    shown: Point
    """Where it can be seen why: the same, or the next one where at the first nothing is lost yet."""
    rising: bool
    """Whether it was still getting faster at the largest number of ranks."""
    half: int | None
    """The number of ranks from which on less than half of them is used."""
    reason: str | None
    """What most is lost to where it can be seen; None where that is next to nothing, or not known."""
    only: bool = False
    """Whether there was one number of ranks, so that nothing rises or falls."""


def limit(points: Sequence[Point], accuracy: float | None = None) -> Limit:
    """Find where `points`, by rising numbers of ranks, stop scaling; `accuracy`: what they are held to.

    >>> def point(ranks, speedup):
    ...     return Point(ranks=ranks, step_seconds=1.0, samples_per_second=speedup, speedup=speedup)
    >>> found = limit([point(1, 1.0), point(2, 1.8), point(4, 2.4), point(8, 2.41), point(16, 1.9)])
    >>> found.at.ranks, found.rising, found.half
    (4, False, 8)
    """
    best = max(point.speedup for point in points)
    peak = next(place for place, point in enumerate(points) if point.speedup >= (1 - FLAT) * best)
    # Efficiency may rise again where masters get more workers: what counts is from where it stays low.
    above = [place for place, point in enumerate(points) if point.efficiency >= HALF]
    low = points[above[-1] + 1 :] if above else points
    half = low[0].ranks if low else None
    learned = _learned(points, peak, accuracy)
    if learned is not None:
        reason = "staleness" if any(point.staleness for point in points) else "accuracy"
        following = points[min(learned + 1, len(points) - 1)]
        return Limit(at=points[learned], shown=following, rising=False, half=half, reason=reason)
    at, rising = points[peak], peak == len(points) - 1
    # On the last rank that helps little may be lost yet; what the next one loses keeps it from helping.
    well = at.ranks == 1 or (bool(at.without) and main_reason(at) is None)
    shown = points[peak + 1] if well and not rising else at
    only = len(points) == 1
    return Limit(at=at, shown=shown, rising=rising, half=half, reason=main_reason(shown), only=only)


def main_reason(point: Point) -> str | None:
    """What a point loses most to; None where that is little."""
    name, share = next(iter(point.lost().items()), ("", 0.0))
    return name if share >= LITTLE else None


def _learned(points: Sequence[Point], peak: int, accuracy: float | None) -> int | None:
    """The last point before accuracy is a point too low, where that comes before the peak of speed."""
    if accuracy is None:
        return None
    worse = [
        place
        for place, point in enumerate(points)
        if point.accuracy is not None and point.accuracy < accuracy - POINT - 1e-9
    ]
    if not worse or worse[0] > peak:
        return None
    return max(worse[0] - 1, 0)


# ---- Why a way of training stops scaling, in a sentence with figures.

# In the table, and in lists.
SHORT = {
    "latency": "latency",
    "bandwidth": "bandwidth",
    "overhead": "message overhead",
    "memory": "adding and copying",
    "masters": "master queue",
    "stragglers": "stragglers",
    "compute": "compute",
    "idle": "masters idle",
    "batches": "too few batches",
}


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """What a sentence about a point tells of."""

    world: World
    ranks: int
    each: int
    """Batches in an epoch."""

    @property
    def workers(self) -> int:
        """Ranks that compute gradients."""
        return self.ranks - self.world.masters

    @property
    def several_nodes(self) -> bool:
        """Whether there is a network between some of the ranks."""
        on_node = self.world.network.ranks_per_node
        return on_node is not None and on_node < self.ranks


def where(limit: Limit) -> str:
    """Where it stops scaling.

    >>> point = Point(ranks=16, step_seconds=1e-3, samples_per_second=1.0, speedup=3.2)
    >>> where(Limit(at=point, shown=point, rising=False, half=8, reason="latency"))
    'gets no faster beyond 16 ranks (3.20x); efficiency is below 50 % from 8 ranks on'
    """
    at = limit.at
    said = times(at.speedup)
    if limit.reason in ("staleness", "accuracy"):
        stops = f"learns less beyond {_ranks(at.ranks)} ({said})"
    elif limit.only:
        stops = f"is {said} as fast as serial on {_ranks(at.ranks)}"
    elif limit.rising:
        stops = f"still gets faster at {_ranks(at.ranks)} ({said})"
    elif at.ranks == 1:
        stops = "is on no number of ranks faster than on one"
    else:
        stops = f"gets no faster beyond {_ranks(at.ranks)} ({said})"
    if limit.half is None:
        return f"{stops}; efficiency stays above 50 %"
    return f"{stops}; efficiency is below 50 % from {_ranks(limit.half)} on"


def why(point: Point, around: Circumstances, then: Sequence[tuple[str, float]] = ()) -> str:
    """What a point loses most to, and what it would be without that.

    `then`: what it loses most to when that is gone, and the speedup when that is gone as well; and so on.
    """
    took = f"at {_ranks(point.ranks)} a step takes {duration(point.step_seconds)}"
    lost = [(reason, share) for reason, share in point.lost().items() if share >= LITTLE]
    if not point.without:
        return f"{took}; why was too much to simulate"
    if not lost:
        return f"{took}; next to nothing of it is lost: what is left is computing, well divided"
    reason, share = lost[0]
    what = _PHRASES[reason](point, around)
    without = f"without it the speedup would be {times(point.speedup_without(reason))} and not {times(point.speedup)}"
    more = "".join(f", without {SHORT[name]} too {times(speedup)}" for name, speedup in then)
    return f"{took}; {_percent(share)} of it is {what}: {without}{more}"


def learned(limit: Limit, serial: float) -> str:
    """What is learned less on more ranks than on those of the limit."""
    worse = limit.shown
    assert worse.accuracy is not None
    old = f"gradients are {worse.staleness:.1f} updates old on average and " if worse.staleness else ""
    return (
        f"at {_ranks(worse.ranks)}, {times(worse.speedup)} as fast as serial, {old}accuracy is "
        f"{100 * worse.accuracy:.2f} %, serial's {100 * serial:.2f} %"
    )


def times(factor: float) -> str:
    """
    >>> times(3.2), times(41.26), times(1234.5)
    ('3.20x', '41.3x', '1,234x')
    """
    return f"{factor:.2f}x" if factor < 10 else f"{factor:.1f}x" if factor < 100 else f"{factor:,.0f}x"


def duration(seconds: float) -> str:
    """
    >>> duration(0.0000314), duration(0.00314), duration(31.4)
    ('31.4 us', '3.14 ms', '31.4 s')
    """
    for unit, size in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def amount(count: float) -> str:
    """Bytes as people write them.

    >>> amount(437_544), amount(1.2e9)
    ('438 kB', '1.2 GB')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def _latency(point: Point, around: Circumstances) -> str:
    spent, each = point.step_seconds - point.without["latency"], around.world.network.latency
    if not around.several_nodes or not each:
        return "the time until a message of the same node is seen"
    count = max(1, round(spent / each))
    after = f"{count:,} messages one after the other" if count > 1 else "one message"
    return f"the latency of {after}, {duration(each)} each"


def _bandwidth(point: Point, around: Circumstances) -> str:
    world = around.world
    if not around.several_nodes:
        return "bytes that are copied through shared memory"
    on_node = world.network.ranks_per_node or 1
    rate = f"a card of {amount(world.network.bandwidth)}/s"
    if world.masters:
        each = amount(point.bytes / 2 / world.masters)
        return f"bytes on their way: {each} into each master and as many out of it, through {rate}"
    sent = point.bytes / around.ranks * min(on_node, around.ranks)
    of = "rank" if on_node == 1 else "node"
    return f"bytes on their way: {amount(sent)} a {of} through {rate}"


def _overhead(point: Point, around: Circumstances) -> str:
    each = f", {duration(around.world.network.overhead)} each" if around.several_nodes else ""
    sent = point.messages / around.ranks
    return f"the ranks' own time for messages ({sent:,.3g} a rank{each} at either end)"


def _masters(point: Point, around: Circumstances) -> str:
    masters = around.world.masters
    of = "one master serves" if masters == 1 else f"{masters} masters serve"
    return f"waiting for masters: {of} {around.workers:,} worker{'s' * (around.workers > 1)}"


def _compute(point: Point, around: Circumstances) -> str:
    world, gradient = around.world, around.world.compute.work.get("gradient")
    if gradient is None:
        return "computing that does not get shorter"
    on_node = min(world.network.ranks_per_node or around.ranks, around.ranks)
    alone, cores = gradient.at(world.batch, 1), world.compute.cores or on_node
    if on_node > cores:
        return f"computing that cannot be divided: {on_node} ranks of a node take turns on {cores} core{'s' * (cores > 1)}"
    if world.pieces is None:
        return (
            f"computing that others slow down: {on_node} ranks share a node's cores and memory, where a batch alone "
            f"takes {duration(alone)}"
        )
    if world.pieces > world.batch:
        idle = _ranks(world.pieces - world.batch)
        return f"computing that cannot be divided: a batch of {world.batch:,} leaves {idle} without a sample"
    piece = -(-world.batch // world.pieces)
    return (
        f"computing that does not get shorter: a piece of {piece:,} sample{'s' * (piece > 1)} takes "
        f"{duration(gradient.at(piece, on_node))}, {_th(world.pieces)} of the whole batch's would be "
        f"{duration(alone / world.pieces)}"
    )


def _idle(point: Point, around: Circumstances) -> str:
    masters = around.world.masters
    are = "are masters and compute" if masters > 1 else "is a master and computes"
    return f"what {masters} of the {around.ranks:,} ranks, which {are} nothing, would have added"


def _batches(point: Point, around: Circumstances) -> str:
    return f"ranks without a batch: an epoch has {around.each:,} for {around.workers:,} ranks"


_PHRASES: dict[str, Callable[[Point, Circumstances], str]] = {
    "latency": _latency,
    "bandwidth": _bandwidth,
    "overhead": _overhead,
    "memory": lambda point, around: "adding up and copying gradients, in memory",
    "masters": _masters,
    "stragglers": lambda point, around: "waiting for ranks that are slow",
    "compute": _compute,
    "idle": _idle,
    "batches": _batches,
}


def _ranks(count: int) -> str:
    return f"{count:,} rank{'s' * (count != 1)}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _th(number: int) -> str:
    """
    >>> [_th(number) for number in (2, 3, 22, 64, 111)]
    ['half', 'a 3rd', 'a 22nd', 'a 64th', 'a 111th']
    """
    if number == 2:
        return "half"
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"a {number:,}{ending}"
