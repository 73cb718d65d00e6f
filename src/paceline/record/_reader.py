"""Reading runs back."""

from __future__ import annotations

import json
import logging
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.config import Config
from paceline.errors import UsageError
from paceline.models import Model
from paceline.models._state import BUFFER, put_state
from paceline.record._sound import check

# What every record says, whatever version wrote it.
KEYS = {
    "config.json": (
        *(setting.name for setting in fields(Config) if setting.name not in ("on_divergence", "replay")),
        "ranks", "classes",
    ),
    "environment.json": ("python", "packages", "mpi", "system", "processor", "cores"),
    "summary.json": ("test_accuracy", "train_seconds", "samples_per_second", "seconds", "bytes_sent", "threads"),
}  # fmt: skip


class Run:
    """A run's folder, read as it is needed.

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
            if not (self.folder / "config.json").is_file():
                raise UsageError(f"{self.folder} is not a run: it has no config.json")
        except OSError as error:
            raise _unreadable(self.folder, error) from None

    @property
    def complete(self) -> bool:
        """Whether the run came to its end."""
        return (self.folder / "summary.json").is_file()

    @cached_property
    def config(self) -> dict[str, Any]:
        """What was asked for."""
        return self._json("config.json")

    @property
    def simulated(self) -> dict[str, Any] | None:
        """What was simulated: network, machine, costs …; None for a run on real ranks. Then all seconds are virtual."""
        found: dict[str, Any] | None = self.config.get("simulated")
        return found

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Where it ran."""
        return self._json("environment.json")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What came out."""
        if not self.complete:
            raise UsageError(f"the run {self.folder} has not ended: it has no summary.json")
        return self._json("summary.json")

    @cached_property
    def epochs(self) -> list[dict[str, Any]]:
        """A dictionary an epoch."""
        path = self.folder / "epochs.jsonl"
        try:
            return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from None

    @cached_property
    def steps(self) -> dict[str, NDArray[Any]]:
        """Every rank's every step, as columns."""
        return self._arrays("steps.npz")

    @cached_property
    def trace(self) -> dict[str, NDArray[Any]] | None:
        """Every rank's spans of time and calls of MPI, as columns; None where the run was not traced."""
        return self._arrays("trace.npz") if (self.folder / "trace.npz").is_file() else None

    @cached_property
    def updates(self) -> dict[str, NDArray[Any]]:
        """Every update of every master of an asynchronous run, in the order they were made, as columns."""
        return self._arrays("updates.npz")

    def restore(self, model: Model) -> None:
        """Put the trained parameters and buffers into a model of the same shape."""
        if self.simulated is not None and not self.simulated.get("compute", True):
            raise UsageError(f"{self.folder} has no trained model: time alone was simulated")
        arrays = self._arrays("model.npz")
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
        put_state(model, arrays)

    def _json(self, name: str) -> dict[str, Any]:
        try:
            value: dict[str, Any] = json.loads((self.folder / name).read_text())
        except FileNotFoundError:
            raise UsageError(f"the run {self.folder} has no {name}") from None
        except ValueError as error:
            raise UsageError(f"{self.folder / name} is no JSON: {error}") from None
        except OSError as error:
            raise _unreadable(self.folder / name, error) from None
        missing = [key for key in KEYS[name] if not isinstance(value, dict) or key not in value]
        if missing:
            raise UsageError(f"{self.folder / name} is not a paceline run's: it has no {', '.join(missing)}")
        return value

    def _arrays(self, name: str) -> dict[str, NDArray[Any]]:
        try:
            with (self.folder / name).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return dict(arrays)
        except FileNotFoundError:
            raise UsageError(f"the run {self.folder} has no {name}: it has not ended") from None
        except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise UsageError(f"{self.folder / name} cannot be read: {error}") from None


def find_runs(places: Iterable[str | Path], left_out: list[str] | None = None) -> list[Run]:
    """The complete runs among some folders, each a run or a folder of runs, oldest name first.

    A run that is damaged or cannot be read is left out, with a warning; the words of it are also added to `left_out`.
    """
    found: list[Path] = []
    for place in map(Path, places):
        try:
            if (place / "config.json").is_file():
                found.append(place)
            elif place.is_dir():
                found.extend(sorted(path for path in place.iterdir() if _is_run(path)))
            else:
                raise UsageError(f"no such run or folder of runs: {place}")
        except OSError as error:
            raise _unreadable(place, error) from None
    runs = []
    for folder in found:
        try:
            run = Run(folder)
            if run.complete:
                check(run)
                runs.append(run)
        except UsageError as error:
            logging.getLogger(__name__).warning("left out: %s", error)
            if left_out is not None:
                left_out.append(str(error))
    return runs


def _is_run(folder: Path) -> bool:
    try:
        return (folder / "config.json").is_file()
    except OSError:
        return True  # not ours to read, but somebody's run: `Run` says why it cannot be read


def _unreadable(path: Path, error: Exception) -> UsageError:
    why = getattr(error, "strerror", None) or str(error)
    return UsageError(f"cannot read {path}: {why.lower()}")
