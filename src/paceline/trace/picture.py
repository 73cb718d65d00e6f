"""A picture of a few steps: a row for each rank, colours for what it did, arrows for messages."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.figures.palette import FAINT, GREY, INK, KINDS
from paceline.figures.rendering import check_format, save_page, settings
from paceline.record import Run
from paceline.text import count
from paceline.trace.timeline import Span, Timeline, select_steps, step_finder, timeline_of

COLOURS = {kind: colour for kind, (colour, _) in KINDS.items()}
# The steps shown by default, the most ranks, and the most messages that a reader can follow.
STEPS, ROWS, MESSAGES = 3, 32, 120


def draw(
    run: Run, path: Path, steps: tuple[int, int] | None = None, timeline: Timeline | None = None
) -> None:
    """Draw some steps of a run, by default a few of the first epoch, as .svg, .png or .pdf."""
    check_format(path)
    timeline = timeline_of(run) if timeline is None else timeline
    if not timeline.steps:
        raise UsageError(f"{run.folder} has no steps to draw")
    timeline = timeline if steps is None else select_steps(timeline, steps)
    with settings("paceline trace"):
        window = typical_window(timeline) if steps is None else whole_window(timeline)
        save_page(_figure(run, timeline, window), path)


def typical_window(timeline: Timeline) -> tuple[int, int]:
    """Return the time of a few steps of the first rank that takes any, from the middle of its first epoch."""
    first = min(span.rank for span in timeline.steps)
    own = [span for span in timeline.steps if span.rank == first and span.about["epoch"] == 0]
    own = own or [span for span in timeline.steps if span.rank == first]
    start = max(0, min(len(own) // 2, len(own) - STEPS))
    return own[start].start, own[start : start + STEPS][-1].end


def whole_window(timeline: Timeline) -> tuple[int, int]:
    """Return the time of all steps, and of the messages that they sent or received."""
    ends = [
        (timeline.calls[sent].start, timeline.calls[received].end) for sent, received in timeline.messages
    ]
    ends += [(span.start, span.end) for span in timeline.steps]
    return min(start for start, _ in ends), max(end for _, end in ends)


def split_waits(timeline: Timeline, window: tuple[int, int]) -> list[Span]:
    """Return the spans of work in a window.

    If all ranks take part in the same exchanges, an exchange counts as waiting until the last rank has joined it.
    """
    start, end = window
    if not (timeline.traced and timeline.in_step and timeline.ranks > 1):
        return [span for span in timeline.work if span.start < end and span.end > start]
    around = end - start  # an exchange may have begun outside on some ranks
    work = [span for span in timeline.work if span.start < end + around and span.end > start - around]
    step_of = step_finder(timeline.steps)
    groups: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for place, span in enumerate(work):
        step = step_of(span) if span.kind == "exchange" else None
        if step is not None:
            groups[step][span.rank].append(place)
    late: dict[int, int] = {}
    for of_rank in groups.values():
        if len(of_rank) == timeline.ranks and len({len(places) for places in of_rank.values()}) == 1:
            for places in zip(*of_rank.values(), strict=True):
                last = max(work[place].start for place in places)
                late.update(dict.fromkeys(places, last))
    found = []
    for place, span in enumerate(work):
        until = min(late.get(place, span.start), span.end)
        if until > span.start:
            found.append(span._replace(kind="wait", end=until))
        if span.end > until:
            found.append(span._replace(start=until))
    return [span for span in found if span.start < end and span.end > start]


def _figure(run: Run, timeline: Timeline, window: tuple[int, int]) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    start, end = window
    unit, scale = ("ms", 1e6) if end - start >= 2e6 else ("us", 1e3)
    rows = min(timeline.ranks, ROWS)
    figure = Figure(figsize=(10, 1.7 + 0.42 * rows), layout="constrained")
    axes = figure.add_subplot()
    work = [span for span in split_waits(timeline, window) if span.rank < rows]
    for kind, colour in COLOURS.items():
        for rank in range(rows):
            own = [span for span in work if span.kind == kind and span.rank == rank]
            cut = [(max(span.start, start), min(span.end, end)) for span in own]
            bars = [((first - start) / scale, (last - first) / scale) for first, last in cut]
            axes.broken_barh(bars, (rank - 0.36, 0.72), facecolors=colour, linewidth=0)
    _mark_steps(axes, timeline, window, rows, scale)
    drawn = _draw_messages(axes, timeline, window, rows, scale)
    axes.set_xlim(0, (end - start) / scale)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.set_yticks(range(rows), [_label(rank, timeline.roles[rank]) for rank in range(rows)])
    axes.set_xlabel(f"{'virtual ' if run.simulated is not None else ''}time ({unit})")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    left_out = f" (the first {rows} shown)" if rows < timeline.ranks else ""
    ended = "" if run.cut is None else f", {run.cut}"
    title = f"{run.config['strategy']} on {count(timeline.ranks, 'rank')}{left_out}{ended}"
    axes.set_title(title, loc="left", pad=18, fontsize=11, color=INK)
    shown = {span.kind for span in work}
    handles: list[Any] = [
        Patch(color=colour, label=kind) for kind, colour in COLOURS.items() if kind in shown
    ]
    if drawn:
        from matplotlib.lines import Line2D

        handles.append(Line2D([], [], color=INK, linewidth=0.8, label="message"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    return figure


def _label(rank: int, role: str) -> str:
    return f"rank {rank}, {role}" if role else f"rank {rank}"


def _mark_steps(axes: Any, timeline: Timeline, window: tuple[int, int], rows: int, scale: float) -> None:
    """Draw a line where a rank began a step; write the step above, for the first rank that takes any."""
    first = min(span.rank for span in timeline.steps)
    for span in timeline.steps:
        if span.rank < rows and window[0] <= span.start < window[1]:
            at = (span.start - window[0]) / scale
            ends = [span.rank - 0.46, span.rank + 0.46]
            axes.plot([at, at], ends, color=INK, linewidth=1.1, solid_capstyle="butt")
            if span.rank == first:
                axes.annotate(
                    span.name, (at, 1), xycoords=("data", "axes fraction"), xytext=(0, 3),
                    textcoords="offset points", fontsize=8, color=GREY, ha="left", annotation_clip=False,
                )  # fmt: skip


def _draw_messages(axes: Any, timeline: Timeline, window: tuple[int, int], rows: int, scale: float) -> int:
    """Draw an arrow from each send to its receive, unless there are too many; return how many."""
    lines = []
    for sent, received in timeline.messages:
        first, last = timeline.calls[sent], timeline.calls[received]
        inside = window[0] <= first.start and last.end <= window[1]
        if inside and first.rank != last.rank and max(first.rank, last.rank) < rows:
            lines.append((first, last))
    if len(lines) > MESSAGES:
        return 0
    for first, last in lines:
        axes.annotate(
            "", xy=((last.end - window[0]) / scale, last.rank), xytext=((first.start - window[0]) / scale, first.rank),
            arrowprops={"arrowstyle": "-|>,head_width=0.12,head_length=0.25", "color": INK, "linewidth": 0.6,
                        "shrinkA": 0, "shrinkB": 0},
        )  # fmt: skip
    return len(lines)
