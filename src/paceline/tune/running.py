"""The runs of a search: each an ordinary record in a folder, started like the cells of a study, one after the other."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline.compare.metric import Metric, names_in, read_epoch, read_test
from paceline.errors import UsageError
from paceline.files import write_json
from paceline.record import Run
from paceline.record.environment import cores_were_shared
from paceline.study.cells import Cell, read_request
from paceline.study.folder import STUDY, Folder, ends_with_checkpoint
from paceline.study.run import NO_RECORD, Ended, StudyState, Trains, run_missing
from paceline.text import count, join
from paceline.tune.search import HANGS, MOST_RUNS, SHORTEST, UNSEEN, FailedRun, Observed, Point
from paceline.tune.space import Candidate, Space

# A run of a program is stuck if it has made no progress for so many times as long as other runs took at most, and so many
# seconds more; before others are known, for this part of the budget, but not less than these seconds.
TIMES, MORE = 3.0, 10.0
SHARE, LEAST = 1 / 3, 30.0


class RunProgress:
    """The progress of one run after the other: an epoch has ended, or more steps have been written to its folder.

    Ranks write their steps at least every ten seconds, as long as they make some.

    The first sign of progress comes after the start of the program; the next ones, and its end, come sooner.

    >>> clock = iter([0.0, 4.0, 7.0, 30.0])
    >>> progress = RunProgress(budget=90.0, clock=lambda: next(clock))
    >>> progress.begin(Path("/nowhere"))
    >>> progress.stuck(), progress.stuck(), progress.stuck()        # nothing for 30 s, a third of the budget
    (False, False, True)
    >>> progress.why
    'no progress for 30 s, it seems to hang'
    """

    def __init__(self, budget: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._first = max(SHARE * budget, LEAST)
        self._clock = clock
        self._known: list[float] = []
        """The longest times that runs which ended well took to their first progress, and from one to the next."""
        self.why = ""
        """Why the last run was ended; empty: it was not."""

    def begin(self, folder: Path) -> None:
        """Begin to look at a run."""
        self._folder, self._seen, self._last = folder, (0, 0), self._clock()
        self._gaps: list[float] = []
        self.why = ""

    def stuck(self) -> bool:
        """Return True if the run has made no progress for far longer than others did."""
        now, found = self._clock(), self._size()
        if found != self._seen:
            self._seen = found
            self._note(now)
        others = self._known[min(1, len(self._gaps))] if self._known else None
        if now - self._last < (self._first if others is None else TIMES * others + MORE):
            return False
        than = "" if others is None else f" (at most {max(1.0, others):.0f} s in other runs)"
        self.why = f"no progress for {now - self._last:.0f} s{than}, {HANGS}"
        return True

    def describe_idle(self) -> str:
        """Say that there was no sign of progress at all, or not for longer than ranks take to write their steps.

        Empty if there was.
        """
        idle = self._clock() - self._last
        if not self._gaps:
            return f", with {UNSEEN}"
        return f", with {UNSEEN} in the last {idle:.0f} s" if idle > MORE else ""

    def end(self) -> None:
        """Note that the run ended well."""
        self._note(self._clock())
        longest = [self._gaps[0], max(self._gaps[1:], default=self._gaps[0])]
        self._known = [max(pair) for pair in zip(self._known or longest, longest, strict=True)]

    def _note(self, now: float) -> None:
        self._gaps.append(now - self._last)
        self._last = now

    def _size(self) -> tuple[int, int]:
        """Return the sizes of what a run writes as it goes on: its epochs, and the steps of its ranks."""
        steps = 0
        with suppress(OSError):
            steps = sum(path.stat().st_size for path in (self._folder / "steps").iterdir())
        try:
            return (self._folder / "epochs.jsonl").stat().st_size, steps
        except OSError:
            return 0, steps


@dataclass(kw_only=True)
class Runs:
    """The runs of a search in a folder that the caller has locked; those of earlier searches are found there."""

    folder: Folder
    space: Space
    metric: Metric
    samples: int
    """Training samples of an epoch."""
    start: Trains
    progress: RunProgress | None = None
    """For runs that may hang."""
    tell: Callable[[str], None] = lambda text: None
    tick: Callable[[], None] = lambda: None
    _records: dict[str, list[Run]] = field(default_factory=dict)
    _failed: dict[str, str] = field(default_factory=dict)
    _cut: Observed | None = None

    def open(self, about: dict[str, Any]) -> int:
        """Read what is in the folder, and describe the search for reports; return how many records fit."""
        self.folder.tidy()
        write_json(self.folder.path / STUDY, {"format": 1, **about})
        for runs in self.folder.find_complete().values():
            for run in runs:
                self._add(run)
        if not self._records:  # what made every run fail may have been mended
            self.folder.forget_failures(lambda asked: False)
        for asked, note in self.folder.find_failures().items():
            self._failed[asked] = note.stem
        return self._count_known()

    def _count_known(self) -> int:
        """Return how many records are of candidates, and of other learning rates that were tried for them."""
        waiting = list(self.space.candidates) if self._records else []
        seen, known = set(waiting), 0
        for one in waiting:  # which becomes longer
            found = self._count_records(one, 0)
            if not found:
                continue
            known += found + sum(self._count_records(one, number) for number in range(1, MOST_RUNS))
            new = [other for other in self.space.neighbours(one) if other not in seen]
            seen.update(new)
            waiting += new
        return known

    def _count_records(self, candidate: Candidate, number: int) -> int:
        """Return how many records there are of a candidate with one of the seeds."""
        cell = self.space.cell(candidate, epochs=1, seed=self.space.base.seed + number)
        return len(self._records.get(_make_key_without_epochs(cell), ()))

    def batches(self, candidate: Candidate) -> int:
        """Return the batches of an epoch."""
        if candidate.batch is None:
            return 0  # unknown
        return self.space.base.draws or -(-self.samples // candidate.batch)

    def find(self, candidate: Candidate, *, epochs: int, seed: int) -> Observed | FailedRun | None:
        """Return what is recorded of a run of at least so many epochs, or of one that failed or diverged."""
        if not self._records and not self._failed:
            return None
        cell = self.space.cell(candidate, epochs=epochs, seed=seed)
        if cell.key in self._failed:
            return FailedRun(why=f"it failed before; see {self.folder.path / 'failed'}")
        found = [
            run
            for run in self._records.get(_make_key_without_epochs(cell), ())
            if self.space.program is not None
            or run.config["epochs"] == epochs
            or (self.space.grows and run.config["epochs"] > epochs)
            or run.summary["diverged"]
        ]
        return None if not found else self._observe(max(found, key=lambda run: run.config["epochs"]))

    def run(self, candidate: Candidate, *, epochs: int, seed: int, limit: float) -> Observed | FailedRun:
        """Run a candidate for at most `limit` seconds."""
        cell = self.space.cell(candidate, epochs=epochs, seed=seed)
        found, wall = self._run(cell, limit)
        if isinstance(found, FailedRun):
            self.tell(f"{candidate}, seed {seed}: {found.why}")
            return found
        observed = self._observe(found, wall)
        best = self.metric.best(point.value for point in observed.points)
        value = "" if best is None else f", {self.metric.describe(best, 'validation')}"
        simulated = " simulated" if cell.options is not None else ""
        self.tell(
            f"{candidate}, seed {seed}: {count(observed.epochs, 'epoch')} in {observed.seconds:.3g} s{simulated}{value}"
            f"{', diverged' if observed.diverged else ''}"
        )
        return observed

    def saved_epochs(self, candidate: Candidate, *, epochs: int) -> int:
        """Return the epochs from which a run of so many, with the first seed, would go on."""
        found = self._shorter(self.space.cell(candidate, epochs=epochs, seed=self.space.base.seed))
        return 0 if found is None else int(found.config["epochs"])

    def cut(self) -> Observed | None:
        """Return the course of the last run up to where it was ended or interrupted; None: it was not, or had no epoch."""
        return self._cut

    def probe(self, candidate: Candidate, *, draws: int, limit: float) -> float | None:
        """Run some batches of a candidate; return the seconds that an epoch would take."""
        cell = self.space.cell(candidate, epochs=1, seed=self.space.base.seed, draws=draws)
        known = self._records.get(_make_key_without_epochs(cell))
        found: Run | FailedRun = known[0] if known else self._run(cell, limit)[0]
        if isinstance(found, FailedRun):
            self.tell(f"{candidate}: {found.why}")
            return None
        table = found.steps
        starts = table["start"][table["rank"] == 0]
        later = np.diff(starts[len(starts) // 4 :])  # the first steps are slow: libraries and threads start
        step = float(np.median(later)) if len(later) else 0.0
        if not step:
            return None
        seconds, rate = self.batches(candidate) * step, (candidate.batch or 1) / step
        self.tell(f"{candidate}: {rate:,.0f} samples/s, so an epoch takes {seconds:.3g} s")
        return seconds

    def _run(self, cell: Cell, limit: float) -> tuple[Run | FailedRun, float | None]:
        """Run a cell; return its record, or why there is none, and the seconds that it took if it began at the start."""
        allowed, progress = max(SHORTEST, limit), self.progress
        start = replace(self.start, timeout=allowed)
        if progress is not None:
            start = replace(start, stuck=progress.stuck)

        def run(cell: Cell, name: str, tick: Callable[[], None]) -> Ended:
            self._cut = None
            if progress is not None:
                progress.begin(self.folder.path / name)
            try:
                ended = start(cell, name, tick)
            except KeyboardInterrupt:
                self._cut = self._course(name)
                raise
            self._cut = self._course(name) if ended.status is None else None
            return ended

        state, show = StudyState(missing=[cell]), _Show(self.tick)
        began = time.monotonic()
        if (shorter := self._shorter(cell)) is not None:
            self.folder.extend(shorter, cell)
        run_missing(self.folder, state, run, show)
        wall = time.monotonic() - began
        if cell.key in state.done:
            [done] = state.done[cell.key]
            self._add(done)
            if progress is not None:
                progress.end()
            return done, wall if shorter is None else None
        if progress is not None and progress.why:  # another time it may not hang
            self.folder.forget_failures(lambda asked: asked != cell.key)
            return FailedRun(why=f"stopped after {wall:.0f} s: {progress.why}", stuck=True), wall
        late = wall >= allowed
        if late:  # with more time it may succeed
            self.folder.forget_failures(lambda asked: asked != cell.key)
            idle = "" if progress is None else progress.describe_idle()
            return FailedRun(why=f"stopped after {wall:.0f} s: out of time{idle}", late=True), wall
        why = show.outcome.removeprefix("failed: ")
        if why == NO_RECORD and not self._records:
            self.folder.forget_failures(lambda asked: asked != cell.key)
            raise UsageError(f"{cell.program.file if cell.program else 'the run'}: {why}")
        return FailedRun(why=why), wall

    def _shorter(self, cell: Cell) -> Run | None:
        """Return the longest record of the same run with fewer epochs from which it can go on, if there is one."""
        if not self.space.grows:
            return None
        known = [
            run
            for run in self._records.get(_make_key_without_epochs(cell), ())
            if run.config["epochs"] < cell.config.epochs and not run.summary["diverged"]
        ]
        for run in sorted(known, key=lambda run: run.config["epochs"], reverse=True):
            if ends_with_checkpoint(run):
                return run
        return None

    def drop_checkpoints(self) -> None:
        """Remove the checkpoints of complete runs, from which longer ones could go on."""
        for run in (run for runs in self._records.values() for run in runs):
            shutil.rmtree(run.folder / "checkpoints", ignore_errors=True)

    def _course(self, name: str) -> Observed | None:
        """Return the course of an incomplete run; None if no epoch of it is recorded."""
        try:
            run = Run(self.folder.path / name)
            points = self._read_points(run)
        except (UsageError, OSError, KeyError, TypeError, ValueError):
            return None
        if not points:
            return None
        return Observed(epochs=len(run.epochs), points=points, seconds=points[-1].seconds)

    def _read_points(self, run: Run) -> tuple[Point, ...]:
        """Return the values on the validation samples, with the epochs after which they were computed."""
        return tuple(
            Point(epoch=number, seconds=float(epoch["train_seconds"]), value=value)
            for number, epoch in enumerate(run.epochs, 1)
            if (value := read_epoch(epoch, self.metric.name)) is not None
        )

    def _add(self, run: Run) -> None:
        if (
            asked := read_request(run.config if run.config.get("program") else {**run.config, "epochs": 0})
        ) is not None:
            try:
                _ = run.summary, run.epochs
            except UsageError:
                return
            self._records.setdefault(asked, []).append(run)

    def _observe(self, run: Run, wall: float | None = None) -> Observed:
        points = self._read_points(run)
        if not points and (end := read_test(run, self.metric.name)) is not None:  # no validation samples
            last = Point(max(len(run.epochs), 1), float(run.summary["train_seconds"]), end)
            points = (last,)
        if self.space.program is not None and not points and not run.summary["diverged"]:
            names = ("accuracy", "loss", *names_in([run]))
            known = join(name for name in names if Metric(name, higher=True).points(run))
            calls = f"call ranks.validate({self.metric.name}=…) after each epoch"
            records = f"{known}, but not {self.metric.name}: choose another target, or {calls}"
            raise UsageError(
                f"{self.space.program.file} records {records if known else f'no metric: {calls}'}"
            )
        return Observed(
            epochs=max(len(run.epochs), 1),
            points=points,
            seconds=float(run.summary["train_seconds"]),
            wall=wall,
            diverged=bool(run.summary["diverged"]),
            disturbed=cores_were_shared(run.summary.get("remarks") or ()),
            run=run.folder,
        )


def _make_key_without_epochs(cell: Cell) -> str:
    """Return the key of a cell without its number of epochs."""
    return replace(cell, config=replace(cell.config, epochs=0)).key


class _Show:
    """A display that only keeps the outcome of the last run."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self.outcome = ""
        self.tick = tick

    def begin(self, cell: str, left: float | None) -> None:
        pass

    def end(self, cell: str, outcome: str, left: float | None) -> None:
        self.outcome = outcome
