"""Ranks wait for others: for slower ones, or for those that have more samples in a step.

A rank is slow if the median of its seconds per sample is SLOWER times that of the median rank, and it is slower than that
rank in three quarters of its steps. If no rank is slow and all wait, they wait by chance, unless the batches do not divide
evenly.
"""

from __future__ import annotations

import numpy as np

from paceline.diagnosis import advice
from paceline.diagnosis.advice import join_worthwhile
from paceline.diagnosis.case import Case, Cause, DiagnosisRule
from paceline.text import count, duration, join, share

# Waiting for this part of a step is worth naming.
WAITING = 0.1
SLOWER = 1.25
# A rank that is the slowest in this part of the steps, and this many times as often as if all took turns, is named.
MOSTLY, TURNS = 0.4, 1.5
# More slow ranks than this are counted, not named.
NAMED = 4


def find_stragglers(case: Case) -> Cause | None:
    """Return a cause if a tenth of a step is waiting, or would be saved by giving batches to whichever rank is free."""
    timing = case.at.timing
    slow, normal = slow_ranks(case)
    part = _find_saved_fraction(case) if _waits_for_masters(case) else timing.share("wait")
    if case.at.ranks < 2 or part < WAITING or case.at.oversubscribed:
        return None
    if slow:
        return _persistent(case, part, slow, normal)
    random = timing.slowest and find_uneven(case) is None
    return _by_chance(case, part) if random else None


def _waits_for_masters(case: Case) -> bool:
    """Return True if workers wait for masters and not for each other."""
    return case.whole_batches and case.facts.workers < case.at.ranks


def slow_ranks(case: Case) -> tuple[dict[int, float], float]:
    """Return the ranks that are always slower with their seconds per sample, and those of the median rank."""
    timing = case.at.timing
    normal, low = timing.middle, timing.at_least
    slow = {rank: own for rank, own in timing.by_rank.items() if own > SLOWER * normal and low[rank] > normal}
    return slow, normal


def _persistent(case: Case, part: float, slow: dict[int, float], normal: float) -> Cause:
    many = f"{len(slow)} of {len(case.at.timing.by_rank)} ranks take"
    who = f"rank{'s' * (len(slow) > 1)} {join(slow)} take{'s' * (len(slow) == 1)}"
    mean = float(np.mean(list(slow.values())))
    words = (
        f"at {count(case.at.ranks, 'rank')} {who if len(slow) <= NAMED else many} {mean / normal:.1f} times as long per "
        f"sample as the others ({duration(mean)} against {duration(normal)}); waiting for "
        f"{'it' if len(slow) == 1 else 'them'} takes {share(part)} of the time"
    )
    tried = advice.own_changes(case, "slow ranks")
    if not _waits_for_masters(case):
        tried += advice.other_strategies(case, "slow ranks", len(slow))
    return Cause(rule=STRAGGLERS.name, share=part, words=words, advice=join_worthwhile(case, tried))


def _by_chance(case: Case, part: float) -> Cause:
    timing = case.at.timing
    assert timing.often is not None
    rank, often = timing.often
    mostly = often >= max(MOSTLY, TURNS / timing.workers)
    first = f"rank {rank} is the slowest in {share(often)} of the steps, and " if mostly else ""
    changes = f"the slowest rank changes, most often it is rank {rank} ({share(often)} of the steps); "
    words = (
        f"at {count(case.at.ranks, 'rank')} {first}computing varies from step to step: the slowest rank of a step takes "
        f"{duration(timing.slowest)}, the mean is {duration(timing.compute)}; "
        f"{'' if mostly else changes}waiting takes {share(part)} of the time"
    )
    return Cause(rule=STRAGGLERS.name, share=part, words=words, advice=_for_chance(case))


def _for_chance(case: Case) -> str:
    facts, most = case.facts, advice.find_longest_interval(case)
    if facts.averages and facts.in_step and facts.interval_option:
        now = facts.interval or 10
        every = min(4 * now, most)
        tried = []
        if every > now:
            change = advice.strategy(case, **{facts.interval_option: every})
            tried.append(f"{change} (unevenness cancels out between averages)")
    else:
        tried = advice.other_strategies(case, "uneven steps", min(10, most))
    return join_worthwhile(case, tried)


def _find_saved_fraction(case: Case) -> float:
    """Return the part of the time that would be saved if batches went to whichever worker is free.

    With fixed shares training ends when the slowest worker has done its share; otherwise all work until no batch is left.
    """
    timing = case.at.timing
    if not case.facts.fixed_shares or not timing.by_rank:
        return 0.0
    beside = timing.exchange + timing.answer + timing.update
    own = {rank: timing.by_rank[rank] * timing.samples + beside for rank in timing.by_rank}
    fixed = max(own[rank] * timing.batches[rank] for rank in own)
    free = sum(timing.batches[rank] for rank in own) / sum(1 / seconds for seconds in own.values())
    return max(0.0, 1 - free / fixed) if fixed > 0 else 0.0


STRAGGLERS = DiagnosisRule(name="stragglers", short="ranks wait for slower ones", find=find_stragglers)


# The largest piece is this many times the mean one.
LARGER = 1.15


def find_uneven(case: Case) -> Cause | None:
    """Return a cause if the largest piece of a batch is a seventh above the mean, and a tenth of the step is waiting."""
    timing = case.at.timing
    part = timing.share("wait")
    if timing.uneven < LARGER or part < WAITING or not case.facts.even_pieces or case.at.oversubscribed:
        return None
    batch, workers = advice.present_batch(case), timing.workers
    if case.whole_batches:
        fewer = advice.fewer_ranks(case)
        return Cause(
            rule=UNEVEN.name,
            share=part,
            words=f"at {count(case.at.ranks, 'rank')} some ranks have no batch in some turns: waiting takes {share(part)} "
            "of the time",
            advice="" if fewer is None else f"-n {fewer}",
        )
    largest = -(-batch // workers)
    words = (
        f"a batch of {batch:,} gives the {count(workers, 'computing rank')} {batch // workers} to {largest} samples; the "
        f"largest piece is {timing.uneven:.2f} times the mean, and waiting for it takes {share(part)} of the time"
    )
    even = advice.spell_batch(case, largest * workers, "pieces of one size") if advice.may_grow(case) else ""
    return Cause(rule=UNEVEN.name, share=part, words=words, advice=even)


UNEVEN = DiagnosisRule(
    name="uneven pieces", short="batches do not divide evenly among the ranks", find=find_uneven
)
