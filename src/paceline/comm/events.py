"""What a rank did and when: spans of its time and calls of MPI, written down as they end, up to a limit."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.comm.calls import RECEIVES, SENDS, TOGETHER, WAITS
from paceline.comm.control import Control
from paceline.comm.stopwatch import KINDS

Array = NDArray[Any]
FENCE = "Fence"
"""All ranks that share memory have come to the same place."""
CALLS = (*SENDS, *RECEIVES, *WAITS, *TOGETHER, *(f"I{name.lower()}" for name in TOGETHER), FENCE)
NAMES = (*KINDS, *CALLS)
CODES = {name: code for code, name in enumerate(NAMES)}
COLUMNS = ("kind", "peer", "tag", "bytes", "comm", "start", "end", "done")
TYPES = {
    "kind": np.uint8,
    "peer": np.int32,
    "tag": np.int32,
    "bytes": np.int64,
    "comm": np.uint32,
    "done": np.int64,
}
WIDTH, DONE, PEER, TAG = len(COLUMNS), COLUMNS.index("done"), COLUMNS.index("peer"), COLUMNS.index("tag")
# Events of all ranks together, and of one; no rank has fewer than the least.
IN_ALL, OF_ONE, LEAST = 2_000_000, 200_000, 1_000


def limit_for(ranks: int) -> int:
    """How many events each of so many ranks keeps: the first ones.

    >>> limit_for(1), limit_for(100), limit_for(100_000)
    (200000, 20000, 1000)
    """
    return max(LEAST, min(OF_ONE, IN_ALL // ranks))


class Events:
    """The events of one rank, in the order in which they ended.

    >>> events = Events(clock=lambda: 0.0, limit=2)
    >>> events.lap("compute", 0.0, 1.5)
    >>> [events.add("Isend", 1.5, 1.6, peer=3, nbytes=40), events.add("Wait", 1.6, 1.7), events.lost]
    [1, -1, 1]
    """

    def __init__(self, clock: Callable[[], float], limit: int) -> None:
        self.clock = clock
        self.rows = array("d")
        self.lost = 0
        """Events that were not kept: there was no more room."""
        self._full = limit * WIDTH

    def add(
        self,
        name: str,
        start: float,
        end: float,
        peer: int = -1,
        tag: int = -1,
        nbytes: int = 0,
        comm: int = 0,
    ) -> int:
        """Write one down; its number, or -1 where there is no more room."""
        rows = self.rows
        if len(rows) >= self._full:
            self.lost += 1
            return -1
        rows.extend((CODES[name], peer, tag, nbytes, comm, start, end, -1))
        return len(rows) // WIDTH - 1

    def lap(self, kind: str, start: float, end: float) -> None:
        """A span of this rank's time; one of no length tells nothing."""
        if end > start:
            self.add(kind, start, end)

    def completed(self, number: int, by: int, source: int = -1, tag: int = -1) -> None:
        """What event `number` began was over with event `by`; where it was not known, from whom it came."""
        if number >= 0:
            row = number * WIDTH
            self.rows[row + DONE] = by
            if source >= 0:
                self.rows[row + PEER], self.rows[row + TAG] = source, tag

    def about(self, number: int) -> tuple[int, int]:
        """The peer and the tag of an event; of one that was not kept (-1, -1)."""
        row = number * WIDTH
        return (-1, -1) if number < 0 else (int(self.rows[row + PEER]), int(self.rows[row + TAG]))

    def mark(self) -> tuple[int, int]:
        """A place to go back to with `forget`."""
        return len(self.rows), self.lost

    def forget(self, mark: tuple[int, int]) -> None:
        """Leave out what was written down since `mark`; nothing that was begun then may end later."""
        length, self.lost = mark
        del self.rows[length:]

    def fenced(self, fence: Callable[[], None]) -> Callable[[], None]:
        """The same function, its calls written down."""

        def call() -> None:
            start = self.clock()
            fence()
            self.add(FENCE, start, self.clock())

        return call


def gathered(events: Events, origin: float, control: Control) -> dict[str, Array]:
    """All ranks' events as columns, times counted from `origin` of each rank's clock; of no length but on rank 0.

    Collective.
    """
    rows = np.array(events.rows).reshape(-1, WIDTH)
    for time in ("start", "end"):
        rows[:, COLUMNS.index(time)] -= origin
    parts, lost = control.gather(rows), control.gather(np.array([events.lost]))
    every = np.concatenate(parts) if parts else np.empty((0, WIDTH))
    counts = [len(part) for part in parts]
    return {
        "names": np.array(NAMES),
        "rank": np.repeat(np.arange(len(parts), dtype=np.uint32), counts),
        **{name: every[:, n].astype(TYPES.get(name, np.float64)) for n, name in enumerate(COLUMNS)},
        "lost": np.concatenate(lost) if lost else np.empty(0, np.int64),
    }
