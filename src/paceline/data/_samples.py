"""Samples and labels from users: checks, and whether labels are classes or numbers.

A file's samples are checked once, stored in the cache and memory-mapped from then on (`read_stored`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from paceline.data._cache import New, load_or_build
from paceline.data._dataset import IGNORED, ArraySplit, Dataset, Inputs, Several, Split, divide
from paceline.errors import UsageError, unknown

Array = NDArray[Any]

Labels = Literal["classes", "numbers"]
"""The kind of labels: classes (classification), or numbers to be predicted (regression)."""
FORMER: dict[str | None, Labels] = {"classes": "classes", "values": "numbers"}
"""The kinds by the names that the option `target` gave them."""

# Whole numbers in a table count as classes up to this many different ones, or when they are 0, 1, ..., k - 1.
FEW = 20
# Values checked at once when a large array is searched for NaN.
AT_ONCE = 1 << 20
# Networks compute in float32 by default: a larger value would overflow to infinity.
LARGEST = float(np.finfo(np.float32).max)


def choose_labels(what: str, labels: str | None, target: str | None) -> Labels | None:
    """Return the kind of labels that the option `labels` asks for, or its former name `target`; None: not given.

    >>> choose_labels("a.npz", None, "values")
    'numbers'
    """
    if labels not in (None, "classes", "numbers"):
        raise unknown(f"labels of {what}", str(labels), ("classes", "numbers"))
    if target is not None and target not in FORMER:
        raise unknown(f"target of {what}", str(target), tuple(map(str, FORMER)))
    former = None if target is None else FORMER[target]
    if None not in (labels, former) and labels != former:
        raise UsageError(
            f"{what}: target={target} and labels={labels} contradict each other; give labels only"
        )
    return former if labels is None else labels  # type: ignore[return-value]


def check_inputs(what: str, inputs: Inputs) -> None:
    """Check that there are samples, and that their features are finite numbers within the range of float32.

    >>> check_inputs("a.npz", np.array([[1.0, 2.0], [3.0, np.nan]]))
    Traceback (most recent call last):
    paceline.errors.UsageError: a.npz: features must be finite; sample 1 has nan in feature 1
    """
    if isinstance(inputs, Several):
        _check_several(what, inputs)
        return
    if inputs.ndim == 0 or inputs.size == 0:
        raise UsageError(f"{what}: there are no samples; the inputs have shape {inputs.shape}")
    if inputs.dtype.kind not in "biuf":
        raise UsageError(f"{what}: features must be real numbers; got {inputs.dtype}")
    if inputs.dtype.kind != "f":
        return
    rows = max(1, AT_ONCE // max(1, inputs[0].size))
    for start in range(0, len(inputs), rows):
        check_values(f"{what}: features", inputs[start : start + rows], start)


def _check_several(what: str, inputs: Several) -> None:
    if not inputs.arrays:
        raise UsageError(f"{what}: there are no inputs")
    names = inputs.names or tuple(f"input {number}" for number in range(len(inputs.arrays)))
    sizes = {name: array.shape[:1] for name, array in zip(names, inputs.arrays, strict=True)}
    for name, array in zip(names, inputs.arrays, strict=True):
        if array.shape[:1] != inputs.arrays[0].shape[:1]:
            lengths = ", ".join(f"{one} {size[0] if size else 'one'}" for one, size in sizes.items())
            raise UsageError(f"{what}: all inputs need the same number of samples; got {lengths}")
        check_inputs(f"{what}, {name}", array)


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
    what: str,
    labels: Array,
    samples: int,
    classes: int | None = None,
    *,
    each: bool = True,
    hint: str = "",
    ignored: int = IGNORED,
) -> int:
    """Check that the labels fit their samples; return the number of classes, 0 for real numbers.

    With `each`, every class must have a sample, unless samples have several labels: some words of a vocabulary, or some
    kinds of pixels, may never occur. Labels of -100 (`ignored`) count for nothing. `hint` is added to the message about
    labels that are not classes.

    >>> check_labels("a.npz", np.array([0, 1, 1, 2]), 4)
    3
    >>> check_labels("a.npz", np.array([[0, 5, 1], [2, -100, -100]]), 2)
    6
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
    if labels.size == 0:
        raise UsageError(f"{what}: there are no labels; they have shape {labels.shape}")
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or lowest <= ignored <= highest:
        counted = labels[labels != ignored]
        if not counted.size:
            raise UsageError(f"{what}: every label is {ignored}, which counts for nothing")
        lowest, highest = int(counted.min()), int(counted.max())
    last = highest if classes is None else classes - 1
    if lowest < 0 or highest > last:
        bad, *rest = np.argwhere(((labels < 0) | (labels > last)) & (labels != ignored))[0].tolist()
        where = f" at {', '.join(map(str, rest))}" if rest else ""
        raise UsageError(
            f"{what}: labels must be from 0 to {max(last, 0)}; sample {bad} has {labels[(bad, *rest)]}{where}{hint}"
        )
    if each and labels.ndim == 1:
        present = np.unique(labels[labels != ignored] if ignored <= last else labels)
        if ignored < 0 and len(present) < last + 1:
            missing = next(c for c, p in enumerate([*present.tolist(), -1]) if c != p)
            raise UsageError(
                f"{what}: every class needs a sample; class {missing} of the classes 0 to {last} has none{hint}"
            )
    return last + 1


