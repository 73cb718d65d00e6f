"""Runs that go on from a checkpoint end where an undisturbed run ends."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import fit
from paceline.errors import UsageError
from paceline.record import Run, checkpoint
from paceline.record.rows import unpack_rows
from paceline.strategies.serial import Serial
from paceline.worker import Worker
from tests.simulate.costs import COSTS

COMMON: dict[str, Any] = {
    "model": "mlp:12", "data": "iris", "epochs": 3, "batch": 10, "seed": 3, "lr": 0.05, "quiet": True,
    "on": "sim",
}  # fmt: skip
REAL = {**COMMON, "on": "mpi"}
IN_STEP = ["sync:allreduce=ring", "sync:allreduce=shared-memory", "sync:allreduce=native", "main-worker", "weight-average",
           "local-sgd:every=4", "local-sgd:every=3,outer-momentum=0.9,outer-lr=0.7", "elastic:every=3"]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _machine(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Costs that are given need not be measured."""
    path = tmp_path_factory.mktemp("machine") / "costs.json"
    COSTS.save(path)
    COMMON["machine"] = str(path)


def train_with_checkpoints(folder: Path, strategy: str, every: str, **more: Any) -> Any:
    """Train on simulated ranks and keep every checkpoint."""
    whole = fit(
        **COMMON, strategy=strategy, runs=folder / "runs", checkpoint_every=every, checkpoints=99, **more
    )
    assert whole.run is not None
    return whole


def cut(run: Path, to: Path, number: int) -> Path:
    """Copy a run as it would be if it had been killed just after a checkpoint."""
    shutil.copytree(run, to)
    unpack_rows(to, "steps")
    for name in ("summary.json", "model.npz", "steps.npz"):
        (to / name).unlink()
    for rank in checkpoint.saved_ranks(to):
        checkpoint.discard(to, rank, keep=lambda other: other <= number)
    return to


@pytest.mark.parametrize("update", ["momentum", "adam"])
@pytest.mark.parametrize("strategy", IN_STEP)
def test_same_bits_from_any_checkpoint(strategy: str, update: str, tmp_path: Path) -> None:
    whole = train_with_checkpoints(tmp_path, strategy, "5 steps", ranks=3, update=update)
    plain = fit(**COMMON, strategy=strategy, update=update, ranks=3, runs=None)
    assert np.array_equal(plain.model.x, whole.model.x)  # saving changes nothing
    numbers = checkpoint.numbers(whole.run, 0)
    assert len(numbers) > 2
    for number in numbers[1::3]:
        again = fit(resume=cut(whole.run, tmp_path / f"{number}", number), quiet=True)
        assert np.array_equal(whole.model.x, again.model.x), number
        assert [e.validation_loss for e in again.history] == [e.validation_loss for e in whole.history]
        assert again.bytes_sent == whole.bytes_sent
        for name in ("rank", "step", "loss", "count"):
            assert np.array_equal(Run(again.run).steps[name], Run(whole.run).steps[name])


