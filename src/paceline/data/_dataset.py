"""A data set: train, validation and test samples with labels; missing parts are drawn from the training samples.

Samples keep the type in which they are stored until a batch is created. The inputs of a sample are one array or several
(`Several`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import DTypeLike, NDArray

from paceline.errors import UsageError

Array = NDArray[Any]
Inputs = Any
"""The inputs of some samples: an array, or `Several`."""
IGNORED = -100
"""The label that counts for nothing, such as that of padding, unless the loss has an `ignore_index` of its own."""


class Several:
    """Several arrays of the same samples: the arguments of a module, in their order or by their names.

    >>> inputs = Several.of({"tokens": np.zeros((5, 8), np.int64), "mask": np.ones((5, 8), bool)})
    >>> len(inputs), inputs.names, inputs[1:3].arrays[0].shape
    (5, ('tokens', 'mask'), (2, 8))
    """

    __slots__ = ("arrays", "names")

    def __init__(self, arrays: Sequence[Array], names: Sequence[str] = ()) -> None:
        self.arrays = list(arrays)
        self.names = tuple(names)

    @classmethod
    def of(cls, inputs: Any) -> Inputs:
        """Return a tuple or a mapping of arrays as `Several`, and anything else as an array."""
        if isinstance(inputs, Mapping):
            return cls([np.asarray(array) for array in inputs.values()], [str(name) for name in inputs])
        if isinstance(inputs, tuple):
            return cls([np.asarray(array) for array in inputs])
        return inputs if isinstance(inputs, cls) else np.asarray(inputs)

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, rows: slice) -> Several:
        return Several([array[rows] for array in self.arrays], self.names)


@dataclass(frozen=True)
class Field:
    """One input of a sample: its name ("" if it has none), its shape, and the type in which it is stored."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


Keeps = Callable[[np.dtype[Any]], bool]
"""Returns True if a model takes inputs that are stored as this type of whole numbers as int64, not as floats."""


@runtime_checkable
class Split(Protocol):
    """Samples that can be gathered by index.

    A split may have `fields`, the inputs of a sample, if there are several or if they may be whole numbers, and
    `labels_at(indices)`, which returns labels without their samples.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample; () if it has several inputs."""
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

    def take(self, indices: Array, inputs: Inputs, labels: Array) -> None:
        """Write the samples at `indices` into `inputs` (floats are scaled) and their labels into `labels`."""
        ...


class ArraySplit:
    """Samples in an array, or in several, often memory maps that all ranks of a node share.

    uint8 stays uint8 until a batch is created, and is then multiplied by `scale` (1/255 by default), unless the model
    takes whole numbers.

    >>> split = ArraySplit(np.array([[0, 255], [51, 102]], np.uint8), np.array([3, 7]))
    >>> inputs, labels = np.empty((1, 2)), np.empty(1, np.int64)
    >>> split.take(np.array([1]), inputs, labels)
    >>> inputs.tolist(), labels.tolist()
    ([[0.2, 0.4]], [7])
    """

    def __init__(self, inputs: Inputs, labels: Array, *, scale: float | None = None) -> None:
        if len(inputs) != len(labels):
            raise UsageError(
                f"as many labels as samples are needed; got {len(inputs)} samples, {len(labels)} labels"
            )
        labels = np.asarray(labels)
        if not np.issubdtype(labels.dtype, np.floating):
            labels = labels.astype(np.int64, copy=False)
        if scale is not None and not np.isfinite(scale):
            raise UsageError(f"scale must be a finite number; got {scale}")
        several = isinstance(inputs, Several)
        self.inputs = cast(Inputs, inputs if several else np.asarray(inputs))
        self._columns = [
            InputColumn(array, scale) for array in (self.inputs.arrays if several else [self.inputs])
        ]
        names = self.inputs.names if several and self.inputs.names else [""] * len(self._columns)
        self.fields = tuple(
            Field(name, column.array.shape[1:], column.kind)
            for name, column in zip(names, self._columns, strict=True)
        )
        self.labels = labels
        self.shape: tuple[int, ...] = () if several else self.fields[0].shape
        self.label_shape: tuple[int, ...] = labels.shape[1:]
        self.label_dtype: np.dtype[Any] = labels.dtype
        self._stored_labels = np.empty((0, *self.label_shape), labels.dtype)

    def __len__(self) -> int:
        return len(self.labels)

    def apart(self) -> ArraySplit | None:
        """Return the same samples with working memory of its own, so that another thread can read them meanwhile.

        None for a class of the user's own, whose `take` may do more than that.

        >>> split = ArraySplit(np.eye(2, dtype=np.uint8), np.arange(2))
        >>> split.apart().inputs is split.inputs
        True
        """
        if type(self) is not ArraySplit:
            return None
        made = copy(self)
        made._columns = [column.apart() for column in self._columns]
        made._stored_labels = self._stored_labels[:0].copy()
        return made

    def labels_at(self, indices: Array) -> Array:
        """Return the labels at `indices`."""
        return self.labels[indices]

    def take(self, indices: Array, inputs: Inputs, labels: Array) -> None:
        """Write the samples at `indices` into `inputs` (floats are scaled) and their labels into `labels`."""
        # mode="clip" lets NumPy write into `out` directly; with the default it fills a copy first.
        count = len(indices)
        if count == 0:
            return
        if isinstance(inputs, Several):
            for column, array in zip(self._columns, inputs.arrays, strict=True):
                column.take(indices, array)
        else:
            self._columns[0].take(indices, inputs)
        if labels.dtype == self.labels.dtype:
            self.labels.take(indices, 0, labels, "clip")
        else:
            if count > len(self._stored_labels):
                self._stored_labels = np.empty((count, *self.label_shape), self.labels.dtype)
            stored_labels = self._stored_labels[:count]
            self.labels.take(indices, 0, stored_labels, "clip")
            np.copyto(labels, stored_labels, casting="unsafe")


