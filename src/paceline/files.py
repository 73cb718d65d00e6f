"""Writing files completely or not at all, and JSON."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import UsageError


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file that replaces `path` once everything has been written to it.

    >>> folder = Path(tempfile.mkdtemp())
    >>> with replacing(folder / "a.txt") as file:
    ...     _ = file.write(b"whole")
    >>> [p.name for p in folder.iterdir()]
    ['a.txt']
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644 & ~_umask())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def check_place(path: Path) -> None:
    """Raise a UsageError if a file could not be written: it is a folder, or its folder is missing or not writable.

    >>> check_place(Path("/nope/trace.json"))
    Traceback (most recent call last):
    paceline.errors.UsageError: cannot write /nope/trace.json: there is no folder /nope
    """
    try:
        if path.is_dir():
            raise UsageError(f"cannot write {path}: it is a folder")
    except OSError as error:
        raise cannot(path, error) from None
    check_folder(path, path.parent)


def check_folder(path: Path, folder: Path) -> None:
    """Raise a UsageError about `path` if nothing can be written to `folder`."""
    try:
        if not folder.is_dir():
            raise UsageError(f"cannot write {path}: there is no folder {folder}")
        # Permissions are not enough: file systems can be read-only.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise cannot(path, error) from None


def cannot(path: Path, error: OSError) -> UsageError:
    """Return the error for a file or folder that could not be written."""
    return UsageError(f"cannot write {path}: {(error.strerror or str(error)).lower()}")


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return `value` as JSON; NaN and infinity, which JSON does not have, become null.

    >>> json_text({"loss": float("nan"), "steps": 3})
    '{"loss": null, "steps": 3}'
    >>> json_text({"tau": np.arange(2), "mean": np.float32(0.5)})
    '{"tau": [0, 1], "mean": 0.5}'
    """
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` as JSON, completely or not at all."""
    with replacing(path) as file:
        file.write(json_text(value, indent=2).encode() + b"\n")


def write_arrays(path: Path, arrays: dict[str, NDArray[Any]], *, compress: bool = False) -> None:
    """Write named arrays to one .npz file, completely or not at all, without pickle."""
    # savez has allow_pickle only since NumPy 2.2; older versions would store an array of that name.
    if objects := [name for name, array in arrays.items() if np.asarray(array).dtype.hasobject]:
        raise ValueError(f"cannot write Python objects to {path}: {', '.join(objects)}")
    save: Callable[..., None] = np.savez_compressed if compress else np.savez
    with replacing(path) as file:
        save(file, **arrays)


def _finite(value: Any) -> Any:
    """Return the value with None instead of floats that JSON cannot represent."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
