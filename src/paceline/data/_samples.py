"""Samples and labels from users: checks, and whether labels are classes or values.

A file's samples are checked once, stored in the cache and memory-mapped from then on (`read_stored`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from paceline.data._cache import New, cached
from paceline.data._dataset import ArraySplit, Dataset, Split, divide
from paceline.errors import UsageError

Array = NDArray[Any]

Target = Literal["classes", "values"]
"""The kind of labels: the numbers of classes, or real values to be predicted (regression)."""

# Whole numbers in a table count as classes up to this many different ones, or when they are 0, 1, ..., k - 1.
FEW = 20
# Values checked at once when a large array is searched for NaN.
AT_ONCE = 1 << 20
# Networks compute in float32 by default: a larger value would overflow to infinity.
LARGEST = float(np.finfo(np.float32).max)


def check_inputs(what: str, inputs: Array) -> None:
    """Check that there are samples, and that their features are finite numbers within the range of float32.

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
    """Check that all values are finite and fit into float32; row r is sample `first + r`, or sample `first[r]`.

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
    what: str, labels: Array, samples: int, classes: int | None = None, *, each: bool = True, hint: str = ""
) -> int:
    """Check that the labels fit their samples; return the number of classes, 0 for real values.

    With `each`, every class must have a sample. `hint` is added to the message about labels that are not classes.

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
        raise UsageError(
            f"{what}: one class is needed for each sample; got labels of shape {labels.shape}{hint}"
        )
    lowest, highest = int(labels.min()), int(labels.max())
    last = highest if classes is None else classes - 1
    if lowest < 0 or highest > last:
        bad = int(np.argmax((labels < 0) | (labels > last)))
        raise UsageError(
            f"{what}: labels must be from 0 to {max(last, 0)}; sample {bad} has {labels[bad]}{hint}"
        )
    present = np.unique(labels)
    if each and len(present) < last + 1:
        missing = next(c for c, p in enumerate([*present.tolist(), -1]) if c != p)
        raise UsageError(
            f"{what}: every class needs a sample; class {missing} of the classes 0 to {last} has none{hint}"
        )
    return last + 1


Parts = dict[str, tuple[Array, Array]]
"""Inputs and labels of `train`, and optionally of `validation` and `test`."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Samples that can be trained on: the parts, with classes as numbers from 0, and the kind of labels."""

    parts: Parts
    classes: int
    """The number of classes; 0 when the labels are values."""
    class_names: tuple[str, ...] = ()
    remark: str = ""
    """The assumption about the labels, if it was a guess."""

    def dataset(
        self, name: str, *, validation: float, test: float, seed: int, scale: float | None = None
    ) -> Dataset:
        """Create a data set; a missing part is cut from train."""
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
            remarks=(self.remark,) if self.remark else (),
        )


def check_parts(
    what: str,
    parts: Parts,
    *,
    classes: int | None = None,
    target: Target | None = None,
    column: str | None = None,
) -> Checked:
    """Check all parts, and convert their labels to class numbers or values, according to `target`.

    Without `target`, text and integers are classes and floats are values. The labels of a table have no type: with
    `column`, the name of the label's column, whole numbers are classes or values by how many different ones there are.

    >>> pets = np.array(["dog", "cat", "dog"])
    >>> checked = check_parts("pets", {"train": (np.zeros((3, 1)), pets)})
    >>> checked.parts["train"][1].tolist(), checked.classes, checked.class_names
    ([1, 0, 1], 2, ('cat', 'dog'))
    """
    remark = ""
    if target is None and (not classes or parts["train"][1].dtype.kind in "US"):
        target, remark = _guess(what, parts["train"][1], column)
    names: tuple[str, ...] = ()
    hint = ""
    if target == "classes":
        parts, names = _number(what, parts)
    elif target == "values":
        parts = {part: (inputs, _as_values(what, labels)) for part, (inputs, labels) in parts.items()}
    else:
        hint = "; target=values takes whole numbers as values, target=classes as names of classes"
    train = parts["train"][0]
    for part, (inputs, labels) in parts.items():
        if part != "train" and inputs.shape[:1] == labels.shape[:1] == (0,):
            continue
        check_inputs(what, inputs)
        if inputs.shape[1:] != train.shape[1:]:
            raise UsageError(
                f"{what}: samples must have one shape; train has {train.shape[1:]}, {part} {inputs.shape[1:]}"
            )
        classes = check_labels(what, labels, len(inputs), classes, each=part == "train", hint=hint)
    return Checked(parts=parts, classes=classes or 0, class_names=names, remark=remark)


