"""Read runs, and check that a record contains what its readers need."""

from __future__ import annotations

import json
import logging
import math
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from paceline import names
from paceline.config import Config
from paceline.errors import UsageError
from paceline.models import BUFFER, Model, put_state

# ---- required contents of each file: truncated or edited files are reported, not trusted

Test = Callable[[Any], bool]
KINDS = ("compute", "exchange", "wait", "update")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_amount(value: Any) -> bool:
    """Return True for a number from 0 up."""
    return _number(value) and value >= 0


def is_whole(value: Any) -> bool:
    """Return True for a whole number from 0 up."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_some(value: Any) -> bool:
    """Return True for a whole number above 0."""
    return is_whole(value) and value > 0


def is_share(value: Any) -> bool:
    """Return True for a number from 0 to 1."""
    return _number(value) and 0 <= value <= 1


def is_text(value: Any) -> bool:
    """Return True for a string."""
    return isinstance(value, str)


def is_object(value: Any) -> bool:
    """Return True for a JSON object."""
    return isinstance(value, dict)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def _columns(value: Any) -> bool:
    """Return True for tables, each with the names of its columns."""
    return is_object(value) and all(map(_texts, value.values()))


def _digests(value: Any) -> bool:
    return is_object(value) and all(map(is_text, value.values()))


def _seconds(value: Any) -> bool:
    return is_object(value) and all(is_amount(value.get(kind)) for kind in KINDS)


def _nodes(value: Any) -> bool:
    """Return True for the node number of every rank, and the cores, name and link of every node."""
    if not (
        is_object(value) and isinstance(value.get("ranks"), list) and isinstance(value.get("cores"), list)
    ):
        return False
    ranks, cores = value["ranks"], value["cores"]
    hosts, links = value.get("hosts"), value.get("links")
    return (
        bool(ranks)
        and (hosts is None or (_texts(hosts) and len(hosts) == len(cores)))
        and (
            links is None
            or (isinstance(links, list) and len(links) == len(cores) and all(map(is_amount, links)))
        )
        and all(map(is_some, cores))
        and all(is_whole(node) and node < len(cores) for node in ranks)
    )


def _simulated(value: Any) -> bool:
    return is_object(value) and is_text(value.get("network"))


# The required contents of each file; a name in brackets may also be null or missing.
FILES: dict[str, dict[str, Test]] = {
    "config.json": {
        "data": is_text, "model": is_text, "strategy": is_text, "update": is_text, "schedule": is_text,
        "lr_scaling": is_text, "dtype": is_text, "lr": _number, "epochs": is_whole, "seed": is_whole, "ranks": is_some,
        "(classes)": is_whole, "(batch)": is_some, "(batch_per_rank)": is_some, "(draws)": is_some, "(samples)": is_whole,
        "(simulated)": _simulated, "(code)": _digests,
    },
    "environment.json": {
        "python": is_text, "packages": is_object, "system": is_text, "processor": is_text, "cores": is_some,
        "(mpi)": is_text, "(nodes)": _nodes,
    },
    "summary.json": {
        "train_seconds": is_amount, "seconds": _seconds, "bytes_sent": is_amount, "threads": is_some,
        "parameters": is_whole, "global_batch": is_some, "data": is_text, "(messages_sent)": is_amount, "(steps)": is_whole,
        "(samples_per_second)": is_amount, "(test_accuracy)": is_share, "(test_loss)": _number, "(loss)": _number,
        "(diverged)": is_text, "(findings)": is_object, "(remarks)": _texts, "(tables)": _columns,
    },
}  # fmt: skip
EPOCH: dict[str, Test] = {
    "epoch": is_whole, "train_seconds": is_amount, "(loss)": _number, "(validation_accuracy)": is_share,
}  # fmt: skip
# Tables that strategies write and readers use: with the parameters in pieces, and without.
OWN_TABLES = {"updates": ("master", "event", "worker", "tau"), "staleness": ("rank", "tau")}
STEPS = ("rank", "step", "epoch", "count")


def check(run: Run) -> None:
    """Raise a UsageError if a file is missing, truncated, or contains impossible values.

    Only the headers of tables are read: they can be large.
    """
    for name, values in (
        ("config.json", run.config),
        ("environment.json", run.environment),
        ("summary.json", run.summary),
    ):
        _check(run.folder / name, values, FILES[name])
    if run.simulated is None and run.summary.get("steps") and not run.summary["train_seconds"]:
        raise UsageError(f"{run.folder / 'summary.json'} is damaged: train_seconds is 0")
    for number, epoch in enumerate(run.epochs, 1):
        _check(run.folder / "epochs.jsonl", epoch, EPOCH, f"in line {number} ")
    if not run.epochs and run.summary.get("loss") is not None:
        raise UsageError(f"the run {run.folder} has no epochs.jsonl")
    _check_table(run.folder / "steps.npz", STEPS)
    for table, columns in _tables(run).items():
        _check_table(run.folder / f"{table}.npz", columns)


def _tables(run: Run) -> dict[str, tuple[str, ...]]:
    """Return the tables that the strategy wrote and their columns; in old records these follow from its findings."""
    listed = run.summary.get("tables")
    if listed is not None:
        return {name: columns for name, columns in OWN_TABLES.items() if name in listed}
    found = (run.summary.get("findings") or {}).get("staleness")
    if not isinstance(found, dict):
        return {}
    name = "updates" if "pieces" in found else "staleness"
    built_in = names.has("strategies", str(run.config["strategy"]).partition(":")[0])
    return {name: OWN_TABLES[name]} if built_in or (run.folder / f"{name}.npz").exists() else {}


def _check(path: Path, values: Any, tests: dict[str, Test], where: str = "") -> None:
    if not isinstance(values, dict):
        raise UsageError(f"{path} is damaged: {where}{shown(values)} is not an object")
    if (name := first_wrong(values, tests)) is not None:
        raise UsageError(f"{path} is damaged: {where}{name} is {shown(values.get(name, 'missing'))}")


def first_wrong(values: Mapping[str, Any], tests: Mapping[str, Test]) -> str | None:
    """Return the first name whose value is missing or wrong; one in brackets may also be null or missing.

    >>> first_wrong({"ranks": 0, "data": None}, {"(data)": is_text, "ranks": is_some})
    'ranks'
    """
    for key, test in tests.items():
        name = key.strip("()")
        if name != key and values.get(name) is None:
            continue
        if name not in values or not test(values[name]):
            return name
    return None


def shown(value: Any) -> str:
    """Format a value for an error message.

    >>> shown("x" * 80), shown("1.5")
    ("'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...", "'1.5'")
    """
    text = repr(value) if isinstance(value, str) and value != "missing" else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _check_table(path: Path, columns: tuple[str, ...]) -> None:
    """Raise a UsageError unless the file's headers show these columns, all of the same length."""
    try:
        with zipfile.ZipFile(path) as file:
            lengths = {name: _length(file.open(f"{name}.npy")) for name in columns}
    except FileNotFoundError:
        raise UsageError(f"the run {path.parent} has no {path.name}") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} cannot be read: {str(error).strip(chr(34)).lower()}") from None
    if len(set(lengths.values())) != 1:
        raise UsageError(f"{path} is damaged: its columns are not equally long")


