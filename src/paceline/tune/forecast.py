"""The speed of candidates before they have been run: simulated, with the costs of the work as measured on this machine.

The costs of one thread are measured by one process on each core at the same time, or read from the cache. What threads
bring is learned from runs.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import median

from paceline.config import Config
from paceline.data import Dataset
from paceline.errors import UsageError
from paceline.launch import RanksFailedError, allocated_cores, limit_threads
from paceline.machine import Costs, costs_of, load_network
from paceline.models import Model
from paceline.simulate.case import Workload
from paceline.simulate.options import Options
from paceline.training.job import Job
from paceline.tune.space import USUAL_BATCH, Candidate
from paceline.vmpi import Network
from paceline.vmpi.compute import Curves
from paceline.vmpi.errors import SimulationError

log = logging.getLogger(__name__)
# Seconds for each kind of loop that is measured, and batches of each worker that are simulated.
MEASURE, TURNS = 0.4, 4
EXPIRED = 124  # the exit status of ranks that were ended because their time was over


@dataclass(kw_only=True)
class Forecast:
    """Predicted seconds of an epoch, for candidates on this machine or on a simulated one."""

    base: Config
    data: Dataset
    model: Model
    """Of the problem; it is not trained."""
    batch: int
    """The largest batch whose costs are measured, as those of smaller ones are."""
    usual: int = USUAL_BATCH
    options: Options | None = None
    clock: Callable[[], float] = time.monotonic
    _limit: float | None = None
    """Seconds that measuring may take."""
    _room: float = math.inf
    """Seconds that may still be spent on simulating."""
    _known: dict[tuple[str, int, int, int | None], float | None] = field(default_factory=dict)
    _threads: dict[int, float] = field(default_factory=dict)
    """The speed of some threads relative to one."""
    _serial: dict[tuple[int, int | None], float] = field(default_factory=dict)
    """Measured seconds of an epoch of one process, by threads and batch."""
    _errors: list[float] = field(default_factory=list)
    """Measured over predicted seconds."""

    def prepare(self, seconds: float = math.inf, limit: float | None = None) -> None:
        """Measure the costs of the work, unless the cache has them; all predictions together may take `seconds`.

        A UsageError is raised if that takes longer than `limit`, or is not possible, as when MPI cannot start ranks.
        """
        self._limit = limit
        try:
            _ = self._costs
        except RanksFailedError as failed:
            why = f"it took more than {limit:.0f} s" if limit and failed.status == EXPIRED else str(failed)
            raise UsageError(f"what the work costs could not be measured: {why}") from None
        self._room = seconds

    @cached_property
    def _costs(self) -> tuple[Network, Costs]:
        config = replace(self.base, strategy="serial", threads=1, batch=self.batch)
        job = Job(config=config, data=self.data, runs=None)
        with limit_threads(1):
            if self.options is not None:
                return load_network(self.options.network), costs_of(job, limit=self._limit)
            costs = costs_of(job, [allocated_cores()], seconds=MEASURE, limit=self._limit)
            return load_network(Options().network), costs

    def epoch_seconds(self, candidate: Candidate) -> float | None:
        """Return the predicted seconds of an epoch; None if they cannot be predicted, or not in time.

        Two batches are simulated: a step takes a constant time and a time for each sample.
        """
        if candidate.batch is None:
            return None
        if (measured := self._between_batches(candidate)) is not None:
            return measured
        ends = (min(self.usual, self.batch), self.batch)
        steps = [self._step_seconds(replace(candidate, batch=batch)) for batch in dict.fromkeys(ends)]
        if None in steps:
            return None
        first, last = (steps[0] or 0.0, steps[-1] or 0.0)
        each = (last - first) / (ends[1] - ends[0]) if ends[1] > ends[0] else 0.0
        step = max(first + each * (candidate.batch - ends[0]), first * min(1.0, candidate.batch / ends[0]))
        samples = self.base.draws * candidate.batch if self.base.draws else len(self.data.train)
        seconds = step * samples / candidate.batch
        return seconds * (median(self._errors) if self._errors else 1.0)

    def _between_batches(self, candidate: Candidate) -> float | None:
        """Return the seconds of an epoch of one process, if its threads were measured with two other batches.

        What threads bring depends on the batch, so that predictions for one batch from another one would be wrong by far.
        """
        if not candidate.serial or candidate.threads == 1 or candidate.batch is None:
            return None
        wanted = candidate.batch
        known = {
            batch: seconds * batch  # in proportion to the seconds of a step
            for (threads, batch), seconds in self._serial.items()
            if threads == candidate.threads and batch is not None
        }
        if wanted in known or len(known) < 2:
            return known[wanted] / wanted if wanted in known else None
        first, last = sorted(sorted(known, key=lambda batch: abs(math.log(batch / wanted)))[:2])
        each = max(0.0, (known[last] - known[first]) / (last - first))
        step = known[first] + each * (wanted - first)
        return max(step, known[first] * min(1.0, wanted / first)) / wanted

    def _step_seconds(self, candidate: Candidate) -> float | None:
        """Return the simulated seconds in which all ranks together compute one batch."""
        key = candidate.speed
        if key not in self._known:
            if self._room <= 0:
                return None
            began = self.clock()
            self._known[key] = self._simulate(candidate)
            self._room -= self.clock() - began
        return self._known[key]

    def learn(self, candidate: Candidate, seconds: float) -> None:
        """Note the measured seconds of an epoch, to correct predictions with."""
        if candidate.serial:
            self._serial[candidate.threads, candidate.batch] = seconds
            alone = self._serial.get((1, candidate.batch))
            if alone is not None:
                before = dict(self._threads)
                for (threads, batch), other in self._serial.items():
                    if batch == candidate.batch and threads > 1:
                        self._threads.setdefault(threads, alone / other)
                if self._threads != before:
                    self._known = {key: value for key, value in self._known.items() if key[2] == 1}
        if candidate.threads == 1 and (predicted := self.epoch_seconds(candidate)):
            correction = median(self._errors) if self._errors else 1.0
            self._errors.append(seconds / predicted * correction)

    def speedup(self, threads: int) -> float | None:
        """Return the speed of a process with some threads relative to one thread, as far as runs have shown it.

        What lies between is taken to grow with a power of the threads.
        """
        if threads == 1 or threads in self._threads:
            return self._threads.get(threads, 1.0)
        if not self._threads:
            return None
        most = max(self._threads)
        return float(threads ** (math.log(max(self._threads[most], 1e-3)) / math.log(most)))

    def _simulate(self, candidate: Candidate) -> float | None:
        """Simulate a few steps."""
        faster = self.speedup(candidate.threads)
        if faster is None or candidate.batch is None:
            return None
        network, costs = self._costs
        work = self._work(costs, faster)
        config = replace(self.base, batch=candidate.batch, threads=1, lr=candidate.lr, draws=None)
        workload = Workload(
            config=config, data=self.data, costs=replace(costs, work=work), network=network, given=None,
            options=self.options or Options(jitter=0.0),
        )  # fmt: skip
        workload.__dict__["model"] = self.model
        try:
            case = workload.candidate(candidate.strategy, candidate.ranks)
            length = case.length(TURNS * case.together)
            rate = case.measure(case.scenario, length).samples_per_second
        except (UsageError, SimulationError) as error:
            log.debug("%s cannot be predicted: %s", candidate, error)
            return None
        return candidate.batch / rate

    def _work(self, costs: Costs, faster: float) -> dict[str, Curves]:
        """Return the costs of the work with threads that make it `faster`.

        Where factors are exchanged instead of gradients, and that was not measured, each of the three products of a step
        is taken to cost the same: one of them is divided among the ranks.
        """
        gradient, parameters = costs.work["gradient"], self.model.x.size
        part = {
            ranks: [[amount * parameters, seconds / 3] for amount, seconds in points]
            for ranks, points in gradient.tables.items()
        }
        work = {"factors": scale(gradient, 2 / 3), "part": Curves.of(part), **costs.work}
        threaded = ("gradient", "evaluate", "factors", "part")
        return {
            kind: scale(curves, 1 / faster) if kind in threaded else curves for kind, curves in work.items()
        }


def scale(curves: Curves, factor: float) -> Curves:
    """Return costs that are `factor` times as high.

    >>> scale(Curves.of({1: [[1, 2.0], [8, 4.0]]}), 0.5).at(8, ranks=1)
    2.0
    """
    return Curves.of({ranks: [[x, factor * y] for x, y in points] for ranks, points in curves.tables.items()})
