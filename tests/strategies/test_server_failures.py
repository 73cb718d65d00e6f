"""The parameter server when ranks die: simulated, at any moment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import fit
from paceline.config import Config
from paceline.errors import UsageError
from paceline.record import Run
from paceline.strategies.parameter_server._pieces import APPLIED, DROPPED
from paceline.training.job import check_replay
from paceline.training.rank import Fitted
from paceline.worker.divergence import Guard
from tests.simulate.costs import COSTS

STEPS, EPOCHS = 48, 4
CASES = [
    ("masters=1", 4),
    ("masters=2,share=dynamic", 5),
    ("masters=3,placement=even,rule=dana", 7),
    ("masters=2,bound=1", 6),
    ("masters=2,backup=1,share=dynamic", 6),
]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    machine, faults = tmp_path / "costs.json", tmp_path / "faults.py"
    COSTS.save(machine)

    def train(strategy: str, ranks: int, deaths: Sequence[tuple[int, float]] = (), **settings: Any) -> Fitted:
        """`deaths`: ranks, and when each of them dies, in seconds."""
        given: dict[str, Any] = {
            "epochs": EPOCHS, "batch": 10, "draws": STEPS // EPOCHS, "lr": 0.1, "dtype": "float64", "jitter": 0.5,
            "machine": str(machine), "runs": tmp_path / "runs",
        }  # fmt: skip
        faults.write_text(
            "".join(f"fail_at(rank={rank}, time={time}, detected=1e-5)\n" for rank, time in deaths)
        )
        return fit(
            "mlp:8", "iris", strategy=f"parameter-server:{strategy}", ranks=ranks, on="sim", quiet=True,
            tolerate_failures=True, faults=str(faults), **{**given, **settings},
        )  # fmt: skip

    return train


def arrived(fitted: Fitted, piece: int) -> list[int]:
    """The batches whose gradients arrived at a piece."""
    updates = Run(fitted.run or "").updates
    which = ((updates["event"] == APPLIED) | (updates["event"] == DROPPED)) & (updates["piece"] == piece)
    return sorted(updates["step"][which].tolist())


def check_that_it_ended_well(fitted: Fitted, ranks: int) -> None:
    assert fitted.ranks == ranks
    assert [epoch.epoch for epoch in fitted.history] == list(range(EPOCHS))
    assert fitted.findings["gradients_applied"] + fitted.findings["gradients_dropped"] == STEPS
    assert fitted.findings["gradients_acknowledged"] == STEPS
    assert np.isfinite(fitted.model.x).all()
    assert "order" not in fitted.findings


@pytest.mark.parametrize(("strategy", "ranks"), CASES)
def test_the_batches_of_a_dead_worker_go_to_the_others(train: Any, strategy: str, ranks: int) -> None:
    seconds = train(strategy, ranks).train_seconds
    pieces = 3 if "even" in strategy else 2
    for number, part in enumerate((0.05, 0.4, 0.8)):
        left = train(strategy, ranks, [(ranks - 1 - number % 2, part * seconds)], rendezvous=number == 1)
        check_that_it_ended_well(left, ranks - 1)
        for piece in range(pieces):  # once each at every master, although some were on their way
            assert arrived(left, piece) == list(range(STEPS))
        (failure,) = left.findings["failures"]
        assert failure["ranks"] == (ranks - 1 - number % 2,)
        assert any(f"rank {failure['ranks'][0]} died in epoch" in remark for remark in left.remarks)


@pytest.mark.parametrize(("strategy", "ranks"), CASES)
def test_the_part_of_a_dead_master_is_restored(train: Any, strategy: str, ranks: int) -> None:
    seconds = train(strategy, ranks).train_seconds
    last = int(strategy.removeprefix("masters=")[0]) - 1
    for dead, part in ((0, 0.3), (last, 0.6)):
        saved = {"checkpoint_every": "9 steps", "on_divergence": "halve"} if dead == last else {}
        left = train(strategy, ranks, [(dead, part * seconds)], **saved)
        check_that_it_ended_well(left, ranks - 1)
        (failure,) = left.findings["failures"]
        rule = "of the last checkpoint" if saved else "started anew"
        words = f"the part of master {dead} restored from the values that a worker had received last, the state of its rule"
        assert failure["lost"].endswith(f"{words} {rule}")


def test_a_worker_becomes_a_master_and_fewer_ranks_have_fewer_masters(train: Any) -> None:
    seconds = train("masters=2", 5).train_seconds
    deaths = [(1, 0.3 * seconds), (0, 0.5 * seconds), (3, 0.7 * seconds)]
    left = train("masters=2", 5, deaths)  # 2 + 3, 2 + 2, 2 + 1, 1 + 1
    check_that_it_ended_well(left, 2)
    assert [failure["ranks"] for failure in left.findings["failures"]] == [(1,), (0,), (3,)]
    assert {piece["master"] for piece in left.findings["staleness"]["pieces"]} == {0}


def test_the_successors_of_master_0_know_the_first_loss(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    monkeypatch.setattr(Guard, "start_at", lambda _, first: told.append(first))
    undisturbed = train("masters=1", 5, lr=0.5)
    deaths = [(0, 0.5 * undisturbed.train_seconds), (1, 0.8 * undisturbed.train_seconds)]
    check_that_it_ended_well(train("masters=1", 5, deaths, lr=0.5), 3)
    first, second = told
    assert second == pytest.approx(first)
    losses = [epoch.loss for epoch in undisturbed.history]
    assert losses[-1] < losses[0] < first


def test_a_death_at_a_cut_and_several_at_once_are_survived(train: Any) -> None:
    seconds = train("masters=2,bound=1", 7, checkpoint_every="5 steps").train_seconds
    for part in (0.2, 0.5):
        deaths = [(3, part * seconds), (5, part * seconds)]
        left = train("masters=2,bound=1", 7, deaths, checkpoint_every="1 step")
        check_that_it_ended_well(left, 5)


def test_one_rank_cannot_go_on_alone(train: Any) -> None:
    seconds = train("masters=1", 2).train_seconds
    with pytest.raises(UsageError, match="needs a master and a worker; 1 rank is left"):
        train("masters=1", 2, [(1, 0.5 * seconds)])


def test_a_run_without_some_of_its_ranks_is_not_replayed(train: Any) -> None:
    seconds = train("masters=1", 4).train_seconds
    left = train("masters=1", 4, [(2, 0.5 * seconds)])
    with pytest.raises(
        UsageError, match="cannot be replayed: ranks died, and its order is not that of one run"
    ):
        check_replay(Config(replay=str(left.run)), 3, 120, replayable=True)
