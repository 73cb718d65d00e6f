"""What rules read and what they find: one strategy's runs on one problem, and the causes that keep it from scaling.

A `Case` has the runs by number of ranks, with nodes and the serial baseline. A `DiagnosisRule` finds a `Cause` in it, and a
`Diagnosis` has all of a strategy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import hypot
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.collectives import CostModel, Nodes, cost, has_cost
from paceline.compare.laws import fit_line
from paceline.compare.metric import ACCURACY, LOSS, Metric, metric_named, names_in, read_last, read_test
from paceline.compare.rows import describe_simulation, ways_of
from paceline.compare.theory import facts_of
from paceline.diagnosis.timing import Line, StepTiming, fit_given_costs, line_of, timing_of
from paceline.errors import UsageError
from paceline.record import Run
from paceline.record.environment import node_of
from paceline.simulate.bottleneck import Limit, ScalingPoint, find_limit
from paceline.strategies import Facts
from paceline.text import count

if TYPE_CHECKING:
    from paceline.machine import Machine
    from paceline.vmpi import Curves, Network


@dataclass(frozen=True, kw_only=True, eq=False)
class Scale:
    """The runs of one strategy on one number of ranks, which differ only in their seeds."""

    runs: tuple[Run, ...]
    timing: StepTiming
    place: RunPlace

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return int(self.runs[0].config["ranks"])

    @property
    def threads(self) -> int:
        """Threads per rank."""
        return int(self.runs[0].summary["threads"])

    @property
    def seconds(self) -> float:
        """Seconds of training, mean over the runs."""
        return fmean(run.summary["train_seconds"] for run in self.runs)

    @property
    def diverged(self) -> str | None:
        """The reason of the first run that diverged; None if none did."""
        return next((str(run.summary["diverged"]) for run in self.runs if run.summary.get("diverged")), None)

    @property
    def oversubscribed(self) -> bool:
        """True if a node has more threads than cores."""
        return not self.fits(self.ranks)

    def fits(self, ranks: int) -> bool:
        """Return True if this many ranks, with the same threads each, would have a core per thread where these ran."""
        # The costs of a simulated rank were measured with its threads; they take no cores from other ranks.
        return self.place.fits(ranks, self.threads if self.runs[0].simulated is None else 1)

    def means(self, metric: Metric, where: str) -> tuple[float, float] | None:
        """Return the mean of a metric over the runs, on "test" or "validation" samples, and its standard error; or None."""
        find = read_test if where == "test" else read_last
        values = [value for run in self.runs if (value := find(run, metric.name)) is not None]
        if not values or len(values) < len(self.runs):
            return None
        return fmean(values), stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0

    def finding(self, *keys: str) -> Any:
        """Return a finding of the first run's strategy; None if it has none."""
        value: Any = self.runs[0].summary.get("findings") or {}
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value


def scale_of(members: Sequence[Run]) -> Scale:
    """Collect the runs of one strategy on one number of ranks and threads."""
    facts = facts_of(members[0])
    together = facts.in_step or not facts.whole_batches  # ranks that divide a batch synchronize in every step
    served = facts.whole_batches and facts.workers < members[0].config["ranks"]
    timing = timing_of(members, together=together, served=served)
    return Scale(runs=tuple(members), timing=timing, place=place_of(members[0]))


def fastest(scales: Sequence[Scale]) -> tuple[Scale, ...]:
    """Keep one number of threads for each number of ranks: the fastest, of those that did not diverge if there are any."""
    by_ranks: dict[int, list[Scale]] = defaultdict(list)
    for scale in scales:
        by_ranks[scale.ranks].append(scale)
    return tuple(
        min(those, key=lambda scale: (scale.diverged is not None, scale.seconds))
        for _, those in sorted(by_ranks.items())
    )


# The tolerance between two sums of the same figures.
ROUNDING = 1e-9
# Gradients of several sizes must differ by this part, or samples must take this part of a gradient's time; otherwise the
# line goes through noise. Times of real processes vary more than measured costs do.
GROWS = {"timed": 0.2, "given": 0.05, "proportion": 0.0}

# Substitutes for accuracies when looking for the scaling limit: as much was learned as by serial training, or less.
LEARNED, LESS = 1.0, 0.0