@pytest.mark.parametrize("ranks", [3, 2])
@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("strategy", ["gossip", "hogwild", "psgd"])
def test_ranks_that_were_saved_in_different_epochs_meet_in_the_first_of_them(
    strategy: str, ahead: int, ranks: int, tmp_path: Path
) -> None:
    whole = train_with_checkpoints(tmp_path, strategy, "3 steps", ranks=3)
    run = cut(whole.run, tmp_path / "cut", 2)  # in epoch 1
    for rank in {0, 1, 2} - {ahead}:
        checkpoint.discard(run, rank, keep=lambda other: other <= 1)  # in epoch 0
    positions = [
        checkpoint.read(run, rank, n)["position"] for rank, n in enumerate(checkpoint.find_latest(run) or ())
    ]
    assert [one["epoch"] for one in positions] == [int(rank == ahead) for rank in range(3)]
    again = fit(resume=run, ranks=ranks, quiet=True)
    assert [epoch.epoch for epoch in again.history] == [0, 1, 2]
    assert again.run is not None
    steps = Run(again.run).steps
    for epoch in (0, 2):  # in epoch 1, the rank that was ahead may have trained some batches twice
        assert steps["count"][steps["epoch"] == epoch].sum() == 120


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("strategy", ["sync:allreduce=ring", "sync:allreduce=shared-memory"])
def test_another_number_of_ranks_ends_the_same_up_to_rounding(
    strategy: str, ranks: int, tmp_path: Path
) -> None:
    whole = train_with_checkpoints(tmp_path, strategy, "7 steps", ranks=3, update="adam")
    again = fit(resume=cut(whole.run, tmp_path / "cut", 3), ranks=ranks, quiet=True)
    assert again.ranks == ranks
    assert np.allclose(whole.model.x, again.model.x, rtol=1e-3, atol=1e-4)
    assert [epoch.epoch for epoch in again.history] == [0, 1, 2]


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(
    "strategy", ["weight-average", "local-sgd:every=4", "elastic:every=3", "psgd", "gossip", "hogwild"]
)
def test_others_go_on_with_the_samples_that_are_left(strategy: str, ranks: int, tmp_path: Path) -> None:
    whole = train_with_checkpoints(tmp_path, strategy, "3 steps", ranks=3)
    again = fit(resume=cut(whole.run, tmp_path / "cut", 2), ranks=ranks, quiet=True)
    assert again.history[-1].epoch == 2
    assert np.isfinite(again.model.x).all()
    counted = np.load(again.run / "steps.npz")  # type: ignore[operator]
    by_epoch = [int(counted["count"][counted["epoch"] == epoch].sum()) for epoch in range(3)]
    assert by_epoch == [120, 120, 120]  # every sample once in each epoch, whoever computed it


@pytest.mark.parametrize("strategy", ["sync:allreduce=ring", "gossip"])
def test_parts_of_ranks_that_a_run_no_longer_has_are_removed(strategy: str, tmp_path: Path) -> None:
    some: dict[str, Any] = {"checkpoint_every": "3 steps", "checkpoints": 2}
    run = fit(**COMMON, strategy=strategy, runs=tmp_path / "runs", ranks=4, **some).run
    assert run is not None
    assert checkpoint.saved_ranks(run) == [0, 1, 2, 3]
    fit(resume=run, ranks=2, epochs=2, quiet=True, **some)
    assert checkpoint.saved_ranks(run) == [0, 1]
    assert all(len(checkpoint.numbers(run, rank)) == 2 for rank in range(2))


def test_a_complete_run_without_checkpoints_is_trained_further_on_fewer_ranks(tmp_path: Path) -> None:
    run = fit(**COMMON, strategy="sync", runs=tmp_path, ranks=4).run
    assert run is not None
    fit(resume=run, ranks=2, epochs=1, quiet=True)
    (entry,) = Run(run).config["resumed"]
    assert (entry["ranks_before"], entry["ranks"]) == (4, 2)
    assert np.unique(Run(run).steps["rank"]).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("ranks", [2, 4, 5])
def test_steps_of_an_attempt_to_resume_on_more_ranks_that_saved_nothing_are_dropped(
    ranks: int, tmp_path: Path
) -> None:
    whole = train_with_checkpoints(tmp_path, "sync", "5 steps", ranks=4)
    run = cut(whole.run, tmp_path / "cut", 3)
    fit(resume=cut(whole.run, tmp_path / "lost", 3), ranks=5, quiet=True)
    lost = Run(tmp_path / "lost")
    unpack_rows(lost.folder, "steps")
    for name in ("steps/rank-4.rows", "config.json"):
        shutil.copy(lost.folder / name, run / name)
    fit(resume=run, ranks=ranks, quiet=True)
    steps = Run(run).steps
    assert [int(steps["count"][steps["epoch"] == epoch].sum()) for epoch in range(3)] == [120, 120, 120]


def test_parts_of_ranks_from_before_a_change_of_their_number_are_not_mixed(tmp_path: Path) -> None:
    some: dict[str, Any] = {"checkpoint_every": "3 steps", "checkpoints": 99}
    run = fit(**COMMON, strategy="gossip", runs=tmp_path / "runs", ranks=2, **some).run
    assert run is not None
    before = checkpoint.find_latest(run)
    fit(resume=run, ranks=3, epochs=2, quiet=True, **some)
    assert before is not None
    first = min(checkpoint.numbers(run, 2))
    checkpoint.discard(
        run, 1, keep=lambda other: other < first
    )  # killed before rank 1 had saved its first part
    assert checkpoint.find_latest(run) == before


