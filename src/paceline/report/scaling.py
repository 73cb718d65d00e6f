"""Time and speedup against the number of ranks, and the scaling laws fitted to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose

from paceline.compare import laws
from paceline.compare.rows import Row
from paceline.compare.theory import work_grows
from paceline.figures import Axis, Curve, Lines
from paceline.report.document import Block, Column, Section, Table, Text
from paceline.report.series import (
    CURVES,
    Series,
    ValueAndSpread,
    curve_of,
    has_several_ranks,
    published_curves,
    ranks_axis,
    series_of,
)
from paceline.study.folder import Published

TIME = (
    "Mean over the seeds; the band goes from the fastest run to the slowest. Both axes are logarithmic: perfect scaling "
    "is a straight line down."
)
SPEEDUP = (
    "Speed relative to the serial row with the fewest threads and the same optimizer, which is 1; the band is the spread "
    "over the runs, serial's too. Both axes are logarithmic: ideal scaling is a straight line."
)
IDEAL = "In grey: ideal scaling, as many times as fast as there are ranks."
LAW = "Without markers: for each strategy, the law that suits its setting (see the table)."
HOLLOW = " Hollow: more ranks than cores; these points say nothing about scaling and are not fitted."
TABLE = (
    "Which law suits a setting depends on the work between two exchanges. Amdahl, S = 1 / (s + (1 - s) / p), is for work "
    "that stays the same: ranks that share one --batch, strategies in which every batch is a separate update, and those "
    "that average once at the end. Gustafson, S = p - s (p - 1), is for work that grows with the ranks: a shared batch set "
    "by --batch-per-rank, or whole batches on each rank between two averages; S is then the samples per second relative to "
    "serial. s above 100 %: slower than one process. RMS: the distance of the law from the points, in multiples of "
    "serial's speed; if both laws are equally far, neither is nearer."
)
# Two laws are equally far from the points if their distances differ by less than this part, or by less than this.
ALIKE, NOTHING = 0.01, 1e-6


@dataclass(frozen=True, kw_only=True)
class Fits:
    """Both laws fitted to one series, and the one that suits its setting; or why there are none."""

    series: Series
    suits: laws.Law
    fits: tuple[laws.Fit, ...] = ()
    refused: str = ""


def scaling(rows: Sequence[Row], number: int, published: Sequence[Published] = ()) -> Section | None:
    """Return the section of one problem; None if no strategy ran on several rank counts."""
    if not has_several_ranks(rows):
        return None
    found = [one for one in series_of(rows) if not one.serial]
    fitted = [fits_of(one, rows) for one in found]
    crowded = HOLLOW if any(row.oversubscribed for row in rows) else ""
    blocks: list[Block] = [_times(rows, number, published, crowded)]
    if any(row.speedup is not None for one in found for row in one.rows):
        blocks.append(_speedups(rows, found, fitted, number, crowded))
    if any(one.fits for one in fitted):
        blocks.append(_table([one for one in fitted if one.fits], number))
    refused: dict[str, list[str]] = {}
    for one in fitted:
        if one.refused:
            refused.setdefault(one.refused, []).append(one.series.label)
    if refused:
        lines = tuple(f"Not fitted: {', '.join(names)}: {why}." for why, names in refused.items())
        blocks.append(Text(kind="note", lines=lines))
    return Section(title="Scaling", blocks=tuple(blocks))


def fits_of(one: Series, rows: Sequence[Row]) -> Fits:
    """Fit both laws to a series: to rows that did not diverge and whose ranks have a core each."""
    suits: laws.Law = "Gustafson" if work_grows(one.rows[0].members[0]) else "Amdahl"
    points = [row for row in one.rows if row.speedup is not None and not row.oversubscribed]
    why_not = _without_speedup(one, rows)
    if why_not:
        return Fits(series=one, suits=suits, refused=why_not)
    why_not = laws.refusal([row.ranks for row in points])
    if why_not:
        left = (
            ["not counting those with more ranks than cores"]
            if any(row.oversubscribed for row in one.rows)
            else []
        )
        left += ["not counting runs that diverged"] if any(row.diverged for row in one.rows) else []
        return Fits(series=one, suits=suits, refused=why_not + (f" ({', '.join(left)})" if left else ""))
    ranks = [row.ranks for row in points]
    scaled = scaled_speedups(points, rows)
    both = (
        laws.fit("Amdahl", ranks, [row.speedup or 0.0 for row in points]),
        laws.fit("Gustafson", ranks, scaled),
    )
    return Fits(series=one, suits=suits, fits=both)


def _without_speedup(one: Series, rows: Sequence[Row]) -> str | None:
    """Return why no row of a series has a speedup, or None if one has."""
    if any(row.speedup is not None for row in one.rows):
        return None
    serial = [row for row in rows if row.serial and (one.origin == "simulated") == bool(row.simulated)]
    if not serial:
        return f"there is no {'simulated ' * (one.origin == 'simulated')}serial run to compare with"
    if all(row.diverged for row in serial):
        return "the serial runs to compare with diverged"
    if all(row.diverged for row in one.rows):
        some = any(len(row.diverged) < row.runs for row in one.rows)
        return "every row has runs that diverged" if some else "all runs diverged"
    return "its times are unknown"


def scaled_speedups(points: Sequence[Row], rows: Sequence[Row]) -> list[float]:
    """Return samples per second relative to the serial row of `Row.speedup`: Gustafson's speedup, of work that may grow."""
    serial = [row for row in rows if row.serial and row.samples_per_second and not row.diverged]
    own = [row for row in serial if bool(row.simulated) == bool(points[0].simulated)]
    own = [row for row in own if row.optimizer == points[0].optimizer] or [
        row for row in own if not row.optimizer
    ]
    fewest = min((row.threads for row in own), default=1)
    base = max((row.samples_per_second or 0.0 for row in own if row.threads == fewest), default=0.0)
    return [
        row.samples_per_second / base if row.samples_per_second and base else row.speedup or 0.0
        for row in points
    ]


