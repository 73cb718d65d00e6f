"""Ranks that hold the parameters: workers queue at them, or they are too many and have too little to do.

Everything passes through a few ranks, and more workers mean more work for them. Where masters serve workers one by one
(each worker for itself), there is a queue if waiting for answers is a fifth of a worker's step and the busiest master
works half of its time, or if an answer takes half as long again as with the fewest workers tried. Where all workers of a
step send to one rank, two workers are enough for a queue.

Masters compute nothing, yet they were started and paid for. Where workers queue at them they have enough to do, and more
workers would wait: then their number is not a cause.
"""

from __future__ import annotations

from collections import Counter

from paceline.diagnosis import advice
from paceline.diagnosis.advice import join_worthwhile
from paceline.diagnosis.case import Case, Cause, DiagnosisRule, Scale
from paceline.diagnosis.rules import slower_computing
from paceline.text import count, duration, share

WAITING = 0.2
BUSY = 0.5
LONGER = 1.5
# A master is overloaded if it holds this many times its fair part of the parameters.
LOPSIDED = 1.5


def find_master_queue(case: Case) -> Cause | None:
    """Return a cause if a fifth of a step is waiting for masters, and they are busy or get slower with more workers."""
    # Without its own core a master answers late, whatever its work.
    if case.at.oversubscribed or case.facts.workers == case.at.ranks:
        return None
    return _find_serving_each(case) if case.whole_batches else _find_serving_all(case)


def _find_serving_each(case: Case) -> Cause | None:
    """Return the cause if masters serve workers one by one."""
    timing = case.at.timing
    part, before = timing.share("answer"), _fewest(case)
    longer = before is not None and timing.answer > LONGER * before.timing.answer
    busy = timing.busy or 0.0
    if part < WAITING or timing.workers < 2 or (busy < BUSY and not longer):
        return None
    masters = case.at.ranks - case.facts.workers
    one = masters == 1
    grew = ""
    if before is not None and longer:
        grew = f"; with {count(before.timing.workers, 'worker')} {duration(before.timing.answer)}"
    works = (
        f"; {'the' if one else 'the busiest'} master is busy {share(busy)} of the time" if timing.busy else ""
    )
    words = (
        f"at {count(case.at.ranks, 'rank')} {count(masters, 'master')} serve{'s' * one} {count(timing.workers, 'worker')}: "
        f"a worker computes for {duration(timing.compute)} and waits {duration(timing.answer)} for its answer "
        f"({share(part)} of its step{grew}){works}"
    )
    tried = []
    largest, even = _largest_part(case, masters), case.facts.remedies.get("uneven masters", ())
    if largest > LOPSIDED / masters and masters > 1 and even:
        words += f"; one master holds {share(largest)} of the parameters"
        tried += advice.own_changes(case, "uneven masters")
    elif case.at.ranks > 2 * masters and case.facts.masters_option:
        options = {key: value for change in even for key, value in change.options.items()}
        more = advice.strategy(case, **{case.facts.masters_option: 2 * masters}, **options)
        tried.append(f"{more} (each holds half as much)")
    tried += _larger_batch(case)
    fewer = advice.fewer_ranks(case)
    settings = join_worthwhile(case, tried) or ("" if fewer is None else f"-n {fewer}")
    return Cause(rule=MASTER_QUEUE.name, share=part, words=words, advice=settings)


def _find_serving_all(case: Case) -> Cause | None:
    """Return the cause if all workers of a step send to one rank, which answers them all."""
    timing = case.at.timing
    part, before = timing.share("exchange"), _fewest(case)
    if part < WAITING or timing.workers < 2:
        return None
    grew = ""
    if before is not None:
        grew = f"; with {count(before.timing.workers, 'worker')} {duration(before.timing.exchange)}"
    words = (
        f"at {count(case.at.ranks, 'rank')} a worker computes for {duration(timing.compute)} and exchanges for "
        f"{duration(timing.exchange)} ({share(part)} of its step{grew}): {2 * timing.workers} messages with all "
        f"parameters pass through one rank, one after the other"
    )
    tried = [*advice.other_strategies(case, "queue"), *_larger_batch(case)]
    return Cause(rule=MASTER_QUEUE.name, share=part, words=words, advice=join_worthwhile(case, tried))


def _fewest(case: Case) -> Scale | None:
    """Return the runs with the fewest workers, if those are fewer than here."""
    first = min(case.scales, key=lambda scale: scale.timing.workers)
    return first if first.timing.workers < case.at.timing.workers else None


def _largest_part(case: Case, masters: int) -> float:
    """Return the part of the parameters that the master with most of them holds."""
    held: Counter[int] = Counter()
    for piece in case.at.finding("staleness", "pieces") or ():
        held[piece["master"]] += piece["parameters"]
    return max(held.values()) / held.total() if held else 1 / masters


def _larger_batch(case: Case) -> list[str]:
    """Format the batch with which computing takes twice as long as computing and queueing do now."""
    timing = case.at.timing
    queue = timing.exchange + timing.answer
    setting = advice.larger_batch(case, 2 * (timing.compute + queue), "fewer gradients per second to serve")
    return [] if setting is None else [setting]


MASTER_QUEUE = DiagnosisRule(
    name="master queue", short="workers queue at the ranks that hold the parameters", find=find_master_queue
)


PART = 0.25


def find_masters_idle(case: Case) -> Cause | None:
    """Return a cause if a quarter of the ranks or more compute nothing, and no queue keeps them busy."""
    ranks, workers = case.at.ranks, case.facts.workers
    idle = ranks - workers
    if not idle or idle / ranks < PART or find_master_queue(case) is not None:
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
    return Cause(rule=MASTERS_IDLE.name, share=idle / ranks, words=words, advice=join_worthwhile(case, tried))


MASTERS_IDLE = DiagnosisRule(
    name="ranks without work", short="too many of the ranks only hold parameters", find=find_masters_idle
)
