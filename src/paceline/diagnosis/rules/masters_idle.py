"""Ranks that compute nothing: masters and main ranks are ranks that were started and paid for."""

from __future__ import annotations

from paceline.diagnosis import _advice as advice
from paceline.diagnosis._case import Case
from paceline.diagnosis._finding import Cause
from paceline.diagnosis._tried import joined
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
        f"{count(workers, 'worker')} {f'can be {workers} times as fast as' if workers > 1 else 'is no faster than'} "
        "serial at best"
    )
    every = "--strategy sync (every rank computes)"
    if case.name == "main-worker":
        tried = [every]
    elif idle > 1:
        tried = [advice.strategy(case, masters=idle // 2), _more_workers(case, ranks + idle, idle)]
    else:
        tried = [_more_workers(case, 2 * ranks, idle), every]
    return Cause(rule=NAME, share=idle / ranks, words=words, advice=joined(case, tried))


def _more_workers(case: Case, ranks: int, masters: int) -> str:
    return f"-n {ranks} {advice.strategy(case, masters=masters)} (as many masters for more workers)"
