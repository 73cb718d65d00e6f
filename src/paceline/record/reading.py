"""Read runs: the one reader of records, which checks everything that it reads (`paceline.record.schema`)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from paceline import names
from paceline.errors import UsageError
from paceline.files import exists, read_arrays, read_json, read_json_lines, unreadable
from paceline.models import BUFFER, Model, put_state
from paceline.record import schema


def _tables(run: Run) -> list[str]:
    """Return the tables that the strategy wrote and readers use; in old records these follow from its findings."""
    known = [name for name in schema.TABLES if name not in ("steps", "trace")]
    listed = run.summary.get("tables")
    if listed is not None:
        return [name for name in known if name in listed]
    found = run.summary["findings"].get("staleness")
    if found is None:
        return []
    name = "updates" if "pieces" in found else "staleness"
    built_in = names.has("strategies", run.config["strategy"].partition(":")[0])
    return [name] if built_in or exists(run.folder / f"{name}.npz") else []


class Run:
    """A run's folder, read lazily.

    >>> import tempfile
    >>> from paceline import fit
    >>> with tempfile.TemporaryDirectory() as runs:
    ...     fitted = fit("mlp:8", "iris", strategy="serial", epochs=2, batch=10, runs=runs, quiet=True)
    ...     run = Run(fitted.run)
    ...     run.config["model"], run.summary["steps"], len(run.epochs), run.steps["loss"].shape
    ('mlp:8', 24, 2, (24,))
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        try:
            if not self.folder.is_dir():
                raise UsageError(f"no such run: {self.folder}")
            if not exists(self.folder / "config.json"):
                raise UsageError(f"{self.folder} is not a run: it has no config.json")
        except OSError as error:
            raise unreadable(self.folder, error) from None

    @property
    def complete(self) -> bool:
        """True if the run was completed."""
        return exists(self.folder / "summary.json")

    @cached_property
    def config(self) -> dict[str, Any]:
        """The settings."""
        path = self._file("config.json")
        return schema.check_config(str(path), read_json(path))

    @property
    def simulated(self) -> dict[str, Any] | None:
        """The simulation's network, machine, costs …; None for real ranks. In a simulated run all seconds are virtual."""
        found: dict[str, Any] | None = self.config.get("simulated")
        return found

    @cached_property
    def environment(self) -> dict[str, Any]:
        """The machine and software that it ran on."""
        path = self._file("environment.json")
        return schema.check_environment(str(path), read_json(path), self.config)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The results."""
        if not self.complete:
            raise UsageError(f"the run {self.folder} has not ended: it has no summary.json")
        path = self._file("summary.json")
        return schema.check_summary(str(path), read_json(path), self.config)

    @cached_property
    def epochs(self) -> list[dict[str, Any]]:
        """One dictionary per epoch."""
        path = self.folder / "epochs.jsonl"
        return schema.check_epochs(str(path), read_json_lines(path)) if exists(path) else []

    @cached_property
    def steps(self) -> dict[str, NDArray[Any]]:
        """Every step of every rank, as columns."""
        return self.read_table("steps")

    @cached_property
    def trace(self) -> dict[str, NDArray[Any]] | None:
        """Time spans and MPI calls of every rank, as columns; None if the run was not traced."""
        return self.read_table("trace") if exists(self.folder / "trace.npz") else None

    @cached_property
    def updates(self) -> dict[str, NDArray[Any]]:
        """Every update of every master of an asynchronous run, in order, as columns."""
        return self.read_table("updates")

    def read_table(self, name: str) -> dict[str, NDArray[Any]]:
        """Read one of the run's tables, such as "steps" or one that its strategy wrote, as columns."""
        path = self._file(f"{name}.npz")
        return schema.check_table(str(path), name, read_arrays(path), schema.most_ranks(self.config))

    @cached_property
    def model(self) -> dict[str, NDArray[Any]]:
        """The parameters, as `x`, and the buffers of the trained model."""
        path = self._file("model.npz")
        return schema.check_model(str(path), read_arrays(path))

    def restore(self, model: Model) -> None:
        """Copy the trained parameters and buffers into a model of the same shape."""
        if self.simulated is not None and not self.simulated.get("compute", True):
            raise UsageError(f"{self.folder} has no trained model: only time was simulated")
        arrays = self.model
        x = arrays["x"]
        if x.shape != model.x.shape:
            raise UsageError(
                f"the model of {self.folder} has {x.size:,} parameters and the one given {model.x.size:,}"
            )
        buffers = sorted(name.removeprefix(BUFFER) for name in arrays if name != "x")
        if buffers != sorted(model.buffers):
            raise UsageError(
                f"the model of {self.folder} has the buffers {buffers} and the one given {sorted(model.buffers)}"
            )
        for name, buffer in model.buffers.items():
            stored = arrays[BUFFER + name]
            if stored.shape != buffer.shape or (stored.dtype.kind == "c") != (buffer.dtype.kind == "c"):
                raise UsageError(
                    f"the model of {self.folder} has a buffer {name} of {stored.dtype} {stored.shape}; "
                    f"the one given {buffer.dtype} {buffer.shape}"
                )
        put_state(model, arrays)

    def check(self) -> None:
        """Raise a UsageError if a file that reports read is missing, truncated, or contains impossible values."""
        _ = self.config, self.environment
        if not self.epochs and self.summary.get("loss") is not None:
            raise UsageError(f"the run {self.folder} has no epochs.jsonl")
        for name in ("steps", *_tables(self)):
            self.read_table(name)  # not kept: there may be many runs

    def _file(self, name: str) -> Path:
        if not exists(self.folder / name):
            raise UsageError(f"the run {self.folder} has no {name}")
        return self.folder / name


def find_runs(places: Iterable[str | Path], left_out: list[str] | None = None) -> list[Run]:
    """Find the complete runs among some folders, each a run or a folder of runs, sorted by name.

    A run that is damaged or cannot be read is skipped with a warning, which is also added to `left_out`.
    """
    found: list[Path] = []
    for place in map(Path, places):
        try:
            if exists(place / "config.json"):
                found.append(place)
            elif place.is_dir():
                found.extend(sorted(path for path in place.iterdir() if exists(path / "config.json")))
            else:
                raise UsageError(f"no such run or folder of runs: {place}")
        except OSError as error:
            raise unreadable(place, error) from None
    runs = []
    for folder in found:
        try:
            run = Run(folder)
            if run.complete:
                run.check()
                runs.append(run)
        except UsageError as error:
            logging.getLogger(__name__).warning("left out: %s", error)
            if left_out is not None:
                left_out.append(str(error))
    return runs
