"""Run the missing cells of a study, one after the other, never two at once.

`Trains` starts each cell as a separate `paceline train`, `Pace` estimates the time left, and `CellLines` and `CellBar`
show progress.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import IO, Any, Protocol, TextIO

from paceline import text
from paceline.files import write_json
from paceline.names import as_arguments
from paceline.record import Run, withdraw
from paceline.study.cells import PROGRAM_SETTINGS, Cell
from paceline.study.file import Study
from paceline.study.folder import STUDY, Folder
from paceline.text import clock_time
from paceline.training.job import find_built_in

# ---- a cell's run, as a user would start it

TETHER = Path(__file__).with_name("_tether.py")
LAST = 20  # lines of a failed run's output to keep
SAVE_WITHIN = 330.0  # seconds for a run to save a checkpoint and end; its own limit is 300
GRACE = 15.0  # seconds for a run to end at once, some of them for its ranks
CHECKPOINT_EVERY = "3m"  # as by default; but if it is asked for, there is also one at the end
LOOK = 0.1  # seconds between two checks of the clock


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The end of a run."""

    status: int | None
    """Its exit status, or minus the signal that ended it; None: it ran out of time."""
    said: tuple[str, ...] = ()
    """The last lines that it wrote to stderr."""
    timeout: float | None = None
    """The seconds that it was allowed to run; None: no limit."""


def command(
    cell: Cell, runs: Path, name: str, hosts: str | None = None, *, always: Collection[str] = ()
) -> list[str]:
    """Return the command that a user would type for the cell.

    `hosts`: those of its ranks, if they are real; `always`: settings that it names even if they have their defaults.

    >>> from paceline.config import Config, Program
    >>> from paceline.simulate.options import Options
    >>> cell = Cell(config=Config(data="iris", strategy="sync", lr=0.5), ranks=2, options=Options(compute=False))
    >>> " ".join(command(cell, Path("runs"), "mine"))
    'train --data=iris --lr=0.5 -n 2 --on=sim --no-compute --runs=runs --name=mine --quiet --json'
    >>> own = Cell(config=Config(), ranks=2, program=Program(file="own.py", arguments=("--lr", "0.1")))
    >>> " ".join(command(own, Path("runs"), "mine"))
    'run --strategy=sync --seed=0 -n 2 --runs=runs --name=mine --quiet own.py --lr 0.1'
    """
    program, config = cell.program, cell.config
    if program is None:
        words = ["train", *as_arguments(config, always=always)]
    else:
        given = {name: getattr(config, name) for name in PROGRAM_SETTINGS}
        words = ["run", *(f"--{name}={value}" for name, value in given.items() if value is not None)]
        words += [f"--until={program.until}"] if program.until else []
    words += [] if cell.serial else ["-n", str(cell.ranks)]
    words += [f"--hosts={hosts}"] if hosts and cell.on_ranks else []
    if cell.options is not None:
        words += ["--on=sim", *as_arguments(cell.options)]
    words += [f"--runs={runs}", f"--name={name}", "--quiet"]
    return [*words, "--json"] if program is None else [*words, program.file, *program.arguments]


@dataclass(frozen=True, kw_only=True)
class Trains:
    """A starter of cells, one after the other, in `runs`; each holds `lock` while it runs."""

    runs: Path
    lock: int
    modules: Path
    """Folders to search for the user's modules, after the working directory."""
    timeout: float | None = None
    hosts: str | None = None
    extendable: bool = False
    """True: runs save their state at their end, so that they can be trained further."""
    stuck: Callable[[], bool] = lambda: False
    """Asked again and again: True ends the run, as if it had run out of time."""

    def __call__(self, cell: Cell, name: str, tick: Callable[[], None]) -> Ended:
        """Run the cell until it ends in any way; if interrupted, let the run save a checkpoint, and raise."""
        paths = [os.environ.get("PYTHONPATH"), str(self.modules.absolute())]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        words = command(cell, self.runs, name, self.hosts)
        if (self.runs / name).exists():  # interrupted; the study file names the same code as the record
            words = ["resume", str(self.runs / name), "--trust", "--quiet", "--json"]
            words += [f"--hosts={self.hosts}"] if self.hosts and cell.options is None else []
        if (
            self.extendable
            and cell.program is None
            and getattr(find_built_in(cell.config.strategy), "saves", None)
        ):
            words.append(f"--checkpoint-every={CHECKPOINT_EVERY}")
        words = [sys.executable, "-m", "paceline", *words]
        with tempfile.TemporaryFile() as said:
            run = subprocess.Popen(
                [sys.executable, "-I", "-S", str(TETHER), str(os.getpid()), *words],
                env=environment, pass_fds=(self.lock,), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
            )  # fmt: skip
            try:
                status = self._wait(run, tick)
            except BaseException:
                _stop(run)
                raise
            return Ended(status=status, said=_last(said), timeout=self.timeout)

    def _wait(self, run: subprocess.Popen[bytes], tick: Callable[[], None]) -> int | None:
        late = None if self.timeout is None else time.monotonic() + self.timeout
        while True:
            if (status := _wait_for(run, LOOK)) is not None:
                return status
            tick()
            if (late is not None and time.monotonic() > late) or self.stuck():
                _end(run)
                return None


