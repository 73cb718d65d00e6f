"""Changes that rank 0 adds up are the steps of serial SGD, to rounding."""

from __future__ import annotations

import pytest

from paceline import fit
from paceline.errors import UsageError
from tests.ranks import on_ranks

CASES = "tests.strategies.main_worker_cases"


@pytest.mark.once
def test_equals_serial() -> None:
    first, *others = on_ranks(f"{CASES}:against_serial", 4)
    assert [len(rank) for rank in (first, *others)] == [8, 8, 5, 2]
    for run in (run for rank in (first, *others) for run in rank):
        assert run["moved"] > 1e-2, run
        assert run["x"] < 1e-9, run
        assert run["loss"] < 1e-9, run
        assert run["buffers"] < 1e-9, run
        assert run["accuracy"] < 1e-9, run
        assert run["same"], run
        assert not run["left"], run
        assert run["samples"] == run["serial_samples"], run
        assert run["messages"] == 2 * (run["ranks"] - 1), run  # a change there, the weights back
        assert 2 * (run["ranks"] - 1) < run["numbers"] < 2.01 * (run["ranks"] - 1), (
            run
        )  # and a loss with each


def test_rank_0_shows_every_batch() -> None:
    first, *others = on_ranks(f"{CASES}:shown", 3)
    assert [step for step, _ in first["seen"]] == list(range(12))
    assert not any(rank["seen"] for rank in others)
    for epoch, loss in enumerate(first["losses"]):  # batches are of equal size: the mean of their means
        assert abs(sum(seen for _, seen in first["seen"][6 * epoch : 6 * epoch + 6]) / 6 - loss) < 1e-9


def test_one_rank_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"main-worker needs at least 2 ranks \(1 main \+ 1 worker\); the job has 1"
    ):
        fit("mlp:4", "iris", strategy="main-worker", runs=None, quiet=True)
