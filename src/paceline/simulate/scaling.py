"""What more ranks would buy: simulated speedup and accuracy by their number, where each way stops scaling, and why.

for every strategy, for every number of ranks: a few steps simulated, with nothing computed
the same steps again in worlds in which one cost is none: what buys most is what most is lost to
with accuracy: whole runs, really computed, in the order of events that the virtual clock gives
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from paceline.errors import UsageError
from paceline.simulate.bottleneck import (
    Circumstances,
    Limit,
    Point,
    learned,
    limit,
    measure_without,
    where,
    why,
)
from paceline.simulate.case import Bench, Length, Timing, Way, check, named
from paceline.simulate.whatif import REASONS, World
from paceline.training.fitted import Fitted
from paceline.vmpi.errors import SimulationError

# ---- How many messages a case will take, before it is simulated: known from fewer ranks, and how it grew there.

# As many steps as take no more messages than this, but one at least.
ENOUGH = 100_000


class Growth:
    """Messages of a step, by the numbers of ranks for which they are known.

    >>> growth = Growth()
    >>> growth.known.update({4: 24.0, 8: 112.0})               # a ring's: 2 (p - 1) p
    >>> round(growth.at(16))
    523
    """

    def __init__(self) -> None:
        self.known: dict[int, float] = {}

    def at(self, ranks: int) -> float:
        """The number, known or to be expected; 0 where nothing is known."""
        if ranks in self.known:
            return self.known[ranks]
        some = [(p, count) for p, count in sorted(self.known.items()) if p > 1 and count]
        if not some:
            return 0.0
        power = 2.0
        if len(some) > 1:
            (p, before), (q, after) = some[-2:]
            power = min(max(math.log(after / before) / math.log(q / p), 1.0), 2.5)
        last, count = some[-1]
        return float(count * (ranks / last) ** power)

    def of(self, way: Way, length: Length) -> float:
        """Messages of a run of this length."""
        return self.at(way.ranks) * length.batches / way.together

    def affordable(self, way: Way, most: int) -> Length:
        """As much of a run as may be simulated; a refusal where the least of it is too much."""
        length = self.shortened(way, way.length(), min(ENOUGH, most))
        if (expected := self.of(way, length)) > most:
            raise UsageError(
                f"would take about {expected:,.0f} messages; at most {most:,} are simulated (--messages)"
            )
        return length

    def shortened(self, way: Way, length: Length, most: float) -> Length:
        """A run that takes at most so many messages, or the least that says something."""
        if (expected := self.of(way, length)) <= most:
            return length
        return way.length(max(1, int(length.batches * most / expected)))


# ---- Finding out what a point loses its time to: the same steps again, in worlds in which one cost is none.

# Simulated messages of all the worlds of one number of ranks together, unless it is the one where scaling stops.
MOST_MESSAGES = 300_000
# What buys this part of what is left, once the first reason is gone, is told too; so often.
ALSO, OFTEN = 0.2, 2
Timed = Callable[[Way, World, Length], Timing]


class Explanation:
    """The reasons of one strategy's points."""

    def __init__(self, timed: Timed, growth: Growth, most: int) -> None:
        self._timed, self._growth, self._most = timed, growth, most

    def cheap(self, way: Way, point: Point, length: Length) -> Point:
        """The point with its reasons, where finding them takes few messages."""
        length = self._growth.shortened(way, length, MOST_MESSAGES / len(REASONS))
        if self._growth.of(way, length) * len(REASONS) > MOST_MESSAGES:
            return point
        return self._explained(way, point, length)

    def certain(self, way: Way, point: Point) -> Point:
        """The point with its reasons, by the shortest run, unless that takes more messages than one may."""
        length = way.length(1)
        return point if self._growth.of(way, length) > self._most else self._explained(way, point, length)

    def _explained(self, way: Way, point: Point, length: Length) -> Point:
        world, step = way.world, point.step_seconds
        base = self._timed(way, world, length).seconds

        def seconds(reason: str) -> float:
            return self._timed(way, world.without(reason), length).seconds * step / base

        # One rank alone sends nothing, and its computing is what others are compared with.
        able = REASONS if way.ranks > 1 else ("memory",)
        found = measure_without(seconds, [reason for reason in able if world.has(reason)])
        if way.masters:
            found["idle"] = step * way.workers / way.ranks
        if (used := way.used(length)) < 1:
            found["batches"] = step * used
        return replace(point, without=found)

    def then(self, way: Way, point: Point, reason: str | None) -> list[tuple[str, float]]:
        """What is lost most to when the first reason is gone, and when that is gone too, with the speedups."""
        runs = OFTEN * len(REASONS)
        length = self._growth.shortened(way, way.length(), MOST_MESSAGES / runs)
        if reason not in REASONS or self._growth.of(way, length) * runs > MOST_MESSAGES:
            return []
        gone: list[str] = [reason]
        told: list[tuple[str, float]] = []
        base = self._timed(way, way.world, length).seconds
        seconds = self._timed(way, way.world.without(reason), length).seconds
        while len(told) < OFTEN:
            world = way.world.without(*gone)
            rest = [other for other in REASONS if world.has(other) and other not in gone]
            left = {other: self._timed(way, world.without(other), length).seconds for other in rest}
            best = min(left, key=left.__getitem__)
            if left[best] > (1 - ALSO) * seconds:
                break
            seconds = left[best]
            gone.append(best)
            told.append((best, point.speedup * base / seconds))
        return told


