"""Why a strategy stops scaling here, in plain words with figures, and what to try next: from records alone."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.diagnosis._finding import Cause, Diagnosis
from paceline.record import Run

__all__ = ["Cause", "Diagnosis", "diagnose"]


def diagnose(runs: Sequence[Run]) -> list[Diagnosis]:
    """A diagnosis for each strategy among the runs of ONE problem: those that a report compares with each other.

    Serial runs are what the others are held to, and have none. What was simulated is held to simulated serial runs, or
    to real ones where there are none. The same runs give the same words.

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
    from paceline.diagnosis._case import cases_of
    from paceline.diagnosis._sum import sum_up

    return [sum_up(case) for case in cases_of(runs)]
