"""The search: which candidates are run, for how long and how often, within a budget of time.

1. One process with one thread and with all of them and, if that is short, with each optimizer that a strategy brings. If
   epochs are long, short runs then measure the speed of the most promising of each kind that takes the steps of serial
   training: threads, ranks, ranks with threads.
   After that comes what is expected to be fastest: seconds of an epoch, measured or predicted, times epochs. What takes
   other steps than serial training is expected to need more of them, and waits until the others have been tried.
2. Rungs of training time: every candidate may train for as long as the others, at least as long as a run takes to start.
   As soon as one is likely to reach the target before all that have not been run, it goes on, three times as long;
   otherwise a third of those that were run does, without those that have stopped learning. Those for which there was no
   time come in by their turn.
3. When the target has been reached: whatever promises most (`_promise`), with at most 1.2 times the seconds of the
   fastest. Twice and half the learning rate of the fastest, and of what came near, are among the candidates.
4. A candidate is left out as soon as it cannot win: an epoch of it takes at least so long, by measurement or by
   simulation, and it needs at least so many epochs, because training on ranks learns at most what serial training with
   the same batch and learning rate learns from a sample.
5. Repetitions with other seeds, of the fastest and of those whose difference from it is within the noise
   (`paceline.compare.noise`).
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist, fmean
from typing import NamedTuple, Protocol

from paceline.compare.metric import Goal
from paceline.compare.noise import Timing, differ, with_noise
from paceline.errors import UsageError
from paceline.text import count
from paceline.text import seconds as spell_seconds
from paceline.tune.space import ALONE, Candidate, Space

STOP, STOP_SHARE = (
    2.0,
    1 / 20,
)  # seconds that are kept for ending the last run, and the part of the budget at most
SHORTEST = 0.1  # seconds for which a run is worth starting
START = 2.0  # seconds of a run before and after training, until they have been measured
KEEP, LONGER = 3, 3  # one in KEEP goes to the next rung, which is LONGER times as long
FIRST_RUNG = (
    60  # the first rung is this part of the budget or as long as starting a run, if epochs are shorter
)
SEARCH_SHARE = 0.65  # of the budget; the rest is for repetitions
RUNG_SHARE = 0.35  # of what is left, for one rung while nothing has reached the target
# The time to a smaller error grows with this power of how much smaller it is. A run has stopped learning if its error
# falls with a lower power of the time than PLATEAU.
OUTLOOK, PLATEAU = 1.5, 0.05
SMALLEST = 1e-4  # the smallest error
BEYOND = 1.5  # times the extrapolated epochs to the target, for a longer run
# Of the budget, for predictions; and of what is left, for measuring the costs of the work first.
FORECAST_SHARE, MEASURE_SHARE = 0.12, 0.4
PROBE_SHARE = 0.25  # of what is left
PROBE, LEAST_DRAWS = 1.0, 16  # seconds and batches of a run that only measures speed
ALONE_SHARE = (
    0.2  # of the budget, for one process with one thread where something else takes its steps faster
)
FAR = 3.0  # times what the best is expected to take: not worth measuring
# Times the expected seconds for each candidate like it that did not reach the target: with the steps of serial training,
# and with other steps.
LOST, LOST_OTHER = 1.3, 2.0
# The standard deviation of the logarithm of seconds or epochs: measured, or known from the same steps; predicted; of
# another batch or learning rate; of steps that are not those of serial training.
DOUBT_MEASURED, DOUBT_PREDICTED, DOUBT_EPOCHS, DOUBT_OTHER_STEPS = 0.1, 0.35, 0.5, 0.7
CRITICAL_BATCH = 512  # with a batch of this size, twice the samples are needed that the smallest batches need
OTHER_STEPS = (
    2.0  # times the epochs, besides the root of the workers, if steps are not those of serial training
)
SURE_MEASURED, SURE_PREDICTED = 0.9, 0.5  # how much faster than measured or predicted a candidate may be
# The same if it has trained for less than BRIEF seconds, in which libraries and threads start; and the doubt, as above.
BRIEF, SURE_BRIEF, DOUBT_BRIEF = 0.02, 0.1, 1.0
NEAR = 5.0  # times the seconds of the fastest: other learning rates are worth trying
CLOSE = 1.3  # candidates whose times differ by less are worth repeating
MOST_RUNS = 6  # of one candidate
MOST_FINALISTS = 3
MOST_SLOWER = (
    2.5  # times what is expected of a run or, for a program, the seconds of the fastest to the target
)
PATIENCE, PATIENCE_SHARE = 10.0, 1 / 8  # seconds beyond that, and the part of the budget that they may be
SIMULATED_RANK = 0.3  # times what an epoch of one process takes here, for each simulated rank beside it
MOST_EPOCHS = 10_000
MORE_EPOCHS = 4  # times those of the fastest so far, for a candidate whose speed has not been measured
TOO_SLOW, HANGS, UNSEEN = "too slow", "it seems to hang", "no sign of progress"
SPENT = "the budget is spent"
HOPELESS = 3  # runs that fail, if none has succeeded
_PHI = NormalDist().cdf


class Point(NamedTuple):
    """A value of the target's metric in the course of a run."""

    epoch: int
    """The epochs of training before it, at least 1."""
    seconds: float
    """Of training before it."""
    value: float


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The course of one run."""

    epochs: int
    points: tuple[Point, ...]
    """At the end of each epoch in which the metric was computed; some strategies do so only at the end of the run."""
    seconds: float
    """Of training, in all."""
    wall: float | None = None
    """From the start of the run to its end; None: unknown, or it went on from a shorter one."""
    diverged: bool = False
    disturbed: bool = False
    """True if other programs used the cores of its ranks."""
    run: Path | None = None


@dataclass(frozen=True, kw_only=True)
class FailedRun:
    """A run without a complete record."""

    why: str
    late: bool = False
    """True if it was stopped because its time was over; it may be tried again."""
    stuck: bool = False
    """True if it was ended because it made no progress."""


class Bench(Protocol):
    """Something that runs candidates, one after the other."""

    def find(self, candidate: Candidate, *, epochs: int, seed: int) -> Observed | FailedRun | None:
        """Return what is recorded of a run of at least so many epochs."""
        ...

    def run(self, candidate: Candidate, *, epochs: int, seed: int, limit: float) -> Observed | FailedRun:
        """Run a candidate for at most `limit` seconds."""
        ...

    def probe(self, candidate: Candidate, *, draws: int, limit: float) -> float | None:
        """Run some batches of a candidate; return the seconds that an epoch would take."""
        ...

    def saved_epochs(self, candidate: Candidate, *, epochs: int) -> int:
        """Return the epochs from which a run of so many would go on, instead of from the start."""
        ...

    def cut(self) -> Observed | None:
        """Return the course of the last run up to where it was ended or interrupted; None: it was not."""
        ...


class Speeds(Protocol):
    """Something that predicts the seconds of an epoch."""

    def prepare(self, seconds: float, limit: float) -> None:
        """Do what is needed before the first prediction; all predictions together may take so many seconds.

        A UsageError is raised if that is not possible, or not in `limit` seconds.
        """

    def epoch_seconds(self, candidate: Candidate) -> float | None:
        """Return the predicted seconds of an epoch; None: unknown."""
        ...

    def learn(self, candidate: Candidate, seconds: float) -> None:
        """Note measured seconds of an epoch."""


@dataclass
class Trial:
    """A candidate and its runs, by seed."""

    candidate: Candidate
    runs: dict[int, Observed] = field(default_factory=dict)
    cut: Observed | None = None
    """The longest run that was ended before it reached the target or its last epoch; it leaves no record."""
    stopped: str = ""
    """How its latest run was stopped, if that left no record and is no failure."""
    failed: str = ""
    left_out: str = ""
    """Why it is not run, or not run any longer."""

    @property
    def untried(self) -> bool:
        """True if it might have been run, but was not."""
        return not (self.runs or self.failed or self.left_out)

    @property
    def points(self) -> list[tuple[Point, int]]:
        """The values of the target's metric in all of its runs, each with the number of the run's seed."""
        runs = [*self.runs.items(), *([] if self.cut is None else [(0, self.cut)])]
        return [(point, number) for number, run in runs for point in run.points]


@dataclass(kw_only=True)
class Search:
    """A search in progress; `run` returns when it is over, and what it has found can be read at any time."""

    space: Space
    goal: Goal
    bench: Bench
    budget: float
    speeds: Speeds | None = None
    clock: Callable[[], float] = time.monotonic
    began: float | None = None
    """When the budget began, by the clock; None: now."""
    most_epochs: int = MOST_EPOCHS
    tell: Callable[[str], None] = lambda text: None
    trials: dict[Candidate, Trial] = field(default_factory=dict)
    rungs: list[tuple[float, tuple[Candidate, ...]]] = field(default_factory=list)
    """The seconds of training in each rung, and the candidates that took part."""
    interrupted: bool = False
    over: str = ""
    """Why the search ended."""

    def __post_init__(self) -> None:
        self._began = self.clock() if self.began is None else self.began
        self._measured: dict[tuple[object, ...], float] = {}
        self._brief: set[tuple[object, ...]] = set()
        """Of these, what has only been measured for a moment."""
        self._probed: set[tuple[object, ...]] = set()
        """Of these, what a probe has measured, without the pauses that other programs cause."""
        self._overheads: list[float] = []
        self._per_epoch: dict[tuple[object, ...], float] = {}
        """Seconds on the clock for an epoch, where they differ from those of training: in the simulator."""
        self._stop = min(STOP, STOP_SHARE * self.budget)
        self._phase = self._began
        """When the latest round of exploring and repeating began."""
        self._search_share = SEARCH_SHARE
        self._runs = self._failures = 0
        self._spent_alone = 0.0
        """Seconds on the clock for one process with one thread."""
        self._wholes: list[float] = []
        """Seconds on the clock for whole runs of a program."""
        self._walls: list[tuple[float, int, Candidate]] = []
        self._times: dict[Candidate, Timing] | None = None
        self._better: set[str] | None = None
        self._fastest: dict[tuple[int | None, str], tuple[float, Candidate]] = {}
        """By batch and optimizer: the measured seconds of an epoch of the fastest that takes the steps of one process."""
        self._serial_steps = {one.steps for one in self.space.candidates if one.equals_serial}
        self._tried: dict[Candidate, Trial] = {}
        """The candidates that have been run."""
        self._learned: dict[tuple[object, ...], tuple[int, bool, Candidate]] = {}
        """By the steps of serial training: the epochs to the target, whether it was reached, and who showed it."""
        self.trials = {one: Trial(one) for one in self.space.candidates}

    # ---- the course of the search

    def run(self) -> None:
        """Search until nothing is left to find out, the budget is spent, or the user interrupts."""
        try:
            self._recall()
            if self.speeds is not None:
                self._prepare(self.speeds)
            self._start()
            while True:
                before, self._phase = self._runs, self.clock()
                self._explore()
                self._repeat()
                if not self.times():
                    break
                if self._runs == before:
                    if self._search_share == 1.0:
                        break
                    self._search_share = 1.0  # what is left is too short for a repetition
        except KeyboardInterrupt:
            self.interrupt()
        if not self.over:
            self.over = SPENT if self._more_to_try() else "nothing is left to try"

    def interrupt(self) -> None:
        """End the search; the answer comes at once, from what is recorded: a prediction may need a measurement first."""
        self.interrupted, self.over, self.speeds = True, "interrupted", None
        with suppress(KeyboardInterrupt):  # the answer comes all the same
            self._recall()  # a run may have ended just before

    def _more_to_try(self) -> bool:
        """Return True if more time would have allowed more or longer runs."""
        trials = self.trials.values()
        if self._count_seconds_left() < self._expected_start() or any(trial.untried for trial in trials):
            return True
        alive = [trial for trial in trials if not (trial.failed or trial.left_out)]
        return not self.times() and any(self._longest(trial) < self.most_epochs for trial in alive)

    def _recall(self) -> None:
        """Note everything that is recorded of the candidates, and of other learning rates that were tried for them."""
        waiting = deque(self.trials)
        while waiting:
            one = waiting.popleft()
            if not isinstance(found := self._find(one, 0), Observed):
                continue
            self.trials.setdefault(one, Trial(one))
            self.note(one, 0, found)
            for number in range(1, MOST_RUNS):
                if isinstance(found := self._find(one, number), Observed):
                    self.note(one, number, found)
            waiting += [other for other in self.space.neighbours(one) if other not in self.trials]

    def _find(self, candidate: Candidate, number: int) -> Observed | FailedRun | None:
        """Return what is recorded of a candidate with one of the seeds."""
        return self.bench.find(candidate, epochs=self._least_record(), seed=self.seed(number))

    def _least_record(self) -> int:
        return 1 if self.space.grows else self.most_epochs

    def _prepare(self, speeds: Speeds) -> None:
        self.tell("measuring what the work costs on each core")
        left = self._count_seconds_left()
        # Without costs nothing can be simulated, but real runs can do without predictions.
        limit = MEASURE_SHARE * left if self.space.options is None else left - self._stop
        try:
            speeds.prepare(FORECAST_SHARE * self.budget, max(limit, SHORTEST))
        except UsageError as error:
            self.speeds = None
            self.tell(f"{error}; the search goes on without predictions")

    def _explore(self) -> None:
        """Run rungs until the target is reached, then whatever could still be faster."""
        alive: Sequence[Candidate] = list(self.trials)
        allowance = self._first_allowance()
        while alive and not self.times():
            share = RUNG_SHARE if self.space.grows and len(alive) > 1 else 1.0
            before = self._runs
            self._rung(alive, allowance, self._search_end(share))
            if self.times() or not self.rungs[-1][1]:  # reached, or nothing fits into what is left
                break
            compared = sum(bool(self.trials[one].runs) for one in alive)
            if self._runs > before and compared < KEEP and any(self.trials[one].untried for one in alive):
                continue  # there was time for too few to choose from
            alive = self._halve(alive, allowance)
            allowance *= LONGER
        if self.times():
            self._phase = self.clock()
            if self.space.program is None:
                self._improve()
            else:
                self._rung(list(self.trials), math.inf, self._search_end())

    def _start(self) -> None:
        """Run one process with one thread and with all: what others have to beat, and the scale of everything."""
        if self.space.options is not None:
            return  # the simulator's predictions are what would be measured
        for one in [one for one in self.trials if one.serial][:2]:
            known = self._seconds(one) or self._seconds(next(iter(self.trials)))
            if known is None or known > max(PROBE, self.budget / FIRST_RUNG):
                self._probe(one)
        if min(self._measured.values(), default=0.0) > PROBE:
            self._try_kinds()

    def _try_kinds(self) -> None:
        """Measure speeds of each kind that takes the steps of serial training, by turns, the most promising first."""
        until = self.clock() + PROBE_SHARE * self._count_seconds_left()
        turns: dict[tuple[bool, bool], int] = {}
        waiting = {one.speed: one for one in reversed(self.trials) if self._is_rival(one)}
        while waiting and self.clock() + self._expected_start() + PROBE <= until:
            expected = {one: self._expected_seconds(one) for one in self.trials if one.equals_serial}
            one = min(waiting.values(), key=lambda each: (turns.get(each.kind, 0), expected[each]))
            del waiting[one.speed]
            seconds = self._seconds(one)
            fastest, other = self._fastest.get(one.pace, (math.inf, one))
            slower = one.kind == other.kind and (seconds or 0.0) > fastest
            near = (FAR if one.kind in turns else FAR**2) * min(expected.values())
            if one.speed in self._measured or slower or expected[one] > near:
                continue
            turns[one.kind] = turns.get(one.kind, 0) + 1
            if seconds is not None and seconds <= 2 * PROBE:  # its first epoch shows what it learns, too
                self._observe(one, epochs=self._epochs(one, PROBE), seed=0)
            else:
                self._probe(one)

    def _is_rival(self, candidate: Candidate) -> bool:
        """Return True if it takes the steps of serial training, with batches that are not below the usual ones."""
        usual = self.space.candidates[0].batch or 0
        same = candidate.equals_serial and not candidate.optimizer
        return same and candidate.kind != ALONE and (candidate.batch or 0) >= usual

    def _probe(self, candidate: Candidate) -> None:
        if candidate.speed in self._measured or self.bench.find(candidate, epochs=1, seed=self.seed(0)):
            return
        expected = self._seconds(candidate)
        steps = self._steps(candidate)
        draws, whole = LEAST_DRAWS, LONGER * LEAST_DRAWS
        if expected is not None:
            draws = whole = max(draws, int(PROBE / expected * steps))
        if whole >= steps or self._count_seconds_left() < self._expected_start():
            return  # a whole epoch is about as short, and shows what is learned, too
        began = self.clock()
        found = self.bench.probe(candidate, draws=draws, limit=self._count_seconds_left() - self._stop)
        took = self.clock() - began
        self._note_spent(candidate, took)
        if found is None:
            return
        self._overheads.append(max(0.0, took - found * draws / steps))
        self._note_speed(candidate, found)
        self._probed.add(candidate.speed)

    def _rung(self, alive: Sequence[Candidate], allowance: float, until: float) -> None:
        """Let each of these train for `allowance` seconds, the most promising first; leave out what cannot win.

        No run ends after `until`, but the first one may take all that is left for searching.
        """
        waiting, taken, before_any = list(alive), list[Candidate](), self._runs
        reached = bool(self.times())
        cheap = max(2 * PROBE, self.budget / FIRST_RUNG)
        first = [
            one
            for one in [*[one for one in self.trials if one.serial][:2], *self._other_optimizers()]
            if self.space.program is None
            and one in waiting
            and one not in self._tried
            and (self._seconds(one) or 0.0) <= cheap
        ]
        order: list[Candidate] = []
        while waiting:
            if not order:
                order = [*first, *self._order([one for one in waiting if one not in first])]
            if not self.times() and self._has_favourite(taken, order[0]):
                break  # it goes on in the next rung
            if self.times() and not reached and not self.space.grows:
                break  # the others go on, but leave time for repetitions
            one = order.pop(0)
            waiting.remove(one)
            first = [other for other in first if other != one]
            trial = self.trials[one]
            if trial.failed or any(map(self._count_needed_epochs, trial.runs.values())):
                continue
            if why := self._cannot_win(one):
                trial.left_out = why
                continue
            if self.clock() >= until or not self._can_start():
                break
            epochs, before = self._epochs(one, allowance), self._longest(trial)
            twice = max(before, min(2 * before, self.most_epochs) - 1)
            if epochs > (before if self.times() or not self.space.grows else twice):
                end = until if self._runs > before_any else self._search_end()
                if not self._fits(one, epochs, end):
                    epochs = 0 if self.times() else self._epochs_that_fit(one, end)
                    if epochs <= before:
                        continue  # with less than the fastest has needed, nothing could be said
                if self._too_long_alone(one, epochs):
                    continue
                self._observe(one, epochs=epochs, seed=0)
                order = []  # it has shown something about the others
            taken.append(one)
        self.rungs.append((allowance, tuple(taken)))

    def _other_optimizers(self) -> list[Candidate]:
        """Return one process with each other optimizer, with the usual batch and rate: some learn far faster."""
        found: dict[str, Candidate] = {}
        usual = self.space.candidates[0].batch
        for one in self.trials:
            if one.optimizer and one.equals_serial and one.batch == usual:
                before = found.setdefault(one.optimizer, one)
                if (self._seconds(one) or math.inf) < (self._seconds(before) or math.inf):
                    found[one.optimizer] = one
        return list(found.values())

    def _has_favourite(self, taken: Sequence[Candidate], next_one: Candidate) -> bool:
        """Return True if one that took part in a rung is likely to reach the target in the next, before any other."""
        ran = [one for one in taken if self.trials[one].runs and not self.trials[one].failed]
        best = min(ran, key=self._outlook, default=None)
        if best is None or not self.space.grows:
            return False
        needs = self._outlook(best)
        return needs <= LONGER * self.trials[best].runs[0].seconds and needs < self._expected_seconds(
            next_one
        )

    def _order(self, waiting: Sequence[Candidate]) -> list[Candidate]:
        """Return candidates with the most promising first.

        The very first takes the usual steps: their batch and learning rate are known to suit the model. Later, what takes
        steps that are known to reach the target, faster than they have been taken, comes first. What takes other
        steps than serial training comes after the first one on ranks that takes the same, and after all threads with
        every batch, where these may be worth it. Last comes what would take known steps more slowly.
        Runs of programs are whole, so those come first that use all cores and take the steps of serial training. What has
        failed with the same ranks and threads is likely to fail again.
        """
        if self.space.program is not None:
            failed = {one.layout for one, trial in self.trials.items() if trial.failed}
            failed -= {one.layout for one in self._tried}
            return sorted(
                waiting,
                key=lambda one: (
                    one.layout in failed,
                    not one.equals_serial,
                    -one.ranks * one.threads,
                    one.ranks > 1 and one.threads > 1,
                ),
            )
        expected = {one: self._expected_seconds(one) for one in waiting}
        near = FAR * min(expected.values(), default=0.0)
        same = [one for one in waiting if one.equals_serial]
        ranks = any(one.equals_serial and one.ranks > 1 for one in self._tried)
        threads = [one for one in same if one.serial and one.threads == self.space.cores > 1]
        owed = (not ranks and any(one.ranks > 1 for one in same)) or any(
            one.speed not in self._measured and expected[one] <= near for one in threads
        )

        usual = self.space.candidates[0].steps

        def turn(one: Candidate) -> int:
            if not self._tried and one.equals_serial and one.steps == usual:
                return 0
            if not self._takes_known_steps(one):
                return 2 if owed else 1
            return 3 if self._is_known(one) else 1

        return sorted(waiting, key=lambda one: (turn(one), expected[one]))

    def _is_known(self, candidate: Candidate) -> bool:
        """Return True if another candidate has taken its steps, and at least as fast as is expected of it."""
        fastest, other = self._fastest.get(candidate.pace, (math.inf, candidate))
        if candidate in self._tried or candidate.steps not in self._learned:
            return False
        if other.layout == candidate.layout:  # nothing else takes them as fast
            return False
        seconds = self._seconds(candidate)
        return seconds is not None and seconds >= fastest

    def _too_long_alone(self, candidate: Candidate, epochs: int) -> bool:
        """Return True if one process with one thread has had its share, and something else takes its steps faster."""
        seconds = self._seconds(candidate)
        if candidate.kind != ALONE or seconds is None or self.space.options is not None:
            return False
        if self._spent_alone + self._expected_start() + epochs * seconds <= ALONE_SHARE * self.budget:
            return False
        return any(
            one.equals_serial and one.pace == candidate.pace and (self._seconds(one) or math.inf) < seconds
            for one in self.trials
        )

    def _halve(self, alive: Iterable[Candidate], allowance: float) -> list[Candidate]:
        """Return the third of those that were tried that is likely to reach the target first, and those not tried.

        If all of them have stopped learning, those that were left out before come back.
        """

        def learns(one: Candidate, *, still: bool = True) -> bool:
            trial, run = self.trials[one], self.trials[one].runs.get(0)
            if run is None or trial.failed or run.epochs >= self.most_epochs or self._cannot_win(one):
                return False
            return not (still and self._at_plateau(run))

        alive = list(alive)
        tried = (
            [one for one in alive if learns(one)]
            or [one for one in self._tried if learns(one)]
            or [one for one in alive if learns(one, still=False)]
        )
        tried.sort(key=self._outlook)
        kept = tried[: max(1, len(tried) // KEEP)] if tried else []
        for one in kept:
            self.trials[one].left_out = ""
        for one in tried[len(kept) :]:
            self.trials[one].left_out = f"learned less than others in {spell_seconds(allowance)} s"
        return [*kept, *(one for one in alive if self.trials[one].untried)]

    def _at_plateau(self, run: Observed) -> bool:
        """Return True if a run of several epochs learned almost nothing in its second half."""
        errors, half = [self._error(point.value) for point in run.points], len(run.points) // 2
        if half < 2 or not run.points[half - 1].seconds:
            return False
        longer = run.points[-1].seconds / run.points[half - 1].seconds
        return bool(min(errors[:half]) <= longer**PLATEAU * min(errors))

    def _outlook(self, candidate: Candidate) -> float:
        """Return the seconds to the target, extrapolated from what a candidate has learned so far.

        Errors are taken to fall with a power of the time, until a run has stopped learning.
        """
        run = self.trials[candidate].runs.get(0)
        if run is None or not run.points:
            return math.inf
        if self._at_plateau(run):
            return math.inf
        nearest = min(run.points, key=lambda point: self.goal.metric.key(point.value))
        factor = max(1.0, self._error(nearest.value) / self._error(self.goal.value))
        return float(nearest.seconds * factor**OUTLOOK)

    def _outlook_epochs(self, candidate: Candidate) -> float:
        """Return the epochs to the target, extrapolated; 0 if it was reached, or if that is not possible."""
        run = self.trials[candidate].runs.get(0)
        if run is None or not run.points or self._count_needed_epochs(run) is not None:
            return 0.0
        outlook = self._outlook(candidate)
        return outlook / run.seconds * run.epochs if math.isfinite(outlook) else 0.0

    def _error(self, value: float) -> float:
        """Return how bad a value is: above 0, lower is better."""
        if self.goal.metric.percent:
            return max(1.0 - value, SMALLEST)
        return 1 / max(value, SMALLEST) if self.goal.metric.higher else max(value, SMALLEST)

    def _improve(self) -> None:
        """Run what promises most, again and again, while there is time for searching.

        Twice and half the learning rate of what is not far slower than the fastest, or would not be if it had learned a
        little more, are among the candidates, and the same rate with the next smaller batch: below the largest rate with
        which training is stable, twice the steps or twice the rate need about half the epochs.
        """
        taken: list[Candidate] = []
        going_on = True
        while going_on and (best := self.best()) is not None and self._can_start():
            going_on = False
            fastest = self.times()[best].mean
            near = [
                one
                for one in self._tried
                if not one.optimizer  # it chooses the size of its steps itself
                and min(self._outlook(one), self._mean(one)) <= NEAR * fastest
                and (
                    one not in self.times() or self.epochs_needed(one) > 1
                )  # no rate needs less than one epoch
            ]
            for new in (new for one in near for new in self.space.neighbours(one)):
                self.trials.setdefault(new, Trial(new))
            for one in sorted(filter(self._may_improve, self.trials), key=self._promise, reverse=True):
                epochs = self._epochs_to_improve(one)
                if epochs > self._longest(self.trials[one]) and not self._too_long_alone(one, epochs):
                    going_on = self._observe(one, epochs=epochs, seed=0) or bool(self.trials[one].failed)
                    taken.append(one)
                    break
        self.rungs.append((math.inf, tuple(taken)))

    def _epochs_to_improve(self, candidate: Candidate) -> int:
        """Return the epochs for which to run a candidate that promises to be the fastest; 0: there is no time."""
        epochs, end = self._epochs(candidate, math.inf), self._search_end()
        if self._fits(candidate, epochs, end):
            return epochs
        fewer, seconds = self._epochs_that_fit(candidate, end), self._seconds(candidate)
        return fewer if seconds and fewer * seconds >= self._expected_seconds(candidate) else 0

    def _may_improve(self, candidate: Candidate) -> bool:
        """Return True if a candidate that has not reached the target could be faster than the fastest that has."""
        trial = self.trials[candidate]
        if trial.failed or any(map(self._count_needed_epochs, trial.runs.values())):
            return False
        if why := self._cannot_win(candidate):
            trial.left_out = why
        return not why

    def _promise(self, candidate: Candidate) -> float:
        """Return the seconds by which a candidate is expected to be faster than the fastest, for each second of its run.

        Its time to the target is taken to have a log-normal distribution around what would be bet on. If it is slower, it
        changes nothing, so the expected gain is above 0 (the "expected improvement" of Bayesian optimization).
        """
        best = self.best()
        assert best is not None
        fastest, expected = self.times()[best].mean, self._expected_seconds(candidate)
        cost = self._expected_start() + self._epochs(candidate, math.inf) * (
            self._clock_seconds(candidate) or 0.0
        )
        if not math.isfinite(expected) or not fastest:
            return 0.0
        sigma = self._doubt(candidate)
        nearer = math.log(fastest / expected) / sigma
        gain = fastest * _PHI(nearer) - expected * math.exp(sigma**2 / 2) * _PHI(nearer - sigma)
        return gain / cost

    def _doubt(self, candidate: Candidate) -> float:
        """Return the standard deviation of the logarithm of a candidate's expected seconds to the target."""
        measured = candidate.speed in self._measured or self.space.options is not None
        speed = DOUBT_MEASURED if measured else DOUBT_PREDICTED
        if candidate.speed in self._brief:
            speed = DOUBT_BRIEF
        if not self._takes_known_steps(candidate):
            return math.hypot(speed, DOUBT_OTHER_STEPS)
        _, reached, _ = self._learned.get(candidate.steps, (0, False, candidate))
        return math.hypot(speed, DOUBT_MEASURED if reached else DOUBT_EPOCHS)

    def _repeat(self) -> None:
        """Repeat the fastest and those within the noise of it, until the differences are clear or the budget is spent."""
        while True:
            rivals = self.rivals()
            if not rivals:
                return
            one = min(rivals, key=lambda each: (len(self.trials[each].runs), self._mean(each)))
            trial = self.trials[one]
            if len(trial.runs) >= MOST_RUNS:
                self.over = "more repetitions would show little"
                return
            epochs = self._epochs_of_repetition(trial)
            if not self._fits(one, epochs, self._began + self.budget):
                return
            seed = next(number for number in range(MOST_RUNS + 1) if number not in trial.runs)
            if not self._observe(one, epochs=epochs, seed=seed):
                return

    def _epochs_of_repetition(self, trial: Trial) -> int:
        """Return the epochs for another seed: some more than were needed so far, if what it needs can be seen."""
        if not self.space.grows:
            return self._longest(trial)
        epochs = max(self._count_needed_epochs(run) or run.epochs for run in trial.runs.values())
        if any(len(run.points) < run.epochs for run in trial.runs.values()):
            return epochs  # evaluated only at the end: more epochs would count as needed
        return min(self.most_epochs, epochs + 1 + epochs // 2)

    # ---- what is known

    def times(self) -> dict[Candidate, Timing]:
        """Return when the runs of each candidate reached the target, for those of which one did."""
        if self._times is not None:
            return self._times
        found = {}
        for one, trial in self._tried.items():
            reached = {seed: self._find_time_to_target(run) for seed, run in trial.runs.items()}
            seconds = [time_[0] for time_ in reached.values() if time_ is not None]
            if seconds:
                found[one] = Timing(seconds=tuple(seconds), missed=len(reached) - len(seconds))
        self._times = with_noise(found)
        return self._times

    def best(self) -> Candidate | None:
        """Return the candidate that reached the target first on average, with every seed if any did."""
        found = self.times()
        return min(found, key=lambda one: found[one].key, default=None)

    def rivals(self) -> list[Candidate]:
        """Return the fastest and those that are about as fast, within the noise; empty if there is no doubt."""
        found, best = self.times(), self.best()
        if best is None:
            return []
        near = [
            one
            for one in sorted(found, key=lambda one: found[one].key)[: MOST_FINALISTS + 1]
            if one != best
            and found[one].mean <= CLOSE * found[best].mean
            and not differ(found[best], found[one])
        ]
        if not near and len(found[best].seconds) + found[best].missed >= 3:
            return []
        return [best, *near[: MOST_FINALISTS - 1]]

    def nearest(self) -> Candidate | None:
        """Return the candidate that came nearest to the target, if none reached it."""
        metric = self.goal.metric
        values = {
            one: metric.best(point.value for point, _ in trial.points) for one, trial in self.trials.items()
        }
        known = {one: value for one, value in values.items() if value is not None}
        return min(known, key=lambda one: metric.key(known[one]), default=None)

    def favourite(self) -> Candidate:
        """Return the candidate to bet on if no run has shown anything: by default, one process with all threads."""
        first, *others = self.space.candidates
        return min([*others[:1], first, *others[1:]], key=self._expected_seconds)

    def epochs_needed(self, candidate: Candidate) -> int:
        """Return the epochs after which every run of the candidate had reached the target, or the longest run's."""
        trial = self.trials[candidate]
        if not self.space.grows:
            return self._longest(trial)
        return max((self._count_needed_epochs(run) or run.epochs for run in trial.runs.values()), default=1)

    def choose_repetition(self, candidate: Candidate) -> tuple[int, int]:
        """Return a seed with which the candidate reached the target, the first one if it did, and the epochs to it.

        Runs whose length is fixed have all of their epochs; those that end at the target come before the others.
        """
        goal, reached = self.goal, []
        for number, run in sorted(self.trials[candidate].runs.items()):
            if (needed := self._count_needed_epochs(run)) is not None:
                left = not (self.space.grows or goal.metric.reaches(run.points[-1].value, goal.value))
                reached.append((left, number, needed))
        _, number, needed = min(reached)
        return self.seed(number), needed if self.space.grows else self.most_epochs

    def epoch_seconds(self, candidate: Candidate) -> float | None:
        """Return the measured seconds of an epoch; None if it was never run."""
        return self._measured.get(candidate.speed)

    def _find_time_to_target(self, run: Observed) -> tuple[float, int] | None:
        """Return the seconds and the number of epochs after which a run had reached the target."""
        metric, value = self.goal.metric, self.goal.value
        if run.diverged:
            return None
        for point in run.points:
            if metric.reaches(point.value, value):
                return point.seconds, point.epoch
        return None

    def _count_needed_epochs(self, run: Observed) -> int | None:
        reached = self._find_time_to_target(run)
        return None if reached is None else reached[1]

    def _longest(self, trial: Trial) -> int:
        return max((run.epochs for seed, run in trial.runs.items() if seed == 0), default=0)

    def _mean(self, candidate: Candidate) -> float:
        found = self.times().get(candidate)
        return math.inf if found is None else found.mean

    # ---- what may be expected

    def _seconds(self, candidate: Candidate) -> float | None:
        """Return the seconds of an epoch: measured, or else predicted."""
        if (found := self._measured.get(candidate.speed)) is not None:
            return found
        return None if self.speeds is None else self.speeds.epoch_seconds(candidate)

    def _at_least(self, candidate: Candidate) -> tuple[float, str]:
        """Return the fewest seconds that an epoch may take, and how that is known."""
        if (found := self._measured.get(candidate.speed)) is not None:
            sure = SURE_BRIEF if candidate.speed in self._brief else SURE_MEASURED
            return sure * found, f"{spell_seconds(found)} s an epoch"
        predicted = None if self.speeds is None else self.speeds.epoch_seconds(candidate)
        if predicted is not None:
            return SURE_PREDICTED * predicted, f"{spell_seconds(predicted)} s an epoch in the simulator"
        return 0.0, ""

    def _least_epochs(self, candidate: Candidate) -> tuple[int, str]:
        """Return the fewest epochs that a candidate may need, and how that is known."""
        least, why = 1, ""
        for run in self.trials[candidate].runs.values():
            if self._count_needed_epochs(run) is None:
                least, why = max(least, run.epochs + 1), f"target not reached in {count(run.epochs, 'epoch')}"
        if candidate.steps in self._learned:
            needs, reached, other = self._learned[candidate.steps]
            if needs > least and other != candidate:
                least, many = (
                    needs,
                    f"{needs} epochs" if reached else f"more than {count(needs - 1, 'epoch')}",
                )
                why = f"learns no more from a sample than {other}, which needs {many}"
        return least, why

    def _expected_seconds(self, candidate: Candidate) -> float:
        """Return the seconds to the target that one would bet on, to try the most promising first."""
        seconds = self._seconds(candidate)
        if seconds is None:
            return math.inf
        if (tried := self.trials[candidate]).runs and not any(
            map(self._count_needed_epochs, tried.runs.values())
        ):
            return max(self._outlook(candidate), seconds * (self._longest(tried) + 1))
        if self._takes_known_steps(candidate) and candidate.steps in self._learned:
            return float(seconds * self._expected_epochs(candidate))
        lost = sum(
            not any(map(self._count_needed_epochs, trial.runs.values()))
            for one, trial in self._tried.items()
            if one != candidate
            and one.optimizer == candidate.optimizer
            and (
                one.speed == candidate.speed
                or (one.family == candidate.family and not self._takes_known_steps(one))
            )
        )
        worse = LOST if self._takes_known_steps(candidate) else LOST_OTHER
        return float(seconds * self._expected_epochs(candidate) * worse**lost)

    def _takes_known_steps(self, candidate: Candidate) -> bool:
        """Return True if its steps are those of one process with the run's update, or with an optimizer that is better."""
        return candidate.equals_serial and (
            not candidate.optimizer or candidate.optimizer in self._better_optimizers()
        )

    def _better_optimizers(self) -> set[str]:
        """Return the optimizers with which the target was reached, or is nearer than with the run's update."""
        if self._better is None:
            nearest: dict[str, float] = {}
            for one in self._tried:
                nearest[one.optimizer] = min(nearest.get(one.optimizer, math.inf), self._outlook(one))
            usual = nearest.pop("", math.inf)
            reached = {one.optimizer for one in self.times()}
            self._better = {each for each, found in nearest.items() if each in reached or found < usual}
        return self._better

    def _expected_epochs(self, candidate: Candidate) -> float:
        """Return the epochs to the target that one would bet on.

        Small batches need the same samples, batches far above the critical one the same steps. With twice the learning
        rate of one that reached the target, for each sample, half the epochs are needed, unless it is too high: the bet is
        on the root of that. Steps that are not those of serial training are expected to teach less, the more workers there
        are and the higher the learning rate is.
        """
        least, _ = self._least_epochs(candidate)
        usual = self.space.candidates[0].batch or 1
        batch = candidate.batch or usual
        needs, reached, other = self._learned.get(candidate.steps) or min(
            self._learned.values(),
            key=lambda each: (
                each[2].optimizer != candidate.optimizer,
                not each[1],
                abs(math.log((each[2].batch or usual) / batch)),
                abs(math.log((each[2].lr or 1.0) / (candidate.lr or 1.0))),
            ),
            default=(1, False, self.space.candidates[0]),
        )
        found = max(needs, self._outlook_epochs(other))
        found *= (CRITICAL_BATCH + batch) / (CRITICAL_BATCH + (other.batch or usual))
        if not self._takes_known_steps(candidate):
            found *= OTHER_STEPS * math.sqrt(candidate.workers)
            found *= math.sqrt(max(1.0, (candidate.lr or 0.0) / self.space.rate))
        elif reached and candidate.lr and other.lr and not candidate.optimizer:
            found *= math.sqrt(min(1.0, other.lr / (other.batch or usual) * batch / candidate.lr))
        return max(least, found)

    def _cannot_win(self, candidate: Candidate) -> str:
        """Return why a candidate cannot be faster than the fastest so far; empty if it may be."""
        if why := self._find_dominating(candidate):
            return why
        best = self.best()
        if best is None or candidate == best:
            return ""
        fastest = self.times()[best].mean
        seconds, how = self._at_least(candidate)
        epochs, why = self._least_epochs(candidate)
        if seconds * epochs <= fastest:
            return ""
        return f"{how}{'; ' if how and why else ''}{why}"

    def _find_dominating(self, candidate: Candidate) -> str:
        """Return which other candidate takes the same steps faster, or steps that teach at least as much; empty: none."""
        fastest, other = self._fastest.get(candidate.pace, (math.inf, candidate))
        if (
            other == candidate
            or other.layout == candidate.layout
            or candidate.steps not in self._serial_steps
        ):
            return ""
        seconds, how = self._at_least(candidate)
        if seconds <= fastest:
            return ""
        faster = replace(other, batch=None, lr=None)
        return f"{how}; learns no more from a sample than {faster}, which is faster"

    def _epochs(self, candidate: Candidate, allowance: float) -> int:
        """Return the epochs that a candidate may train in a rung: no longer than the fastest so far."""
        if not self.space.grows:
            return self.most_epochs
        best = self.best()  # without predictions, an epoch is taken to be as long as the longest so far
        seconds = self._seconds(candidate) or max(self._measured.values(), default=None)
        if best is not None:
            allowance = min(allowance, 1.2 * self.times()[best].mean)
        epochs = 1 if best is None else 2 * self.epochs_needed(best)
        if seconds is not None:
            epochs = max(1, math.floor(min(MOST_EPOCHS, allowance / seconds) + 1e-9))
        if best is None and self.space.options is not None and (each := self._clock_seconds(candidate)):
            if candidate.speed not in self._per_epoch:
                each = max(each, SIMULATED_RANK * candidate.ranks * (self._alone() or 0.0))
            room = 0.1 * (self._search_end() - self.clock())
            epochs = min(epochs, max(1, int(room / each)))
        if best is None and seconds and (before := self._longest(self.trials[candidate])):
            epochs = min(
                epochs,
                max(2 * before, math.ceil(BEYOND * min(MOST_EPOCHS, self._outlook(candidate) / seconds))),
            )
        if candidate.equals_serial and candidate.steps in self._learned:
            needs, reached, _ = self._learned[candidate.steps]
            epochs = min(epochs, needs + 1) if reached else epochs
        elif best is not None and (candidate.speed not in self._measured or self.space.options is not None):
            # The predicted speed may be wrong by far; simulated epochs take as long on any number of ranks.
            epochs = min(epochs, MORE_EPOCHS * self.epochs_needed(best))
        return min(epochs, self.most_epochs)

    # ---- the budget

    def _can_start(self) -> bool:
        """Return True if what is left of the budget may be enough for a run."""
        unknown = START if self._runs else 0.0  # the first run is started with the shortest budget, too
        return self._count_seconds_left() > self._stop + max(SHORTEST, min(self._overheads, default=unknown))

    def _count_seconds_left(self) -> float:
        return self._began + self.budget - self.clock()

    def _search_end(self, share: float = 1.0) -> float:
        """Return the time until which candidates are tried; if none has reached the target, all of the budget is for that.

        `share`: the part of what is left that one rung may use.
        """
        whole = self._began + self.budget - self._phase
        end = self._phase + whole * (self._search_share if self.times() else 1.0)
        return self.clock() + share * (end - self.clock())

    def _first_allowance(self) -> float:
        """Return the seconds of training in the first rung."""
        known = [found for one in self.trials if (found := self._seconds(one)) is not None]
        share = min(self.budget / FIRST_RUNG, START)
        if self.space.options is None:
            return max(min(known, default=0.0), share, fmean(self._overheads or [0.0]))
        # Simulated ranks compute on one core here: as many epochs as one process makes in that time.
        return max(self._alone() or share, share)

    def _expected_start(self) -> float:
        return fmean(self._overheads) if self._overheads else START

    def _clock_seconds(self, candidate: Candidate) -> float | None:
        """Return the seconds of an epoch on the clock."""
        if self.space.options is None:
            return self._seconds(candidate)
        own = self._per_epoch.get(candidate.speed)
        return own if own is not None else max(self._per_epoch.values(), default=self._alone())

    def _alone(self) -> float | None:
        """Return the seconds of an epoch of one process: what simulated ranks together take at least."""
        return self._seconds(next(iter(self.trials)))

    def _fits(self, candidate: Candidate, epochs: int, until: float) -> bool:
        """Return True if so many epochs are likely to end in time."""
        if self.space.program is not None:  # every run is a whole one
            return self.clock() + (min(self._wholes) / 2 if self._wholes else START) <= until
        each = self._clock_seconds(candidate) or 0.0
        new = epochs - self.bench.saved_epochs(candidate, epochs=epochs)
        return self.clock() + self._expected_start() + new * each <= max(until, self.clock())

    def _epochs_that_fit(self, candidate: Candidate, until: float) -> int:
        if not self.space.grows:
            return 0
        each = self._clock_seconds(candidate)
        room = until - self.clock() - self._expected_start()
        if not each or room < each:
            return 0
        return int(room / each) + self.bench.saved_epochs(candidate, epochs=self.most_epochs)

    def seed(self, number: int) -> int:
        """Return the seed of a candidate's first run (0) or of a repetition."""
        return self.space.base.seed + number

    def _steps(self, candidate: Candidate) -> int:
        """Return the batches of an epoch, as far as they are known."""
        steps = getattr(self.bench, "batches", None)
        return int(steps(candidate)) if steps is not None else 1

    def _observe(self, candidate: Candidate, *, epochs: int, seed: int) -> bool:
        """Run a candidate, or find its record; return False if it failed or was ended."""
        trial, number = self.trials[candidate], self.seed(seed)
        found = self.bench.find(candidate, epochs=epochs, seed=number)
        left, patience = self._count_seconds_left() - self._stop, self._patience(candidate, epochs)
        if found is None:
            if not self._can_start():
                return False
            limit = min(left, patience)
            self._runs += 1
            began = self.clock()
            try:
                found = self.bench.run(candidate, epochs=epochs, seed=number, limit=limit)
            except KeyboardInterrupt:
                trial.stopped = f"interrupted after {self.clock() - began:.0f} s"
                self._note_cut(candidate, seed)
                raise
            self._note_spent(candidate, self.clock() - began)
            if isinstance(found, Observed) and found.wall is not None:
                self._note_wall(candidate, found)
        if isinstance(found, FailedRun):
            if found.late or found.stuck:
                self._note_cut(candidate, seed)
            if not found.late:
                self._failures += 1
            if not found.late or patience < left:
                trial.failed = f"{TOO_SLOW}, {found.why.partition(':')[0]}" if found.late else found.why
            else:
                trial.stopped = found.why
            if found.late and patience < left and self.space.program is None:  # others like it are as slow
                self._note_speed(candidate, (patience - self._expected_start()) / epochs)
            self._give_up()
            return False
        self.note(candidate, seed, found)
        return True

    def note(self, candidate: Candidate, seed: int, found: Observed) -> None:
        """Note a run: its course, its speed and what it shows about others."""
        trial = self._tried.setdefault(candidate, self.trials[candidate])
        trial.runs[seed] = found
        self._times = self._better = None
        if found.diverged:
            trial.failed = "diverged"
        elif seed == 0 and candidate.equals_serial:
            self._learn(candidate, found)
        if found.epochs and found.seconds > 0:
            brief = found.seconds < BRIEF and self.space.options is None
            if not brief:
                self._brief.discard(candidate.speed)
            elif candidate.speed not in self._measured:
                self._brief.add(candidate.speed)
            self._note_speed(candidate, found.seconds / found.epochs)

    def _note_cut(self, candidate: Candidate, seed: int) -> None:
        """Note the course of a run that was ended: as a run if it had reached the target, else for want of a better one."""
        found, trial = self.bench.cut(), self.trials[candidate]
        if found is None:
            return
        if self._count_needed_epochs(found) is not None:
            self.note(candidate, seed, found)
        elif seed == 0 and (trial.cut is None or found.epochs > trial.cut.epochs):
            trial.cut = found

    def _give_up(self) -> None:
        """Raise a UsageError if the first few runs have all failed: others would fail as well."""
        trials = self.trials.values()
        if self._failures >= min(HOPELESS, len(trials)) and not any(
            trial.runs or trial.cut for trial in trials
        ):
            program = self.space.program
            shows = "" if program is None else f"; `paceline run {program.file}` shows all of its output"
            raise UsageError(
                f"every run failed: {next(trial.failed for trial in trials if trial.failed)}{shows}"
            )

    def _patience(self, candidate: Candidate, epochs: int) -> float:
        """Return the seconds after which a run is ended, because it is far slower than was to be expected."""
        if self.space.program is not None:
            best = self.best()
            if best is None or not self._overheads:
                return math.inf
            return PATIENCE + max(self._overheads) + MOST_SLOWER * self.times()[best].mean
        each = self._clock_seconds(candidate) or self._alone()
        if self.space.options is not None:
            return math.inf  # the costs may have to be measured first
        if each is None:
            return math.inf
        patience = min(PATIENCE, PATIENCE_SHARE * self.budget)
        return patience + MOST_SLOWER * (self._expected_start() + epochs * each)

    def _learn(self, candidate: Candidate, run: Observed) -> None:
        """Note the epochs that serial training with this batch and learning rate needs."""
        needs = self._count_needed_epochs(run)
        at_least, reached, _ = self._learned.get(candidate.steps, (0, False, candidate))
        if not reached and (needs is not None or run.epochs >= at_least):
            self._learned[candidate.steps] = (needs or run.epochs + 1, needs is not None, candidate)

    def _note_speed(self, candidate: Candidate, seconds: float) -> None:
        if (
            before := self._measured.get(candidate.speed)
        ) is not None and candidate.speed not in self._probed:
            seconds = min(before, seconds)
        self._probed.discard(candidate.speed)
        self._measured[candidate.speed] = seconds
        fastest, other = self._fastest.get(candidate.pace, (math.inf, candidate))
        if candidate.equals_serial and (seconds < fastest or other.speed == candidate.speed):
            self._fastest[candidate.pace] = seconds, candidate
        if self.speeds is not None:
            self.speeds.learn(candidate, seconds)

    def _note_spent(self, candidate: Candidate, seconds: float) -> None:
        if candidate.kind == ALONE:
            self._spent_alone += seconds

    def _note_wall(self, candidate: Candidate, found: Observed) -> None:
        assert found.wall is not None
        self._wholes.append(found.wall)
        if self.space.options is None:
            self._overheads.append(max(0.0, found.wall - found.seconds))
            return
        self._walls.append((found.wall, found.epochs, candidate))
        least = min(wall for wall, _, _ in self._walls)
        self._overheads = [least]
        for wall, epochs, one in self._walls:
            self._per_epoch[one.speed] = max(self._alone() or 0.0, (wall - least) / max(1, epochs))
