"""Rows that belong together in a figure: those of one strategy by ranks, and a few of many."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.compare.rows import Row
from paceline.compare.words import mark
from paceline.report.document import Origin

# So many curves a figure has at most before some are left out: more cannot be told apart.
CURVES = 8


@dataclass(frozen=True, kw_only=True)
class Series:
    """Rows of one strategy, by ranks; of one number of threads where there are several rows for the same ranks."""

    label: str
    strategy: str
    origin: Origin
    rows: tuple[Row, ...]
    variant: int = 0
    """Which one it is of those with the same strategy and origin: of other threads, or on other networks."""


def series_of(rows: Sequence[Row]) -> list[Series]:
    """All rows, one series for each strategy and for what was simulated; serial ones too."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.strategy, row.simulated].append(row)
    found: list[Series] = []
    for (strategy, _), members in groups.items():
        twice = max(Counter(row.ranks for row in members).values()) > 1
        for threads in sorted({row.threads for row in members}) if twice else [None]:
            some = [row for row in members if threads in (None, row.threads)]
            origin: Origin = "simulated" if some[0].simulated else "measured"
            words = "" if threads is None else f", {threads} thread{'' if threads == 1 else 's'}"
            found.append(
                Series(
                    label=f"{strategy}{words}{mark(some[0])}",
                    strategy=strategy,
                    origin=origin,
                    rows=tuple(sorted(some, key=lambda row: row.ranks)),
                    variant=sum((one.strategy, one.origin) == (strategy, origin) for one in found),
                )
            )
    return found


def variants_of(rows: Sequence[Row]) -> dict[Row, int]:
    """Which one each row is of those with the same strategy and origin, by ranks: for figures with a curve each row."""
    seen: Counter[tuple[str, bool]] = Counter()
    found = {}
    for row in sorted(rows, key=lambda row: (row.ranks, row.threads, row.simulated)):
        of = (row.strategy, bool(row.simulated))
        found[row] = seen[of]
        seen[of] += 1
    return found


def several_ranks(rows: Sequence[Row]) -> bool:
    """Whether any strategy was tried on several numbers of ranks: else there is no curve to draw."""
    return any(len(one.rows) > 1 for one in series_of(rows) if one.strategy != "serial")


def chosen(rows: Sequence[Row], most: int = CURVES) -> tuple[list[Row], str]:
    """As many rows as can be told apart in one figure, and in words which, where some are left out.

    Of many, of each strategy the one on most ranks that have a core each.
    """
    if len(rows) <= most:
        return list(rows), ""
    found = []
    for one in series_of(rows):
        trusted = [row for row in one.rows if not row.oversubscribed] or one.rows
        found.append(trusted[-1])
    return found, "Of each strategy, the row with the most ranks that have a core each."