def _stop(run: subprocess.Popen[bytes]) -> None:
    """Ask the run to save a checkpoint and end; if this is interrupted, too, end it at once."""
    run.terminate()
    try:
        ended = _wait_for(run, SAVE_WITHIN) is not None
    except KeyboardInterrupt:
        ended = False
    if not ended:
        _end(run)


def _end(run: subprocess.Popen[bytes]) -> None:
    """End the run and its ranks at once, and kill it if it does not."""
    until = time.monotonic() + GRACE
    while time.monotonic() < until:
        run.terminate()  # the second one ends it at once
        if _wait_for(run, 0.5) is not None:
            return
    run.send_signal(signal.SIGKILL)
    _wait_for(run, math.inf)


def _wait_for(run: subprocess.Popen[bytes], seconds: float) -> int | None:
    """Wait until the run ends; return its exit status, None if it takes longer.

    `Popen.wait` takes a lock that Ctrl-C, at the wrong moment, would leave locked for ever.
    """
    until = time.monotonic() + seconds
    while run.returncode is None:
        try:
            ended, status = os.waitpid(run.pid, os.WNOHANG)
        except ChildProcessError:  # it had ended, but Ctrl-C came before that was noted
            ended, status = run.pid, signal.SIGINT
        if ended:
            run.returncode = os.waitstatus_to_exitcode(status)
        elif time.monotonic() >= until:
            return None
        else:
            time.sleep(0.02)
    return run.returncode


def _last(said: IO[bytes]) -> tuple[str, ...]:
    said.seek(max(0, said.seek(0, os.SEEK_END) - 100 * LAST * 10))
    return tuple(line for line in said.read().decode(errors="replace").splitlines() if line.strip())[-LAST:]


# ---- progress


class CellLines:
    """One line per cell, for logs; `total` cells in all, `done` of which were done before.

    >>> import sys
    >>> lines = CellLines(sys.stdout, total=12, done=3)
    >>> lines.begin("sync on 2 ranks, seed 0", left=61.0)
    >>> lines.end("sync on 2 ranks, seed 0", "95.00 %, 3.1 s", left=65.0)
     4/12  sync on 2 ranks, seed 0: 95.00 %, 3.1 s  (1:05 left)
    """

    def __init__(self, stream: TextIO, *, total: int, done: int) -> None:
        self.stream = stream
        self.total = total
        self.done = done

    def begin(self, cell: str, left: float | None) -> None:
        """Handle the start of a cell, with an estimate of the seconds left."""

    def tick(self) -> None:
        """Handle the passing of time while a cell is running."""

    def end(self, cell: str, outcome: str, left: float | None) -> None:
        """Write the line of a cell that has ended."""
        self.done += 1
        rest = "" if left is None or self.done == self.total else f"  ({clock_time(left)} left)"
        self._write(f"{self.done:>{len(str(self.total))}}/{self.total}  {cell}: {outcome}{rest}")

    def close(self) -> None:
        """Handle the end of the study."""

    def _write(self, line: str) -> None:
        self.stream.write(line + "\n")
        self.stream.flush()


