"""`load`: a data set from a name, a path, arrays, or an object such as a PyTorch data set."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from paceline import names
from paceline.data._dataset import IGNORED, Dataset, Field, Inputs, Several, divide
from paceline.data._samples import (
    Labels,
    check_labels,
    check_parts,
    check_values,
    choose_labels,
    describe_classes,
    find_ignored,
)
from paceline.errors import UsageError, reason, split_list, unknown
from paceline.names import Spec, options_of, parse

Array = NDArray[Any]
PARTS = ("train", "validation", "test")
# The label in a sample that is a dictionary.
LABEL_NAMES = ("labels", "label")
# Labels of a PyTorch data set up to this many bytes are read once and remembered; more are read again when needed.
REMEMBERED = 256 << 20
# Labels read at once.
AT_ONCE = 1000


def from_python(
    thing: Any,
    *,
    name: str = "arrays",
    classes: int | None = None,
    labels: Labels | None = None,
    scale: float | None = None,
    validation: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
    ignore_index: int = IGNORED,
    target: Literal["classes", "values"] | None = None,
) -> Dataset:
    """Create a data set from `(inputs, labels)`, from a map-style data set, or from two or three of either.

    Two are train and test, three are train, validation and test; a dictionary may name them. A part that is
    not given is cut from train: `validation` and `test` are fractions, or numbers of samples from 1 on.
    `inputs` are an array, or a tuple or a dictionary of arrays, which a module takes as its arguments.
    `labels` is "classes" or "numbers"; by default text and integers are classes, floats are numbers. The number of
    `classes` is found from the labels by default; labels of `ignore_index` count for nothing. uint8 inputs are
    multiplied by `scale`, 1/255 by default. `target` is the former name of `labels`.

    >>> data = from_python((np.zeros((20, 3)), np.arange(20) % 2))
    >>> data.shape, data.classes, len(data.train), len(data.test)
    ((3,), 2, 16, 2)
    """
    given = _parts(thing, name)
    parts = {part: _as_arrays(value) for part, value in given.items()}
    kind = choose_labels(name, labels, target)
    if classes and kind == "numbers":
        raise UsageError(f"{name}: labels=numbers has no classes; got classes={classes}")
    if all(isinstance(value, tuple) for value in parts.values()):
        checked = check_parts(name, parts, classes=classes, labels=kind, ignored=ignore_index)
        return checked.dataset(name, validation=validation, test=test, seed=seed, scale=scale)
    if any(isinstance(value, tuple | list) for value in given.values()):
        raise UsageError(f"{name}: the parts must all be arrays, or all objects with __getitem__")
    splits = {
        part: MapSplit(value, name=f"{name} ({part})", scale=scale, labels=kind)
        for part, value in given.items()
    }
    known, class_names, read, ignored = _classes(splits, classes, ignore_index)
    guessed = kind is None and not classes and known and not class_names
    return divide(
        name,
        splits["train"],
        read,
        classes=known,
        validation=splits.get("validation", validation),
        test=splits.get("test", test),
        seed=seed,
        class_names=class_names,
        remarks=(describe_classes(name, splits["train"].label_shape, known),) if guessed else (),
        ignored=ignored,
    )


class MapSplit:
    """Samples of an object with `__len__` and `__getitem__` -> (input, label), fetched when needed.

    The input is an array, a tuple or a dictionary of arrays; a sample may also be (input, input, …, label), or a
    dictionary with a `label` or `labels`.

    >>> split = MapSplit([(np.array([0.5, 1.5]), 1), (np.array([2.5, 3.5]), 0)])
    >>> inputs, labels = np.empty((1, 2)), np.empty(1, np.int64)
    >>> split.take(np.array([1]), inputs, labels)
    >>> inputs.tolist(), labels.tolist()
    ([[2.5, 3.5]], [0])
    """

    def __init__(
        self, samples: Any, *, name: str = "data", scale: float | None = None, labels: Labels | None = None
    ) -> None:
        self.samples = samples
        self.name = name
        self.scale = scale
        if scale is not None and not np.isfinite(scale):
            raise UsageError(f"{name}: scale must be a finite number; got {scale}")
        if len(samples) == 0:
            raise UsageError(f"{name}: there are no samples")
        first, label = self._get(0)
        several = isinstance(first, Several)
        arrays = first.arrays if several else [first]
        names = first.names if several and first.names else [""] * len(arrays)
        self.fields = tuple(
            Field(one, array.shape, np.dtype(np.float32) if scale not in (None, 1) else array.dtype)
            for one, array in zip(names, arrays, strict=True)
        )
        self.shape: tuple[int, ...] = () if several else first.shape
        self.label_shape: tuple[int, ...] = label.shape
        self.label_dtype = np.dtype(label.dtype if label.dtype.kind == "f" else np.int64)
        self._labels: Array | None = None
        if labels == "numbers" and self.label_dtype.kind != "f":
            self.label_dtype = np.dtype(np.float64)
        elif labels == "classes" and self.label_dtype.kind == "f":
            self._check_whole()
            self.label_dtype = np.dtype(np.int64)

    def __len__(self) -> int:
        return len(self.samples)

    def take(self, indices: Array, inputs: Inputs, labels: Array) -> None:
        """Write the samples at `indices` into `inputs` (floats are scaled) and their labels into `labels`."""
        into = inputs.arrays if isinstance(inputs, Several) else [inputs]
        for row, index in enumerate(indices.tolist()):
            value, label = self._get(index)
            arrays = value.arrays if isinstance(value, Several) else [value]
            shapes = [array.shape for array in arrays]
            if shapes != [field.shape for field in self.fields]:
                wanted = [field.shape for field in self.fields]
                first, other = (wanted[0], shapes[0]) if len(wanted) == len(shapes) == 1 else (wanted, shapes)
                raise UsageError(
                    f"{self.name}: samples must have one shape; sample 0 has {first}, sample {index} {other}"
                )
            if label.shape != self.label_shape:
                raise UsageError(
                    f"{self.name}: labels must have one shape; sample 0 has {self.label_shape}, "
                    f"sample {index} {label.shape}"
                )
            if label.dtype.kind == "f":
                check_values(f"{self.name}: labels", label[np.newaxis], indices[row : row + 1])
            for array, target in zip(arrays, into, strict=True):
                # Checked before the cast, which may turn a large value into infinity, with a warning.
                if array.dtype.kind == "f":
                    check_values(f"{self.name}: features", array[np.newaxis], indices[row : row + 1])
                np.copyto(target[row, ...], array, casting="unsafe")
                scale = (
                    self.scale if self.scale is not None else (1 / 255 if array.dtype == np.uint8 else 1.0)
                )
                if scale != 1 and target.dtype.kind == "f":
                    np.multiply(target[row, ...], scale, out=target[row, ...])
            labels[row] = label

    def labels_at(self, indices: Array) -> Array:
        """Return the labels at `indices`, from the object's `targets` if it has them, as torchvision's data sets do."""
        targets = getattr(self.samples, "targets", None)
        if self._labels is not None:
            found = self._labels[indices]
        elif targets is not None and len(targets) == len(self):
            self._labels = np.asarray(targets)
            found = self._labels[indices]
        else:
            found = np.array([self._get(index)[1] for index in indices.tolist()])
        return found.astype(self.label_dtype) if found.dtype.kind == "f" else found

    def label_blocks(self) -> Iterator[Array]:
        """Yield all labels, in blocks; they are remembered unless they are large."""
        size = len(self) * math.prod(self.label_shape) * 8
        blocks = []
        for start in range(0, len(self), AT_ONCE):
            block = self.labels_at(np.arange(start, min(start + AT_ONCE, len(self))))
            if block.shape[1:] != self.label_shape:
                raise UsageError(
                    f"{self.name}: labels must have one shape; sample 0 has {self.label_shape}, got {block.shape[1:]}"
                )
            if self._labels is None and size <= REMEMBERED:
                blocks.append(block)
            yield block
        if blocks:
            self._labels = np.concatenate(blocks)

    def _check_whole(self) -> None:
        for index in range(len(self)):
            label = self._get(index)[1]
            if not np.all(label == np.round(label)):
                raise UsageError(
                    f"{self.name}: labels=classes needs whole numbers; sample {index} has {label}"
                )

    def _get(self, index: int) -> tuple[Inputs, Array]:
        sample = self.samples[index]
        if isinstance(sample, Mapping) and (names := [name for name in LABEL_NAMES if name in sample]):
            inputs: Any = {name: value for name, value in sample.items() if name != names[0]}
            return Several.of(inputs), np.asarray(sample[names[0]])
        if not isinstance(sample, tuple | list) or len(sample) < 2:
            raise UsageError(
                f"{self.name}: sample {index} must be (input, label); got {type(sample).__name__}"
            )
        inputs, label = (tuple(sample[:-1]), sample[-1]) if len(sample) > 2 else sample
        return Several.of(inputs), np.asarray(label)


def _parts(thing: Any, name: str) -> dict[str, Any]:
    """Return the given parts by their names."""
    if isinstance(thing, tuple | list) and len(thing) == 2 and _are_inputs(thing[0]) and _is_array(thing[1]):
        return {"train": thing}
    if isinstance(thing, Mapping):
        strange = [str(key) for key in thing if key not in PARTS]
        if strange or "train" not in thing:
            raise UsageError(f"{name}: parts are train, validation, test; got {', '.join(map(str, thing))}")
        return dict(thing)
    if isinstance(thing, tuple | list) and len(thing) in (2, 3) and all(map(_is_part, thing)):
        return dict(zip(PARTS if len(thing) == 3 else ("train", "test"), thing, strict=True))
    if _is_part(thing):
        return {"train": thing}
    raise UsageError(
        f"{name}: data must be (inputs, labels), an object with __len__ and __getitem__, or two or three "
        f"of them; got {type(thing).__name__}"
    )


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _are_inputs(value: Any) -> bool:
    """Return True for a tuple or a dictionary of arrays: several inputs of one sample."""
    if isinstance(value, Mapping):
        return bool(value) and not set(value) <= set(PARTS) and all(map(_is_array, value.values()))
    return isinstance(value, tuple) and bool(value) and all(map(_is_array, value))


def _is_part(value: Any) -> bool:
    if isinstance(value, tuple | list):
        if len(value) == 2 and _are_inputs(value[0]) and _is_array(value[1]):
            return True
        return len(value) == 2 and not any(map(_is_part, value))
    return hasattr(value, "__getitem__") and hasattr(value, "__len__") and not hasattr(value, "shape")


def _as_arrays(value: Any) -> Any:
    """Return a pair of inputs and labels where `value` is one or holds one in memory, otherwise `value` itself."""
    if isinstance(value, tuple | list):
        inputs, labels = value
        return (Several.of(inputs) if _are_inputs(inputs) else np.asarray(inputs)), np.asarray(labels)
    tensors = getattr(value, "tensors", None)  # torch.utils.data.TensorDataset
    if isinstance(tensors, tuple) and len(tensors) >= 2:
        *inputs, labels = (np.asarray(tensor) for tensor in tensors)
        return (inputs[0] if len(inputs) == 1 else Several(inputs)), labels
    return value


def _classes(
    maps: dict[str, MapSplit], given: int | None, ignore_index: int
) -> tuple[int, tuple[str, ...], Array | None, int | None]:
    """Return the number of classes, their names, train's labels if they were read, and the label that is ignored."""
    if given is not None:
        return given, (), None, None
    train = maps["train"]
    if np.issubdtype(train.label_dtype, np.floating):
        return 0, (), None, None
    if listed := tuple(map(str, getattr(train.samples, "classes", ()))):
        return len(listed), listed, None, None
    hint = "; labels=numbers takes whole numbers as numbers"
    if not train.label_shape:
        labels = np.concatenate(list(train.label_blocks()))
        classes = check_labels(train.name, labels, len(train), hint=hint, ignored=ignore_index)
        return classes, (), labels, find_ignored(labels, ignore_index)
    classes, ignored = 0, None
    for split in maps.values():  # a word may occur in the test samples only
        for block in split.label_blocks():
            classes = max(classes, _count_classes(split.name, block, ignore_index, hint))
            ignored = find_ignored(block, ignore_index) if ignored is None else ignored
    if not classes:
        raise UsageError(f"{train.name}: every label is {ignore_index}, which counts for nothing")
    return classes, (), None, ignored


