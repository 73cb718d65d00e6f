"""The run's folder cannot be written any more, in mid-run: training goes on, and the trained model is saved somewhere."""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import fit
from paceline.cli import main
from paceline.launch.guard import JOB_FOLDER
from paceline.record import Run, find_runs, writing
from paceline.record.checkpoint import Saver
from paceline.strategies.sync import Sync
from paceline.worker import Worker

COMMON: dict[str, Any] = {"model": "mlp:8", "data": "iris", "epochs": 4, "batch": 10, "quiet": True}


def disturb_training(disturb: Callable[[], None], *, after: int = 1) -> Callable[[Worker], None]:
    """Return synchronous training in which something happens to the disk after an epoch."""

    def train(me: Worker) -> None:
        me.broadcast()
        with me.exchange("auto") as exchange:
            for epoch in me.epochs():
                for batch in me.batches(epoch):
                    me.gradient(batch)
                    me.step(exchange.reduce(), batch.total, exchange.part)
                    exchange.publish()
                me.validate(epoch)
                if epoch == after and me.rank == 0:
                    disturb()

    return train


def the_run(runs: Path) -> Path:
    (found,) = runs.iterdir()
    return found


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders for runs, temporary files and the user: runs/, tmp/ and home/."""
    for name in ("runs", "tmp", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def block(folder: Path) -> None:
    """Make a folder unwritable for everybody, also for root: a file takes its place."""
    shutil.rmtree(folder)
    folder.write_text("in the way")


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_run_whose_folder_is_removed_writes_it_again(
    ranks: int, places: Path, machine: str, caplog: pytest.LogCaptureFixture
) -> None:
    where: dict[str, Any] = {} if ranks == 1 else {"on": "sim", "ranks": ranks, "machine": machine}
    plain = fit(**COMMON, **where, strategy=Sync(), runs=None)
    train = disturb_training(lambda: shutil.rmtree(the_run(places / "runs")))
    fitted = fit(**COMMON, **where, strategy=train, runs=places / "runs")
    assert fitted.run == the_run(places / "runs")
    run = Run(fitted.run)
    assert [epoch["epoch"] for epoch in run.epochs] == [0, 1, 2, 3]
    assert run.summary["unsaved"] is None
    assert len(run.steps["step"]) == 48 * ranks
    assert np.array_equal(fitted.model.x, plain.model.x)
    assert find_runs([places / "runs"])
    assert sorted(path.name for path in places.iterdir()) == ["home", "runs", "tmp"]


@pytest.mark.parametrize(("ranks", "place"), [(1, "tmp"), (3, "tmp"), (1, "home")])
def test_a_run_that_cannot_be_written_to_its_folder_is_saved_elsewhere(
    ranks: int, place: str, places: Path, machine: str, caplog: pytest.LogCaptureFixture
) -> None:
    where: dict[str, Any] = {} if ranks == 1 else {"on": "sim", "ranks": ranks, "machine": machine}

    def disturb() -> None:
        block(the_run(places / "runs"))
        if place == "home":
            block(places / "tmp")

    fitted = fit(**COMMON, **where, strategy=disturb_training(disturb), runs=places / "runs")
    assert fitted.run is not None
    assert fitted.run.parent == places / place
    assert fitted.unsaved is None
    run = Run(fitted.run)
    assert [epoch["epoch"] for epoch in run.epochs] == [0, 1, 2, 3]
    assert len(run.steps["step"]) == 48 * ranks
    assert np.array_equal(run.model["x"], fitted.model.x)
    assert run.summary["run"] == str(fitted.run)
    assert fitted.remarks[-1] == run.summary["remarks"][-1]
    assert f": it is in {fitted.run}" in fitted.remarks[-1]
    assert [path.name for path in find_runs([places / place])[0].folder.parent.iterdir()] == [fitted.run.name]
    said = [record.message for record in caplog.records if "training continues" in record.message]
    assert len(said) == 1
    assert str(the_run(places / "runs")) in said[0]


def test_a_disk_with_room_again_gets_everything(places: Path, caplog: pytest.LogCaptureFixture) -> None:
    def disturb() -> None:
        folder = the_run(places / "runs")
        folder.rename(places / "away")
        folder.write_text("in the way")

    def mend() -> None:
        folder = the_run(places / "runs")
        folder.unlink()
        (places / "away").rename(folder)

    train = disturb_training(disturb, after=0)

    def both(me: Worker) -> None:
        told = me._on_epoch
        assert told is not None

        def on_epoch(epoch: Any) -> None:
            if epoch.epoch == 3:
                mend()
            told(epoch)

        me._on_epoch = on_epoch
        train(me)

    fitted = fit(**COMMON, strategy=both, runs=places / "runs")
    assert fitted.run == the_run(places / "runs")
    assert [epoch["epoch"] for epoch in Run(fitted.run).epochs] == [0, 1, 2, 3]
    said = [record.message for record in caplog.records]
    assert [("training continues" in text, text.endswith("again")) for text in said] == [
        (True, True),
        (False, True),
    ]


def test_if_nothing_can_be_saved_the_results_are_printed_all_the_same(
    places: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("paceline.record.writing.write_arrays", full)
    arguments = ["--model", "mlp:8", "--data", "iris", "--strategy", "serial", "--epochs", "1", "--quiet"]
    assert main(["train", *arguments, "--runs", str(places / "runs")]) == 1
    printed = capsys.readouterr()
    assert "test accuracy " in printed.out
    last = printed.out.splitlines()[-1]
    assert last.startswith(f"the run could not be written to {the_run(places / 'runs')} or ")
    assert last.endswith(": no space left on device")
    assert not any((places / "tmp").iterdir())
    assert not any((places / "home").iterdir())


def test_without_room_for_the_tables_the_model_is_saved_alone(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = writing.write_columns

    def full(path: Path, columns: Any, rows: int) -> None:
        if rows:
            raise OSError(28, "No space left on device")
        real(path, columns, rows)

    monkeypatch.setattr(writing, "write_columns", full)
    fitted = fit(**COMMON, strategy="serial", runs=places / "runs")
    assert fitted.run == the_run(places / "runs")
    assert fitted.remarks[-1].endswith(f": it is in {fitted.run}, without its tables")
    run = Run(fitted.run)
    assert np.array_equal(run.model["x"], fitted.model.x)
    assert len(run.steps["step"]) == 0


def test_files_that_the_system_does_not_let_grow(places: Path) -> None:
    """A limit of the operating system on the size of files: rows wait in memory, the results are saved without them."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    arguments = ["--model", "mlp:8", "--data", "iris", "--strategy", "serial", "--epochs", "200", "--quiet"]
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "train", *arguments, "--batch", "2", f"--runs={places / 'runs'}"],
        env={
            "PATH": "/usr/bin:/bin", "HOME": str(places / "home"), "TMPDIR": str(places / "tmp"),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        preexec_fn=limit, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "test accuracy " in done.stdout
    assert done.stderr.count("training continues") == 1
    run = Run(the_run(places / "runs"))
    assert run.summary["steps"] == 12_000
    assert run.model["x"].size == 67


def test_one_rank_says_that_checkpoints_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(JOB_FOLDER, str(tmp_path))
    (tmp_path / "checkpoints").touch()  # a file instead of the folder
    for rank in range(3):
        saver = Saver(tmp_path, rank, keep=1, first=1, background=False)
        saver.save({"x": np.zeros(2)})
        assert saver.written == 0
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        f"cannot write a checkpoint to {tmp_path / 'checkpoints'}"
    ]
