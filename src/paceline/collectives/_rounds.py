"""The messages of a collective, of all ranks at once, round by round.

    in each round a rank receives at most one message and sends at most one
    Irecv; Isend; wait for what it receives; (combine); wait for what it sends; (combine)

The simulator evaluates such rounds for all ranks with a few operations on arrays, instead of message by message. An
algorithm's file that has `rounds` and `total` beside its `allreduce` describes the same messages and additions twice, and
a test holds them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.comm import Operation

Array = NDArray[Any]
Ranks = NDArray[np.intp]


class Round(NamedTuple):
    """Message i goes from rank `senders[i]` to rank `receivers[i]`; both have each rank at most once."""

    senders: Ranks
    receivers: Ranks
    elements: int | Ranks
    """In each message."""
    work: Sequence[tuple[str, Ranks | slice]] = ()
    """Kinds of work on the elements that came, and the messages whose receivers do it."""
    works_first: bool = False
    """True if that is done before waiting for the message that was sent."""


class Whole(NamedTuple):
    """A collective as seen from outside."""

    rounds: Callable[[int, int, bool], Iterator[Round]]
    """The rounds for a number of ranks and of elements; whether the result replaces what was given."""
    total: Callable[[Sequence[Array], Array, Operation], None]
    """Combines the arrays of all ranks, in the same order of operations."""