log = logging.getLogger(__name__)
# Simulated messages that one case may take.
MOST = 3_000_000
# Learning how messages grow with the ranks, where the first number of them is larger than these.
TRIED = (4, 8)
Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One strategy on every number of ranks."""

    strategy: str
    points: tuple[Point, ...]
    left_out: dict[int, str]
    """Why there is no point for a number of ranks."""
    limit: Limit | None
    told: str
    """Where it stops scaling, and why, in words."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What came out."""

    serial: Timing
    serial_accuracy: float | None
    curves: tuple[Curve, ...]


@dataclass(kw_only=True)
class Scaling:
    """A prediction in the making.

    >>> from paceline.training.config import Config
    >>> from paceline.data import load
    >>> from paceline.vmpi.curves import Curves
    >>> from paceline.machine import Costs
    >>> from paceline.vmpi.network import Network
    >>> costs = Costs(work={"gradient": Curves.of({1: [[1, 1e-4], [64, 6.4e-3]]})})
    >>> bench = Bench(config=Config(data="iris", model="mlp:8", batch=64), data=load("iris"), costs=costs,
    ...               network=Network.named("1gbe"))
    >>> [curve] = Scaling(bench=bench, strategies=["sync:allreduce=ring"], ranks=[1, 4]).predict().curves
    >>> [round(point.speedup, 2) for point in curve.points]
    [1.0, 3.35]
    >>> print(curve.told.partition("% of it is ")[2].partition(": without")[0])
    the latency of 6 messages one after the other, 40 us each
    """

    bench: Bench
    strategies: Sequence[str]
    ranks: Sequence[int]
    accuracy: bool = False
    most: int = MOST
    tell: Tell = field(default=lambda text: None)

    def predict(self) -> Prediction:
        """Simulate everything."""
        names = [named(strategy) for strategy in self.strategies]
        for name in names:
            check(self.bench.job(name, self.bench.config), self.ranks)
        self.tell("serial")
        serial = self.bench.way("serial", 1)
        self._serial = serial.timed(serial.world, serial.length())
        self._accuracies: dict[int, float | None] = {}
        own = self._serial_accuracy(serial.batch) if self.accuracy else None
        if self.accuracy and own is None:
            raise UsageError(f"--accuracy needs classes; {self.bench.data.name} has none")
        return Prediction(
            serial=self._serial,
            serial_accuracy=own,
            curves=tuple(self._curve(name, own) for name in dict.fromkeys(names)),
        )

    def _curve(self, name: str, serial_accuracy: float | None) -> Curve:
        points: dict[int, Point] = {}
        left_out: dict[int, str] = {}
        growth = Growth()
        reasons = Explanation(self._timed, growth, self.most)
        for ranks in sorted(set(self.ranks)):
            self.tell(f"{name}, {ranks:,} ranks")
            try:
                points[ranks] = self._point(self.bench.way(name, ranks), growth, reasons)
            except UsageError as refused:
                left_out[ranks] = str(refused)
        if not points:
            return Curve(
                strategy=name, points=(), left_out=left_out, limit=None, told="nothing was simulated"
            )
        found = limit(list(points.values()), serial_accuracy)
        self.tell(f"{name}, {found.shown.ranks:,} ranks, why")
        way = self.bench.way(name, found.shown.ranks)
        if not found.shown.without:
            points[way.ranks] = reasons.certain(way, found.shown)
            found = limit(list(points.values()), serial_accuracy)
        if found.reason in ("staleness", "accuracy") and serial_accuracy is not None:
            because = learned(found, serial_accuracy)
        else:
            around = Circumstances(world=way.world, ranks=way.ranks, each=way.batches_per_epoch)
            because = why(found.shown, around, reasons.then(way, found.shown, found.reason))
        return Curve(
            strategy=name,
            points=tuple(points.values()),
            left_out=left_out,
            limit=found,
            told=f"{where(found)}. {because}",
        )

    def _point(self, way: Way, growth: Growth, reasons: Explanation) -> Point:
        if way.ranks > TRIED[-1] and not growth.known:
            self._learn(way.name, growth)
        length = growth.affordable(way, self.most)
        timing = self._timed(way, way.world, length)
        growth.known[way.ranks] = timing.messages
        point = Point(
            ranks=way.ranks,
            step_seconds=timing.seconds,
            samples_per_second=timing.samples_per_second,
            speedup=timing.samples_per_second / self._serial.samples_per_second,
            messages=timing.messages,
            bytes=timing.bytes,
            steps=timing.steps,
        )
        point = reasons.cheap(way, point, length)
        return self._accurate(way, point, growth) if self.accuracy else point

    def _timed(self, way: Way, world: World, length: Length) -> Timing:
        try:
            return way.timed(world, length)
        except SimulationError as error:
            raise UsageError(f"cannot be simulated: {error}".partition("\n")[0]) from error

    def _learn(self, name: str, growth: Growth) -> None:
        for ranks in TRIED:
            try:
                way = self.bench.way(name, ranks)
                growth.known[ranks] = self._timed(way, way.world, way.length(1)).messages
            except UsageError:
                continue

    # ---- accuracy

    def _accurate(self, way: Way, point: Point, growth: Growth) -> Point:
        """The point with what a whole run, really computed, learns."""
        if way.is_serial_sgd:
            return replace(point, accuracy=self._serial_accuracy(way.batch))
        whole = way.whole_run
        if growth.of(way, whole) > self.most:
            log.warning("%s on %d ranks: a whole run has too many messages; no accuracy", way.name, way.ranks)
            return point
        self.tell(f"{way.name}, {way.ranks:,} ranks, accuracy")
        fitted = self.bench.run(way, way.world, whole, time_only=False)
        return replace(point, accuracy=_accuracy(fitted), staleness=_staleness(fitted))

    def _serial_accuracy(self, batch: int) -> float | None:
        """What serial SGD learns with a batch of this size: ranks that take pieces of it learn the same."""
        if batch not in self._accuracies:
            bench = replace(
                self.bench,
                config=replace(self.bench.config, batch=batch, batch_per_rank=None, lr_scaling="none"),
            )
            serial = bench.way("serial", 1)
            self._accuracies[batch] = _accuracy(
                bench.run(serial, serial.world, serial.whole_run, time_only=False)
            )
        return self._accuracies[batch]


def _accuracy(fitted: Fitted) -> float | None:
    return 0.0 if fitted.diverged is not None and fitted.test_accuracy is None else fitted.test_accuracy


def _staleness(fitted: Fitted) -> float | None:
    found = fitted.findings.get("staleness")
    return float(found["mean"]) if isinstance(found, dict) and "mean" in found else None
