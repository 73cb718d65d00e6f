"""Batches that do not divide evenly: some ranks have more samples in a step than others, or none, and the others wait."""

from __future__ import annotations

from paceline.diagnosis import advice
from paceline.diagnosis.case import Case
from paceline.diagnosis.findings import Cause
from paceline.text import count, share

NAME = "uneven pieces"
SHORT = "batches do not divide evenly among the ranks"
WAITING = 0.1
# The largest piece is this many times the mean one.
LARGER = 1.15


def find(case: Case) -> Cause | None:
    """The largest piece of a batch is a seventh larger than the mean one, and a tenth of the step is waiting."""
    timing = case.at.timing
    part = timing.share("wait")
    if timing.uneven < LARGER or part < WAITING or not case.facts.even_pieces or case.at.oversubscribed:
        return None
    batch, workers = advice.present_batch(case), timing.workers
    if case.whole_batches:
        fewer = advice.fewer_ranks(case)
        return Cause(
            rule=NAME,
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
    even = advice.batch_typed(case, largest * workers, "pieces of one size") if advice.may_grow(case) else ""
    return Cause(rule=NAME, share=part, words=words, advice=even)
