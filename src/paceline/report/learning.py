"""Learning: quality against workers, loss and metrics during training, and the time to a target."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from paceline.compare.answer import Target, find_target_times
from paceline.compare.metric import ACCURACY, Metric, metric_named, names_in, read_epoch
from paceline.compare.rows import Row, label
from paceline.compare.theory import workers
from paceline.compare.verdict import describe_failure, divergence
from paceline.figures import Axis, Bar, Bars, Curve, Lines
from paceline.record import Run
from paceline.report.document import Block, Section, Text
from paceline.report.series import (
    Series,
    choose_rows,
    is_less,
    published_curves,
    ranks_axis,
    series_of,
    variants_of,
)
from paceline.study.folder import Published
from paceline.text import count, seconds

log = logging.getLogger(__name__)

# If the longest run takes this many times as long as the shortest, the time axis is logarithmic.
FAR = 20
MEAN = (
    "A point is the end of an epoch, mean over the seeds; the band goes from the lowest value to the highest."
)
OWN_PART = (
    " Where models are averaged only at the end, the loss until then is that of rank 0's part of the data, and only the "
    "average is validated."
)
LEFT = " Runs that diverged are left out if other runs of their row did not."
TO_TARGET = (
    "Seconds of training until the end of the first epoch that was at least as good on the validation samples; nothing is "
    "interpolated. Mean over the runs that reached it; the line goes from the fastest to the slowest."
)
# Accuracies further below the best than this are not drawn to scale: the others could not be distinguished.
NEAR = 0.1
# The same for other metrics, relative to the best.
FAR_OFF = 2.0
SAME = 0.001
WORKERS = (
    "On the {} samples at the end, mean over the seeds; the band goes from the worst run to the best. Workers "
    "are the ranks that compute gradients."
)
HOLLOW = " Hollow: more ranks than cores."


# ---- quality at the end


def end_quality(rows: Sequence[Row], number: int, published: Sequence[Published] = ()) -> Section | None:
    """Return the section of one problem: the metric that rows are compared by; None if it is not known."""
    known = [row for row in rows if row.score is not None]
    theirs = [figure for figure in published if figure.of == "test" and rows[0].metric == ACCURACY]
    if not known:
        return None
    found = [one for one in series_of(known) if not one.serial]
    curves = published_curves(theirs, "accuracy", lambda figure: workers(figure.strategy, figure.ranks))
    block: Block
    if any(len(one.rows) > 1 for one in found) or (curves and found):
        block = _quality_lines(series_of(known), curves, number, rows)
    elif len(known) > 1:
        block = _quality_dots(known, number)
    else:
        return None
    return Section(title=_capital(known[0].metric.name), blocks=(block,))


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]


def _quality_lines(found: Sequence[Series], more: Sequence[Curve], number: int, all_: Sequence[Row]) -> Lines:
    curves = [_quality_curve(one, all_) for one in found if not one.serial]
    row = found[0].rows[0]
    metric = row.metric
    serial = [one.rows for one in found if one.strategy == "serial" and one.origin == "measured"]
    serial = serial or [one.rows for one in found if one.strategy == "serial"]
    best = metric.best(row.score for rows in serial for row in rows if row.score is not None)
    curves += [_quality_curve(one, all_) for one in found if one.serial]
    every = [*curves, *more]
    return Lines(
        name=f"{_file_name(metric)}-{number}",
        title=f"{_capital(metric.name)} against workers",
        caption=WORKERS.format(row.where)
        + (HOLLOW if any(any(curve.oversubscribed or ()) for curve in curves) else ""),
        x=ranks_axis([int(x) for curve in every for x in curve.x], "workers"),
        y=metric_axis(metric, row.where, every),
        curves=tuple(every),
        level=None if best is None else (best, f"serial, {metric.spell(best)}"),
    )


def _file_name(metric: Metric) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", metric.name).strip("-") or "metric"


def metric_axis(metric: Metric, where: str, curves: Sequence[Curve]) -> Axis:
    """Return the axis of a metric; one in percent ends at 100 if values come near it."""
    if not metric.percent:
        return Axis(label=metric.heading(where))
    highest = max(
        (value for curve in curves for value in (*curve.y, *(curve.high or ())) if value is not None),
        default=0,
    )
    label = f"{metric.heading(where)} (%)"
    return Axis(label=label, percent=True, bounds=(None, 1.0 if highest > 0.9 else None))


def _quality_curve(one: Series, all_: Sequence[Row]) -> Curve:
    rows = sorted(one.rows, key=lambda row: row.workers)
    spans = [row.score_range or (None, None) for row in rows]
    spread = any(row.runs > 1 for row in rows)
    return Curve(
        label=one.label,
        strategy=one.strategy,
        x=tuple(float(row.workers) for row in rows),
        y=tuple(row.score for row in rows),
        low=tuple(low for low, _ in spans) if spread else None,
        high=tuple(high for _, high in spans) if spread else None,
        origin=one.origin,
        variant=one.variant,
        oversubscribed=tuple(row.oversubscribed for row in rows),
        less=tuple(bool(row.diverged) or is_less(row, all_) for row in rows),
        notes=tuple(_quality_note(row) for row in rows),
    )


def _quality_note(row: Row) -> str:
    words = [count(row.ranks, "rank"), count(row.runs, "run")]
    return ", ".join([*words, *filter(None, [divergence(row)])])


def _quality_dots(rows: Sequence[Row], number: int) -> Block:
    """Return a dot and a spread for each row; one sentence if nothing differs."""
    metric, where = rows[0].metric, rows[0].where
    spans = {row: span for row in rows if (span := row.score_range) is not None}
    best = metric.best(row.score for row in rows if row.score is not None) or 0.0
    near_room = NEAR if metric.percent else FAR_OFF * abs(best)
    least_shown = best - near_room if metric.higher else best + near_room
    near = [span for row, span in spans.items() if metric.reaches(row.score or 0.0, least_shown)]
    low, high = min(span[0] for span in near), max(span[1] for span in near)
    low, high = (max(low, least_shown), high) if metric.higher else (low, min(high, least_shown))
    title = _capital(metric.heading(where))
    if high - low < (SAME if metric.percent else SAME * abs(best)) and len(near) == len(spans):
        spell = metric.spell
        same = spell(low) if spell(low) == spell(high) else f"from {spell(low)} to {spell(high)}"
        to = "a tenth of a point" if metric.percent else "a thousandth"
        return Text(lines=(f"{title} is the same for all rows, to {to}: {same}.",))
    room = max(0.1 * (high - low), (0.01 - (high - low)) / 2) if metric.percent else 0.1 * (high - low)
    bounds = (max(low - room, 0.0), min(high + room, 1.0)) if metric.percent else (low - room, high + room)
    several = "; the line goes from the worst run to the best" if any(row.runs > 1 for row in rows) else ""
    far = f"; an arrow means far {'below' if metric.higher else 'above'}" if len(near) < len(spans) else ""
    return Bars(
        name=f"{_file_name(metric)}-{number}",
        title=f"{title} of each row",
        caption=f"On the {where} samples at the end, mean over the seeds{several}{far}. The axis does not begin at 0.",
        x=Axis(
            label=metric.heading(where) + (" (%)" if metric.percent else ""),
            percent=metric.percent,
            bounds=bounds,
        ),
        kinds=(metric.name,),
        bars=tuple(_quality_bar(row, bool(row.diverged) or is_less(row, rows)) for row in rows),
        dots=True,
    )


def _quality_bar(row: Row, less: bool) -> Bar:
    low, high = (row.score_range if row.runs > 1 else None) or (None, None)
    spell = row.metric.spell
    same = low is None or high is None or spell(low) == spell(high)
    spread = (
        "" if same else f" ({spell(low or 0).removesuffix(' %')} to {spell(high or 0).removesuffix(' %')})"
    )
    return Bar(
        label=label(row),
        strategy=row.strategy,
        parts=(row.score or 0.0,),
        low=low,
        high=high,
        words=f"{'' if row.score is None else spell(row.score)}{spread}",
        simulated=bool(row.simulated),
        oversubscribed=row.oversubscribed,
        less=less,
    )


# ---- as training goes on


@dataclass(frozen=True, kw_only=True)
class EpochPoint:
    """The end of an epoch of one run."""

    seconds: float
    samples: float
    loss: float | None
    values: dict[str, float]
    """The metrics on the validation samples."""


def learning(rows: Sequence[Row], number: int, target: Target | None) -> Section | None:
    """Return the section of one problem; None if there is nothing to draw."""
    shown, which = choose_rows([row for row in rows if not row.timed_only])
    points = {row: points_of(row) for row in shown}
    points = {row: runs for row, runs in points.items() if max(map(len, runs), default=0) > 1}
    variants = variants_of(list(points))
    apart = any(row.facts.averages and row.facts.interval is None for row in points)
    caption = " ".join(filter(None, (MEAN, which))) + (OWN_PART if apart else "")
    caption += LEFT if any(0 < len(row.diverged) < row.runs for row in points) else ""
    drawn_metrics = _drawn_metrics(list(points), target)
    blocks: list[Block] = []
    counted = all(run.steps["rank"].size for row in points for run in row.whole)
    # For one row, the curve against samples would be the same again.
    for against in ("time", "samples") if len(points) > 1 and counted else ("time",):
        for metric in (None, *drawn_metrics):
            drawn = [
                one
                for row, runs in points.items()
                if (one := _curve(row, runs, against, metric, variants[row], describe_failure(row, rows)))
                is not None
            ]
            if any(len(curve.x) > 1 for curve in drawn):
                blocks.append(_lines(drawn, against, metric, number, "" if blocks else caption, target))
    if target is not None and (bars := to_target(rows, number, target)) is not None:
        blocks.append(bars)
    return Section(title="Learning", blocks=tuple(blocks)) if blocks else None


def _drawn_metrics(rows: Sequence[Row], target: Target | None) -> list[Metric]:
    """Return the metrics to draw: the one that rows are compared by, that of the target, and the user's own."""
    found = {row.metric.name: row.metric for row in rows}
    if target is not None:
        found.setdefault(target.metric.name, target.metric)
    for name in names_in(run for row in rows for run in row.members):
        found.setdefault(name, metric_named(name) or Metric(name, higher=True))
    return list(found.values())