@dataclass(frozen=True, kw_only=True)
class Worse:
    """The loss of accuracy, or of another measure of quality, compared with serial training."""

    metric: Metric
    where: str
    """The samples that it was computed on: "test" or "validation"."""
    amount: float
    """Lost accuracy; of another metric, the fraction by which it is worse."""
    ranks: int
    figure: str
    """The value that was reached, as text."""
    words: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One strategy on one problem: the argument of every rule."""

    strategy: str
    """As it is written in records."""
    way: str
    """The same, followed by how it was run if that is unusual."""
    simulated: str
    scales: tuple[Scale, ...]
    """By rising numbers of ranks."""
    serials: tuple[Scale, ...]
    """Serial runs of the same problem and with the same optimizer, if there are any, by rising numbers of threads."""
    costs: Curves | None = None
    """The cost of a gradient by its samples that these simulated runs were given, or others for the same processor."""
    metrics: tuple[Metric, ...] = (ACCURACY, LOSS)
    """The measures of quality, the most important first."""
    beside: tuple[Case, ...] = ()
    """The cases of all strategies of the problem, including this one."""
    looked_at: int | None = None
    """The number of ranks at which to look for causes; None: the scaling limit."""

    @cached_property
    def facts(self) -> Facts:
        """The facts about the strategy at the rank count examined."""
        return facts_of(self.at.runs[0])

    def option(self, name: str, otherwise: Any = None) -> Any:
        """Return one of the strategy's options."""
        return self.facts.options.get(name, otherwise)

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings of the runs examined."""
        return self.at.runs[0].config

    @property
    def whole_batches(self) -> bool:
        """True if a rank computes whole batches rather than pieces."""
        return self.facts.whole_batches

    @property
    def serial(self) -> Scale | None:
        """The runs that speedups are measured against."""
        return self.serials[0] if self.serials else None

    @property
    def other_optimizer(self) -> bool:
        """True if the serial runs make their steps by another optimizer, which may explain differences in accuracy."""
        return bool(self.serials) and _optimizer(self.serials) != _optimizer(self.scales)

    @property
    def peer(self) -> Scale | None:
        """The serial runs with as many threads as a rank has here, whose computing can be compared."""
        return next((scale for scale in self.serials if scale.threads == self.at.threads), None)

    def speedup(self, scale: Scale) -> float | None:
        """Return the speedup over the serial runs with the fewest threads; None if there are none, or if it diverged."""
        if self.serial is None or scale.diverged or scale.seconds <= 0:
            return None
        return self.serial.seconds / scale.seconds

    @property
    def astray(self) -> bool:
        """True if a run diverged, on any number of ranks."""
        return any(scale.diverged for scale in self.scales)

    # ---- where scaling stops

    @cached_property
    def judged(self) -> tuple[Scale, ...]:
        """The runs that show how it scales: without those on more ranks than cores, unless no others use several ranks."""
        fit = tuple(scale for scale in self.scales if not scale.oversubscribed)
        return fit if any(scale.ranks > 1 and not scale.diverged for scale in fit) else self.scales

    @cached_property
    def limit(self) -> Limit | None:
        """The scaling limit; None if there is nothing to compare with, or if all runs diverged."""
        points = self._points
        if not points or self.serial is None:
            return None
        if points[0].ranks > 1 or points[0].accuracy != LEARNED:
            alone = ScalingPoint(
                ranks=1, step_seconds=1.0, samples_per_second=1.0, speedup=1.0, accuracy=LEARNED
            )  # fmt: skip
            points = [alone, *points]
        return find_limit(points, LEARNED)

    @cached_property
    def at(self) -> Scale:
        """The runs examined: at the scaling limit or, if it is never faster than serial, the fastest ones."""
        if self.looked_at is not None:
            return next(scale for scale in self.scales if scale.ranks == self.looked_at)
        good = [scale for scale in self.judged if not scale.diverged] or list(self.judged)
        stops = self.limit
        if stops is None:
            return good[-1]
        several = [point for point in self._points if point.ranks > 1]
        if stops.at.ranks == 1 and stops.reason not in ("staleness", "accuracy") and several:
            stops = find_limit(several)
        return next((scale for scale in good if scale.ranks >= stops.shown.ranks), good[-1])

    @cached_property
    def _points(self) -> list[ScalingPoint]:
        return [point for scale in self.judged if (point := self._point(scale)) is not None]

    def _point(self, scale: Scale) -> ScalingPoint | None:
        speedup = self.speedup(scale)
        if speedup is None:
            return None
        timing = scale.timing
        lost = {part: timing.total - getattr(timing, part) for part in ("exchange", "wait", "answer")}
        return ScalingPoint(
            ranks=scale.ranks,
            step_seconds=timing.total,
            samples_per_second=1.0,
            speedup=speedup,
            without=lost if timing.total > 0 else {},
            accuracy=LEARNED if self.loss(scale) is None else LESS,
            staleness=scale.finding("staleness", "mean"),
        )

    # ---- accuracy

    def _reference(self, metric: Metric, where: str) -> tuple[float, float] | None:
        """Return the best serial mean and its standard error."""
        known = [found for scale in self.serials if (found := scale.means(metric, where)) is not None]
        return min(known, key=lambda found: metric.key(found[0]), default=None)

    def measure(self, scale: Scale) -> tuple[Metric, str] | None:
        """Return the first metric that is known there and for serial runs, and on which samples."""
        return next(
            (
                (metric, where)
                for where in ("test", "validation")
                for metric in self.metrics
                if scale.means(metric, where) and self._reference(metric, where)
            ),
            None,
        )

    @cached_property
    def worse(self) -> Worse | None:
        """The loss of accuracy of the runs examined; the words mention where even more is lost."""
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
        """Return the loss of accuracy there compared with serial training; None if it is small or unknown.

        Small is up to a point of accuracy, a tenth of another metric, or what seeds alone explain. This is the only
        criterion: the scaling limit, the causes and the advice all depend on it.
        """
        if (found := self.measure(scale)) is None:
            return None
        metric, where = found
        mine, than = scale.means(metric, where), self._reference(metric, where)
        if mine is None or than is None:
            return None
        away = metric.key(mine[0]) - metric.key(than[0])
        if away <= metric.slack(than[0]) + ROUNDING or away <= hypot(mine[1], than[1]):
            return None
        once = " (one seed)" if len(scale.runs) == 1 else f" (mean of {len(scale.runs)} seeds)"
        other = " with another optimizer" if self.other_optimizer else ""
        figure, serial = (f"{100 * f[0]:.1f} %" if metric.percent else f"{f[0]:.3g}" for f in (mine, than))
        part = away if metric.percent else away / max(abs(mine[0]), abs(than[0]))
        return Worse(
            metric=metric,
            where=where,
            amount=part,
            ranks=scale.ranks,
            figure=figure,
            words=f"{metric.heading(where)} is {figure}, serial's {serial}{other}{once}",
        )

    # ---- computing

    @cached_property
    def computing(self) -> Line:
        """The seconds of a gradient by its samples, on a rank here."""
        timing = self.at.timing
        alike = [s for s in (*self.serials, *self.scales) if s.threads == self.at.threads]
        alike = [scale for scale in alike if not scale.oversubscribed or scale is self.at]
        timed = None if self.simulated and self.costs else line_of(scale.timing.by_count for scale in alike)
        if (timed is None or not self.grows(timed)) and self.costs is not None and timing.samples:
            timed = fit_given_costs(self.costs, timing.samples, self.at.place.on_node)
        if timed is None:
            return Line(fixed=0.0, each=timing.compute / (timing.samples or 1.0), basis="proportion")
        return timed.through(timing.samples, timing.compute)

    def grows(self, line: Line) -> bool:
        """Return True if, by this line, samples take a noticeable part of a gradient's time here."""
        if line.basis == "timed":
            return line.rise > GROWS[line.basis]
        samples = self.at.timing.samples
        return line.each * samples > GROWS[line.basis] * line.seconds(samples)

    @cached_property
    def alone(self) -> Line | None:
        """The seconds of a gradient by its samples when no other rank computes; None if unknown."""
        peer, samples = self.peer, self.at.timing.samples
        if peer is None:
            return None
        if self.simulated and self.costs is not None and samples:
            line = fit_given_costs(self.costs, samples, 1)
            return None if line is None else line.through(samples, self.costs.at(samples, 1))
        return line_of([peer.timing.by_count])


