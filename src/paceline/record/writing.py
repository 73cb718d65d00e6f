"""Write a run's folder.

config.json        the settings, the strategy's facts, and digests of the user's own code
environment.json   versions, MPI, cores, host, state of the source
epochs.jsonl       one line per epoch, written as it ends
steps.npz          every step of every rank: loss, samples, seconds, when it began
trace.npz          with --trace: time spans and MPI calls of every rank
NAME.npz           the strategy's own tables, such as every update of every master; summary.json lists them
model.npz          parameters and buffers, unless only time was simulated
running            while the run is under way: the process that writes this folder (see `hold`)
checkpoints/       the state of every rank at the last few checkpoints (see `checkpoint`)
stopped.json       why a run was stopped before its end, and how to resume it
summary.json       results; written last, so a folder that has it is complete
withdrawn.json     the same of a program that failed after that, inside its session: the run does not count as complete

One process at a time writes a folder. While a run is under way, rank 0 holds a lock on the file `running` in its
folder. The system gives it back when the process ends, however that happens, so a run that was killed can be resumed at
once, and one that is alive is not resumed twice.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import logging
import os
import re
import shutil
import tempfile
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import UsageError, reason
from paceline.files import (
    cannot,
    json_text,
    open_lock_file,
    read_json,
    read_text,
    replace_file,
    write_arrays,
    write_columns,
    write_json,
)
from paceline.models import Model, state_of
from paceline.record.rows import Outage, RowLog, Table, remove_rows, unpack_rows
from paceline.record.schema import FORMAT, TABLES

log = logging.getLogger(__name__)

LONGEST_NAME = 200  # file systems take 255 bytes, and files in the folder have temporary names
EPOCHS = 10_000
"""The number of epochs, at most, whose results are in memory; epochs.jsonl has all."""
GROWING = [name for name in TABLES if name != "trace"]
"""Tables that grow with every step; a trace is limited."""
STEP_COLUMNS = ("step", "epoch", "loss", "count", "compute", "exchange", "update", "wait", "start")
"""The columns of a rank's log of steps; steps.npz has them after `rank`."""


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """The state of training at the end of an epoch: a line of epochs.jsonl."""

    epoch: int
    step: int
    loss: float | None
    """Mean training loss over the epoch's samples; None if only time was simulated."""
    validation_loss: float | None
    validation_accuracy: float | None
    train_seconds: float
    """Since the start, without evaluation."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The user's own metrics on the validation samples, by name."""


STEP_TYPES: dict[str, np.dtype[Any]] = {
    **dict.fromkeys(("rank", *STEP_COLUMNS), np.dtype(np.float32)),
    **dict.fromkeys(("rank", "step", "epoch", "count"), np.dtype(np.uint32)),
    **dict.fromkeys(("loss", "start"), np.dtype(np.float64)),
}
"""The columns of steps.npz and their types."""


def steps_table(logs: list[RowLog]) -> Table:
    """Return the columns of steps.npz, from the logs of all ranks."""
    return Table(logs, tuple(STEP_TYPES), types=STEP_TYPES)


def write_table(path: Path, table: Mapping[str, NDArray[Any]]) -> None:
    """Write a table to an .npz file; one that grew in files, with constant memory."""
    if isinstance(table, Table):
        write_columns(path, ((name, table.dtype(name), table.chunks(name)) for name in table), table.rows)
    else:
        write_arrays(path, dict(table), compress=True)


def folder_name(strategy: str, ranks: int, seed: int) -> str:
    """Return a name for a run's folder that sorts by time."""
    words = re.sub(r"[^A-Za-z0-9.]+", "-", strategy).strip("-")[:150]  # file systems take names of 255 bytes
    return f"{datetime.now():%Y%m%d-%H%M%S}-{words}-n{ranks}-s{seed}"


