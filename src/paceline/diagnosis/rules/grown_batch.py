"""A batch that grows with the ranks is faster by itself: the fixed cost of a gradient is paid less often.

With --batch-per-rank the ranks have a larger batch than the serial run that speedups are measured against, in fewer steps.
Where gradients of several sizes were timed, it is known what a larger batch alone gains: that is not due to the ranks.
"""

from __future__ import annotations

from paceline.diagnosis import advice
from paceline.diagnosis.case import Case
from paceline.diagnosis.findings import Cause
from paceline.text import count, duration, times

NAME = "grown batch"
SHORT = "part of the speedup comes from the larger batch, not from the ranks"
# A larger batch that makes one process this many times as fast is worth naming.
FASTER = 1.25


def find(case: Case) -> Cause | None:
    """Ranks that share a batch by --batch-per-rank are faster than serial, and one process with a larger one would be."""
    speedup, peer, ranks = case.speedup(case.at), case.peer, case.at.ranks
    shared = case.config.get("batch_per_rank") is not None and not case.whole_batches
    if not shared or speedup is None or speedup <= 1 or peer is None or ranks < 2:
        return None
    batch, own = advice.present_batch(case), round(peer.timing.samples)
    timed = {own: peer.timing.by_count.get(own, 0.0)}
    for scale in reversed(case.scales):  # on the fewest ranks, which disturb each other least
        if scale.threads == peer.threads and not scale.oversubscribed:
            timed |= {size: took for size, took in scale.timing.by_count.items() if own < size <= batch}
    size, update = max(timed), peer.timing.update
    if size == own or not timed[own]:
        return None
    faster = (timed[own] + update) * size / own / (timed[size] + update)
    if faster < FASTER:
        return None
    words = (  # what is timed may be less than the whole batch
        f"at {count(ranks, 'rank')} a batch has {count(batch, 'sample')}, serial's has {own}: a gradient of {size} takes "
        f"{duration(timed[size])}, one of {own} takes {duration(timed[own])}, so one process with a batch of {size} would "
        f"already be about {times(faster)} as fast; the {times(speedup)} and the efficiency are not due to the ranks alone"
    )
    same = f"-n 1 --strategy serial --batch {batch} (one process with the same batch)"
    return Cause(rule=NAME, share=None, words=words, advice=same)
