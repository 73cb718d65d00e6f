"""The report's figures, as SVG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from paceline.report._rows import KINDS, Row

# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = {"compute": "#009E73", "exchange": "#D55E00", "wait": "#E69F00", "update": "#0072B2"}


def time_split(rows: Sequence[Row]) -> str:
    """Where the time of each strategy went: one bar a row, as SVG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 1.1 + 0.36 * len(rows)), layout="constrained")
    axes = figure.subplots()
    labels = [_label(row) for row in rows]
    left = [0.0] * len(rows)
    for kind in KINDS:
        widths = [row.split[kind] for row in rows]
        axes.barh(labels, widths, left=left, color=COLOURS[kind], label=kind, height=0.7)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for row, end in zip(rows, left, strict=True):
        note = f"{row.train_seconds:.3g} s" + ("" if row.speedup is None else f"  {row.speedup:.2f}x")
        axes.annotate(
            note, (end, _label(row)), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9
        )
    axes.invert_yaxis()
    axes.set_xlim(0, max(left, default=1) * 1.18 or 1)
    axes.set_xlabel(
        "seconds of training, mean over ranks and seeds (at the right: total, speedup against serial)"
    )
    axes.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    _plain(axes)
    return _svg(figure)


def accuracy(rows: Sequence[Row]) -> str:
    """Test accuracy of each strategy, with the spread over the seeds, as SVG."""
    from matplotlib.figure import Figure

    shown = [row for row in rows if row.accuracy is not None and row.accuracy_range is not None]
    figure = Figure(figsize=(8.4, 1.0 + 0.3 * len(shown)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(shown):
        assert row.accuracy is not None
        assert row.accuracy_range is not None
        low, high = row.accuracy_range
        axes.plot(
            [100 * low, 100 * high], [place, place], color="#999999", linewidth=3, solid_capstyle="round"
        )
        axes.plot([100 * row.accuracy], [place], "o", color="#0072B2")
    axes.set_yticks(range(len(shown)), [_label(row) for row in shown])
    axes.invert_yaxis()
    axes.set_xlabel("test accuracy in percent (point: mean; line: lowest to highest seed)")
    axes.grid(axis="x", alpha=0.3)
    _plain(axes)
    return _svg(figure)


def _label(row: Row) -> str:
    return (
        f"{row.strategy}, {row.ranks} rank{'s' if row.ranks > 1 else ''}{' *' if row.oversubscribed else ''}"
    )


def _plain(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