def _length(file: IO[bytes]) -> int:
    """Return the length of an array in a file, from its header."""
    with file:
        major, _ = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, _, _ = read(file)
    if len(shape) != 1:
        raise ValueError(f"a column has shape {shape}")
    return int(shape[0])


# The contents of every record, whatever version wrote it.
KEYS = {
    "config.json": (
        *(setting.name for setting in fields(Config) if setting.name not in ("on_divergence", "replay")),
        "ranks", "classes",
    ),
    "environment.json": ("python", "packages", "mpi", "system", "processor", "cores"),
    "summary.json": ("test_accuracy", "train_seconds", "samples_per_second", "seconds", "bytes_sent", "threads"),
}  # fmt: skip


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
            if not (self.folder / "config.json").is_file():
                raise UsageError(f"{self.folder} is not a run: it has no config.json")
        except OSError as error:
            raise _unreadable(self.folder, error) from None

    @property
    def complete(self) -> bool:
        """True if the run was completed."""
        return (self.folder / "summary.json").is_file()

    @cached_property
    def config(self) -> dict[str, Any]:
        """The settings."""
        return self._json("config.json")

    @property
    def simulated(self) -> dict[str, Any] | None:
        """The simulation's network, machine, costs …; None for real ranks. In a simulated run all seconds are virtual."""
        found: dict[str, Any] | None = self.config.get("simulated")
        return found

    @cached_property
    def environment(self) -> dict[str, Any]:
        """The machine and software that it ran on."""
        return self._json("environment.json")

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The results."""
        if not self.complete:
            raise UsageError(f"the run {self.folder} has not ended: it has no summary.json")
        return self._json("summary.json")

    @cached_property
    def epochs(self) -> list[dict[str, Any]]:
        """One dictionary per epoch."""
        path = self.folder / "epochs.jsonl"
        try:
            return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        except (OSError, ValueError) as error:
            raise _unreadable(path, error) from None

    @cached_property
    def steps(self) -> dict[str, NDArray[Any]]:
        """Every step of every rank, as columns."""
        return self._arrays("steps.npz")

    @cached_property
    def trace(self) -> dict[str, NDArray[Any]] | None:
        """Time spans and MPI calls of every rank, as columns; None if the run was not traced."""
        return self._arrays("trace.npz") if (self.folder / "trace.npz").is_file() else None

    @cached_property
    def updates(self) -> dict[str, NDArray[Any]]:
        """Every update of every master of an asynchronous run, in order, as columns."""
        return self._arrays("updates.npz")

    @cached_property
    def model(self) -> dict[str, NDArray[Any]]:
        """The parameters, as `x`, and the buffers of the trained model."""
        return self._arrays("model.npz")

    def restore(self, model: Model) -> None:
        """Copy the trained parameters and buffers into a model of the same shape."""
        if self.simulated is not None and not self.simulated.get("compute", True):
            raise UsageError(f"{self.folder} has no trained model: only time was simulated")
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
            raise UsageError(f"{self.folder / name} is not JSON: {error}") from None
        except OSError as error:
            raise _unreadable(self.folder / name, error) from None
        missing = [key for key in KEYS[name] if not isinstance(value, dict) or key not in value]
        if missing:
            raise UsageError(f"{self.folder / name} is not a paceline run's: it has no {', '.join(missing)}")
        return value

    def _arrays(self, name: str) -> dict[str, NDArray[Any]]:
        try:
            with (self.folder / name).open("rb") as file:
                if not zipfile.is_zipfile(file):  # NumPy would take it for a pickle or a single array
                    raise zipfile.BadZipFile("it is not an .npz file")
                file.seek(0)
                arrays = np.load(file, allow_pickle=False)
                # 0.1.0 on NumPy 2.0 or 2.1 stored savez's option as an array.
                return {column: array for column, array in arrays.items() if column != "allow_pickle"}
        except FileNotFoundError:
            raise UsageError(f"the run {self.folder} has no {name}: it has not ended") from None
        except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise UsageError(f"{self.folder / name} cannot be read: {error}") from None


def find_runs(places: Iterable[str | Path], left_out: list[str] | None = None) -> list[Run]:
    """Find the complete runs among some folders, each a run or a folder of runs, sorted by name.

    A run that is damaged or cannot be read is skipped with a warning, which is also added to `left_out`.
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
        return True  # no permission to read it: `Run` reports why


def _unreadable(path: Path, error: Exception) -> UsageError:
    why = getattr(error, "strerror", None) or str(error)
    return UsageError(f"cannot read {path}: {why.lower()}")