def _count_classes(what: str, block: Array, ignored: int, hint: str) -> int:
    if block.dtype.kind in "iu" and (block == ignored).all():
        return 0
    return check_labels(what, block, len(block), hint=hint, ignored=ignored)


# The loader of a file, by its suffix.
READERS = {".npz": "npz", ".csv": "csv", ".tsv": "csv"}


def load(what: Any, **options: Any) -> Dataset:
    """Load a data set from a name, a path or an object; options are part of the text, or arguments.

    | `what` | loads |
    |---|---|
    | `"mnist"`, `"mnist:validation=0"` | a data set by its name; `paceline list` shows all names and their options |
    | `"photos/"`, `"photos/:size=64"` | a folder of IDX files, or with a sub-folder of images for each class |
    | `"flowers.csv:label=species"`, `"my.npz"` | a file; also as `"csv:flowers.csv,label=species"` |
    | `"my_module:function:option=value"` | what a function of your own returns: any of the following |
    | `(inputs, labels)` | arrays, divided at random; also two or three such pairs (see `from_python`) |
    | `((a, b), labels)`, `({"a": a, "b": b}, labels)` | the same with several inputs, a module's arguments |
    | a PyTorch `Dataset` | any object with `__len__` and `__getitem__` -> (input, label); or two or three of them |
    | a `Dataset` | itself |

    A name takes precedence over a file of the same name: write `./mnist` for the file.

    >>> load("iris:test=0.2,validation=0").shape
    (4,)
    >>> import numpy as np
    >>> load((np.zeros((20, 3)), np.arange(20) % 2), validation=0, test=5).classes
    2
    """
    return _load(what, options, {})


