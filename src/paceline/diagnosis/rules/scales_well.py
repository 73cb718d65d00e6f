"""Nothing is wrong."""

from __future__ import annotations

from paceline.diagnosis._case import Case
from paceline.diagnosis._finding import Cause
from paceline.diagnosis._words import count, percent, times

NAME = "scales well"
SHORT = "it scales well"
EFFICIENCY = 0.75


def find(case: Case) -> Cause | None:
    """Three quarters of the ranks are used, and as much is learned as by serial training."""
    speedup, ranks = case.speedup(case.at), case.at.ranks
    if speedup is None or ranks < 2 or speedup / ranks < EFFICIENCY or case.worse is not None:
        return None
    if any(scale.diverged for scale in case.scales):
        return None
    words = f"{count(ranks, 'rank')} are {times(speedup)} as fast as serial: {percent(speedup / ranks)} of each is used"
    cores = case.at.place.cores
    if case.at.runs[0].simulated is not None or (cores is not None and 2 * ranks <= cores):
        tried = f"-n {2 * ranks}"
    else:
        tried = f"--on sim -n {2 * ranks} --network 10gbe (what more nodes would do)"
    return Cause(rule=NAME, share=None, words=words, advice=tried)
