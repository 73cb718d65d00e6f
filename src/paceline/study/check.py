"""Cells that cannot work are found before any is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paceline.errors import UsageError
from paceline.study.cells import Cell, unique


def mistakes(cells: Sequence[Cell]) -> list[str]:
    """What is wrong with these cells, a line for each mistake of each part.

    >>> from paceline.config import Config
    >>> server = Config(strategy="parameter-server:masters=4", data="iris")
    >>> mistakes([Cell(config=server, ranks=4, part="part 1")])[0].partition(": ")[0]
    'part 1, parameter-server:masters=4 on 4 ranks'
    """
    from paceline.simulate.training import check
    from paceline.training.job import Job

    found: dict[tuple[str, str], list[Cell]] = {}
    for cell in unique(map(_unseeded, cells)):  # seeds make no difference to what can work
        job = Job(config=cell.config, runs=None)
        try:
            if cell.options is not None:
                check(job, cell.ranks, cell.options)
            job.check_early(cell.ranks)
        except UsageError as error:
            found.setdefault((cell.part, str(error)), []).append(cell)
    return [_line(part, error, those) for (part, error), those in found.items()]


def _line(part: str, error: str, cells: Sequence[Cell]) -> str:
    more = len(cells) - 1
    also = f" (and {more} more cell{'s' * (more > 1)})" if more else ""
    return f"{part}, {str(cells[0]).rpartition(', seed ')[0]}{also}: {error}"


def _unseeded(cell: Cell) -> Cell:
    return replace(cell, config=replace(cell.config, seed=0))
