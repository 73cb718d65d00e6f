"""`load`: a data set from a name, a path, arrays, or an object such as a PyTorch data set."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from paceline import names
from paceline.data._dataset import Dataset, divide
from paceline.data._samples import Target, check_labels, check_parts, check_values
from paceline.errors import UsageError, unknown
from paceline.names import Spec, options_of, parse

Array = NDArray[Any]
PARTS = ("train", "validation", "test")


def from_python(
    thing: Any,
    *,
    name: str = "arrays",
    classes: int | None = None,
    target: Target | None = None,
    scale: float | None = None,
    validation: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
) -> Dataset:
    """Create a data set from `(inputs, labels)`, from a map-style data set, or from two or three of either.

    Two are train and test, three are train, validation and test; a dictionary may name them. A part that is
    not given is cut from train: `validation` and `test` are fractions, or numbers of samples from 1 on.
    `target` is "classes" or "values"; by default text and integers are classes, floats are values. The number of
    `classes` is found from the labels by default. uint8 inputs are multiplied by `scale`, 1/255 by default.

    >>> data = from_python((np.zeros((20, 3)), np.arange(20) % 2))
    >>> data.shape, data.classes, len(data.train), len(data.test)
    ((3,), 2, 16, 2)
    """
    given = _parts(thing, name)
    parts = {part: _as_arrays(value) for part, value in given.items()}
    if target not in (None, *get_args(Target)):
        raise unknown(f"target of {name}", str(target), get_args(Target))
    if classes and target == "values":
        raise UsageError(f"{name}: target=values has no classes; got classes={classes}")
    if all(isinstance(value, tuple) for value in parts.values()):
        checked = check_parts(name, parts, classes=classes, target=target)
        return checked.dataset(name, validation=validation, test=test, seed=seed, scale=scale)
    if any(isinstance(value, tuple | list) for value in given.values()):
        raise UsageError(f"{name}: the parts must all be arrays, or all objects with __getitem__")
    splits = {
        part: MapSplit(value, name=f"{name} ({part})", scale=scale, target=target)
        for part, value in given.items()
    }
    known, class_names, labels = _classes(splits, classes)
    return divide(
        name,
        splits["train"],
        labels,
        classes=known,
        validation=splits.get("validation", validation),
        test=splits.get("test", test),
        seed=seed,
        class_names=class_names,
    )


class MapSplit:
    """Samples of an object with `__len__` and `__getitem__` -> (input, label), fetched when needed.

    >>> split = MapSplit([(np.array([0.5, 1.5]), 1), (np.array([2.5, 3.5]), 0)])
    >>> inputs, labels = np.empty((1, 2)), np.empty(1, np.int64)
    >>> split.take(np.array([1]), inputs, labels)
    >>> inputs.tolist(), labels.tolist()
    ([[2.5, 3.5]], [0])
    """

    def __init__(
        self, samples: Any, *, name: str = "data", scale: float | None = None, target: Target | None = None
    ) -> None:
        self.samples = samples
        self.name = name
        self.scale = scale
        if scale is not None and not np.isfinite(scale):
            raise UsageError(f"{name}: scale must be a finite number; got {scale}")
        if len(samples) == 0:
            raise UsageError(f"{name}: there are no samples")
        first, label = self._get(0)
        self.shape: tuple[int, ...] = first.shape
        self.label_shape: tuple[int, ...] = label.shape
        self.label_dtype = np.dtype(label.dtype if label.dtype.kind == "f" else np.int64)
        if target == "values" and self.label_dtype.kind != "f":
            self.label_dtype = np.dtype(np.float64)
        elif target == "classes" and self.label_dtype.kind == "f":
            self._check_whole()
            self.label_dtype = np.dtype(np.int64)

    def __len__(self) -> int:
        return len(self.samples)

    def take(self, indices: Array, inputs: Array, labels: Array) -> None:
        """Write the samples at `indices` into `inputs` (as floats, scaled) and their labels into `labels`."""
        for row, index in enumerate(indices.tolist()):
            value, label = self._get(index)
            if value.shape != self.shape:
                raise UsageError(
                    f"{self.name}: samples must have one shape; sample 0 has {self.shape}, "
                    f"sample {index} {value.shape}"
                )
            # Checked before the cast, which may turn a large value into infinity, with a warning.
            if value.dtype.kind == "f":
                check_values(f"{self.name}: features", value[np.newaxis], indices[row : row + 1])
            if label.dtype.kind == "f":
                check_values(f"{self.name}: labels", label[np.newaxis], indices[row : row + 1])
            np.copyto(inputs[row, ...], value, casting="unsafe")
            scale = self.scale if self.scale is not None else (1 / 255 if value.dtype == np.uint8 else 1.0)
            if scale != 1:
                np.multiply(inputs[row, ...], scale, out=inputs[row, ...])
            labels[row] = label

    def labels(self) -> Array:
        """Return all labels: the object's `targets`, which torchvision's data sets have, or each sample's."""
        targets = getattr(self.samples, "targets", None)
        if targets is not None and len(targets) == len(self):
            labels = np.asarray(targets)
        else:
            labels = np.array([self._get(index)[1] for index in range(len(self))])
        return labels.astype(self.label_dtype) if labels.dtype.kind == "f" else labels

    def _check_whole(self) -> None:
        for index in range(len(self)):
            label = self._get(index)[1]
            if not np.all(label == np.round(label)):
                raise UsageError(
                    f"{self.name}: target=classes needs whole numbers; sample {index} has {label}"
                )

    def _get(self, index: int) -> tuple[Array, Array]:
        sample = self.samples[index]
        if not isinstance(sample, tuple | list) or len(sample) != 2:
            raise UsageError(
                f"{self.name}: sample {index} must be (input, label); got {type(sample).__name__}"
            )
        return np.asarray(sample[0]), np.asarray(sample[1])