def load_labels(what: Any, *, labels: Labels | None = None, ignore_index: int | None = None) -> Dataset:
    """Load a data set whose labels are of the given kind, for a loss that ignores the label `ignore_index`.

    Arrays, tables and archives are read that way; other data must have such labels already.

    >>> load_labels((np.zeros((20, 3)), np.arange(20)), labels="numbers").classes
    0
    >>> load_labels("iris", labels="numbers")
    Traceback (most recent call last):
    paceline.errors.UsageError: iris has classes as labels; labels=numbers is for arrays, tables and archives
    """
    wanted = {"labels": labels, "ignore_index": ignore_index}
    found = _load(what, {}, {name: value for name, value in wanted.items() if value is not None})
    if labels not in (None, found.target):
        raise UsageError(
            f"{found.name} has {found.target} as labels; labels={labels} is for arrays, tables and archives"
        )
    return found


def _load(what: Any, options: dict[str, Any], wanted: dict[str, Any]) -> Dataset:
    """Load with the given options, and with those of `wanted` that the loader has and the text does not set."""
    try:
        if isinstance(what, Dataset):
            return what
        if not isinstance(what, str | os.PathLike):
            _check("arrays", from_python, options)
            return from_python(what, **(wanted | options))
        spec = _reader(Path(what), "") if isinstance(what, os.PathLike) else _rename_label(_spec_of(what))
        taken = {}
        if names.has("data", spec.name):
            taken = {name: value for name, value in wanted.items() if name in options_of(spec.target, "data")}
        loaded = _call(
            spec, {name: value for name, value in taken.items() if name not in spec.options} | options
        )
        return loaded if isinstance(loaded, Dataset) else from_python(loaded, name=str(spec), **wanted)
    except OSError as error:
        place = error.filename or (what if isinstance(what, str | os.PathLike) else type(what).__name__)
        raise UsageError(f"cannot read {os.fspath(place)}: {reason(error)}") from error


