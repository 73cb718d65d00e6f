"""A bar on standard error while files are being read; nothing when it is not a terminal."""

from __future__ import annotations

import sys
from types import TracebackType


class Progress:
    """`with Progress("decoding", 14_000) as bar: …; bar(done)`."""

    def __init__(self, what: str, total: int) -> None:
        self.what = what
        self.total = total
        self._shown = -1

    def __enter__(self) -> Progress:
        return self

    def __call__(self, done: int) -> None:
        percent = 100 * done // max(self.total, 1)
        if percent != self._shown and sys.stderr.isatty():
            self._shown = percent
            filled = percent * 30 // 100
            bar = "#" * filled + "." * (30 - filled)
            sys.stderr.write(f"\r{self.what} [{bar}] {done:,} of {self.total:,}")
            sys.stderr.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown >= 0:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
