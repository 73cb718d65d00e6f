"""One case of a prediction: a few steps of a strategy on simulated ranks, with nothing computed.

Virtual time has no noise, so a few steps show how long all of them take. The start-up before the first step is
simulated separately, in a run without steps, and subtracted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from paceline.config import Config
from paceline.data import Dataset
from paceline.errors import UsageError
from paceline.launch import limit_threads
from paceline.machine import Costs, make_compute
from paceline.models import Model
from paceline.simulate.options import Options
from paceline.simulate.training import Simulation, check_course, is_ours
from paceline.simulate.whatif import Scenario
from paceline.strategies import Strategy
from paceline.training.job import Job, Train, batch_of, strategy_of
from paceline.training.rank import Fitted
from paceline.vmpi import Compute, Network

# Steps to simulate where all ranks take the same steps: without random variation, and with it.
FEW, VARIED = 4, 32
# Whole batches of each worker otherwise: enough for queues to settle.
TURNS = 16


@dataclass(frozen=True, kw_only=True)
class RunLength:
    """The part of a run to simulate."""

    epochs: int
    draws: int | None
    batches: int
    """The total number of batches."""


@dataclass(frozen=True, kw_only=True)
class StepTiming:
    """The time and traffic of a simulated part of a run."""

    seconds: float
    """Seconds of a step that all ranks take together, or of a rank's own whole batch."""
    samples_per_second: float
    messages: float
    """Messages of all ranks together in such a step."""
    bytes: float
    steps: int


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The common part of all cases of a prediction: the work, its costs, and the network."""

    config: Config
    data: Dataset
    costs: Costs
    """The costs of the work of a single rank."""
    network: Network
    own_costs: Mapping[str, Costs] = field(default_factory=dict)
    """The costs of strategies whose work differs."""
    options: Options = field(default_factory=Options)
    given: Model | None = None
    """The model, if it is not the one that the configuration names."""

    @cached_property
    def model(self) -> Model:
        """One model for all ranks of all cases: it is not trained."""
        return self.job("serial", self.config).build(self.data)

    @property
    def has_devices(self) -> bool:
        """True if every rank computes on a device of its own, so that more ranks do not share cores."""
        return self.given is not None or self.network.inside is not None

    def costs_of(self, strategy: str) -> Costs:
        """Return the costs of the work of a strategy."""
        return self.own_costs.get(strategy, self.costs)

    def candidate(self, strategy: str, ranks: int) -> Candidate:
        """Return a strategy on a number of ranks; raise UsageError if it cannot run there."""
        job = self.job(strategy, self.config)
        _, made = job.check(ranks)
        if isinstance(made, Strategy):
            made.check_nodes(self.network.nodes(ranks))
            made.check_model(ranks, self.model)
        return Candidate(self, strategy, made, ranks)

    def job(self, strategy: str, config: Config) -> Job:
        """Return the job of a strategy, without a record."""
        return Job(config=replace(config, strategy=strategy), data=self.data, model=self.given, runs=None)

    def run(
        self, candidate: Candidate, scenario: Scenario, length: RunLength, *, time_only: bool = True
    ) -> Fitted:
        """Simulate a part of a run."""
        config = replace(self.config, epochs=length.epochs, draws=length.draws)
        job = self.job(candidate.name, config)
        parts = replace(job, model=self.model if time_only else None).prepare(candidate.ranks)
        threads = config.threads or 1
        simulation = _InScenario(
            job=job, ranks=candidate.ranks, options=self.options, network=scenario.network,
            costs=self.costs_of(candidate.name), threads=threads, parts=parts, time_only=time_only, scenario=scenario,
        )  # fmt: skip
        with limit_threads(threads), simulation:
            return simulation.run((), None)


@dataclass
class _InScenario(Simulation):
    """A simulation with the computing costs of a scenario."""

    scenario: Scenario

    def _compute(self) -> Compute:
        return self.scenario.compute


@dataclass(frozen=True)
class Candidate:
    """One strategy on one number of ranks."""

    workload: Workload
    name: str
    strategy: Strategy | Train
    ranks: int

    @property
    def whole_batches(self) -> bool:
        """True if each rank computes whole batches."""
        return bool(getattr(self.strategy, "whole_batches", False))

    @property
    def masters(self) -> int:
        """The number of ranks that compute no gradients."""
        return self.ranks - self.workers

    @property
    def workers(self) -> int:
        """The number of ranks that compute gradients."""
        if self.ranks == 1 or not isinstance(self.strategy, Strategy):
            return self.ranks
        return self.strategy.workers(self.ranks)

    @property
    def batch(self) -> int:
        """Samples of all ranks in a step, or of each rank if they compute whole batches."""
        return batch_of(self.workload.config, self.strategy, self.ranks)

    @property
    def together(self) -> int:
        """Batches in a step: one, or one for each worker if they compute whole batches."""
        return self.workers if self.whole_batches else 1

    @property
    def batches_per_epoch(self) -> int:
        """Batches of all ranks together in an epoch."""
        return self.workload.config.draws or -(-len(self.workload.data.train) // self.batch)

    @property
    def whole_run(self) -> RunLength:
        """The length of the complete run."""
        config = self.workload.config
        epochs = max(config.epochs, 1)
        return RunLength(epochs=epochs, draws=config.draws, batches=epochs * self.batches_per_epoch)

    @property
    def is_serial_sgd(self) -> bool:
        """True if the result equals that of serial SGD with the same batch, up to rounding."""
        return bool(getattr(self.strategy, "equals_serial", False))

    @property
    def may_follow_values(self) -> bool:
        """True if what its ranks do depends on values, or may do so because nothing is known of the strategy."""
        strategy = self.strategy
        return not is_ours(strategy) or (isinstance(strategy, Strategy) and strategy.follows_values())

    def used(self, length: RunLength) -> float:
        """Return the fraction of the workers' turns that have a batch."""
        strategy = self.strategy
        if not self.whole_batches or not isinstance(strategy, Strategy) or strategy.own_data:
            return 1.0  # with its own data a rank's last batch is smaller, not missing
        each = length.batches // max(length.epochs, 1) if strategy.fixed_shares() else length.batches
        return each / (-(-each // self.workers) * self.workers) if each else 1.0

    @property
    def scenario(self) -> Scenario:
        """The scenario to simulate it in."""
        workload = self.workload
        slow = {rank: factor for rank, factor in workload.options.slowness.items() if rank < self.ranks}
        costs = workload.costs_of(self.name)
        jitter = (
            workload.options.jitter if self.ranks > 1 else 0.0
        )  # a single rank waits for no other: variation evens out
        compute = make_compute(
            workload.network.node, costs, slow=slow, jitter=jitter,
            cores=None if workload.has_devices else workload.network.node_cores(costs.cores),
        )  # fmt: skip
        return Scenario(
            network=workload.network,
            compute=compute,
            masters=self.masters,
            pieces=None if self.whole_batches else self.workers,
            batch=self.batch,
            parameters=workload.model.x.size,
        )

    def length(self, most: int | None = None) -> RunLength:
        """Return the part of the run to simulate: at most `most` batches, but enough to be meaningful."""
        scenario = self.scenario
        if not self.whole_batches:
            steps = VARIED if scenario.compute.jitter or scenario.network.jitter else FEW
            steps = max(1, steps if most is None else min(steps, most))
            return RunLength(epochs=1, draws=steps, batches=steps)
        every = self.strategy.interval() if isinstance(self.strategy, Strategy) else 1
        real = self.whole_run
        if every is None:  # the ranks exchange once, at the end
            return real
        wanted = TURNS * self.workers if most is None else min(TURNS * self.workers, most)
        turns = every * max(1, wanted // (every * self.workers))
        if turns * self.workers >= real.batches:
            return real
        return RunLength(epochs=1, draws=turns * self.workers, batches=turns * self.workers)

    def measure(self, scenario: Scenario, length: RunLength, before: Fitted | None = None) -> StepTiming:
        """Simulate a part of a run in a scenario; `before`: a run without steps there, if it is known."""
        workload = self.workload
        before = before or workload.run(self, scenario, self.no_steps())
        whole = workload.run(self, scenario, length)
        seconds = whole.train_seconds - before.train_seconds
        if seconds <= 0:
            raise UsageError(
                f"{self.name} on {self.ranks} ranks takes no time at all: none of its costs is known"
            )
        samples = length.batches * self.batch
        if length.draws is None:
            samples = length.epochs * len(workload.data.train)
        return _step_timing(whole, before, samples, length.batches / self.together)

    def timing_of(self, whole: Fitted) -> StepTiming:
        """Return the time and traffic of a complete run that was computed."""
        before = self.workload.run(self, self.scenario, self.no_steps())
        seconds = whole.train_seconds - before.train_seconds
        samples = (whole.samples_per_second or 0.0) * whole.train_seconds
        if seconds <= 0 or samples <= 0:
            raise UsageError(f"{self.name} on {self.ranks} ranks took no time or no samples")
        return _step_timing(whole, before, samples, samples / (self.batch * self.together))

    def no_steps(self) -> RunLength:
        """Return the length of a run without steps."""
        return RunLength(epochs=0, draws=self.workload.config.draws, batches=0)


def check_job(job: Job, ranks: Sequence[int], *, accuracy: bool = False) -> None:
    """Raise UsageError if a job cannot be simulated, or can run on none of these numbers of ranks.

    `accuracy`: whole runs are computed.
    """
    if not accuracy:
        check_course(
            job, "use --accuracy" if job.model is None else "work that is known by its figures alone has none"
        )
    if job.launcher() == "torch":
        raise UsageError(
            f"{job.name()} starts its own processes, which cannot be simulated; leave out backend=torch"
        )
    refused = None
    for count in ranks:
        try:
            job.check_early(count)
            return
        except UsageError as error:
            refused = error
    raise refused or UsageError("no number of ranks was given")


def normalize_name(strategy: str) -> str:
    """Return a strategy's name as it is written in records.

    >>> normalize_name("sync:allreduce=auto"), normalize_name("sync:allreduce=ring")
    ('sync', 'sync:allreduce=ring')
    """
    from paceline.training.job import strategy_name

    return strategy_name(strategy_of(strategy)) if isinstance(strategy_of(strategy), Strategy) else strategy


def _step_timing(whole: Fitted, before: Fitted, samples: float, steps: float) -> StepTiming:
    """Return the time and traffic of a step: those of a run, less those of one without steps."""
    seconds = whole.train_seconds - before.train_seconds
    return StepTiming(
        seconds=seconds / steps,
        samples_per_second=samples / seconds,
        messages=(whole.messages_sent - before.messages_sent) / steps,
        bytes=(whole.bytes_sent - before.bytes_sent) / steps,
        steps=max(1, round(steps)),
    )
