"""Ranks wait for others: for some that are always slower, or now for one and now for another.

A rank is slow where the median of its seconds a sample is SLOWER times that of the middle rank, and in three quarters of
its steps it is slower than that rank. Where no rank is, and all wait, what they wait for is chance.
"""

from __future__ import annotations

import numpy as np

from paceline.diagnosis import _advice as advice
from paceline.diagnosis._advice import joined
from paceline.diagnosis._case import Case
from paceline.diagnosis._finding import Cause
from paceline.diagnosis._words import count, duration, listed, percent
from paceline.diagnosis.rules import uneven

NAME = "stragglers"
SHORT = "ranks wait for slower ones"
# Waiting for this part of a step is worth naming.
WAITING = 0.1
SLOWER = 1.25
# A rank that is the slowest in this part of the steps, and so many times as often as in turn, is not just any.
MOSTLY, TURNS = 0.4, 1.5
# More slow ranks than this are counted, not named.
NAMED = 4


def find(case: Case) -> Cause | None:
    """A tenth of a step is waiting, or would be saved if batches went to whoever is free."""
    timing = case.at.timing
    slow, normal = slow_ranks(case)
    share = _at_the_end(case) if case.name == "parameter-server" else timing.share("wait")
    if case.at.ranks < 2 or share < WAITING or case.at.oversubscribed:
        return None
    if slow:
        return _persistent(case, share, slow, normal)
    random = timing.slowest and uneven.find(case) is None
    return _by_chance(case, share) if random else None


def slow_ranks(case: Case) -> tuple[dict[int, float], float]:
    """The ranks that are always slower with their seconds a sample, and the middle rank's."""
    timing = case.at.timing
    normal, low = timing.middle, timing.at_least
    slow = {rank: own for rank, own in timing.by_rank.items() if own > SLOWER * normal and low[rank] > normal}
    return slow, normal


def _persistent(case: Case, share: float, slow: dict[int, float], normal: float) -> Cause:
    many = f"{len(slow)} of {len(case.at.timing.by_rank)} ranks take"
    who = f"rank{'s' * (len(slow) > 1)} {listed(list(slow))} take{'s' * (len(slow) == 1)}"
    mean = float(np.mean(list(slow.values())))
    words = (
        f"at {count(case.at.ranks, 'rank')} {who if len(slow) <= NAMED else many} {mean / normal:.1f} times as long for a "
        f"sample as the others ({duration(mean)} against {duration(normal)}); waiting for "
        f"{'it' if len(slow) == 1 else 'them'} is {percent(share)} of the time"
    )
    return Cause(rule=NAME, share=share, words=words, advice=_for_slow(case, len(slow)))


def _for_slow(case: Case, slow: int) -> str:
    if case.name == "parameter-server":
        return joined(
            case, [f"{advice.strategy(case, share='dynamic')} (whoever is free takes the next batch)"]
        )
    tried = []
    if case.name == "sync" and not case.option("balance"):
        tried.append(f"{advice.strategy(case, balance=True)} (slower ranks get smaller pieces)")
    elif case.name != "sync":
        tried.append("--strategy sync:balance=true (slower ranks get smaller pieces)")
    if case.at.ranks > 2:  # of two ranks one would be the master
        tried.append("--strategy parameter-server:share=dynamic (nobody waits)")
    if slow < case.at.ranks - 2:
        tried.append(f"--strategy parameter-server:backup={slow} (rounds do without the slowest)")
    return joined(case, tried)


def _by_chance(case: Case, share: float) -> Cause:
    timing = case.at.timing
    assert timing.often is not None
    rank, part = timing.often
    mostly = part >= max(MOSTLY, TURNS / timing.workers)
    named = (
        f"rank {rank} is the slowest in {percent(part)} of the steps, another in the others, and " * mostly
    )
    any_ = (
        ""
        if mostly
        else f"it is now one and now another, most often rank {rank} ({percent(part)} of the steps); "
    )
    words = (
        f"at {count(case.at.ranks, 'rank')} {named}computing is uneven from step to step: the slowest rank of a step takes "
        f"{duration(timing.slowest)}, the mean {duration(timing.compute)}; {any_}waiting is {percent(share)} of the time"
    )
    return Cause(rule=NAME, share=share, words=words, advice=_for_chance(case))


def _for_chance(case: Case) -> str:
    averaging, most = case.name in ("local-sgd", "elastic"), advice.most_apart(case)
    now = int(case.option("every") or 10) if averaging else 1
    every = min(4 * now if averaging else 10, most)
    tried = []
    if every > now:
        change = advice.strategy(case, every=every) if averaging else f"--strategy local-sgd:every={every}"
        tried.append(f"{change} (unevenness cancels out over the steps between averages)")
    if not averaging and case.at.ranks > 2:
        tried.append("--strategy parameter-server (nobody waits for all)")
    return joined(case, tried)


def _at_the_end(case: Case) -> float:
    """The part of a parameter server's time that would be saved if batches went to whoever is free.

    With fixed shares everybody is done when the slowest is; else all together do their batches at their own rates.
    """
    timing = case.at.timing
    if case.option("share") == "dynamic" or not timing.by_rank:
        return 0.0
    beside = timing.exchange + timing.answer + timing.update
    own = {rank: timing.by_rank[rank] * timing.samples + beside for rank in timing.by_rank}
    fixed = max(own[rank] * timing.batches[rank] for rank in own)
    free = sum(timing.batches[rank] for rank in own) / sum(1 / seconds for seconds in own.values())
    return max(0.0, 1 - free / fixed) if fixed > 0 else 0.0
