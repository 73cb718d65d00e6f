"""One strategy's runs on one problem, by number of ranks, beside the serial baseline: what rules look at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import hypot
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from paceline.diagnosis._place import Place, place_of
from paceline.diagnosis._timing import Line, Timing, given_line, line_of, timing_of
from paceline.diagnosis._words import count
from paceline.record import Run
from paceline.simulate.bottleneck import POINT, Limit, Point, limit
from paceline.strategies import Strategy
from paceline.training.job import built_in

if TYPE_CHECKING:
    from paceline.vmpi import Curves


# ---- The runs of one strategy on one number of ranks.

# Strategies whose ranks come to one place in every step, though they measure no waiting in it.
MEETING = ("main-worker",)


@dataclass(frozen=True, kw_only=True, eq=False)
class Scale:
    """The runs of one strategy on one number of ranks, that differ in nothing but their seed."""

    runs: tuple[Run, ...]
    timing: Timing
    place: Place

    @property
    def ranks(self) -> int:
        """How many there are."""
        return int(self.runs[0].config["ranks"])

    @property
    def threads(self) -> int:
        """Of a rank."""
        return int(self.runs[0].summary["threads"])

    @property
    def seconds(self) -> float:
        """Of training, mean over the runs."""
        return fmean(run.summary["train_seconds"] for run in self.runs)

    @property
    def diverged(self) -> str | None:
        """Why the first of them that diverged did."""
        return next((str(run.summary["diverged"]) for run in self.runs if run.summary.get("diverged")), None)

    @property
    def oversubscribed(self) -> bool:
        """Whether there are more threads on a node than cores."""
        return not self.fits(self.ranks)

    def fits(self, ranks: int) -> bool:
        """Whether so many ranks, with as many threads each, would have a core for each thread where these ran."""
        # What a simulated rank computes was measured with its threads; they take no core of another's.
        return self.place.fits(ranks, self.threads if self.runs[0].simulated is None else 1)

    def means(self, name: str) -> tuple[float, float] | None:
        """The mean of a figure over the runs, and how far that may be off (its standard error); None: unknown."""
        values = [value for run in self.runs if (value := run.summary.get(name)) is not None]
        if not values or len(values) < len(self.runs):
            return None
        return fmean(values), stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0

    def found(self, *keys: str) -> Any:
        """Something that the first run's strategy found out; None where it did not."""
        value: Any = self.runs[0].summary.get("findings") or {}
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value


def scale_of(members: Sequence[Run]) -> Scale:
    """Runs of one strategy on one number of ranks and threads."""
    strategy = str(members[0].config["strategy"])
    found, name = built_in(strategy), strategy.partition(":")[0]
    together = bool(getattr(found, "in_step", True)) or name in MEETING
    timing = timing_of(members, together=together, served=name == "parameter-server")
    return Scale(runs=tuple(members), timing=timing, place=place_of(members[0]))


def fastest(scales: Sequence[Scale]) -> tuple[Scale, ...]:
    """Of those on the same number of ranks, with other threads, the fastest that did not diverge."""
    by_ranks: dict[int, list[Scale]] = defaultdict(list)
    for scale in scales:
        by_ranks[scale.ranks].append(scale)
    return tuple(
        min(those, key=lambda scale: (scale.diverged is not None, scale.seconds))
        for _, those in sorted(by_ranks.items())
    )


# By which part a test loss may be higher, where there are no classes.
TENTH = 0.1
# What two sums of the same figures may differ by.
ROUNDING = 1e-9
# Gradients of several sizes must differ by this part, or samples have this part in one's time, or a line through noise is
# taken for a cost. Processes that do the same differ by more where they were timed than costs that were measured do.
GROWS = {"timed": 0.2, "given": 0.05, "proportion": 0.0}

# What stands for accuracies where scaling is seen to stop: as much was learned as by serial training, or less.
LEARNED, LESS = 1.0, 0.0


