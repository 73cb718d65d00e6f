"""Accuracy against the number of workers; where there is no curve to draw, a dot for each row."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.compare.rows import Row
from paceline.compare.theory import workers
from paceline.compare.verdict import divergence, quality
from paceline.compare.words import label, percent
from paceline.report._series import Series, series_of
from paceline.report.document import Axis, Bar, Bars, Block, Curve, Lines, Section, Text
from paceline.report.scaling import published_curves, ranks_axis
from paceline.study.context import Published

# What is further below the best accuracy than this is not drawn to scale: the others could not be told apart.
NEAR = 0.1
SAME = 0.001
WORKERS = (
    "Accuracy on the test samples at the end, mean over the seeds; the band goes from the worst run to the best. Workers "
    "are the ranks that compute: masters and main ranks are not among them."
)
HOLLOW = " Hollow: more ranks than cores."


def accuracy(rows: Sequence[Row], number: int, published: Sequence[Published] = ()) -> Section | None:
    """The section of one problem; None where no accuracy is known."""
    known = [row for row in rows if row.accuracy is not None]
    theirs = [figure for figure in published if figure.of == "test"]
    if not known:
        return None
    found = [one for one in series_of(known) if one.strategy != "serial"]
    curves = published_curves(theirs, "accuracy", lambda figure: workers(figure.strategy, figure.ranks))
    block: Block
    if any(len(one.rows) > 1 for one in found) or (curves and found):
        block = _lines(series_of(known), curves, number)
    elif len(known) > 1:
        block = _dots(known, number)
    else:
        return None
    return Section(title="Accuracy", blocks=(block,))


def _lines(found: Sequence[Series], more: Sequence[Curve], number: int) -> Lines:
    curves = [_curve(one) for one in found if one.strategy != "serial"]
    serial = [one.rows for one in found if one.strategy == "serial" and one.origin == "measured"]
    serial = serial or [one.rows for one in found if one.strategy == "serial"]
    values = [row.accuracy for rows in serial for row in rows if row.accuracy is not None]
    best = max(values, default=None)
    curves += [_curve(one) for one in found if one.strategy == "serial"]
    every = [*curves, *more]
    return Lines(
        name=f"accuracy-{number}",
        title="Accuracy against workers",
        caption=WORKERS + (HOLLOW if any(any(curve.hollow or ()) for curve in curves) else ""),
        x=ranks_axis([int(x) for curve in every for x in curve.x], "workers"),
        y=accuracy_axis("test accuracy (%)", every),
        curves=tuple(every),
        level=None if best is None else (best, f"serial, {percent(best)}"),
    )


def accuracy_axis(label: str, curves: Sequence[Curve]) -> Axis:
    """Per cent, and none above 100 where values come near it."""
    highest = max(
        (value for curve in curves for value in (*curve.y, *(curve.high or ())) if value is not None),
        default=0,
    )
    return Axis(label=label, percent=True, bounds=(None, 1.0 if highest > 0.9 else None))


def _curve(one: Series) -> Curve:
    rows = sorted(one.rows, key=lambda row: row.workers)
    spans = [row.accuracy_range or (None, None) for row in rows]
    spread = any(row.runs > 1 for row in rows)
    return Curve(
        label=one.label,
        strategy=one.strategy,
        x=tuple(float(row.workers) for row in rows),
        y=tuple(row.accuracy for row in rows),
        low=tuple(low for low, _ in spans) if spread else None,
        high=tuple(high for _, high in spans) if spread else None,
        origin=one.origin,
        variant=one.variant,
        hollow=tuple(row.oversubscribed for row in rows),
        notes=tuple(_note(row) for row in rows),
    )


def _note(row: Row) -> str:
    words = [
        f"{row.ranks} rank{'' if row.ranks == 1 else 's'}",
        f"{row.runs} run{'' if row.runs == 1 else 's'}",
    ]
    return ", ".join([*words, *filter(None, [divergence(row)])])


def _dots(rows: Sequence[Row], number: int) -> Block:
    """A dot and a spread for each row; one sentence where nothing differs."""
    spans = {row: row.accuracy_range for row in rows if row.accuracy_range is not None}
    least_shown = max(row.accuracy or 0.0 for row in rows) - NEAR
    near = [span for row, span in spans.items() if (row.accuracy or 0.0) >= least_shown]
    low, high = max(min(span[0] for span in near), least_shown), max(span[1] for span in near)
    if high - low < SAME and len(near) == len(spans):
        same = percent(low) if percent(low) == percent(high) else f"from {percent(low)} to {percent(high)}"
        return Text(lines=(f"Test accuracy is the same for all, to a tenth of a point: {same}.",))
    room = max(0.1 * (high - low), (0.01 - (high - low)) / 2)  # never less than a point wide
    bounds = (max(low - room, 0.0), min(high + room, 1.0))
    several = "; the line goes from the worst run to the best" if any(row.runs > 1 for row in rows) else ""
    far = "; an arrow: far below" if len(near) < len(spans) else ""
    return Bars(
        name=f"accuracy-{number}",
        title="Test accuracy of each row",
        caption=f"On the test samples at the end, mean over the seeds{several}{far}. The axis does not begin at 0.",
        x=Axis(label="test accuracy (%)", percent=True, bounds=bounds),
        kinds=("accuracy",),
        bars=tuple(_bar(row) for row in rows),
        dots=True,
    )


def _bar(row: Row) -> Bar:
    low, high = (row.accuracy_range if row.runs > 1 else None) or (None, None)
    same = low is None or high is None or percent(low) == percent(high)
    spread = "" if same else f" ({100 * (low or 0):.2f} to {100 * (high or 0):.2f})"
    return Bar(
        label=label(row),
        strategy=row.strategy,
        parts=(row.accuracy or 0.0,),
        low=low,
        high=high,
        words=f"{quality(row)}{spread}",
        simulated=bool(row.simulated),
        hollow=row.oversubscribed,
    )
