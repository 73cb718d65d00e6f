"""The progress of a study: a line for each run that ends and, on a terminal, a bar below them."""

from __future__ import annotations

import time
from typing import TextIO

from paceline import text
from paceline.text import clock_time


class Lines:
    """One line per cell, for logs; `total` cells in all, `done` of which were done before.

    >>> import sys
    >>> lines = Lines(sys.stdout, total=12, done=3)
    >>> lines.begin("sync on 2 ranks, seed 0", left=61.0)
    >>> lines.end("sync on 2 ranks, seed 0", "95.00 %, 3.1 s", left=65.0)
     4/12  sync on 2 ranks, seed 0: 95.00 %, 3.1 s  (1:05 left)
    """

    def __init__(self, stream: TextIO, *, total: int, done: int) -> None:
        self.stream = stream
        self.total = total
        self.done = done

    def begin(self, cell: str, left: float | None) -> None:
        """Handle the start of a cell, with an estimate of the seconds left."""

    def tick(self) -> None:
        """Handle the passing of time while a cell is running."""

    def end(self, cell: str, outcome: str, left: float | None) -> None:
        """Write the line of a cell that has ended."""
        self.done += 1
        rest = "" if left is None or self.done == self.total else f"  ({clock_time(left)} left)"
        self._write(f"{self.done:>{len(str(self.total))}}/{self.total}  {cell}: {outcome}{rest}")

    def close(self) -> None:
        """Handle the end of the study."""

    def _write(self, line: str) -> None:
        self.stream.write(line + "\n")
        self.stream.flush()


class Bar(Lines):
    """The same lines above a bar: cells done, the time left, and the cell that is running."""

    def __init__(self, stream: TextIO, *, total: int, done: int) -> None:
        super().__init__(stream, total=total, done=done)
        self._bar = text.Bar(stream)
        self._cell, self._began = "", 0.0
        self._left: float | None = None

    def begin(self, cell: str, left: float | None) -> None:
        """Draw the bar for a cell."""
        self._cell, self._left, self._began = cell, left, time.monotonic()
        self.tick()

    def tick(self) -> None:
        """Draw the bar, if it is time."""
        taken = time.monotonic() - self._began
        left = "" if self._left is None else f"  {clock_time(max(0.0, self._left - taken))} left"
        after = f"{self.done}/{self.total}{left}  {self._cell} ({clock_time(taken)})"
        self._bar.draw(self.done, self.total, after=after)

    def close(self) -> None:
        """Remove the bar."""
        self._bar.close()

    def _write(self, line: str) -> None:
        self._bar.write(line)


def on(stream: TextIO, *, total: int, done: int) -> Lines:
    """Return what shows the progress of a study on a stream: a bar if it is a terminal."""
    return (Bar if stream.isatty() else Lines)(stream, total=total, done=done)
