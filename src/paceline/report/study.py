"""A study's contribution to the report: published figures, and cells that failed.

Published figures stand beside ours; they are never fitted and never part of a verdict.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.compare.rows import Row, is_serial
from paceline.compare.verdict import divergence
from paceline.record import Run
from paceline.report.document import Column, Section, Table, Value
from paceline.study.cells import PROBLEM, spell_setting
from paceline.study.folder import FailedCell, Published
from paceline.text import count

NOTE = (
    "Published times come from other machines and other settings. They are shown for orientation, not as a benchmark to "
    "beat."
)
STOPPED = (
    "Runs that diverged were stopped early, so their time would mislead: the number of diverged runs is shown instead. Our "
    "accuracy there is the mean over all runs, at the point where they stopped."
)
# The last columns, whose words are often the same for many figures.
WORDS = ("accuracy of", "time of", "source", "setting")
# The settings that a failed cell must share with a problem's runs to belong to it, as far as they were given.
SETTINGS = (*PROBLEM, "lr")
# Settings that may distinguish two cells of one strategy, besides ranks and simulation.
DISTINGUISHING = (*SETTINGS, "threads", "seed")
# Settings that have a column in the table of cells without a problem.
COLUMNS = ("data", "model")


# ---- published figures


def select_published(rows: Sequence[Row], published: Sequence[Published]) -> list[Published]:
    """Return the figures that belong to a problem by the settings of their part; without a part, to every problem."""
    config = rows[0].members[0].config
    return [
        figure
        for figure in published
        if all(config.get(name) == value for name, value in figure.problem.items())
    ]


def published_section(rows: Sequence[Row], figures: Sequence[Published], number: int) -> Section | None:
    """Return the table of one problem: each published figure, and our row of the same strategy and ranks."""
    if not figures:
        return None
    ours = {
        (str(row.members[0].config["strategy"]), row.ranks): row
        for row in reversed(rows)
        if not row.simulated
    }
    lines: list[tuple[Value, ...]] = []
    stopped = False
    for figure in figures:
        row = ours.get((figure.strategy, figure.ranks))
        test = figure.of == "test"
        stopped = stopped or (row is not None and bool(row.diverged))
        lines.append((
            figure.strategy,
            figure.ranks or None,
            figure.seconds,
            None if row is None else divergence(row) or row.train_seconds,
            figure.accuracy,
            None if row is None or not test else row.accuracy,
            "" if figure.accuracy is None else figure.of,
            figure.what,
            figure.source,
            figure.setting,
        ))  # fmt: skip
    columns: tuple[Column, ...] = (
        Column(name="strategy"),
        Column(name="ranks", kind="count"),
        Column(name="published time (s)", kind="seconds"),
        Column(name="our time (s)", kind="seconds"),
        Column(name="published accuracy", kind="percent"),
        Column(name="our accuracy", kind="percent"),
        *(Column(name=name) for name in WORDS),
    )
    shown = [
        k for k, column in enumerate(columns) if k < 2 or any(line[k] not in (None, "") for line in lines)
    ]
    common = {
        k: words for k in range(len(lines[0]) - len(WORDS), len(lines[0])) if (words := _once(lines, k))
    }
    columns = tuple(replace(column, unseen=k in common) for k, column in enumerate(columns))
    once = (f"{columns[k].name.capitalize()}: {words}." for k, words in common.items())
    return Section(
        title="Published figures",
        blocks=(
            Table(
                name=f"published-{number}",
                title="",
                columns=tuple(columns[k] for k in shown),
                rows=tuple(tuple(line[k] for k in shown) for line in lines),
                caption=" ".join([*once, NOTE, *([STOPPED] if stopped else [])]),
                marks=tuple("published" for _ in lines),
            ),
        ),
    )


def _once(lines: Sequence[tuple[Value, ...]], column: int) -> str:
    """Return what a column says if all lines say the same, or all lines of each strategy; otherwise "".

    >>> _once([("serial", "them"), ("serial", "them"), ("sync", "us"), ("sync", "us")], 1)
    'them (serial); us (sync)'
    >>> _once([("serial", "them"), ("sync", "them")], 1), _once([("sync", "them"), ("sync", "us")], 1)
    ('them', '')
    """
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for line in lines:
        found[str(line[column] or "")][str(line[0])] = None
    if len(found) == 1:
        return next(iter(found))
    whose = [strategy for strategies in found.values() for strategy in strategies]
    if len(whose) > len(set(whose)) or 2 * len(found) > len(lines):
        return ""
    return "; ".join(f"{words} ({', '.join(those)})" for words, those in found.items() if words)


# ---- failed cells


def select_failed(rows: Sequence[Row], failed: Sequence[FailedCell]) -> list[FailedCell]:
    """Return the failed cells that belong to a problem: those with the settings of its runs, as far as given."""
    config = rows[0].members[0].config
    return [cell for cell in failed if _alike(cell.settings, config)]


def _alike(settings: Any, config: dict[str, Any]) -> bool:
    if _program(settings) != _program(config):
        return False
    given = {name: settings[name] for name in SETTINGS if settings.get(name) is not None}
    return all(config.get(name) == value for name, value in given.items())


def _program(settings: Mapping[str, Any]) -> Any:
    """Return the file and the arguments of the program with its own loop; None if there is none."""
    program = settings.get("program")
    if not isinstance(program, dict):
        return None
    return Path(str(program.get("file"))).name, program.get("arguments")


def differing_settings(failed: Sequence[FailedCell], runs: Iterable[Run]) -> tuple[str, ...]:
    """Return the settings that are not the same in all of these cells and runs, as far as they were given.

    >>> from pathlib import Path
    >>> cells = [FailedCell(settings={"epochs": epochs}, why="", status=1, file=Path()) for epochs in (2, 5000)]
    >>> differing_settings(cells, []), differing_settings(cells[1:], [])
    (('epochs',), ())
    """
    all_ = [*(cell.settings for cell in failed), *(run.config for run in runs)]
    found = []
    for name in DISTINGUISHING:
        # Serial baselines have threads of their own.
        among = [one for one in all_ if name != "threads" or not is_serial(str(one.get("strategy")))]
        if len({_plain(one[name]) for one in among if one.get(name) is not None}) > 1:
            found.append(name)
    return tuple(found)


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else repr(value)


def describe_cell(cell: FailedCell, names: Sequence[str] = ()) -> str:
    """Describe a failed cell in a few words, with these of its settings.

    >>> from pathlib import Path
    >>> cell = FailedCell(settings={"strategy": "sync", "ranks": 4, "epochs": 5000}, why="", status=1, file=Path())
    >>> describe_cell(cell, ["epochs"])
    'sync, 4 ranks, epochs 5000'
    """
    settings = cell.settings
    ranks = settings.get("ranks")
    words = [f"{settings.get('strategy') or 'a cell'}"]
    words += [] if ranks is None else [count(ranks, "rank")]
    words += [spell_setting(name, settings[name]) for name in names if settings.get(name) is not None]
    return ", ".join(words) + _describe_simulation(settings)


def _describe_simulation(settings: Mapping[str, Any]) -> str:
    simulated = settings.get("simulated")
    network = simulated.get("network") if isinstance(simulated, dict) else None
    return "" if not simulated else f" (simulated: {network})" if network else " (simulated)"


def failed_section(cells: Sequence[FailedCell], names: Sequence[str]) -> Section:
    """Return the section of failed cells that belong to no problem with runs."""
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
                        describe_cell(cell, [name for name in names if name not in COLUMNS]),
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
