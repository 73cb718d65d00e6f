"""What to measure: read from the command line, checked before anything starts."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline import names as registry
from paceline.errors import UsageError, unknown

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
PICTURES = (".png", ".svg", ".pdf")
STEP = 4  # between the sizes of a range


@dataclass(frozen=True, kw_only=True)
class Question:
    """Which collectives, on how many ranks, with how many bytes, how often."""

    ranks: tuple[int, ...]
    sizes: tuple[int, ...]
    algorithms: tuple[str, ...]
    dtype: str
    repeats: int
    seconds: float

    def __post_init__(self) -> None:
        try:
            kind = np.dtype(self.dtype)
        except TypeError:
            raise UsageError(f"dtype must be one of NumPy's numbers; got {self.dtype!r}") from None
        if kind.kind not in "iufc":
            raise UsageError(f"dtype must be one of NumPy's numbers; got {self.dtype!r}")
        for ranks in self.ranks:
            if ranks < 2:
                raise UsageError(f"an allreduce needs at least 2 ranks; got {ranks}")
        for name in self.algorithms:
            if name not in registry.names("collectives"):
                raise unknown("collective", name, registry.names("collectives"))
        for size in self.sizes:
            if size < 1 or size % kind.itemsize:
                raise UsageError(
                    f"sizes must be multiples of {self.dtype}'s {kind.itemsize} bytes; got {size}"
                )
        if self.repeats < 1:
            raise UsageError(f"repeats must be at least 1; got {self.repeats}")
        if not (self.seconds > 0 and math.isfinite(self.seconds)):
            raise UsageError(f"seconds must be more than 0 and have an end; got {self.seconds:g}")


def read_ranks(text: str) -> tuple[int, ...]:
    """Numbers of ranks, in the order given.

    >>> read_ranks("2,4,8")
    (2, 4, 8)
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise UsageError(f"-n takes numbers of ranks like 2,4,8; got {text!r}")
    return tuple(dict.fromkeys(int(word) for word in words))


def read_sizes(text: str) -> tuple[int, ...]:
    """Sizes in bytes, from a list, or from a range in which each is four times the one before.

    >>> read_sizes("1KiB..64KiB,437544")
    (1024, 4096, 16384, 65536, 437544)
    """
    sizes: set[int] = set()
    for word in text.split(","):
        first, dots, last = word.partition("..")
        low = _bytes(first, text)
        high = _bytes(last, text) if dots else low
        if low < 1 or high < low:
            raise UsageError(f"sizes must rise from at least 1 byte; got {word!r}")
        while low <= high:
            sizes.add(low)
            low *= STEP
    return tuple(sorted(sizes))


def _bytes(word: str, text: str) -> int:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", word)
    if match is None or match[2].upper() not in UNITS:
        raise UsageError(f"sizes are given like 1KiB..64MiB or 4096,437544,16MiB; got {text!r}")
    size = float(match[1]) * UNITS[match[2].upper()]
    if size != int(size):
        raise UsageError(f"sizes must be whole bytes; got {word.strip()!r}")
    return int(size)


def check_file(option: str, path: Path | None, endings: tuple[str, ...] = ()) -> None:
    """Refuse a file that could not be written at the end."""
    if path is None:
        return
    if endings and path.suffix.lower() not in endings:
        raise UsageError(f"{option} must end in {', '.join(endings)}; got {path}")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"{option} must be a file in a folder that exists; got {path}")


def spell(nbytes: int) -> str:
    """A size as people write it.

    >>> spell(1024), spell(437544), spell(64 << 20)
    ('1 KiB', '427.3 KiB', '64 MiB')
    """
    size, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f}".removesuffix(".0") + f" {unit}"