def points_of(row: Row) -> list[list[EpochPoint]]:
    """Return the ends of the epochs of each run; of those that did not diverge, if there are any."""
    return [run_points(run) for run in row.whole]


def run_points(run: Run) -> list[EpochPoint]:
    """Return the ends of a run's epochs, with the samples that all ranks had computed until then."""
    seen, names = samples_seen(run), ("accuracy", "loss", *names_in([run]))
    return [
        EpochPoint(
            seconds=epoch["train_seconds"],
            samples=samples,
            loss=epoch["loss"],
            values={name: value for name in names if (value := read_epoch(epoch, name)) is not None},
        )
        for epoch, samples in zip(run.epochs, seen, strict=True)
    ]


def samples_seen(run: Run) -> list[float]:
    """Return the samples that all ranks had computed by the end of each epoch.

    They are counted in the log of every step of every rank.
    """
    ends = [epoch["epoch"] for epoch in run.epochs]
    if not ends:
        return []
    logged, place = np.unique(run.steps["epoch"], return_inverse=True)
    so_far = np.cumsum(np.bincount(place, weights=run.steps["count"], minlength=1))
    upto = np.searchsorted(logged, ends, side="right") - 1
    return [*(float(so_far[at]) if at >= 0 else 0.0 for at in upto[:-1].tolist()), float(so_far[-1])]


