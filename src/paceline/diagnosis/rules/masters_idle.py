"""Ranks that compute nothing: masters and main ranks are ranks that were started and paid for.

Where workers queue at them they have work enough, and more workers would wait: then this is no cause.
"""

from __future__ import annotations

from paceline.diagnosis import _advice as advice
from paceline.diagnosis._advice import joined
from paceline.diagnosis._case import Case
from paceline.diagnosis._finding import Cause
from paceline.diagnosis._words import count
from paceline.diagnosis.rules import master_queue, slower_computing

NAME = "ranks without work"
SHORT = "too many of the ranks only hold parameters"
PART = 0.25


def find(case: Case) -> Cause | None:
    """A quarter of the ranks or more compute nothing, and no queue keeps them busy."""
    ranks, workers = case.at.ranks, case.at.timing.workers
    idle = ranks - workers
    if idle / ranks < PART or not idle or case.name not in ("parameter-server", "main-worker"):
        return None
    if master_queue.find(case) is not None:
        return None
    words = (
        f"{idle} of {count(ranks, 'rank')} hold{'s' * (idle == 1)} parameters and compute{'s' * (idle == 1)} nothing: "
        f"{count(workers, 'worker')} {f'can be {workers} times as fast as' if workers > 1 else 'is no faster than'} "
        "serial at best"
    )
    every = "--strategy sync (every rank computes)"
    tried = [every]
    # With more workers gradients would be older, or batches larger: not where that is too much already.
    if case.name == "parameter-server" and case.worse is None and not case.astray:
        more = _more_workers(case, ranks + idle if idle > 1 else 2 * ranks, idle)
        tried = [advice.strategy(case, masters=idle // 2), more] if idle > 1 else [more, every]
        if slower_computing.find(case) is not None:  # which more of them would be
            tried.remove(more)
    return Cause(rule=NAME, share=idle / ranks, words=words, advice=joined(case, tried))


def _more_workers(case: Case, ranks: int, masters: int) -> str:
    return f"-n {ranks} {advice.strategy(case, masters=masters)} (as many masters for more workers)"
