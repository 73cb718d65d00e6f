"""When a master applies a gradient, and when it answers: at once, within a bound, or in rounds.

A discipline is called for every gradient that arrives for one piece (`arrived`) and for every worker that has sent its last
(`left`); it applies what is to be applied and returns the workers that get the new values now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Governed(Protocol):
    """A piece of the parameters, as far as its discipline is concerned."""

    def apply(self, worker: int) -> None:
        """Apply the worker's gradient."""

    def add(self, worker: int) -> None:
        """Add the worker's gradient to the round's."""

    def apply_round(self) -> None:
        """Apply the mean gradient of the round."""

    def drop(self, worker: int) -> None:
        """Leave the worker's gradient out."""

    def fresh(self, worker: int) -> bool:
        """Return True if the worker's gradient was computed with the present values."""


class Discipline(Protocol):
    def arrived(self, piece: Governed, worker: int) -> list[int]: ...
    def left(self, piece: Governed, worker: int) -> list[int]: ...


class Asynchronous:
    """Apply what comes, answer at once."""

    def arrived(self, piece: Governed, worker: int) -> list[int]:
        piece.apply(worker)
        return [worker]

    def left(self, piece: Governed, worker: int) -> list[int]:
        return []


class Bounded:
    """Stale-synchronous: apply what comes, but answer a worker only when it is at most `bound` batches ahead.

    Ho et al., More effective distributed ML via a stale synchronous parallel parameter server (2013).
    """

    def __init__(self, workers: int, bound: int) -> None:
        self.bound = bound
        self.clock = [0] * workers
        self.active = set(range(workers))
        self.waiting: list[int] = []

    def arrived(self, piece: Governed, worker: int) -> list[int]:
        piece.apply(worker)
        self.clock[worker] += 1
        self.waiting.append(worker)
        return self._released()

    def left(self, piece: Governed, worker: int) -> list[int]:
        self.active.discard(worker)
        return self._released()

    def _released(self) -> list[int]:
        slowest = min((self.clock[worker] for worker in self.active), default=0)
        free = [worker for worker in self.waiting if self.clock[worker] - slowest <= self.bound]
        self.waiting = [worker for worker in self.waiting if worker not in free]
        return free


class Rounds:
    """Synchronous rounds of the first workers - `backup` gradients; those that come later are dropped.

    Chen et al., Revisiting distributed synchronous SGD (2016).
    """

    def __init__(self, workers: int, backup: int) -> None:
        self.enough = workers - backup
        self.active = set(range(workers))
        self.waiting: list[int] = []

    def arrived(self, piece: Governed, worker: int) -> list[int]:
        if not piece.fresh(worker):
            piece.drop(worker)
            return [worker]
        piece.add(worker)
        self.waiting.append(worker)
        return self._closed(piece)

    def left(self, piece: Governed, worker: int) -> list[int]:
        self.active.discard(worker)
        return self._closed(piece)

    def _closed(self, piece: Governed) -> list[int]:
        if not self.waiting or len(self.waiting) < min(self.enough, len(self.active)):
            return []
        piece.apply_round()
        answered, self.waiting = self.waiting, []
        return answered


def maker(workers: int, bound: int | None, backup: int) -> Callable[[], Discipline]:
    """Return a function that makes the discipline of each piece."""
    if bound is not None:
        return lambda: Bounded(workers, bound)
    return (lambda: Rounds(workers, backup)) if backup else Asynchronous