def find_ignored(labels: Array, ignored: int = IGNORED) -> int | None:
    """Return the label that counts for nothing if it occurs, otherwise None."""
    return ignored if labels.dtype.kind in "iu" and bool((labels == ignored).any()) else None


Parts = dict[str, tuple[Inputs, Array]]
"""Inputs and labels of `train`, and optionally of `validation` and `test`."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Samples that can be trained on: the parts, with classes as numbers from 0, and the kind of labels."""

    parts: Parts
    classes: int
    """The number of classes; 0 when the labels are numbers."""
    class_names: tuple[str, ...] = ()
    remark: str = ""
    """The assumption about the labels, if it was a guess."""
    ignored: int | None = None
    """The label that counts for nothing, if some label is it."""

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
            ignored=self.ignored,
        )


def check_parts(
    what: str,
    parts: Parts,
    *,
    classes: int | None = None,
    labels: Labels | None = None,
    column: str | None = None,
    ignored: int = IGNORED,
) -> Checked:
    """Check all parts, and convert their labels to class numbers or real numbers, according to `labels`.

    Without `labels`, text and integers are classes and floats are numbers. The labels of a table have no type: with
    `column`, the name of the label's column, whole numbers are classes or numbers by how many different ones there are.
    `ignored`: the label that counts for nothing.

    >>> pets = np.array(["dog", "cat", "dog"])
    >>> checked = check_parts("pets", {"train": (np.zeros((3, 1)), pets)})
    >>> checked.parts["train"][1].tolist(), checked.classes, checked.class_names
    ([1, 0, 1], 2, ('cat', 'dog'))
    """
    for part, (inputs, some) in parts.items():
        _check_counted(what, inputs, some, part)
    remark, asked = "", labels is not None or bool(classes)
    if labels is None and (not classes or parts["train"][1].dtype.kind in "US"):
        labels, remark = _guess(what, parts["train"][1], column)
    names: tuple[str, ...] = ()
    hint = ""
    if labels == "classes":
        parts, names = _number(what, parts, ignored)
    elif labels == "numbers":
        parts = {part: (inputs, _as_numbers(what, some)) for part, (inputs, some) in parts.items()}
    else:
        hint = "; labels=numbers takes whole numbers as numbers, labels=classes as names of classes"
    train, given, found = parts["train"][0], bool(classes), None
    for part, (inputs, some) in parts.items():
        if part != "train" and len(inputs) == len(some) == 0:
            continue
        check_inputs(what, inputs)
        _check_alike(what, train, inputs, part)
        most = None if some.ndim > 1 and not given else classes  # a word may occur in the test samples only
        count = check_labels(what, some, len(inputs), most, each=part == "train", hint=hint, ignored=ignored)
        classes = max(count, classes or 0)
        found = find_ignored(some, ignored) if found is None else found
    if not asked and labels is None and classes:
        remark = describe_classes(what, parts["train"][1].shape[1:], classes)
    return Checked(parts=parts, classes=classes or 0, class_names=names, remark=remark, ignored=found)


def describe_classes(what: str, shape: tuple[int, ...], classes: int) -> str:
    """Say that whole numbers were taken as classes, though nobody asked for it.

    >>> describe_classes("arrays", (8,), 3)
    'arrays: the labels are whole numbers, 8 for each sample: taken as 3 classes; labels=numbers makes them numbers'
    """
    each = f", {'x'.join(map(str, shape))} for each sample" if shape else ""
    return f"{what}: the labels are whole numbers{each}: taken as {classes} classes; labels=numbers makes them numbers"


def _check_counted(what: str, inputs: Inputs, labels: Array, part: str) -> None:
    """Check that the inputs and labels of a part can be counted: that none of them is a single value."""
    arrays = {"inputs": inputs.arrays if isinstance(inputs, Several) else [inputs], "labels": [labels]}
    for kind, some in arrays.items():
        if any(array.ndim == 0 for array in some):
            raise UsageError(
                f"{what}: the {kind} of {part} must be an array with a value for each sample; got a single value"
            )


def _check_alike(what: str, train: Inputs, inputs: Inputs, part: str) -> None:
    """Check that the samples of a part look like those of train."""
    shapes = [_shapes(some) for some in (train, inputs)]
    if shapes[0] != shapes[1]:
        raise UsageError(f"{what}: samples must have one shape; train has {shapes[0]}, {part} {shapes[1]}")


def _shapes(inputs: Inputs) -> Any:
    if not isinstance(inputs, Several):
        return inputs.shape[1:]
    shapes = [array.shape[1:] for array in inputs.arrays]
    return dict(zip(inputs.names, shapes, strict=True)) if inputs.names else tuple(shapes)


