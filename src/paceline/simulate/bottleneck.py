"""Find where a strategy stops scaling, and explain why: the main reason is the cost whose removal helps most.

    T     seconds of a step
    T_r   seconds of the same step in a scenario where r costs nothing
    the share of the step that is lost to r is (T - T_r) / T; without it the speedup would be T / T_r times as high

The shares need not add up: where two costs overlap, removing only one of them helps little.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from paceline import text
from paceline.simulate.whatif import Scenario

# More ranks help as long as the speedup grows by more than this fraction of the best one.
FLAT = 0.02
# A smaller fraction of a step is not worth mentioning.
LITTLE = 0.05
# An efficiency below this is called low.
HALF = 0.5
# A loss of accuracy up to this one is tolerated.
POINT = 0.01


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """The predicted performance of one strategy on one number of ranks."""

    ranks: int
    step_seconds: float
    """Seconds of a step that all ranks take together, or of a rank's own whole batch."""
    samples_per_second: float
    speedup: float
    """Compared with the simulated serial run."""
    messages: float = 0.0
    """Messages of all ranks together in a step."""
    bytes: float = 0.0
    steps: int = 1
    """Number of steps that were simulated."""
    without: Mapping[str, float] = field(default_factory=dict)
    """Seconds of a step in the scenario without the named cost, by name."""
    accuracy: float | None = None
    staleness: float | None = None
    """Mean age of a gradient, in updates."""

    @property
    def efficiency(self) -> float:
        """Speedup per rank."""
        return self.speedup / self.ranks

    def lost(self) -> dict[str, float]:
        """Return the fraction of the step that is lost to each cost, largest first.

        >>> point = ScalingPoint(ranks=4, step_seconds=1.0, samples_per_second=1.0, speedup=2.0,
        ...               without={"latency": 0.4, "compute": 0.9, "memory": 1.0})
        >>> {reason: round(share, 2) for reason, share in point.lost().items()}
        {'latency': 0.6, 'compute': 0.1, 'memory': 0.0}
        """
        shares = {name: max(0.0, 1 - t / self.step_seconds) for name, t in self.without.items()}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def largest_cost(self) -> tuple[str, float] | None:
        """Return the cost that most of the step is lost to, and its share; None if all costs together are small.

        >>> point = ScalingPoint(ranks=4, step_seconds=1.0, samples_per_second=1.0, speedup=3.7, without={"latency": 0.97})
        >>> name, share = point.largest_cost()
        >>> name, round(share, 2)
        ('latency', 0.03)
        """
        name, share = next(iter(self.lost().items()), ("", 0.0))
        small = share < LITTLE and self.efficiency >= 1 - LITTLE
        return None if small or not share else (name, share)

    def speedup_without(self, reason: str) -> float:
        """Return the speedup without this cost."""
        seconds = self.without[reason]
        return self.speedup * self.step_seconds / seconds if seconds else float("inf")


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The point where a strategy stops scaling, and the reason."""

    at: ScalingPoint
    """The last worthwhile point: beyond it there is no more speedup, or too little accuracy."""
    shown: ScalingPoint
    """The point that shows the reason: the same, or the next one if nothing is lost there yet."""
    rising: bool
    """True if the speedup was still growing at the largest number of ranks."""
    half: int | None
    """The number of ranks from which on efficiency is below one half."""
    reason: str | None
    """The most expensive cost at `shown`; None if it is negligible or unknown."""
    only: bool = False
    """True if there was only one number of ranks, so nothing rises or falls."""


def find_limit(points: Sequence[ScalingPoint], accuracy: float | None = None) -> Limit:
    """Find where `points`, in order of their ranks, stop scaling; `accuracy`: the one they should reach.

    >>> def point(ranks, speedup):
    ...     return ScalingPoint(ranks=ranks, step_seconds=1.0, samples_per_second=speedup, speedup=speedup)
    >>> found = find_limit([point(1, 1.0), point(2, 1.8), point(4, 2.4), point(8, 2.41), point(16, 1.9)])
    >>> found.at.ranks, found.rising, found.half
    (4, False, 8)
    """
    best = max(point.speedup for point in points)
    peak = next(place for place, point in enumerate(points) if point.speedup >= (1 - FLAT) * best)
    # Efficiency may rise again when masters get more workers: find the point from which it stays low.
    above = [place for place, point in enumerate(points) if point.efficiency >= HALF]
    low = points[above[-1] + 1 :] if above else points
    half = low[0].ranks if low else None
    learned = _find_accuracy_limit(points, peak, accuracy)
    if learned is not None:
        reason = "staleness" if any(point.staleness for point in points) else "accuracy"
        following = points[min(learned + 1, len(points) - 1)]
        return Limit(at=points[learned], shown=following, rising=False, half=half, reason=reason)
    at, rising = points[peak], peak == len(points) - 1
    # Little may be lost at the last worthwhile point; the next point shows the reason.
    well = at.ranks == 1 or (bool(at.without) and main_reason(at) is None)
    shown = points[peak + 1] if well and not rising else at
    only = len(points) == 1
    return Limit(at=at, shown=shown, rising=rising, half=half, reason=main_reason(shown), only=only)


def main_reason(point: ScalingPoint) -> str | None:
    """Return the most expensive cost of a point; None if it is negligible."""
    name, share = next(iter(point.lost().items()), ("", 0.0))
    return name if share >= LITTLE else None


def _find_accuracy_limit(points: Sequence[ScalingPoint], peak: int, accuracy: float | None) -> int | None:
    """Return the last point before accuracy drops, if that comes before the peak of speed."""
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


# The costs in tables and lists.
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
    """The circumstances that the explanation of a point refers to."""

    scenario: Scenario
    ranks: int
    each: int
    """Batches in an epoch."""

    @property
    def workers(self) -> int:
        """The ranks that compute gradients."""
        return self.ranks - self.scenario.masters

    @property
    def on_node(self) -> int:
        """The ranks on a node; of several nodes, on the one with the most of them."""
        return self.scenario.network.ranks_on_node(self.ranks)

    @property
    def several_nodes(self) -> bool:
        """True if there is a network between some of the ranks."""
        return self.on_node < self.ranks


def describe_limit(limit: Limit) -> str:
    """Describe where a strategy stops scaling.

    >>> point = ScalingPoint(ranks=16, step_seconds=1e-3, samples_per_second=1.0, speedup=3.2)
    >>> describe_limit(Limit(at=point, shown=point, rising=False, half=8, reason="latency"))
    'gets no faster beyond 16 ranks (3.20x); efficiency is below 50 % from 8 ranks on'
    """
    at = limit.at
    speedup = text.times(at.speedup)
    if limit.reason in ("staleness", "accuracy"):
        stops = f"learns less beyond {text.count(at.ranks, 'rank')} ({speedup})"
    elif limit.only:
        stops = f"is {speedup} as fast as serial on {text.count(at.ranks, 'rank')}"
    elif limit.rising:
        stops = f"still gets faster at {text.count(at.ranks, 'rank')} ({speedup})"
    elif at.ranks == 1:
        stops = "is never faster than on one rank"
    else:
        stops = f"gets no faster beyond {text.count(at.ranks, 'rank')} ({speedup})"
    if limit.half is None:
        return f"{stops}; efficiency stays above 50 %"
    return f"{stops}; efficiency is below 50 % from {text.count(limit.half, 'rank')} on"


def explain(point: ScalingPoint, around: Circumstances, then: Sequence[tuple[str, float]] = ()) -> str:
    """Explain the most expensive cost of a point, and the speedup without it.

    `then`: the costs to remove next, each with the speedup when it is removed as well.
    """
    took = f"at {text.count(point.ranks, 'rank')} a step takes {text.duration(point.step_seconds)}"
    if not point.without:
        return f"{took}; finding out why would take too many messages"
    if (lost := point.largest_cost()) is None:
        return f"{took}; almost none of it is lost: the rest is computing, evenly divided"
    reason, share = lost
    what = _PHRASES[reason](point, around)
    better = text.times(point.speedup_without(reason))
    without = f"without it the speedup would be {better} instead of {text.times(point.speedup)}"
    more = "".join(f", without {SHORT[name]} too {text.times(speedup)}" for name, speedup in then)
    return f"{took}; {text.share(share)} of it is {what}: {without}{more}"


def explain_accuracy(limit: Limit, serial: float) -> str:
    """Explain the loss of accuracy beyond the limit."""
    worse = limit.shown
    assert worse.accuracy is not None
    old = f"gradients are {worse.staleness:.1f} updates old on average and " if worse.staleness else ""
    return (
        f"at {text.count(worse.ranks, 'rank')}, {text.times(worse.speedup)} as fast as serial, {old}accuracy is "
        f"{100 * worse.accuracy:.2f} %, serial's {100 * serial:.2f} %"
    )


def _latency(point: ScalingPoint, around: Circumstances) -> str:
    spent, each = point.step_seconds - point.without["latency"], around.scenario.network.latency
    if not around.several_nodes or not each:
        return "the time until a rank of the same node sees a message"
    count = max(1, round(spent / each))
    after = f"{count:,} messages one after the other" if count > 1 else "one message"
    return f"the latency of {after}, {text.duration(each)} each"


def _bandwidth(point: ScalingPoint, around: Circumstances) -> str:
    scenario = around.scenario
    if not around.several_nodes:
        links = scenario.network.inside
        return f"moving bytes over {links}" if links else "copying bytes through shared memory"
    network = scenario.network
    rate = f"{text.amount(network.bandwidth)}/s"
    if network.stream < network.bandwidth:
        rate += f", over connections of at most {text.amount(network.stream)}/s each"
    if network.copy_bandwidth < min(network.bandwidth, network.stream):
        rate += f", copied by each end at {text.amount(network.copy_bandwidth)}/s"
    behind = network.nodes_per_switch
    if behind is not None and network.oversubscription > 1 and network.nodes(around.ranks) > behind:
        rate += f", with {text.count(behind, 'node')} behind an uplink of {text.amount(network.uplink)}/s"
    if scenario.masters:
        each = text.amount(point.bytes / 2 / scenario.masters)
        return f"moving bytes: {each} into each master and as many out of it, through a card of {rate}"
    sent = text.amount(point.bytes / around.ranks)
    if around.on_node == 1:
        return f"moving bytes: {sent} per rank through a card of {rate}"
    shared = "a card" if network.cards == 1 else f"{network.cards} cards"
    return f"moving bytes: {sent} per rank, of whom the {around.on_node} of a node share {shared} of {rate}"


def _overhead(point: ScalingPoint, around: Circumstances) -> str:
    each = f", {text.duration(around.scenario.network.overhead)} each" if around.several_nodes else ""
    sent = point.messages / around.ranks
    return f"the ranks' own time for messages ({sent:,.3g} per rank{each} at each end)"


def _masters(point: ScalingPoint, around: Circumstances) -> str:
    masters = around.scenario.masters
    of = "one master serves" if masters == 1 else f"{masters} masters serve"
    return f"waiting for masters: {of} {around.workers:,} worker{'s' * (around.workers > 1)}"


def _compute(point: ScalingPoint, around: Circumstances) -> str:
    scenario, gradient = around.scenario, around.scenario.compute.work.get("gradient")
    if gradient is None:
        return "computing that does not shrink"
    on_node = around.on_node
    alone, cores = gradient.at(scenario.batch, 1), scenario.compute.cores or on_node
    if on_node > cores:
        return f"computing that cannot be divided: {on_node} ranks of a node take turns on {cores} core{'s' * (cores > 1)}"
    if scenario.pieces is None:
        return (
            f"computing slowed down by other ranks: {on_node} ranks share the cores and memory of a node, on which one "
            f"rank alone computes a batch in {text.duration(alone)}"
        )
    if scenario.pieces > scenario.batch:
        idle = text.count(scenario.pieces - scenario.batch, "rank")
        return (
            f"computing that cannot be divided: a batch of {scenario.batch:,} leaves {idle} without a sample"
        )
    piece = -(-scenario.batch // scenario.pieces)
    update = scenario.compute.work.get("update")
    updating = 0.0 if update is None else update.at(scenario.parameters, on_node)
    if updating * (1 - 1 / scenario.pieces) > gradient.at(piece, on_node) - alone / scenario.pieces:
        return (
            f"computing that does not shrink: every rank updates all parameters, in {text.duration(updating)}"
        )
    return (
        f"computing that does not shrink: a piece of {piece:,} sample{'s' * (piece > 1)} takes "
        f"{text.duration(gradient.at(piece, on_node))}, {_spell_fraction(scenario.pieces)} of the whole batch's would be "
        f"{text.duration(alone / scenario.pieces)}"
    )


def _idle(point: ScalingPoint, around: Circumstances) -> str:
    masters = around.scenario.masters
    are = "are masters and compute" if masters > 1 else "is a master and computes"
    return f"the missing work of {masters} of the {around.ranks:,} ranks, which {are} nothing"


def _batches(point: ScalingPoint, around: Circumstances) -> str:
    return f"ranks without a batch: an epoch has {around.each:,} for {around.workers:,} ranks"


_PHRASES: dict[str, Callable[[ScalingPoint, Circumstances], str]] = {
    "latency": _latency,
    "bandwidth": _bandwidth,
    "overhead": _overhead,
    "memory": lambda point, around: "summing and copying gradients in memory",
    "masters": _masters,
    "stragglers": lambda point, around: "waiting for slow ranks",
    "compute": _compute,
    "idle": _idle,
    "batches": _batches,
}


def _spell_fraction(number: int) -> str:
    """Spell the fraction 1 / number.

    >>> [_spell_fraction(number) for number in (2, 3, 22, 64, 111, 8, 11, 18_000, 81)]
    ['half', 'a 3rd', 'a 22nd', 'a 64th', 'a 111th', 'an 8th', 'an 11th', 'an 18,000th', 'an 81st']
    """
    if number == 2:
        return "half"
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    spoken = f"{number:,}".partition(",")[0]
    article = "an" if spoken.startswith("8") or spoken in ("11", "18") else "a"
    return f"{article} {number:,}{ending}"
