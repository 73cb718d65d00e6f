"""A data set: train, validation and test samples with labels; missing parts are drawn from the training samples.

Samples keep the type in which they are stored until a batch is created.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import DTypeLike, NDArray

from paceline.errors import UsageError

Array = NDArray[Any]


@runtime_checkable
class Split(Protocol):
    """Samples that can be gathered by index."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        ...

    @property
    def label_shape(self) -> tuple[int, ...]:
        """The shape of one label: () for a class."""
        ...

    @property
    def label_dtype(self) -> np.dtype[Any]:
        """The type of a label: int64 for classes, a floating type for values."""
        ...

    def __len__(self) -> int: ...

    def take(self, indices: Array, inputs: Array, labels: Array) -> None:
        """Write the samples at `indices` into `inputs` (as floats, scaled) and their labels into `labels`."""
        ...


class ArraySplit:
    """Samples in an array, often a memory map that all ranks of a node share.

    uint8 stays uint8 until a batch is created, and is then multiplied by `scale` (1/255 by default).

    >>> split = ArraySplit(np.array([[0, 255], [51, 102]], np.uint8), np.array([3, 7]))
    >>> inputs, labels = np.empty((1, 2)), np.empty(1, np.int64)
    >>> split.take(np.array([1]), inputs, labels)
    >>> inputs.tolist(), labels.tolist()
    ([[0.2, 0.4]], [7])
    """

    def __init__(self, inputs: Array, labels: Array, *, scale: float | None = None) -> None:
        if len(inputs) != len(labels):
            raise UsageError(
                f"as many labels as samples are needed; got {len(inputs)} samples, {len(labels)} labels"
            )
        inputs, labels = np.asarray(inputs), np.asarray(labels)
        if inputs.dtype != np.uint8 and not np.issubdtype(inputs.dtype, np.floating):
            inputs = inputs.astype(np.float32)
        if not np.issubdtype(labels.dtype, np.floating):
            labels = labels.astype(np.int64, copy=False)
        if scale is not None and not np.isfinite(scale):
            raise UsageError(f"scale must be a finite number; got {scale}")
        if scale is None:
            scale = 1 / 255 if inputs.dtype == np.uint8 else 1.0
        self.inputs = inputs
        self.labels = labels
        self.scale = scale
        self.shape: tuple[int, ...] = inputs.shape[1:]
        self.label_shape: tuple[int, ...] = labels.shape[1:]
        self.label_dtype: np.dtype[Any] = labels.dtype
        self._stored = np.empty((0, *self.shape), inputs.dtype)
        self._stored_labels = np.empty((0, *self.label_shape), labels.dtype)

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, indices: Array, inputs: Array, labels: Array) -> None:
        """Write the samples at `indices` into `inputs` (as floats, scaled) and their labels into `labels`."""
        # mode="clip" lets NumPy write into `out` directly; with the default it fills a copy first.
        count = len(indices)
        if count == 0:
            return
        if inputs.dtype == self.inputs.dtype:
            self.inputs.take(indices, 0, inputs, "clip")
        else:
            if count > len(self._stored):
                self._stored = np.empty((count, *self.shape), self.inputs.dtype)
            stored = self._stored[:count]
            self.inputs.take(indices, 0, stored, "clip")
            np.copyto(inputs, stored, casting="unsafe")
        if (
            self.scale != 1
        ):  # in a separate pass, because NumPy's mixed-type multiplication takes twice as long
            np.multiply(inputs, self.scale, out=inputs)
        if labels.dtype == self.labels.dtype:
            self.labels.take(indices, 0, labels, "clip")
        else:
            if count > len(self._stored_labels):
                self._stored_labels = np.empty((count, *self.label_shape), self.labels.dtype)
            stored_labels = self._stored_labels[:count]
            self.labels.take(indices, 0, stored_labels, "clip")
            np.copyto(labels, stored_labels, casting="unsafe")


