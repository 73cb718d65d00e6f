"""What must be true of every trace."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import main
from paceline.record import Run
from paceline.trace import timeline_of

TOGETHER = ("Allreduce", "Bcast", "Barrier", "Iallreduce")


def write_trace(run: Run, path: Path, *more: str) -> dict[str, Any]:
    """Write the trace of a run; return it as read back."""
    assert main(["trace", str(run.folder), "-o", str(path), *more]) == 0
    data = path.read_bytes()
    found: dict[str, Any] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return found


def check_format(trace: dict[str, Any], ranks: int) -> list[dict[str, Any]]:
    """What the trace event format asks for; returns the complete events."""
    events = trace["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert [names[rank].split(" (")[0] for rank in range(ranks)] == [f"rank {rank}" for rank in range(ranks)]
    assert {e["ph"] for e in events} <= {"M", "X", "s", "f"}
    assert {e["pid"] for e in events} == {0}
    assert all(e["tid"] in names for e in events)
    complete = [e for e in events if e["ph"] == "X"]
    tracks = defaultdict(list)
    for event in complete:
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        tracks[event["tid"]].append(event)
    for track in tracks.values():
        check_nesting(track)
    flows = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            flows[event["id"]].append(event)
    for first, last in flows.values():  # each has two ends
        assert (first["ph"], last["ph"], last["bp"]) == ("s", "f", "e")
        for end in (first, last):
            assert any(e["ts"] <= end["ts"] <= e["ts"] + e["dur"] for e in tracks[end["tid"]])
    return complete


def check_nesting(track: list[dict[str, Any]]) -> None:
    """Each event begins when the one before it has begun, and ends before those do that it began in."""
    around: list[int] = []
    begun = 0
    for event in track:
        start = round(1000 * event["ts"])
        end = start + round(1000 * event["dur"])
        assert start >= begun
        begun = start
        while around and around[-1] <= start:
            around.pop()
        assert not around or end <= around[-1], event
        around.append(end)


def check_seconds(complete: list[dict[str, Any]], run: Run, *, traced: bool) -> None:
    """The spans of work take as long, in all, as the summary says of each rank."""
    spent: Counter[tuple[int, str]] = Counter()
    for event in complete:
        if event["cat"] == "work":
            spent[event["tid"], event["name"]] += event["dur"] / 1e6
    for rank, seconds in enumerate(run.summary["seconds_by_rank"]):
        assert spent[rank, "compute"] == pytest.approx(seconds["compute"], rel=1e-5, abs=1e-6)
        if traced:
            assert spent[rank, "update"] == pytest.approx(seconds["update"], rel=1e-5, abs=1e-6)
            assert spent[rank, "evaluation"] == pytest.approx(seconds["evaluation"], rel=1e-5, abs=1e-6)
            both = seconds["exchange"] + seconds["wait"]
            assert spent[rank, "exchange"] + spent[rank, "wait"] == pytest.approx(both, rel=1e-5, abs=1e-6)
            if not timeline_of(run).in_step:  # else the record has counted some of the exchange as waiting
                assert spent[rank, "wait"] == pytest.approx(seconds["wait"], rel=1e-5, abs=1e-6)


def check_messages(trace: dict[str, Any], complete: list[dict[str, Any]], run: Run) -> None:
    """Every message that was counted is there, and where it arrived."""
    sent = [e for e in complete if e["cat"] == "send"]
    together = [e for e in complete if e["name"] in TOGETHER]
    assert len(sent) + len(together) == run.summary["messages_sent"]
    assert sum(e["args"]["bytes"] for e in sent + together) == run.summary["bytes_sent"]
    received = [e for e in complete if e["cat"] == "receive"]
    assert len(received) == len(sent)
    assert sorted((e["tid"], e["args"]["peer"]) for e in sent) == sorted(
        (e["args"]["peer"], e["tid"]) for e in received
    )
    flows = [e for e in trace["traceEvents"] if e["ph"] == "s"]
    assert len(flows) == len(sent)


def check_all(run: Run, path: Path) -> dict[str, Any]:
    """All of it, for a traced run that was not cut."""
    trace = write_trace(run, path)
    complete = check_format(trace, run.config["ranks"])
    check_seconds(complete, run, traced=True)
    check_messages(trace, complete, run)
    steps = Counter(e["tid"] for e in complete if e["cat"] == "step")
    spent = sum(run.steps[kind] for kind in ("compute", "exchange", "update", "wait"))
    assert steps == Counter(
        run.steps["rank"][spent > 0].tolist()
    )  # a turn without a batch takes no virtual time
    return trace