def check_name(name: str) -> None:
    """Raise a UsageError for anything but the name of one folder, printable in one line.

    >>> check_name("../mine")
    Traceback (most recent call last):
    paceline.errors.UsageError: the name of a run must be that of a folder, without / or control characters; got '../mine'
    """
    if len(os.fsencode(name)) > LONGEST_NAME:
        raise UsageError(
            f"the name of a run must have at most {LONGEST_NAME} bytes; got {len(os.fsencode(name)):,}"
        )
    unseen = any(unicodedata.category(letter) in ("Cc", "Zl", "Zp") for letter in name)
    if unseen or not name.strip(".") or Path(name).name != name:
        raise UsageError(
            f"the name of a run must be that of a folder, without / or control characters; got {name!r}"
        )


def new_folder(runs: Path, strategy: str, ranks: int, seed: int, *, name: str | None = None) -> Path:
    """Create a folder for one run below `runs`, with this name, which must be new, or with one based on the time."""
    if name is not None:
        check_name(name)
    stem = folder_name(strategy, ranks, seed) if name is None else name
    try:
        runs.mkdir(parents=True, exist_ok=True)
        for number in range(1, 10_000 if name is None else 2):
            folder = runs / (stem if number == 1 else f"{stem}-{number}")
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder
    except OSError as error:
        raise UsageError(f"cannot write runs to {runs}: {reason(error)}") from None
    if name is not None:
        raise UsageError(f"{runs / name} exists already: choose another name")
    raise UsageError(f"{runs} holds too many runs named {stem}")