def _lines(
    drawn: Sequence[Curve],
    against: str,
    metric: Metric | None,
    number: int,
    caption: str,
    target: Target | None,
) -> Lines:
    """Return the figure of a metric on the validation samples; None: of the training loss."""
    last = [curve.x[-1] for curve in drawn]
    if against == "time":
        x = Axis(label="training time (s)", log=max(last) > FAR * min(last) > 0)
    else:
        x = Axis(label="samples computed by all ranks")
    level = None
    if metric is None:
        name, title, y = "loss", "Training loss", Axis(label="mean training loss of the epoch")
    else:
        name = "validation" if metric == ACCURACY else f"validation-{_file_name(metric)}"
        title, y = f"Validation {metric.name}", metric_axis(metric, "validation", drawn)
        if target is not None and target.metric.name == metric.name:
            level = (target.value, f"target {metric.spell(target.value)}")
    return Lines(
        name=f"{name}-{against}-{number}",
        title=f"{title} against {against}",
        caption=caption,
        x=x,
        y=y,
        curves=tuple(drawn),
        level=level,
    )


def _curve(
    row: Row, runs: list[list[EpochPoint]], against: str, metric: Metric | None, variant: int, wrong: str
) -> Curve | None:
    """Return the curve over the epochs that all runs have and whose value is known in all of them."""
    at = []
    for together in zip(*runs, strict=False):
        found = (point.loss if metric is None else point.values.get(metric.name) for point in together)
        values = [value for value in found if value is not None]
        if len(values) == len(together):
            place = fmean(point.seconds if against == "time" else point.samples for point in together)
            at.append((place, fmean(values), min(values), max(values)))
    if not at:
        return None
    words = divergence(row) or (wrong if wrong != "oversubscribed" else "")
    return Curve(
        label=label(row) + (f", {words}" if words else ""),
        strategy=row.strategy,
        x=tuple(place for place, *_ in at),
        y=tuple(mean for _, mean, *_ in at),
        low=tuple(low for _, _, low, _ in at) if len(runs) > 1 else None,
        high=tuple(high for *_, high in at) if len(runs) > 1 else None,
        origin="simulated" if row.simulated else "measured",
        variant=variant,
        oversubscribed=(row.oversubscribed,) * len(at),
    )


