"""Figures that others published, beside ours: never fitted, never in a verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from paceline.compare.rows import Row
from paceline.compare.verdict import divergence
from paceline.report.document import Column, Section, Table, Value
from paceline.study.cells import PROBLEM
from paceline.study.context import Failed, Published

NOTE = (
    "Published seconds are of another machine and of other settings; they are here to be looked at beside ours, not to "
    "be beaten."
)
STOPPED = (
    "Where ours diverged they were stopped, and how long that took would mislead: how many diverged stands in its place. "
    "Our accuracy there is the mean over all runs, as they were left."
)
# The last columns: what may be the same of many figures.
WORDS = ("accuracy of", "time of", "source", "setting")
# What a failed cell must have in common with a problem's runs to belong to it, as far as it says.
SETTINGS = (*PROBLEM, "lr")


def published_for(rows: Sequence[Row], published: Sequence[Published]) -> list[Published]:
    """The figures that belong to a problem: by the settings of their part, or to every problem where they name none."""
    config = rows[0].members[0].config
    return [
        figure
        for figure in published
        if all(config.get(name) == value for name, value in figure.problem.items())
    ]


def failed_for(rows: Sequence[Row], failed: Sequence[Failed]) -> list[Failed]:
    """The failed cells that belong to a problem: with the settings of its runs, as far as they were given."""
    config = rows[0].members[0].config
    return [cell for cell in failed if _alike(cell.settings, config)]


def _alike(settings: Any, config: dict[str, Any]) -> bool:
    given = {name: settings[name] for name in SETTINGS if settings.get(name) is not None}
    return all(config.get(name) == value for name, value in given.items())


def published(rows: Sequence[Row], figures: Sequence[Published], number: int) -> Section | None:
    """The table of one problem: each published figure, and of ours the row of the same strategy and ranks."""
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
    said = {k: words for k in range(len(lines[0]) - len(WORDS), len(lines[0])) if (words := _once(lines, k))}
    columns = tuple(replace(column, unseen=k in said) for k, column in enumerate(columns))
    once = (f"{columns[k].name.capitalize()}: {words}." for k, words in said.items())
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
    """What a column says, where it is the same in all lines, or in all of a strategy and so in many; else nothing.

    >>> _once([("psgd", "them"), ("psgd", "them"), ("sync", "us"), ("sync", "us")], 1)
    'them (psgd); us (sync)'
    >>> _once([("psgd", "them"), ("sync", "them")], 1), _once([("psgd", "them"), ("psgd", "us")], 1)
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
