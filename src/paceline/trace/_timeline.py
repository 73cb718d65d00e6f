"""A record as a timeline: steps, what they were spent on, and, where the run was traced, every call and message.

Times are whole nanoseconds since the run's start. Spans of one rank lie beside each other or inside each other: a step
holds spans of work, and these hold calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.errors import UsageError
from paceline.job import strategy_in
from paceline.record import Run

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
    strategy = strategy_in(str(run.config["strategy"]))
    in_step = getattr(strategy, "in_step", True)
    roles = tuple(strategy.role(rank, ranks) if strategy else "" for rank in range(ranks))
    trace = run.trace
    if trace is None:
        steps, work = _from_steps(columns, ranks, in_step)
        return Timeline(ranks=ranks, roles=roles, in_step=in_step, traced=False, steps=steps, work=work)
    from paceline.trace._events import calls_of, messages_of, work_of

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
