"""Synchronous training is serial training, to rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import fit
from paceline import names as registry
from paceline.errors import UsageError
from paceline.strategies.serial import Serial
from tests.ranks import on_ranks
from tests.strategies import cases


@pytest.mark.once
@pytest.mark.parametrize(
    ("settings", "steps", "sizes"),
    [(cases.MLP, None, [1, 3, 4]), (cases.CNN, 4, [3])],
    ids=["mlp", "cnn"],
)
def test_sync_equals_serial(
    tmp_path: Path, settings: dict[str, Any], steps: int | None, sizes: list[int]
) -> None:
    found = on_ranks(
        "tests.strategies.cases:sync_against_serial", max(sizes), folder=str(tmp_path), sizes=sizes,
        settings=settings, time_limit=280,
    )  # fmt: skip
    assert len(found[0]) == len(sizes) * len(registry.names("collectives"))
    for rank in found:
        for run in rank:
            assert run["moved"] > 1e-2, run
            assert run["x"] < 1e-9, run
            assert run["loss"] < 1e-9, run
            assert run["accuracy"] < 1e-9, run
            assert steps is None or run["steps"] == steps


def test_each_rank_may_update_its_own_part() -> None:
    for worst in on_ranks("tests.strategies.cases:updates_on_slices", 3):
        assert len(worst) == len(registry.names("updates"))
        assert max(worst) < 1e-9


@pytest.mark.once
def test_weak_scaling() -> None:
    for difference, batch in on_ranks("tests.strategies.cases:weak_scaling", 3):
        assert batch == 24
        assert difference < 1e-10


def test_more_ranks_than_samples_in_a_batch() -> None:
    assert max(on_ranks("tests.strategies.cases:empty_pieces", 5)) < 1e-10


@pytest.mark.once
def test_a_slow_rank_gets_smaller_pieces() -> None:
    quick, slow, other = on_ranks("tests.strategies.cases:balanced", 3)
    assert max(rank["difference"] for rank in (quick, slow, other)) < 1e-10
    assert quick["first"] == slow["first"] == other["first"] == 20
    assert slow["last"] < 15
    assert quick["last"] + slow["last"] + other["last"] == 60


@pytest.mark.once
def test_replicas_agree_on_statistics_and_start_from_rank_0() -> None:
    first, *others = on_ranks("tests.strategies.cases:batch_norm", 3)
    assert all(other == first for other in others)
    assert any(name != "x" and any(values) for name, values in first.items())


@pytest.mark.once
def test_strategies_of_the_users_own() -> None:
    found = on_ranks("tests.strategies.cases:own_strategies", 2)
    assert found[0] == {
        "name": "tests.strategies.cases:own_strategies.<locals>.alone",
        "vote": "examples.own_strategy:SignVote",
    }


def test_serial_is_one_process() -> None:
    with pytest.raises(UsageError, match="serial is one process; the job has 2 ranks"):
        Serial().check(2)


@pytest.mark.once
def test_no_samples_no_step() -> None:
    first, second = on_ranks("tests.strategies.cases:empty_steps", 2)
    assert first > 0
    assert second == 0


def test_divergence_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with np.errstate(all="ignore"):
        fit(
            "mlp:8,activation=relu",
            "iris",
            strategy="serial",
            lr=1e30,
            epochs=4,
            batch=10,
            runs=None,
            quiet=True,
        )
    assert [record.message[:22] for record in caplog.records] == ["training has diverged:"]