class Record:
    """The folder of one run, written by rank 0.

    A run that cannot be recorded is refused at its start. Later, training comes first: what cannot be written is kept in
    memory, up to a limit, and tried again, and at the end a run is saved elsewhere rather than lost.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = self._wanted = folder
        self.outage = Outage(folder, log.warning)
        """Is told whenever writing fails or works."""
        self.moved: tuple[str, str] | None = None
        """The folder in which the run was saved, if its own could not take it as a whole, and a sentence about it."""
        self.unsaved: str | None = None
        """Why the run could not be saved anywhere, in the end."""
        self._files: dict[str, Any] = {}  # the JSON files written at the start
        self._lines: list[str] = []
        """Those of epochs.jsonl; beyond EPOCHS every second one of the earlier is dropped."""
        self._unwritten: list[str] = []
        self._size = 0  # of epochs.jsonl

    def start(self, config: dict[str, Any], environment: dict[str, Any]) -> None:
        """Write the configuration and the environment; if that fails, leave no folder."""
        self._files = {"config.json": {"format": FORMAT, **config}, "environment.json": environment}
        try:
            with self._report_errors():
                hold(self.folder)
                for name, values in self._files.items():
                    write_json(self.folder / name, values)
        except UsageError:
            self.discard()
            raise

    def resume(
        self,
        changes: dict[str, Any],
        history: list[Epoch],
        environment: dict[str, Any],
        *,
        anyway: bool = False,
    ) -> None:
        """Go on with the record of a run that was cut: its settings change by `changes`, its history ends here.

        `anyway`: also if its folder seems to be held by a process, which is known to be gone.
        """
        path = self.folder / "epochs.jsonl"
        with self._report_errors():
            hold(self.folder, anyway=anyway)
            config = read_json(self.folder / "config.json")
            self._files = {"config.json": {**config, **changes}, "environment.json": environment}
            for name, values in self._files.items():
                write_json(self.folder / name, values)
            self._lines = [_line(epoch) for epoch in history]
            ended = history[-1].epoch + 1 if history else 0
            if ended > len(history) and path.exists():  # not all of a long history was in memory
                with path.open() as file:
                    self._lines = list(itertools.islice(file, ended))
            with replace_file(path) as new:
                new.write("".join(self._lines).encode())
            self._size = path.stat().st_size
            known = max((entry["ranks_before"] for entry in changes["resumed"]), default=0)
            for table in GROWING:
                unpack_rows(self.folder, table)
                remove_rows(self.folder, table, known)  # left by an attempt on more ranks that saved nothing
            for name in ("stopped.json", "summary.json"):
                (self.folder / name).unlink(missing_ok=True)

    def stop(self, why: dict[str, Any]) -> None:
        """Close the record of a run that was stopped before its end."""
        try:
            write_json(self.folder / "stopped.json", why)
        except OSError as error:
            self.outage.note_failure(error, self)

    def discard(self) -> None:
        """Remove the folder of a run that was refused before its first step."""
        release(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)

    def epoch(self, epoch: Epoch) -> None:
        """Append the line of an epoch that has ended; if that fails, later."""
        line = _line(epoch)
        for lines in (self._lines, self._unwritten):
            lines.append(line)
            if len(lines) > EPOCHS:
                del lines[1:-1:2]
        try:
            self._repair(self.folder)
            self._append()
        except OSError as error:
            self.outage.note_failure(error, self)
        else:
            self.outage.note_success(self)

    def _append(self) -> None:
        """Append the lines that have not been written to epochs.jsonl, all or none."""
        with (self.folder / "epochs.jsonl").open("ab", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size < self._size:  # the file was removed
                self._size, self._unwritten = 0, list(self._lines)
            if size != self._size:  # or: the rest of an attempt that failed
                file.truncate(self._size)
            left = data = "".join(self._unwritten).encode()
            try:
                while left:
                    left = left[file.write(left) :]
            except OSError:
                with contextlib.suppress(OSError):  # the next attempt does it, too
                    file.truncate(self._size)
                raise
        self._size += len(data)
        self._unwritten = []

    def _repair(self, folder: Path) -> None:
        """Write what a folder that was removed, or a new one, lacks."""
        if not folder.exists():
            folder.mkdir()
        for name, values in self._files.items():
            if not (folder / name).exists():
                write_json(folder / name, values)

    def finish(
        self,
        model: Model | None,
        summary: dict[str, Any],
        tables: Mapping[str, Mapping[str, NDArray[Any]]] = MappingProxyType({}),
    ) -> None:
        """Write the tables, among them the steps of every rank, the trained model (if there is one) and the summary.

        If that fails, do so in a new folder: in the temporary folder of the system, or in the home folder; if there is no
        room anywhere, write the model without the tables. `moved` and `unsaved` then say so.
        """
        why = ""
        elsewhere = (Path(tempfile.gettempdir()), Path.home())
        for kept, lacks in ((tables, ""), ({"steps": steps_table([])}, ", without its tables")):
            for place in (self._wanted, *elsewhere):
                try:
                    if place is not self._wanted:
                        self.folder = Path(tempfile.mkdtemp(prefix=f"{self._wanted.name}-", dir=place))
                    if why:
                        words = f"the run could not be written to {self._wanted} ({why}): it is in {self.folder}{lacks}"
                        self.moved = (str(self.folder), words)
                    self._finish(model, summary, kept)
                except OSError as error:
                    self.outage.note_failure(error, self)
                    why = why or reason(error)
                    if self.folder is not self._wanted:
                        shutil.rmtree(self.folder, ignore_errors=True)
                    self.folder, self.moved = self._wanted, None
                else:
                    for table in tables.values():
                        if isinstance(table, Table):
                            table.remove()
                    return
        places = " or ".join(map(str, (self._wanted, *elsewhere)))
        self.unsaved = f"the run could not be written to {places}: {why}"
        self.outage.say(self.unsaved)

    def _finish(
        self, model: Model | None, summary: dict[str, Any], tables: Mapping[str, Mapping[str, NDArray[Any]]]
    ) -> None:
        self._repair(self.folder)
        if self.folder is self._wanted:
            self._append()
        else:
            with replace_file(self.folder / "epochs.jsonl") as file:
                file.write("".join(self._lines).encode())
        if model is not None:
            write_arrays(self.folder / "model.npz", state_of(model))
        for name, table in tables.items():
            write_table(self.folder / f"{name}.npz", table)
        remarks = [*summary.get("remarks", ()), *([] if self.moved is None else [self.moved[1]])]
        write_json(
            self.folder / "summary.json",
            {
                **summary,
                "run": str(self.folder),
                "remarks": remarks,
                "tables": {name: list(table) for name, table in tables.items() if name != "steps"},
            },
        )

    @contextmanager
    def _report_errors(self) -> Iterator[None]:
        """Report a full disk, or a folder that was removed, in one line."""
        try:
            yield
        except OSError as error:
            raise UsageError(f"cannot write the run to {self.folder}: {reason(error)}") from error


def withdraw(folder: Path) -> None:
    """Let a run no longer count as complete: its program failed after its training had ended."""
    with suppress(OSError):
        (folder / "summary.json").rename(folder / "withdrawn.json")


def _line(epoch: Epoch) -> str:
    return json_text(asdict(epoch)) + "\n"


# ---- one process at a time writes a folder

RUNNING = "running"
# Of file systems without locks: runs in them are not protected.
WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}

_held: dict[Path, int] = {}


def hold(folder: Path, *, anyway: bool = False) -> None:
    """Hold a run's folder for this process; raise a UsageError if another one does.

    `anyway`: the process that held it is known to be gone, but its host was lost and cannot tell the file server.
    """
    path = folder.resolve() / RUNNING
    if path in _held:
        return
    if anyway:
        path.unlink(missing_ok=True)
    file = _open_locked(path, create=True)
    assert file is not None
    _held[path] = file
    os.ftruncate(file, 0)
    os.write(file, f"process {os.getpid()} on {os.uname().nodename} since {_now()}\n".encode())


def release(folder: Path) -> None:
    """Let others have a run's folder, if this process holds it."""
    path = folder.resolve() / RUNNING
    if (file := _held.pop(path, None)) is not None:
        with suppress(OSError):  # the folder may be gone, or something else may be in its place
            if _is_same(path, file):
                path.unlink(missing_ok=True)
        os.close(file)


