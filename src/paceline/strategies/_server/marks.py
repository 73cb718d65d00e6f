"""The parameters as they were now and then: what a master goes back to when the loss has run away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    from paceline.strategies._server.owned import Owned

Array = NDArray[Any]
KEPT = 4  # of each piece: the start, and the last ones


class Marks:
    """A mark is made of each piece every so many of its gradients. By its number it is the same moment on every master,
    nearly: mark 0 is the start."""

    def __init__(self, pieces: Sequence[Owned], every: int) -> None:
        self._pieces, self._every = pieces, every
        self._marks: list[dict[int, Array]] = [{0: owned.x.copy()} for owned in pieces]
        self._good = 0

    def arrived(self, owned: Owned) -> bool:
        """A gradient of a piece has: whether that made a mark of it."""
        number, rest = divmod(owned.arrivals, self._every)
        if rest:
            return False
        place = self._pieces.index(owned)
        marks = self._marks[place]
        marks[number] = owned.x.copy()
        if len(marks) > KEPT:
            del marks[min(marks.keys() - {0})]  # the start is kept
        if place == 0:  # the mark before this one is good if nothing has been said against it
            self._good = max(self._good, number - 1)
        return True

    def good(self, *, from_start: bool) -> int:
        """The mark to go back to."""
        if from_start:
            self._good = 0
        return self._good

    def restore(self, mark: int) -> None:
        """Go back to a mark; those made since are then of the same values."""
        for owned, marks in zip(self._pieces, self._marks, strict=True):
            owned.restore(marks[mark])
            for later in [m for m in marks if m > mark]:
                marks[later] = owned.x.copy()
