"""The rules of a diagnosis, one file each: a pure function that finds its cause in a case, or nothing."""

from __future__ import annotations

from paceline.diagnosis.findings import Rule
from paceline.diagnosis.rules import (
    averaging,
    baseline,
    divergence,
    evaluation,
    grown_batch,
    large_batch,
    master_queue,
    masters_idle,
    oversubscribed,
    scales_well,
    serial_part,
    slower_computing,
    small_computing,
    staleness,
    stragglers,
    too_few,
    uneven,
)

# The only list of them; of two causes that matter equally, the one listed first comes first.
RULES: tuple[Rule, ...] = tuple(
    Rule(name=module.NAME, short=module.SHORT, find=module.find)
    for module in (
        divergence,
        staleness,
        averaging,
        large_batch,
        oversubscribed,
        master_queue,
        small_computing,
        stragglers,
        uneven,
        masters_idle,
        slower_computing,
        serial_part,
        scales_well,
        grown_batch,
        baseline,
        too_few,
        evaluation,
    )
)
