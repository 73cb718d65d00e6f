"""Loading and applying the trained model of a run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline import names as spec
from paceline.data import (
    IGNORED,
    ArraySplit,
    Dataset,
    Inputs,
    Several,
    Split,
    check_inputs,
    check_labels,
    chunks,
    fields_of,
    has_several,
    load,
)
from paceline.errors import UntrustedError, UsageError, unknown
from paceline.models import Model, as_model, make, tally
from paceline.record import Run

Array = NDArray[Any]
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """The scores of each sample, the predicted classes (empty for regression), and accuracy and loss against the labels."""

    scores: Array
    """One row per sample, as the model returns it."""
    classes: Array
    """In the shape of the labels: a class for each sample, or for each of its words or pixels; 0 or 1 for no or yes."""
    accuracy: float | None
    loss: float | None
    class_names: tuple[str, ...] = ()
    """The names of the classes, by number; empty if they have none besides their numbers."""
    cut: str | None = None
    """Where the run was cut whose last checkpoint was used; None for a complete run."""


def load_model(run: str | Path, *, model: Any = None, data: Any = None, trust: bool = False) -> Model:
    """Load the trained model of a run; `model` is needed if the run was given its model as an object, not by name.

    The model is made from what the record says about the data: shapes and classes, no samples. `data` is needed only
    for a function of your own that makes its model from the samples themselves. A record that names code of its own
    (`module:attribute`) is refused unless `trust`: making that model runs the code.

    >>> import tempfile
    >>> from paceline import fit
    >>> with tempfile.TemporaryDirectory() as runs:
    ...     fitted = fit("mlp:8", "iris", strategy="serial", epochs=2, batch=10, runs=runs, quiet=True)
    ...     model = load_model(fitted.run)
    >>> bool((model.x == fitted.model.x).all())
    True
    """
    source = Run(run)
    config = source.config
    dataset = _make_empty_dataset(source, trust) if data is None else load(data)
    seeded = {"seed": config["seed"], "dtype": config["dtype"]}
    if model is not None:
        made = as_model(model, dataset, **seeded)
    elif "model" in config.get("objects", ()):
        raise UsageError(
            f"the model of {source.folder} was given as an object ({config['model']}): give one like it, as model=…"
        )
    else:
        try:
            with spec.refuse_user_code(str(source.folder), trust=trust):
                made = make(spec.parse("models", config["model"]), dataset, **seeded)
        except UntrustedError:
            raise
        except (UsageError, TypeError) as error:
            raise UsageError(
                f"the model {config['model']!r} of {source.folder} cannot be rebuilt: {error}"
            ) from None
    source.restore(made)
    return made


def predict(
    run: str | Path, *, data: Any = None, split: str | None = None, model: Any = None, trust: bool = False
) -> Predicted:
    """Apply the trained model of a run to samples: the run's own test samples, or those of other `data`.

    `split` is train, validation, test or all; by default test for the run's own data and all for other data.
    `model` is needed if the run was given its model as an object. `trust` allows the record to name code of its own
    (`module:attribute`), which is then run.

    >>> import tempfile
    >>> from paceline import fit
    >>> with tempfile.TemporaryDirectory() as runs:
    ...     fitted = fit("mlp:8", "iris", strategy="serial", epochs=2, batch=10, runs=runs, quiet=True)
    ...     predicted = predict(fitted.run)
    >>> predicted.scores.shape, predicted.accuracy == fitted.test_accuracy
    ((15, 3), True)
    """
    if split not in (None, "all", *SPLITS):
        raise unknown("split", str(split), (*SPLITS, "all"))
    source = Run(run)
    config = source.config
    name, parts = _samples(source, data, split or ("test" if data is None else "all"), trust)
    trained = load_model(run, model=model, trust=trust)
    count = sum(map(len, parts))
    if not count:
        raise UsageError(f"{name} has no {split or 'test'} samples")
    scores, loss, weight, right, answers = [], 0.0, 0.0, 0, 0
    keeps = getattr(trained, "keeps", None)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # a model that diverged
        for part in parts:
            for inputs, labels in chunks(part, dtype=trained.x.dtype, keeps=keeps):
                scores.append(np.array(trained.predict(inputs)))
                found = tally(trained, inputs, labels)
                loss, weight = loss + found.loss, weight + found.weight
                right, answers = right + found.right, answers + found.answers
    whole = np.concatenate(scores)
    classes = np.empty(0, np.int64)
    if answers or config["classes"]:
        classify = getattr(trained, "classify", None)
        classes = whole.argmax(axis=1) if classify is None else classify(whole, parts[0].label_shape)
    return Predicted(
        scores=whole,
        classes=classes,
        accuracy=right / answers if answers else None,
        loss=loss / weight if weight else None,
        class_names=tuple(config.get("class_names") or ()),
        cut=source.cut,
    )


def _make_empty_dataset(run: Run, trust: bool) -> Dataset:
    """Return a data set with the shapes and classes of the run's data, without samples.

    Runs of earlier versions do not record the shapes; their data set is read.
    """
    config = run.config
    if "shape" not in config:  # written by an earlier version
        with spec.refuse_user_code(str(run.folder), trust=trust):
            return load(config["data"])
    shape, label_shape = tuple(config["shape"]), tuple(config["label_shape"])
    labels = np.empty((0, *label_shape), np.int64 if config["classes"] else np.float32)
    inputs: Inputs = np.empty((0, *shape), np.float32)
    if fields := config.get("inputs"):
        arrays = [np.empty((0, *field["shape"]), field["dtype"]) for field in fields]
        names = [field["name"] for field in fields if field["name"]]
        inputs = Several(arrays, names) if names or len(arrays) > 1 else arrays[0]
    none = ArraySplit(inputs, labels)
    return Dataset(
        name=config["data"], shape=shape, classes=config["classes"], train=none, validation=none, test=none,
        label_shape=label_shape, class_names=tuple(config["class_names"]), ignored=config.get("ignored"),
    )  # fmt: skip


def _samples(run: Run, data: Any, split: str, trust: bool) -> tuple[str, list[Split]]:
    """Return the name of the data and the requested parts, checked against the run's model."""
    if data is None and "data" in run.config.get("objects", ()):
        raise UsageError(f"the data of {run.folder} were given as an object: give the samples, as data=…")
    if split == "all" and isinstance(data, tuple) and len(data) == 2 and _is_array(data[1]):
        inputs, labels = data
        if _is_array(inputs) or (run.config.get("inputs") and isinstance(inputs, tuple | Mapping)):
            return "arrays", [_pair(run, Several.of(inputs), np.asarray(labels))]
    with spec.refuse_user_code(str(run.folder), trust=trust or data is not None):
        dataset = _load_like(run, data, whole=split == "all")
    numbers = _check(run, dataset)
    wanted = SPLITS if split == "all" else (split,)
    parts: list[Split] = [getattr(dataset, part) for part in wanted]
    parts = [part for part in parts if len(part)]
    return dataset.name, parts if numbers is None else [Renumbered(part, numbers) for part in parts]


