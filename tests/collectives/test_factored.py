"""Ranks that exchange the factors of a small batch's gradient train as one process does."""

from __future__ import annotations

import pytest

from tests.models.mlp_nets import VARIANTS
from tests.ranks import on_ranks


@pytest.mark.once
def test_steps_equal_those_of_one_process() -> None:
    kinds = on_ranks("tests.collectives.factored:equals_one_process", 5)
    together = ["Factored"] * 4 * len(VARIANTS)
    assert kinds[0] == ["Replicated"] * len(VARIANTS) + together
    assert kinds[4] == together[: len(VARIANTS)]


def test_a_model_goes_from_one_exchange_to_another() -> None:
    on_ranks("tests.collectives.factored:one_after_the_other", 3)


def test_when_factors_are_exchanged() -> None:
    for kinds in on_ranks("tests.collectives.factored:chosen", 4):
        assert kinds == {
            "shared-memory": "Factored",
            "auto": "Factored",
            "more samples": "Shared",
            "not allowed": "Shared",
            "hierarchical": "Shared",
            "ring": "Replicated",
            "another model": "Shared",
            "auto, two nodes": "Shared",
            "shared-memory, two nodes": "shared-memory needs all ranks on one node; 4 ranks are on 2; choose hierarchical",
        }


@pytest.mark.once
def test_a_run_is_serial_training() -> None:
    for rank in on_ranks("tests.collectives.factored:training", 4):
        assert len(rank) == 6
        for run in rank:
            assert run["kinds"] == ["Factored"]
            assert run["better"] > 1e-3
            assert run["x"] < 1e-8, run
            assert run["loss"] < 1e-10, run
            assert run["accuracy"] == 0, run


@pytest.mark.once
def test_strategies_that_use_the_gradient_keep_it() -> None:
    assert on_ranks("tests.collectives.factored:own_strategy", 3) == [["Shared"]] * 3
