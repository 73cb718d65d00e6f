"""Nothing is wrong."""

from __future__ import annotations

from paceline.diagnosis import _advice as advice
from paceline.diagnosis._case import Case
from paceline.diagnosis._finding import Cause
from paceline.diagnosis._words import count, percent, times

NAME = "scales well"
SHORT = "it scales well"
EFFICIENCY = 0.75


def find(case: Case) -> Cause | None:
    """Three quarters of the ranks are used, and as much is learned as by serial training."""
    speedup, ranks = case.speedup(case.at), case.at.ranks
    if (
        speedup is None
        or ranks < 2
        or speedup / ranks < EFFICIENCY
        or case.worse is not None
        or case.at.oversubscribed
    ):
        return None
    if any(scale.diverged for scale in case.scales):
        return None
    words = f"{count(ranks, 'rank')} are {times(speedup)} as fast as serial: {percent(speedup / ranks)} of each is used"
    more = next(n for n in (2 * ranks, 4 * ranks, 8 * ranks) if n == 8 * ranks or n not in _tried(case))
    return Cause(rule=NAME, share=None, words=words, advice=advice.ranks(case, more))


def _tried(case: Case) -> set[int]:
    return {scale.ranks for scale in case.scales}
