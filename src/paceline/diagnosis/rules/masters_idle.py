"""Ranks that compute nothing: masters and main ranks are ranks that were started and paid for."""

from __future__ import annotations

from paceline.diagnosis import _advice as advice
from paceline.diagnosis._case import Case
from paceline.diagnosis._finding import Cause
from paceline.diagnosis._words import count

NAME = "ranks without work"
SHORT = "too many of the ranks only hold parameters"
PART = 0.25


def find(case: Case) -> Cause | None:
    """A quarter of the ranks or more compute nothing."""
    ranks, workers = case.at.ranks, case.at.timing.workers
    idle = ranks - workers
    if idle / ranks < PART or not idle or case.name not in ("parameter-server", "main-worker"):
        return None
    words = (
        f"{idle} of {count(ranks, 'rank')} hold{'s' * (idle == 1)} parameters and compute{'s' * (idle == 1)} nothing: "
        f"{count(workers, 'worker')} can be {workers} times as fast as serial at best"
    )
    if case.name == "main-worker":
        tried = "--strategy sync (every rank computes)"
    elif idle > 1:
        tried = f"{advice.strategy(case, masters=idle // 2)}, or -n {ranks + idle} with as many masters"
    else:
        tried = f"-n {2 * ranks} with as many masters, or --strategy sync (every rank computes)"
    return Cause(rule=NAME, share=idle / ranks, words=words, advice=tried)
