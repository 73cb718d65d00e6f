"""Running a study: what is missing, one cell after the other, never two at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Protocol

from paceline.files import write_json
from paceline.record import Run
from paceline.study.cells import Cell
from paceline.study.context import STUDY
from paceline.study.file import Study
from paceline.study.folder import Folder
from paceline.study.process import Ended

# ---- How long what is left of a study will take, from how long its runs have taken so far.

START = 2.0  # seconds that a run takes before it trains and after: imports, data, ranks


class Pace:
    """Seconds by cell, of those that are known.

    >>> from paceline.config import Config
    >>> pace, cell = Pace(), Cell(config=Config(seed=0), ranks=2)
    >>> pace.left([cell]) is None
    True
    >>> pace.took(cell, 3.0)
    >>> pace.left([Cell(config=Config(seed=1), ranks=2), Cell(config=Config(model="cnn"), ranks=2)])
    6.0
    """

    def __init__(self) -> None:
        self._seconds: dict[tuple[object, ...], list[float]] = {}

    def took(self, cell: Cell, seconds: float) -> None:
        """This is how long the cell's run took."""
        for like in _likes(cell):
            self._seconds.setdefault(like, []).append(seconds)

    def known(self, cell: Cell, run: Run) -> None:
        """A run of before: what its record says of how long it took."""
        seconds = sum(run.summary["seconds"].values())
        if cell.options is not None:  # virtual ones
            written = [(run.folder / name).stat().st_mtime for name in ("config.json", "summary.json")]
            seconds = max(0.0, written[1] - written[0])
        self.took(cell, START + seconds)

    def left(self, cells: Iterable[Cell]) -> float | None:
        """Seconds for these; None where nothing is known of any."""
        guesses = [self._guess(cell) for cell in cells]
        return None if None in guesses else sum(guess for guess in guesses if guess is not None)

    def _guess(self, cell: Cell) -> float | None:
        """The mean of the cells that are most like it."""
        return next((fmean(self._seconds[like]) for like in _likes(cell) if like in self._seconds), None)


def _likes(cell: Cell) -> list[tuple[object, ...]]:
    """What cells may have in common, most telling first."""
    config, place = cell.config, "mpi" if cell.options is None else "sim"
    problem = (config.data, config.model, config.batch, config.epochs, config.draws)
    return [
        (place, problem, config.strategy, cell.ranks),
        (place, problem, cell.ranks),
        (place, problem),
        (place,),
        (),
    ]


Start = Callable[[Cell, str, Callable[[], None]], Ended]


class Show(Protocol):
    """Told how far the study is."""

    def begin(self, cell: str, left: float | None) -> None:
        """A cell has been started."""

    def tick(self) -> None:
        """It is still running."""

    def end(self, cell: str, outcome: str, left: float | None) -> None:
        """It has ended."""


@dataclass
class State:
    """Which cells of a study are done, which have failed, and which are missing."""

    done: dict[str, list[Run]] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    missing: list[Cell] = field(default_factory=list)
    """In the order to run them in."""
    pace: Pace = field(default_factory=Pace)
    found: dict[str, list[Run]] = field(default_factory=dict)
    """Every record of the folder that can be used, whether or not it is of one of these cells."""


def state_of(folder: Folder, cells: Sequence[Cell], *, retry: bool = False) -> State:
    """As the folder's records have it. With `retry` a cell that failed is one that is missing."""
    done, failed = folder.done(), set() if retry else set(folder.failed())
    state = State(
        found=done,
        done={cell.key: done[cell.key] for cell in cells if cell.key in done},
        failed={cell.key for cell in cells if cell.key in failed and cell.key not in done},
    )
    state.missing = [cell for cell in cells if cell.key not in {*state.done, *state.failed}]
    for cell in cells:
        for run in state.done.get(cell.key, ()):
            state.pace.known(cell, run)
    return state


def opened(folder: Folder, study: Study, cells: Sequence[Cell], *, retry: bool = False) -> State:
    """The same of a folder that the caller holds, made ready: what an interrupted study left is gone.

    Cells that the study no longer names stay, if they are done; if they had failed nobody need know any more.
    """
    folder.tidy()
    write_json(folder.path / STUDY, study.told())
    named = {cell.key for cell in study.named()}
    folder.forget_failures(lambda asked: asked in named)
    return state_of(folder, cells, retry=retry)


def run_missing(
    folder: Folder, state: State, start: Start, show: Show, spell: Callable[[Cell], str] = str
) -> None:
    """Run every missing cell of `state`, which is kept up to date; the folder is held by the caller."""
    waiting = list(state.missing)
    while waiting:
        cell = waiting[0]
        show.begin(spell(cell), state.pace.left(waiting))
        name, began = folder.begin(cell), time.monotonic()
        ended = start(cell, name, show.tick)
        run = folder.ended(cell, name)
        if run is None:
            outcome = f"failed: {_why(ended)}"
            folder.fail(cell, _why(ended), ended.status, ended.said)
            state.failed.add(cell.key)
        else:
            outcome = told_of(run.summary)
            state.done[cell.key] = state.found[cell.key] = [run]
            state.pace.took(cell, time.monotonic() - began)
        folder.settle()
        waiting.pop(0)
        state.missing.remove(cell)
        show.end(spell(cell), outcome, state.pace.left(waiting))
    folder.forget_failures(lambda asked: asked not in state.done)


def told_of(summary: dict[str, Any]) -> str:
    """What came out of a run, in a few words.

    >>> told_of({"test_accuracy": 0.95, "train_seconds": 3.14159, "diverged": None})
    '95.00 %, 3.14 s'
    """
    accuracy = summary.get("test_accuracy")
    words = [] if accuracy is None else [f"{100 * accuracy:.2f} %"]
    words.append(f"{summary['train_seconds']:.3g} s{' simulated' * bool(summary.get('simulated'))}")
    return ", ".join([*words, *(["diverged"] if summary.get("diverged") else [])])


def _why(ended: Ended) -> str:
    """In one line: the last that the run said, or how it ended where it said nothing."""
    if ended.status is None:
        seconds = "" if ended.timeout is None else f" of {ended.timeout:g} s"
        return f"it ran longer than the study's timeout{seconds} allows"
    how = f"signal {-ended.status}" if ended.status < 0 else f"exit status {ended.status}"
    if ended.status in (0, 3):
        return f"it ended with {how} and left no complete record"
    said = ended.said[-1].strip().removeprefix("paceline train: ") if ended.said else ""
    return f"{said} ({how})" if said else f"it ended with {how}"
