"""The schema of a run's record: the contents that its readers rely on, checked when a file is first read.

`FORMAT` is the schema's version; config.json holds the version that a run was recorded with. Anything that is not listed
here may be in a record too, with any value, and is not used. A name in brackets may also be null or missing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline import names
from paceline.config import Config
from paceline.errors import UsageError
from paceline.models import BUFFER
from paceline.vmpi.compute import Curves

FORMAT = 1

# Numbers outside of these ranges are not figures of a run, and sums and products of them would overflow.
MOST_RANKS = 1 << 20
LARGEST = 1 << 53
LARGEST_LOSS = 1e300
LONGEST = 1e9  # seconds, which trace files count in nanoseconds

Test = Callable[[Any], bool]
Tests = Mapping[str, "Test | Tests"]
"""A test for each key of an object; the test of an object inside it is again a mapping. ValueErrors of tests say why."""


def is_number(value: Any) -> bool:
    """Return True for a finite number, such as a loss."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and -LARGEST_LOSS < value < LARGEST_LOSS
    )


def is_amount(value: Any) -> bool:
    """Return True for a number from 0 up."""
    return is_number(value) and 0 <= value <= 1e30


def is_seconds(value: Any) -> bool:
    """Return True for a time from 0 up."""
    return is_number(value) and 0 <= value <= LONGEST


