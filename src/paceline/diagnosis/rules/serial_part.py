"""What does not get less with more ranks: the part of a gradient that every piece has, and the update of all parameters.

By Amdahl's law a part s of the serial step that cannot be divided keeps every number of ranks below 1 / s times its speed.
"""

from __future__ import annotations

from paceline.diagnosis import _advice as advice
from paceline.diagnosis._advice import joined
from paceline.diagnosis._case import Case
from paceline.diagnosis._finding import Cause
from paceline.diagnosis._words import count, duration, percent, times
from paceline.diagnosis.rules.slower_computing import alone_seconds, computing_seconds

NAME = "serial part"
SHORT = "part of a step does not get less with more ranks"
SHARE = 0.1
# An update that takes this part of the serial one's time has not been divided.
WHOLE = 0.7


def find(case: Case) -> Cause | None:
    """A tenth of the step is what a p-th of the serial step does not have."""
    serial, timing = case.peer, case.at.timing
    grows = case.whole_batches or case.config.get("batch_per_rank") is not None
    if serial is None or case.at.ranks < 2 or grows or case.at.oversubscribed:
        return None
    fixed, update = _fixed(case), _update(case)
    share = (fixed + update) / timing.total if timing.total > 0 else 0.0
    if share < SHARE:
        return None
    said, tried = [], []
    if fixed > 0:
        whole, workers = serial.timing.compute, timing.workers
        said.append(
            f"a piece of {count(round(timing.samples), 'sample')} computes for {duration(timing.compute)}, where "
            f"1/{workers} of the serial batch's {duration(whole)} is {duration(whole / workers)}"
        )
    if update > 0:
        said.append(
            f"the update takes {duration(timing.update)}, with 1 rank {duration(serial.timing.update)}"
        )
        if case.name == "sync" and case.at.place.on_node == case.at.ranks and _not_shared(case):
            tried.append(
                f"{advice.strategy(case, allreduce='shared-memory')} (each rank updates its own part)"
            )
    bound = serial.timing.total / (fixed + update)
    words = (
        f"at {count(case.at.ranks, 'rank')} {' and '.join(said)}: {duration(fixed + update)} of a step, "
        f"{percent(share)}, do not get less with more ranks, which so are never more than {times(bound)} as "
        f"fast as serial (Amdahl)"
    )
    # So that what does not get less is half as much of the step.
    setting = advice.larger_batch(case, 2 * timing.total, "more work for each piece")
    tried += [setting] if setting else []
    fewer = advice.fewer_ranks(case)
    remedy = joined(case, tried) or ("" if fewer is None else f"-n {fewer}")
    return Cause(rule=NAME, share=share, words=words, advice=remedy)


def _fixed(case: Case) -> float:
    """Seconds of a piece's gradient beyond its part of the serial one's; what slows ranks down left out if known."""
    assert case.peer is not None
    timing, whole = case.at.timing, case.peer.timing
    if not whole.samples or not timing.samples:
        return 0.0
    alone = alone_seconds(case)
    here = computing_seconds(case) if alone is None else min(alone, computing_seconds(case))
    return max(0.0, here - whole.compute * timing.samples / whole.samples)


def _update(case: Case) -> float:
    """Seconds of the update, where it is as long as in the serial run."""
    assert case.peer is not None
    mine, whole = case.at.timing.update, case.peer.timing.update
    return mine if mine >= WHOLE * whole > 0 else 0.0


def _not_shared(case: Case) -> bool:
    return bool(case.option("allreduce") != "shared-memory")
