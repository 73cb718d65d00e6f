"""The rules of a diagnosis, one file per kind of cause: pure functions that find a cause in a case, or nothing."""

from __future__ import annotations

from paceline.diagnosis.case import Cause, DiagnosisRule
from paceline.diagnosis.rules import (
    averaging,
    divergence,
    evaluation,
    serial_part,
    slow_link,
    slower_computing,
    small_computing,
    staleness,
)
from paceline.diagnosis.rules.batch_growth import GROWN_BATCH, LARGE_BATCH
from paceline.diagnosis.rules.cores import BASELINE, OVERSUBSCRIBED, THREADS
from paceline.diagnosis.rules.masters import MASTER_QUEUE, MASTERS_IDLE
from paceline.diagnosis.rules.scaling import IMPLAUSIBLE, SCALES_WELL, TOO_FEW
from paceline.diagnosis.rules.waiting import STRAGGLERS, UNEVEN

# The only list of them; of two causes that matter equally, the one listed first comes first.
RULES: tuple[DiagnosisRule, ...] = (
    divergence.RULE,
    staleness.RULE,
    averaging.RULE,
    LARGE_BATCH,
    OVERSUBSCRIBED,
    slow_link.RULE,
    MASTER_QUEUE,
    small_computing.RULE,
    STRAGGLERS,
    UNEVEN,
    MASTERS_IDLE,
    slower_computing.RULE,
    serial_part.RULE,
    IMPLAUSIBLE,
    SCALES_WELL,
    GROWN_BATCH,
    BASELINE,
    THREADS,
    TOO_FEW,
    evaluation.RULE,
)


def title_of(cause: Cause) -> str:
    """Return the name of a cause that reports show.

    >>> title_of(Cause(rule="small computing", share=0.5, words="", advice=""))
    'too little computation per step'
    """
    return next((rule.title for rule in RULES if rule.name == cause.rule), "") or cause.rule