def is_whole(value: Any) -> bool:
    """Return True for a whole number from 0 up."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def is_some(value: Any) -> bool:
    """Return True for a whole number above 0."""
    return is_whole(value) and value > 0


def is_share(value: Any) -> bool:
    """Return True for a number from 0 to 1."""
    return is_number(value) and 0 <= value <= 1


def is_text(value: Any) -> bool:
    """Return True for a string."""
    return isinstance(value, str)


def is_truth(value: Any) -> bool:
    """Return True for true and false."""
    return isinstance(value, bool)


def is_object(value: Any) -> bool:
    """Return True for a JSON object."""
    return isinstance(value, dict)


def or_null(test: Test) -> Test:
    """Return a test for a value that may be null, but not missing."""
    return lambda value: value is None or test(value)


def list_of(test: Test | Tests, most: float = math.inf) -> Test:
    """Return a test for a list of such values, or of objects."""
    return lambda value: (
        isinstance(value, list) and len(value) <= most and all(passes(inner, test) for inner in value)
    )


def object_of(test: Test | Tests) -> Test:
    """Return a test for an object with such values, whatever their keys."""
    return lambda value: isinstance(value, dict) and all(passes(inner, test) for inner in value.values())


def passes(value: Any, test: Test | Tests) -> bool:
    """Return True if a value passes a test, or is an object whose values pass theirs."""
    if isinstance(test, Mapping):
        return isinstance(value, dict) and find_wrong(value, test) is None
    return test(value)


def find_wrong(values: Mapping[str, Any], tests: Tests) -> str | None:
    """Return the first name whose value is missing or wrong; inside another object with a dot, as in `nodes.cores`.

    >>> find_wrong({"ranks": 0, "data": None}, {"(data)": is_text, "ranks": is_some})
    'ranks'
    >>> find_wrong({"nodes": {"cores": 0}}, {"nodes": {"cores": is_some}})
    'nodes.cores'
    """
    for key, test in tests.items():
        name = key.strip("()")
        if name != key and values.get(name) is None:
            continue
        if name not in values:
            return name
        value = values[name]
        if isinstance(test, Mapping) and isinstance(value, dict):
            if (inner := find_wrong(value, test)) is not None:
                return f"{name}.{inner}"
        elif not passes(value, test):
            return name
    return None


def format_value(value: Any) -> str:
    """Format a value for an error message.

    >>> format_value("x" * 80), format_value("1.5")
    ("'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...", "'1.5'")
    """
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_values(what: str, values: Any, tests: Tests) -> dict[str, Any]:
    """Return the values if they are an object that passes the tests; raise a UsageError that begins with `what` if not.

    >>> check_values("config.json", {"ranks": 0}, {"ranks": is_some})
    Traceback (most recent call last):
    paceline.errors.UsageError: config.json is damaged: ranks is 0
    """
    if not isinstance(values, dict):
        raise UsageError(f"{what} is damaged: {format_value(values)} is not an object")
    try:
        name = find_wrong(values, tests)
    except ValueError as error:
        raise UsageError(f"{what} is damaged: {error}") from None
    if name is not None:
        wrong: Any = values
        for word in name.split("."):
            if word not in wrong:
                raise UsageError(f"{what} is damaged: {name} is missing")
            wrong = wrong[word]
        raise UsageError(f"{what} is damaged: {name} is {format_value(wrong)}")
    return values


# ---- the JSON files


def _rank_count(value: Any) -> bool:
    return is_some(value) and bool(value <= MOST_RANKS)


def _seconds(value: Any) -> bool:
    """Return True for the seconds of each kind of work."""
    return object_of(is_seconds)(value) and {"compute", "exchange", "wait", "update"} <= value.keys()


def _nodes(value: Any) -> bool:
    """Return True for the node number of every rank, and the cores, name and link of every node."""
    tests: Tests = {
        "ranks": list_of(is_whole, MOST_RANKS), "cores": list_of(is_some), "(hosts)": list_of(is_text),
        "(links)": list_of(is_amount),
    }  # fmt: skip
    if not passes(value, tests):
        return False
    of_nodes = [value[name] for name in ("cores", "hosts", "links") if value.get(name) is not None]
    nodes = len(value["cores"])
    return bool(value["ranks"]) and max(value["ranks"]) < nodes and all(len(one) == nodes for one in of_nodes)


def _curves(value: Any) -> bool:
    """Return True for tables of seconds by amounts, one for each number of ranks; raise ValueError if it can say more."""
    points = list_of(lambda point: isinstance(point, list) and len(point) == 2 and all(map(is_number, point)))
    if not isinstance(value, dict) or not all(map(points, value.values())):
        return False
    if not all(re.fullmatch(r"[1-9][0-9]{0,8}", ranks) for ranks in value):
        return False
    Curves.of(value)
    if not all(is_amount(point[0]) and is_seconds(point[1]) for table in value.values() for point in table):
        return False
    # A line through two points that are closer would overflow.
    return all(b[0] - a[0] >= 1e-6 for table in value.values() for a, b in pairwise(table))


MEASURED: Tests = {
    "cores": is_some, "(processor)": is_text, "(date)": is_text, "(command)": is_text,
}  # fmt: skip
# What `paceline.machine` writes to the files of machines and of costs. A simulated run's record has a copy of both.
MACHINE: Tests = {
    **MEASURED, "(mpi)": is_text, "(network)": is_text, "(bound)": is_truth,
    "eager_limit": is_whole, "post": is_seconds, "poll": is_seconds,
    "(hidden)": or_null(lambda value: is_number(value) and 0 <= value <= 1), "(progress)": object_of(_curves),
    "link": {"send": _curves, "flight": _curves, "take": _curves},
    "collectives": object_of(_curves), "memory": object_of(_curves),
}  # fmt: skip
COSTS: Tests = {
    **MEASURED, "work": object_of(_curves), "(about)": is_text,
    "(spread)": lambda value: is_number(value) and 0 <= value <= 2, "(spreads)": or_null(_curves),
}  # fmt: skip
SIMULATED: Tests = {
    "network": is_text, "(slow)": is_text, "(jitter)": is_amount, "(compute)": is_truth, "(rendezvous)": is_truth,
    "(faults)": is_text, "(ranks_per_node)": is_some, "(node_cores)": is_some, "(machine)": MACHINE, "(costs)": COSTS,
}  # fmt: skip
# The types in which inputs are stored.
STORED = frozenset(
    ("float32", "bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
)


def _is_stored(value: Any) -> bool:
    return isinstance(value, str) and value in STORED


CONFIG: Tests = {
    "ranks": _rank_count, "classes": or_null(is_whole), "lr": is_number,
    **dict.fromkeys(("epochs", "seed"), is_whole), "(samples)": is_whole, "(target)": is_text, "(code)": object_of(is_text),
    **dict.fromkeys(("batch", "batch_per_rank", "draws", "threads"), or_null(is_some)),
    **dict.fromkeys(("(shape)", "(label_shape)"), list_of(is_whole, 32)),
    **dict.fromkeys(("(objects)", "(class_names)", "(metrics)"), list_of(is_text)), "(clip)": is_number,
    "(asked)": object_of(or_null(lambda value: is_number(value) or is_text(value) or is_truth(value))),
    "(program)": {"file": is_text, "arguments": list_of(is_text)},
    "(resumed)": list_of({"ranks": _rank_count, "ranks_before": _rank_count}),
    "(strategy_facts)": is_object, "(simulated)": SIMULATED,
    "(inputs)": list_of({"name": is_text, "shape": list_of(is_whole, 32), "dtype": _is_stored}, 256),
    "(ignored)": lambda value: is_whole(value) or (isinstance(value, int) and is_whole(-value)),
}  # fmt: skip
ENVIRONMENT: Tests = {
    "python": is_text, "packages": object_of(is_text), "system": is_text, "processor": is_text, "cores": is_some,
    "mpi": or_null(is_text), "(nodes)": _nodes, "(simulated)": {"machine": is_text},
    **dict.fromkeys(("(host)", "(paceline)", "(blas)"), is_text),
}  # fmt: skip
SUMMARY: Tests = {
    "train_seconds": is_seconds, "bytes_sent": is_amount, "threads": is_some, "parameters": is_whole,
    "global_batch": is_some, "data": is_text, "samples_per_second": or_null(is_amount),
    "test_accuracy": or_null(is_share), "(messages_sent)": is_amount, "(steps)": is_whole, "(buffers)": is_whole,
    "(layers)": is_whole, "(first_layer)": is_whole,
    "(test_loss)": is_number, "(loss)": is_number, "(diverged)": is_text, "(findings)": is_object,
    **dict.fromkeys(("(metrics)", "(test_metrics)"), object_of(or_null(is_number))),
    "(remarks)": list_of(is_text), "(tables)": object_of(list_of(is_text)),
    "seconds": _seconds,
    "(seconds_by_rank)": list_of(object_of(is_seconds), MOST_RANKS), "(expected_traffic)": is_object,
}  # fmt: skip
EPOCH: Tests = {
    "epoch": is_whole, "train_seconds": is_seconds, "(step)": is_whole, "(loss)": is_number,
    "(validation_loss)": is_number, "(validation_accuracy)": is_share, "(metrics)": object_of(or_null(is_number)),
}  # fmt: skip
# Findings that reports and diagnoses use. Those of a user's own strategy may have any form: others are not used.
HISTOGRAM_KEY = re.compile(r"0|[1-9][0-9]{0,14}")


def _histogram(value: Any) -> bool:
    if isinstance(value, dict):
        return all(HISTOGRAM_KEY.fullmatch(tau) and is_whole(count) for tau, count in value.items())
    return isinstance(value, list) and all(map(is_whole, value))


PIECE: Tests = {
    "master": is_whole, "layers": list_of(is_whole), "parameters": is_whole, "mean": is_amount, "largest": is_whole,
    "(mean_gap)": is_number,
}  # fmt: skip
STALENESS: Tests = {
    "histogram": _histogram, "(mean)": is_amount, "(median)": is_amount, "(largest)": is_whole,
    "(mean_gap)": is_number, "(pieces)": list_of(PIECE),
}  # fmt: skip
FINDINGS: Tests = {
    "(staleness)": STALENESS, "(gradients_applied)": is_amount, "(gradients_dropped)": is_amount, "(order)": is_text,
    "(gradients_acknowledged)": is_amount,
    "(parts)": list_of({"(test_accuracy)": is_share}),
}  # fmt: skip


# Settings that older records do not have: those runs had the defaults.
ADDED = ("on_divergence", "reproducible", "replay", "labels", "clip")


def check_config(what: str, values: Any) -> dict[str, Any]:
    """Check the contents of config.json."""
    wanted = [setting.name for setting in fields(Config) if setting.name not in ADDED]
    missing = [key for key in (*wanted, "ranks", "classes") if not is_object(values) or key not in values]
    if missing:
        raise UsageError(f"{what} is not a paceline run's: it has no {', '.join(missing)}")
    version = values.get("format", FORMAT)
    if not is_some(version) or version > FORMAT:
        raise UsageError(
            f"{what} has format {format_value(version)}; this version of paceline reads formats up to {FORMAT}"
        )
    check_values(what, values, CONFIG)
    try:
        Config(**{setting.name: values[setting.name] for setting in fields(Config) if setting.name in values})
    except UsageError as error:
        raise UsageError(f"{what} is damaged: {error}") from None
    if values.get("shape") is not None:  # records have all three, or none
        check_values(what, values, {"label_shape": list_of(is_whole), "class_names": list_of(is_text)})
    classes, called = values["classes"] or 0, values.get("class_names") or ()
    if len(called) not in (0, classes):
        raise UsageError(f"{what} is damaged: it has {classes} classes and {len(called)} class_names")
    return values  # type: ignore[no-any-return]


def most_ranks(config: Mapping[str, Any]) -> int:
    """Return the largest number of ranks that the run ever had: it may have been resumed with another number.

    >>> most_ranks({"ranks": 2, "resumed": [{"ranks": 2, "ranks_before": 4}]})
    4
    """
    before = [entry["ranks_before"] for entry in config.get("resumed") or ()]
    return int(max(config["ranks"], *before)) if before else int(config["ranks"])


def check_environment(what: str, values: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Check the contents of environment.json, for the run with this configuration."""
    check_values(what, values, ENVIRONMENT)
    nodes = values.get("nodes")
    if nodes is not None and len(nodes["ranks"]) != config["ranks"]:
        raise UsageError(
            f"{what} is damaged: it has the nodes of {len(nodes['ranks'])} ranks; the run has {config['ranks']}"
        )
    return values  # type: ignore[no-any-return]


