"""Nothing is wrong."""

from __future__ import annotations

from paceline.diagnosis import _advice as advice
from paceline.diagnosis._case import Case
from paceline.diagnosis._finding import Cause
from paceline.diagnosis._words import count, percent, times
from paceline.diagnosis.rules import grown_batch

NAME = "scales well"
SHORT = "it scales well"
EFFICIENCY = 0.75


def find(case: Case) -> Cause | None:
    """Three quarters of the most ranks are used, as much is learned as by serial training, and nothing diverged."""
    speedup, ranks, stops = case.speedup(case.at), case.at.ranks, case.limit
    if (
        speedup is None
        or stops is None
        or ranks < 2
        or speedup / ranks < EFFICIENCY
        or case.at.oversubscribed
    ):
        return None
    # Where it is fastest before the most ranks, or learns less on some, more are no answer; nor where it is not they alone.
    if not stops.rising or case.worse is not None or case.astray or grown_batch.find(case) is not None:
        return None
    words = f"{count(ranks, 'rank')} are {times(speedup)} as fast as serial: {percent(speedup / ranks)} of each is used"
    return Cause(rule=NAME, share=None, words=words, advice=advice.ranks(case, 2 * ranks))
