"""A study's folder, whose runs are the study's state.

    .lock                locked by the study that is running here, and by the run that it has started
    .running.json        the name of the run that was started last, written before it; gone when it has ended; and how many
                         cells are done, and which come next
    study.json           the study, for reports
    failed/NAME.json     a note of each cell that failed
    20250101-…-1a2b3c4d  runs

A cell is done when there is a readable, complete record of the same settings and the same code, whoever created it. An
incomplete run that `.running.json` names was interrupted: it is resumed from its last checkpoint or, if it has none,
removed by whoever holds the lock.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from paceline.errors import UsageError
from paceline.files import read_json, write_json
from paceline.record import Run, find_runs
from paceline.record.checkpoint import latest, read
from paceline.record.writing import folder_name
from paceline.study.cells import Cell, asked_in
from paceline.study.context import FAILED, STUDY, context_of

LOCK = ".lock"
RUNNING = ".running.json"
# The report, by its format; a Markdown one has its figures beside it, and an HTML one its figures, data and pages.
REPORTS = ("report.html", "report.md", "report.pdf")
FIGURES, FILES = "report-figures", "report-files"
# The start of the name of a run that is being copied, and what only a complete run has.
COPY = ".copy-"
ENDED = ("summary.json", "model.npz")
# Seconds within which the run of a killed study ends.
PATIENCE = 15.0


class Folder:
    """A study's folder, by its path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def lock(self) -> Iterator[int]:
        """Hold the folder's lock, creating the folder if needed; yield the lock's file, for the run to hold as well."""
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
                raise UsageError(f"another run of tune or study (process {holder}) is using {self.path}")
            if time.monotonic() > late:
                raise UsageError(
                    f"a run that an earlier run of tune or study started in {self.path} has not ended yet"
                )
            time.sleep(0.05)

    @property
    def busy(self) -> bool:
        """True if a study seems to be running here; the lock itself is not touched."""
        try:
            return _lives((self.path / LOCK).read_text(errors="replace").strip())
        except OSError:
            return False

    def check(self) -> None:
        """Raise a UsageError if the study cannot write to the folder; create nothing."""
        try:
            there = next(place for place in (self.path, *self.path.absolute().parents) if place.exists())
            if not there.is_dir():
                raise UsageError(f"cannot write runs to {self.path}: {there.name} is not a folder")
            for name in (RUNNING, STUDY):
                if (self.path / name).is_dir():
                    raise UsageError(f"cannot write {self.path / name}: it is a folder")
            if (self.path / FAILED).exists() and not (self.path / FAILED).is_dir():
                raise UsageError(f"cannot write into {self.path / FAILED}: it is not a folder")
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise UsageError(f"cannot write runs to {self.path}: {why}") from None

    def tidy(self) -> None:
        """Remove the remains of an interrupted study: files that it was writing, and a run that cannot be resumed."""
        self.settle(keep=True)
        names = "|".join(map(re.escape, (RUNNING, STUDY, *REPORTS)))
        for copy in self.path.glob(f"{COPY}*"):
            shutil.rmtree(copy, ignore_errors=True)
        for inside, ours in (
            (self.path, rf"\.({names})\..+"),
            (self.path / FAILED, r"\..+\.json\..+"),
            (self.path / FIGURES, r"\..+\.(svg|json)\..+"),
            (self.path / FILES, r"\..+\.(svg|csv|html|json)\..+"),
        ):
            for file in inside.iterdir() if inside.is_dir() else ():
                if re.fullmatch(ours, file.name):
                    file.unlink(missing_ok=True)

    def done(self) -> dict[str, list[Run]]:
        """Return the complete records that can be read, by the key of their cell; warn about damaged ones."""
        found: dict[str, list[Run]] = {}
        for run in find_runs([self.path]) if self.path.is_dir() else ():
            if (asked := asked_in(run.config)) is not None:
                found.setdefault(asked, []).append(run)
        return found

    def failed(self) -> dict[str, Path]:
        """Return the notes of failed cells, by the key of the cell."""
        notes = context_of([self.path]).failed
        return {asked: note.file for note in notes if (asked := asked_in(note.settings)) is not None}

    def forget_failures(self, unless: Callable[[str], bool]) -> None:
        """Remove the notes of cells for which `unless` does not hold."""
        for asked, note in self.failed().items():
            if not unless(asked):
                note.unlink(missing_ok=True)

    def begin(self, cell: Cell, plan: Mapping[str, Any] = MappingProxyType({})) -> str:
        """Return the name of the folder for the cell's run, which this study may remove from now on.

        If it exists, it is that of an interrupted run, to be resumed from its last checkpoint. `plan`: what the study has
        done and will do, for those who watch.
        """
        # The mark distinguishes the name from those of runs started by hand.
        name = self._interrupted(cell)
        if name is not None:
            write_json(self.path / RUNNING, {"run": name, **plan})
            return name
        name = f"{folder_name(cell.config.strategy, cell.ranks, cell.config.seed)}-{cell.mark}"
        while (self.path / name).exists():
            name += "-again"
        write_json(self.path / RUNNING, {"run": name, **plan})
        return name

    def extend(self, run: Run, cell: Cell) -> None:
        """Copy a complete run, as an interrupted one of a cell with more epochs, which then is resumed.

        The run must end with a checkpoint.
        """
        name = f"{folder_name(cell.config.strategy, cell.ranks, cell.config.seed)}-{cell.mark}"
        copy = self.path / f"{COPY}{name}"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run.folder, copy, ignore=shutil.ignore_patterns(*ENDED))
        write_json(copy / "config.json", {**run.config, "epochs": cell.config.epochs})
        while (self.path / name).exists():
            name += "-again"
        copy.rename(self.path / name)

    def ended(self, cell: Cell, name: str) -> Run | None:
        """Return the run that was started for the cell, if it is complete and matches the request."""
        runs = find_runs([self.path / name]) if (self.path / name / "config.json").is_file() else []
        code = cell.settings["code"]  # if code was edited during the run, the next study handles it
        return next((run for run in runs if asked_in({**run.config, "code": code}) == cell.key), None)

    def _interrupted(self, cell: Cell) -> str | None:
        """Return the name of a run of the cell that was interrupted and has a checkpoint, if there is one."""
        for folder in sorted(self.path.glob(f"*-{cell.mark}*"), reverse=True):
            with suppress(OSError, UsageError, KeyError, TypeError):
                if (folder / "summary.json").exists() or asked_in(Run(folder).config) != cell.key:
                    continue
                if latest(folder) is not None:
                    return folder.name
        return None

    def settle(self, *, keep: bool = False) -> None:
        """Remove the run that was started last, if it is not complete; `keep`: unless it can be resumed."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            name = read_json(self.path / RUNNING)["run"]
            started = self.path / name
            complete = (started / "summary.json").exists() or (keep and latest(started) is not None)
            if Path(name).name == name and started.is_dir() and not complete:
                shutil.rmtree(started)
        (self.path / RUNNING).unlink(missing_ok=True)

    def fail(self, cell: Cell, why: str, status: int | None, said: Sequence[str]) -> None:
        """Write a note of a cell that failed."""
        note: dict[str, Any] = {"settings": cell.settings, "why": why, "status": status, "stderr": list(said)}
        words = re.sub(r"[^A-Za-z0-9.]+", "-", cell.config.strategy).strip("-")
        (self.path / FAILED).mkdir(exist_ok=True)
        name = f"{words}-n{cell.ranks}-s{cell.config.seed}-{cell.mark}.json"
        write_json(self.path / FAILED / name, note)


def ends_with_checkpoint(run: Run) -> bool:
    """Return True if a complete run has saved its state at its end, so that it can be trained further."""
    try:
        numbers = latest(run.folder)
        if numbers is None or len(numbers) != run.config["ranks"]:
            return False
        last = read(run.folder, 0, numbers[0], arrays=False)
        return [int(last["position"]["epoch"]), run.config["epochs"]] == 2 * [len(run.epochs)]
    except (UsageError, OSError, KeyError, TypeError, ValueError):
        return False


def _lives(process: str) -> bool:
    """Return True if a process with this number exists."""
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
