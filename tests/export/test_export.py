"""What other tools read back is what the record says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import UsageError, fit
from paceline.cli import main
from paceline.export import check_installed, mlflow, tensorboard
from paceline.files import write_arrays
from paceline.record import Run
from tests.simulate.costs import COSTS

EPOCHS = {
    "loss/epoch": "loss",
    "validation/loss": "validation_loss",
    "validation/accuracy": "validation_accuracy",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An asynchronous run on simulated ranks and a serial one."""
    folder = tmp_path_factory.mktemp("runs")
    COSTS.save(folder / "costs.json")
    more: dict[str, Any] = {"epochs": 3, "batch": 12, "runs": folder, "quiet": True}
    fit(
        "mlp:8",
        "iris",
        strategy="parameter-server",
        ranks=5,
        on="sim",
        machine=str(folder / "costs.json"),
        **more,
    )
    fit("mlp:8", "iris", strategy="serial", **more)
    return folder


def list_runs(runs: Path) -> list[Run]:
    return [Run(folder) for folder in sorted(runs.iterdir()) if folder.is_dir()]


def losses(run: Run) -> list[float]:
    steps = run.steps
    sums = np.bincount(steps["step"], steps["loss"])
    return (sums / np.bincount(steps["step"], steps["count"])).tolist()


# ---- TensorBoard


def read_events(place: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(place), size_guidance={"tensors": 0})
    found.Reload()
    return found


def values(found: Any, tag: str) -> list[tuple[int, float, float]]:
    """Step, seconds since the run began, value."""
    from tensorboard.util.tensor_util import make_ndarray

    start = found.FirstEventTimestamp()
    return [(e.step, e.wall_time - start, make_ndarray(e.tensor_proto).item()) for e in found.Tensors(tag)]


