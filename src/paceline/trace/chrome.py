"""A timeline as trace events in JSON, for https://ui.perfetto.dev and chrome://tracing.

Each rank has a track of complete events ("X"): steps, the work in them, and the calls in that. Flows ("s" to "f") go from
sends to receives; metadata ("M") names the tracks.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from paceline.files import json_text, replacing
from paceline.record import Run
from paceline.text import count
from paceline.trace.timeline import Span, Timeline, select_steps, timeline_of

PROCESS = 0


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
        file: Any = stack.enter_context(replacing(path))
        if path.suffix == ".gz":
            file = stack.enter_context(
                gzip.GzipFile("", "wb", fileobj=file, mtime=0)
            )  # the same bytes every time
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
    }


def _events(run: Run, timeline: Timeline) -> Iterator[dict[str, Any]]:
    yield _named("process_name", 0, name=f"{run.config['strategy']} on {count(timeline.ranks, 'rank')}")
    for rank, role in enumerate(timeline.roles):
        yield _named("thread_name", rank, name=f"rank {rank} ({role})" if role else f"rank {rank}")
        yield _named("thread_sort_index", rank, sort_index=rank)
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


def _named(what: str, rank: int, **values: Any) -> dict[str, Any]:
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
        "ph": phase,
        "name": "message",
        "cat": "message",
        "id": number,
        "pid": PROCESS,
        "tid": call.rank,
        "ts": at / 1000,
    }
    return {**event, "bp": "e"} if phase == "f" else event
