"""A run over time: what every rank did when.

`timeline_of` reads a record as a timeline: steps, the work in them, and, if the run was traced, every call and message.
`write_trace` writes it for Perfetto and chrome://tracing; `draw` draws a few steps: a row for each rank, colours for what
it did, arrows for messages.

Times are whole nanoseconds since the run's start. Spans of one rank do not overlap unless one contains the other: a step
contains spans of work, and these contain calls.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.comm.clocks import KINDS
from paceline.comm.recording import RECEIVES, SENDS, WAITS
from paceline.comm.tracing import CANCELLED, FENCE
from paceline.errors import UsageError
from paceline.figures.drawing import check_format, save_page, settings
from paceline.figures.palette import FAINT, GREY, INK
from paceline.figures.palette import KINDS as LOOKS
from paceline.files import json_text, replace_file
from paceline.record import Run
from paceline.text import count
from paceline.training.job import find_built_in

Array = NDArray[Any]
# Without a trace, only the time spent on each kind of work is known; it is shown in this order.
ORDER = ("compute", "wait", "exchange", "update")
PROCESS = 0
COLOURS = {kind: colour for kind, (colour, _) in LOOKS.items()}
# The steps shown by default, the most ranks, and the most messages that a reader can follow.
STEPS, ROWS, MESSAGES = 3, 32, 120


class Span(NamedTuple):
    """Something with a beginning and an end; `kind` decides its colour."""

    rank: int
    name: str
    kind: str
    start: int
    end: int
    about: Mapping[str, Any] = {}


class MessageTransfer(NamedTuple):
    """A send and its receive on another rank, as places in `Timeline.calls`."""

    sent: int
    received: int


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The work, calls and messages of every rank of a run."""

    ranks: int
    roles: tuple[str, ...]
    """The role of each rank, such as master or worker; empty if all ranks do the same."""
    in_step: bool
    """True if all ranks take part in the same exchanges."""
    traced: bool
    """True if spans are as recorded, with calls; otherwise the work of a step is in an assumed order."""
    steps: list[Span]
    work: list[Span]
    calls: list[Span] = field(default_factory=list)
    messages: list[MessageTransfer] = field(default_factory=list)
    lost: int = 0
    """Events that the trace did not keep."""


def timeline_of(run: Run) -> Timeline:
    """Return the timeline of a run, as far as its record has it.

    >>> import tempfile
    >>> from paceline import fit
    >>> with tempfile.TemporaryDirectory() as runs:
    ...     fitted = fit("mlp:8", "iris", strategy="serial", epochs=2, batch=10, runs=runs, trace=True, quiet=True)
    ...     found = timeline_of(Run(fitted.run))
    >>> len(found.steps), {span.kind for span in found.work} >= {"compute", "update", "evaluation"}
    (24, True)
    """
    columns = run.steps
    if "start" not in columns:
        raise UsageError(
            f"{run.folder} has no timeline: its record is too old to have the start of each step; train it again"
        )
    ranks = int(run.config["ranks"])
    strategy = find_built_in(str(run.config["strategy"]))
    in_step = getattr(strategy, "in_step", True)
    roles = tuple(strategy.role(rank, ranks) if strategy else "" for rank in range(ranks))
    trace = run.trace
    if trace is None:
        steps, work = _from_steps(columns, ranks, in_step)
        return Timeline(ranks=ranks, roles=roles, in_step=in_step, traced=False, steps=steps, work=work)

    work = work_of(trace)
    return Timeline(
        ranks=ranks,
        roles=roles,
        in_step=in_step,
        traced=True,
        steps=_steps(columns, work),
        work=work,
        calls=calls_of(trace),
        messages=messages_of(trace),
        lost=int(trace["lost"].sum()),
    )


def nanoseconds(seconds: Array) -> Array:
    """Convert seconds to whole nanoseconds."""
    return np.rint(seconds * 1e9).astype(np.int64)


def _ends(columns: Mapping[str, Array]) -> Array:
    """Return the end of each step, by the work in it; never after the next step of its rank began."""
    spent = sum(columns[kind].astype(np.float64) for kind in ORDER)
    ends = nanoseconds(columns["start"] + spent)
    starts = nanoseconds(columns["start"])
    follows = columns["rank"][1:] == columns["rank"][:-1]
    ends[:-1][follows] = np.minimum(ends[:-1], starts[1:])[follows]
    return ends