def test_a_complete_run_is_trained_further(tmp_path: Path) -> None:
    first = fit(**REAL, strategy="serial", runs=tmp_path)
    more = fit(resume=first.run, epochs=2, quiet=True)
    assert more.run == first.run
    assert [epoch.epoch for epoch in more.history] == [0, 1, 2, 3, 4]
    five = fit(**{**REAL, "epochs": 5}, strategy="serial", runs=None)
    assert np.array_equal(five.model.x, more.model.x)  # plain SGD has no other state


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = train_with_checkpoints(tmp_path, "sync", "5 steps", ranks=2)
    run = cut(whole.run, tmp_path / "cut", 4)
    path = checkpoint.part_of(run, 1, 4)
    path.write_bytes(path.read_bytes()[:-200])
    again = fit(resume=run, quiet=True)
    assert "rank-1/000004.npz cannot be read" in caplog.text
    assert np.array_equal(whole.model.x, again.model.x)


def test_runs_that_cannot_be_resumed_are_refused(tmp_path: Path) -> None:
    done = fit(**REAL, strategy="serial", runs=tmp_path)
    assert done.run is not None
    with pytest.raises(UsageError, match="is complete; --epochs N"):
        fit(resume=done.run, quiet=True)
    (done.run / "summary.json").unlink()
    with pytest.raises(UsageError, match="has no complete checkpoint"):
        fit(resume=done.run, quiet=True)


def test_half_written_parts_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    whole = train_with_checkpoints(tmp_path, "sync", "5 steps", ranks=2)
    run = cut(whole.run, tmp_path / "cut", 3)
    half = checkpoint.part_of(run, 1, 4).with_name(".000004.npz.abcd")
    half.write_bytes(b"half")
    fit(resume=run, quiet=True, checkpoint_every="5 steps")
    assert not half.exists()


def test_arrays_are_checked_as_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without another pass over all parts, which only a damaged one needs: then the checkpoint before it is used."""
    checked: list[Path] = []
    check = checkpoint.check_arrays
    monkeypatch.setattr(checkpoint, "check_arrays", lambda path: (checked.append(path), check(path)))
    plain = fit(
        **REAL, strategy="serial", runs=tmp_path / "runs", checkpoint_every="5 steps", checkpoints=99
    )  # fmt: skip
    assert plain.run is not None
    good, bad = (cut(plain.run, tmp_path / name, 2) for name in ("good", "bad"))
    assert np.array_equal(fit(resume=good, quiet=True).model.x, plain.model.x)
    assert checked == []
    part = checkpoint.part_of(bad, 0, 2)
    data = bytearray(part.read_bytes())
    x = checkpoint.read(bad, 0, 2)["x"].tobytes()
    data[data.index(x) + 3] ^= 1
    part.write_bytes(data)
    assert np.array_equal(fit(resume=bad, quiet=True).model.x, plain.model.x)
    assert checked
    assert f"{part} cannot be read: bad CRC-32" in caplog.text


def test_a_checkpoint_that_is_being_written_when_training_ends_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The files of rows, which it flushes first, are removed only afterwards."""
    opened = os.open

    def open_slowly(path: Any, *options: Any, **more: Any) -> int:
        if str(path).endswith(".rows"):
            time.sleep(1.0)
        return opened(path, *options, **more)

    monkeypatch.setattr(os, "open", open_slowly)
    run = fit(**REAL, strategy="serial", runs=tmp_path, checkpoint_every="20 steps").run
    assert run is not None
    assert caplog.text == ""
    assert checkpoint.numbers(run, 0) == [2, 1]  # the other one is that of the end
    assert Run(run).summary["checkpoints"]["saved"] == 1


class KeepsASet(Serial):
    def train(self, me: Worker) -> None:
        me.keep("mine", names={"a", "b"})
        super().train(me)


