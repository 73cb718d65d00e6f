"""Whether a record says what its readers take from it: files that were cut off or edited are told, not believed."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from paceline.errors import UsageError

if TYPE_CHECKING:
    from paceline.record._reader import Run

Test = Callable[[Any], bool]
KINDS = ("compute", "exchange", "wait", "update")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_amount(value: Any) -> bool:
    """A number that is not below 0."""
    return _number(value) and value >= 0


def is_whole(value: Any) -> bool:
    """A whole number that is not below 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_some(value: Any) -> bool:
    """A whole number above 0."""
    return is_whole(value) and value > 0


def is_share(value: Any) -> bool:
    """A fraction."""
    return _number(value) and 0 <= value <= 1


def is_text(value: Any) -> bool:
    """A text."""
    return isinstance(value, str)


def is_object(value: Any) -> bool:
    """An object of JSON."""
    return isinstance(value, dict)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def _seconds(value: Any) -> bool:
    return is_object(value) and all(is_amount(value.get(kind)) for kind in KINDS)


def _nodes(value: Any) -> bool:
    """The number of every rank's node, and the cores of every node."""
    if not (
        is_object(value) and isinstance(value.get("ranks"), list) and isinstance(value.get("cores"), list)
    ):
        return False
    ranks, cores = value["ranks"], value["cores"]
    return (
        bool(ranks)
        and all(map(is_some, cores))
        and all(is_whole(node) and node < len(cores) for node in ranks)
    )


def _simulated(value: Any) -> bool:
    return is_object(value) and is_text(value.get("network"))


# What each file must say; a name in brackets may also be null or not there.
FILES: dict[str, dict[str, Test]] = {
    "config.json": {
        "data": is_text, "model": is_text, "strategy": is_text, "update": is_text, "schedule": is_text,
        "lr_scaling": is_text, "dtype": is_text, "lr": _number, "epochs": is_whole, "seed": is_whole, "ranks": is_some,
        "(classes)": is_whole, "(batch)": is_some, "(batch_per_rank)": is_some, "(draws)": is_some, "(samples)": is_whole,
        "(simulated)": _simulated,
    },
    "environment.json": {
        "python": is_text, "packages": is_object, "system": is_text, "processor": is_text, "cores": is_some,
        "(mpi)": is_text, "(nodes)": _nodes,
    },
    "summary.json": {
        "train_seconds": is_amount, "seconds": _seconds, "bytes_sent": is_amount, "threads": is_some,
        "parameters": is_whole, "global_batch": is_some, "data": is_text, "(messages_sent)": is_amount, "(steps)": is_whole,
        "(samples_per_second)": is_amount, "(test_accuracy)": is_share, "(test_loss)": _number, "(loss)": _number,
        "(diverged)": is_text, "(findings)": is_object, "(remarks)": _texts,
    },
}  # fmt: skip
EPOCH: dict[str, Test] = {
    "epoch": is_whole, "train_seconds": is_amount, "(loss)": _number, "(validation_accuracy)": is_share,
}  # fmt: skip
# Of the strategies that write a table of their own: its name and columns.
TABLES = {
    "parameter-server": ("updates.npz", ("master", "event", "worker", "tau")),
    "hogwild": ("staleness.npz", ("rank", "tau")),
}
STEPS = ("rank", "step", "epoch", "count")


def check(run: Run) -> None:
    """Refuse a run with a file that is missing, cut off, or says what cannot be.

    Of tables the beginnings alone are read: they can be large.
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
    strategy = str(run.config["strategy"]).partition(":")[0]
    if strategy in TABLES and "staleness" in (run.summary.get("findings") or {}):
        name, columns = TABLES[strategy]
        _check_table(run.folder / name, columns)


def _check(path: Path, values: Any, tests: dict[str, Test], where: str = "") -> None:
    if not isinstance(values, dict):
        raise UsageError(f"{path} is damaged: {where}{shown(values)} is no object")
    if (name := first_wrong(values, tests)) is not None:
        raise UsageError(f"{path} is damaged: {where}{name} is {shown(values.get(name, 'missing'))}")


def first_wrong(values: Mapping[str, Any], tests: Mapping[str, Test]) -> str | None:
    """The first name whose value is missing, or does not hold; one in brackets may also be null or not there.

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
    """A value as a line of an error has it.

    >>> shown("x" * 80), shown("1.5")
    ("'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...", "'1.5'")
    """
    text = repr(value) if isinstance(value, str) and value != "missing" else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _check_table(path: Path, columns: tuple[str, ...]) -> None:
    """Whether a file of columns has these, all equally long, as far as their beginnings tell."""
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
    """Of an array in a file, from its header."""
    with file:
        major, _ = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, _, _ = read(file)
    if len(shape) != 1:
        raise ValueError(f"a column has shape {shape}")
    return int(shape[0])
