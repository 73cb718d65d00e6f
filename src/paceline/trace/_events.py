"""The events of a traced run as spans, and which send each receive belongs to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.comm._calls import RECEIVES, SENDS, WAITS
from paceline.comm._events import FENCE
from paceline.stopwatch import KINDS
from paceline.trace._timeline import Message, Span, nanoseconds

Array = NDArray[Any]
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