def check_idle(folder: Path) -> None:
    """Raise a UsageError if another process trains the run in a folder."""
    path = folder.resolve() / RUNNING
    if path not in _held and (file := _open_locked(path, create=False)) is not None:
        os.close(file)


def is_held(folder: Path) -> bool:
    """Return True if a process seems to train the run in a folder; the lock itself is not touched.

    A process on another host counts as alive.
    """
    try:
        words = read_text(folder / RUNNING).split()
    except UsageError:
        return False
    if words[:1] + words[2:4] != ["process", "on", os.uname().nodename]:
        return len(words) > 3
    return process_lives(words[1])


def process_lives(number: str) -> bool:
    """Return True if there is a process with this number, as a file has it, on this machine.

    >>> process_lives(str(os.getpid())), process_lives("-1"), process_lives("none")
    (True, False, False)
    """
    if not re.fullmatch("[1-9][0-9]{0,9}", number):  # 0 and below are groups of processes
        return False
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's process
        return True
    return True


def _open_locked(path: Path, *, create: bool) -> int | None:
    """Open and lock a file; return None if there is none and none is to be created."""
    while True:
        try:
            file = open_lock_file(path, create=create)
        except OSError as error:
            if create:
                raise
            if isinstance(error, FileNotFoundError):
                return None
            raise cannot(path, error) from None
        try:
            _lock(file, path)
            if _is_same(path, file):
                return file
            os.close(file)  # removed by the process that held it
        except BaseException:
            os.close(file)
            raise


def _lock(file: int, path: Path) -> None:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            who = " ".join(os.read(file, 200).decode(errors="replace").split())
            raise UsageError(
                f"{path.parent} is being trained ({who or 'by another process'}): wait for its end, or stop it; "
                f"if its host was lost, remove {path}"
            ) from None
        if error.errno not in WITHOUT_LOCKS:
            raise


def _is_same(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
