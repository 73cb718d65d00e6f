"""Cells of a study that failed: which they are, told by the settings in which they differ from others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paceline.record import Run
from paceline.report._published import SETTINGS
from paceline.report.document import Column, Section, Table
from paceline.study.cells import in_words
from paceline.study.context import Failed

# What may tell two cells of one strategy apart, beside ranks and what was simulated.
TELLING = (*SETTINGS, "threads", "seed")
# What the table of cells of no problem has a column for.
COLUMNS = ("data", "model")


def telling(failed: Sequence[Failed], runs: Iterable[Run]) -> tuple[str, ...]:
    """The settings that are not the same in all of these cells and runs, as far as they were given.

    >>> from pathlib import Path
    >>> cells = [Failed(settings={"epochs": epochs}, why="", status=1, file=Path()) for epochs in (2, 5000)]
    >>> telling(cells, []), telling(cells[1:], [])
    (('epochs',), ())
    """
    all_ = [*(cell.settings for cell in failed), *(run.config for run in runs)]
    found = []
    for name in TELLING:
        # Baselines have one thread, whatever others have.
        among = [one for one in all_ if name != "threads" or one.get("strategy") != "serial"]
        if len({_plain(one[name]) for one in among if one.get(name) is not None}) > 1:
            found.append(name)
    return tuple(found)


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else repr(value)


def cell_of(cell: Failed, names: Sequence[str] = ()) -> str:
    """A failed cell in a few words, with these of its settings.

    >>> from pathlib import Path
    >>> cell = Failed(settings={"strategy": "sync", "ranks": 4, "epochs": 5000}, why="", status=1, file=Path())
    >>> cell_of(cell, ["epochs"])
    'sync, 4 ranks, epochs 5000'
    """
    told = cell.settings
    ranks = told.get("ranks")
    words = [f"{told.get('strategy') or 'a cell'}"]
    words += [] if ranks is None else [f"{ranks} rank{'' if ranks == 1 else 's'}"]
    words += [in_words(name, told[name]) for name in names if told.get(name) is not None]
    return ", ".join(words) + _simulated(told)


def _simulated(told: Mapping[str, Any]) -> str:
    simulated = told.get("simulated")
    network = simulated.get("network") if isinstance(simulated, dict) else None
    return "" if not simulated else f" (simulated: {network})" if network else " (simulated)"


def failed_section(cells: Sequence[Failed], names: Sequence[str]) -> Section:
    """Cells of no problem that has any run."""
    return Section(
        title="Cells that failed",
        blocks=(
            Table(
                name="failed",
                title="",
                columns=(
                    Column(name="strategy"),
                    *(Column(name=name) for name in COLUMNS),
                    Column(name="why"),
                ),
                rows=tuple(
                    (
                        cell_of(cell, [name for name in names if name not in COLUMNS]),
                        *(
                            None if (value := cell.settings.get(name)) is None else str(value)
                            for name in COLUMNS
                        ),
                        cell.why,
                    )
                    for cell in cells
                ),
                marks=tuple("failed" for _ in cells),
            ),
        ),
    )
