from __future__ import annotations

import json
import sys
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from paceline import MLP, UsageError, fit, load_model, predict
from paceline.cli import main
from paceline.commands.train import _describe
from paceline.files import read_arrays, replace_file, write_arrays, write_json
from paceline.launch.resources import VARIABLES
from paceline.record import Run, find_runs, new_folder


def train_run(folder: Path, **settings: object) -> Run:
    fitted = fit("mlp:6", "iris", strategy="serial", epochs=1, batch=10, runs=folder, quiet=True, **settings)
    assert fitted.run is not None
    return Run(fitted.run)


def test_the_folder_holds_what_the_run_was(tmp_path: Path) -> None:
    run = train_run(tmp_path, seed=3)
    assert sorted(path.name for path in run.folder.iterdir()) == [
        "config.json", "environment.json", "epochs.jsonl", "model.npz", "steps.npz", "summary.json",
    ]  # fmt: skip
    assert run.config["strategy"] == "serial"
    assert run.config["seed"] == 3
    assert run.environment["cores"] >= 1
    assert run.environment["mpi"] is None
    assert run.epochs[0]["step"] == run.summary["steps"] == 12
    assert run.steps["loss"].dtype == np.float64
    assert (run.steps["compute"] > 0).all()


def test_the_trained_model_comes_back(tmp_path: Path) -> None:
    run = train_run(tmp_path)
    assert predict(run.folder).accuracy == pytest.approx(run.summary["test_accuracy"])
    model = load_model(run.folder)
    other = MLP([4, 6, 3], seed=9)
    run.restore(other)
    assert (model.x == other.x).all()
    with pytest.raises(UsageError, match="has 51 parameters and the one given 11"):
        run.restore(MLP([4, 1, 3]))


def numbers(samples: int, features: int) -> tuple[np.ndarray, np.ndarray]:
    return np.random.default_rng(0).random((samples, features)), np.arange(samples) % 3


@pytest.mark.parametrize("model", ["mlp:6,standardise=true", MLP([4, 6, 3])])
def test_a_run_on_arrays_predicts_other_arrays(tmp_path: Path, model: object) -> None:
    fitted = fit(model, numbers(60, 4), strategy="serial", epochs=1, batch=10, runs=tmp_path, quiet=True)
    again = None if isinstance(model, str) else MLP([4, 6, 3], seed=5)
    inputs, labels = numbers(7, 4)
    assert fitted.run is not None
    predicted = predict(fitted.run, model=again, data=(inputs, labels))
    assert (predicted.scores == fitted.model.predict(inputs.astype(np.float32))).all()
    assert predicted.accuracy is not None
    few = predict(fitted.run, model=again, data=(inputs[2:3], labels[2:3]))  # one class of three
    assert (few.scores == predicted.scores[2]).all()
    np.savez(tmp_path / "new.npz", inputs=inputs, labels=labels)
    stored = predict(fitted.run, model=again, data=str(tmp_path / "new.npz"))
    assert (stored.scores == predicted.scores).all()  # every sample, in its order
    with pytest.raises(UsageError, match=r"the data of .* were given as an object: give the samples"):
        predict(fitted.run, model=again)
    if again is not None:
        with pytest.raises(
            UsageError, match=r"was given as an object \(paceline.models.mlp:MLP\): give one like it"
        ):
            predict(fitted.run, data=(inputs, labels))


def test_real_labels_are_predicted(tmp_path: Path) -> None:
    inputs = numbers(60, 2)[0]
    fitted = fit(
        "mlp:3", (inputs, inputs @ [1, 2]), strategy="serial", epochs=1, batch=10, runs=tmp_path, quiet=True
    )
    assert fitted.run is not None
    predicted = predict(fitted.run, data=(inputs, np.zeros(60, int)))
    assert (predicted.accuracy, predicted.scores.shape) == (None, (60, 1))


def test_samples_that_the_model_cannot_take_are_refused(tmp_path: Path) -> None:
    run = train_run(tmp_path).folder
    with pytest.raises(UsageError, match=r"arrays has samples of 5; .* was trained on 4"):
        predict(run, data=numbers(6, 5))
    with pytest.raises(UsageError, match=r"digits has samples of 8x8; .* was trained on 4"):
        predict(run, data="digits")
    with pytest.raises(UsageError, match="must be from 0 to 2; sample 0 has 3"):
        predict(run, data=(np.zeros((2, 4)), np.array([3, 0])))
    with pytest.raises(UsageError, match=r"has numbers as labels; .* was trained on 3 classes"):
        predict(run, data=((np.zeros((9, 4)), np.linspace(0, 1, 9)),) * 2)
    with pytest.raises(UsageError, match="unknown split 'foo'; choose one of train, validation, test, all"):
        predict(run, split="foo")


def test_a_run_is_shown_by_its_folder(tmp_path: Path) -> None:
    run = train_run(tmp_path)
    assert repr(run) == f"Run({str(run.folder)!r})"


def test_names_do_not_collide(tmp_path: Path) -> None:
    folders = {new_folder(tmp_path, "sync:allreduce=ring", 4, 0) for _ in range(5)}
    assert len(folders) == 5
    assert all("sync-allreduce-ring-n4-s0" in folder.name for folder in folders)


@pytest.mark.parametrize("name", ["a\nb", "a/b", "..", "", "\x1b[2J", "a\u2028b"])
def test_a_name_is_that_of_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    words = ["train", "--data", "iris", "-n", "2", "--runs", str(tmp_path / "runs"), "--name", name]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"must be that of a folder, without / or control characters; got {name!r}" in said
    assert list(tmp_path.iterdir()) == []  # no rank was started
    with pytest.raises(UsageError, match="must be that of a folder"):
        new_folder(tmp_path, "sync", 2, 0, name=name)


