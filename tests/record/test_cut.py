"""A run that was cut is read up to its last checkpoint, and marked as such everywhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import fit, load_model, predict
from paceline.cli import main
from paceline.errors import UsageError
from paceline.record import Run, checkpoint, find_runs
from paceline.report import document_of, html_page
from tests.simulate.costs import COSTS

CUT = "cut after epoch 2 of 4"


def train_with_checkpoints(folder: Path, **settings: Any) -> Path:
    """Train for four epochs with a checkpoint after each of them; simulated ranks do not skip one that comes too soon."""
    COSTS.save(folder / "costs.json")
    fitted = fit(
        "mlp:6,standardise=true", "iris", epochs=4, batch=20, runs=folder / "runs", quiet=True, checkpoint_every="epoch",
        checkpoints=4, on="sim", machine=str(folder / "costs.json"), **settings,
    )  # fmt: skip
    assert fitted.run is not None
    return fitted.run


def cut_after(run: Path, place: Path, number: int) -> Path:
    """Return a copy of a run as it would be if it had been killed after a checkpoint, in the next epoch."""
    shutil.copytree(run, place)
    whole = Run(run)
    for name in ("summary.json", "model.npz", "steps.npz"):
        (place / name).unlink()
    for path in (place / checkpoint.FOLDER).rglob("*.npz"):
        if int(path.stem) > number:
            path.unlink()
    (place / "steps").mkdir()
    columns = [name for name in whole.steps if name != "rank"]
    for rank in np.unique(whole.steps["rank"]).tolist():
        mine = whole.steps["rank"] == rank
        rows = np.stack([whole.steps[name][mine] for name in columns], axis=1).astype("<f8")
        (place / "steps" / f"rank-{rank}.rows").write_bytes(rows.tobytes() + b"half a row")
    lines = (run / "epochs.jsonl").read_text().splitlines()
    (place / "epochs.jsonl").write_text("\n".join(lines[: number + 1]) + '\n{"epoch": 3, "st')
    return place


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_with_checkpoints(tmp_path_factory.mktemp("runs"), strategy="serial")


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Run:
    (tmp_path / "runs").mkdir()
    return Run(cut_after(whole, tmp_path / "runs" / "cut", 2))


def test_everything_ends_at_the_last_checkpoint(run: Run, whole: Path) -> None:
    complete = Run(whole)
    assert not run.complete
    assert run.cut == CUT
    assert run.epochs == complete.epochs[:2]
    half = complete.steps["epoch"] < 2
    assert run.steps.keys() == complete.steps.keys()
    assert all((run.steps[name] == column[half]).all() for name, column in complete.steps.items())
    assert run.summary["steps"] == complete.summary["steps"] // 2
    assert run.summary["test_accuracy"] is None
    assert 0 < run.summary["train_seconds"] < complete.summary["train_seconds"]
    assert run.summary["remarks"][-1] == run.summary["cut"] == CUT
    state = checkpoint.read(run.folder, 0, 2)
    assert (load_model(run.folder).x == state["x"]).all()
    predicted = predict(run.folder)
    assert predicted.cut == CUT
    assert predicted.accuracy is not None
    assert complete.cut is predict(whole).cut is None


def test_it_is_listed_and_not_compared(run: Run, whole: Path) -> None:
    cut: list[Run] = []
    assert find_runs([run.folder.parent], cut=cut) == find_runs([run.folder.parent]) == []
    assert [one.folder for one in cut] == [run.folder]
    page = document_of([Run(whole)], cut=cut)
    assert [section.title for section in page.sections] == [
        "iris, mlp:6,standardise=true", "Interrupted runs", "Environment",
    ]  # fmt: skip
    said = "1 run was interrupted and is not compared; continue it with paceline resume RUN."
    assert page.summary[-1].lines == (said,)
    assert "continue it with <code>paceline resume RUN</code>." in html_page(page)
    (table,) = page.sections[1].blocks
    assert table.rows[0][:4] == ("cut", "serial", 1, CUT)  # type: ignore[union-attr]
    alone = document_of([], cut=cut)
    assert [section.title for section in alone.sections] == ["Interrupted runs", "Environment"]


def test_one_that_was_run_again_to_its_end_is_not_listed(run: Run, whole: Path) -> None:
    again = Run(shutil.copytree(whole, run.folder.parent / "again"))
    page = document_of([again], cut=[run])
    assert "Interrupted runs" not in [section.title for section in page.sections]
    assert not any("interrupted" in line for text in page.summary for line in text.lines)
    other = Run(shutil.copytree(whole, run.folder.parent / "other"))
    for name, value in (("seed", 7), ("epochs", 3)):  # another cell, or one that ended before
        other.config[name], before = value, other.config[name]
        assert "Interrupted runs" in [section.title for section in document_of([other], cut=[run]).sections]
        other.config[name] = before


def test_commands_mark_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["predict", str(run.folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cut"] == CUT
    assert main(["predict", str(run.folder)]) == 0
    assert f"(the run was {CUT}: its last checkpoint)" in capsys.readouterr().err
    assert main(["trace", str(run.folder), "-o", "trace.json"]) == 0
    assert f"the run was {CUT}: the trace ends at its last checkpoint" in capsys.readouterr().out
    assert json.loads((tmp_path / "trace.json").read_text())["otherData"]["cut"] == CUT
    pytest.importorskip("tensorboard")
    assert main(["export", "runs", "--to", "tensorboard", "--out", "boards"]) == 0
    assert [path.name for path in (tmp_path / "boards").iterdir()] == ["cut"]
    assert main(["report", "runs", "-o", "report.md"]) == 0
    assert CUT in capsys.readouterr().out
    assert CUT in (tmp_path / "report.md").read_text()


def test_without_a_checkpoint_it_has_not_ended(run: Run) -> None:
    shutil.rmtree(run.folder / checkpoint.FOLDER)
    assert Run(run.folder).cut is None
    with pytest.raises(UsageError, match="has not ended"):
        _ = Run(run.folder).summary


def test_a_damaged_checkpoint_is_not_used(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    path = checkpoint.part_of(run.folder, 0, 2)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert Run(run.folder).cut == "cut after epoch 1 of 4"
    assert f"{path} cannot be read: " in caplog.text
    path.unlink()
    checkpoint.part_of(run.folder, 0, 1).write_bytes(b"")
    assert Run(run.folder).cut is None


def test_models_that_are_averaged_are_averaged(tmp_path: Path) -> None:
    run = train_with_checkpoints(tmp_path, strategy="local-sgd:every=5", ranks=3)
    cut = Run(cut_after(run, tmp_path / "cut", 2))
    mean = np.mean([checkpoint.read(cut.folder, rank, 2)["x"] for rank in range(3)], axis=0, dtype=np.float64)
    assert (cut.model["x"] == mean.astype(np.float32)).all()
    assert np.unique(cut.steps["rank"]).tolist() == [0, 1, 2]
    assert predict(cut.folder).cut == CUT
