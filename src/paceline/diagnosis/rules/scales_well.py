"""Nothing is wrong."""

from __future__ import annotations

from paceline.diagnosis import advice
from paceline.diagnosis.case import Case
from paceline.diagnosis.findings import Cause
from paceline.diagnosis.rules import grown_batch
from paceline.text import count, share, times

NAME = "scales well"
SHORT = "it scales well"
EFFICIENCY = 0.75


def find(case: Case) -> Cause | None:
    """Efficiency is 75 % on the most ranks, as much is learned as by serial training, and nothing diverged."""
    speedup, ranks, stops = case.speedup(case.at), case.at.ranks, case.limit
    if speedup is None or stops is None or ranks < 2 or speedup / ranks < EFFICIENCY:
        return None
    # More ranks are not the answer if fewer are the fastest or less is learned, nor if the ranks alone are not the reason.
    if case.at.oversubscribed or not stops.rising or case.worse is not None or case.astray:
        return None
    if grown_batch.find(case) is not None:
        return None
    words = (
        f"{count(ranks, 'rank')} are {times(speedup)} as fast as serial: {share(speedup / ranks)} efficiency"
    )
    return Cause(rule=NAME, share=None, words=words, advice=advice.ranks(case, 2 * ranks))