def _spec_of(text: str) -> Spec:
    """Return the loader that a text names, with its options."""
    name, _, rest = text.partition(":")
    if names.has("data", name):
        return _with_path(name, rest) or parse("data", text)
    if (path := _path(text)) is not None:
        return _reader(*path)
    return parse("data", text)


def _rename_label(spec: Spec) -> Spec:
    """Return a spec whose `labels` names an array, the former spelling, with that name as `label`."""
    named = spec.options.get("labels")
    if not names.has("data", spec.name) or named in (None, "auto", "classes", "numbers"):
        return spec
    if "label" in spec.options or "label" not in options_of(spec.target, "data"):
        return spec
    others = {name: value for name, value in spec.options.items() if name != "labels"}
    return dataclasses.replace(spec, options=others | {"label": named})


def names_code(what: str) -> bool:
    """Return True if loading this text would import a module that it names, as `module:attribute` does.

    >>> names_code("my_module:load"), names_code("iris"), names_code("csv:path=mine.csv")
    (True, False, False)
    """
    return not names.has("data", what.partition(":")[0]) and _path(what) is None


def _with_path(name: str, rest: str) -> Spec | None:
    """Return the spec of `csv:flowers.csv,label=species`: a loader, and after the colon a path before the options.

    A path may hold commas: the longest one that exists is taken. None where no path comes first.
    """
    words = rest.split(",")
    if "path" not in options_of(names.find("data", name), "data") or not words[0]:
        return None
    prefixes = [(",".join(words[:end]), ",".join(words[end:])) for end in range(len(words), 0, -1)]
    found = next((pair for pair in prefixes if _expand_user(pair[0]).exists()), prefixes[-1])
    if "=" in found[0] and not _expand_user(found[0]).exists():
        return None
    return _spec(name, *found)


