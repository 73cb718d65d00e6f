"""How a vector is cut into parts: pure arithmetic, the same on every rank."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise


@lru_cache(maxsize=256)
def cut(n: int, parts: int, align: int = 1) -> tuple[slice, ...]:
    """`parts` neighbouring slices of n elements, as even as can be, starting at multiples of `align`.

    >>> cut(10, 4)
    (slice(0, 3, None), slice(3, 6, None), slice(6, 8, None), slice(8, 10, None))
    >>> [part.stop for part in cut(100, 3, align=16)]
    [48, 80, 100]
    """
    units, rest = divmod(-(-n // align), parts)
    stops = [min(n, align * (units * k + min(k, rest))) for k in range(parts + 1)]
    return tuple(slice(a, b) for a, b in pairwise(stops))


def length(part: slice) -> int:
    """The number of elements in a slice that `cut` made.

    >>> [length(part) for part in cut(10, 4)]
    [3, 3, 2, 2]
    """
    return int(part.stop - part.start)
