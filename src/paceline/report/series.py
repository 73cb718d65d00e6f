"""Rows that belong together in a figure: those of one strategy by ranks, as curves, and a selection of many."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.compare.rows import Row, mark
from paceline.compare.verdict import describe_failure
from paceline.figures import Axis, Curve, Origin
from paceline.study.folder import Published
from paceline.text import count

# More curves than these cannot be distinguished in one figure.
CURVES = 8
ValueAndSpread = tuple[float | None, float | None, float | None]


@dataclass(frozen=True, kw_only=True)
class Series:
    """Rows of one strategy, by ranks; of one number of threads, or of one number of cores in all, if several rows have the
    same ranks."""

    label: str
    strategy: str
    origin: Origin
    rows: tuple[Row, ...]
    variant: int = 0
    """Its number among those with the same strategy and origin, which differ in threads or network."""

    @property
    def serial(self) -> bool:
        """True for one process without communication."""
        return self.rows[0].serial


def series_of(rows: Sequence[Row]) -> list[Series]:
    """Group all rows, serial ones too, by strategy and by what was simulated."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.strategy, row.simulated].append(row)
    found: list[Series] = []
    for (strategy, _), members in groups.items():
        for words, some in _by_threads(members):
            origin: Origin = "simulated" if some[0].simulated else "measured"
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


def _by_threads(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Divide rows of one strategy into curves over ranks, each with words that name its threads.

    If no ranks occur twice, all rows are one curve, and the threads are named unless all ranks have one. Otherwise there
    is a curve for each number of threads; but rows that divide the same number of cores in different ways are one.
    """
    counts = sorted({row.threads for row in rows})
    if max(Counter(row.ranks for row in rows).values()) == 1:
        some = f"{counts[0]} to {counts[-1]} threads" if len(counts) > 1 else count(counts[0], "thread")
        return [("" if counts == [1] else f", {some} a rank", list(rows))]
    cores = Counter(row.ranks * row.threads for row in rows if row.threads > 1)
    several = Counter(row.threads for row in rows if row.threads > 1)
    groups: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in rows:
        total = row.ranks * row.threads
        split = row.threads > 1 and cores[total] > 1 and max(several.values()) == 1
        groups[(0, total) if split else (row.threads, 0)].append(row)
    return [
        (
            f", {count(threads, 'thread')} a rank" if threads else f", {total} threads in all",
            groups[threads, total],
        )
        for threads, total in sorted(groups, key=lambda key: key[0] or key[1])
    ]


def variants_of(rows: Sequence[Row]) -> dict[Row, int]:
    """Number the rows of each strategy and origin by ranks, for figures with one curve per row."""
    seen: Counter[tuple[str, bool]] = Counter()
    found = {}
    for row in sorted(rows, key=lambda row: (row.ranks, row.threads, row.simulated)):
        group = (row.strategy, bool(row.simulated))
        found[row] = seen[group]
        seen[group] += 1
    return found


def has_several_ranks(rows: Sequence[Row]) -> bool:
    """Return True if any strategy ran on several rank counts; otherwise there is no curve to draw."""
    return any(len(one.rows) > 1 for one in series_of(rows) if not one.serial)


def choose_rows(rows: Sequence[Row], most: int = CURVES) -> tuple[list[Row], str]:
    """Choose as many rows as one figure can show; return them, and which they are if some are left out.

    From many rows, choose for each strategy the one with the most ranks that still have a core each, or the fewest ranks.
    """
    if len(rows) <= most:
        return list(rows), ""
    found = []
    for one in series_of(rows):
        trusted = [row for row in one.rows if not row.oversubscribed]
        found.append(trusted[-1] if trusted else one.rows[0])
    which = "Shown for each strategy: the row with the most ranks that have a core each"
    return found, f"{which}, or the fewest ranks." if any(
        row.oversubscribed for row in found
    ) else f"{which}."


def ranks_axis(counts: Sequence[int], label: str = "ranks") -> Axis:
    """Return a logarithmic axis with a tick at each rank count."""
    return Axis(label=label, log=True, base=2, ticks=tuple(float(number) for number in sorted(set(counts))))


def is_less(row: Row, rows: Sequence[Row]) -> bool:
    """Return True if a row learned less than serial, or nothing, without diverging; `rows`: all rows of the problem."""
    return describe_failure(row, rows) in ("learned less", "learned nothing")


def curve_of(one: Series, values: Sequence[ValueAndSpread], rows: Sequence[Row]) -> Curve:
    """Return a series as a curve over its ranks; `values` has for each row its value, the lowest and the highest.

    `rows`: all rows of the problem.
    """
    spread = any(row.runs > 1 for row in one.rows)
    return Curve(
        label=one.label,
        strategy=one.strategy,
        x=tuple(float(row.ranks) for row in one.rows),
        y=tuple(value for value, _, _ in values),
        low=tuple(low for _, low, _ in values) if spread else None,
        high=tuple(high for _, _, high in values) if spread else None,
        origin=one.origin,
        variant=one.variant,
        oversubscribed=tuple(row.oversubscribed for row in one.rows),
        less=tuple(is_less(row, rows) for row in one.rows),
        notes=tuple(count(row.runs, "run") + (", diverged" if row.diverged else "") for row in one.rows),
    )


def published_curves(
    published: Sequence[Published], field: str, place: Callable[[Published], int]
) -> list[Curve]:
    """Return published figures with a rank count as curves, one for each strategy, quantity and source."""
    groups: dict[tuple[str, str, str], list[Published]] = {}
    for figure in published:
        if getattr(figure, field) is not None and figure.ranks:
            what = figure.what if field == "seconds" else ""
            groups.setdefault((figure.strategy, what, figure.source), []).append(figure)
    several = len({source for _, _, source in groups}) > 1
    found = []
    for (strategy, what, source), figures in groups.items():
        figures = sorted(figures, key=place)
        x = tuple(float(place(figure)) for figure in figures)
        whose = f"published: {source}" if several and source else "published"
        found.append(
            Curve(
                label=", ".join(filter(None, (strategy, what, whose))),
                strategy=strategy,
                x=x,
                y=tuple(getattr(figure, field) for figure in figures),
                origin="published",
                joined=len(set(x)) == len(x),
                notes=tuple("; ".join(filter(None, (figure.setting, source))) for figure in figures),
            )
        )
    return found