def _parts(thing: Any, name: str) -> dict[str, Any]:
    """Return the given parts by their names."""
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


def _is_part(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return len(value) == 2 and not any(map(_is_part, value))
    return hasattr(value, "__getitem__") and hasattr(value, "__len__") and not hasattr(value, "shape")


def _as_arrays(value: Any) -> Any:
    """Return a pair of arrays where `value` is one or holds one in memory, otherwise `value` itself."""
    if isinstance(value, tuple | list):
        return tuple(np.asarray(array) for array in value)
    tensors = getattr(value, "tensors", None)  # torch.utils.data.TensorDataset
    if isinstance(tensors, tuple) and len(tensors) == 2:
        return tuple(np.asarray(tensor) for tensor in tensors)
    return value


def _classes(maps: dict[str, MapSplit], given: int | None) -> tuple[int, tuple[str, ...], Array | None]:
    """Return the number of classes, their names, and train's labels where they had to be read."""
    if given is not None:
        return given, (), None
    train = maps["train"]
    if np.issubdtype(train.label_dtype, np.floating):
        return 0, (), None
    if listed := tuple(map(str, getattr(train.samples, "classes", ()))):
        return len(listed), listed, None
    labels = train.labels()
    hint = "; target=values takes whole numbers as values"
    return check_labels(train.name, labels, len(train), hint=hint), (), labels


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
    | a PyTorch `Dataset` | any object with `__len__` and `__getitem__` -> (input, label); or two or three of them |
    | a `Dataset` | itself |

    A name takes precedence over a file of the same name: write `./mnist` for the file.

    >>> load("iris:test=0.2,validation=0").shape
    (4,)
    >>> import numpy as np
    >>> load((np.zeros((20, 3)), np.arange(20) % 2), validation=0, test=5).classes
    2
    """
    try:
        return _load(what, options)
    except OSError as error:
        place = error.filename or (what if isinstance(what, str | os.PathLike) else type(what).__name__)
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"cannot read {os.fspath(place)}: {why}") from error


def _load(what: Any, options: dict[str, Any]) -> Dataset:
    if isinstance(what, Dataset):
        return what
    if isinstance(what, os.PathLike):
        return _call(_reader(Path(what), ""), options)  # type: ignore[no-any-return]
    if not isinstance(what, str):
        _check("arrays", from_python, options)
        return from_python(what, **options)
    name, _, rest = what.partition(":")
    if names.has("data", name):
        spec = _with_path(name, rest) or parse("data", what)
    elif (path := _path(what)) is not None:
        spec = _reader(*path)
    else:
        spec = parse("data", what)
    loaded = _call(spec, options)
    return loaded if isinstance(loaded, Dataset) else from_python(loaded, name=str(spec))


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
    spec = parse("data", f"{reader}:path=-,{options}")
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
