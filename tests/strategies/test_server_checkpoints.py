"""Checkpoints of the parameter server: consistent cuts of all masters, and runs that go on from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import fit
from paceline.config import Config
from paceline.errors import StoppedError, UsageError
from paceline.record import Run, checkpoint
from paceline.simulate import training as simulation
from paceline.strategies.parameter_server._master import Master
from paceline.strategies.parameter_server._pieces import APPLIED, DROPPED, PieceState, recut
from paceline.strategies.parameter_server.rules.dana import Dana
from paceline.training.job import check_replay
from paceline.training.rank import Fitted
from paceline.worker.checkpoints import Keeper
from tests.ranks import on_ranks
from tests.simulate.costs import COSTS
from tests.worker.test_checkpoints import cut

STEPS = 36
CASES = [
    ("masters=1", 4),
    ("masters=2,share=dynamic,rule=dc", 5),
    ("masters=3,placement=even,rule=dana", 6),
    ("masters=2,bound=0", 5),
    ("masters=2,backup=1,share=dynamic", 5),
    ("masters=1,rule=rms", 16),  # more workers than batches in an epoch
]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    machine = tmp_path / "costs.json"
    COSTS.save(machine)
    monkeypatch.setattr(simulation, "is_ours", lambda _: False)  # check that MPI's rules are followed

    def train(strategy: str, ranks: int, *, stop_after: int | None = None, **settings: Any) -> Fitted:
        given = {"epochs": 3, "batch": 10, "draws": 12, "lr": 0.1, "dtype": "float64", "checkpoint_every": "7 steps",
                 "checkpoints": 99, "jitter": 0.5, "runs": tmp_path / "runs", "machine": str(machine)}  # fmt: skip
        return _train("parameter-server:" + strategy, ranks, stop_after, {**given, **settings})

    def _train(strategy: str, ranks: int, stop_after: int | None, settings: dict[str, Any]) -> Fitted:
        is_due, dealing = Keeper.is_due, Master._give_batch

        def due(keeper: Keeper, done: int) -> bool:
            if stop_after is not None and done >= stop_after:
                keeper.me.stop_asked = 15
            return is_due(keeper, done)

        def deal(master: Master, worker: int, chief: Any) -> None:  # a replay has no checkpoints to be due
            if stop_after is not None and chief.dealer.count >= stop_after:
                master.me.stop_asked = 15
            dealing(master, worker, chief)

        with monkeypatch.context() as patch:
            patch.setattr(Keeper, "is_due", due)
            patch.setattr(Master, "_give_batch", deal)
            return fit(
                settings.pop("model", "mlp:8"),
                "iris",
                strategy=strategy,
                ranks=ranks,
                on="sim",
                quiet=True,
                **settings,
            )

    return train


def check_that_every_batch_counts_once(fitted: Fitted, steps: int = STEPS, epochs: int = 3) -> None:
    updates = Run(fitted.run or "").updates
    arrived = (updates["event"] == APPLIED) | (updates["event"] == DROPPED)
    for piece in range(int(updates["piece"].max()) + 1):
        assert sorted(updates["step"][arrived & (updates["piece"] == piece)].tolist()) == list(range(steps))
    assert len(fitted.history) == epochs
    assert fitted.findings["gradients_applied"] + fitted.findings["gradients_dropped"] == steps
    assert fitted.findings["gradients_acknowledged"] == steps


@pytest.mark.parametrize("rendezvous", [False, True])
@pytest.mark.parametrize(("strategy", "ranks"), CASES)
def test_a_run_goes_on_from_any_cut(
    train: Any, tmp_path: Path, strategy: str, ranks: int, rendezvous: bool
) -> None:
    whole = train(strategy, ranks, rendezvous=rendezvous)
    check_that_every_batch_counts_once(whole)
    numbers = checkpoint.numbers(whole.run, 0)
    assert len(numbers) > 2
    for number, other in ((numbers[-1], ranks), (numbers[1], ranks + 1), (numbers[-2], ranks - 1)):
        for rank in range(ranks):  # every master, and every worker, whether it had batches left or not
            assert checkpoint.read(whole.run, rank, number)["ranks"] == ranks
        again = fit(resume=cut(whole.run, tmp_path / f"{number}-{other}", number), ranks=other, quiet=True)
        check_that_every_batch_counts_once(again)
        (resumed,) = again.findings["resumed"]
        assert 0 < resumed["gradients"] < STEPS
        assert resumed["lost_later_updates"]
        assert f"resumed after {resumed['gradients']} of 36 gradients; updates after that" in again.remarks[0]


@pytest.mark.parametrize(("strategy", "ranks"), CASES)
def test_a_run_that_is_asked_to_stop_saves_and_loses_nothing(
    train: Any, tmp_path: Path, strategy: str, ranks: int
) -> None:
    with pytest.raises(StoppedError) as stopped:
        train(strategy, ranks, stop_after=20, checkpoint_every="1h")
    assert (stopped.value.signal, stopped.value.saved) == (15, True)
    (folder,) = (tmp_path / "runs").iterdir()
    assert checkpoint.find_latest(folder) == [1] * ranks
    again = fit(resume=folder, quiet=True)
    check_that_every_batch_counts_once(again)
    assert again.findings["resumed"][0]["lost_later_updates"] is False


@pytest.mark.parametrize("rule", ["auto", "adaptive", "gap-aware", "dana"])
def test_one_worker_goes_on_bit_for_bit(train: Any, tmp_path: Path, rule: str) -> None:
    update = {"update": "adam"} if rule in ("auto", "gap-aware") else {}
    whole = train(f"masters=2,placement=even,rule={rule}", 3, on_divergence="halve", **update)
    for number in checkpoint.numbers(whole.run, 0)[1::2]:
        again = fit(resume=cut(whole.run, tmp_path / f"{number}", number), quiet=True)
        assert np.array_equal(again.model.x, whole.model.x)
        assert [epoch.loss for epoch in again.history] == [epoch.loss for epoch in whole.history]
        losses = [[epoch.validation_loss for epoch in fitted.history] for fitted in (again, whole)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-12)  # of master 0 alone, or of all ranks together


def test_saving_changes_nothing_and_a_checkpoint_holds_the_complete_model(train: Any) -> None:
    saved, plain = (
        train("masters=2,rule=plain", 3),
        train("masters=2,rule=plain", 3, checkpoint_every="never"),
    )
    assert np.array_equal(saved.model.x, plain.model.x)
    last = checkpoint.read(saved.run, 0, checkpoint.numbers(saved.run, 0)[0])
    assert np.array_equal(last["x"], saved.model.x)
    assert "x" not in checkpoint.read(saved.run, 1, checkpoint.numbers(saved.run, 1)[0])  # once is enough


def test_a_run_that_diverges_goes_back_after_it_was_resumed(train: Any, tmp_path: Path) -> None:
    settings = {
        "on_divergence": "halve",
        "lr": 100.0,
        "epochs": 12,
        "model": "mlp:8,activation=relu,loss=squared-error",
    }
    whole = train("masters=2,rule=plain", 4, checkpoint_every="25 steps", **settings)
    assert whole.findings["divergences"]
    for number, ranks in ((1, 4), (3, 7), (4, 3)):
        again = fit(resume=cut(whole.run, tmp_path / f"{number}", number), ranks=ranks, quiet=True)
        check_that_every_batch_counts_once(again, steps=144, epochs=12)
        assert np.isfinite(again.model.x).all()


def test_more_epochs_continue_a_complete_run(train: Any) -> None:
    whole = train("masters=2", 4)
    again = fit(resume=whole.run, epochs=2, quiet=True)
    check_that_every_batch_counts_once(again, steps=60, epochs=5)
    unsaved = train("masters=2", 4, checkpoint_every="never")
    more = fit(resume=unsaved.run, epochs=2, quiet=True)
    assert len(more.history) == 5
    assert more.findings["gradients_applied"] == 60  # also those of the earlier record
    assert "the state of the masters' rule started anew" in more.remarks[0]


def test_a_replay_stops_without_a_checkpoint_and_a_resumed_run_is_not_replayed(
    train: Any, tmp_path: Path
) -> None:
    first = train("masters=2,bound=1", 5, checkpoint_every="never")
    with pytest.raises(StoppedError) as stopped:
        train("masters=2,bound=1", 5, checkpoint_every="never", replay=str(first.run), stop_after=20)
    assert not stopped.value.saved
    again = train("masters=2,bound=1", 5, checkpoint_every="never", replay=str(first.run))
    assert np.array_equal(first.model.x, again.model.x)
    with pytest.raises(StoppedError):
        train("masters=2", 4, stop_after=20)
    (latest,) = (
        folder
        for folder in (tmp_path / "runs").iterdir()
        if (folder / "stopped.json").exists() and Run(folder).config["ranks"] == 4
    )
    resumed = fit(resume=latest, quiet=True)
    with pytest.raises(UsageError, match="cannot be replayed: it was resumed"):
        check_replay(Config(replay=str(resumed.run)), 4, 120, replayable=True)


def test_momenta_are_shared_out_among_other_workers() -> None:
    rule, x = Dana(), np.zeros(3)
    state = rule.start(x, workers=2)
    state["v"][0], state["v"][1], state["sum"][:] = 1.0, 2.0, 3.0
    assert rule.share_out(state, 2) is state
    shared = rule.share_out(state, 4)
    assert shared["v"].shape == (4, 3)
    np.testing.assert_array_equal(shared["v"].sum(axis=0), state["sum"])


def test_all_numbers_of_a_piece_are_restored_with_the_factor_of_an_incomplete_round() -> None:
    piece = PieceState(0, 2, arrivals=7, version=5, halved=0.5, count=3, factor=0.25, good=True, skip=[6])
    assert PieceState.of(vars(piece)) == piece


def test_rounds_that_were_not_equally_far_are_lost_when_pieces_are_cut_anew() -> None:
    one = PieceState(0, 2, count=3, arrays={"total": np.ones(2)})
    two = PieceState(2, 4, count=3, arrays={"total": np.ones(2)})
    assert recut([one, two], slice(1, 3)).arrays["total"].tolist() == [1, 1]
    two.count = 4
    assert recut([one, two], slice(1, 3)).count == 0
    assert recut([one, two], slice(0, 2)) is one


@pytest.mark.once
def test_real_ranks_save_and_go_on(tmp_path: Path) -> None:
    found = on_ranks("tests.strategies.server_cases:cut_and_resumed", 5, folder=str(tmp_path), time_limit=300)
    for rank in found:
        assert rank["saved"]
        assert rank["open"] == rank["left"] == 0
    assert found[0]["steps"] == found[0]["applied"] == list(range(60))
    assert found[0]["history"] == 3
    assert found[0]["accuracy"] > 0.5
