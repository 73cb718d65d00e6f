"""Training that learns nothing any more is noticed, whatever the strategy."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from paceline import fit
from paceline.worker.divergence import Guard, all_equal
from tests.diagnosis.runs import costs

SATURATED = dict(lr=100.0, epochs=4, batch=64, runs=None, quiet=True)


@pytest.mark.parametrize(
    "strategy", ["serial", "sync", "weight-average", "local-sgd", "hogwild", "psgd", "main-worker"]
)
def test_a_saturated_network_is_noticed(strategy: str, tmp_path: Path) -> None:
    where = (
        {} if strategy == "serial" else dict(on="sim", ranks=2, machine=costs(tmp_path), network="loopback")
    )
    fitted = fit("mlp:32", "digits", strategy=strategy, **where, **SATURATED)
    assert fitted.diverged is not None
    assert "the loss stays at" in fitted.diverged
    assert len(fitted.history) < 4 or strategy == "psgd"


@pytest.mark.parametrize("rate", [0.01, 1.0])
def test_one_that_learns_slowly_is_not(rate: float) -> None:
    assert fit("mlp:32", "digits", strategy="serial", **{**SATURATED, "lr": rate}).diverged is None


def test_a_saturated_network_starts_anew_with_half_the_rate() -> None:
    settings = {**SATURATED, "epochs": 12, "on_divergence": "halve"}
    fitted = fit("mlp:32", "digits", strategy="serial", **settings)
    assert fitted.diverged is None
    assert fitted.findings["divergences"]
    assert all(
        "the loss stays at" in told and "back to the start" in told for told in fitted.findings["divergences"]
    )


def test_a_plateau_must_last_as_long_as_the_horizon() -> None:
    guard = Guard(horizon=8)
    seen = [guard.see(loss) for loss in (0.9, 0.7, *[0.5] * 8)]
    assert seen[:-1] == [None] * 9
    assert seen[-1] == "the loss stays at 0.5, whatever the batch,"


def test_a_guard_made_late_compares_with_the_beginning_of_the_run() -> None:
    guard = Guard(horizon=8, first=2)
    guard.start_at(2.0)
    assert not any(guard.see(loss) for loss in (*[0.01] * 16, *[0.5] * 16))
    assert [told for told in map(guard.see, [5.0] * 16) if told]


def test_low_losses_may_stand_still() -> None:
    guard = Guard(horizon=8)
    assert not any(guard.see(loss) for loss in (1.0, *[0.2] * 20))


def test_a_few_batches_say_nothing() -> None:
    assert not all_equal(0, 0.0, 0.0)
    assert not all_equal(7, 3.5, 1.75)
    assert not all_equal(8, math.nan, math.nan)