def _from_steps(columns: Mapping[str, Array], ranks: int, in_step: bool) -> tuple[list[Span], list[Span]]:
    """Return steps and the work in them, from their durations alone."""
    starts, ends = nanoseconds(columns["start"]), _ends(columns)
    spent = {kind: columns[kind].astype(np.float64) for kind in ORDER}
    waited = _measure_waiting(columns, ranks) if in_step else np.zeros(len(starts))
    spent["wait"] = spent["wait"] + waited
    spent["exchange"] = spent["exchange"] - waited
    steps, work = [], []
    upto = columns["start"].astype(np.float64)
    edges = [starts]
    for kind in ORDER:
        upto = upto + spent[kind]
        edges.append(np.minimum(nanoseconds(upto), ends))
    table = np.stack(edges, axis=1).tolist()
    for rank, step, epoch, end, row in zip(
        columns["rank"].tolist(), columns["step"].tolist(), columns["epoch"].tolist(), ends.tolist(), table,
        strict=True,
    ):  # fmt: skip
        steps.append(_step(rank, step, epoch, row[0], end))
        for kind, start, stop in zip(ORDER, row[:-1], row[1:], strict=True):
            if stop > start:
                work.append(Span(rank, kind, kind, start, stop))
    return steps, work


def _step(rank: int, step: int, epoch: int, start: int, end: int) -> Span:
    return Span(rank, f"step {step}", "step", start, end, {"step": step, "epoch": epoch})


def _measure_waiting(columns: Mapping[str, Array], ranks: int) -> Array:
    """Return how much longer each step's exchange took than on the rank that spent the least time in it."""
    counts = np.bincount(columns["rank"], minlength=ranks)
    if ranks == 1 or len(set(counts.tolist())) != 1:
        return np.zeros(len(columns["rank"]))
    spent = columns["exchange"].astype(np.float64).reshape(ranks, -1)  # ranks one after the other
    return np.ravel(spent - spent.min(axis=0))


def _steps(columns: Mapping[str, Array], work: list[Span]) -> list[Span]:
    """Return the steps of a traced run; each ends with a span of work, so that none crosses its end."""
    ends_of: dict[int, list[int]] = {}
    for span in work:
        ends_of.setdefault(span.rank, []).append(span.end)
    edges = {rank: np.array(ends) for rank, ends in ends_of.items()}
    rows = zip(
        columns["rank"].tolist(), columns["step"].tolist(), columns["epoch"].tolist(),
        nanoseconds(columns["start"]).tolist(), _ends(columns).tolist(), strict=True,
    )  # fmt: skip
    found = []
    for rank, step, epoch, start, end in rows:
        known = edges.get(rank)
        if known is None or start >= known[-1]:  # the trace was cut before
            continue
        after = int(np.searchsorted(known, end))
        near = min(known[max(after - 1, 0) : after + 1].tolist(), key=lambda edge: abs(edge - end))
        if near > start:
            found.append(_step(rank, step, epoch, start, near))
    return found


# ---- the events of a traced run

Events = Mapping[str, Array]


def work_of(trace: Events) -> list[Span]:
    """Return the work of every rank as spans."""
    names = trace["names"].tolist()
    rows = np.flatnonzero(np.isin(trace["kind"], _codes(names, KINDS)))
    starts, ends = nanoseconds(trace["start"][rows]).tolist(), nanoseconds(trace["end"][rows]).tolist()
    kinds, ranks = trace["kind"][rows].tolist(), trace["rank"][rows].tolist()
    return [
        Span(rank, names[kind], names[kind], start, end)
        for rank, kind, start, end in zip(ranks, kinds, starts, ends, strict=True)
    ]


def calls_of(trace: Events) -> list[Span]:
    """Return every MPI call of every rank."""
    return [span for span, _ in _calls(trace)]


def _calls(trace: Events) -> Iterator[tuple[Span, int]]:
    """Yield the calls with their rows in the trace."""
    names = trace["names"].tolist()
    rows = np.flatnonzero(~np.isin(trace["kind"], _codes(names, KINDS)))
    starts, ends = nanoseconds(trace["start"][rows]).tolist(), nanoseconds(trace["end"][rows]).tolist()
    columns = [trace[name][rows].tolist() for name in ("rank", "kind", "peer", "tag", "bytes")]
    for row, start, end, rank, code, peer, tag, nbytes in zip(
        rows.tolist(), starts, ends, *columns, strict=True
    ):
        name = names[code]
        kind, word = _classify(name)
        about = {key: value for key, value in (("peer", peer), ("tag", tag)) if value >= 0}
        if name not in (*WAITS, FENCE, CANCELLED):
            about["bytes"] = nbytes
        label = f"{name} {word} {peer}" if word and peer >= 0 else name
        yield Span(rank, label, kind, start, end, about), row


