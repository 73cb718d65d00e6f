"""Ranks that compute nothing: masters are ranks that were started and paid for.

Where workers queue at them they have enough to do, and more workers would wait: then this is not a cause.
"""

from __future__ import annotations

from paceline.diagnosis import advice
from paceline.diagnosis.advice import joined
from paceline.diagnosis.case import Case
from paceline.diagnosis.findings import Cause
from paceline.diagnosis.rules import master_queue, slower_computing
from paceline.text import count

NAME = "ranks without work"
SHORT = "too many of the ranks only hold parameters"
PART = 0.25


def find(case: Case) -> Cause | None:
    """A quarter of the ranks or more compute nothing, and no queue keeps them busy."""
    ranks, workers = case.at.ranks, case.facts.workers
    idle = ranks - workers
    if not idle or idle / ranks < PART or master_queue.find(case) is not None:
        return None
    best = f"are at best {workers} times as fast as serial" if workers > 1 else "is at best as fast as serial"
    words = (
        f"{idle} of {count(ranks, 'rank')} hold{'s' * (idle == 1)} parameters and compute{'s' * (idle == 1)} nothing: "
        f"{count(workers, 'worker')} {best}"
    )
    others = advice.other_strategies(case, "idle ranks")
    tried = others
    # With more workers gradients would be older, or batches larger: not if that is too much already.
    option = case.facts.masters_option
    if option and case.worse is None and not case.astray:
        number = ranks + idle if idle > 1 else 2 * ranks
        more = f"-n {number} {advice.strategy(case, **{option: idle})} (more workers for the same masters)"
        tried = [advice.strategy(case, **{option: idle // 2}), more] if idle > 1 else [more, *others]
        if slower_computing.find(case) is not None:  # which more workers would make worse
            tried.remove(more)
    return Cause(rule=NAME, share=idle / ranks, words=words, advice=joined(case, tried))