def _guess(what: str, labels: Array, column: str | None) -> tuple[Target | None, str]:
    """Return the assumed kind of labels (None: integers, still to be checked), and a remark if it may be wrong."""
    if labels.dtype.kind in "US":
        return "classes", ""
    if labels.dtype.kind != "f":
        return None, ""
    if labels.ndim != 1 or len(labels) == 0 or not (np.isfinite(labels) & (labels == np.round(labels))).all():
        return "values", ""
    different = np.unique(labels)
    count = len(different)
    repeated = 2 * count <= len(labels)
    likely = repeated and (count <= FEW or bool((different == np.arange(count)).all()))
    if column is None:
        if not likely:
            return "values", ""
        taken: Target = "values"
        where = f"the labels are whole numbers stored as {labels.dtype}"
    else:
        taken = "classes" if likely else "values"
        where = f"column {column!r} holds whole numbers"
    other = "values" if taken == "classes" else "classes"
    numbers = f"{count:,} different {'ones' if count > 1 else 'one'} in {len(labels):,} samples"
    return taken, f"{what}: {where}, {numbers}: taken as {taken}; target={other} makes them {other}"


def _number(what: str, parts: Parts) -> tuple[Parts, tuple[str, ...]]:
    """Number the classes in sorted order; return the numbered parts, and the names of classes that are not 0, 1, …."""
    train = parts["train"][1]
    if train.ndim != 1:
        raise UsageError(f"{what}: one class is needed for each sample; got labels of shape {train.shape}")
    text = train.dtype.kind in "US"
    if not text:
        for _, labels in parts.values():
            if labels.dtype.kind == "f":
                check_values(f"{what}: labels", labels)
    known = np.unique(train.astype(str) if text else train)
    numbered: Parts = {}
    for part, (inputs, labels) in parts.items():
        wanted = labels.astype(str) if text else labels
        strange = np.setdiff1d(wanted, known)
        if len(strange):
            raise UsageError(f"{what}: {part} has a class that train does not have: {strange.tolist()[0]!r}")
        numbered[part] = inputs, np.searchsorted(known, wanted)
    if text:
        return numbered, tuple(known.tolist())
    if (known == np.arange(len(known))).all():
        return numbered, ()
    return numbered, tuple(f"{number:.15g}" for number in known.tolist())


def _as_values(what: str, labels: Array) -> Array:
    if labels.dtype.kind not in "biuf":
        raise UsageError(f"{what}: target=values needs numbers; the labels are {labels.dtype}")
    return labels if labels.dtype.kind == "f" else labels.astype(np.float64)


def read_stored(entry: str, fingerprint: str, read: Callable[[], Checked]) -> Checked:
    """Return the checked samples of a file from the cache; `read` creates them if they are not there yet."""

    def build(new: New) -> None:
        checked = read()
        for part, (inputs, labels) in checked.parts.items():
            if len(inputs):
                fill(new, part, inputs, labels)
        new("classes", (1,), np.int64)[:] = checked.classes
        for name, texts in (("class_names", checked.class_names), ("remark", (checked.remark,))):
            if any(texts):
                new(name, (len(texts),), np.array(texts).dtype)[:] = texts

    arrays = cached(entry, fingerprint, build)
    return Checked(
        parts={
            part: (arrays[f"{part}_inputs"], arrays[f"{part}_labels"])
            for part in ("train", "validation", "test")
            if f"{part}_inputs" in arrays
        },
        classes=int(arrays["classes"][0]),
        class_names=tuple(map(str, arrays.get("class_names", ()))),
        remark="".join(map(str, arrays.get("remark", ()))),
    )


def fill(new: New, part: str, inputs: Array, labels: Array) -> None:
    """Write one part in the types that batches use: bytes or floats, and int64 or floating labels."""
    as_stored = inputs.dtype == np.uint8 or inputs.dtype.kind == "f"
    input_dtype = inputs.dtype.newbyteorder("=") if as_stored else np.float32
    label_dtype = labels.dtype.newbyteorder("=") if labels.dtype.kind == "f" else np.int64
    new(f"{part}_inputs", inputs.shape, input_dtype)[...] = inputs
    new(f"{part}_labels", labels.shape, label_dtype)[...] = labels