class InputColumn:
    """The array of one input, from which batches are gathered."""

    def __init__(self, array: Array, scale: float | None) -> None:
        self.array = array
        # Numbers that are to be scaled are floats, whatever they are stored as.
        self.kind = np.dtype(np.float32) if scale not in (None, 1) else array.dtype
        self.scale = (1 / 255 if array.dtype == np.uint8 else 1.0) if scale is None else scale
        self._stored = np.empty((0, *array.shape[1:]), array.dtype)

    def apart(self) -> InputColumn:
        """Return the same array with working memory of its own."""
        return copy(self)

    def __getstate__(self) -> dict[str, Any]:
        # Ranks get large arrays read-only, and cannot work in this one's memory.
        return {**self.__dict__, "_stored": self._stored[:0].copy()}

    def take(self, indices: Array, into: Array) -> None:
        """Write the values at `indices` into an array; floats are scaled."""
        count = len(indices)
        if into.dtype == self.array.dtype:
            self.array.take(indices, 0, into, "clip")
        else:
            if count > len(self._stored):
                self._stored = np.empty((count, *self.array.shape[1:]), self.array.dtype)
            stored = self._stored[:count]
            self.array.take(indices, 0, stored, "clip")
            np.copyto(into, stored, casting="unsafe")
        if self.scale != 1 and into.dtype.kind == "f":
            # in a separate pass, because NumPy's mixed-type multiplication takes twice as long
            np.multiply(into, self.scale, out=into)


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
        self.fields = fields_of(split)
        self._found = np.empty(0, np.intp)

    def __len__(self) -> int:
        return len(self.places)

    def apart(self) -> Subset | None:
        """Return the same samples with working memory of its own; None if the other split cannot be read so."""
        split = read_apart(self.split)
        return None if split is None else Subset(split, self.places)

    def labels_at(self, indices: Array) -> Array:
        """Return the labels at `indices`."""
        return labels_at(self.split, self.places[indices])

    def take(self, indices: Array, inputs: Inputs, labels: Array) -> None:
        """Write the samples at `indices` into `inputs` (floats are scaled) and their labels into `labels`."""
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
    """Train, validation and test samples of one shape; `classes` is 0 when the labels are numbers.

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
    ignored: int | None = None
    """The label that counts for nothing, if some label is known to be it."""

    @property
    def target(self) -> str:
        """The kind of labels: "classes" or "numbers"."""
        return "classes" if self.classes else "numbers"


def fields_of(split: Split) -> tuple[Field, ...]:
    """Return the inputs of a sample; those of a split that does not say are one array of floats."""
    found: tuple[Field, ...] | None = getattr(split, "fields", None)
    return (Field("", split.shape, np.dtype(np.float32)),) if found is None else found


def read_apart(split: Split) -> Split | None:
    """Return the same samples for another thread to read at the same time; None if it is not known that it can."""
    own = getattr(split, "apart", None)
    found: Split | None = None if own is None else own()
    return found


def has_several(split: Split) -> bool:
    """Return True if the inputs of a sample are several arrays, or one with a name."""
    fields = fields_of(split)
    return len(fields) != 1 or bool(fields[0].name)


def labels_at(split: Split, indices: Array) -> Array:
    """Return the labels at `indices`; a split that has only `take` reads the samples as well."""
    known = getattr(split, "labels_at", None)
    if known is not None:
        return known(indices)  # type: ignore[no-any-return]
    inputs, labels = buffers(split, len(indices), np.float32)
    split.take(indices, inputs, labels)
    return labels


def chunks(
    split: Split,
    *,
    size: int = 1000,
    dtype: DTypeLike = np.float32,
    start: int = 0,
    stop: int | None = None,
    keeps: Keeps | None = None,
) -> Iterator[tuple[Inputs, Array]]:
    """Yield the samples from `start` to `stop` in order, `size` at a time; the arrays are reused.

    >>> split = ArraySplit(np.arange(5.0).reshape(5, 1), np.arange(5))
    >>> [labels.tolist() for inputs, labels in chunks(split, size=2)]
    [[0, 1], [2, 3], [4]]
    """
    stop = len(split) if stop is None else stop
    inputs, labels = buffers(split, min(size, max(stop - start, 0)), dtype, keeps)
    for first in range(start, stop, size):
        last = min(first + size, stop)
        some, their_labels = inputs[: last - first], labels[: last - first]
        split.take(np.arange(first, last), some, their_labels)
        yield some, their_labels


def buffers(split: Split, count: int, dtype: DTypeLike, keeps: Keeps | None = None) -> tuple[Inputs, Array]:
    """Allocate memory for `count` samples and their labels: classes as int64, numbers as `dtype`.

    Inputs are as in `empty_inputs`.
    """
    label_dtype = dtype if np.issubdtype(split.label_dtype, np.floating) else np.int64
    return empty_inputs(split, count, dtype, keeps), np.empty((count, *split.label_shape), label_dtype)


def empty_inputs(split: Split, count: int, dtype: DTypeLike, keeps: Keeps | None = None) -> Inputs:
    """Allocate memory for the inputs of `count` samples, in the types in which a model takes them.

    One array is floats, unless it holds whole numbers that the model keeps. Of several, whole numbers are int64, except for
    bytes, and truth values are bool.

    >>> split = ArraySplit(np.zeros((9, 4), np.int32), np.zeros(9))
    >>> empty_inputs(split, 5, np.float32).dtype, empty_inputs(split, 5, np.float32, lambda stored: True).dtype
    (dtype('float32'), dtype('int64'))
    """
    fields, several = fields_of(split), has_several(split)
    arrays = []
    for field in fields:
        stored, kept = field.dtype, np.dtype(dtype)
        if keeps is not None and stored.kind in "biu":
            if several and stored != np.uint8:
                kept = np.dtype(np.bool_ if stored.kind == "b" else np.int64)
            elif not several and keeps(stored):
                kept = np.dtype(np.int64)
        arrays.append(np.empty((count, *field.shape), kept))
    return Several(arrays, [field.name for field in fields if field.name]) if several else arrays[0]


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
    ignored: int | None = None,
) -> Dataset:
    """Create a data set whose `validation` and `test` parts are given, or drawn at random from `split`.

    An amount below 1 is a fraction, from 1 on a number of samples. The draw takes the same share of every class;
    without `labels`, which may be slow to read, and where a sample has several classes, it ignores the classes.
    """
    cut_validation = validation if isinstance(validation, int | float) else 0
    cut_test = test if isinstance(test, int | float) else 0
    train = split
    if cut_validation or cut_test:
        order = _order(len(split), labels if classes and not split.label_shape else None, seed)
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
        ignored=ignored,
    )


def cut(name: str, order: Array, validation: float, test: float) -> tuple[Array, Array, Array]:
    """Cut `order` into train, validation and test; test is taken from its end, then validation.

    >>> [part.tolist() for part in cut("mine", np.arange(6), validation=2, test=0.2)]
    [[0, 1, 2], [3, 4], [5]]
    """
    total = len(order)
    # NaN counts as too much.
    amounts = [amount if 0 <= amount < total else total for amount in (validation, test)]
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
    lowest = min(0, int(labels.min(initial=0)))  # a label that is ignored may be below 0
    counts = np.bincount(labels - lowest)
    position = np.concatenate([(np.arange(count) + 0.5) / count for count in counts if count])
    return by_class[np.argsort(position, kind="stable")]