def _guess(what: str, labels: Array, column: str | None) -> tuple[Labels | None, str]:
    """Return the assumed kind of labels (None: integers, still to be checked), and a remark if it may be wrong."""
    if labels.dtype.kind in "US":
        return "classes", ""
    if labels.dtype.kind != "f":
        return None, ""
    if labels.size == 0 or not (np.isfinite(labels) & (labels == np.round(labels))).all():
        return "numbers", ""
    if labels.ndim > 1 and not ((labels == 0) | (labels == 1)).all():
        return "numbers", ""
    different = np.unique(labels) if labels.ndim == 1 else np.arange(2)
    count = len(different)
    repeated = 2 * count <= labels.size
    likely = repeated and (count <= FEW or bool((different == np.arange(count)).all()))
    if column is None:
        if not likely:
            return "numbers", ""
        taken: Labels = "numbers"
        where = f"the labels are whole numbers stored as {labels.dtype}"
    else:
        taken = "classes" if likely else "numbers"
        where = f"column {column!r} holds whole numbers"
    other = "numbers" if taken == "classes" else "classes"
    numbers = f"{count:,} different {'ones' if count > 1 else 'one'} in {len(labels):,} samples"
    return taken, f"{what}: {where}, {numbers}: taken as {taken}; labels={other} makes them {other}"


def _number(what: str, parts: Parts, ignored: int) -> tuple[Parts, tuple[str, ...]]:
    """Number the classes in sorted order; return the numbered parts, and the names of classes that are not 0, 1, ….

    If samples have several labels, whole numbers stay as they are: they may be numbers in a vocabulary.
    """
    train = parts["train"][1]
    text = train.dtype.kind in "US"
    if not text:
        for _, labels in parts.values():
            if labels.dtype.kind == "f":
                check_values(f"{what}: labels", labels)
        if train.ndim != 1:
            return {part: (inputs, _as_whole(what, labels)) for part, (inputs, labels) in parts.items()}, ()
    known = np.unique(train.astype(str) if text else train[train != ignored])
    numbered: Parts = {}
    for part, (inputs, labels) in parts.items():
        wanted = labels.astype(str) if text else labels
        counted = np.ones(wanted.shape, bool) if text else wanted != ignored
        strange = np.setdiff1d(wanted[counted], known)
        if len(strange):
            raise UsageError(f"{what}: {part} has a class that train does not have: {strange.tolist()[0]!r}")
        numbers = np.full(wanted.shape, ignored, np.int64)
        numbers[counted] = np.searchsorted(known, wanted[counted])
        numbered[part] = inputs, numbers
    if text:
        return numbered, tuple(known.tolist())
    if (known == np.arange(len(known))).all():
        return numbered, ()
    return numbered, tuple(f"{number:.15g}" for number in known.tolist())


def _as_numbers(what: str, labels: Array) -> Array:
    if labels.dtype.kind not in "biuf":
        raise UsageError(f"{what}: labels=numbers needs numbers; the labels are {labels.dtype}")
    return labels if labels.dtype.kind == "f" else labels.astype(np.float64)


def _as_whole(what: str, labels: Array) -> Array:
    if labels.dtype.kind != "f":
        return labels
    if not (whole := labels == np.round(labels)).all():
        first, *rest = np.argwhere(~whole)[0].tolist()
        value = labels[(first, *rest)]
        raise UsageError(f"{what}: labels=classes needs whole numbers; sample {first} has {value}")
    return labels.astype(np.int64)


def read_stored(entry: str, fingerprint: str, read: Callable[[], Checked]) -> Checked:
    """Return the checked samples of a file from the cache; `read` creates them if they are not there yet."""

    def build(new: New) -> None:
        checked = read()
        for part, (inputs, labels) in checked.parts.items():
            if len(inputs):
                fill(new, part, inputs, labels)
        new("classes", (1,), np.int64)[:] = checked.classes
        if checked.ignored is not None:
            new("ignored", (1,), np.int64)[:] = checked.ignored
        for name, texts in (("class_names", checked.class_names), ("remark", (checked.remark,))):
            if any(texts):
                new(name, (len(texts),), np.array(texts).dtype)[:] = texts

    arrays = load_or_build(entry, fingerprint, build)
    return Checked(
        parts={
            part: (arrays[f"{part}_inputs"], arrays[f"{part}_labels"])
            for part in ("train", "validation", "test")
            if f"{part}_inputs" in arrays
        },
        classes=int(arrays["classes"][0]),
        class_names=tuple(map(str, arrays.get("class_names", ()))),
        remark="".join(map(str, arrays.get("remark", ()))),
        ignored=int(arrays["ignored"][0]) if "ignored" in arrays else None,
    )


def fill(new: New, part: str, inputs: Array, labels: Array) -> None:
    """Write one part in this machine's order of bytes, and labels as int64 or floats."""
    input_dtype = inputs.dtype.newbyteorder("=")
    label_dtype = labels.dtype.newbyteorder("=") if labels.dtype.kind == "f" else np.int64
    new(f"{part}_inputs", inputs.shape, input_dtype)[...] = inputs
    new(f"{part}_labels", labels.shape, label_dtype)[...] = labels
