"""A diagnosis of real runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline import fit
from paceline.record import find_runs
from tests.diagnosis.runs import case_of, only

STARTS_RANKS = True


@pytest.mark.once
def test_real_runs(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"epochs": 2, "batch": 10, "runs": tmp_path, "quiet": True, "threads": 1}
    for seed in (0, 1):
        fit("mlp:8", "iris", strategy="serial", seed=seed, **settings)
    fit("mlp:8", "iris", strategy="sync", ranks=2, **settings)
    runs = find_runs([tmp_path])
    found = only(runs)
    assert found == only(list(reversed(runs)))  # the same words, whatever the order
    assert (found.strategy, found.ranks, found.simulated) == ("sync", 2, "")
    timing = case_of(runs).at.timing
    summary = next(run.summary for run in runs if run.config["strategy"] == "sync")
    spent = {kind: seconds / timing.steps for kind, seconds in summary["seconds"].items()}
    # Some of it is outside of steps: the start, and what a busy machine takes between them.
    assert 0 < timing.compute <= 1.001 * spent["compute"]
    assert 0 < timing.update <= 1.001 * spent["update"]
    assert timing.exchange + timing.wait <= 1.001 * (spent["exchange"] + spent["wait"])