def _path(text: str) -> tuple[Path, str] | None:
    """Split `path` or `path:option=value` into the path and the options; None when the text cannot be a path."""
    cuts = [(text, "")]
    before, colon, after = text.rpartition(":")
    if colon and "=" in after:
        cuts.append((before, after))
    for place, options in cuts:
        if place and (path := _expand_user(place)).exists():
            return path, options
    place = cuts[-1][0]
    file, comma, options = place.partition(",")
    if comma and _expand_user(file).exists():
        raise UsageError(f"options follow a colon; write {file}:{options}")
    if os.sep in place or Path(place).suffix in READERS or place.startswith(("~", ".")):
        raise UsageError(f"no such file or folder: {place}")
    return None


def _reader(path: Path, options: str) -> Spec:
    """Return the loader of this file or folder, with its options."""
    if not path.exists():
        raise UsageError(f"no such file or folder: {path}")
    if path.is_dir():
        from paceline.data.idx import files_in

        reader = "idx" if files_in(path) else "images"
    elif path.suffix in READERS:
        reader = READERS[path.suffix]
    else:
        kinds = ", ".join([*READERS, "a folder of IDX files or of images"])
        raise UsageError(f"unknown kind of data file {path.name!r}; choose one of {kinds}")
    return _spec(reader, str(path), options)


def _spec(reader: str, path: str, options: str) -> Spec:
    """Return the spec of a loader for a path, which may hold commas and colons."""
    words = ["path=-", *split_list(options, f"{reader}:{path},{options}")]
    spec = parse("data", f"{reader}:{','.join(words)}")
    return dataclasses.replace(spec, options=spec.options | {"path": path})


def _call(spec: Spec, options: dict[str, Any]) -> Any:
    _check(spec.name, spec.target, options)
    return dataclasses.replace(spec, options=spec.options | options).make()


def _check(name: str, target: Callable[..., Any], options: dict[str, Any]) -> None:
    known = [key for key in options_of(target, "data") if key != "thing"]
    for key in options:
        if key not in known:
            raise unknown(f"option of {name}", key, known)


def _expand_user(place: str) -> Path:
    """Return the path with `~` expanded, or unchanged if there is no such user."""
    try:
        return Path(place).expanduser()
    except RuntimeError:
        return Path(place)
