"""The first screen of a problem: the answer, the command to copy, and time to the target against quality."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.compare.answer import answer
from paceline.compare.rows import Row, label
from paceline.compare.target import Target, reached
from paceline.compare.verdict import notes, real, standing
from paceline.figures import Axis, Point, Points
from paceline.record.environment import shared_cores
from paceline.report.command import command_of
from paceline.report.document import Opening

# If the slowest row takes this many times as long as the fastest, the time axis is logarithmic.
FAR = 4.0
# Accuracies further below the best than this, and other values worse than this many times the best, are not drawn to
# scale: the others could not be distinguished.
NEAR, WORSE = 0.1, 1.0
CAPTION = "Each row is a point, at the mean of its runs; lines go from the lowest value to the highest. Upper left is best."


def opening_of(rows: Sequence[Row], target: Target | None, number: int) -> Opening:
    """Return what a reader sees first of one problem."""
    found = answer(rows, target)
    command = ""
    if found.row is not None:
        first = min(found.row.members, key=lambda run: run.config["seed"])
        command = command_of(first, _epochs_needed(found.row, rows, target))
    return Opening(
        sentence=found.sentence,
        sure=found.sure,
        command=command,
        figure=front(rows, target, number),
        notices=notices(rows),
    )


def _epochs_needed(row: Row, rows: Sequence[Row], target: Target | None) -> int | None:
    """Return the epochs after which all runs of a candidate of a search had reached the target; None: those that they had.

    If all candidates had as many epochs, the schedule of the learning rate may depend on their number.
    """
    lengths = {run.config["epochs"] for one in rows for run in one.members}
    if row.setting is None or target is None or len(lengths) == 1:
        return None
    metric = target.metric
    counts = [
        next(
            (n for n, (_, value) in enumerate(metric.points(run), 1) if metric.reaches(value, target.value)),
            0,
        )
        for run in row.members
    ]
    return max(counts, default=0) or None


def notices(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return what makes times or comparisons doubtful: other programs, implausible speedups, more ranks than cores."""
    said = list(notes(rows))
    disturbed = [row for row in rows if shared_cores(row.remarks)]
    if disturbed:
        who = (
            "; ".join(map(label, disturbed))
            if len(disturbed) <= 3
            else f"{len(disturbed)} of {len(rows)} rows"
        )
        said.insert(0, f"Other programs were running during these runs, so their times are too long: {who}.")
    crowded = sum(row.oversubscribed for row in rows)
    if crowded:
        ranks = "1 row has" if crowded == 1 else f"{crowded} rows have"
        said.append(f"{ranks} more ranks than cores: their speedups say nothing about scaling.")
    return tuple(said)


# ---- the figure


def front(rows: Sequence[Row], target: Target | None, number: int) -> Points | None:
    """Return time to the target (or training time) against quality; None if fewer than two rows have a quality."""
    known = [row for row in rows if row.score is not None]
    if len(known) < 2:
        return None
    metric, where = known[0].metric, known[0].where
    if target is not None and not any(reached(row, target).all for row in known):
        target = None  # then times to it would be a single column
    when = {row: _when(row, target) for row in known}
    points = tuple(_point(row, rows, *when[row]) for row in known)
    best = metric.best(point.y for point in points) or 0.0
    room = NEAR if metric.percent else WORSE * abs(best)
    worst = best - room if metric.higher else best + room
    near = [point.y for point in points if metric.reaches(point.y, worst)]
    beyond = len(near) < len(points)
    bounds: tuple[float | None, float | None] = (None, None)
    if beyond:
        margin = max(0.25 * (max(near) - min(near)), 0.05 * room)
        bounds = (min(near) - margin, None) if metric.higher else (None, max(near) + margin)
    times = [point.x for point in points if point.x is not None]
    far = " An arrow: far worse, beyond the axis." if beyond else ""
    return Points(
        name=f"front-{number}",
        title=f"Time to {target.short} against quality"
        if target is not None
        else "Training time against quality",
        caption=CAPTION + far,
        x=Axis(
            label="training time" if target is None else f"time to {target.short}",
            seconds=True,
            log=bool(times) and min(times) > 0 and max(times) > FAR * min(times),
        ),
        y=Axis(
            label=metric.heading(where)
            + (" (%)" if metric.percent else "" if metric.higher else " (lower is better)"),
            percent=metric.percent,
            bounds=bounds,
        ),
        points=points,
        front=_front(points, known),
        descending=not metric.higher,
        outside="not reached",
    )


def _when(row: Row, target: Target | None) -> tuple[float | None, tuple[float, float] | None]:
    """Return a row's mean time to the target and its spread; None if not every run reached it."""
    if target is None:
        return row.train_seconds, row.seconds_range if row.runs > 1 else None
    found = reached(row, target)
    if not found.all:
        return None, None
    return found.mean, (min(found.seconds), max(found.seconds)) if row.runs > 1 else None


def _point(row: Row, rows: Sequence[Row], x: float | None, x_range: tuple[float, float] | None) -> Point:
    wrong = standing(row, rows)
    return Point(
        label=label(row).replace(" *", "", 1) if row.oversubscribed else label(row),
        strategy=row.strategy,
        x=x,
        y=row.score or 0.0,
        x_range=x_range,
        y_range=row.score_range if row.runs > 1 else None,
        flag=wrong if wrong != "oversubscribed" else "",
        simulated=bool(row.simulated),
        oversubscribed=row.oversubscribed,
    )


def _front(points: Sequence[Point], rows: Sequence[Row]) -> tuple[int, ...]:
    """Return the points that no other one beats in both time and quality; measured ones only, if there are any."""
    metric, measured = rows[0].metric, bool(real(rows))
    able = [
        (point.x, metric.key(point.y), k)
        for k, (point, row) in enumerate(zip(points, rows, strict=True))
        if point.x is not None and not row.diverged and not row.guessed and bool(row.simulated) != measured
    ]
    found: list[int] = []
    least = float("inf")
    for _, key, k in sorted(able):
        if key < least:
            found.append(k)
            least = key
    return tuple(found)
