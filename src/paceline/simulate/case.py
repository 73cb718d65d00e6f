"""The cases of a prediction: a few steps of a strategy on simulated ranks, with nothing computed.

Virtual time has no noise, so a few steps show how long all of them take. The start-up before the first step is
simulated separately, in a run without steps, and subtracted.

`Simulations` simulates cases one after the other in this process, or several at a time in processes of their own:

    begin      note down a simulation; the result is a function that returns its outcome
    outcome    in this process: simulate it now; with several jobs: wait for the process that simulates it

A simulation depends on nothing but its case, so its outcome is the same, bit for bit, wherever it is simulated.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

from paceline.config import Config
from paceline.data import Dataset
from paceline.errors import UsageError
from paceline.launch import limit_threads, usable_cores
from paceline.machine import Costs, make_compute
from paceline.models import Model
from paceline.simulate.options import Options
from paceline.simulate.training import Simulation, check_course, is_ours
from paceline.simulate.whatif import Scenario
from paceline.strategies import Strategy
from paceline.training.job import Job, Train, batch_of, strategy_name, strategy_of
from paceline.training.rank import Fitted
from paceline.vmpi import Compute, Network
from paceline.vmpi.errors import SimulationError

Outcome = TypeVar("Outcome")
Load = Callable[[], tuple[Dataset, Model | None]]
"""Loads the data, and the model if there is one, in another process; must be picklable."""
# Steps to simulate where all ranks take the same steps: without random variation, and with it.
FEW, VARIED = 4, 32
# Whole batches of each worker otherwise: enough for queues to settle; with masters, where the last batches of the workers
# end one after the other, enough for this not to count.
TURNS, TURNS_WITH_MASTERS = 16, 32
# Batches of all workers together if no rank waits for another within an epoch, when messages may pile up for long: the
# most, and the fewest that are meaningful.
LONG, SHORT = 16_384, 256


@dataclass(frozen=True, kw_only=True)
class RunLength:
    """The part of a run to simulate."""

    epochs: int
    draws: int | None
    batches: int
    """The total number of batches."""
    shorter: int | None = None
    """The draws of a shorter run to simulate, too: the difference is what further batches take, up to those of an epoch."""

    @property
    def simulated(self) -> int:
        """The number of batches to simulate."""
        return self.batches + (self.shorter or 0)


@dataclass(frozen=True, kw_only=True)
class SimulatedTiming:
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

    def candidate(self, strategy: str, ranks: int) -> PredictionCase:
        """Return a strategy on a number of ranks; raise UsageError if it cannot run there."""
        job = self.job(strategy, self.config)
        _, made = job.check(ranks)
        if isinstance(made, Strategy):
            made.check_nodes(self.network.nodes(ranks))
            made.check_model(ranks, self.model)
        return PredictionCase(self, strategy, made, ranks)

    def job(self, strategy: str, config: Config) -> Job:
        """Return the job of a strategy, without a record."""
        return Job(config=replace(config, strategy=strategy), data=self.data, model=self.given, runs=None)

    def run(
        self, candidate: PredictionCase, scenario: Scenario, length: RunLength, *, time_only: bool = True
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
class PredictionCase:
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
    def drains(self) -> bool:
        """True if messages may pile up until the end of an epoch: no rank waits for another, nor for a master's answer."""
        return self.whole_batches and not self.masters and not getattr(self.strategy, "in_step", True)

    @property
    def may_follow_values(self) -> bool:
        """True if what its ranks do depends on values, or may do so because nothing is known of the strategy."""
        strategy = self.strategy
        return not is_ours(strategy) or (isinstance(strategy, Strategy) and strategy.follows_values())

    def find_used_fraction(self, length: RunLength) -> float:
        """Return the fraction of the workers' turns that have a batch."""
        strategy = self.strategy
        if not self.whole_batches or not isinstance(strategy, Strategy) or strategy.own_data:
            return 1.0  # with its own data a rank's last batch is smaller, not missing
        if length.shorter is not None:
            length = self.whole_run
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
        own = workload.config.batch_per_rank  # does not get smaller with more ranks
        divided = not self.whole_batches and own is None
        return Scenario(
            network=workload.network,
            compute=compute,
            masters=self.masters,
            pieces=self.workers if divided else None,
            batch=self.batch if own is None else own,
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
        if self.drains:
            return self._epochs(every, most)
        wanted = self.workers * (TURNS_WITH_MASTERS if self.masters else TURNS)
        wanted = wanted if most is None else min(wanted, most)
        turns = every * max(1, wanted // (every * self.workers))
        if turns * self.workers >= real.batches:
            return real
        return RunLength(epochs=1, draws=turns * self.workers, batches=turns * self.workers)

    def _epochs(self, every: int, most: int | None) -> RunLength:
        """Return as many epochs of a strategy that drains at their ends as may be simulated.

        Draining takes about as long after 16 batches as after 1,000, so a short epoch says little about a long one. If
        a whole one is too long, two shorter ones are simulated: their difference is free of it.
        """
        enough = max(SHORT, min(max(LONG, TURNS * self.workers), LONG if most is None else most))
        real, batches = self.whole_run, self.batches_per_epoch
        # Lengths that differ from an epoch by whole rounds of exchanges end as the epoch does.
        each = every * self.workers
        rounds, rest = divmod(batches - 1, each)
        longer = max(1, int((enough / 1.5 - rest - 1) // each))
        if batches <= enough or longer >= rounds:
            epochs = min(max(1, enough // batches), real.epochs)
            return replace(real, epochs=epochs, batches=epochs * batches)
        long, short = (rest + 1 + count * each for count in (longer, longer // 2))
        return RunLength(epochs=1, draws=long, batches=long, shorter=short)

    def measure(self, scenario: Scenario, length: RunLength, before: Fitted | None = None) -> SimulatedTiming:
        """Simulate a part of a run in a scenario; `before`: a run without steps there, if it is known."""
        workload = self.workload
        before = before or workload.run(self, scenario, self.no_steps())
        start = _Spent.of(before)
        spent = _Spent.of(workload.run(self, scenario, length)) - start
        if spent.seconds <= 0:
            raise UsageError(
                f"{self.name} on {self.ranks} ranks takes no time at all: none of its costs is known"
            )
        batches, draws = length.batches, length.draws
        if length.shorter is not None:
            less = replace(length, draws=length.shorter, batches=length.shorter, shorter=None)
            spent_less = _Spent.of(workload.run(self, scenario, less)) - start
            batches, draws = self.batches_per_epoch, workload.config.draws
            spent = spent.extrapolate(length.batches, spent_less, less.batches, batches)
        samples = batches * self.batch if draws else length.epochs * len(workload.data.train)
        return spent.timing(samples, batches / self.together, simulated=length.batches / self.together)

    def timing_of(self, whole: Fitted) -> SimulatedTiming:
        """Return the time and traffic of a complete run that was computed."""
        before = self.workload.run(self, self.scenario, self.no_steps())
        seconds = whole.train_seconds - before.train_seconds
        samples = (whole.samples_per_second or 0.0) * whole.train_seconds
        if seconds <= 0 or samples <= 0:
            raise UsageError(f"{self.name} on {self.ranks} ranks took no time or no samples")
        steps = samples / (self.batch * self.together)
        return (_Spent.of(whole) - _Spent.of(before)).timing(samples, steps, simulated=steps)

    def no_steps(self) -> RunLength:
        """Return the length of a run without steps."""
        return RunLength(epochs=0, draws=self.workload.config.draws, batches=0)


@dataclass(frozen=True, kw_only=True)
class ComputedRun:
    """The outcome of a whole run whose gradients were computed."""

    accuracy: float | None
    """Of the test samples; 0 if training diverged."""
    staleness: float | None
    """Mean age of a gradient, in updates."""
    timing: SimulatedTiming | None = None


def measure(candidate: PredictionCase, without: Sequence[str], length: RunLength) -> SimulatedTiming:
    """Simulate a part of a run in the scenario without the named costs, with nothing computed."""
    return candidate.measure(candidate.scenario.without(*without), length)


def compute(candidate: PredictionCase, *, timed: bool = False) -> ComputedRun:
    """Simulate a whole run, really computed; `timed`: its time is wanted, too."""
    fitted = candidate.workload.run(candidate, candidate.scenario, candidate.whole_run, time_only=False)
    return ComputedRun(
        accuracy=_accuracy(fitted),
        staleness=_staleness(fitted),
        timing=candidate.timing_of(fitted) if timed else None,
    )


def _accuracy(fitted: Fitted) -> float | None:
    return 0.0 if fitted.diverged is not None and fitted.test_accuracy is None else fitted.test_accuracy


def _staleness(fitted: Fitted) -> float | None:
    found = fitted.findings.get("staleness")
    return float(found["mean"]) if isinstance(found, dict) and "mean" in found else None


@dataclass(frozen=True)
class _Spent:
    """The time and traffic of a run, or of a part of one."""

    seconds: float
    messages: float
    bytes: float

    @classmethod
    def of(cls, run: Fitted) -> _Spent:
        return cls(run.train_seconds, run.messages_sent, run.bytes_sent)

    def __sub__(self, other: _Spent) -> _Spent:
        return _Spent(self.seconds - other.seconds, self.messages - other.messages, self.bytes - other.bytes)

    def extrapolate(self, at: int, less: _Spent, at_less: int, to: int) -> _Spent:
        """Return what `to` batches take if `at` take this, and the fewer `at_less` take `less`."""

        def line(here: float, there: float) -> float:
            # Messages that are still to arrive at the end are random: perhaps more of them in the shorter run.
            further = (here - there) / (at - at_less) if here > there else here / at
            return here + further * (to - at)

        return _Spent(
            line(self.seconds, less.seconds), line(self.messages, less.messages), line(self.bytes, less.bytes)
        )

    def timing(self, samples: float, steps: float, *, simulated: float) -> SimulatedTiming:
        """Return the time and traffic of one of the steps; `simulated`: how many of them were simulated."""
        return SimulatedTiming(
            seconds=self.seconds / steps,
            samples_per_second=samples / self.seconds,
            messages=self.messages / steps,
            bytes=self.bytes / steps,
            steps=max(1, round(simulated)),
        )


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
    made = strategy_of(strategy)
    return strategy_name(made) if isinstance(made, Strategy) else strategy


class Simulations:
    """Simulations of candidates, in this process, or at most `jobs` at a time in others; use it with `with`.

    `load` is for other processes: what they load takes no time to send, and is shared where it is a mapped file.

    >>> from paceline.config import Config
    >>> from paceline.data import load
    >>> from paceline.machine import Costs
    >>> from paceline.vmpi import Curves, Network
    >>> costs = Costs(work={"gradient": Curves.of({1: [[1, 1e-4], [64, 6.4e-3]]})})
    >>> workload = Workload(config=Config(data="iris", model="mlp:8", batch=64), data=load("iris"), costs=costs,
    ...               network=Network.named("1gbe"))
    >>> candidate = workload.candidate("sync:allreduce=ring", 4)
    >>> with Simulations() as simulations:
    ...     outcome = simulations.begin(measure, candidate, (), candidate.length(1))
    ...     round(outcome().messages)
    24
    """

    def __init__(self, jobs: int = 1, load: Load | None = None) -> None:
        self._processes = None if jobs == 1 or load is None else ProcessPool(jobs, load)
        self._jobs = jobs
        self._workloads: dict[int, tuple[Workload, int, dict[str, Any]]] = {}

    def __enter__(self) -> Simulations:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if self._processes is not None:
            self._processes.close(wait_for=kind is None)

    def begin(
        self, function: Callable[..., Outcome], candidate: PredictionCase, *given: Any, **named: Any
    ) -> Callable[[], Outcome]:
        """Begin `function(candidate, ...)`; return a function that returns its outcome or raises its error."""
        if self._processes is None:
            return cache(partial(function, candidate, *given, **named))
        number, values = self._portable(candidate.workload)
        return self._processes.begin(
            (number, values, candidate.name, candidate.ranks, function, given, named)
        )

    def _portable(self, workload: Workload) -> tuple[int, dict[str, Any]]:
        """Return a number for a workload, and all of it that another process cannot load by itself."""
        known = self._workloads.get(id(workload))
        if known is None:
            threads = workload.config.threads or 1
            each = workload.options.compute_threads or max(1, usable_cores() // (self._jobs * threads))
            values = {
                "config": workload.config,
                "costs": workload.costs,
                "network": workload.network,
                "own_costs": dict(workload.own_costs),
                "options": replace(workload.options, compute_threads=each),
            }
            # The workload is kept, so that its identity stays its own.
            known = self._workloads[id(workload)] = (workload, len(self._workloads), values)
        return known[1:]


class ProcessPool:
    """A pool of processes: each is started when there is something to do for it, and does one thing at a time."""

    def __init__(self, most: int, load: Load) -> None:
        self._most, self._load = most, load
        self._context = multiprocessing.get_context("spawn")
        self._started: dict[Connection, SpawnProcess] = {}
        self._idle: list[Connection] = []
        self._busy: dict[Connection, int] = {}
        self._waiting: deque[tuple[int, Any]] = deque()
        self._answers: dict[int, tuple[bool, Any]] = {}
        self._count = 0

    def begin(self, task: Any) -> Callable[[], Any]:
        """Begin a task as soon as a process is idle; return a function that waits for its outcome."""
        number, self._count = self._count, self._count + 1
        self._waiting.append((number, task))
        if self._busy:
            self._receive(timeout=0)
        self._hand_out()
        return partial(self._outcome, number)

    def _outcome(self, number: int) -> Any:
        while number not in self._answers:
            self._receive()
        done, found = self._answers[number]
        if done:
            return found
        raise found

    def _hand_out(self) -> None:
        """Give waiting tasks to idle processes, and to new ones while there are fewer than may be."""
        while self._waiting and (self._idle or len(self._started) < self._most):
            to = self._idle.pop() if self._idle else self._start()
            number, task = self._waiting.popleft()
            to.send(task)
            self._busy[to] = number

    def _start(self) -> Connection:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._load), daemon=True)
        process.start()
        theirs.close()
        self._started[ours] = process
        return ours

    def _receive(self, timeout: float | None = None) -> None:
        """Wait for answers, and go on with what is waiting."""
        for ready in wait(list(self._busy), timeout):
            assert isinstance(ready, Connection)
            number = self._busy.pop(ready)
            try:
                self._answers[number] = ready.recv()
            except EOFError:
                process = self._started.pop(ready)
                process.join()
                raise RuntimeError(f"a process that simulates ended with status {process.exitcode}") from None
            self._idle.append(ready)
        self._hand_out()

    def close(self, *, wait_for: bool) -> None:
        """End the processes; `wait_for`: each may finish what it does."""
        for connection, process in self._started.items():
            if not wait_for:
                process.terminate()
            connection.close()
            process.join()
        self._started.clear()


def _serve(connection: Connection, load: Load) -> None:
    """Simulate what comes, until there is nothing to read any more: the process that asks is done, or gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks ends this one
    workloads: dict[int, Workload] = {}
    loaded: tuple[Dataset, Model | None] | None = None
    while True:
        try:
            workload, values, name, ranks, function, given, named = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        answer: tuple[bool, Any]
        try:
            if loaded is None:
                loaded = load()
            if workload not in workloads:
                workloads[workload] = Workload(data=loaded[0], given=loaded[1], **values)
            candidate = workloads[workload].candidate(name, ranks)
            answer = (True, function(candidate, *given, **named))
        except UsageError as error:
            answer = (False, UsageError(str(error)))
        except SimulationError as error:  # some kinds of it have more than a text
            answer = (False, SimulationError(str(error)))
        except Exception:
            answer = (False, RuntimeError(traceback.format_exc()))
        try:
            connection.send(answer)
        except BrokenPipeError:
            return
