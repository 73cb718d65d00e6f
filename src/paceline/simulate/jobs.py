"""The simulations of a prediction: one after the other in this process, or several at a time in processes of their own.

    begin      note down a simulation; the result is a function that returns its outcome
    outcome    in this process: simulate it now; with several jobs: wait for the process that simulates it

A simulation depends on nothing but its case, so its outcome is the same, bit for bit, wherever it is simulated.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

from paceline.data import Dataset
from paceline.errors import UsageError
from paceline.launch import usable_cores
from paceline.models import Model
from paceline.simulate.case import Candidate, RunLength, StepTiming, Workload
from paceline.training.rank import Fitted
from paceline.vmpi.errors import SimulationError

Outcome = TypeVar("Outcome")
Load = Callable[[], tuple[Dataset, Model | None]]
"""Loads the data, and the model if there is one, in another process; must be picklable."""


@dataclass(frozen=True, kw_only=True)
class ComputedRun:
    """The outcome of a whole run whose gradients were computed."""

    accuracy: float | None
    """Of the test samples; 0 if training diverged."""
    staleness: float | None
    """Mean age of a gradient, in updates."""
    timing: StepTiming | None = None


def measure(candidate: Candidate, without: Sequence[str], length: RunLength) -> StepTiming:
    """Simulate a part of a run in the scenario without the named costs, with nothing computed."""
    return candidate.measure(candidate.scenario.without(*without), length)


def compute(candidate: Candidate, *, timed: bool = False) -> ComputedRun:
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
        self._processes = None if jobs == 1 or load is None else Processes(jobs, load)
        self._jobs = jobs
        self._workloads: dict[int, tuple[Workload, int, dict[str, Any]]] = {}

    def __enter__(self) -> Simulations:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if self._processes is not None:
            self._processes.close(wait_for=kind is None)

    def begin(
        self, function: Callable[..., Outcome], candidate: Candidate, *given: Any, **named: Any
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


class Processes:
    """Processes that are started when there is something to do for them, each of which does one thing at a time."""

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