def _times(rows: Sequence[Row], number: int, published: Sequence[Published], crowded: str) -> Lines:
    curves = [
        curve_of(
            one,
            [
                (None, None, None) if row.diverged else (row.train_seconds, *row.seconds_range)
                for row in one.rows
            ],
            rows,
        )
        for one in series_of(rows)
    ]
    curves += published_curves(published, "seconds", lambda figure: figure.ranks)
    return Lines(
        name=f"time-{number}",
        title="Training time against ranks",
        caption=TIME + crowded,
        x=ranks_axis([int(x) for curve in curves for x in curve.x]),
        y=Axis(label="training time (s)", log=True),
        curves=tuple(curves),
    )


def _speedups(
    rows: Sequence[Row], found: Sequence[Series], fitted: Sequence[Fits], number: int, crowded: str
) -> Lines:
    curves = [curve_of(one, [speedup_range(row) for row in one.rows], rows) for one in found]
    most = max(row.ranks for one in found for row in one.rows)
    ideal = (1.0, float(most))
    curves.append(Curve(label="ideal", strategy="ideal", x=ideal, y=ideal, origin="ideal"))
    drawn = [one for one in fitted if one.fits] if len(found) <= CURVES else []
    for one in drawn:
        law = next(each for each in one.fits if each.law == one.suits)
        ranks = smooth(max(row.ranks for row in one.series.rows if not row.oversubscribed))
        curves.append(
            Curve(
                label=f"{one.series.label}: {law.law}, s = {100 * law.serial:.1f} %",
                strategy=one.series.strategy,
                x=tuple(ranks),
                y=tuple(law.at(ranks)),
                origin="fit",
                variant=one.series.variant,
            )
        )
    return Lines(
        name=f"speedup-{number}",
        title="Speedup against ranks",
        caption=" ".join(filter(None, (SPEEDUP, IDEAL, LAW if drawn else ""))) + crowded,
        x=ranks_axis([1, *(row.ranks for one in found for row in one.rows)]),
        y=Axis(label="speedup (relative to serial)", log=True, base=2),
        curves=tuple(curves),
    )


def speedup_range(row: Row) -> ValueAndSpread:
    """Return a row's speedup, and the lowest and the highest that its runs and serial's allow."""
    if row.speedup is None:
        return None, None, None
    return (row.speedup, *(row.speedup_range or (None, None)))


def smooth(most: int) -> list[float]:
    """Return rank counts from 1 on, close enough for a smooth curve on a logarithmic axis.

    >>> smooth(2)[0], smooth(2)[-1]
    (1.0, 2.0)
    """
    steps = 24
    return [1.0 if k == 0 else float(most ** (k / steps)) for k in range(steps)] + [float(most)]


def _nearer(fits: Sequence[laws.Fit]) -> str:
    """Return the law nearer to the points; "neither" if both are equally far, or equal."""
    first, second = fits
    same = isclose(first.residual, second.residual, rel_tol=ALIKE, abs_tol=NOTHING)
    if same or first.serial == second.serial == 0:  # then S = p by both
        return "neither"
    return first.law if first.residual < second.residual else second.law


def _table(fitted: Sequence[Fits], number: int) -> Table:
    lines: list[tuple[str | float | None, ...]] = []
    for one in fitted:
        values = [value for law in one.fits for value in (law.serial, law.residual)]
        lines.append((one.series.label, one.suits, *values, _nearer(one.fits)))
    return Table(
        name=f"laws-{number}",
        title="Serial fraction",
        columns=(
            Column(name="strategy"),
            Column(name="suits this setting"),
            Column(name="Amdahl's s", kind="percent"),
            Column(name="RMS (Amdahl)", kind="number"),
            Column(name="Gustafson's s", kind="percent"),
            Column(name="RMS (Gustafson)", kind="number"),
            Column(name="nearer"),
        ),
        rows=tuple(lines),
        caption=TABLE,
    )
