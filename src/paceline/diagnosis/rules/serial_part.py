"""Work that does not shrink with more ranks: the fixed part of every piece's gradient, and the update of all parameters.

By Amdahl's law, if a part s of the serial step cannot be divided, no number of ranks is more than 1 / s times as fast.
"""

from __future__ import annotations

from paceline.diagnosis import advice
from paceline.diagnosis.advice import join_worthwhile
from paceline.diagnosis.case import Case, Cause, DiagnosisRule
from paceline.diagnosis.rules.slower_computing import alone_seconds, computing_seconds
from paceline.text import count, duration, share, times

SHARE = 0.1
# An update that takes this part of the serial one's time has not been divided.
WHOLE = 0.7


def find(case: Case) -> Cause | None:
    """Return a cause if a tenth of the step is beyond a p-th of the serial step."""
    serial, timing = case.peer, case.at.timing
    grows = case.whole_batches or case.config.get("batch_per_rank") is not None
    if serial is None or case.at.ranks < 2 or grows or case.at.oversubscribed:
        return None
    fixed, update = _find_fixed_seconds(case), _update(case)
    part = (fixed + update) / timing.total if timing.total > 0 else 0.0
    if part < SHARE:
        return None
    reasons, tried = [], []
    if fixed > 0:
        whole, workers = serial.timing.compute, timing.workers
        reasons.append(
            f"a piece of {count(round(timing.samples), 'sample')} computes for {duration(timing.compute)} (1/{workers} of "
            f"the serial batch's {duration(whole)} would be {duration(whole / workers)})"
        )
    if update > 0:
        reasons.append(
            f"the update takes {duration(timing.update)} (serial: {duration(serial.timing.update)})"
        )
        if case.at.place.on_node == case.at.ranks:
            tried += advice.own_changes(case, "undivided update")
    bound = serial.timing.total / (fixed + update)
    words = (
        f"at {count(case.at.ranks, 'rank')} {' and '.join(reasons)}: {duration(fixed + update)} of a step ({share(part)}) "
        f"do not shrink with more ranks, so no number of ranks is more than {times(bound)} as fast as serial (Amdahl)"
    )
    # The batch that halves the fraction of the step that does not shrink.
    setting = advice.larger_batch(case, 2 * timing.total, "more work per piece")
    tried += [setting] if setting else []
    fewer = advice.fewer_ranks(case)
    remedy = join_worthwhile(case, tried) or ("" if fewer is None else f"-n {fewer}")
    return Cause(rule=RULE.name, share=part, words=words, advice=remedy)


def _find_fixed_seconds(case: Case) -> float:
    """Return the seconds of a piece's gradient beyond its part of the serial one; what slows ranks down is left out."""
    assert case.peer is not None
    timing, whole = case.at.timing, case.peer.timing
    if not whole.samples or not timing.samples:
        return 0.0
    alone = alone_seconds(case)
    here = computing_seconds(case) if alone is None else min(alone, computing_seconds(case))
    return max(0.0, here - whole.compute * timing.samples / whole.samples)


def _update(case: Case) -> float:
    """Return the seconds of the update if it takes as long as in the serial run, else 0."""
    assert case.peer is not None
    mine, whole = case.at.timing.update, case.peer.timing.update
    return mine if mine >= WHOLE * whole > 0 else 0.0


RULE = DiagnosisRule(name="serial part", short="part of a step does not shrink with more ranks", find=find)
