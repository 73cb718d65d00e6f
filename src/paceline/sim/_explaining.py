"""Finding out what a point loses its time to: the same steps again, in worlds in which one cost is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from paceline.sim._bottleneck import Point, measure_without
from paceline.sim._case import Length, Timing, Way
from paceline.sim._growth import Growth
from paceline.sim._whatif import REASONS, World

# Simulated messages of all the worlds of one number of ranks together, unless it is the one where scaling stops.
MOST = 300_000
# What buys this part of what is left, once the first reason is gone, is told too; so often.
ALSO, OFTEN = 0.2, 2
Timed = Callable[[Way, World, Length], Timing]


class Explanation:
    """The reasons of one strategy's points."""

    def __init__(self, timed: Timed, growth: Growth, most: int) -> None:
        self._timed, self._growth, self._most = timed, growth, most

    def cheap(self, way: Way, point: Point, length: Length) -> Point:
        """The point with its reasons, where finding them takes few messages."""
        length = self._growth.shortened(way, length, MOST / len(REASONS))
        if self._growth.of(way, length) * len(REASONS) > MOST:
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
        length = self._growth.shortened(way, way.length(), MOST / runs)
        if reason not in REASONS or self._growth.of(way, length) * runs > MOST:
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