class Subset:
    """Selected samples of another split, in the order of `places`; nothing is copied.

    >>> split = ArraySplit(np.array([[0.5], [1.5], [2.5]]), np.array([0, 1, 2]))
    >>> inputs, labels = np.empty((1, 1)), np.empty(1, np.int64)
    >>> Subset(split, np.array([2, 0])).take(np.array([0]), inputs, labels)
    >>> inputs.item(), labels.item()
    (2.5, 2)
    """

    def __init__(self, split: Split, places: Array) -> None:
        self.split = split
        self.places = np.asarray(places, np.intp)
        self.shape = split.shape
        self.label_shape = split.label_shape
        self.label_dtype = split.label_dtype
        self._found = np.empty(0, np.intp)

    def __len__(self) -> int:
        return len(self.places)

    def take(self, indices: Array, inputs: Array, labels: Array) -> None:
        """Write the samples at `indices` into `inputs` (as floats, scaled) and their labels into `labels`."""
        count = len(indices)
        if count == 0:
            return
        if count > len(self._found):
            self._found = np.empty(count, np.intp)
        found = self._found[:count]
        self.places.take(indices, 0, found, "clip")
        self.split.take(found, inputs, labels)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Train, validation and test samples of one shape; `classes` is 0 when the labels are values.

    >>> from paceline.data import load
    >>> mnist = load("mnist")
    >>> mnist.shape, mnist.classes, len(mnist.train), len(mnist.validation), len(mnist.test)
    ((28, 28), 10, 50000, 10000, 10000)
    """

    name: str
    shape: tuple[int, ...]
    classes: int
    train: Split
    validation: Split
    test: Split
    label_shape: tuple[int, ...] = ()
    class_names: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    """Sentences that a run on these data should print, for instance an assumption that may be wrong."""

    @property
    def target(self) -> str:
        """Return the kind of labels: "classes" or "values"."""
        return "classes" if self.classes else "values"


def chunks(
    split: Split, *, size: int = 1000, dtype: DTypeLike = np.float32, start: int = 0, stop: int | None = None
) -> Iterator[tuple[Array, Array]]:
    """Yield the samples from `start` to `stop` in order, `size` at a time; the arrays are reused.

    >>> split = ArraySplit(np.arange(5.0).reshape(5, 1), np.arange(5))
    >>> [labels.tolist() for inputs, labels in chunks(split, size=2)]
    [[0, 1], [2, 3], [4]]
    """
    stop = len(split) if stop is None else stop
    inputs, labels = buffers(split, min(size, max(stop - start, 0)), dtype)
    for first in range(start, stop, size):
        last = min(first + size, stop)
        count = last - first
        split.take(np.arange(first, last), inputs[:count], labels[:count])
        yield inputs[:count], labels[:count]


def buffers(split: Split, count: int, dtype: DTypeLike) -> tuple[Array, Array]:
    """Allocate arrays for `count` samples and their labels: classes as int64, values as `dtype`."""
    label_dtype = dtype if np.issubdtype(split.label_dtype, np.floating) else np.int64
    return np.empty((count, *split.shape), dtype), np.empty((count, *split.label_shape), label_dtype)


def divide(
    name: str,
    split: Split,
    labels: Array | None,
    *,
    classes: int,
    validation: float | Split = 0.1,
    test: float | Split = 0.1,
    seed: int = 0,
    class_names: tuple[str, ...] = (),
    remarks: tuple[str, ...] = (),
) -> Dataset:
    """Create a data set whose `validation` and `test` parts are given, or drawn at random from `split`.

    An amount below 1 is a fraction, from 1 on a number of samples. The draw takes the same share of every class;
    without `labels`, which may be slow to read, it ignores the classes.
    """
    cut_validation = validation if isinstance(validation, int | float) else 0
    cut_test = test if isinstance(test, int | float) else 0
    train = split
    if cut_validation or cut_test:
        order = _order(len(split), labels if classes else None, seed)
        places = [np.sort(part) for part in cut(name, order, cut_validation, cut_test)]
        train, first, second = (Subset(split, part) for part in places)
    else:
        first = second = Subset(split, np.empty(0, np.intp))
    return Dataset(
        name=name,
        shape=split.shape,
        classes=classes,
        train=train,
        validation=first if isinstance(validation, int | float) else validation,
        test=second if isinstance(test, int | float) else test,
        label_shape=split.label_shape,
        class_names=class_names,
        remarks=remarks,
    )


def cut(name: str, order: Array, validation: float, test: float) -> tuple[Array, Array, Array]:
    """Cut `order` into train, validation and test; test is taken from its end, then validation.

    >>> [part.tolist() for part in cut("mine", np.arange(6), validation=2, test=0.2)]
    [[0, 1, 2], [3, 4], [5]]
    """
    total = len(order)
    amounts = [
        amount if 0 <= amount < total else total for amount in (validation, test)
    ]  # NaN counts as too much
    counts = [round(total * amount) if amount < 1 else round(amount) for amount in amounts]
    if not sum(counts) < total:
        raise UsageError(
            f"{name}: validation and test must leave samples to train; got validation={validation:g}, "
            f"test={test:g} of {total} samples (below 1: a fraction)"
        )
    stop = total - counts[1]
    start = stop - counts[0]
    return order[:start], order[start:stop], order[stop:]


def _order(samples: int, labels: Array | None, seed: int) -> Array:
    """Return a random order of the samples; with labels, every stretch of it has all classes in proportion."""
    if seed < 0:
        raise UsageError(f"seed must be at least 0; got {seed}")
    order = np.random.default_rng(seed).permutation(samples)
    if labels is None:
        return order
    by_class = order[np.argsort(labels[order], kind="stable")]
    position = np.concatenate([(np.arange(count) + 0.5) / count for count in np.bincount(labels) if count])
    return by_class[np.argsort(position, kind="stable")]
