"""Predict the effect of more ranks: speedup and accuracy by number of ranks, the scaling limit and its reason.

for every strategy and number of ranks: simulate a few steps, with nothing computed
with threads: the same with the cores of a node divided among its ranks, and one process that uses them all
the same steps again in scenarios without one of the costs: most is lost to the cost whose removal helps most
with accuracy: whole runs, really computed, in the order of events given by the virtual clock

`find_measured` puts the speedups of real runs beside a prediction, and `to_values` turns both into JSON values.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from paceline.config import Config
from paceline.errors import UsageError
from paceline.machine import Machine
from paceline.record import Run, find_runs
from paceline.simulate.bottleneck import (
    Circumstances,
    Limit,
    ScalingPoint,
    describe_limit,
    explain,
    explain_accuracy,
    find_limit,
)
from paceline.simulate.case import (
    ComputedRun,
    Load,
    PredictionCase,
    RunLength,
    SimulatedTiming,
    Simulations,
    Workload,
    check_job,
    compute,
    measure,
    normalize_name,
)
from paceline.simulate.whatif import REASONS
from paceline.strategies import Strategy
from paceline.text import count, times
from paceline.training.job import strategy_of
from paceline.vmpi import Network
from paceline.vmpi.errors import SimulationError

log = logging.getLogger(__name__)
FORMAT = 1  # of the JSON values
SERIAL = "serial"
# Simulate as many steps as take at most this many messages, but at least one.
ENOUGH = 60_000


class Growth:
    """Messages of a step by number of ranks: known for some, extrapolated for others before they are simulated.

    >>> growth = Growth()
    >>> growth.known.update({4: 24.0, 8: 112.0})               # a ring's: 2 p (p - 1)
    >>> round(growth.at(16))
    480
    """

    def __init__(self) -> None:
        self.known: dict[int, float] = {}

    def at(self, ranks: int) -> float:
        """Return the number of messages, known or expected; 0 if nothing is known."""
        if ranks in self.known:
            return self.known[ranks]
        some = [(p, count) for p, count in sorted(self.known.items()) if p > 1 and count]
        if not some:
            return 0.0
        power = 2.0
        if len(some) > 1:
            (p, before), (q, after) = some[-2:]
            power = max(math.log(after / before) / math.log(q / p), 1.0)
        last, count = some[-1]
        if power > 2:  # as p (p - 1) grows, where every rank sends to all others
            return float(count * ranks * (ranks - 1) / (last * (last - 1)))
        return float(count * (ranks / last) ** power)

    def expect(self, candidate: PredictionCase, length: RunLength) -> float:
        """Return the expected messages of a run of this length."""
        return self.at(candidate.ranks) * length.simulated / candidate.together

    def find_affordable(self, candidate: PredictionCase, most: int) -> RunLength:
        """Return the part of a run that may be simulated; raise UsageError if even the shortest is too much."""
        length = self.shorten(candidate, candidate.length(), min(ENOUGH, most))
        if (expected := self.expect(candidate, length)) > most:
            raise UsageError(f"would take about {expected:,.0f} messages; the limit is {most:,} (--messages)")
        return length

    def shorten(self, candidate: PredictionCase, length: RunLength, most: float) -> RunLength:
        """Shorten a run to one that takes at most `most` messages, or to the shortest that is meaningful."""
        if (expected := self.expect(candidate, length)) <= most:
            return length
        return candidate.length(max(1, int(length.simulated * most / expected)))


# Messages for simulating all scenarios of one number of ranks, unless it is the one where scaling stops; and, where a
# step takes fewer, those to simulate more than the shortest run with, and the steps of all ranks together.
MOST_MESSAGES, SOME_MESSAGES, SOME_STEPS = 300_000, 60_000, 1024
# Once the first reason is removed, further ones are named if they save this fraction of the rest; at most this many.
WORTH_NAMING, MOST_NAMED = 0.2, 2
Begin = Callable[[PredictionCase, Sequence[str], RunLength], Callable[[], SimulatedTiming]]
"""Begins to simulate a part of a run in the scenario without the named costs."""


class Explanation:
    """The search for the costs of one strategy's points, by simulating them without one cost at a time."""

    def __init__(self, begin: Begin, growth: Growth, most: int) -> None:
        self._begin, self._growth, self._most = begin, growth, most

    def begin_if_cheap(
        self, candidate: PredictionCase, point: ScalingPoint, length: RunLength
    ) -> Callable[[], ScalingPoint]:
        """Begin to find the point's reasons, if that takes few messages; the result returns the point."""
        length = self._few_steps(candidate, length, SOME_MESSAGES / len(REASONS))
        if self._growth.expect(candidate, length) * len(REASONS) > MOST_MESSAGES:
            return lambda: point
        return self._begin_explanation(candidate, point, length)

    def _few_steps(self, candidate: PredictionCase, length: RunLength, messages: float) -> RunLength:
        """Return a run with few steps and messages: scenarios are compared over the same steps."""
        most = SOME_STEPS if candidate.whole_batches else max(1, SOME_STEPS // candidate.ranks)
        if candidate.drains:
            most *= 2
        if length.simulated > most:
            length = candidate.length(most)
        return self._growth.shorten(candidate, length, messages)

    def find(self, candidate: PredictionCase, point: ScalingPoint) -> ScalingPoint:
        """Return the point with its reasons, from the shortest run, unless even that takes too many messages."""
        length = candidate.length(1)
        if self._growth.expect(candidate, length) > self._most:
            return point
        return self._begin_explanation(candidate, point, length)()

    def _begin_explanation(
        self, candidate: PredictionCase, point: ScalingPoint, length: RunLength
    ) -> Callable[[], ScalingPoint]:
        step = point.step_seconds
        # A single rank sends nothing, and its computing is the baseline for the others.
        able = REASONS if candidate.ranks > 1 else ("memory",)
        begun = self._begin(candidate, (), length)
        scenario = candidate.scenario
        others = {
            reason: self._begin(candidate, (reason,), length) for reason in able if scenario.has(reason)
        }

        def add_reasons() -> ScalingPoint:
            base = begun().seconds
            found = {reason: timing().seconds * step / base for reason, timing in others.items()}
            if candidate.masters:
                found["idle"] = step * candidate.workers / candidate.ranks
            if (used := candidate.find_used_fraction(length)) < 1:
                found["batches"] = step * used
            return replace(point, without=found)

        return add_reasons

    def find_further(
        self, candidate: PredictionCase, point: ScalingPoint, reason: str | None
    ) -> list[tuple[str, float]]:
        """Return the next reasons once the first one is removed, each with the speedup when it is removed as well."""
        runs = MOST_NAMED * len(REASONS)
        length = self._few_steps(candidate, candidate.length(), SOME_MESSAGES / runs)
        if reason not in REASONS or self._growth.expect(candidate, length) * runs > MOST_MESSAGES:
            return []
        gone: list[str] = [reason]
        named: list[tuple[str, float]] = []
        begun = [self._begin(candidate, without, length) for without in ((), (reason,))]
        base, seconds = (timing().seconds for timing in begun)
        while len(named) < MOST_NAMED:
            scenario = candidate.scenario.without(*gone)
            rest = [other for other in REASONS if scenario.has(other) and other not in gone]
            others = {other: self._begin(candidate, (*gone, other), length) for other in rest}
            left = {other: timing().seconds for other, timing in others.items()}
            best = min(left, key=left.__getitem__)
            if left[best] > (1 - WORTH_NAMING) * seconds:
                break
            seconds = left[best]
            gone.append(best)
            named.append((best, point.speedup * base / seconds))
        return named


# The most messages that one case may take.
MOST = 3_000_000
# Numbers of ranks that show how messages grow, if the first one asked for is larger.
TRIED = (4, 8)
Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ScalingCurve:
    """One strategy on all numbers of ranks."""

    strategy: str
    points: tuple[ScalingPoint, ...]
    left_out: dict[int, str]
    """The numbers of ranks without a point, and why."""
    limit: Limit | None
    summary: str
    """A description of its scaling limit and the reason."""


@dataclass(frozen=True, kw_only=True)
class ThreadSplit:
    """A strategy whose ranks use all cores of their nodes by threads."""

    strategy: str
    ranks: int
    threads: int
    """Threads of each rank."""
    step_seconds: float
    samples_per_second: float
    speedup: float
    """Compared with the simulated serial run, whose threads are those of the other points."""

    def __str__(self) -> str:
        if self.strategy == SERIAL:
            return f"one process with {count(self.threads, 'thread')}"
        return f"{self.strategy} on {count(self.ranks, 'rank')} of {count(self.threads, 'thread')}"


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The result: the serial run, and a curve for each strategy."""

    serial: SimulatedTiming
    serial_accuracy: float | None
    curves: tuple[ScalingCurve, ...]
    splits: tuple[ThreadSplit, ...] = ()
    """One process with all threads of a node, and ranks that share its cores; empty if nothing is known of threads."""
    cores: int = 1
    """The cores of a node, if threads are known."""

    @property
    def threads(self) -> str:
        """What threads bring compared with ranks of one thread each; empty if nothing is known of threads."""
        ranks = [
            (point.speedup, f"{curve.strategy} on {count(point.ranks, 'rank')}")
            for curve in self.curves
            for point in curve.points
            if 1 < point.ranks <= self.cores
        ]
        alone = [split for split in self.splits if split.strategy == SERIAL]
        both = [split for split in self.splits if split.strategy != SERIAL]
        if not ranks or not self.splits:
            return ""
        found = {"ranks alone": max(ranks)}
        if alone:
            found["threads"] = max((split.speedup, str(split)) for split in alone)
        if both:
            found["ranks with threads"] = max((split.speedup, str(split)) for split in both)
        ways = sorted(found, key=lambda kind: found[kind][0], reverse=True)
        told = [f"{who} {times(speedup)}" for speedup, who in (found[kind] for kind in ways)]
        wins = f"{ways[0]} win" if found[ways[0]][0] > 1 else "neither ranks nor threads help"
        return f"{wins} on nodes of {count(self.cores, 'core')}; compared with serial: {', '.join(told)}"


@dataclass(kw_only=True)
class Scaling:
    """A prediction: strategies on numbers of ranks, simulated for a workload.

    >>> from paceline.config import Config
    >>> from paceline.data import load
    >>> from paceline.machine import Costs
    >>> from paceline.vmpi import Curves, Network
    >>> costs = Costs(work={"gradient": Curves.of({1: [[1, 1e-4], [64, 6.4e-3]]})})
    >>> workload = Workload(config=Config(data="iris", model="mlp:8", batch=64), data=load("iris"), costs=costs,
    ...               network=Network.named("1gbe"))
    >>> [curve] = Scaling(workload=workload, strategies=["sync:allreduce=ring"], ranks=[1, 4]).predict().curves
    >>> [round(point.speedup, 2) for point in curve.points]
    [1.0, 3.36]
    >>> print(curve.summary.partition("% of it is ")[2].partition(": without")[0])
    the latency of 6 messages one after the other, 40 us each
    """

    workload: Workload
    strategies: Sequence[str]
    ranks: Sequence[int]
    accuracy: bool = False
    most: int = MOST
    tell: Tell = field(default=lambda text: None)
    threaded: Mapping[int, Workload] = field(default_factory=dict)
    """The same workload with the cores of a node divided by threads, by the number of ranks on the node."""

    jobs: int = 1
    """Processes that simulate at the same time; 1: this one alone."""
    load: Load | None = None
    """Loads data and model in other processes; needed for more than one job."""

    def predict(self) -> Prediction:
        """Simulate everything, and return the prediction."""
        names = [normalize_name(strategy) for strategy in self.strategies]
        for name in names:
            check_job(self.workload.job(name, self.workload.config), self.ranks, accuracy=self.accuracy)
        if self.accuracy and not self.workload.data.classes:
            raise UsageError(f"--accuracy needs classes; {self.workload.data.name} has none")
        with Simulations(self.jobs, self.load) as self._simulations:
            return self._predict(list(dict.fromkeys(names)))

    def _predict(self, names: Sequence[str]) -> Prediction:
        self.tell(SERIAL)
        serial = self.workload.candidate(SERIAL, 1)
        self._runs: dict[tuple[str, int], Callable[[], ComputedRun]] = {}
        self._timings: dict[tuple[str, int, tuple[str, ...], RunLength], Callable[[], SimulatedTiming]] = {}
        self._growth: dict[str, Growth] = {}
        own = {name: self._begin_own_run(name, serial.batch) for name in (SERIAL, *names)}
        self._serial = measure(serial, (), serial.length())
        begun = [self._begin_curve(name, own[name]) for name in names]
        accuracy = self._accuracy_of(own[SERIAL])
        if self.accuracy and accuracy is None:
            raise UsageError(f"--accuracy needs test samples; {self.workload.data.name} has none")
        return Prediction(
            serial=self._serial,
            serial_accuracy=accuracy,
            curves=tuple(finish() for finish in begun),
            splits=tuple(self._splits(names)),
            cores=max((on * (work.config.threads or 1) for on, work in self.threaded.items()), default=1),
        )

    def _splits(self, names: Sequence[str]) -> Iterator[ThreadSplit]:
        """Simulate one process with all threads, and every strategy with as many threads a rank as a node has cores."""
        network = self.workload.network
        begun: list[tuple[PredictionCase, int, Callable[[], SimulatedTiming]]] = []
        for name in (SERIAL, *names):
            for ranks in [1] if name == SERIAL else sorted(set(self.ranks) - {1}):
                workload = self.threaded.get(network.ranks_on_node(ranks))
                if workload is None or (workload.config.threads or 1) < 2:
                    continue
                try:
                    candidate = workload.candidate(name, ranks)
                    if self.accuracy and candidate.may_follow_values:
                        continue  # it would have to be computed again
                    length = self._growth.get(name, Growth()).find_affordable(candidate, self.most)
                except UsageError:
                    continue  # as with one thread, which is said there
                begun.append((candidate, workload.config.threads or 1, self._begin(candidate, (), length)))
        for candidate, threads, outcome in begun:
            self.tell(f"{candidate.name}, {candidate.ranks:,} ranks of {threads} threads")
            try:
                timing = outcome()
            except UsageError:
                continue
            yield ThreadSplit(
                strategy=candidate.name,
                ranks=candidate.ranks,
                threads=threads,
                step_seconds=timing.seconds,
                samples_per_second=timing.samples_per_second,
                speedup=timing.samples_per_second / self._serial.samples_per_second,
            )

    def _begin_own_run(self, name: str, batch: int) -> Callable[[], ComputedRun] | None:
        """Begin serial training with the optimizer of a strategy, if accuracy is asked for."""
        if not self.accuracy:
            return None
        strategy, rule = strategy_of(name), ""
        if isinstance(strategy, Strategy) and name != SERIAL:
            rule = strategy.for_update(self.workload.config.update).optimizer()
        return self._begin_serial_run(batch, rule)

    @staticmethod
    def _accuracy_of(run: Callable[[], ComputedRun] | None) -> float | None:
        return None if run is None else run().accuracy

    def _begin_curve(
        self, name: str, serial_run: Callable[[], ComputedRun] | None
    ) -> Callable[[], ScalingCurve]:
        """Simulate a strategy on all numbers of ranks; its reasons and accuracies are known when the result is called."""
        begun: dict[int, Callable[[], ScalingPoint]] = {}
        left_out: dict[int, str] = {}
        growth = self._growth[name] = Growth()
        reasons = Explanation(self._begin, growth, self.most)
        for ranks in sorted(set(self.ranks)):
            self.tell(f"{name}, {ranks:,} ranks")
            try:
                begun[ranks] = self._begin_point(self.workload.candidate(name, ranks), growth, reasons)
            except UsageError as refused:
                left_out[ranks] = str(refused)
        return lambda: self._curve(name, begun, left_out, reasons, self._accuracy_of(serial_run))

    def _curve(
        self,
        name: str,
        begun: Mapping[int, Callable[[], ScalingPoint]],
        left_out: dict[int, str],
        reasons: Explanation,
        serial_accuracy: float | None,
    ) -> ScalingCurve:
        points: dict[int, ScalingPoint] = {}
        for ranks, finish in begun.items():
            self.tell(f"{name}, {ranks:,} ranks{', accuracy' * self.accuracy}")
            try:
                points[ranks] = finish()
            except UsageError as refused:
                left_out[ranks] = str(refused)
        left_out = dict(sorted(left_out.items()))
        if not points:
            return ScalingCurve(
                strategy=name, points=(), left_out=left_out, limit=None, summary="nothing was simulated"
            )
        found = find_limit(list(points.values()), serial_accuracy)
        self.tell(f"{name}, {found.shown.ranks:,} ranks, why")
        candidate = self.workload.candidate(name, found.shown.ranks)
        computed = self.accuracy and candidate.may_follow_values
        if not found.shown.without and not computed:
            points[candidate.ranks] = reasons.find(candidate, found.shown)
            found = find_limit(list(points.values()), serial_accuracy)
        if found.reason in ("staleness", "accuracy") and serial_accuracy is not None:
            because = explain_accuracy(found, serial_accuracy)
        elif computed:
            because = "its times come from whole computed runs, which are not repeated without single costs"
        else:
            around = Circumstances(
                scenario=candidate.scenario, ranks=candidate.ranks, each=candidate.batches_per_epoch
            )
            because = explain(found.shown, around, reasons.find_further(candidate, found.shown, found.reason))
        return ScalingCurve(
            strategy=name,
            points=tuple(points.values()),
            left_out=left_out,
            limit=found,
            summary=f"{describe_limit(found)}. {because}",
        )

    def _begin_point(
        self, candidate: PredictionCase, growth: Growth, reasons: Explanation
    ) -> Callable[[], ScalingPoint]:
        """Simulate the time of a point, and begin everything else."""
        if self.accuracy and candidate.may_follow_values:
            return self._begin_computed_point(candidate)
        if candidate.ranks > TRIED[-1] and not growth.known:
            self._learn(candidate.name, growth)
        length = growth.find_affordable(candidate, self.most)
        timing = self._begin(candidate, (), length)()
        growth.known[candidate.ranks] = timing.messages
        run = self._begin_run(candidate, growth) if self.accuracy else None
        explained = reasons.begin_if_cheap(candidate, self._point_of(candidate, timing), length)
        if run is None:
            return explained
        return lambda: replace(explained(), accuracy=run().accuracy, staleness=run().staleness)

    def _point_of(self, candidate: PredictionCase, timing: SimulatedTiming) -> ScalingPoint:
        return ScalingPoint(
            ranks=candidate.ranks,
            step_seconds=timing.seconds,
            samples_per_second=timing.samples_per_second,
            speedup=timing.samples_per_second / self._serial.samples_per_second,
            messages=timing.messages,
            bytes=timing.bytes,
            steps=timing.steps,
        )

    def _begin_computed_point(self, candidate: PredictionCase) -> Callable[[], ScalingPoint]:
        """Begin the point of a strategy that follows values: its time, too, is that of the whole computed run."""
        run = self._simulations.begin(compute, candidate, timed=True)

        def finish() -> ScalingPoint:
            found = run()
            assert found.timing is not None
            point = self._point_of(candidate, found.timing)
            return replace(point, accuracy=found.accuracy, staleness=found.staleness)

        return finish

    def _begin(
        self, candidate: PredictionCase, without: Sequence[str], length: RunLength
    ) -> Callable[[], SimulatedTiming]:
        """Begin to simulate a part of a run; its outcome is a UsageError if it cannot be simulated."""
        key = None
        if candidate.workload is self.workload:
            key = (candidate.name, candidate.ranks, tuple(without), length)
            if key in self._timings:
                return self._timings[key]
        begun = self._simulations.begin(measure, candidate, tuple(without), length)

        def outcome() -> SimulatedTiming:
            try:
                return begun()
            except SimulationError as error:
                raise UsageError(f"cannot be simulated: {error}".partition("\n")[0]) from error

        if key is not None:
            self._timings[key] = outcome
        return outcome

    def _learn(self, name: str, growth: Growth) -> None:
        for ranks in TRIED:
            try:
                candidate = self.workload.candidate(name, ranks)
                growth.known[ranks] = self._begin(candidate, (), candidate.length(1))().messages
            except UsageError:
                continue

    # ---- accuracy

    def _begin_run(self, candidate: PredictionCase, growth: Growth) -> Callable[[], ComputedRun] | None:
        """Begin a whole run, really computed; None if it has too many messages."""
        if candidate.is_serial_sgd:
            return self._begin_serial_run(candidate.batch)
        if growth.expect(candidate, candidate.whole_run) > self.most:
            log.warning(
                "%s on %d ranks: a whole run has too many messages; no accuracy",
                candidate.name,
                candidate.ranks,
            )
            return None
        return self._simulations.begin(compute, candidate)

    def _begin_serial_run(self, batch: int, rule: str = "") -> Callable[[], ComputedRun]:
        """Begin serial training with this batch size: ranks that divide the batch learn the same.

        `rule`: the rule that makes the steps instead of the run's update.
        """
        if (rule, batch) not in self._runs:
            workload = replace(
                self.workload,
                config=replace(self.workload.config, batch=batch, batch_per_rank=None, lr_scaling="none"),
            )
            serial = workload.candidate(f"{SERIAL}:rule={rule}" if rule else SERIAL, 1)
            self._runs[rule, batch] = self._simulations.begin(compute, serial)
        return self._runs[rule, batch]


@dataclass(frozen=True, kw_only=True)
class MeasuredRuns:
    """Real runs of one strategy on one number of ranks."""

    strategy: str
    ranks: int
    runs: int
    samples_per_second: float
    speedup: float
    against: str
    """The baseline of the comparison: measured serial runs, or the simulated one."""
    oversubscribed: bool
    """True if there were more ranks than cores: the time says little about scaling."""


def find_measured(
    places: Iterable[str | Path], config: Config, strategies: Sequence[str], serial: float
) -> tuple[MeasuredRuns, ...]:
    """Find the runs in some folders that did the same work (data, model, batch) with one of the strategies.

    `serial`: samples per second of the simulated serial run, used if no serial run was measured. Of runs that differ only
    in threads, those with the fewest count.
    """
    places = list(places)
    by_threads: dict[tuple[str, int], dict[int, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in find_runs(places):
        if run.simulated is None and not run.summary.get("diverged") and _same(run, config):
            by_threads[run.config["strategy"], run.config["ranks"]][run.summary["threads"]].append(run)
    groups = {key: found[min(found)] for key, found in by_threads.items()}
    alone = _rate(groups[found]) if (found := ("serial", 1)) in groups else None
    wanted = [key for key in sorted(groups) if key[0] in strategies]
    if places and not wanted:
        log.warning(
            "no run in %s has this data, model and batch under one of %s",
            ", ".join(map(str, places)),
            ", ".join(strategies),
        )
    return tuple(
        MeasuredRuns(
            strategy=strategy,
            ranks=ranks,
            runs=len(groups[strategy, ranks]),
            samples_per_second=(rate := _rate(groups[strategy, ranks])),
            speedup=rate / (alone or serial),
            against="serial, simulated" if alone is None else "serial, measured",
            oversubscribed=any(ranks > run.environment["cores"] for run in groups[strategy, ranks]),
        )
        for strategy, ranks in wanted
    )


def _same(run: Run, config: Config) -> bool:
    then = run.config
    same = all(then[name] == getattr(config, name) for name in ("data", "model", "batch_per_rank"))
    rate = run.summary["samples_per_second"]
    return bool(same and rate and (then["batch"] or 64) == (config.batch or 64))


def _rate(runs: list[Run]) -> float:
    return fmean(run.summary["samples_per_second"] for run in runs)


def describe(workload: Workload) -> str:
    """Describe the subject of the prediction in one line."""
    config, data = workload.config, workload.data
    batch = (
        f"batch {config.batch or 64}"
        if config.batch_per_rank is None
        else f"batch {config.batch_per_rank} a rank"
    )
    nodes = _describe_nodes(workload.network)
    slow = f", slow {workload.options.slow}" if workload.options.slow else ""
    uneven = f", jitter {workload.options.jitter:g}" if workload.options.jitter else ""
    network = workload.network
    typical = network.node is None or network.inside is not None
    machine = None if typical else Machine.of_network(network)
    inside = (
        f"; messages in a node as on {machine.processor}" if machine is not None and machine.processor else ""
    )
    # The costs of a work file have its name, which is also that of the data.
    processor = workload.costs.processor
    computing = f"; computing as on {processor}" if processor and processor != data.name else ""
    return (
        f"{data.name}, {config.model}, {batch}; {workload.network}, {nodes}{slow}{uneven}{inside}{computing}"
    )


def _describe_nodes(network: Network) -> str:
    """Say where ranks are.

    >>> [_describe_nodes(Network.named("10gbe", **how)) for how in ({}, {"ranks_per_node": 4}, {"cyclic": 8})]
    ['1 rank per node', '4 ranks per node', 'ranks in turn on 8 nodes']
    """
    if network.cyclic is not None:
        return f"ranks in turn on {count(network.cyclic, 'node')}"
    if network.ranks_per_node is None:
        return "all ranks on one node"
    return f"{count(network.ranks_per_node, 'rank')} per node"


def to_values(workload: Workload, prediction: Prediction, points: Sequence[MeasuredRuns]) -> dict[str, Any]:
    """Return a prediction as JSON values, with everything that it depends on."""
    from paceline.record.environment import environment

    return {
        "simulated": "scaling",
        "format": FORMAT,
        "title": describe(workload),
        "config": {name: value for name, value in asdict(workload.config).items() if name != "strategy"},
        "samples": len(workload.data.train),
        "parameters": workload.model.x.size,
        "network": str(workload.network),
        "slow": workload.options.slow,
        "jitter": workload.options.jitter,
        "serial": {**asdict(prediction.serial), "accuracy": prediction.serial_accuracy},
        "strategies": [_curve(curve) for curve in prediction.curves],
        "splits": [asdict(split) for split in prediction.splits],
        "threads": prediction.threads,
        "measured": [asdict(point) for point in points],
        "machine": Machine.of_network(workload.network).values(),
        "costs": workload.costs.values(),
        "own_costs": {name: costs.values() for name, costs in workload.own_costs.items()},
        "environment": environment(threads=workload.config.threads or 1),
    }


def _curve(curve: ScalingCurve) -> dict[str, Any]:
    found = curve.limit
    return {
        "strategy": curve.strategy,
        "points": [_point(point) for point in curve.points],
        "left_out": [{"ranks": ranks, "why": why} for ranks, why in curve.left_out.items()],
        "limit": None
        if found is None
        else {
            "ranks": found.at.ranks,
            "speedup": found.at.speedup,
            "still_rising": found.rising,
            "efficiency_below_half_from": found.half,
            "reason": found.reason,
            "reason_at": found.shown.ranks,
        },
        "told": curve.summary,
    }


def _point(point: ScalingPoint) -> dict[str, Any]:
    found = asdict(point)
    found["efficiency"] = point.efficiency
    found["lost"] = point.lost()
    found["speedup_without"] = {name: point.speedup_without(name) for name in point.without}
    return found
