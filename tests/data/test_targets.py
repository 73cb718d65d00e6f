"""What a run says about labels that could be classes or values, from the command line to the record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline import fit, predict
from paceline.cli import main
from paceline.errors import UsageError
from paceline.record import Run


def table(folder: Path, name: str, labels: list[int]) -> str:
    file = folder / name
    file.write_text("a,b,label\n" + "".join(f"{n % 7},{n % 5},{label}\n" for n, label in enumerate(labels)))
    return str(file)


def test_the_output_and_the_record_say_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = table(tmp_path, "grades.csv", [n % 3 + 1 for n in range(60)])
    assert main(["train", "--data", file, "--model", "mlp:4", "--strategy", "serial", "--epochs=1", "--batch=8",
                 f"--runs={tmp_path}", "--name=run", "--quiet"]) == 0  # fmt: skip
    printed = capsys.readouterr().out
    assert "test accuracy" in printed
    assert "column 'label' holds whole numbers, 3 different ones in 60 samples: taken as classes" in printed
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert (config["target"], config["classes"], config["class_names"]) == ("classes", 3, ["1", "2", "3"])


def test_the_output_and_the_record_say_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = table(tmp_path, "prices.csv", [1000 + 7 * n for n in range(60)])
    for option, said in (("", True), (",labels=numbers", False)):
        name = f"run{option.count('=')}"
        data = f"csv:{file},label=label{option}"
        assert main(["train", "--data", data, "--model", "mlp:4,standardise=true", "--strategy", "serial",
                     "--epochs=1", "--batch=8", "--lr=1e-9", f"--runs={tmp_path}", f"--name={name}",
                     "--quiet"]) == 0  # fmt: skip
        printed = capsys.readouterr().out
        loss = Run(tmp_path / name).summary["test_loss"]
        assert f"test loss {loss:.4g} (numbers), " in printed.splitlines()[0]
        assert ("taken as numbers; labels=classes makes them classes" in printed) == said
        config = json.loads((tmp_path / name / "config.json").read_text())
        assert (config["target"], config["classes"]) == ("numbers", 0)


@pytest.mark.parametrize("names", ["012", "357", "abc"])
def test_other_data_may_have_only_some_of_the_classes(tmp_path: Path, names: str) -> None:
    def rows(file: str, classes: list[int]) -> str:
        (tmp_path / file).write_text("a,b,label\n" + "".join(f"{c},{c % 2},{names[c]}\n" for c in classes))
        return str(tmp_path / file)

    model = "mlp:8,activation=relu,loss=cross-entropy"
    data = rows("all.csv", [n % 3 for n in range(90)])
    fitted = fit(model, data, strategy="serial", epochs=60, batch=8, lr=0.3, runs=tmp_path, quiet=True)
    assert fitted.run is not None
    assert fitted.test_accuracy == 1  # the classes are told by the first column
    for classes in ([2], [2, 0, 2], [1, 2], [2, 1, 0]):
        predicted = predict(fitted.run, data=rows("some.csv", classes))
        assert (predicted.classes.tolist(), predicted.accuracy) == (classes, 1)


def test_other_data_are_read_like_the_run_s(tmp_path: Path) -> None:
    file = table(tmp_path, "grades.csv", [n % 3 for n in range(60)])
    fitted = fit("mlp:4", file, strategy="serial", epochs=1, batch=8, runs=tmp_path, quiet=True)
    assert fitted.run is not None
    few = table(tmp_path, "few.csv", [2, 0, 1])  # too few rows to take these for classes by themselves
    assert predict(fitted.run, data=few).scores.shape == (3, 3)
    with pytest.raises(UsageError, match=r"few has the classes 0, 3; .* was trained on 0, 1, 2"):
        predict(fitted.run, data=table(tmp_path, "few.csv", [3, 0, 3, 0]))
    prices = table(tmp_path, "prices.csv", [7 * n for n in range(60)])
    fitted = fit("mlp:4", prices, strategy="serial", epochs=1, batch=8, lr=1e-9, runs=tmp_path, quiet=True)
    assert fitted.run is not None
    assert predict(fitted.run, data=file).loss is not None  # grades, as values
    named = tmp_path / "named.csv"
    named.write_text("1,2,x\n3,4,y\n")
    with pytest.raises(UsageError, match=r"named has 2 classes; .* was trained on numbers"):
        predict(fitted.run, data=str(named))


def test_named_classes_are_predicted_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{n % 2},{n},{('a red fox', 'π')[n % 2]}" for n in range(60)]
    (tmp_path / "fox.csv").write_text("\n".join(rows), encoding="utf-8")
    fitted = fit(
        "mlp:4", f"{tmp_path}/fox.csv", strategy="serial", epochs=1, batch=8, runs=tmp_path, quiet=True
    )
    assert fitted.run is not None
    capsys.readouterr()
    assert main(["predict", str(fitted.run), "--split", "all"]) == 0
    predicted = predict(fitted.run, split="all")
    assert predicted.class_names == ("a red fox", "π")
    printed = capsys.readouterr().out.splitlines()
    assert printed == [predicted.class_names[number] for number in predicted.classes]
