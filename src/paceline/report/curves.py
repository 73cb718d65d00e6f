"""Loss and accuracy as training goes on, against time and against samples; and the time to a given accuracy."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from paceline.compare.rows import Row
from paceline.compare.target import Target, known_points, reached
from paceline.compare.verdict import divergence
from paceline.compare.words import label, percent, seconds
from paceline.errors import UsageError
from paceline.record import Run
from paceline.report._series import chosen, variants_of
from paceline.report.accuracy import accuracy_axis
from paceline.report.document import Axis, Bar, Bars, Block, Curve, Lines, Section

log = logging.getLogger(__name__)

# From so many times the shortest run on, time is drawn on a logarithmic axis.
FAR = 20
MEAN = "A point is the end of an epoch, mean over the seeds; the band goes from the least to the most."
OWN_PART = (
    " Where models are averaged only at the end, the loss until then is that of rank 0's part of the data, and only the "
    "average is validated."
)
LEFT = " Runs that diverged are left out where others of their row did not."
TO_TARGET = (
    "Seconds of training until the end of the first epoch with at least that accuracy on the validation samples; nothing "
    "is interpolated. Mean over the runs that came to it, the line from the first to the last."
)


@dataclass(frozen=True, kw_only=True)
class Point:
    """The end of an epoch of one run."""

    seconds: float
    samples: float
    loss: float | None
    accuracy: float | None


def curves(rows: Sequence[Row], number: int, target: Target | None) -> Section | None:
    """The section of one problem; None where there is nothing to draw."""
    shown, which = chosen([row for row in rows if not row.timed_only])
    points = {row: points_of(row) for row in shown}
    points = {row: runs for row, runs in points.items() if max(map(len, runs), default=0) > 1}
    variants = variants_of(list(points))
    apart = any(row.facts.averages and row.facts.interval is None for row in points)
    caption = " ".join(filter(None, (MEAN, which))) + (OWN_PART if apart else "")
    caption += LEFT if any(0 < len(row.diverged) < row.runs for row in points) else ""
    level = None if target is None else (target.accuracy, f"target {percent(target.accuracy)}")
    blocks: list[Block] = []
    for against in (
        ("time", "samples") if len(points) > 1 else ("time",)
    ):  # of one row it is the same curve again
        for what in ("loss", "accuracy"):
            drawn = [
                one
                for row, runs in points.items()
                if (one := _curve(row, runs, against, what, variants[row])) is not None
            ]
            if any(len(curve.x) > 1 for curve in drawn):
                blocks.append(_lines(drawn, against, what, number, "" if blocks else caption, level))
    if target is not None and (bars := to_target(rows, number, target)) is not None:
        blocks.append(bars)
    return Section(title="Learning", blocks=tuple(blocks)) if blocks else None


def points_of(row: Row) -> list[list[Point]]:
    """The ends of the epochs of each run; of those that did not diverge, where there are any."""
    return [run_points(run) for run in row.whole]


def run_points(run: Run) -> list[Point]:
    """The ends of a run's epochs, with the samples of all ranks that were computed in them and before."""
    seen = samples_seen(run)
    return [
        Point(
            seconds=epoch["train_seconds"],
            samples=count,
            loss=epoch["loss"],
            accuracy=epoch["validation_accuracy"],
        )
        for epoch, count in zip(run.epochs, seen, strict=True)
    ]


def samples_seen(run: Run) -> list[float]:
    """Samples of all ranks up to the end of each epoch: those of its batches and of all before; at the end all.

    They are counted in the log of every rank's every step: whether ranks took pieces of a batch or whole ones, what was
    computed is there. Without that log: epochs times the samples of one.
    """
    ends = [epoch["epoch"] for epoch in run.epochs]
    if not ends:
        return []
    try:
        logged, counts = run.steps["epoch"], run.steps["count"]
    except UsageError as error:
        log.warning("%s: its samples are taken to be those of its epochs", error)
        c = run.config
        each = c.get("samples") or 0 if c["draws"] is None else c["draws"] * run.summary["global_batch"]
        return [float((end + 1) * each) for end in ends]
    per_epoch = np.bincount(logged, weights=counts, minlength=max(ends) + 1)
    so_far = np.cumsum(per_epoch)
    return [*(float(so_far[end]) for end in ends[:-1]), float(so_far[-1])]


def _lines(
    drawn: Sequence[Curve],
    against: str,
    what: str,
    number: int,
    caption: str,
    level: tuple[float, str] | None,
) -> Lines:
    last = [curve.x[-1] for curve in drawn]
    if against == "time":
        x = Axis(label="training time (s)", log=max(last) > FAR * min(last) > 0)
    else:
        x = Axis(label="samples computed by all ranks")
    if what == "loss":
        name, title, y, level = "loss", "Training loss", Axis(label="mean training loss of the epoch"), None
    else:
        name, title = "validation", "Validation accuracy"
        y = accuracy_axis("validation accuracy (%)", drawn)
    return Lines(
        name=f"{name}-{against}-{number}",
        title=f"{title} against {against}",
        caption=caption,
        x=x,
        y=y,
        curves=tuple(drawn),
        level=level,
    )


def _curve(row: Row, runs: list[list[Point]], against: str, what: str, variant: int) -> Curve | None:
    """The epochs that all runs have, and whose value all of them know."""
    at = []
    for together in zip(*runs, strict=False):
        values = [value for point in together if (value := getattr(point, what)) is not None]
        if len(values) == len(together):
            place = fmean(point.seconds if against == "time" else point.samples for point in together)
            at.append((place, fmean(values), min(values), max(values)))
    if not at:
        return None
    words = divergence(row)
    return Curve(
        label=label(row) + (f", {words}" if words else ""),
        strategy=row.strategy,
        x=tuple(place for place, *_ in at),
        y=tuple(mean for _, mean, *_ in at),
        low=tuple(low for _, _, low, _ in at) if len(runs) > 1 else None,
        high=tuple(high for *_, high in at) if len(runs) > 1 else None,
        origin="simulated" if row.simulated else "measured",
        variant=variant,
        hollow=(row.oversubscribed,) * len(at),
    )


def to_target(rows: Sequence[Row], number: int, target: Target) -> Bars | None:
    """A bar for each row: when it came to the target; None where fewer than two rows can say, or none came to it."""
    found = [reached(row, target) for row in rows if not row.timed_only]
    found = [one for one in found if one.best is not None]
    if len(found) < 2 or not any(one.seconds for one in found):
        return None
    if all(len(known_points(run)) == 1 for one in found for run in one.row.members):
        return None  # it would be the training time once more
    bars = []
    for one in found:
        mean, row = one.mean, one.row
        if mean is None:
            words = f"not reached; at best {percent(one.best or 0.0)}"
        else:
            words = f"{seconds(mean)} s"
            words += (
                "" if len(one.seconds) == row.runs else f"; reached by {len(one.seconds)} of {row.runs} runs"
            )
        words += f"; {divergence(row)}" if row.diverged else ""
        bars.append(
            Bar(
                label=label(row),
                strategy=row.strategy,
                parts=(mean or 0.0,),
                low=min(one.seconds) if len(one.seconds) > 1 else None,
                high=max(one.seconds) if len(one.seconds) > 1 else None,
                words=words,
                simulated=bool(row.simulated),
                hollow=row.oversubscribed,
            )
        )
    return Bars(
        name=f"to-target-{number}",
        title=f"Time to {percent(target.accuracy)}",
        caption=f"The target is {target}. {TO_TARGET}",
        x=Axis(label="training time (s)"),
        kinds=("seconds",),
        bars=tuple(bars),
    )
