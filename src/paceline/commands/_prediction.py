"""A prediction of `paceline simulate scaling`, as text and as a figure."""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from paceline import text
from paceline.figures import Axis, Curve, Lines, save
from paceline.simulate.bottleneck import POINT, SHORT, ScalingPoint
from paceline.simulate.scaling import MeasuredRuns, Prediction, ScalingCurve, ThreadSplit

WIDE = 110
HEADINGS = {
    "ranks": "ranks",
    "step": "ms per step",
    "rate": "samples/s",
    "speedup": "speedup",
    "efficiency": "efficiency",
    "measured": "measured",
    "accuracy": "accuracy",
    "staleness": "staleness",
    "lost": "lost most to",
}


# ---- text


def table(title: str, prediction: Prediction, points: Sequence[MeasuredRuns]) -> str:
    """Return a table for every strategy, with where it stops scaling and why."""
    serial, accuracy = prediction.serial, prediction.serial_accuracy
    rate = _format_rate(serial.samples_per_second)
    head = f"{title}\nserial, simulated: {1e3 * serial.seconds:.3f} ms per step, {rate} samples/s" + (
        "" if accuracy is None else f", accuracy {text.percent(accuracy)}"
    )
    real = {(point.strategy, point.ranks): point for point in points}
    blocks = [_block(curve, real) for curve in prediction.curves]
    return "\n\n".join([head, *blocks, *_threads(prediction), *_notes(points)])


def _threads(prediction: Prediction) -> list[str]:
    """Return a table of one process with all threads and of ranks with several, and what wins; empty if unknown."""
    if not prediction.splits:
        return []
    rows = [
        (
            split.strategy,
            f"{split.ranks:,}",
            f"{split.threads:,}",
            f"{1e3 * split.step_seconds:.3f}",
            _format_rate(split.samples_per_second),
            text.times(split.speedup),
        )
        for split in prediction.splits
    ]
    headings = ("strategy", "ranks", "threads", "ms per step", "samples/s", "speedup")
    lines = ["with threads", text.table(rows, headings, justify="lrrrrr", indent=2)]
    if prediction.threads:
        lines.append(_fill(prediction.threads))
    return ["\n".join(lines)]


def _block(curve: ScalingCurve, real: dict[tuple[str, int], MeasuredRuns]) -> str:
    rows = [_cells(point, real.get((curve.strategy, point.ranks))) for point in curve.points]
    shown = [name for name in HEADINGS if any(row[name] for row in rows)]
    justify = "".join("l" if name == "lost" else "r" for name in shown)
    lines = [curve.strategy]
    if rows:
        cells = [[row[name] for name in shown] for row in rows]
        lines.append(text.table(cells, [HEADINGS[name] for name in shown], justify=justify, indent=2))
    missing: dict[str, list[str]] = defaultdict(list)
    reasons: dict[str, list[str]] = {}
    for ranks, why in curve.left_out.items():
        kind = re.sub(r"[\d,]+", "#", why.partition(";")[0])  # the same reason, with other figures
        reasons.setdefault(kind, []).append(why)
        missing[kind].append(f"{ranks:,}")
    for kind, numbers in missing.items():
        first, short = reasons[kind][0], {why.partition(";")[0] for why in reasons[kind]}
        said = (
            first if len(numbers) == 1 else short.pop() if len(short) == 1 else f"{first} (on {numbers[0]})"
        )
        lines.append(_fill(f"not on {', '.join(numbers)}: {said}"))
    return "\n".join([*lines, *map(_fill, curve.summary.split(". "))])


def _fill(words: str) -> str:
    return textwrap.fill(words, WIDE, initial_indent="  ", subsequent_indent="  ")


def _cells(point: ScalingPoint, real: MeasuredRuns | None) -> dict[str, str]:
    lost = point.largest_cost()
    star = "*" if real is not None and real.oversubscribed else ""
    return {
        "ranks": f"{point.ranks:,}",
        "step": f"{1e3 * point.step_seconds:.3f}",
        "rate": _format_rate(point.samples_per_second),
        "speedup": text.times(point.speedup),
        "efficiency": text.share(point.efficiency),
        "measured": "" if real is None else text.times(real.speedup) + star,
        "accuracy": "" if point.accuracy is None else text.percent(point.accuracy),
        "staleness": "" if point.staleness is None else f"{point.staleness:.1f}",
        "lost": f"{SHORT[lost[0]]}, {text.share(lost[1])}" if lost else "-" if point.without else "",
    }


def _format_rate(rate: float) -> str:
    """Format samples per second, with three figures.

    >>> _format_rate(3.6412), _format_rate(128325.4)
    ('3.64', '128,325')
    """
    return f"{rate:.3g}" if rate < 100 else f"{rate:,.0f}"


def _notes(points: Sequence[MeasuredRuns]) -> list[str]:
    notes = []
    if points:
        notes.append(f"measured: speedup of real runs relative to {points[0].against}")
    if any(point.oversubscribed for point in points):
        notes.append("* more ranks than cores: that time says little about scaling")
    return ["\n".join(notes)] if notes else []


