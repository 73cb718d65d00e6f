"""A prediction as text."""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from collections.abc import Sequence

from paceline.simulate.bottleneck import LITTLE, SHORT, ScalingPoint
from paceline.simulate.measured import Measured
from paceline.simulate.scaling import Prediction, ScalingCurve
from paceline.text import times

WIDE = 110
HEADINGS = {
    "ranks": "ranks",
    "step": "ms a step",
    "rate": "samples/s",
    "speedup": "speedup",
    "efficiency": "efficiency",
    "measured": "measured",
    "accuracy": "accuracy",
    "staleness": "staleness",
    "lost": "lost most to",
}


def table(title: str, prediction: Prediction, points: Sequence[Measured]) -> str:
    """A block for every strategy, with where it stops scaling and why."""
    accuracy = prediction.serial_accuracy
    learned = "" if accuracy is None else f", accuracy {100 * accuracy:.2f} %"
    serial = prediction.serial
    head = (
        f"{title}\nserial, simulated: {1e3 * serial.seconds:.3f} ms a step, {serial.samples_per_second:,.0f} samples/s"
        f"{learned}"
    )
    real = {(point.strategy, point.ranks): point for point in points}
    return "\n\n".join([head, *(_block(curve, real) for curve in prediction.curves), *_notes(points)])


def _block(curve: ScalingCurve, real: dict[tuple[str, int], Measured]) -> str:
    rows = [HEADINGS, *(_cells(point, real.get((curve.strategy, point.ranks))) for point in curve.points)]
    shown = [name for name in HEADINGS if any(row[name] for row in rows[1:])]
    widths = {name: max(len(row[name]) for row in rows) for name in shown}
    lines = [curve.strategy]
    for row in rows:
        cells = [
            row[name].ljust(widths[name]) if name == "lost" else row[name].rjust(widths[name])
            for name in shown
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    missing: dict[str, list[str]] = defaultdict(list)
    said: dict[str, str] = {}
    for ranks, because in curve.left_out.items():
        kind = re.sub(r"[\d,]+", "#", because.partition(";")[0])  # the same reason, with other figures
        said.setdefault(kind, because.partition(";")[0])
        missing[kind].append(f"{ranks:,}")
    lines += [f"  not on {', '.join(ranks)}: {said[kind]}" for kind, ranks in missing.items()]
    told = [
        textwrap.fill(sentence, WIDE, initial_indent="  ", subsequent_indent="  ")
        for sentence in _sentences(curve.told)
    ]
    return "\n".join([*lines, *told])


def _sentences(told: str) -> list[str]:
    """
    >>> _sentences("stops at 2 ranks (1.02x). at 2 ranks a step takes 1.2 ms")
    ['stops at 2 ranks (1.02x)', 'at 2 ranks a step takes 1.2 ms']
    """
    return told.split(". ")


def _cells(point: ScalingPoint, real: Measured | None) -> dict[str, str]:
    lost = next(((name, share) for name, share in point.lost().items() if share >= LITTLE), None)
    star = "*" if real is not None and real.oversubscribed else ""
    return {
        "ranks": f"{point.ranks:,}",
        "step": f"{1e3 * point.step_seconds:.3f}",
        "rate": f"{point.samples_per_second:,.0f}",
        "speedup": times(point.speedup),
        "efficiency": f"{100 * point.efficiency:.0f} %",
        "measured": "" if real is None else times(real.speedup) + star,
        "accuracy": "" if point.accuracy is None else f"{100 * point.accuracy:.2f} %",
        "staleness": "" if point.staleness is None else f"{point.staleness:.1f}",
        "lost": f"{SHORT[lost[0]]}, {100 * lost[1]:.0f} %" if lost else "-" if point.without else "",
    }


def _notes(points: Sequence[Measured]) -> list[str]:
    notes = []
    if points:
        notes.append(f"measured: speedup of real runs against {points[0].against}")
    if any(point.oversubscribed for point in points):
        notes.append("* more ranks than cores: that time says little about scaling")
    return ["\n".join(notes)] if notes else []
