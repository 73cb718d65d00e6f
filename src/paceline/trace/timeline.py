"""A record as a timeline: steps, what they were spent on, and, where the run was traced, every call and message.

Times are whole nanoseconds since the run's start. Spans of one rank lie beside each other or inside each other: a step
holds spans of work, and these hold calls.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.comm.clocks import KINDS
from paceline.comm.counting import RECEIVES, SENDS, WAITS
from paceline.comm.tracing import FENCE
from paceline.errors import UsageError
from paceline.record import Run
from paceline.training.job import built_in

Array = NDArray[Any]
# A step without a trace tells how long a rank did what, and not in which order: it is shown in this one.
ORDER = ("compute", "wait", "exchange", "update")


class Span(NamedTuple):
    """Something that took a while; `kind` is what it is drawn as."""

    rank: int
    name: str
    kind: str
    start: int
    end: int
    about: Mapping[str, Any] = {}


class Message(NamedTuple):
    """From a send of one rank to where another had it: the calls, as places in `Timeline.calls`."""

    sent: int
    received: int


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """What every rank of a run did when."""

    ranks: int
    roles: tuple[str, ...]
    """Of each rank, where they differ: master or worker; else nothing."""
    in_step: bool
    """Whether all ranks go through the same exchanges."""
    traced: bool
    """Whether spans are as they were, with calls; else a step's spans are in a usual order."""
    steps: list[Span]
    work: list[Span]
    calls: list[Span] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    lost: int = 0
    """Events that the trace did not keep."""


def timeline_of(run: Run) -> Timeline:
    """What every rank of a run did when, as far as its record tells.

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
            f"{run.folder} has no timeline: it was recorded before steps had a start; train it again"
        )
    ranks = int(run.config["ranks"])
    strategy = built_in(str(run.config["strategy"]))
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
    """Seconds as whole nanoseconds."""
    return np.rint(seconds * 1e9).astype(np.int64)


def _ends(columns: Mapping[str, Array]) -> Array:
    """When each step was over, by what it was spent on; never after the next one of its rank began."""
    spent = sum(columns[kind].astype(np.float64) for kind in ORDER)
    ends = nanoseconds(columns["start"] + spent)
    starts = nanoseconds(columns["start"])
    follows = columns["rank"][1:] == columns["rank"][:-1]
    ends[:-1][follows] = np.minimum(ends[:-1], starts[1:])[follows]
    return ends


def _from_steps(columns: Mapping[str, Array], ranks: int, in_step: bool) -> tuple[list[Span], list[Span]]:
    """Steps and what they were spent on, from their durations alone."""
    starts, ends = nanoseconds(columns["start"]), _ends(columns)
    spent = {kind: columns[kind].astype(np.float64) for kind in ORDER}
    waited = _waited(columns, ranks) if in_step else np.zeros(len(starts))
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


def _waited(columns: Mapping[str, Array], ranks: int) -> Array:
    """Of each step's exchange, how much longer it took than on the rank that spent least in it."""
    counts = np.bincount(columns["rank"], minlength=ranks)
    if ranks == 1 or len(set(counts.tolist())) != 1:
        return np.zeros(len(columns["rank"]))
    spent = columns["exchange"].astype(np.float64).reshape(ranks, -1)  # ranks one after the other
    return np.ravel(spent - spent.min(axis=0))


def _steps(columns: Mapping[str, Array], work: list[Span]) -> list[Span]:
    """The steps of a traced run: each ends where a span of work does, so that none lies across its end."""
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


# ---- The events of a traced run as spans, and which send each receive belongs to.
Events = Mapping[str, Array]


def work_of(trace: Events) -> list[Span]:
    """What every rank spent its time on."""
    names = trace["names"].tolist()
    rows = np.flatnonzero(np.isin(trace["kind"], _codes(names, KINDS)))
    starts, ends = nanoseconds(trace["start"][rows]).tolist(), nanoseconds(trace["end"][rows]).tolist()
    kinds, ranks = trace["kind"][rows].tolist(), trace["rank"][rows].tolist()
    return [
        Span(rank, names[kind], names[kind], start, end)
        for rank, kind, start, end in zip(ranks, kinds, starts, ends, strict=True)
    ]


def calls_of(trace: Events) -> list[Span]:
    """Every call of MPI of every rank."""
    return [span for span, _ in _calls(trace)]


def _calls(trace: Events) -> Iterator[tuple[Span, int]]:
    """Calls, with their rows in the trace."""
    names = trace["names"].tolist()
    rows = np.flatnonzero(~np.isin(trace["kind"], _codes(names, KINDS)))
    starts, ends = nanoseconds(trace["start"][rows]).tolist(), nanoseconds(trace["end"][rows]).tolist()
    columns = [trace[name][rows].tolist() for name in ("rank", "kind", "peer", "tag", "bytes")]
    for row, start, end, rank, code, peer, tag, nbytes in zip(
        rows.tolist(), starts, ends, *columns, strict=True
    ):
        name = names[code]
        kind, word = _spelled(name)
        about = {key: value for key, value in (("peer", peer), ("tag", tag)) if value >= 0}
        if name not in WAITS and name != FENCE:
            about["bytes"] = nbytes
        told = f"{name} {word} {peer}" if word and peer >= 0 else name
        yield Span(rank, told, kind, start, end, about), row


def _spelled(name: str) -> tuple[str, str]:
    """What kind of call this is, and the word between it and the other rank."""
    if name in SENDS:
        return "send", "to"
    if name in RECEIVES:
        return "receive", "from"
    return ("wait", "") if name in WAITS or name == FENCE else ("exchange", "")


def _codes(names: list[str], wanted: tuple[str, ...]) -> list[int]:
    return [code for code, name in enumerate(names) if name in wanted]


def messages_of(trace: Events) -> list[Message]:
    """Which receive got what was sent: of the messages of two ranks with one tag on one communicator, none overtakes
    another, so the first receive has the first of them.

    Where it was received is where that was known: the call that waited for it.
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
        Message(places[start], places[end])
        for key, starts in sent.items()
        for start, end in zip(starts, received.get(key, ()), strict=False)
        if end is not None
    ]


# ---- Some steps of a timeline, and nothing else: ranks that do not go in step do other steps at the same time.


def only(timeline: Timeline, steps: tuple[int, int]) -> Timeline:
    """The steps from the first to the last of these, with the work and the calls in them, and messages between those.

    A rank that takes no steps itself, such as a master, is left with what it did for them: from a call in which it had a
    message of such a step, or sent one to it, to the next such call, unless it served another step between the two.
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

    serving = _served(timeline, taking, [span.rank in taking and inside(span) for span in timeline.calls])

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
            Message(places[sent], places[received])
            for sent, received in timeline.messages
            if sent in places and received in places
        ],
    )


def _served(timeline: Timeline, taking: set[int], kept: list[bool]) -> dict[int, list[tuple[int, int]]]:
    """When each rank that takes no steps was busy with those whose calls are kept: from start to end, in order."""
    ends: dict[int, dict[int, bool]] = defaultdict(
        dict
    )  # of each such rank: calls of messages, and whether for one kept
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
    """Tells which step of its rank a span lies in."""
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