def _classify(name: str) -> tuple[str, str]:
    """Return the kind of a call, and the word between its name and the other rank."""
    if name in SENDS:
        return "send", "to"
    if name in RECEIVES:
        return "receive", "from"
    return ("wait", "") if name in (*WAITS, FENCE, CANCELLED) else ("exchange", "")


def _codes(names: list[str], wanted: tuple[str, ...]) -> list[int]:
    return [code for code, name in enumerate(names) if name in wanted]


def messages_of(trace: Events) -> list[MessageTransfer]:
    """Match sends with receives: messages between two ranks with one tag on one communicator arrive in order.

    A message counts as received in the call that completed it, such as a wait.
    """
    names = trace["names"].tolist()
    places = {row: place for place, (_, row) in enumerate(_calls(trace))}
    first = np.searchsorted(trace["rank"], np.arange(int(trace["rank"].max(initial=0)) + 1)).tolist()
    columns = [trace[name].tolist() for name in ("rank", "kind", "peer", "tag", "comm", "done")]
    sent: dict[tuple[int, ...], list[int]] = defaultdict(list)
    received: dict[tuple[int, ...], list[int | None]] = defaultdict(list)
    for row, (rank, code, peer, tag, comm, done) in enumerate(zip(*columns, strict=True)):
        name = names[code]
        if peer < 0:
            continue
        if name in SENDS:
            sent[comm, rank, peer, tag].append(row)
        elif name == "Recv":
            received[comm, peer, rank, tag].append(row if done < 0 else first[rank] + done)
        elif name == "Irecv":
            received[comm, peer, rank, tag].append(None if done < 0 else first[rank] + done)
    return [
        MessageTransfer(places[start], places[end])
        for key, starts in sent.items()
        for start, end in zip(starts, received.get(key, ()), strict=False)
        if end in places
    ]


# ---- some steps of a timeline


def select_steps(timeline: Timeline, steps: tuple[int, int]) -> Timeline:
    """Return the steps from the first to the last of these, with their work and calls, and the messages between those.

    Of a rank that takes no steps itself, such as a master, keep what it did for them: from one call that exchanged a
    message with such a step to the next, unless it served another step in between.
    """
    first, last = steps
    chosen = [span for span in timeline.steps if first <= span.about["step"] <= last]
    if not chosen:
        have = [span.about["step"] for span in timeline.steps]
        known = f"there are {min(have)} to {max(have)}" if have else "there are none"
        raise UsageError(f"no rank took a step from {first} to {last}; {known}")
    find = step_finder(timeline.steps)
    taking = {span.rank for span in timeline.steps}

    def inside(span: Span) -> bool:
        step = find(span)
        return step is not None and first <= step <= last

    serving = _find_serving_times(
        timeline, taking, [span.rank in taking and inside(span) for span in timeline.calls]
    )

    def holds(span: Span) -> bool:
        if span.rank in taking:
            return inside(span)
        return any(span.start < end and span.end > start for start, end in serving.get(span.rank, ()))

    def lies(span: Span) -> bool:
        if span.rank in taking:
            return inside(span)
        return any(start <= span.start and span.end <= end for start, end in serving.get(span.rank, ()))

    places: dict[int, int] = {}
    for place, call in enumerate(timeline.calls):
        if lies(call):
            places[place] = len(places)
    return replace(
        timeline,
        steps=chosen,
        work=[span for span in timeline.work if holds(span)],
        calls=[timeline.calls[place] for place in places],
        messages=[
            MessageTransfer(places[sent], places[received])
            for sent, received in timeline.messages
            if sent in places and received in places
        ],
    )


def _find_serving_times(
    timeline: Timeline, taking: set[int], kept: list[bool]
) -> dict[int, list[tuple[int, int]]]:
    """Return when each rank that takes no steps served the kept calls: from start to end, in order."""
    # For each such rank: its calls that exchanged messages, and whether the other call is kept.
    ends: dict[int, dict[int, bool]] = defaultdict(dict)
    for message in timeline.messages:
        for own, other in (message, message[::-1]):
            rank = timeline.calls[own].rank
            if rank not in taking and timeline.calls[other].rank in taking:
                ends[rank][own] = ends[rank].get(own, False) or kept[other]
    return {rank: list(_turns(timeline.calls, sorted(calls.items()))) for rank, calls in ends.items()}


def _turns(calls: list[Span], ends: Iterable[tuple[int, bool]]) -> Iterator[tuple[int, int]]:
    turn: tuple[int, int] | None = None
    for place, kept in ends:
        call = calls[place]
        if kept:
            turn = (turn[0] if turn else call.start, call.end)
        elif turn:
            yield turn
            turn = None
    if turn:
        yield turn


