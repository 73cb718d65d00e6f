"""What can be wrong with a user's samples and labels; one line each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data._cache import New, cached
from paceline.data._dataset import ArraySplit, Dataset, Split, divide
from paceline.errors import UsageError

Array = NDArray[Any]

# Values looked at together when a large array is searched for NaN.
AT_ONCE = 1 << 20
# Networks compute in float32 unless told otherwise: a larger value would become infinite on its way there.
LARGEST = float(np.finfo(np.float32).max)


def check_inputs(what: str, inputs: Array) -> None:
    """Refuse no samples, samples without values, values that are no numbers, NaN, infinity, too large ones.

    >>> check_inputs("a.npz", np.array([[1.0, 2.0], [3.0, np.nan]]))
    Traceback (most recent call last):
    paceline.errors.UsageError: a.npz: features must be finite; sample 1 has nan in feature 1
    """
    if inputs.ndim == 0 or inputs.size == 0:
        raise UsageError(f"{what}: there are no samples; the inputs have shape {inputs.shape}")
    if inputs.dtype.kind not in "biuf":
        raise UsageError(f"{what}: features must be real numbers; got {inputs.dtype}")
    if inputs.dtype.kind != "f":
        return
    rows = max(1, AT_ONCE // max(1, inputs[0].size))
    for start in range(0, len(inputs), rows):
        check_values(f"{what}: features", inputs[start : start + rows], start)


def check_values(what: str, values: Array, first: int | Array = 0) -> None:
    """Refuse NaN, infinity and what float32 cannot hold; row r is sample `first + r`, or sample `first[r]`.

    >>> check_values("labels", np.array([1.0, 1e300]), first=7)
    Traceback (most recent call last):
    paceline.errors.UsageError: labels must be within float32's range, 3.4e+38 either way; sample 8 has 1e+300
    """
    fine = np.isfinite(values) if values.dtype.itemsize <= 4 else np.abs(values) <= LARGEST
    if fine.all():
        return
    row, *rest = np.argwhere(~fine)[0].tolist()
    value = values[(row, *rest)]
    sample = first + row if isinstance(first, int) else int(first[row])
    rule = f"within float32's range, {LARGEST:.2g} either way" if np.isfinite(value) else "finite"
    where = f" in feature {', '.join(map(str, rest))}" if rest else ""
    raise UsageError(f"{what} must be {rule}; sample {sample} has {value}{where}")


def check_labels(
    what: str, labels: Array, samples: int, classes: int | None = None, *, each: bool = True
) -> int:
    """Refuse labels that do not fit their samples; return the number of classes, 0 for real numbers.

    With `each`, every class must have a sample.

    >>> check_labels("a.npz", np.array([0, 1, 1, 2]), 4)
    3
    >>> check_labels("a.npz", np.array([0, 2, 2]), 3)
    Traceback (most recent call last):
    paceline.errors.UsageError: a.npz: every class needs a sample; class 1 of the classes 0 to 2 has none
    """
    if labels.ndim == 0 or len(labels) != samples:
        count = len(labels) if labels.ndim else "one"
        raise UsageError(
            f"{what}: as many labels as samples are needed; got {samples} samples, {count} labels"
        )
    if labels.dtype.kind == "f":
        if classes:
            raise UsageError(f"{what}: labels of {classes} classes must be whole numbers; got {labels.dtype}")
        check_values(f"{what}: labels", labels)
        return 0
    if labels.dtype.kind not in "biu":
        raise UsageError(f"{what}: labels must be whole numbers or real numbers; got {labels.dtype}")
    if labels.ndim != 1:
        raise UsageError(f"{what}: one class is needed for each sample; got labels of shape {labels.shape}")
    lowest, highest = int(labels.min()), int(labels.max())
    last = highest if classes is None else classes - 1
    if lowest < 0 or highest > last:
        bad = int(np.argmax((labels < 0) | (labels > last)))
        raise UsageError(f"{what}: labels must be from 0 to {max(last, 0)}; sample {bad} has {labels[bad]}")
    present = np.unique(labels)
    if each and len(present) < last + 1:
        missing = next(c for c, p in enumerate([*present.tolist(), -1]) if c != p)
        raise UsageError(
            f"{what}: every class needs a sample; class {missing} of the classes 0 to {last} has none"
        )
    return last + 1


Parts = dict[str, tuple[Array, Array]]
"""Inputs and labels of `train` and perhaps of `validation` and `test`."""


def check_parts(what: str, parts: Parts, classes: int | None = None) -> tuple[Parts, int, tuple[str, ...]]:
    """The parts with names turned to numbers, the number of classes, and the names of the classes.

    >>> pets = np.array(["dog", "cat", "dog"])
    >>> parts, classes, names = check_parts("pets", {"train": (np.zeros((3, 1)), pets)})
    >>> parts["train"][1].tolist(), classes, names
    ([1, 0, 1], 2, ('cat', 'dog'))
    """
    parts, names = _encode(parts)
    train = parts["train"][0]
    for part, (inputs, labels) in parts.items():
        if part != "train" and len(inputs) == len(labels) == 0:
            continue
        check_inputs(what, inputs)
        if inputs.shape[1:] != train.shape[1:]:
            raise UsageError(
                f"{what}: samples must have one shape; train has {train.shape[1:]}, {part} {inputs.shape[1:]}"
            )
        classes = check_labels(what, labels, len(inputs), classes, each=part == "train")
    return parts, classes or 0, names


def _encode(parts: Parts) -> tuple[Parts, tuple[str, ...]]:
    """Labels that are names become the numbers of the sorted names of train; other labels stay."""
    if parts["train"][1].dtype.kind not in "US":
        return parts, ()
    names = np.unique(parts["train"][1].astype(str))
    encoded: Parts = {}
    for part, (inputs, labels) in parts.items():
        strange = sorted(set(labels.astype(str).tolist()) - set(names.tolist()))
        if strange:
            raise UsageError(f"{part} has a class that train has not: {strange[0]!r}")
        encoded[part] = inputs, np.searchsorted(names, labels.astype(str))
    return encoded, tuple(names.tolist())


# ---- Samples and labels of a user's file: checked once, kept in the cache, memory-mapped from then on.


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The parts that a file has, with the number and names of its classes."""

    parts: Parts
    classes: int
    class_names: tuple[str, ...]

    def dataset(
        self, name: str, *, validation: float, test: float, seed: int, scale: float | None = None
    ) -> Dataset:
        """A data set; a part that the file does not have is cut from train."""
        splits: dict[str, Split] = {part: ArraySplit(*pair, scale=scale) for part, pair in self.parts.items()}
        return divide(
            name,
            splits["train"],
            self.parts["train"][1],
            classes=self.classes,
            validation=splits.get("validation", validation),
            test=splits.get("test", test),
            seed=seed,
            class_names=self.class_names,
        )