class Renumbered:
    """Samples whose classes have other numbers: class c of the split becomes class `numbers[c]`."""

    def __init__(self, split: Split, numbers: Array) -> None:
        self.split, self.numbers = split, numbers
        self.shape, self.label_shape, self.label_dtype = split.shape, split.label_shape, split.label_dtype
        self.fields = fields_of(split)

    def __len__(self) -> int:
        return len(self.split)

    def take(self, indices: Array, inputs: Inputs, labels: Array) -> None:
        """Write the samples at `indices` into `inputs` and their renumbered classes into `labels`."""
        self.split.take(indices, inputs, labels)
        counted = labels != IGNORED
        labels[counted] = self.numbers[labels[counted]]


def _load_like(run: Run, data: Any, *, whole: bool) -> Dataset:
    """Load the run's own data, or other data with labels of the same kind; if `whole`, undivided where possible."""
    choices: list[dict[str, Any]] = [{}]
    file = isinstance(data, str | os.PathLike) and "target" in run.config  # earlier records do not say it
    if data is None or file:
        choices.insert(0, {"labels": "classes" if run.config["classes"] else "numbers"})
    if whole and data is not None:
        choices = [*(choice | {"validation": 0, "test": 0} for choice in choices), *choices]
    for options in choices[:-1]:
        with contextlib.suppress(UsageError):  # not every loader has these options
            return load(run.config["data"] if data is None else data, **options)
    return load(run.config["data"] if data is None else data)