def test_tensorboard_reads_what_the_record_says(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board = tmp_path / "board"
    assert main(["export", str(runs), "--to", "tensorboard", "--out", str(board)]) == 0
    for run in list_runs(runs):
        found = read_events(board / run.folder.name)
        for tag, key in EPOCHS.items():
            told = [(epoch["step"], epoch["train_seconds"], epoch[key]) for epoch in run.epochs]
            np.testing.assert_allclose(values(found, tag), told, rtol=1e-6, atol=1e-6)
        batches = values(found, "loss/batch")
        assert [step for step, _, _ in batches] == list(range(run.summary["steps"]))
        np.testing.assert_allclose([value for *_, value in batches], losses(run), rtol=1e-6)
        last = run.summary["steps"]
        for kind, seconds in run.summary["seconds"].items():
            assert values(found, f"seconds/{kind}")[0][::2] == pytest.approx((last, seconds), rel=1e-6)
        assert values(found, "test/accuracy")[0][2] == pytest.approx(run.summary["test_accuracy"])
        assert (
            "strategy | " + run.config["strategy"]
            in found.Tensors("configuration")[0].tensor_proto.string_val[0].decode()
        )
    capsys.readouterr()


def test_tensorboard_has_staleness_and_settings(runs: Path, tmp_path: Path) -> None:
    from tensorboard.plugins.hparams import metadata
    from tensorboard.util.tensor_util import make_ndarray

    run = next(run for run in list_runs(runs) if run.config["strategy"].startswith("parameter-server"))
    found = read_events(tensorboard.to_tensorboard(run, tmp_path)[0])
    bars = make_ndarray(found.Tensors("staleness")[0].tensor_proto)
    counts = run.summary["findings"]["staleness"]["histogram"]
    assert bars.tolist() == [[tau, tau + 1, count] for tau, count in enumerate(counts)]
    told = found.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
    hparams = metadata.parse_session_start_info_plugin_data(told).hparams
    assert hparams["strategy"].string_value == run.config["strategy"]
    assert hparams["ranks"].number_value == 5
    assert hparams["simulated.compute"].bool_value is True
    assert "replay" not in hparams


def test_tensorboard_is_told_once(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["export", str(runs), "--to", "tensorboard", "--out", str(tmp_path)]
    assert main(words) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(words) == 0
    assert capsys.readouterr().out.count("(already there)") == 2
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    run = list_runs(runs)[0]
    (tmp_path / run.folder.name / tensorboard.MARK).unlink()  # somebody else's folder of that name
    place, new = tensorboard.to_tensorboard(run, tmp_path)
    assert new
    assert place.name.startswith(run.folder.name + "-")
    assert tensorboard.to_tensorboard(run, tmp_path) == (place, False)
    (place / tensorboard.MARK).write_text("[]")
    with pytest.raises(UsageError, match="already exists and was not exported"):
        tensorboard.to_tensorboard(run, tmp_path)


def test_nothing_half_is_left(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tensorboard, "_values", fail)
    with pytest.raises(KeyboardInterrupt):
        tensorboard.to_tensorboard(list_runs(runs)[0], tmp_path)
    assert list(tmp_path.iterdir()) == []


# ---- MLflow


def client(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    from mlflow import MlflowClient

    for name, value in mlflow.VARIABLES.items():
        monkeypatch.setenv(name, value)
    return MlflowClient(tracking_uri=folder.as_uri())


def test_mlflow_reads_what_the_record_says(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["export", str(runs), "--to", "mlflow", "--out", str(tmp_path), "--experiment", "ours"]
    assert main(words) == 0
    assert main(words) == 0
    assert capsys.readouterr().out.count("(already there)") == 2
    there = client(tmp_path, monkeypatch)
    experiment = there.get_experiment_by_name("ours").experiment_id
    told = {run.info.run_name: run for run in there.search_runs([experiment])}
    assert len(told) == 2
    for run in list_runs(runs):
        found = told[run.folder.name]
        number, start = found.info.run_id, found.info.start_time
        assert found.info.status == "FINISHED"
        assert found.data.params["strategy"] == run.config["strategy"] == found.data.tags["strategy"]
        assert found.data.params["lr"] == str(run.config["lr"])
        for tag, key in EPOCHS.items():
            history = [
                (m.step, (m.timestamp - start) / 1000, m.value) for m in there.get_metric_history(number, tag)
            ]
            record = [(epoch["step"], epoch["train_seconds"], epoch[key]) for epoch in run.epochs]
            np.testing.assert_allclose(sorted(history), record, rtol=1e-12, atol=2e-3)
            assert [value for *_, value in sorted(history)] == [value for *_, value in record]
        assert [m.value for m in there.get_metric_history(number, "loss/batch")] == losses(run)
        assert found.data.metrics["seconds/compute"] == run.summary["seconds"]["compute"]
        counts = run.summary["findings"].get("staleness", {}).get("histogram", [])
        ages = there.get_metric_history(number, "staleness/updates") if counts else []
        assert [m.value for m in ages] == counts
        files = {Path(file.path).name for file in there.list_artifacts(number, "record")}
        assert files == {"config.json", "environment.json", "epochs.jsonl", "summary.json"}
        kept = json.loads(Path(there.download_artifacts(number, "record/summary.json")).read_text())
        assert kept == run.summary


def test_mlflow_does_again_what_was_broken_off(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = list_runs(runs)[1]
    store = mlflow.Store(tmp_path.as_uri(), "ours")

    def fail(_: Run) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(mlflow, "staleness", fail)
        with pytest.raises(KeyboardInterrupt):
            store.add(run)
    assert store.add(run)[1]
    there = client(tmp_path, monkeypatch)
    (found,) = there.search_runs([there.get_experiment_by_name("ours").experiment_id])
    assert found.info.status == "FINISHED"
    assert len(there.get_metric_history(found.info.run_id, "loss/epoch")) == 3


# ---- refusals


def expect_refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["export", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


def test_refusals(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for tool in ("tensorboard", "mlflow"):
        assert "give --out DIR" in expect_refusal([str(runs), "--to", tool], capsys)
        (tmp_path / "empty").mkdir(exist_ok=True)
        words = [str(tmp_path / "empty"), "--to", tool, "--out", str(tmp_path / "out")]
        assert expect_refusal(words, capsys) == (
            f"paceline export: there is no run in {tmp_path}/empty that is complete or has a checkpoint\n"
        )
    both = [str(runs), "--to", "mlflow", "--out", "a", "--tracking-uri", "file:///b"]
    assert "exclude each other" in expect_refusal(both, capsys)
    mine = [str(runs), "--to", "tensorboard", "--out", "a", "--experiment", "x"]
    assert "--experiment is only for mlflow" in expect_refusal(mine, capsys)
    assert "cannot write runs to nowhere://x" in expect_refusal(
        [str(runs), "--to", "mlflow", "--tracking-uri", "nowhere://x"], capsys
    )
    web = [str(runs), "--to", "mlflow", "--tracking-uri"]
    monkeypatch.setenv("no_proxy", "*")
    assert "http://localhost:1: no server answers there (connection refused)" in expect_refusal(
        [*web, "http://localhost:1"], capsys
    )
    assert "it names no server" in expect_refusal([*web, "http://"], capsys)
    assert "port" in expect_refusal([*web, "http://localhost:x"], capsys)
    (tmp_path / "file").write_text("")
    assert "cannot write to" in expect_refusal(
        [str(runs), "--to", "tensorboard", "--out", str(tmp_path / "file")], capsys
    )


def test_what_is_not_installed_is_named(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("paceline.export.find_spec", lambda name: None)
    for tool in ("tensorboard", "mlflow"):
        with pytest.raises(UsageError, match=rf"pip install 'paceline\[{tool}\]'"):
            check_installed(tool)
        assert "is not installed" in expect_refusal([str(runs), "--to", tool, "--out", "x"], capsys)


def test_old_and_diverged_records_are_told_as_far_as_they_go(runs: Path, tmp_path: Path) -> None:
    settings = {"lr": 1e30, "epochs": 3, "batch": 12, "runs": tmp_path / "runs", "quiet": True}
    fitted = fit("mlp:8,activation=relu", "iris", strategy="serial", **settings)
    assert fitted.run is not None
    run = Run(fitted.run)
    assert run.summary["diverged"]
    columns = {name: values for name, values in run.steps.items() if name not in ("start", "wait")}
    write_arrays(run.folder / "steps.npz", columns)
    found = read_events(tensorboard.to_tensorboard(Run(run.folder), tmp_path / "board")[0])
    assert all(np.isfinite(value) for *_, value in values(found, "seconds/compute"))
    assert mlflow.Store((tmp_path / "mlruns").as_uri(), "ours").add(Run(run.folder))[1]
