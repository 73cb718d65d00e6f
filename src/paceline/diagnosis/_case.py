"""One strategy's runs on one problem, by number of ranks, beside the serial baseline: what rules look at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from paceline.diagnosis._computing import Line, given_line, line_of
from paceline.diagnosis._scale import Scale, fastest, scale_of
from paceline.job import strategy_in
from paceline.record import Run
from paceline.sim._bottleneck import POINT, Limit, Point, limit
from paceline.strategies import Strategy

if TYPE_CHECKING:
    from paceline.sim._tables import Curves

# By which part a test loss may be higher, where there are no classes.
TENTH = 0.1
# Samples must have this part in the time of a gradient, or a line through noise is taken for a cost. Processes that do
# the same differ by more where they were timed than costs do that were measured on purpose.
GROWS = {"timed": 0.2, "given": 0.05, "proportion": 0.0}


@dataclass(frozen=True, kw_only=True)
class Worse:
    """How much less was learned than by serial training."""

    amount: float
    """Of accuracy; without classes, the part by which the serial run's test loss is lower."""
    words: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """What a rule is a function of."""

    strategy: str
    """As records spell it."""
    way: str
    """The same, and how it was run where that is not the usual way."""
    simulated: str
    scales: tuple[Scale, ...]
    """By rising numbers of ranks."""
    serials: tuple[Scale, ...]
    """Serial runs of the same problem, fastest first."""
    costs: Curves | None = None
    """What a gradient was given to cost, by its samples: of these runs, or of others simulated as on their processor."""
    beside: tuple[Case, ...] = ()
    """All strategies' cases of the problem, this one among them."""

    @property
    def name(self) -> str:
        """Of the strategy, without its options."""
        return self.strategy.partition(":")[0]

    @cached_property
    def options(self) -> Strategy | None:
        """The strategy itself; None for somebody's own."""
        return strategy_in(self.strategy)

    def option(self, name: str, otherwise: Any = None) -> Any:
        """One of its options."""
        return getattr(self.options, name, otherwise)

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings of the run that is looked at."""
        return self.at.runs[0].config

    @property
    def whole_batches(self) -> bool:
        """Whether a rank computes whole batches, and not pieces of one."""
        return bool(self.option("whole_batches", False))

    @property
    def serial(self) -> Scale | None:
        """What speedups are against."""
        return self.serials[0] if self.serials else None

    @property
    def peer(self) -> Scale | None:
        """The serial runs with as many threads as a rank has here: whose computing can be compared."""
        return next((scale for scale in self.serials if scale.threads == self.at.threads), None)

    def speedup(self, scale: Scale) -> float | None:
        """Against the fastest serial runs; None where there are none, or where it diverged."""
        if self.serial is None or scale.diverged or scale.seconds <= 0:
            return None
        return self.serial.seconds / scale.seconds

    # ---- where scaling stops

    @cached_property
    def limit(self) -> Limit | None:
        """Where it stops scaling; None where there is nothing to compare with, or where all diverged."""
        points = self._points
        if not points or self.serial is None:
            return None
        accuracy = self._reference("test_accuracy")
        if points[0].ranks > 1:
            alone = Point(
                ranks=1, step_seconds=1.0, samples_per_second=1.0, speedup=1.0, accuracy=accuracy
            )  # fmt: skip
            points = [alone, *points]
        return limit(points, accuracy)

    @cached_property
    def at(self) -> Scale:
        """Where causes are looked for: where it stops scaling; if it never does better than serial, where it does best."""
        good = [scale for scale in self.scales if not scale.diverged] or list(self.scales)
        stops = self.limit
        if stops is None:
            return good[-1]
        several = [point for point in self._points if point.ranks > 1]
        if stops.at.ranks == 1 and stops.reason not in ("staleness", "accuracy") and several:
            stops = limit(several)
        return next((scale for scale in good if scale.ranks >= stops.shown.ranks), good[-1])

    @cached_property
    def _points(self) -> list[Point]:
        return [point for scale in self.scales if (point := self._point(scale)) is not None]

    def _point(self, scale: Scale) -> Point | None:
        speedup = self.speedup(scale)
        if speedup is None:
            return None
        timing, accuracy = scale.timing, scale.means("test_accuracy")
        lost = {part: timing.total - getattr(timing, part) for part in ("exchange", "wait", "answer")}
        return Point(
            ranks=scale.ranks,
            step_seconds=timing.total,
            samples_per_second=1.0,
            speedup=speedup,
            without=lost if timing.total > 0 else {},
            accuracy=None if accuracy is None else accuracy[0],
            staleness=scale.found("staleness", "mean"),
        )

    # ---- what was learned

    def _reference(self, name: str) -> float | None:
        known = [found[0] for scale in self.serials if (found := scale.means(name)) is not None]
        if not known:
            return None
        return max(known) if name == "test_accuracy" else min(known)

    @cached_property
    def worse(self) -> Worse | None:
        """By how much less was learned than by serial training; None where it is little, or not known.

        Little is a point of accuracy, or a tenth of the loss, or what seeds alone make.
        """
        for name in ("test_accuracy", "test_loss"):
            mine, than = self.at.means(name), self._reference(name)
            if mine is None or than is None:
                continue
            seeds = len(self.at.runs)
            once = " (one seed)" if seeds == 1 else f" (mean of {seeds} seeds)"
            if name == "test_accuracy":
                lost = than - mine[0]
                words = f"test accuracy is {100 * mine[0]:.1f} %, serial's {100 * than:.1f} %{once}"
                return Worse(amount=lost, words=words) if lost > POINT + mine[1] else None
            lost = 1 - than / mine[0] if mine[0] > 0 else 0.0
            words = f"test loss is {mine[0]:.3g}, serial's {than:.3g}{once}"
            return Worse(amount=lost, words=words) if mine[0] > than * (1 + TENTH) + mine[1] else None
        return None

    # ---- computing

    @cached_property
    def computing(self) -> Line:
        """How long a gradient takes by its samples, on a rank here."""
        timing = self.at.timing
        alike = [s for s in (*self.serials, *self.scales) if s.threads == self.at.threads]
        alike = [scale for scale in alike if not scale.oversubscribed or scale is self.at]
        timed = None if self.simulated and self.costs else line_of(scale.timing.by_count for scale in alike)
        if (timed is None or not self.grows(timed)) and self.costs is not None and timing.samples:
            timed = given_line(self.costs, timing.samples, self.at.place.on_node)
        if timed is None:
            return Line(fixed=0.0, each=timing.compute / (timing.samples or 1.0), basis="proportion")
        return timed.through(timing.samples, timing.compute)

    def grows(self, line: Line) -> bool:
        """Whether by this line samples have a part worth the name in the time of a gradient here."""
        samples = self.at.timing.samples
        return line.each * samples > GROWS[line.basis] * line.seconds(samples)

    @cached_property
    def alone(self) -> Line | None:
        """How long a gradient takes by its samples where nobody else computes; None where that is not known."""
        peer, samples = self.peer, self.at.timing.samples
        if peer is None:
            return None
        if self.simulated and self.costs is not None and samples:
            line = given_line(self.costs, samples, 1)
            return None if line is None else line.through(samples, self.costs.at(samples, 1))
        return line_of([peer.timing.by_count])


def cases_of(runs: Sequence[Run]) -> list[Case]:
    """One case for each strategy among the runs of one problem, real ones first; serial runs are what they are held to."""
    # Reports have diagnoses in them: this way round the two can be imported in either order.
    from paceline.report._rows import simulated_as, way_of

    groups: dict[tuple[str, str], dict[tuple[int, int], list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        key = (simulated_as(run), way_of(run))
        groups[key][run.config["ranks"], run.summary["threads"]].append(run)
    scales = {
        key: [scale_of(members) for _, members in sorted(places.items())] for key, places in groups.items()
    }
    serial = {
        bool(virtual): sorted(
            (s for key, found in scales.items() if _is_serial(key) and bool(key[0]) == virtual for s in found
             if not s.diverged),
            key=lambda scale: scale.seconds,
        )
        for virtual in (False, True)
    }  # fmt: skip
    cases = [
        Case(
            strategy=str(found[0].runs[0].config["strategy"]),
            way=key[1],
            simulated=key[0],
            scales=fastest(found),
            serials=tuple((serial[True] if key[0] else []) or serial[False]),
            costs=_costs(found[0].runs[0], runs),
        )
        for key, found in sorted(scales.items())
        if not _is_serial(key)
    ]
    return [replace(case, beside=tuple(cases)) for case in cases]


def _is_serial(key: tuple[str, str]) -> bool:
    return key[1].partition(" ")[0] == "serial"


def _costs(run: Run, others: Sequence[Run]) -> Curves | None:
    """What a gradient was given to cost: in a simulated run itself; beside a real one, in those as on its processor."""
    from paceline.sim.machine import Costs

    here = run.environment.get("processor")
    known = [run] if run.simulated else sorted(others, key=lambda other: other.folder.name)
    for other in known:
        values = (other.simulated or {}).get("costs")
        alike = run.simulated or (
            values and values.get("processor") == here and other.summary["threads"] == run.summary["threads"]
        )
        if values and alike and "gradient" in values.get("work", {}):
            return Costs.of(values).work["gradient"]
    return None
