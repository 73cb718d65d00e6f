"""A cell's run: a `paceline train` of its own, as a user would start it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from paceline.names import as_arguments
from paceline.study.cells import SERIAL, Cell

TETHER = Path(__file__).with_name("_tether.py")
LAST = 20  # lines of a failed run's output that are kept
GRACE = 15.0  # seconds that a run has to end in: its ranks are given some of them
LOOK = 0.1  # seconds between two looks at the clock


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a run ended."""

    status: int | None
    """Its exit status, or the negative of the signal that ended it; None: its time was up."""
    said: tuple[str, ...] = ()
    """The last lines that it wrote to stderr."""
    timeout: float | None = None
    """The seconds that it was allowed to run, if not any number."""


def command(cell: Cell, runs: Path, name: str) -> list[str]:
    """Return what a user would type for the cell.

    >>> from paceline.simulate.options import Options
    >>> from paceline.config import Config
    >>> cell = Cell(config=Config(data="iris", strategy="sync", lr=0.5), ranks=2, options=Options(compute=False))
    >>> " ".join(command(cell, Path("runs"), "mine"))
    'train --data=iris --lr=0.5 -n 2 --on=sim --no-compute --runs=runs --name=mine --quiet --json'
    """
    words = ["train", *as_arguments(cell.config)]
    words += [] if cell.config.strategy == SERIAL else ["-n", str(cell.ranks)]
    if cell.options is not None:
        words += ["--on=sim", *as_arguments(cell.options)]
    return [*words, f"--runs={runs}", f"--name={name}", "--quiet", "--json"]


@dataclass(frozen=True, kw_only=True)
class Trains:
    """Starts cells, one after the other, in `runs`; each holds `lock` for as long as it lives."""

    runs: Path
    lock: int
    modules: Path
    """Where modules that the study names are looked for, after the working directory."""
    timeout: float | None = None

    def __call__(self, cell: Cell, name: str, tick: Callable[[], None]) -> Ended:
        """Run the cell to its end, of whatever kind. Interrupted, it ends the run before it raises."""
        paths = [os.environ.get("PYTHONPATH"), str(self.modules.absolute())]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        words = [sys.executable, "-m", "paceline", *command(cell, self.runs, name)]
        with tempfile.TemporaryFile() as said:
            run = subprocess.Popen(
                [sys.executable, "-I", "-S", str(TETHER), str(os.getpid()), *words],
                env=environment, pass_fds=(self.lock,), start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
            )  # fmt: skip
            try:
                status = self._wait(run, tick)
            except BaseException:
                _end(run)
                raise
            return Ended(status=status, said=_last(said), timeout=self.timeout)

    def _wait(self, run: subprocess.Popen[bytes], tick: Callable[[], None]) -> int | None:
        late = None if self.timeout is None else time.monotonic() + self.timeout
        while True:
            try:
                return run.wait(LOOK)
            except subprocess.TimeoutExpired:
                tick()
            if late is not None and time.monotonic() > late:
                _end(run)
                return None


def _end(run: subprocess.Popen[bytes]) -> None:
    """Ask the run to end its ranks and itself, and make sure of it."""
    run.terminate()
    try:
        run.wait(GRACE)
    except subprocess.TimeoutExpired:
        run.send_signal(signal.SIGKILL)
        run.wait()


def _last(said: IO[bytes]) -> tuple[str, ...]:
    said.seek(max(0, said.seek(0, os.SEEK_END) - 100 * LAST * 10))
    return tuple(line for line in said.read().decode(errors="replace").splitlines() if line.strip())[-LAST:]
