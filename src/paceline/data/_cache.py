"""A cache of arrays that are built once and then memory-mapped, so that all processes of a node share one copy.

    PACELINE_CACHE, or XDG_CACHE_HOME/paceline, or ~/.cache/paceline
      mnist-1f0c…/          one entry: its name and the fingerprint of its source
        images.npy labels.npy
        entry.json          the size of each file; an entry that does not match it, or has none, is built again

An entry is built in a folder beside it and renamed into place, under a lock: a second process that needs it at the same
time waits and maps the result of the first.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from paceline.errors import UsageError, reason

RANDOM = 8  # characters that mkdtemp appends

Array = NDArray[Any]
New = Callable[[str, tuple[int, ...], DTypeLike], Array]
"""`new("images", (70000, 28, 28), np.uint8)` creates one array of the entry, in its mapped file."""


def load_or_build(name: str, fingerprint: str, build: Callable[[New], None]) -> dict[str, Array]:
    """Return the arrays of an entry, read-only and memory-mapped; `build` creates them if they do not exist yet.

    >>> def squares(new):
    ...     new("squares", (4,), np.int64)[:] = [0, 1, 4, 9]
    >>> load_or_build("doctest-squares", "1", squares)["squares"].tolist()
    [0, 1, 4, 9]
    """
    for folder in cache_folders():
        entry = _entry(folder, name, fingerprint)
        if (arrays := _open(entry)) is not None:
            return arrays
    folder = _find_writable()
    entry = _entry(folder, name, fingerprint)
    try:
        with _lock_entry(folder / f"{name}.lock") as alone:
            if (arrays := _open(entry)) is not None:
                return arrays
            if alone:
                _sweep(folder, name)
            _make(entry, name, build)
            arrays = _open(entry)
    except OSError as error:
        if error.filename is not None and not str(error.filename).startswith(str(folder)):
            raise UsageError(f"cannot read {error.filename}: {reason(error)}") from None
        raise UsageError(
            f"cannot write to the cache {folder}: {reason(error)}; set PACELINE_CACHE to another folder"
        ) from None
    if arrays is None:
        raise UsageError(
            f"the cache entry {entry} could not be read back; set PACELINE_CACHE to another folder"
        )
    return arrays


def cache_folders() -> list[Path]:
    """Return the possible cache folders, the preferred one first."""
    if given := os.environ.get("PACELINE_CACHE"):
        return [Path(given).expanduser()]
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    spare = Path(tempfile.gettempdir()) / f"paceline-{os.getuid()}"
    try:
        own = spare.lstat().st_uid == os.getuid()  # any user may create folders in the temporary directory
    except OSError:
        own = True
    return [Path(base).expanduser() / "paceline", *([spare] if own else [])]


def release(array: Array) -> None:
    """Let the kernel write out a mapped array and drop it from memory; it stays readable."""
    mapped = getattr(array, "_mmap", None)
    if mapped is not None:
        mapped.madvise(mmap.MADV_DONTNEED)


def state(*files: Path | str) -> str:
    """Return a fingerprint of the files, which changes when one of them is written again."""
    stats = map(os.stat, files)
    return " ".join([f"{file} {s.st_size} {s.st_mtime_ns}" for file, s in zip(files, stats, strict=True)])


def entry_name(kind: str, path: Path, *options: object) -> str:
    """Return the name of the entry for a file or folder that is read with the given options."""
    stem = "".join(c if c.isascii() and c.isalnum() else "-" for c in path.name)[:40]
    return f"{kind}-{stem}-{_digest(str(path.resolve()), *options)}"


def _entry(folder: Path, name: str, fingerprint: str) -> Path:
    return folder / f"{name}-{_digest(fingerprint)}"


def _digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode(errors="surrogateescape")).hexdigest()[:16]


def _find_writable() -> Path:
    tried = cache_folders()
    for folder in tried:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError:
            continue
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    raise UsageError(f"cannot write to the cache {tried[0]}; set PACELINE_CACHE to another folder")


@contextlib.contextmanager
def _lock_entry(path: Path) -> Iterator[bool]:
    """Wait until no other process builds the entry; yield False if the file system has no locks."""
    import fcntl

    with path.open("w") as file:
        # Some network file systems have no locks. Then every process builds, and the first to rename wins.
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            alone = True
        except OSError:
            alone = False
        yield alone


def _open(entry: Path) -> dict[str, Array] | None:
    """Return the arrays of an entry, or None when it is missing, incomplete or damaged."""
    try:
        sizes = json.loads((entry / "entry.json").read_text())
        if not sizes:
            return None
        arrays: dict[str, Array] = {}
        for name, size in sizes.items():
            path = entry / f"{name}.npy"
            if path.stat().st_size != size:
                return None
            # A plain array: indexing an np.memmap takes microseconds longer.
            arrays[name] = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
        return arrays
    except Exception:  # damaged headers make NumPy raise exceptions of many kinds
        return None


def _make(entry: Path, name: str, build: Callable[[New], None]) -> None:
    work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=entry.parent))
    try:
        made: dict[str, np.memmap[Any, Any]] = {}

        def new(array: str, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
            made[array] = _create_mapped(work / f"{array}.npy", shape, np.dtype(dtype))
            return made[array]

        build(new)
        for array in made.values():
            array.flush()
        sizes = {array: (work / f"{array}.npy").stat().st_size for array in made}
        (work / "entry.json").write_text(json.dumps(sizes))
        for old in entry.parent.glob(f"{name}-*"):  # of an earlier version of the source, or damaged
            if len(old.name) == len(entry.name) and (old != entry or _open(old) is None):
                _remove(old)
        with contextlib.suppress(OSError):  # a process without a lock was faster
            work.rename(entry)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _sweep(folder: Path, name: str) -> None:
    """Remove the remains of interrupted builds of this entry."""
    for left in folder.glob(f".{name}-*"):
        if len(left.name) == len(f".{name}-") + RANDOM:  # not those of an entry with a longer name
            _remove(left)


def _remove(entry: Path) -> None:
    if entry.is_dir():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        entry.unlink(missing_ok=True)


def _create_mapped(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.memmap[Any, Any]:
    """Create a mapped .npy file, and reserve its space on the disk: writing to a map on a full disk kills the process."""
    mapped = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    with path.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        except OSError as error:
            # Not every file system supports it.
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
    return mapped


# ---- the data that come with paceline


FOLDER = Path(__file__).parent / "files"

# Digests of the arrays' bytes, inputs first. They identify the cache entries; a test compares the files with them.
SHA256 = {
    "mnist": "c2069063c1105f2bf96266aef1ff68c6e13bdda7a54e37bf19c16f1db24efc83",
    "digits": "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826",
    "iris": "b6ae2f075937fb96b4d06f56b6b12a23dcf0db8d27f41824f0fa7ca6e8559b4c",
}


def load_shipped(name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the inputs and labels of a data set that comes with paceline, memory-mapped.

    >>> inputs, labels = load_shipped("iris")
    >>> inputs.shape, labels.shape
    ((150, 4), (150,))
    """

    def build(new: New) -> None:
        with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
            inputs, labels = file["inputs"], file["labels"]
        new("inputs", inputs.shape, inputs.dtype)[...] = inputs
        new("labels", labels.shape, np.int64)[...] = labels

    arrays = load_or_build(name, SHA256[name], build)
    return arrays["inputs"], arrays["labels"]