def read_stored(entry: str, fingerprint: str, read: Callable[[], tuple[str, Parts]]) -> Stored:
    """What is in the cache; `read` gives a name for errors and the parts, when they are not there yet."""

    def build(new: New) -> None:
        what, parts = read()
        parts, classes, names = check_parts(what, parts)
        for part, (inputs, labels) in parts.items():
            if len(inputs):
                fill(new, part, inputs, labels)
        new("classes", (1,), np.int64)[:] = classes
        if names:
            new("class_names", (len(names),), np.array(names).dtype)[:] = names

    arrays = cached(entry, fingerprint, build)
    return Stored(
        parts={
            part: (arrays[f"{part}_inputs"], arrays[f"{part}_labels"])
            for part in ("train", "validation", "test")
            if f"{part}_inputs" in arrays
        },
        classes=int(arrays["classes"][0]),
        class_names=tuple(map(str, arrays.get("class_names", ()))),
    )


def fill(new: New, part: str, inputs: Array, labels: Array) -> None:
    """Write one part in the types that batches are made from: bytes or floats, int64 or real labels."""
    kept = inputs.dtype == np.uint8 or inputs.dtype.kind == "f"
    new(f"{part}_inputs", inputs.shape, inputs.dtype.newbyteorder("=") if kept else np.float32)[...] = inputs
    real = labels.dtype.kind == "f"
    new(f"{part}_labels", labels.shape, labels.dtype.newbyteorder("=") if real else np.int64)[...] = labels
