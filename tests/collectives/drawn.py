"""Random allreduce cases that every rank draws alike from one seed, with the answer worked out by each.

Values are small whole numbers, so that sums and products are exact in any order and in any dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

DTYPES = [*"?bBhHiIlLefdgFDG", ">f4", ">i8", ">c16"]
LAYOUTS = ("C", "F", "strided", "reversed", "unaligned", "transposed")


def added(a: Any, b: Any) -> Any:
    return a + b


def operations(MPI: Any, dtype: np.dtype) -> list[Any]:
    """What may be given as op for this dtype."""
    every = [np.add, np.multiply, MPI.SUM, MPI.PROD, added, np.logical_or, MPI.LAND]
    if dtype.kind != "c":
        every += [np.maximum, np.minimum, MPI.MAX, MPI.MIN]
    if dtype.kind in "iu":
        every += [np.bitwise_and, np.bitwise_or, np.bitwise_xor, MPI.BAND, MPI.BOR, MPI.BXOR, np.gcd]
    return every


def reference(op: Any, MPI: Any) -> Any:
    """The function of two arrays that `op` stands for, said here a second time."""
    return {
        "SUM": np.add, "PROD": np.multiply, "MAX": np.maximum, "MIN": np.minimum, "LAND": np.logical_and,
        "BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor,
    }[next(n for n in dir(MPI) if getattr(MPI, n) == op)] if isinstance(op, MPI.Op) else op  # fmt: skip


@dataclass
class Drawn:
    shape: tuple[int, ...]
    dtype: np.dtype
    op: Any
    in_place: bool
    values: list[np.ndarray]
    expected: np.ndarray
    layout: str

    def __str__(self) -> str:
        return f"{self.shape} {self.dtype} {self.op} in_place={self.in_place} {self.layout}"


def draw(rng: np.random.Generator, ranks: int, MPI: Any) -> Drawn:
    dtype = np.dtype(rng.choice(DTYPES))
    dims = int(rng.integers(0, 4))
    longest = (1, 300, 20, 7)[dims]
    shape = tuple(int(n) for n in rng.integers(0, longest + 1, dims)) if rng.random() < 0.9 else (0, 3)[:dims]
    choices = operations(MPI, dtype)
    op = choices[rng.integers(len(choices))]
    values = [rng.integers(0, 3, shape).astype(dtype) for _ in range(ranks)]
    function = reference(op, MPI)
    expected = values[0]
    for value in values[1:]:
        expected = np.asarray(function(expected, value)).astype(dtype)
    return Drawn(shape, dtype, op, bool(rng.random() < 0.4), values, expected, str(rng.choice(LAYOUTS)))


def laid_out(values: np.ndarray, layout: str) -> np.ndarray:
    """An array equal to `values` that lies in memory in another way."""
    if layout == "F":
        return np.array(values, order="F")
    if layout == "strided" and values.ndim:
        wide = np.zeros((*values.shape[:-1], 2 * values.shape[-1]), values.dtype)
        made = wide[..., ::2]
    elif layout == "reversed" and values.ndim:
        made = np.zeros(values.shape, values.dtype)[::-1]
    elif layout == "unaligned":
        made = np.zeros(values.nbytes + 1, np.uint8)[1:].view(values.dtype).reshape(values.shape)
    elif layout == "transposed":
        made = np.zeros(values.shape[::-1], values.dtype).T
    else:
        made = np.zeros(values.shape, values.dtype)
    made[...] = values
    return made
