"""The runs of a search: each an ordinary record in a folder, started like the cells of a study, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.compare.metric import Metric
from paceline.errors import UsageError
from paceline.files import write_json
from paceline.record import Run
from paceline.study.cells import Cell, asked_in
from paceline.study.context import STUDY
from paceline.study.folder import Folder
from paceline.study.run import Start, State, Trains, run_missing
from paceline.text import count
from paceline.tune.search import Failed, Observed
from paceline.tune.space import Candidate, Space

STOP = 2.0  # seconds of a run's time limit that are kept for ending it


@dataclass(kw_only=True)
class Runs:
    """The runs of a search in a folder that the caller has locked; those of earlier searches are found there."""

    folder: Folder
    space: Space
    metric: Metric
    samples: int
    """Training samples of an epoch."""
    start: Trains
    tell: Callable[[str], None] = lambda text: None
    tick: Callable[[], None] = lambda: None
    _records: dict[str, list[Run]] = field(default_factory=dict)
    _failed: dict[str, str] = field(default_factory=dict)

    def open(self, about: dict[str, Any]) -> int:
        """Read what is in the folder, and describe the search for reports; return how many records fit."""
        self.folder.tidy()
        write_json(self.folder.path / STUDY, {"format": 1, **about})
        for runs in self.folder.done().values():
            for run in runs:
                self._add(run)
        for asked, note in self.folder.failed().items():
            self._failed[asked] = note.stem
        wanted = {
            _unended(self.space.cell(one, epochs=1, seed=self.space.base.seed))
            for one in self.space.candidates
        }
        return sum(len(runs) for key, runs in self._records.items() if key in wanted)

    def batches(self, candidate: Candidate) -> int:
        """Return the batches of an epoch."""
        if candidate.batch is None:
            return 0  # unknown
        return self.space.base.draws or -(-self.samples // candidate.batch)

    def find(self, candidate: Candidate, *, epochs: int, seed: int) -> Observed | Failed | None:
        """Return what is recorded of a run of at least so many epochs, or of one that failed or diverged."""
        if not self._records and not self._failed:
            return None
        cell = self.space.cell(candidate, epochs=epochs, seed=seed)
        if cell.key in self._failed:
            return Failed(why=f"it failed before; see {self.folder.path / 'failed'}")
        found = [
            run
            for run in self._records.get(_unended(cell), ())
            if self.space.program is not None
            or run.config["epochs"] == epochs
            or (self.space.grows and run.config["epochs"] > epochs)
            or run.summary["diverged"]
        ]
        return None if not found else self._observed(max(found, key=lambda run: run.config["epochs"]))

    def run(self, candidate: Candidate, *, epochs: int, seed: int, limit: float) -> Observed | Failed:
        """Run a candidate for at most `limit` seconds."""
        cell = self.space.cell(candidate, epochs=epochs, seed=seed)
        found, wall = self._run(cell, limit)
        if isinstance(found, Failed):
            self.tell(f"{candidate}, seed {seed}: {found.why}")
            return found
        observed = self._observed(found, wall)
        best = self.metric.best(value for _, value in observed.points)
        value = "" if best is None else f", {self.metric.describe(best, 'validation')}"
        simulated = " simulated" if cell.options is not None else ""
        self.tell(
            f"{candidate}, seed {seed}: {count(observed.epochs, 'epoch')} in {observed.seconds:.3g} s{simulated}{value}"
            f"{', diverged' if observed.diverged else ''}"
        )
        return observed

    def probe(self, candidate: Candidate, *, draws: int, limit: float) -> float | None:
        """Run some batches of a candidate; return the seconds that an epoch would take."""
        cell = self.space.cell(candidate, epochs=1, seed=self.space.base.seed, draws=draws)
        known = self._records.get(_unended(cell))
        found: Run | Failed = known[0] if known else self._run(cell, limit)[0]
        if isinstance(found, Failed):
            self.tell(f"{candidate}: {found.why}")
            return None
        rate = found.summary["samples_per_second"]
        if not rate:
            return None
        seconds = self.batches(candidate) * (candidate.batch or 1) / rate
        self.tell(f"{candidate}: {rate:,.0f} samples/s, so an epoch takes {seconds:.3g} s")
        return float(seconds)

    def _run(self, cell: Cell, limit: float) -> tuple[Run | Failed, float]:
        """Run a cell; return its record, or why there is none, and the seconds that it took."""
        allowed = max(0.1, limit - STOP)
        start: Start = replace(self.start, timeout=allowed)
        state, show = State(missing=[cell]), _Show(self.tick)
        began = time.monotonic()
        run_missing(self.folder, state, start, show)
        wall = time.monotonic() - began
        if cell.key in state.done:
            [run] = state.done[cell.key]
            self._add(run)
            return run, wall
        late = wall >= allowed
        if late:  # with more time it may succeed
            self.folder.forget_failures(lambda asked: asked != cell.key)
            return Failed(why=f"ended after {wall:.0f} s", late=True), wall
        return Failed(why=show.outcome.removeprefix("failed: ")), wall

    def _add(self, run: Run) -> None:
        if (
            asked := asked_in(run.config if run.config.get("program") else {**run.config, "epochs": 0})
        ) is not None:
            try:
                _ = run.summary, run.epochs
            except UsageError:
                return
            self._records.setdefault(asked, []).append(run)

    def _observed(self, run: Run, wall: float | None = None) -> Observed:
        return Observed(
            epochs=max(len(run.epochs), 1),
            points=tuple(self.metric.points(run)),
            seconds=float(run.summary["train_seconds"]),
            wall=wall,
            diverged=bool(run.summary["diverged"]),
            run=run.folder,
        )


def _unended(cell: Cell) -> str:
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