def test_one_rank_is_not_each(tmp_path: Path) -> None:
    fitted = fit("mlp:6", "iris", strategy="serial", epochs=1, batch=10, threads=2, runs=tmp_path, quiet=True)
    assert _describe(fitted).startswith("serial on 1 rank, 2 threads: ")


def test_both_accuracies_are_printed_because_targets_are_about_the_validation_samples(tmp_path: Path) -> None:
    fitted = fit("mlp:6", "iris", strategy="serial", epochs=1, batch=10, runs=tmp_path, quiet=True)
    assert fitted.test_accuracy is not None
    accuracies = f"test accuracy {fitted.test_accuracy:.2%} (validation {fitted.validation_accuracy:.2%}), "
    assert accuracies.replace("%", " %") in _describe(fitted)
    alone = replace(fitted, validation_accuracy=None)
    assert f"test accuracy {fitted.test_accuracy:.2%}, ".replace("%", " %") in _describe(alone)


def test_runs_that_did_not_end_are_left_out(tmp_path: Path) -> None:
    first, second = train_run(tmp_path), train_run(tmp_path, seed=1)
    (second.folder / "summary.json").unlink()
    assert [run.folder for run in find_runs([tmp_path])] == [first.folder]
    assert [run.folder for run in find_runs([tmp_path, first.folder])] == [first.folder]  # each run once
    with pytest.raises(UsageError, match="has not ended"):
        _ = Run(second.folder).summary


def test_damaged_files_are_named(tmp_path: Path) -> None:
    run = train_run(tmp_path)
    (run.folder / "model.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(UsageError, match=r"model\.npz cannot be read"):
        predict(run.folder)
    (run.folder / "model.npz").write_bytes(b"junk")
    with pytest.raises(UsageError, match=r"^\S+model\.npz cannot be read: it is not an \.npz file"):
        predict(run.folder)
    with (run.folder / "model.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(
        UsageError, match=r"^\S+model\.npz cannot be read: it is a single \.npy array, not an \.npz file"
    ):
        predict(run.folder)
    (run.folder / "config.json").write_text("{")
    with pytest.raises(UsageError, match=r"config\.json is not JSON"):
        _ = Run(run.folder).config


def test_no_pickle_is_loaded(tmp_path: Path) -> None:
    run = train_run(tmp_path)
    with (run.folder / "model.npz").open("wb") as file:
        np.savez(file, x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(UsageError, match="cannot be read"):
        run.restore(MLP([4, 6, 3]))


def savez_of_numpy_2_0(file: IO[bytes], **arrays: object) -> None:
    """Store every keyword as an array, as `np.savez` did before it had `allow_pickle`, in NumPy 2.2."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, np.asanyarray(array))


@pytest.mark.parametrize("compress", [False, True])
def test_only_the_arrays_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compress: bool) -> None:
    monkeypatch.setattr(np, "savez_compressed" if compress else "savez", savez_of_numpy_2_0)
    write_arrays(tmp_path / "a.npz", {"x": np.arange(3)}, compress=compress)
    with np.load(tmp_path / "a.npz") as written:
        assert written.files == ["x"]


def test_an_option_that_was_stored_as_an_array_is_ignored(tmp_path: Path) -> None:
    run = train_run(tmp_path)
    columns = list(run.steps)
    for name in ("model.npz", "steps.npz"):
        arrays = read_arrays(run.folder / name)
        with (run.folder / name).open("wb") as file:
            savez_of_numpy_2_0(file, allow_pickle=False, **arrays)
    again = Run(run.folder)
    assert list(again.steps) == columns
    again.restore(MLP([4, 6, 3]))
    assert predict(run.folder).accuracy == pytest.approx(run.summary["test_accuracy"])


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    write_json(path, {"a": 1})

    def half() -> None:
        with replace_file(path) as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half()
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ValueError, match=r"cannot write Python objects to .*: o"):
        write_arrays(tmp_path / "o.npz", {"o": np.array([None])})
    assert list(tmp_path.iterdir()) == [path]


def test_a_diverged_loss_is_still_json(tmp_path: Path) -> None:
    write_json(tmp_path / "v.json", {"loss": [float("nan"), {"x": float("inf")}]})
    assert json.loads((tmp_path / "v.json").read_text()) == {"loss": [None, {"x": None}]}


def strict(text: str) -> object:
    """What a reader of JSON that knows no NaN makes of it."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_a_diverged_run_is_json_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in VARIABLES:
        monkeypatch.setenv(name, "1")
    words = (
        "--data iris --model mlp:4,activation=relu --lr 1e30 --epochs 1 --batch 10 --strategy serial --quiet"
    )
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (
            main(["train", *words.split(), "--runs", str(tmp_path), "--json"]) == 3
        )  # stopped, with a complete record
    printed = strict(capsys.readouterr().out)
    assert isinstance(printed, dict)
    assert printed["loss"] is printed["test_loss"] is None
    folder = Path(printed["run"])
    written = strict((folder / "summary.json").read_text())
    assert isinstance(written, dict)
    assert written.items() >= printed.items()
    assert written.keys() - printed.keys() == {
        *("buffers", "checkpoints", "first_layer", "layers", "seconds_by_rank", "tables")
    }
    strict((folder / "epochs.jsonl").read_text().strip())
    with np.errstate(all="ignore"):
        assert main(["predict", str(folder), "--json"]) == 0
    assert strict(capsys.readouterr().out)["loss"] is None  # type: ignore[index]
