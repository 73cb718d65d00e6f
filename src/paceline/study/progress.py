"""How far a study is: a line for each cell that ends and, on a terminal, a bar below them."""

from __future__ import annotations

import shutil
import time
from typing import TextIO

from paceline.training.progress import clock_time


class Lines:
    """A line a cell, for logs; `total` cells in all, `done` of which were done before.

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
        """A cell has been started."""

    def tick(self) -> None:
        """It is still running."""

    def end(self, cell: str, outcome: str, left: float | None) -> None:
        """It has ended."""
        self.done += 1
        rest = "" if left is None or self.done == self.total else f"  ({clock_time(left)} left)"
        self.stream.write(f"{self.done:>{len(str(self.total))}}/{self.total}  {cell}: {outcome}{rest}\n")
        self.stream.flush()

    def close(self) -> None:
        """Nothing more comes."""


class Bar(Lines):
    """The same above a bar: cells done, the one that is running, the time that all will take."""

    def __init__(self, stream: TextIO, *, total: int, done: int) -> None:
        super().__init__(stream, total=total, done=done)
        self._cell = ""
        self._left: float | None = None
        self._began = self._drawn = 0.0

    def begin(self, cell: str, left: float | None) -> None:
        """Draw the bar for it."""
        self._cell, self._left, self._began = cell, left, time.monotonic()
        self._draw()

    def tick(self) -> None:
        """Draw the bar again, if it is time."""
        if time.monotonic() - self._drawn >= 0.5:
            self._draw()

    def end(self, cell: str, outcome: str, left: float | None) -> None:
        """Write the line where the bar was."""
        self.close()
        super().end(cell, outcome, left)

    def close(self) -> None:
        """Take the bar away."""
        self.stream.write("\r\x1b[K")
        self.stream.flush()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        taken = self._drawn - self._began
        left = "" if self._left is None else f"  {clock_time(max(0.0, self._left - taken))} left"
        width = shutil.get_terminal_size().columns - 1
        full = 20 * self.done // max(self.total, 1)
        line = f"[{'#' * full}{'.' * (20 - full)}] {self.done}/{self.total}{left}  {self._cell} ({clock_time(taken)})"
        self.stream.write("\r\x1b[K" + line[:width])
        self.stream.flush()


def on(stream: TextIO, *, total: int, done: int) -> Lines:
    """What suits the stream."""
    return (Bar if stream.isatty() else Lines)(stream, total=total, done=done)
