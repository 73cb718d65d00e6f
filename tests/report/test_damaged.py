"""Records that were cut off or edited are left out, each with one line that names it; the rest is reported."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.record import Run, find_runs
from paceline.report import document_of
from tests.report.conftest import rewrite

Harm = Callable[[Path], object]


def edited(name: str, **values: object) -> Harm:
    return lambda folder: rewrite(folder / name, **values)


def cut(name: str) -> Harm:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:60])


def filled(name: str, text: str) -> Harm:
    return lambda folder: (folder / name).write_text(text)


HARMS: dict[str, tuple[Harm, str]] = {
    "no steps": (lambda folder: (folder / "steps.npz").unlink(), "has no steps.npz"),
    "steps of others": (filled("steps.npz", "x" * 50), "steps.npz cannot be read: "),
    "steps cut off": (cut("steps.npz"), "steps.npz cannot be read: "),
    "steps without columns": (
        lambda folder: shutil.copy(folder / "model.npz", folder / "steps.npz"),
        "steps.npz cannot be read: there is no item named 'rank.npy'",
    ),
    "epochs cut off": (cut("epochs.jsonl"), "epochs.jsonl"),
    "no epochs": (lambda folder: (folder / "epochs.jsonl").unlink(), "has no epochs.jsonl"),
    "epochs of others": (
        filled("epochs.jsonl", "[1]\n"),
        "epochs.jsonl is damaged: in line 1 [1] is not an object",
    ),
    "epoch without time": (filled("epochs.jsonl", '{"epoch": 0}\n'), "in line 1 train_seconds is missing"),
    "no time": (edited("summary.json", train_seconds=0), "train_seconds is 0"),
    "less than no time": (edited("summary.json", train_seconds=-5.0), "train_seconds is -5.0"),
    "time in words": (edited("summary.json", train_seconds="1.5"), "train_seconds is '1.5'"),
    "time that is none": (edited("summary.json", train_seconds=float("nan")), "train_seconds is nan"),
    "seconds": (edited("summary.json", seconds={}), "seconds is {}"),
    "accuracy": (edited("summary.json", test_accuracy=93.0), "test_accuracy is 93.0"),
    "findings": (edited("summary.json", findings=[1]), "findings is [1]"),
    "no ranks": (edited("config.json", ranks=0), "ranks is 0"),
    "ranks in words": (edited("config.json", ranks="2"), "ranks is '2'"),
    "cores": (edited("environment.json", cores=None), "cores is None"),
    "nodes": (edited("environment.json", nodes={"ranks": [0, 1], "cores": [4]}), "nodes is {"),
    "simulated": (edited("config.json", simulated={}), "simulated is {}"),
    "bytes": (lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe"), "config.json is not JSON"),
}


def left_out(folder: Path, caplog: pytest.LogCaptureFixture) -> tuple[list[Run], str]:
    with caplog.at_level(logging.WARNING):
        found = find_runs([folder])
    (record,) = caplog.records
    return found, record.getMessage()


@pytest.mark.parametrize("name", HARMS)
def test_what_is_damaged_is_left_out(
    runs: list[Run], tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    harm, said = HARMS[name]
    for run in runs[:2]:
        shutil.copytree(run.folder, tmp_path / run.folder.name)
    harm(tmp_path / runs[0].folder.name)
    found, told = left_out(tmp_path, caplog)
    assert [run.folder.name for run in found] == [runs[1].folder.name]
    assert told.startswith("left out: ")
    assert runs[0].folder.name in told
    assert said in told
    assert "\n" not in told
    assert document_of(found).sections


def test_what_masters_wrote_is_looked_at(
    matrix: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = next(matrix.glob("*parameter-server*"))
    shutil.copytree(path, tmp_path / path.name)
    cut("updates.npz")(tmp_path / path.name)
    found, told = left_out(tmp_path, caplog)
    assert found == []
    assert "updates.npz cannot be read: " in told


def test_what_is_damaged_inside_is_said(
    runs: list[Run], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from paceline.report.learning import samples_seen

    folder = tmp_path / "run"
    shutil.copytree(runs[0].folder, folder)
    content = bytearray((folder / "steps.npz").read_bytes())
    content[300:900] = bytes(600)
    (folder / "steps.npz").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert samples_seen(Run(folder)) == samples_seen(runs[0])  # of one epoch
    assert "steps.npz cannot be read" in caplog.text
