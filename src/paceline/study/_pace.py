"""How long what is left of a study will take, from how long its runs have taken so far."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from paceline.record import Run
from paceline.study._cells import Cell

START = 2.0  # seconds that a run takes before it trains and after: imports, data, ranks


class Pace:
    """Seconds by cell, of those that are known.

    >>> from paceline.config import Config
    >>> pace, cell = Pace(), Cell(config=Config(seed=0), ranks=2)
    >>> pace.left([cell]) is None
    True
    >>> pace.took(cell, 3.0)
    >>> pace.left([Cell(config=Config(seed=1), ranks=2), Cell(config=Config(model="cnn"), ranks=2)])
    6.0
    """

    def __init__(self) -> None:
        self._seconds: dict[tuple[object, ...], list[float]] = {}

    def took(self, cell: Cell, seconds: float) -> None:
        """This is how long the cell's run took."""
        for like in _likes(cell):
            self._seconds.setdefault(like, []).append(seconds)

    def known(self, cell: Cell, run: Run) -> None:
        """A run of before: what its record says of how long it took."""
        seconds = sum(run.summary["seconds"].values())
        if cell.options is not None:  # virtual ones
            written = [(run.folder / name).stat().st_mtime for name in ("config.json", "summary.json")]
            seconds = max(0.0, written[1] - written[0])
        self.took(cell, START + seconds)

    def left(self, cells: Iterable[Cell]) -> float | None:
        """Seconds for these; None where nothing is known of any."""
        guesses = [self._guess(cell) for cell in cells]
        return None if None in guesses else sum(guess for guess in guesses if guess is not None)

    def _guess(self, cell: Cell) -> float | None:
        """The mean of the cells that are most like it."""
        return next((fmean(self._seconds[like]) for like in _likes(cell) if like in self._seconds), None)


def _likes(cell: Cell) -> list[tuple[object, ...]]:
    """What cells may have in common, most telling first."""
    config, place = cell.config, "mpi" if cell.options is None else "sim"
    problem = (config.data, config.model, config.batch, config.epochs, config.draws)
    return [
        (place, problem, config.strategy, cell.ranks),
        (place, problem, cell.ranks),
        (place, problem),
        (place,),
        (),
    ]