def check_summary(what: str, values: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Check the contents of summary.json, for the run with this configuration."""
    check_values(what, values, SUMMARY)
    if len(values.get("seconds_by_rank") or ()) > config["ranks"]:
        raise UsageError(
            f"{what} is damaged: it has the seconds of {len(values['seconds_by_rank'])} ranks; "
            f"the run has {config['ranks']}"
        )
    if config.get("simulated") is None and values.get("steps") and not values["train_seconds"]:
        raise UsageError(f"{what} is damaged: train_seconds is 0")
    findings = values["findings"] = dict(values.get("findings") or {})
    if names.has("strategies", config["strategy"].partition(":")[0]):
        check_values(what, {"findings": findings}, {"findings": FINDINGS})
    for key, test in FINDINGS.items():
        if find_wrong(findings, {key: test}) is not None:
            del findings[key.strip("()")]
    return values  # type: ignore[no-any-return]


def check_epochs(what: str, lines: list[Any]) -> list[dict[str, Any]]:
    """Check the lines of epochs.jsonl; values that it lacks become None, and metrics that are null are left out."""
    found: list[dict[str, Any]] = []
    for number, values in enumerate(lines, 1):
        check_values(f"line {number} of {what}", values, EPOCH)
        metrics = {name: value for name, value in (values.get("metrics") or {}).items() if value is not None}
        found.append({**dict.fromkeys(key.strip("()") for key in EPOCH), **values, "metrics": metrics})
        if number > 1 and values["epoch"] <= found[-2]["epoch"]:
            raise UsageError(
                f"line {number} of {what} is damaged: epoch {values['epoch']} follows {found[-2]['epoch']}"
            )
    return found


# ---- the tables

Array = NDArray[Any]
Column = Callable[[Array, int], bool]
"""A test of a column of a table, given the number of ranks."""


def _counts(column: Array, ranks: int) -> bool:
    return column.dtype.kind in "iu" and (not column.size or (column.min() >= 0 and column.max() <= LARGEST))


def _codes(column: Array, ranks: int) -> bool:
    return column.dtype.kind in "iu" and (
        not column.size or (column.min() >= -LARGEST and column.max() <= LARGEST)
    )


def _ranks(column: Array, ranks: int) -> bool:
    """Return True for numbers of ranks, those of each rank one after the other."""
    return _counts(column, ranks) and (
        not column.size or (column.max() < ranks and bool((column[1:] >= column[:-1]).all()))
    )


def _any_rank(column: Array, ranks: int) -> bool:
    return _codes(column, ranks) and (not column.size or bool(column.min() >= -1 and column.max() < ranks))


def _reals(column: Array, ranks: int) -> bool:
    # NaN and infinity are possible: training may have diverged.
    return column.dtype.kind in "iu" or (column.dtype.kind == "f" and column.dtype.itemsize >= 4)


def _times(column: Array, ranks: int) -> bool:
    return _reals(column, ranks) and bool((np.abs(column.astype(np.float64)) <= LONGEST).all())


TABLES: dict[str, dict[str, Column]] = {
    "steps": {
        "rank": _ranks, **dict.fromkeys(("step", "epoch", "count"), _counts), "loss": _reals,
        **dict.fromkeys(("compute", "exchange", "update", "(wait)", "(start)"), _times),
    },
    "updates": {
        "master": _any_rank, "event": _counts, "worker": _any_rank, "tau": _codes, "(piece)": _codes, "(step)": _codes,
        "(gap)": _reals,
    },
    "staleness": {"rank": _any_rank, "tau": _counts},
    "trace": {
        "rank": _ranks, **dict.fromkeys(("kind", "bytes", "comm"), _counts), **dict.fromkeys(("tag", "done"), _codes),
        "peer": _codes, **dict.fromkeys(("start", "end"), _times),
    },
}  # fmt: skip
# Arrays of a table that are not columns.
BESIDE = {"trace": ("names", "lost")}


def check_table(what: str, name: str, table: Mapping[str, Array], ranks: int) -> dict[str, Array]:
    """Check the columns of a table; raise a UsageError if one is missing, has impossible values, or is too short.

    The tables that a user's own strategy writes may have any columns.
    """
    tests = TABLES.get(name, {})
    columns = {key: array for key, array in table.items() if key not in BESIDE.get(name, ())}
    for key, test in tests.items():
        column = key.strip("()")
        if column in columns:
            array = columns[column]
            if array.ndim != 1:
                raise UsageError(f"{what} is damaged: {column} has {array.ndim} dimensions")
            if not test(array, ranks):
                raise UsageError(f"{what} is damaged: {column} has impossible values")
        elif column == key:
            raise UsageError(f"{what} cannot be read: it has no column {column!r}")
    lengths = {len(array) if array.ndim else -1 for array in columns.values()}
    if tests and len(lengths) > 1:
        raise UsageError(f"{what} is damaged: its columns are not equally long")
    if name == "trace":
        _check_trace(what, table, ranks)
    if name == "steps" and "wait" not in table:  # older records
        return {**table, "wait": np.zeros(len(table["rank"]), np.float32)}
    return dict(table)


def _check_trace(what: str, table: Mapping[str, Array], ranks: int) -> None:
    for name, kinds in (("names", "U"), ("lost", "iu")):
        if name not in table or table[name].dtype.kind not in kinds or table[name].ndim != 1:
            raise UsageError(f"{what} is damaged: it has no valid {name!r}")
    if not _counts(table["lost"], ranks):
        raise UsageError(f"{what} is damaged: lost has impossible values")
    if table["kind"].max(initial=0) >= max(1, len(table["names"])):
        raise UsageError(f"{what} is damaged: kind has impossible values")
    rank, done = table["rank"].astype(np.int64), table["done"]
    if not len(rank):
        return
    events = np.bincount(rank, minlength=1)
    if (done >= events[rank]).any() or (table["end"] < table["start"]).any():
        raise UsageError(f"{what} is damaged: events end before they begin, or never")


def check_model(what: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Check the arrays of model.npz: a vector of parameters, and buffers."""
    x = arrays.get("x")
    if x is None or x.ndim != 1 or x.dtype.kind != "f":
        raise UsageError(f"{what} is damaged: it has no vector x of parameters")
    for name, array in arrays.items():
        if name != "x" and not (name.startswith(BUFFER) and array.dtype.kind in "biufc"):
            raise UsageError(f"{what} is damaged: {format_value(name)} is not a buffer of a model")
    return dict(arrays)


# ---- checkpoints

CHECKPOINT_FORMAT = 1


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def _is_real(value: Any) -> bool:
    """Return True for an array of real numbers."""
    return _is_array(value) and value.dtype.kind in "biuf"


def _is_values(value: Any) -> bool:
    """Return True for a value of a strategy: arrays in it, at any depth, are of real numbers."""
    if isinstance(value, dict | list):
        return all(map(_is_values, value.values() if isinstance(value, dict) else value))
    return not _is_array(value) or _is_real(value)


def _numbers(count: int) -> Test:
    """Return a test for a list of this many numbers, which may be infinite or NaN: training may have diverged."""
    return lambda value: (
        isinstance(value, list)
        and len(value) == count
        and all(isinstance(number, int | float) and not isinstance(number, bool) for number in value)
    )


def _weights(value: Any) -> bool:
    """Return True for the parts of a batch that the ranks compute."""
    return (
        _is_array(value) and value.ndim == 1 and value.dtype.kind == "f" and bool((value >= 0).all())
        and (not value.size or 0 < value.sum() < LARGEST)
    )  # fmt: skip


def _is_any_number(value: Any) -> bool:
    """Return True for a number, which may be infinite or NaN."""
    return isinstance(value, int | float) and not isinstance(value, bool)


# What the response to divergence knows.
RECOVERY: Tests = {
    "(stopped)": is_text, "messages": list_of(is_text), "(_good)": _is_real, "(_start)": _is_real, "norm": _is_any_number,
    "_guard": {
        "still": is_truth, "_seen": is_whole, "_alike": is_whole,
        **dict.fromkeys(("mean", "_level", "_first", "_best"), _is_any_number),
    },
}  # fmt: skip
# The state of one rank, as a checkpoint holds it; rank 0's has more.
RANK_STATE: Tests = {
    "ranks": _rank_count, "together": is_truth, "position": {"epoch": is_whole, "turn": is_whole, "count": is_whole},
    "buffers": object_of(_is_array), "rate": is_number, "(recovery)": RECOVERY, "epoch_sums": _numbers(2),
    "epoch_losses": _numbers(3), "seconds": object_of(is_seconds), "elapsed": is_number, "counts": list_of(is_whole, 4),
    "updates": list_of({"start": or_null(is_whole), "stop": or_null(is_whole), "state": object_of(_is_real)}),
    "rows": object_of(is_whole), "weights": or_null(_weights), "kept": object_of(object_of(_is_values)),
}  # fmt: skip
FIRST_STATE: Tests = {
    "x": _is_array, "history": list_of(EPOCH), "findings": is_object, "remarks": list_of(is_text), "tables": is_object,
}  # fmt: skip


def check_checkpoint(
    what: str, state: dict[str, Any], *, rank: int, number: int, arrays: bool
) -> dict[str, Any]:
    """Check the state of a rank in its part of a checkpoint; without `arrays`, those have not been read."""
    if state.get("format") != CHECKPOINT_FORMAT:
        raise UsageError(
            f"{what} has format {format_value(state.get('format'))}; this version of paceline reads {CHECKPOINT_FORMAT}"
        )
    check_values(what, state, {**RANK_STATE, **(FIRST_STATE if rank == 0 else {})})
    if (state.get("rank"), state.get("number")) != (rank, number) or rank >= state["ranks"]:
        raise UsageError(f"{what} is damaged: it is another rank's, or of another checkpoint")
    if rank == 0:
        names = [key.strip("()") for key in EPOCH]
        state["history"] = [{name: epoch.get(name) for name in names} for epoch in state["history"]]
    x = state.get("x")
    if arrays and x is not None and (not _is_array(x) or x.ndim != 1 or x.dtype.kind != "f"):
        raise UsageError(f"{what} is damaged: x is not a vector of parameters")
    return state
