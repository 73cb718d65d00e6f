"""Where the time of a rank goes."""

from __future__ import annotations

from collections.abc import Callable

KINDS = ("compute", "exchange", "wait", "update", "evaluation")


class Stopwatch:
    """Each lap gives the time since the one before to one kind of work, so that no second is counted twice or lost.

    >>> ticks = iter([0.0, 2.0, 5.0])
    >>> watch = Stopwatch(lambda: next(ticks))
    >>> watch.lap("compute"), watch.lap("exchange")
    (2.0, 3.0)
    >>> watch.seconds["exchange"]
    3.0
    """

    __slots__ = ("clock", "last", "seconds")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds = dict.fromkeys(KINDS, 0.0)
        self.last = clock()

    def lap(self, kind: str) -> float:
        """Give the time since the last lap to `kind`."""
        now = self.clock()
        elapsed = now - self.last
        self.last = now
        self.seconds[kind] += elapsed
        return elapsed

    def restart(self) -> None:
        """Let the time since the last lap go uncounted."""
        self.last = self.clock()

    def training(self) -> float:
        """Seconds of everything but evaluation."""
        return sum(seconds for kind, seconds in self.seconds.items() if kind != "evaluation")


class Telling(Stopwatch):
    """A stopwatch that tells of every lap: its kind, when it began and when it ended.

    >>> ticks, told = iter([0.0, 2.0]), []
    >>> Telling(lambda: next(ticks), lambda *lap: told.append(lap)).lap("compute"), told
    (2.0, [('compute', 0.0, 2.0)])
    """

    __slots__ = ("_tell",)

    def __init__(self, clock: Callable[[], float], tell: Callable[[str, float, float], None]) -> None:
        super().__init__(clock)
        self._tell = tell

    def lap(self, kind: str) -> float:
        start = self.last
        elapsed = super().lap(kind)
        self._tell(kind, start, self.last)
        return elapsed