def step_finder(steps: Iterable[Span]) -> Callable[[Span], int | None]:
    """Return a function that finds the step of its rank in which a span lies, or None."""
    starts: dict[int, list[int]] = defaultdict(list)
    of_rank: dict[int, list[Span]] = defaultdict(list)
    for step in steps:
        starts[step.rank].append(step.start)
        of_rank[step.rank].append(step)

    def find(span: Span) -> int | None:
        place = bisect_right(starts[span.rank], span.start) - 1
        inside = place >= 0 and span.end <= of_rank[span.rank][place].end
        return int(of_rank[span.rank][place].about["step"]) if inside else None

    return find


# ---- as trace events in JSON, for https://ui.perfetto.dev and chrome://tracing


def write_trace(run: Run, path: Path, steps: tuple[int, int] | None = None) -> Timeline:
    """Write the timeline of a run to `path`, compressed if it ends in .gz: all steps, or those from the first to the last.

    Returns the whole timeline.

    >>> import tempfile
    >>> from paceline import fit
    >>> with tempfile.TemporaryDirectory() as runs:
    ...     fitted = fit("mlp:8", "iris", strategy="serial", epochs=2, batch=10, runs=runs, quiet=True)
    ...     _ = write_trace(Run(fitted.run), Path(runs) / "trace.json")
    ...     events = json.loads((Path(runs) / "trace.json").read_text())["traceEvents"]
    >>> events[1]["args"]["name"], len([event for event in events if event["name"] == "compute"])
    ('rank 0', 24)
    """
    timeline = timeline_of(run)
    shown = timeline if steps is None else select_steps(timeline, steps)
    with ExitStack() as stack:
        file: Any = stack.enter_context(replace_file(path))
        if path.suffix == ".gz":
            # Without a name and a time, for the same bytes every time.
            file = stack.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0))
        file.write(b'{"displayTimeUnit":"ms","otherData":')
        file.write(json_text(_describe(run, timeline)).encode())
        file.write(b',"traceEvents":[\n')
        for number, event in enumerate(_events(run, shown)):
            file.write((",\n" if number else "").encode() + _line(event))
        file.write(b"\n]}\n")
    return timeline


def _line(event: dict[str, Any]) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode()


def _describe(run: Run, timeline: Timeline) -> dict[str, Any]:
    """Describe the run; without time and place, so that the same simulation gives the same file."""
    config = run.config
    return {
        "strategy": config["strategy"],
        "ranks": config["ranks"],
        "data": config["data"],
        "model": config["model"],
        "time": "virtual" if run.simulated is not None else "measured",
        "within a step": "as recorded" if timeline.traced else "in an assumed order: the run was not traced",
        "events not kept": timeline.lost,
        **({} if run.cut is None else {"cut": run.cut}),
    }


def _events(run: Run, timeline: Timeline) -> Iterator[dict[str, Any]]:
    cut = "" if run.cut is None else f", {run.cut}"
    yield _make_metadata(
        "process_name", 0, name=f"{run.config['strategy']} on {count(timeline.ranks, 'rank')}{cut}"
    )
    for rank, role in enumerate(timeline.roles):
        yield _make_metadata("thread_name", rank, name=f"rank {rank} ({role})" if role else f"rank {rank}")
        yield _make_metadata("thread_sort_index", rank, sort_index=rank)
    shown = [
        (span.rank, span.start, -span.end, level, span)
        for level, spans in enumerate((timeline.steps, timeline.work, timeline.calls))
        for span in spans
    ]
    shown.sort(key=lambda entry: entry[:4])
    for *_, level, span in shown:
        yield _complete(span, ("step", "work", span.kind)[level])
    for number, (sent, received) in enumerate(timeline.messages):
        first, last = timeline.calls[sent], timeline.calls[received]
        yield _flow("s", number, first, first.start)
        yield _flow("f", number, last, max(last.start, last.end - 1))


def _make_metadata(what: str, rank: int, **values: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": PROCESS, "tid": rank, "args": values}


def _complete(span: Span, category: str) -> dict[str, Any]:
    about = {"args": dict(span.about)} if span.about else {}
    return {
        "ph": "X",
        "name": span.name,
        "cat": category,
        "pid": PROCESS,
        "tid": span.rank,
        "ts": span.start / 1000,
        "dur": (span.end - span.start) / 1000,
        **about,
    }


def _flow(phase: str, number: int, call: Span, at: int) -> dict[str, Any]:
    event = {
        "ph": phase, "name": "message", "cat": "message", "id": number, "pid": PROCESS, "tid": call.rank,
        "ts": at / 1000,
    }  # fmt: skip
    return {**event, "bp": "e"} if phase == "f" else event


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
