"""The rules of a diagnosis, one file each: a pure function of a case, that finds its cause in it or nothing."""

from __future__ import annotations

from paceline.diagnosis._finding import Rule
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

# The only list of them; where two causes matter alike, the one that is first here comes first.
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
