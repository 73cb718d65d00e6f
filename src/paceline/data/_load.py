"""`load`: a data set from a name, a path, or what Python holds."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline import registry
from paceline.data._dataset import Dataset
from paceline.data._python import from_python
from paceline.errors import UsageError, unknown
from paceline.spec import Spec, options_of, parse

# Which loader reads a file, by the end of its name.
READERS = {".npz": "npz", ".csv": "csv", ".tsv": "csv"}


def load(what: Any, **options: Any) -> Dataset:
    """The data set that a name, a path or an object stands for; options in the text or as arguments.

    | `what` | is |
    |---|---|
    | `"mnist"`, `"mnist:validation=0"` | a name; `paceline list` shows the names and their options |
    | `"photos/"`, `"photos/:size=64"` | a folder: IDX files, or a sub-folder of images for each class |
    | `"flowers.csv:label=species"`, `"my.npz"` | a file |
    | `"my_module:function:option=value"` | what a function of one's own returns: any row of this table |
    | `(inputs, labels)` | arrays, divided at random; also two or three such pairs (see `from_python`) |
    | a PyTorch `Dataset` | any object with `__len__` and `__getitem__` -> (input, label); or two or three |
    | a `Dataset` | itself |

    A name is taken before a file of the same name: write `./mnist` for the file.

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
    name, _, _ = what.partition(":")
    if not registry.has("data", name) and (path := _path(what)) is not None:
        return _call(_reader(*path), options)  # type: ignore[no-any-return]
    spec = parse("data", what)
    made = _call(spec, options)
    return made if isinstance(made, Dataset) else from_python(made, name=str(spec))


def _path(text: str) -> tuple[Path, str] | None:
    """The path in `path` or `path:option=value`, and the options; None when the text can be no path."""
    cuts = [(text, "")]
    before, _, after = text.rpartition(":")
    if "=" in after:
        cuts.append((before, after))
    for place, options in cuts:
        if place and (path := _at_home(place)).exists():
            return path, options
    place = cuts[-1][0]
    if os.sep in place or Path(place).suffix in READERS or place.startswith(("~", ".")):
        raise UsageError(f"no such file or folder: {place}")
    return None


def _reader(path: Path, options: str) -> Spec:
    """The loader of this file or folder, with its options."""
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
    spec = parse("data", f"{reader}:path=-,{options}")
    return dataclasses.replace(spec, options=spec.options | {"path": str(path)})


def _call(spec: Spec, options: dict[str, Any]) -> Any:
    _check(spec.name, spec.target, options)
    return dataclasses.replace(spec, options=spec.options | options).make()


def _check(name: str, target: Callable[..., Any], options: dict[str, Any]) -> None:
    known = [key for key in options_of(target, "data") if key != "thing"]
    for key in options:
        if key not in known:
            raise unknown(f"option of {name}", key, known)


def _at_home(place: str) -> Path:
    """A path with `~` resolved; that of a user there is none of is a name like any other."""
    try:
        return Path(place).expanduser()
    except RuntimeError:
        return Path(place)