class CellBar(CellLines):
    """The same lines above a bar: cells done, the time left, and the cell that is running."""

    def __init__(self, stream: TextIO, *, total: int, done: int) -> None:
        super().__init__(stream, total=total, done=done)
        self._bar = text.ProgressBar(stream)
        self._cell, self._began = "", 0.0
        self._left: float | None = None

    def begin(self, cell: str, left: float | None) -> None:
        """Draw the bar for a cell."""
        self._cell, self._left, self._began = cell, left, time.monotonic()
        self.tick()

    def tick(self) -> None:
        """Redraw the bar if it is due."""
        taken = time.monotonic() - self._began
        left = "" if self._left is None else f"  {clock_time(max(0.0, self._left - taken))} left"
        after = f"{self.done}/{self.total}{left}  {self._cell} ({clock_time(taken)})"
        self._bar.draw(self.done, self.total, after=after)

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()

    def _write(self, line: str) -> None:
        self._bar.write(line)


def make_display(stream: TextIO, *, total: int, done: int) -> CellLines:
    """Return the progress display of a study on a stream: a bar if it is a terminal."""
    return (CellBar if stream.isatty() else CellLines)(stream, total=total, done=done)


# ---- state and estimated time

START = 2.0  # seconds of a run before and after training: imports, data, starting ranks


class Pace:
    """The seconds of cells that have run, and an estimate for others.

    >>> from paceline.config import Config
    >>> pace, cell = Pace(), Cell(config=Config(seed=0), ranks=2)
    >>> pace.estimate([cell]) is None
    True
    >>> pace.note_seconds(cell, 3.0)
    >>> pace.estimate([Cell(config=Config(seed=1), ranks=2), Cell(config=Config(model="cnn"), ranks=2)])
    6.0
    """

    def __init__(self) -> None:
        self._seconds: dict[tuple[object, ...], list[float]] = {}

    def note_seconds(self, cell: Cell, seconds: float) -> None:
        """Note how long the cell's run took."""
        for like in _likes(cell):
            self._seconds.setdefault(like, []).append(seconds)

    def note_run(self, cell: Cell, run: Run) -> None:
        """Note an earlier run, from its record."""
        seconds = sum(run.summary["seconds"].values())
        if cell.options is not None:  # virtual ones
            written = [(run.folder / name).stat().st_mtime for name in ("config.json", "summary.json")]
            seconds = max(0.0, written[1] - written[0])
        self.note_seconds(cell, START + seconds)

    def estimate(self, cells: Iterable[Cell]) -> float | None:
        """Estimate the seconds for these cells; None if nothing is known yet."""
        guesses = [self._guess(cell) for cell in cells]
        return None if None in guesses else sum(guess for guess in guesses if guess is not None)

    def _guess(self, cell: Cell) -> float | None:
        """Return the mean of the cells that are most like it."""
        return next((fmean(self._seconds[like]) for like in _likes(cell) if like in self._seconds), None)


def _likes(cell: Cell) -> list[tuple[object, ...]]:
    """Return the keys that similar cells share, the most specific first."""
    config, place = cell.config, "mpi" if cell.options is None else "sim"
    problem = (cell.program, config.data, config.model, config.batch, config.epochs, config.draws)
    return [
        (place, problem, config.strategy, cell.ranks),
        (place, problem, cell.ranks),
        (place, problem),
        (place,),
        (),
    ]


Start = Callable[[Cell, str, Callable[[], None]], Ended]


class Show(Protocol):
    """A progress display of a study."""

    def begin(self, cell: str, left: float | None) -> None:
        """Handle the start of a cell."""

    def tick(self) -> None:
        """Handle the passing of time."""

    def end(self, cell: str, outcome: str, left: float | None) -> None:
        """Handle the end of a cell."""


@dataclass
class StudyState:
    """The cells of a study that are done, that have failed and that are missing."""

    done: dict[str, list[Run]] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    missing: list[Cell] = field(default_factory=list)
    """In the order in which they are run."""
    pace: Pace = field(default_factory=Pace)
    found: dict[str, list[Run]] = field(default_factory=dict)
    """Every usable record of the folder, also of other cells."""


