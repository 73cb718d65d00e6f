"""Write a run's folder.

config.json        the settings, the strategy's facts, and digests of the user's own code
environment.json   versions, MPI, cores, host, state of the source
epochs.jsonl       one line per epoch, written as it ends
steps.npz          every step of every rank: loss, samples, seconds, when it began
trace.npz          with --trace: time spans and MPI calls of every rank
NAME.npz           the strategy's own tables, such as every update of every master; summary.json lists them
model.npz          parameters and buffers, unless only time was simulated
checkpoints/       the state of every rank at the last few checkpoints (see `checkpoint`)
stopped.json       why a run was stopped before its end, and how to resume it
summary.json       results; written last, so a folder that has it is complete
"""

from __future__ import annotations

import os
import re
import shutil
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import UsageError
from paceline.files import json_text, read_json, replacing, write_arrays, write_columns, write_json
from paceline.models import Model, state_of
from paceline.record.rows import RowLog, Table, unpack_rows
from paceline.record.schema import FORMAT

LONGEST_NAME = 200  # file systems take 255 bytes, and files in the folder have temporary names
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


def steps_table(logs: list[RowLog]) -> Table:
    """Return the columns of steps.npz, from the logs of all ranks."""
    types = dict.fromkeys(("rank", "step", "epoch", "count"), np.uint32)
    return Table(logs, ("rank", *STEP_COLUMNS), types={**types, "loss": np.float64, "start": np.float64})


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
        raise UsageError(f"cannot write runs to {runs}: {error.strerror}") from None
    if name is not None:
        raise UsageError(f"{runs / name} exists already: choose another name")
    raise UsageError(f"{runs} holds too many runs named {stem}")


class Record:
    """The folder of one run, written by rank 0."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, config: dict[str, Any], environment: dict[str, Any]) -> None:
        """Write the configuration and the environment; if that fails, leave no folder."""
        try:
            with self._writing():
                write_json(self.folder / "config.json", {"format": FORMAT, **config})
                write_json(self.folder / "environment.json", environment)
        except UsageError:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def resume(self, changes: dict[str, Any], history: list[Epoch], environment: dict[str, Any]) -> None:
        """Go on with the record of a run that was cut: its settings change by `changes`, its history ends here."""
        with self._writing():
            config = read_json(self.folder / "config.json")
            write_json(self.folder / "config.json", {**config, **changes})
            write_json(self.folder / "environment.json", environment)
            with replacing(self.folder / "epochs.jsonl") as file:
                file.write("".join(json_text(asdict(epoch)) + "\n" for epoch in history).encode())
            unpack_rows(self.folder, "steps", STEP_COLUMNS)
            for name in ("stopped.json", "summary.json"):
                (self.folder / name).unlink(missing_ok=True)

    def stop(self, why: dict[str, Any]) -> None:
        """Close the record of a run that was stopped before its end."""
        with self._writing():
            write_json(self.folder / "stopped.json", why)

    def epoch(self, epoch: Epoch) -> None:
        """Append the line of an epoch that has ended."""
        with self._writing(), (self.folder / "epochs.jsonl").open("a") as file:
            file.write(json_text(asdict(epoch)) + "\n")

    def finish(
        self,
        model: Model | None,
        summary: dict[str, Any],
        tables: Mapping[str, Mapping[str, NDArray[Any]]] = MappingProxyType({}),
    ) -> None:
        """Write the tables, among them the steps of every rank, the trained model (if there is one) and the summary."""
        with self._writing():
            for name, table in tables.items():
                write_table(self.folder / f"{name}.npz", table)
            if model is not None:
                write_arrays(self.folder / "model.npz", state_of(model))
            write_json(
                self.folder / "summary.json",
                {
                    **summary,
                    "tables": {name: list(table) for name, table in tables.items() if name != "steps"},
                },
            )
        for table in tables.values():
            if isinstance(table, Table):
                table.remove()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Report a full disk, or a folder that was removed, in one line."""
        try:
            yield
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise UsageError(f"cannot write the run to {self.folder}: {why}") from error
