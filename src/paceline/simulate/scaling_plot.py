"""A prediction as a picture: speedup against ranks, and beside it, where it was computed, accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.simulate.bottleneck import POINT, SHORT
from paceline.simulate.measured import Measured
from paceline.simulate.scaling import Prediction, ScalingCurve
from paceline.text import times

# Okabe and Ito's colours, which colour-blind readers can tell apart; markers and line styles tell the same.
STYLES = (
    ("#0072B2", "o", "-"),
    ("#D55E00", "s", "--"),
    ("#009E73", "^", "-."),
    ("#CC79A7", "D", (0, (5, 1, 1, 1, 1, 1))),
    ("#E69F00", "v", (0, (3, 1))),
    ("#56B4E9", "P", (0, (1, 1))),
    ("#000000", "X", (0, (8, 2))),
)
BEHIND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.6}
INK, GREY = "#222222", "#767676"
# Labels at the right end keep this part of the axis' height from each other.
APART = 0.044


def plot(title: str, prediction: Prediction, points: Sequence[Measured], paths: Sequence[Path]) -> None:
    """Draw it, into every one of the files."""
    import matplotlib
    from matplotlib.figure import Figure

    curves = [curve for curve in prediction.curves if curve.points]
    learned = any(point.accuracy is not None for curve in curves for point in curve.points)
    with matplotlib.rc_context({"svg.hashsalt": "paceline", "font.size": 10, "svg.fonttype": "none"}):
        figure = Figure(figsize=(15.5 if learned else 9.5, 6.0), layout="constrained")
        panels = figure.subplots(1, 2 if learned else 1, squeeze=False)[0]
        _speedup(panels[0], curves, points)
        if learned:
            _accuracy(panels[1], curves, prediction.serial_accuracy)
        figure.suptitle(title, fontsize=11, color=INK, x=0.01, ha="left")
        for path in paths:
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _speedup(axes: Any, curves: Sequence[ScalingCurve], points: Sequence[Measured]) -> None:
    every = [point for curve in curves for point in curve.points]
    last = max(*(point.ranks for point in every), *(point.ranks for point in points), 2)
    low = min([1.0, *(point.speedup for point in every), *(point.speedup for point in points)])
    axes.plot([1, last], [1, last], color=GREY, linewidth=1, linestyle=":", zorder=1)
    middle = last**0.5
    axes.annotate(
        "ideal",
        (middle, middle),
        xytext=(-6, 4),
        textcoords="offset points",
        color=GREY,
        ha="right",
        va="bottom",
    )
    ends = []
    for number, curve in enumerate(curves):
        colour, marker, line = STYLES[number % len(STYLES)]
        ranks = [point.ranks for point in curve.points]
        speedups = [point.speedup for point in curve.points]
        axes.plot(ranks, speedups, color=colour, marker=marker, linestyle=line, linewidth=1.8, markersize=5)
        _mark_limit(axes, curve, colour)
        real = [point for point in points if point.strategy == curve.strategy]
        axes.plot(
            [point.ranks for point in real], [point.speedup for point in real], linestyle="none", marker=marker,
            markersize=10, markerfacecolor="none", markeredgecolor=colour, markeredgewidth=1.6, zorder=5,
        )  # fmt: skip
        ends.append((speedups[-1], ranks[-1], _label(curve), colour))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlim(0.9, last * 1.12)
    axes.set_ylim(low / 1.3, last * 1.3)
    _ranks_axis(axes)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")
    axes.set_ylabel("speedup against one process, simulated")
    said = "filled: simulated" + ("; time_only: measured on real ranks" if points else "")
    axes.set_title(f"Speedup ({said}; bar: more ranks bring no more)", loc="left", fontsize=10, color=INK)
    _at_the_end(axes, ends)


def _mark_limit(axes: Any, curve: ScalingCurve, colour: str) -> None:
    """A bar where it stops getting faster."""
    if curve.limit is not None and not curve.limit.rising:
        at = curve.limit.at
        axes.plot(
            [at.ranks], [at.speedup], marker="|", markersize=22, markeredgecolor=colour, markeredgewidth=1.6,
        )  # fmt: skip


def _label(curve: ScalingCurve) -> str:
    """The strategy, and what its speed is lost to."""
    found = curve.limit
    if found is None:
        return curve.strategy
    lost = found.shown.lost().get(found.reason or "")
    reason = SHORT.get(found.reason or "", found.reason)
    because = "" if reason is None else f"; {reason}" + ("" if lost is None else f" {100 * lost:.0f} %")
    ranks = f"{found.at.ranks:,} rank{'s' * (found.at.ranks > 1)}"
    return (
        f"{curve.strategy}\n{times(found.at.speedup)} at {ranks}{', rising' if found.rising else ''}{because}"
    )


def _accuracy(axes: Any, curves: Sequence[ScalingCurve], serial: float | None) -> None:
    ends = []
    if serial is not None:
        axes.axhline(100 * serial, color=GREY, linewidth=1, linestyle=":")
        axes.axhspan(100 * (serial - POINT), 100 * serial, color=GREY, alpha=0.12, linewidth=0)
        axes.annotate(
            "serial, and a point below", (0.01, 100 * serial), xycoords=("axes fraction", "data"), xytext=(0, 4),
            textcoords="offset points", color=GREY, fontsize=9,
        )  # fmt: skip
    for number, curve in enumerate(curves):
        colour, marker, line = STYLES[number % len(STYLES)]
        known = [point for point in curve.points if point.accuracy is not None]
        if not known:
            continue
        values = [100 * (point.accuracy or 0.0) for point in known]
        axes.plot(
            [point.ranks for point in known], values, color=colour, marker=marker, linestyle=line, linewidth=1.8,
            markersize=5,
        )  # fmt: skip
        for point, value in zip(known, values, strict=True):
            if point.staleness:
                axes.annotate(
                    f"{point.staleness:.0f}", (point.ranks, value), xytext=(0, -14), textcoords="offset points",
                    color=colour, fontsize=8, ha="center", bbox=BEHIND, zorder=6,
                )  # fmt: skip
        ends.append((values[-1], known[-1].ranks, curve.strategy, colour))
    axes.set_xscale("log", base=2)
    _ranks_axis(axes)
    axes.margins(y=0.12)
    axes.set_ylim(axes.get_ylim())  # from now on they stay: names are put where lines end
    axes.set_ylabel("test accuracy in %")
    stale = any(point.staleness for curve in curves for point in curve.points)
    below = "; below a point: mean staleness, in updates" if stale else ""
    axes.set_title(f"Accuracy (really computed{below})", loc="left", fontsize=10, color=INK)
    _at_the_end(axes, ends)


def _ranks_axis(axes: Any) -> None:
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.xaxis.set_minor_locator(_no_ticks())
    axes.set_xlabel("ranks")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _no_ticks() -> Any:
    from matplotlib.ticker import NullLocator

    return NullLocator()


def _at_the_end(axes: Any, ends: list[tuple[float, int, str, str]]) -> None:
    """Names to the right of the axes, at the height where each line ends, none on top of another."""
    inverse = axes.transAxes.inverted()
    heights = [inverse.transform(axes.transData.transform((x, y)))[1] for y, x, _, _ in ends]
    taken: list[float] = []
    for place in sorted(range(len(ends)), key=lambda k: -heights[k]):
        rows = ends[place][2].count("\n") + 1
        height = min([heights[place], *(found - rows * APART for found in taken)])
        taken.append(height)
        _, _, text, colour = ends[place]
        axes.annotate(
            text,
            (1.01, height),
            xycoords="axes fraction",
            color=colour,
            va="center",
            fontsize=9,
            annotation_clip=False,
        )
