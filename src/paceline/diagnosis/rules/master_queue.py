"""Workers queue at masters: everything goes through a few ranks, and their work does not get less with more workers.

There is a queue where waiting for answers is a fifth of a worker's step and the busiest master works half of its time, or
where an answer takes half as long again as with the fewest workers that were tried. The main rank of `main-worker`
receives from and sends to one worker after the other, so there two workers are enough for one.
"""

from __future__ import annotations

from collections import Counter

from paceline.diagnosis import _advice as advice
from paceline.diagnosis._advice import joined
from paceline.diagnosis._case import Case, Scale
from paceline.diagnosis._finding import Cause
from paceline.diagnosis._words import count, duration, percent

NAME = "master queue"
SHORT = "workers queue at the ranks that hold the parameters"
WAITING = 0.2
BUSY = 0.5
LONGER = 1.5
# A master has this many times its fair part of the parameters.
LOPSIDED = 1.5


def find(case: Case) -> Cause | None:
    """Waiting for who holds the parameters is a fifth of a step, and these are busy or get slower with more workers."""
    if case.at.oversubscribed:  # who has no core answers late
        return None
    if case.name == "parameter-server":
        return _servers(case)
    return _main(case) if case.name == "main-worker" else None


def _servers(case: Case) -> Cause | None:
    timing = case.at.timing
    share, before = timing.share("answer"), _fewest(case)
    longer = before is not None and timing.answer > LONGER * before.timing.answer
    busy = timing.busy or 0.0
    if share < WAITING or timing.workers < 2 or (busy < BUSY and not longer):
        return None
    masters = int(case.option("masters", case.at.ranks - timing.workers))
    grew = ""
    if before is not None and longer:
        grew = f" (with {count(before.timing.workers, 'worker')} {duration(before.timing.answer)})"
    one = masters == 1
    works = (
        f"; {'the' if one else 'the busiest'} master works {percent(busy)} of its time" if timing.busy else ""
    )
    words = (
        f"at {count(case.at.ranks, 'rank')} {count(masters, 'master')} serve{'s' * one} {count(timing.workers, 'worker')}: "
        f"a worker computes for {duration(timing.compute)} and waits {duration(timing.answer)} for its answer, "
        f"{percent(share)} of its step{grew}{works}"
    )
    tried = []
    largest = _largest_part(case, masters)
    if largest > LOPSIDED / masters and masters > 1 and case.option("placement") != "even":
        words += f"; one master holds {percent(largest)} of the parameters"
        tried.append(f"{advice.strategy(case, placement='even')} (equal parts)")
    elif case.at.ranks > 2 * masters:
        more = advice.strategy(case, masters=2 * masters, placement="even")
        tried.append(f"{more} (each holds half as much)")
    tried += _larger_batch(case)
    fewer = advice.fewer_ranks(case)
    said = joined(case, tried) or ("" if fewer is None else f"-n {fewer}")
    return Cause(rule=NAME, share=share, words=words, advice=said)


def _main(case: Case) -> Cause | None:
    timing = case.at.timing
    share, before = timing.share("exchange"), _fewest(case)
    if share < WAITING or timing.workers < 2:
        return None
    grew = ""
    if before is not None:
        grew = f" (with {count(before.timing.workers, 'worker')} {duration(before.timing.exchange)})"
    words = (
        f"at {count(case.at.ranks, 'rank')} a worker computes for {duration(timing.compute)} and exchanges for "
        f"{duration(timing.exchange)}, {percent(share)} of its step{grew}: {2 * timing.workers} messages of all "
        f"parameters go through rank 0, one after the other"
    )
    tried = ["--strategy sync (nobody in the middle, the same result)", *_larger_batch(case)]
    return Cause(rule=NAME, share=share, words=words, advice=joined(case, tried))


def _fewest(case: Case) -> Scale | None:
    """The runs with the fewest workers, where those are fewer than here."""
    first = min(case.scales, key=lambda scale: scale.timing.workers)
    return first if first.timing.workers < case.at.timing.workers else None


def _largest_part(case: Case, masters: int) -> float:
    """The part of the parameters that the master with most of them holds."""
    held: Counter[int] = Counter()
    for piece in case.at.found("staleness", "pieces") or ():
        held[piece["master"]] += piece["parameters"]
    return max(held.values()) / held.total() if held else 1 / masters


def _larger_batch(case: Case) -> list[str]:
    """The batch with which computing is as long as the queue is, twice over."""
    timing = case.at.timing
    queue = timing.exchange + timing.answer
    setting = advice.larger_batch(case, 2 * (timing.compute + queue), "fewer gradients a second to serve")
    return [] if setting is None else [setting]
