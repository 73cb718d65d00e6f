"""One case of a prediction: so many steps of a way of training on so many simulated ranks, with nothing computed.

Virtual time has no noise, so a few steps tell what all of them take. What comes before the first one is simulated alone, in
a run of no steps, and taken off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from paceline.data import Dataset
from paceline.errors import UsageError
from paceline.launch import limit_threads
from paceline.machine import Costs, make_compute
from paceline.models import Model
from paceline.simulate.options import Options
from paceline.simulate.training import Simulation
from paceline.simulate.whatif import World
from paceline.strategies import Strategy
from paceline.training.config import Config
from paceline.training.fitted import Fitted
from paceline.training.job import Job, Train, batch_of, strategy_of
from paceline.vmpi import Compute, Network

# Steps of ranks that go in step; with what varies at random so many that it evens out.
FEW, VARIED = 4, 32
# Whole batches of each worker where they do not: enough for queues to have become what they are.
TURNS = 16


@dataclass(frozen=True, kw_only=True)
class Length:
    """How much of a run is simulated."""

    epochs: int
    draws: int | None
    batches: int
    """In all of it."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What a simulated part of a run took."""

    seconds: float
    """A step that all ranks take together, or a rank's own whole batch."""
    samples_per_second: float
    messages: float
    """Of all ranks together in such a step."""
    bytes: float
    steps: int


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What all cases of a prediction have in common: the work, what it costs, and the network."""

    config: Config
    data: Dataset
    costs: Costs
    """What the work of one rank alone costs."""
    network: Network
    own_costs: Mapping[str, Costs] = field(default_factory=dict)
    """What work costs under strategies that make something else of it."""
    options: Options = field(default_factory=Options)

    @cached_property
    def model(self) -> Model:
        """One for all ranks of all cases: it is not trained."""
        return self.job("serial", self.config).build(self.data)

    def costs_of(self, strategy: str) -> Costs:
        """What work costs under a strategy."""
        return self.own_costs.get(strategy, self.costs)

    def way(self, strategy: str, ranks: int) -> Way:
        """How `strategy` would train on so many ranks; a refusal where it could not."""
        job = self.job(strategy, self.config)
        _, made = job.check(ranks)
        if isinstance(made, Strategy):
            made.check_nodes(self.network.nodes(ranks))
            made.check_model(ranks, self.model)
        return Way(self, strategy, made, ranks)

    def job(self, strategy: str, config: Config) -> Job:
        """A run of it that leaves no record."""
        return Job(config=replace(config, strategy=strategy), data=self.data, runs=None)

    def run(self, way: Way, world: World, length: Length, *, time_only: bool = True) -> Fitted:
        """Simulate."""
        config = replace(self.config, epochs=length.epochs, draws=length.draws)
        job = self.job(way.name, config)
        parts = replace(job, model=self.model if time_only else None).prepare(way.ranks)
        threads = config.threads or 1
        simulation = _InWorld(
            job=job, ranks=way.ranks, options=self.options, network=world.network, costs=self.costs_of(way.name),
            threads=threads, parts=parts, time_only=time_only, world=world,
        )  # fmt: skip
        with limit_threads(threads), simulation:
            return simulation.run((), None)


@dataclass
class _InWorld(Simulation):
    """A simulation of what computing costs in a given world."""

    world: World

    def _compute(self) -> Compute:
        return self.world.compute


@dataclass(frozen=True)
class Way:
    """One way of training on one number of ranks."""

    bench: Bench
    name: str
    strategy: Strategy | Train
    ranks: int

    @property
    def whole_batches(self) -> bool:
        """Whether each rank computes whole batches."""
        return bool(getattr(self.strategy, "whole_batches", False))

    @property
    def masters(self) -> int:
        """Ranks that compute no gradients."""
        return self.ranks - self.workers

    @property
    def workers(self) -> int:
        """Ranks that do."""
        if self.ranks == 1 or not isinstance(self.strategy, Strategy):
            return self.ranks
        return self.strategy.workers(self.ranks)

    @property
    def batch(self) -> int:
        """Samples of all ranks in a step, or of each where they compute whole batches."""
        return batch_of(self.bench.config, self.strategy, self.ranks)

    @property
    def together(self) -> int:
        """Batches that make a step: one, or one of each worker where they compute whole ones."""
        return self.workers if self.whole_batches else 1

    @property
    def batches_per_epoch(self) -> int:
        """Of all ranks together."""
        return self.bench.config.draws or -(-len(self.bench.data.train) // self.batch)

    @property
    def whole_run(self) -> Length:
        """All of what was asked for."""
        config = self.bench.config
        epochs = max(config.epochs, 1)
        return Length(epochs=epochs, draws=config.draws, batches=epochs * self.batches_per_epoch)

    @property
    def is_serial_sgd(self) -> bool:
        """Whether it learns what serial SGD learns with the same batch, to rounding."""
        return bool(getattr(self.strategy, "equals_serial", False))

    def used(self, length: Length) -> float:
        """The part of the workers' turns for which there is a batch."""
        strategy = self.strategy
        if not self.whole_batches or not isinstance(strategy, Strategy) or strategy.own_data:
            return 1.0  # with its own data a rank's last batch is smaller, not missing
        each = length.batches // max(length.epochs, 1) if strategy.fixed_shares() else length.batches
        return each / (-(-each // self.workers) * self.workers) if each else 1.0

    @property
    def world(self) -> World:
        """What it is simulated on."""
        bench = self.bench
        slow = {rank: factor for rank, factor in bench.options.slowness.items() if rank < self.ranks}
        costs = bench.costs_of(self.name)
        jitter = bench.options.jitter if self.ranks > 1 else 0.0  # nobody waits: what varies evens out
        compute = make_compute(
            bench.network.node, costs, slow=slow, jitter=jitter,
            cores=bench.network.node_cores(costs.cores),
        )  # fmt: skip
        return World(
            network=bench.network,
            compute=compute,
            masters=self.masters,
            pieces=None if self.whole_batches else self.workers,
            batch=self.batch,
            parameters=bench.model.x.size,
        )

    def length(self, most: int | None = None) -> Length:
        """How much to simulate: at most so many batches, though never less than the least that says something."""
        world = self.world
        if not self.whole_batches:
            steps = VARIED if world.compute.jitter or world.network.jitter else FEW
            steps = max(1, steps if most is None else min(steps, most))
            return Length(epochs=1, draws=steps, batches=steps)
        every = self.strategy.interval() if isinstance(self.strategy, Strategy) else 1
        real = self.whole_run
        if every is None:  # what they send, they send once, at the end
            return real
        wanted = TURNS * self.workers if most is None else min(TURNS * self.workers, most)
        turns = every * max(1, wanted // (every * self.workers))
        if turns * self.workers >= real.batches:
            return real
        return Length(epochs=1, draws=turns * self.workers, batches=turns * self.workers)

    def timed(self, world: World, length: Length, before: Fitted | None = None) -> Timing:
        """What a step takes in a world; `before`: a run of none there, where it is known."""
        bench = self.bench
        before = before or bench.run(self, world, self.none())
        whole = bench.run(self, world, length)
        seconds = whole.train_seconds - before.train_seconds
        if seconds <= 0:
            raise UsageError(
                f"{self.name} on {self.ranks} ranks takes no time at all: nothing in it costs any"
            )
        samples = length.batches * self.batch
        if length.draws is None:
            samples = length.epochs * len(bench.data.train)
        steps = length.batches / self.together
        return Timing(
            seconds=seconds / steps,
            samples_per_second=samples / seconds,
            messages=(whole.messages_sent - before.messages_sent) / steps,
            bytes=(whole.bytes_sent - before.bytes_sent) / steps,
            steps=max(1, round(steps)),
        )

    def none(self) -> Length:
        """A run of no steps."""
        return Length(epochs=0, draws=self.bench.config.draws, batches=0)


def check(job: Job, ranks: Sequence[int]) -> None:
    """Refuse what cannot be simulated, or could run on none of these numbers of ranks."""
    if job.launcher() == "torch":
        raise UsageError(
            f"{job.name()} shares memory between processes of its own, which cannot be simulated; leave out backend=torch"
        )
    refused = None
    for count in ranks:
        try:
            job.check_early(count)
            return
        except UsageError as error:
            refused = error
    raise refused or UsageError("no number of ranks was given")


def named(strategy: str) -> str:
    """The strategy in the one spelling that records have.

    >>> named("sync:allreduce=auto"), named("sync:allreduce=ring")
    ('sync', 'sync:allreduce=ring')
    """
    from paceline.training.job import strategy_name

    return strategy_name(strategy_of(strategy)) if isinstance(strategy_of(strategy), Strategy) else strategy
