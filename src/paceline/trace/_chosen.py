"""Some steps of a timeline, and nothing else: ranks that do not go in step do other steps at the same time."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from paceline.errors import UsageError
from paceline.trace._timeline import Message, Span, Timeline


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