def cases_of(runs: Sequence[Run], metric: Metric | None = None) -> list[Case]:
    """Create a case for each strategy among the runs of one problem, real ones first; serial runs are the baseline.

    `metric`: the one that matters most; by default accuracy, then a well-known one of the user's, then the loss.
    """
    own = [known for name in names_in(runs) if (known := metric_named(name)) is not None]
    metrics = tuple(dict.fromkeys([*([] if metric is None else [metric]), ACCURACY, *own, LOSS]))
    groups: dict[tuple[str, str], dict[tuple[int, int], list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run, way in zip(runs, ways_of(runs), strict=True):
        key = (describe_simulation(run), way)
        groups[key][run.config["ranks"], run.summary["threads"]].append(run)
    scales = {
        key: [scale_of(members) for _, members in sorted(places.items())] for key, places in groups.items()
    }
    serial: dict[tuple[bool, str], list[Scale]] = defaultdict(list)
    for key, found in scales.items():
        if _is_serial(key):
            serial[bool(key[0]), _optimizer(found)] += [scale for scale in found if not scale.diverged]
    cases = [
        Case(
            strategy=str(found[0].runs[0].config["strategy"]),
            way=key[1],
            simulated=key[0],
            scales=fastest(found),
            serials=_baselines(serial, bool(key[0]), _optimizer(found)),
            costs=_costs(found[0].runs[0], runs),
            metrics=metrics,
        )
        for key, found in sorted(scales.items())
        if not _is_serial(key)
    ]
    return [replace(case, beside=tuple(cases)) for case in cases]


def _is_serial(key: tuple[str, str]) -> bool:
    return key[1].partition(" ")[0].partition(":")[0] == "serial"


def _optimizer(scales: Sequence[Scale]) -> str:
    return facts_of(scales[0].runs[0]).optimizer


def _baselines(
    serial: Mapping[tuple[bool, str], list[Scale]], simulated: bool, optimizer: str
) -> tuple[Scale, ...]:
    """Return the serial runs to compare with, simulated or not like the others; of the same optimizer, if there are any."""
    for own in dict.fromkeys((optimizer, "")):
        if found := serial.get((simulated, own)):
            return tuple(sorted(found, key=lambda scale: (scale.threads, scale.seconds)))
    return ()


def _costs(run: Run, others: Sequence[Run]) -> Curves | None:
    """Return the gradient costs of a simulated run; for a real run, those of other runs for its processor."""
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


# ---- the nodes and cores of a run


# Bytes of the messages whose times alpha and beta are fitted to.
SIZES = tuple(8 << k for k in range(0, 22, 3))
# A collective is worth naming if it takes at most this part of the time of the one in use.
CHEAPER = 0.8
WIDTH = {"float32": 4, "float64": 8}


@dataclass(frozen=True, kw_only=True)
class RunPlace:
    """The nodes of one run."""

    ranks: int
    on_node: int
    cores: int | None
    """Cores per node; None: enough."""
    links: CostModel | None
    """The cost model of messages and sums, for the theory of the collectives; None: the network is unknown."""
    per_node: int | None = None
    """The largest number of ranks on a node; None: all are on one node."""

    @property
    def layout(self) -> Nodes:
        """The node of each rank."""
        return Nodes(tuple(rank // self.on_node for rank in range(self.ranks)))

    def fits(self, ranks: int, threads: int = 1) -> bool:
        """Return True if each of this many ranks would have its own cores for its threads."""
        return self.cores is None or min(self.per_node or ranks, ranks) * threads <= self.cores

    def theory(self, name: str, parameters: int, itemsize: int, *, in_place: bool = False) -> float | None:
        """Return the seconds that a collective takes in theory; None if it has no formula, or cannot be used here.

        `in_place`: with shared memory, gradients are computed there and not copied.
        """
        several = self.on_node < self.ranks
        if self.links is None or not has_cost(name) or (several and name == "shared-memory"):
            return None
        done = cost(name, n=parameters, p=self.ranks, itemsize=itemsize, nodes=self.layout)
        if in_place and name == "shared-memory":
            done = replace(done, touched=parameters)  # every rank reads its part of all ranks' gradients
        return self.links.seconds(done, itemsize)

    def cheapest(
        self, used: str, parameters: int, dtype: str, *, in_place: bool = False
    ) -> tuple[str, float] | None:
        """Return a collective that is cheaper in theory than the one used, and the part of its time that it takes.

        `auto` chooses by measurements, which are better than theory; collectives of other packages have no formula.
        """
        from paceline.names import names

        itemsize = WIDTH.get(dtype, 4)
        if used == "auto" or used not in names("collectives") or self.ranks < 2:
            return None
        now = self.theory(used, parameters, itemsize, in_place=in_place)
        if not now:
            return None
        known = {
            name: self.theory(name, parameters, itemsize, in_place=in_place) for name in names("collectives")
        }
        times = {name: t for name, t in known.items() if t is not None and name not in ("auto", "native")}
        best = min(times, key=times.__getitem__, default=used)
        part = times.get(best, now) / now
        return (best, part) if part <= CHEAPER else None


def place_of(run: Run) -> RunPlace:
    """Return the place of a run's ranks."""
    ranks, told = run.config["ranks"], run.simulated
    on_node, cores = node_of(run)
    if told is None:
        if on_node < ranks:
            return RunPlace(ranks=ranks, on_node=on_node, cores=cores, links=None, per_node=on_node)
        return RunPlace(ranks=ranks, on_node=on_node, cores=cores, links=_inside(_typical(), ranks))
    network, links = _network(str(told.get("network"))), _inside(_machine(told.get("machine")), ranks)
    if network is not None and on_node < ranks:
        links = CostModel(
            alpha=network.latency + 2 * network.overhead,
            beta=1 / network.bandwidth + 2 / network.copy_bandwidth,
            gamma=links.gamma,
        )
    per_node = None if network is None else network.ranks_per_node
    return RunPlace(ranks=ranks, on_node=on_node, cores=cores, links=links, per_node=per_node)


def place_at(run: Run, ranks: int) -> RunPlace:
    """Return the place of more ranks on the node of a run's rank."""
    _, cores = node_of(run)
    machine = _typical() if run.simulated is None else _machine(run.simulated.get("machine"))
    return RunPlace(ranks=ranks, on_node=ranks, cores=cores, links=_inside(machine, ranks))


def _network(text: str) -> Network | None:
    """Return the network that a record names; None for the file of a machine, of which the record has a copy."""
    from paceline.machine import load_network

    try:
        return load_network(text)
    except UsageError:
        return None


def _typical() -> Machine:
    from paceline.machine import Machine

    return Machine.typical()


def _machine(values: Any) -> Machine:
    """Return the machine that a record holds, or a typical one."""
    from paceline.machine import Machine

    return Machine.typical() if values is None else Machine.of(values)


def _inside(machine: Machine, ranks: int) -> CostModel:
    """Return alpha, beta and gamma of a node, from its tables."""
    times = [
        machine.link.both_ways(size, ranks, eager=size <= machine.eager_limit, post=machine.post)
        for size in SIZES
    ]
    alpha, beta = fit_line(SIZES, np.array(times))
    return CostModel(alpha=alpha, beta=beta, gamma=_slope(machine.memory.get("combine"), ranks))


def _slope(curves: Any, ranks: int) -> float:
    """Return the seconds per byte of a pass over memory; 0.1 ns if that was not measured."""
    if curves is None:
        return 1e-10
    low, high = 1 << 16, 1 << 22
    return max(0.0, float(curves.at(high, ranks) - curves.at(low, ranks)) / (high - low))


# ---- what rules find


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One thing that keeps a strategy from scaling.

    >>> Cause(rule="oversubscribed cores", share=0.5, words="4 ranks on 2 cores", advice="-n 2").lost
    0.5
    """

    rule: str
    """Its name."""
    share: float | None
    """The part of a step's time that it takes or, if `of_accuracy`, the accuracy that is lost; None: neither."""
    words: str
    """A description of the problem, with figures and their units."""
    advice: str
    """Settings to try next, as they are typed."""
    of_accuracy: bool = False
    ranks: int | None = None
    """The smallest number of ranks that it was found on; None until a diagnosis has it."""
    short: str = ""
    """The cause in a few words, if they differ from its rule's."""

    @property
    def lost(self) -> float:
        """The weight of the cause, at most 1: a point of accuracy counts as much as a tenth of the time."""
        share = self.share or 0.0
        return min(1.0, 10 * share if self.of_accuracy else share)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The reasons why one strategy stops scaling on one problem, and what to try next."""

    strategy: str
    """As written in its runs' records, followed by how it was run if that is unusual: `sync (replay)`."""
    ranks: int
    """The number of ranks examined: the scaling limit, or the most ranks that were tried."""
    summary: str
    """One sentence with the scaling limit and the main cause."""
    causes: tuple[Cause, ...]
    """Most important first; at least one."""
    simulated: str = ""
    """A description of the simulation; empty for real ranks."""


@dataclass(frozen=True, kw_only=True)
class DiagnosisRule:
    """A name, the cause in a few words, and a function that finds it in a case."""

    name: str
    short: str
    find: Callable[[Case], Cause | None]
    title: str = ""
    """The name that reports show, if it differs."""

    def cause(self, case: Case) -> Cause | None:
        """Return the cause found, with the number of ranks that the case examines unless the rule sets it."""
        found = self.find(case)
        return found if found is None or found.ranks is not None else replace(found, ranks=case.at.ranks)
