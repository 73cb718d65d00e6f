"""A folder of IDX files, the format of MNIST and Fashion-MNIST, plain or .gz.

`train-images-idx3-ubyte` and `train-labels-idx1-ubyte`, the same with `t10k` or `test`, and optionally `validation`.
Plain files of bytes are memory-mapped where they are; others are unpacked once into the cache.
"""

from __future__ import annotations

import gzip
import math
import re
import struct
import zlib
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paceline.data._cache import New, entry_name, load_or_build, state
from paceline.data._dataset import ArraySplit, Dataset, cut
from paceline.data._samples import check_inputs, check_labels
from paceline.errors import UsageError

Array = NDArray[Any]

# Element types, by the third byte of the file.
TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
PARTS = {"train": "train", "t10k": "test", "test": "test", "validation": "validation"}


class _Readable(Protocol):
    def read(self, count: int, /) -> bytes: ...


def load(*, path: str, validation: float = 1 / 6, test: float = 0.1, scale: float | None = None) -> Dataset:
    """Load the images and labels of a folder; parts that it does not have are cut off the end of train.

    `path`: the folder.
    `validation`: the samples to cut off for validation if there are none: a fraction, or their number from 1 on.
    `test`: the samples to cut off for testing if there are none, in the same way.
    `scale`: the factor of images of bytes; by default 1/255.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UsageError(f"no such folder: {folder}")
    found = files_in(folder)
    for needed in ("images", "labels"):
        if ("train", needed) not in found:
            raise UsageError(
                f"{folder}: no training {needed}; expected a file like train-{needed}-idx3-ubyte or .gz"
            )
    arrays: dict[str, tuple[Array, Array]] = {}
    classes = None
    for part in ("train", "validation", "test"):
        if (part, "images") not in found:
            continue
        if (part, "labels") not in found:
            raise UsageError(f"{folder}: {found[part, 'images'].name} has no labels beside it")
        images, labels = read(found[part, "images"]), read(found[part, "labels"])
        check_inputs(found[part, "images"].name, images)
        classes = check_labels(found[part, "labels"].name, labels, len(images), classes, each=part == "train")
        if images.shape[1:] != (shape := arrays.get("train", (images,))[0].shape[1:]):
            raise UsageError(
                f"{folder}: images must have one size; train has {shape}, {part} {images.shape[1:]}"
            )
        arrays[part] = images, labels
    images, labels = arrays["train"]
    amounts = (0.0 if "validation" in arrays else validation, 0.0 if "test" in arrays else test)
    pieces = cut(str(folder), np.arange(len(images)), *amounts)
    splits: dict[str, ArraySplit] = {}
    for part, piece in zip(("train", "validation", "test"), pieces, strict=True):
        if part in arrays and part != "train":
            splits[part] = ArraySplit(*arrays[part], scale=scale)
        else:
            start, stop = (int(piece[0]), int(piece[-1]) + 1) if len(piece) else (0, 0)
            splits[part] = ArraySplit(images[start:stop], labels[start:stop], scale=scale)
    return Dataset(
        name=folder.resolve().name,
        shape=images.shape[1:],
        classes=classes or 0,
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
    )


def files_in(folder: Path) -> dict[tuple[str, str], Path]:
    """Find the IDX files of a folder, by contents: ("train", "images") and so on; plain files before .gz."""
    found: dict[tuple[str, str], Path] = {}
    for file in sorted(folder.iterdir(), key=lambda file: (file.suffix == ".gz", file.name)):
        words = re.split(r"[-_.]", file.name.lower())
        part = next((PARTS[word] for word in words if word in PARTS), None)
        kind = next((word for word in words if word in ("images", "labels")), None)
        if part is None or kind is None or not any(word.startswith(("idx", "ubyte")) for word in words):
            continue
        before = found.setdefault((part, kind), file)
        if before != file and before.name != file.stem:
            raise UsageError(f"{folder}: one file of {part} {kind} is needed; got {before.name}, {file.name}")
    return found


def read(path: Path) -> Array:
    """Return the array of one IDX file, memory-mapped."""
    if path.suffix != ".gz":
        with path.open("rb") as file:
            kind, shape, start = _header(path, file)
        promised, there = math.prod(shape) * kind.itemsize, path.stat().st_size - start
        if there != promised:
            raise _wrong_size(path, promised, there)
        if kind.itemsize == 1 and promised:
            return np.asarray(np.memmap(path, kind, "r", start, shape))
    return load_or_build(entry_name("idx", path), state(path), lambda new: _unpack(path, new))["array"]


def _unpack(path: Path, new: New) -> None:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        try:
            kind, shape, _ = _header(path, file)
            promised = math.prod(shape) * kind.itemsize
            if promised > 1100 * path.stat().st_size:  # more than gzip can pack
                raise _wrong_size(path, promised, None)
            if promised == 0:
                raise UsageError(f"{path}: there are no samples; its header says {shape}")
            array = new("array", shape, kind.newbyteorder("="))
            flat, done = array.reshape(-1), 0
            while done < len(flat) and (piece := file.read(min(1 << 20, promised - done * kind.itemsize))):
                if len(piece) % kind.itemsize:
                    break
                values = np.frombuffer(piece, kind)
                flat[done : done + len(values)] = values
                done += len(values)
            if done < len(flat) or file.read(1):
                raise _wrong_size(path, promised, None if done == len(flat) else done * kind.itemsize)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UsageError(f"{path}: truncated or damaged .gz file ({str(error).lower()})") from None


def _header(path: Path, file: _Readable) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    magic = file.read(4)
    if not magic:
        raise UsageError(f"{path}: the file is empty")
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES or magic[3] == 0:
        raise UsageError(
            f"{path}: not an IDX file: its magic number is 0x{magic.hex()}, not 0x00000801 or 0x00000803"
        )
    raw = file.read(4 * magic[3])
    if len(raw) < 4 * magic[3]:
        raise UsageError(f"{path}: truncated: the file ends inside its header")
    return np.dtype(TYPES[magic[2]]), struct.unpack(f">{magic[3]}I", raw), 4 + 4 * magic[3]


def _wrong_size(path: Path, promised: int, there: int | None) -> UsageError:
    amount = "another amount" if there is None else f"{there} bytes"
    what = "truncated" if there is not None and there < promised else "damaged"
    return UsageError(f"{path}: {what}: its header promises {promised} bytes of data, the file has {amount}")