def _pair(run: Run, inputs: Inputs, labels: Array) -> Split:
    classes = run.config["classes"]
    check_inputs("arrays", inputs)
    if classes:
        ignored = run.config.get("ignored")
        check_labels(
            "arrays",
            labels,
            len(inputs),
            classes,
            each=False,
            ignored=IGNORED if ignored is None else ignored,
        )
    split = ArraySplit(inputs, labels if classes else np.asarray(labels, np.float64))
    _check_shapes(run, "arrays", split)
    return split


def _check(run: Run, data: Dataset) -> Array | None:
    """Check that the run's model can take the samples and labels.

    Returns the run's numbers of the classes where the data have only some of them, and so number them differently.
    """
    config = run.config
    if "shape" not in config or data is None:
        return None
    _check_shapes(run, data.name, data.train)
    if config["classes"] and not data.classes:
        raise UsageError(
            f"{data.name} has numbers as labels; {run.folder} was trained on {config['classes']} classes"
        )
    if not config["classes"] and data.classes:
        raise UsageError(f"{data.name} has {data.classes} classes; {run.folder} was trained on numbers")
    names = tuple(config["class_names"])
    if not names and "target" in config and all(name.isdigit() for name in data.class_names):
        names = tuple(map(str, range(config["classes"])))  # its labels were these numbers
    if data.class_names and names and data.class_names != names:
        if set(data.class_names) <= set(names):
            return np.array([names.index(name) for name in data.class_names])
        raise UsageError(
            f"{data.name} has the classes {_list_names(data.class_names)}; {run.folder} was trained on {_list_names(names)}"
        )
    if config["classes"] and data.classes > config["classes"]:
        raise UsageError(
            f"{data.name} has {data.classes} classes; {run.folder} was trained on {config['classes']}"
        )
    return None


def _check_shapes(run: Run, name: str, split: Split) -> None:
    fields = run.config.get("inputs") or []
    if has_several(split) or len(fields) > 1 or any(field["name"] for field in fields):
        wants = [(field["name"], tuple(field["shape"])) for field in fields]
        gets = [(field.name, field.shape) for field in fields_of(split)]
        if wants != gets:
            raise UsageError(
                f"{name} has the inputs {_describe_fields(gets)}; {run.folder} was trained on "
                f"{_describe_fields(wants) if wants else _size(tuple(run.config['shape']))}"
            )
    for what, got, recorded in (
        ("samples", split.shape, "shape"),
        ("labels", split.label_shape, "label_shape"),
    ):
        wanted = tuple(run.config.get(recorded, got))
        if got != wanted:
            raise UsageError(
                f"{name} has {what} of {_size(got)}; {run.folder} was trained on {_size(wanted)}"
            )


def _list_names(names: tuple[str, ...]) -> str:
    return ", ".join(names if len(names) <= 20 else (*names[:20], "…"))


def _describe_fields(fields: list[tuple[str, tuple[int, ...]]]) -> str:
    return ", ".join(f"{name} of {_size(shape)}" if name else _size(shape) for name, shape in fields)


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "one number"


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") or isinstance(value, list)
