"""Batches that cannot be divided evenly: some ranks have more samples in a step, or none at all, and the others wait."""

from __future__ import annotations

from paceline.diagnosis import _advice as advice
from paceline.diagnosis._case import Case
from paceline.diagnosis._finding import Cause
from paceline.diagnosis._words import count, percent

NAME = "uneven pieces"
SHORT = "batches do not divide evenly among the ranks"
WAITING = 0.1
# The largest piece is so much larger than the mean one.
LARGER = 1.15


def find(case: Case) -> Cause | None:
    """Pieces of a batch differ by more than a seventh, and a tenth of the step is waiting."""
    timing = case.at.timing
    share = timing.share("wait")
    if timing.uneven < LARGER or share < WAITING or case.option("balance") or case.at.oversubscribed:
        return None
    batch, workers = advice.present_batch(case), timing.workers
    if case.whole_batches:
        words = f"at {count(case.at.ranks, 'rank')} not every rank has a batch in every turn"
        fewer = advice.fewer_ranks(case)
        return Cause(
            rule=NAME,
            share=share,
            words=f"{words}: waiting is {percent(share)} of the time",
            advice="" if fewer is None else f"-n {fewer}",
        )
    largest = -(-batch // workers)
    words = (
        f"a batch of {batch:,} gives the {count(workers, 'rank')} that compute {batch // workers} to {largest} samples, "
        f"the largest piece {timing.uneven:.2f} times the mean: waiting for it is {percent(share)} of the time"
    )
    even = advice.batch_typed(case, largest * workers, "pieces of one size") if advice.may_grow(case) else ""
    return Cause(rule=NAME, share=share, words=words, advice=even)
