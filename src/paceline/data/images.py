"""A folder of images with one sub-folder for each class, or with train, validation and test folders of that kind.

Images are decoded once, in parallel, into the cache, and memory-mapped from then on. The classes are the sub-folders in
sorted order. A colour image is (3, height, width), a grey one (height, width).
"""

from __future__ import annotations

import logging
import math
import os
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.data._cache import New, entry_name, load_or_build, release, state
from paceline.data._dataset import ArraySplit, Dataset, Split, divide
from paceline.errors import UsageError
from paceline.files import MOST_COMPRESSED, open_file
from paceline.text import progress

Array = NDArray[Any]

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
PARTS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val"),
    "test": ("test", "testing"),
}
# A file of any size may hold an image of this many bytes; a larger image needs a file that explains it.
ROOM = 16 << 20
# Decoded images are handed to the kernel after this many bytes, so that the process stays small.
RELEASE_AFTER = 64 << 20


def load(
    *,
    path: str,
    size: str | None = None,
    color: bool = True,
    validation: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
) -> Dataset:
    """Load the images of a folder; a part that it does not have is cut from train at random, each class evenly.

    `path`: the folder.
    `size`: the size to which images are resized: 150, or 200x150 for width and height; by default all must have the same.
    `color`: read images in colour, not in grey.
    `validation`: the samples to cut off for validation if there are none: a fraction, or their number from 1 on.
    `test`: the samples to cut off for testing if there are none, in the same way.
    `seed`: which random division into parts to use.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UsageError(f"no such folder: {folder}")
    parts, names = _find(folder)
    width_height = _size(size)
    everything = [file for files in parts.values() for file, _ in files]
    with _silence_pillow():
        arrays = load_or_build(
            entry_name("images", folder, size, color),
            state(*everything),
            lambda new: _decode(folder, parts, width_height, color, new),
        )
    splits: dict[str, Split] = {
        part: ArraySplit(arrays[f"{part}_inputs"], arrays[f"{part}_labels"]) for part in parts
    }
    return divide(
        folder.resolve().name,
        splits["train"],
        arrays["train_labels"],
        classes=len(names),
        validation=splits.get("validation", validation),
        test=splits.get("test", test),
        seed=seed,
        class_names=names,
    )


Files = list[tuple[str, int]]
"""Image files, each with the number of its class."""


def _find(folder: Path) -> tuple[dict[str, Files], tuple[str, ...]]:
    """Find the images of each part and the names of the classes."""
    below = {part: inner for part in PARTS if (inner := _part(folder, part)) is not None}
    if "train" not in below:
        below = {"train": folder}
    taken = ", ".join(f"{inner.relative_to(folder)} as {part}" for part, inner in below.items())
    where = str(folder) if below == {"train": folder} else f"{folder} ({taken})"
    names = [entry.name for entry in _folders(below["train"])]
    if not names:
        raise UsageError(f"{where}: neither IDX files nor sub-folders of images, one for each class")
    parts: dict[str, Files] = {}
    for part, inner in below.items():
        parts[part] = []
        for entry in _folders(inner):
            if entry.name not in names:
                raise UsageError(f"{where}: {part} has a class that train does not have: {entry.name!r}")
            with os.scandir(entry) as inside:  # strings: faster than paths, of which there may be millions
                files = sorted(file.path for file in inside if file.name.lower().endswith(SUFFIXES))
            if not files and part == "train":
                raise UsageError(f"{where}: every class needs a sample; {entry.name!r} has no images")
            parts[part] += [(file, names.index(entry.name)) for file in files]
    return {part: files for part, files in parts.items() if files}, tuple(names)


def _part(folder: Path, part: str) -> Path | None:
    """Find the folder of one part: `train`, or `seg_train/seg_train` as in some archives.

    It must hold sub-folders, one for each class: a folder `train` of images is a class of that name.
    """
    for entry in _folders(folder):
        if entry.name.lower().split("_")[-1] in PARTS[part]:
            inner = entry / entry.name if (entry / entry.name).is_dir() else entry
            if _folders(inner):
                return inner
    return None


def _folders(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _size(text: str | None) -> tuple[int, int] | None:
    """Return width and height."""
    if text is None:
        return None
    words = str(text).split("x")
    if len(words) > 2 or not all(word.isdigit() and int(word) > 0 for word in words):
        raise UsageError(f"size of images must be a number, or width x height such as 200x150; got {text!r}")
    return int(words[0]), int(words[-1])


def _decode(
    folder: Path, parts: dict[str, Files], size: tuple[int, int] | None, color: bool, new: New
) -> None:
    first = parts["train"][0][0]
    width, height = size or _read(first, None, color).shape[-2:][::-1]
    shape = (3, height, width) if color else (height, width)
    outputs: dict[str, Array] = {}
    for part, files in parts.items():
        outputs[part] = new(f"{part}_inputs", (len(files), *shape), np.uint8)
        new(f"{part}_labels", (len(files),), np.int64)[:] = [number for _, number in files]
    work = iter([(part, row) for part, files in parts.items() for row in range(len(files))])
    every = max(1, RELEASE_AFTER // math.prod(shape))
    lock, stop = threading.Lock(), threading.Event()
    done = 0

    def decode() -> None:
        nonlocal done
        for part, row in work:  # shared by all threads: a free one takes the next image
            if stop.is_set():
                return
            file = parts[part][row][0]
            image = _read(file, size, color)
            if image.shape != shape:
                sizes = f"{Path(first).name} is {width}x{height}, this is {image.shape[-1]}x{image.shape[-2]}"
                raise UsageError(
                    f"{file}: images must have one size; {sizes}; write {folder}:size={width}x{height}"
                )
            outputs[part][row] = image
            with lock:
                done += 1
                show(done)
                if done % every == 0:
                    for array in outputs.values():
                        release(array)

    threads = len(os.sched_getaffinity(0))  # Pillow releases the GIL while it decodes
    total = sum(map(len, parts.values()))
    with progress(f"decoding {folder.name}", total) as show, ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(decode) for _ in range(threads)]
        try:
            for ended in as_completed(running):
                ended.result()
        finally:
            stop.set()


@contextmanager
def _silence_pillow() -> Iterator[None]:
    """Silence Pillow, which warns of metadata that are not used, and logs what it then raises."""
    log = logging.getLogger("PIL")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"PIL\.")
            yield
    finally:
        log.setLevel(before)


def _read(file: str, size: tuple[int, int] | None, color: bool) -> Array:
    from PIL import Image, UnidentifiedImageError

    mode = "RGB" if color else "L"
    try:
        with open_file(file) as stored, Image.open(stored) as opened:
            room = ROOM + MOST_COMPRESSED * os.fstat(stored.fileno()).st_size
            if 3 * opened.width * opened.height > room:
                raise ValueError(
                    f"{opened.width}x{opened.height} pixels in a file that is too small for them"
                )
            if size is not None:
                opened.draft(mode, size)  # JPEG: decode at a fraction of the full size where that is enough
            image = opened.convert(mode)
        if size is not None and image.size != size:
            image = image.resize(size, Image.Resampling.BILINEAR, reducing_gap=2.0)
    except UsageError:
        raise
    except Exception as error:  # the decoders of Pillow raise exceptions of many kinds for damaged files
        unknown = isinstance(error, UnidentifiedImageError)  # its message names an object of Python
        why = "" if unknown else " ".join(str(error).split())[:200].lower() or type(error).__name__
        why = why or "its format is unknown, or it is damaged"
        raise UsageError(f"{file}: not a readable image ({why})") from None
    array = np.asarray(image)
    return np.moveaxis(array, -1, 0) if color else array