def state_of(folder: Folder, cells: Sequence[Cell], *, retry: bool = False) -> StudyState:
    """Read the state from the folder's records; with `retry`, failed cells count as missing."""
    done, failed = folder.find_complete(), set() if retry else set(folder.find_failures())
    state = StudyState(
        found=done,
        done={cell.key: done[cell.key] for cell in cells if cell.key in done},
        failed={cell.key for cell in cells if cell.key in failed and cell.key not in done},
    )
    state.missing = [cell for cell in cells if cell.key not in {*state.done, *state.failed}]
    for cell in cells:
        for run in state.done.get(cell.key, ()):
            state.pace.note_run(cell, run)
    return state


def open_folder(folder: Folder, study: Study, cells: Sequence[Cell], *, retry: bool = False) -> StudyState:
    """Prepare a folder locked by the caller and return its state; remove the remains of an interrupted study.

    Runs that the study no longer requests stay; notes of failures that it no longer requests are removed.
    """
    folder.tidy()
    write_json(folder.path / STUDY, study.as_json())
    named = {cell.key for cell in study.list_all_cells()}
    folder.forget_failures(lambda asked: asked in named)
    return state_of(folder, cells, retry=retry)


def run_missing(
    folder: Folder, state: StudyState, start: Start, show: Show, spell: Callable[[Cell], str] = str
) -> None:
    """Run every missing cell, updating `state`; the caller holds the folder's lock."""
    waiting = list(state.missing)
    while waiting:
        cell = waiting[0]
        show.begin(spell(cell), state.pace.estimate(waiting))
        done = len(state.done) + len(state.failed)
        plan = {"done": done, "total": done + len(waiting), "then": [spell(then) for then in waiting[1:]]}
        name, began = folder.begin(cell, plan), time.monotonic()
        ended = start(cell, name, show.tick)
        run = folder.find_run(cell, name)
        if run is not None and cell.program is not None and ended.status:  # it has failed after training
            withdraw(run.folder)
            run = None
        if run is None:
            why = explain(ended, program=cell.program is not None)
            outcome = f"failed: {why}"
            folder.fail(cell, why, ended.status, ended.said)
            state.failed.add(cell.key)
        else:
            outcome = outcome_of(run.summary)
            state.done[cell.key] = state.found[cell.key] = [run]
            state.pace.note_seconds(cell, time.monotonic() - began)
        folder.settle()
        waiting.pop(0)
        state.missing.remove(cell)
        show.end(spell(cell), outcome, state.pace.estimate(waiting))
    folder.forget_failures(lambda asked: asked not in state.done)


def outcome_of(summary: dict[str, Any]) -> str:
    """Describe the result of a run in a few words.

    >>> outcome_of({"test_accuracy": 0.95, "train_seconds": 3.14159, "diverged": None})
    '95.00 %, 3.14 s'
    >>> outcome_of({"metrics": {"perplexity": 12.345}, "train_seconds": 3.14159})
    'perplexity 12.35, 3.14 s'
    """
    accuracy = summary.get("test_accuracy")
    own = {name: value for name, value in (summary.get("metrics") or {}).items() if value is not None}
    words = [f"{name} {value:.4g}" for name, value in own.items()]
    words = words if accuracy is None else [f"{100 * accuracy:.2f} %"]
    words.append(f"{summary['train_seconds']:.3g} s{' simulated' * bool(summary.get('simulated'))}")
    return ", ".join([*words, *(["diverged"] if summary.get("diverged") else [])])


# What a program that has ended without an error has probably not done.
NO_RECORD = "it left no complete record: does it train inside `with paceline.session() as ranks:`? (see docs/own-loop.md)"


def explain(ended: Ended, *, program: bool) -> str:
    """Explain in one line why a run, of a program or not, failed: its last output, or how it ended."""
    if ended.status is None:
        seconds = "" if ended.timeout is None else f" of {ended.timeout:g} s"
        return f"it exceeded the study's timeout{seconds}"
    how = f"signal {-ended.status}" if ended.status < 0 else f"exit status {ended.status}"
    if ended.status == 0 and program:
        return NO_RECORD
    said = ended.said[-1].strip() if ended.said else ""
    for start in ("paceline train: ", "paceline run: ", "paceline: "):
        said = said.removeprefix(start)
    if ended.status in (0, 3):
        return f"it ended with {how} and left no complete record{f': {said}' if said else ''}"
    return f"{said} ({how})" if said else f"it ended with {how}"