@dataclass(frozen=True, kw_only=True)
class Worse:
    """How much less was learned than by serial training."""

    amount: float
    """Of accuracy; without classes, the part by which the serial run's test loss is lower."""
    ranks: int
    figure: str
    """What was reached, as it is spelled."""
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
    looked_at: int | None = None
    """The number of ranks where causes are looked for; None: where it stops scaling."""

    @property
    def name(self) -> str:
        """Of the strategy, without its options."""
        return self.strategy.partition(":")[0]

    @cached_property
    def options(self) -> Strategy | None:
        """The strategy itself; None for somebody's own."""
        return built_in(self.strategy)

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

    @property
    def astray(self) -> bool:
        """Whether a run diverged, on whatever number of ranks."""
        return any(scale.diverged for scale in self.scales)

    # ---- where scaling stops

    @cached_property
    def limit(self) -> Limit | None:
        """Where it stops scaling; None where there is nothing to compare with, or where all diverged."""
        points = self._points
        if not points or self.serial is None:
            return None
        if points[0].ranks > 1 or points[0].accuracy != LEARNED:
            alone = Point(
                ranks=1, step_seconds=1.0, samples_per_second=1.0, speedup=1.0, accuracy=LEARNED
            )  # fmt: skip
            points = [alone, *points]
        return limit(points, LEARNED)

    @cached_property
    def at(self) -> Scale:
        """Where causes are looked for: where it stops scaling; if it never does better than serial, where it does best."""
        if self.looked_at is not None:
            return next(scale for scale in self.scales if scale.ranks == self.looked_at)
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
        timing = scale.timing
        lost = {part: timing.total - getattr(timing, part) for part in ("exchange", "wait", "answer")}
        return Point(
            ranks=scale.ranks,
            step_seconds=timing.total,
            samples_per_second=1.0,
            speedup=speedup,
            without=lost if timing.total > 0 else {},
            accuracy=LEARNED if self.loss(scale) is None else LESS,
            staleness=scale.found("staleness", "mean"),
        )

    # ---- what was learned

    def _reference(self, name: str) -> tuple[float, float] | None:
        """The best serial mean, and how far that may be off."""
        known = [found for scale in self.serials if (found := scale.means(name)) is not None]
        if not known:
            return None
        return max(known) if name == "test_accuracy" else min(known)

    @cached_property
    def worse(self) -> Worse | None:
        """By how much less was learned where causes are looked for; the words say where most is lost beyond that."""
        here = self.loss(self.at)
        if here is None:
            return None
        beyond = [scale for scale in self.scales if scale.ranks > self.at.ranks and not scale.diverged]
        found = [lost for scale in beyond if (lost := self.loss(scale)) is not None]
        most = max(found, key=lambda lost: lost.amount, default=here)
        if most.amount <= here.amount:
            return here
        return replace(here, words=f"{here.words}; on {count(most.ranks, 'rank')} it is {most.figure}")

    def loss(self, scale: Scale) -> Worse | None:
        """By how much less was learned there than by serial training; None where it is little, or not known.

        Little is a point of accuracy, or a tenth of the loss, or what seeds alone make of both means. There is no other
        criterion: where scaling stops, what causes there are and what is advised go by this one.
        """
        for name in ("test_accuracy", "test_loss"):
            mine, than = scale.means(name), self._reference(name)
            if mine is None or than is None:
                continue
            once = " (one seed)" if len(scale.runs) == 1 else f" (mean of {len(scale.runs)} seeds)"
            accuracy = name == "test_accuracy"
            away = than[0] - mine[0] if accuracy else mine[0] - than[0]
            if away <= (POINT + ROUNDING if accuracy else TENTH * than[0]) or away <= hypot(mine[1], than[1]):
                return None
            figure, serial = (f"{100 * f[0]:.1f} %" if accuracy else f"{f[0]:.3g}" for f in (mine, than))
            return Worse(
                amount=away if accuracy else away / mine[0],
                ranks=scale.ranks,
                figure=figure,
                words=f"{name.replace('_', ' ')} is {figure}, serial's {serial}{once}",
            )
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
        if line.basis == "timed":
            return line.rise > GROWS[line.basis]
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
    from paceline.compare.rows import simulated_as, way_of

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
    from paceline.machine import Costs

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