def to_target(rows: Sequence[Row], number: int, target: Target) -> Bars | None:
    """Return a bar for each row: when it reached the target; None if fewer than two rows can say, or none did."""
    found = [find_target_times(row, target) for row in rows if not row.timed_only]
    found = [one for one in found if one.best is not None]
    if len(found) < 2 or not any(one.seconds for one in found):
        return None
    if all(len(target.metric.points(run)) == 1 for one in found for run in one.row.members):
        return None  # it would repeat the training time
    bars = []
    for one in found:
        mean, row = one.mean, one.row
        if mean is None:
            words = f"not reached; at best {target.metric.spell(one.best or 0.0)}"
        else:
            words = f"{seconds(mean)} s"
            words += (
                "" if len(one.seconds) == row.runs else f"; reached by {len(one.seconds)} of {row.runs} runs"
            )
        less = is_less(row, rows)
        words += (
            f"; {divergence(row)}" if row.diverged else f"; {describe_failure(row, rows)}" if less else ""
        )
        bars.append(
            Bar(
                label=label(row),
                strategy=row.strategy,
                parts=(mean or 0.0,),
                low=min(one.seconds) if len(one.seconds) > 1 else None,
                high=max(one.seconds) if len(one.seconds) > 1 else None,
                words=words,
                simulated=bool(row.simulated),
                oversubscribed=row.oversubscribed,
                less=less,
            )
        )
    return Bars(
        name=f"to-target-{number}",
        title=f"Time to {target.short}",
        caption=f"The target is {target}. {TO_TARGET}",
        x=Axis(label="training time (s)"),
        kinds=("seconds",),
        bars=tuple(bars),
    )
