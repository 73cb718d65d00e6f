"""Which master owns which part of the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.collectives import cut
from paceline.errors import UsageError

Placement = Literal["layers", "even"]
# The even parts of x begin at multiples of so many numbers: cache lines of float32.
ALIGNED = 16


@dataclass(frozen=True)
class Piece:
    """A part of x with one owner."""

    number: int
    master: int
    part: slice
    layers: tuple[int, ...]
    """The layers that it holds, or holds a part of: its gradient is complete when theirs are."""


def place(layers: Sequence[slice], masters: int, placement: Placement) -> list[Piece]:
    """Divide x, which has these layers, among masters 0 … masters-1.

    `layers`: every layer has one owner; the largest go first, each to the master that has least (Graham, 1969), the
    last of several: master 0, which has other things to do, ends up with little.
    `even`: one contiguous part for each master, equally long.

    >>> net = [slice(0, 100), slice(100, 130), slice(130, 140)]
    >>> [(piece.master, piece.part) for piece in place(net, 2, "layers")]
    [(1, slice(0, 100, None)), (0, slice(100, 130, None)), (0, slice(130, 140, None))]
    >>> [(piece.master, piece.part, piece.layers) for piece in place(net, 2, "even")]
    [(0, slice(0, 80, None), (0,)), (1, slice(80, 140, None), (0, 1, 2))]
    """
    size = layers[-1].stop
    if placement == "even":
        parts = cut(size, masters, align=ALIGNED if size >= 4 * ALIGNED * masters else 1)
        return [
            Piece(m, m, part, tuple(i for i, layer in enumerate(layers) if _overlap(layer, part)))
            for m, part in enumerate(parts)
        ]
    load = [0] * masters
    owner = [0] * len(layers)
    for i in sorted(range(len(layers)), key=lambda i: layers[i].start - layers[i].stop):
        owner[i] = max(range(masters), key=lambda m: (-load[m], m))
        load[owner[i]] += layers[i].stop - layers[i].start
    return [Piece(i, owner[i], layer, (i,)) for i, layer in enumerate(layers)]


def check(layers: Sequence[slice], masters: int, placement: Placement) -> None:
    """Refuse more masters than there is to own."""
    if placement == "layers" and masters > len(layers):
        raise UsageError(
            f"{masters} masters cannot each own a layer of a model that has {len(layers)}; "
            f"choose at most {len(layers)} masters, or placement=even"
        )
    if masters > layers[-1].stop:
        raise UsageError(f"{masters} masters cannot divide {layers[-1].stop} parameters")


def _overlap(one: slice, other: slice) -> bool:
    return bool(one.start < other.stop and other.start < one.stop)
