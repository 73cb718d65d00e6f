"""Diagnosis of why a strategy stops scaling, with figures and advice, based only on records.

diagnose, Diagnosis, Cause     the diagnosis of each strategy among the runs of one problem
case, timing                   what rules read (runs by rank count, a step's time, nodes and cores), and what they find
rules/                         one file per kind of cause
advice                         the settings that rules advise, as they are typed
summary                        all causes of a case in order, and the sentence that sums them up
next_step                      the command to try after a run, and why
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.compare.metric import Metric
from paceline.diagnosis.case import Cause, Diagnosis, cases_of
from paceline.diagnosis.next_step import next_step
from paceline.diagnosis.summary import sum_up
from paceline.record import Run

__all__ = ["Cause", "Diagnosis", "diagnose", "next_step"]


def diagnose(runs: Sequence[Run], metric: Metric | None = None) -> list[Diagnosis]:
    """Diagnose each strategy among the runs of ONE problem, those that a report compares with each other.

    Serial runs are the baseline and have no diagnosis. Simulated runs are compared with simulated serial runs, and
    real ones with real ones. The same runs give the same words.

    `metric`: the measure of quality that matters most; by default accuracy, then a well-known one, then the loss.

    >>> import tempfile
    >>> from paceline import fit
    >>> from paceline.record import find_runs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     one = {"model": "mlp:8", "data": "iris", "epochs": 1, "batch": 10, "runs": folder, "quiet": True}
    ...     _ = fit(strategy="serial", **one)
    ...     _ = fit(strategy="sync", ranks=1, **one)
    ...     found = diagnose(find_runs([folder]))
    >>> [(each.strategy, each.ranks, each.causes[0].rule) for each in found]
    [('sync', 1, 'too few runs')]
    """
    return [sum_up(case) for case in cases_of(runs, metric)]