# ---- the figure


def draw(title: str, prediction: Prediction, points: Sequence[MeasuredRuns], paths: Sequence[Path]) -> None:
    """Draw speedup against ranks and, if it was computed, accuracy below it, into each of the files."""
    curves = [curve for curve in prediction.curves if curve.points]
    figures = [_speedups(curves, points, prediction.splits)]
    if any(point.accuracy is not None for curve in curves for point in curve.points):
        figures.append(_accuracies(curves, prediction.serial_accuracy))
    among = [curve.strategy for curve in curves]
    save([[figure] for figure in figures], paths, title=title, width=780.0, among=among)


def _speedups(
    curves: Sequence[ScalingCurve], points: Sequence[MeasuredRuns], splits: Sequence[ThreadSplit] = ()
) -> Lines:
    drawn = [
        Curve(
            label=_label(curve),
            strategy=curve.strategy,
            x=tuple(float(point.ranks) for point in curve.points),
            y=tuple(point.speedup for point in curve.points),
            origin="simulated",
            stops=_place_of_limit(curve),
        )
        for curve in curves
    ]
    for curve in curves:
        real = sorted(
            (point for point in points if point.strategy == curve.strategy), key=lambda one: one.ranks
        )
        if real:
            drawn.append(
                Curve(
                    label=f"{curve.strategy}, measured on real ranks",
                    strategy=curve.strategy,
                    x=tuple(float(point.ranks) for point in real),
                    y=tuple(point.speedup for point in real),
                    joined=False,
                    oversubscribed=tuple(point.oversubscribed for point in real),
                )
            )
    for strategy in dict.fromkeys(split.strategy for split in splits):
        own = [split for split in splits if split.strategy == strategy]
        threads = sorted({split.threads for split in own})
        some = (
            f"{threads[0]} to {threads[-1]} threads" if len(threads) > 1 else text.count(threads[0], "thread")
        )
        drawn.append(
            Curve(
                label=f"{strategy}, {some} a rank",
                strategy=strategy,
                x=tuple(float(split.ranks) for split in own),
                y=tuple(split.speedup for split in own),
                origin="simulated",
                variant=1,
                captions=tuple(f"{split.threads} threads" for split in own),
            )
        )
    last = max([2.0, *(x for curve in drawn for x in curve.x)])
    drawn.append(Curve(label="ideal", strategy="ideal", x=(1.0, last), y=(1.0, last), origin="ideal"))
    stops = (
        "; bar across a curve: more ranks bring no more" if any(c.stops is not None for c in drawn) else ""
    )
    return Lines(
        name="speedup",
        title=f"Speedup{stops}",
        caption="",
        x=Axis(label="ranks", log=True, base=2, ticks=_ranks(curves)),
        y=Axis(label="speedup relative to one process, simulated", log=True, base=2),
        curves=tuple(drawn),
    )


def _accuracies(curves: Sequence[ScalingCurve], serial: float | None) -> Lines:
    drawn = []
    for curve in curves:
        known = [point for point in curve.points if point.accuracy is not None]
        ages = tuple(f"{point.staleness:.0f}" if point.staleness else "" for point in known)
        if known:
            drawn.append(
                Curve(
                    label=_label(curve),
                    strategy=curve.strategy,
                    x=tuple(float(point.ranks) for point in known),
                    y=tuple(point.accuracy for point in known),
                    origin="simulated",
                    captions=ages,
                )
            )
    stale = any(any(curve.captions or ()) for curve in drawn)
    return Lines(
        name="accuracy",
        title="Accuracy" + ("; below a point: mean staleness in updates" if stale else ""),
        caption="",
        x=Axis(label="ranks", log=True, base=2, ticks=_ranks(curves)),
        y=Axis(label="test accuracy (%), really computed", percent=True),
        curves=tuple(drawn),
        level=None
        if serial is None
        else (serial, f"serial, {text.percent(serial)}; shaded: up to a point below"),
        band=None if serial is None else (serial - POINT, serial),
    )


def _ranks(curves: Sequence[ScalingCurve]) -> tuple[float, ...]:
    return tuple(sorted({float(point.ranks) for curve in curves for point in curve.points}))


def _label(curve: ScalingCurve) -> str:
    """Name the strategy, its highest speedup, and what is lost most to."""
    limit = curve.limit
    if limit is None:
        return curve.strategy
    lost = limit.shown.lost().get(limit.reason or "")
    reason = SHORT.get(limit.reason or "", limit.reason)
    because = "" if reason is None else f"; {reason}" + ("" if lost is None else f" {text.share(lost)}")
    rising = ", rising" if limit.rising else ""
    ranks = text.count(limit.at.ranks, "rank")
    return f"{curve.strategy}: {text.times(limit.at.speedup)} at {ranks}{rising}{because}"


def _place_of_limit(curve: ScalingCurve) -> int | None:
    """Return the place of the point where a curve stops getting faster."""
    if curve.limit is None or curve.limit.rising:
        return None
    return next((k for k, point in enumerate(curve.points) if point.ranks == curve.limit.at.ranks), None)
