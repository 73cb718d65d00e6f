"""A study's folder, whose runs are the study's state.

    .lock                locked by the study that is at work here, and by the run that it has started
    .running.json        the name of the run that was started last, written before it; gone when it has ended
    study.json           the study, for reports
    failed/NAME.json     a note of each cell that failed
    20250101-…-1a2b3c4d  runs

A cell is done when there is a complete record that asks for the same, whoever made it, and that can be read. What
`.running.json` names and is not complete was interrupted, and whoever has the lock may remove it: nobody is writing it
any more.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.files import write_json
from paceline.record import Run, find_runs
from paceline.record.writing import folder_name
from paceline.study.cells import Cell, asked_in
from paceline.study.context import FAILED, STUDY, context_of

LOCK = ".lock"
RUNNING = ".running.json"
# The report, by its format; a Markdown one has its figures beside it.
REPORTS = ("report.html", "report.md", "report.pdf")
FIGURES = "report-figures"
# A study that was killed takes its run with it: within so many seconds.
PATIENCE = 15.0


class Folder:
    """The folder, by its path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def held(self) -> Iterator[int]:
        """Nobody else's while inside; the file that says so, for the run to hold as well. Made, if it is not there."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise UsageError(f"cannot write runs to {self.path}: {why}") from None
        try:
            self._lock(handle)
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            yield handle
        finally:
            os.close(handle)

    def _lock(self, handle: int) -> None:
        late = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                holder = os.pread(handle, 20, 0).decode(errors="replace").strip()
            if _lives(holder):
                raise UsageError(f"another study (process {holder}) is at work in {self.path}")
            if time.monotonic() > late:
                raise UsageError(f"a run that an earlier study started in {self.path} has not ended yet")
            time.sleep(0.05)

    def check(self, report: Path) -> None:
        """Refuse a folder in which a study cannot write what it has to, or a place where no report can be; make nothing."""
        try:
            there = next(place for place in (self.path, *self.path.absolute().parents) if place.exists())
            if not there.is_dir():
                raise UsageError(f"cannot write runs to {self.path}: {there.name} is no folder")
            for name in (RUNNING, STUDY):
                if (self.path / name).is_dir():
                    raise UsageError(f"cannot write {self.path / name}: it is a folder")
            if (self.path / FAILED).exists() and not (self.path / FAILED).is_dir():
                raise UsageError(f"cannot write into {self.path / FAILED}: it is no folder")
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise UsageError(f"cannot write runs to {self.path}: {why}") from None
        from paceline.report.writing import FORMATS, check

        if report.suffix not in FORMATS:
            raise UsageError(
                f"unknown format of {report}; its name must end with one of {', '.join(FORMATS)}"
            )
        new = not self.path.exists() and report.parent.absolute() == self.path.absolute()
        check(
            [] if new else [report]
        )  # a folder that the study is to make first is not there to be looked at

    def tidy(self) -> None:
        """Take away what an interrupted study left: its unfinished run, and files that it was writing."""
        self.settle()
        names = "|".join(map(re.escape, (RUNNING, STUDY, *REPORTS)))
        for inside, ours in (
            (self.path, rf"\.({names})\..+"),
            (self.path / FAILED, r"\..+\.json\..+"),
            (self.path / FIGURES, r"\..+\.(svg|json)\..+"),
        ):
            for file in inside.iterdir() if inside.is_dir() else ():
                if re.fullmatch(ours, file.name):
                    file.unlink(missing_ok=True)

    def done(self) -> dict[str, list[Run]]:
        """The complete records that can be read, by what they asked for; what is damaged is named in a warning."""
        found: dict[str, list[Run]] = {}
        for run in find_runs([self.path]) if self.path.is_dir() else ():
            if (asked := asked_in(run.config)) is not None:
                found.setdefault(asked, []).append(run)
        return found

    def failed(self) -> dict[str, Path]:
        """The notes of failed cells, by what was asked for."""
        notes = context_of([self.path]).failed
        return {asked: note.file for note in notes if (asked := asked_in(note.settings)) is not None}

    def forget_failures(self, unless: Callable[[str], bool]) -> None:
        """Remove the notes of cells for which `unless` does not hold."""
        for asked, note in self.failed().items():
            if not unless(asked):
                note.unlink(missing_ok=True)

    def begin(self, cell: Cell) -> str:
        """The name of the folder for the cell's run; from now on that run is this study's to remove."""
        # With the cell's mark no name is one that a run started by hand would take.
        name = f"{folder_name(cell.config.strategy, cell.ranks, cell.config.seed)}-{cell.mark}"
        while (self.path / name).exists():
            name += "-again"
        write_json(self.path / RUNNING, {"run": name})
        return name

    def ended(self, cell: Cell, name: str) -> Run | None:
        """The run that was begun for the cell, if it is complete and what was asked for."""
        runs = find_runs([self.path / name]) if (self.path / name / "config.json").is_file() else []
        return next((run for run in runs if asked_in(run.config) == cell.key), None)

    def settle(self) -> None:
        """Remove the run that was started last, if it is not complete."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            name = json.loads((self.path / RUNNING).read_text())["run"]
            started = self.path / name
            if Path(name).name == name and started.is_dir() and not (started / "summary.json").exists():
                shutil.rmtree(started)
        (self.path / RUNNING).unlink(missing_ok=True)

    def fail(self, cell: Cell, why: str, status: int | None, said: Sequence[str]) -> None:
        """Leave a note of a cell that failed."""
        note: dict[str, Any] = {"settings": cell.settings, "why": why, "status": status, "stderr": list(said)}
        words = re.sub(r"[^A-Za-z0-9.]+", "-", cell.config.strategy).strip("-")
        (self.path / FAILED).mkdir(exist_ok=True)
        name = f"{words}-n{cell.ranks}-s{cell.config.seed}-{cell.mark}.json"
        write_json(self.path / FAILED / name, note)


def _lives(process: str) -> bool:
    """Whether there is a process of that number; where none is named, somebody is just about to name himself."""
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