def test_a_value_that_a_checkpoint_cannot_hold_ends_training(tmp_path: Path) -> None:
    with pytest.raises(
        TypeError, match="a checkpoint holds arrays, numbers, texts and random generators; got set"
    ):
        fit(**REAL, strategy=KeepsASet(), runs=tmp_path, checkpoint_every="5 steps")


def test_an_error_of_the_thread_that_writes_is_raised_once(tmp_path: Path) -> None:
    saver = checkpoint.Saver(tmp_path, 0, keep=1, first=1)
    saver.save({"names": {"a"}})
    with pytest.raises(TypeError, match="got set"):
        saver.wait()
    assert saver.wait()
    assert (saver.written, checkpoint.numbers(tmp_path, 0)) == (0, [])


def drop(*path: str) -> Any:
    def change(state: Any) -> None:
        for name in path[:-1]:
            state = state[name]
        del state[path[-1]]

    return change


def replace_by(value: Any, *path: str) -> Any:
    def change(state: Any) -> None:
        for name in path[:-1]:
            state = state[name]
        state[path[-1]] = value(state[path[-1]]) if callable(value) else value

    return change


@pytest.mark.parametrize(
    ("strategy", "rank", "change", "words"),
    [
        ("serial", 0, drop("recovery", "norm"), "is damaged: recovery.norm is missing"),
        ("serial", 0, drop("recovery", "_guard"), "is damaged: recovery._guard is missing"),
        ("serial", 0, replace_by(7, "recovery", "messages"), "is damaged: recovery.messages is 7"),
        ("serial", 0, drop("weights"), "is damaged: weights is missing"),
        ("serial", 0, drop("buffers", "mean"), "does not fit: mean has None"),
        ("serial", 0, replace_by(lambda x: x.astype(complex), "buffers", "std"), "does not fit: std is of type complex"),
        ("psgd", 1, replace_by("soon", "kept", "part", "before"), "does not fit: part.before is 'soon'"),
        ("psgd", 1, replace_by(1.5, "kept", "part", "moved"), "does not fit: part.moved is 1.5"),
        ("gossip", 1, replace_by({"state": 1}, "kept", "gossip", "draw"), "no state of a random generator"),
        ("parameter-server", 0, drop("kept", "server", "chief", "sums"), "does not fit: KeyError: 'sums'"),
        ("parameter-server", 0, replace_by([{}], "kept", "server", "pieces"), "does not fit: KeyError: 'start'"),
        ("parameter-server", 1, replace_by([1e60, 1.0, 40.0], "kept", "server", "last"), "the last batch of a worker"),
    ],
)  # fmt: skip
def test_a_checkpoint_with_impossible_values_is_refused_in_one_line(
    strategy: str, rank: int, change: Any, words: str, tmp_path: Path
) -> None:
    objects = {"model": "mlp:4,standardise=true", "batch": 40}
    whole = fit(
        **{**COMMON, **objects}, strategy=strategy, ranks=1 if strategy == "serial" else 2,
        runs=tmp_path / "runs", checkpoint_every="epoch", checkpoints=9,
    )  # fmt: skip
    assert whole.run is not None
    run = cut(whole.run, tmp_path / "cut", 1)
    state = checkpoint.read(run, rank, 1)
    change(state)
    checkpoint.write(run, rank, 1, state)

    def go_on() -> None:
        checkpoint.read(run, rank, 1)
        fit(resume=run, quiet=True)

    with pytest.raises(UsageError) as refused:
        go_on()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert str(refused.value).count("does not fit") <= 1


def test_ranks_that_disagree_on_divergence_do_not_wait_for_each_other(tmp_path: Path) -> None:
    whole = train_with_checkpoints(tmp_path, "elastic:every=3", "epoch", ranks=2)
    run = cut(whole.run, tmp_path / "cut", 1)
    state = checkpoint.read(run, 1, 1)
    state["recovery"]["stopped"] = "it has diverged"
    checkpoint.write(run, 1, 1, state)
    assert np.array_equal(fit(resume=run, quiet=True).model.x, whole.model.x)
