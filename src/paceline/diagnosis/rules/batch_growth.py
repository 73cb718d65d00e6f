"""A global batch that grows with the ranks (--batch-per-rank): fewer steps over the same samples.

Less is learned in fewer steps. And a larger batch is faster by itself, because the fixed cost of a gradient is paid less
often: where gradients of several sizes were timed, it is known what a larger batch alone gains, which is not due to the
ranks.
"""

from __future__ import annotations

from paceline.diagnosis import advice
from paceline.diagnosis.case import Case, Cause, DiagnosisRule
from paceline.text import count, duration, times


def find_large_batch(case: Case) -> Cause | None:
    """Return a cause if less was learned than by serial training, with a batch for each rank."""
    if case.worse is None or case.whole_batches or case.config.get("batch_per_rank") is None:
        return None
    batch, ranks = advice.present_batch(case), case.at.ranks
    words = (
        f"at {count(ranks, 'rank')} a batch has {count(batch, 'sample')} ({batch // ranks} per rank), so an epoch has "
        f"1/{ranks} of the steps; {case.worse.words}"
    )
    epochs = int(case.config.get("epochs") or 1)
    tried = [] if case.astray or case.config.get("lr_scaling", "none") != "none" else ["--lr-scaling linear"]
    tried.append(f"--epochs {epochs * ranks}")
    if batch // ranks >= case.at.timing.workers:  # a sample for each
        tried.append(f"--batch {batch // ranks} (divided among the ranks)")
    return Cause(
        rule=LARGE_BATCH.name,
        share=case.worse.amount,
        words=words,
        advice=", or ".join(tried),
        of_accuracy=True,
    )


LARGE_BATCH = DiagnosisRule(
    name="large batch",
    short="the batch grows with the ranks, so there are fewer steps",
    find=find_large_batch,
)


# A larger batch that makes one process this many times as fast is worth naming.
FASTER = 1.25


def find_grown_batch(case: Case) -> Cause | None:
    """Return a cause if --batch-per-rank is faster than serial, but so would one process with a larger batch be."""
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
    return Cause(rule=GROWN_BATCH.name, share=None, words=words, advice=same)


GROWN_BATCH = DiagnosisRule(
    name="grown batch",
    short="part of the speedup comes from the larger batch, not from the ranks",
    find=find_grown_batch,
)
