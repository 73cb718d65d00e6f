"""Reports by any metric: tables, curves, targets and verdicts, whether lower or higher values are better."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline.compare.answer import Target, find_target_times, target_of
from paceline.compare.metric import Goal, Metric, direction
from paceline.compare.rows import rows_of
from paceline.compare.verdict import best, verdict
from paceline.diagnosis import diagnose
from paceline.errors import UsageError
from paceline.export import points
from paceline.figures import Bars, Lines
from paceline.record import Run
from paceline.report import document_of
from paceline.report.document import Document
from paceline.study import file as study_file
from paceline.study.folder import context_of
from tests.report.conftest import table

LATE = {"serial": [40.0, 20.0, 10.0], "sync": [50.0, 20.0, 10.4], "hogwild": [60.0, 50.0, 30.0]}
TOOK = {"serial": 6.0, "sync": 3.0, "hogwild": 1.5}


def copy(run: Run, folder: Path, values: list[float], took: float, *, name: str, classes: bool, own_loop: bool,
         **config: Any) -> Run:  # fmt: skip
    """A copy of a run with three epochs whose metric has these values; `own_loop`: nothing else is known."""
    made = folder / f"{config['strategy']}-{len(list(folder.iterdir()))}"
    shutil.copytree(run.folder, made)
    lines = [
        {
            "epoch": number, "step": 12 * (number + 1), "loss": 1.0 / (number + 1),
            "train_seconds": took * (number + 1) / 3,
            "validation_loss": None if own_loop else 0.5, "validation_accuracy": 0.9 if classes else None,
            "metrics": {name: value},
        }
        for number, value in enumerate(values)
    ]  # fmt: skip
    (made / "epochs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for file, changes in (
        ("config.json", config),
        (
            "summary.json",
            {
                "train_seconds": took, "threads": 1, "test_accuracy": 0.9 if classes else None,
                "metrics": {name: values[-1]},
                "test_loss": None if own_loop else 0.5, "test_metrics": {} if own_loop else {name: values[-1]},
            },
        ),
        ("environment.json", {"cores": 4}),
    ):  # fmt: skip
        told = json.loads((made / file).read_text()) | changes
        told.pop("nodes", None)
        (made / file).write_text(json.dumps(told))
    return Run(made)


def copy_runs(runs: list[Run], folder: Path, *, name: str = "perplexity", classes: bool = False, own_loop: bool = True,
          values: dict[str, list[float]] = LATE) -> list[Run]:  # fmt: skip
    return [
        copy(runs[0], folder, some, TOOK[way], name=name, classes=classes, own_loop=own_loop, strategy=way,
             ranks=1 if way == "serial" else 2)
        for way, some in values.items()
    ]  # fmt: skip


def said(page: Document) -> str:
    return "\n".join(line for text in page.summary for line in text.lines)


@pytest.mark.parametrize("own_loop", [True, False])
def test_runs_with_only_a_perplexity_are_compared_by_it(
    runs: list[Run], tmp_path: Path, own_loop: bool
) -> None:
    found = copy_runs(runs, tmp_path, own_loop=own_loop)
    where = "validation" if own_loop else "test"
    rows = rows_of(found)
    assert {row.metric for row in rows} == {Metric("perplexity", higher=False)}
    fastest = best(rows)
    assert fastest is not None
    assert fastest.strategy == "sync"
    assert verdict(rows) == (
        f"sync, 2 ranks, in 3.00 s, is 2.00 times as fast as serial; {where} perplexity 10.4, serial 10; faster, but "
        f"worse: hogwild, 2 ranks, at {where} perplexity 30.",
    )
    page = document_of(found)
    results = table(page, "results-1")
    assert results.columns[4].name == f"{where} perplexity"
    assert [row[4] for row in results.rows] == [10.0, 30.0, 10.4]
    assert "First to reach the target of perplexity 11, within a tenth of the best serial perplexity" in said(
        page
    )
    assert "sync, 2 ranks, in 3.00 s; serial took 6.00 s; not reached by hogwild." in said(page)
    drawn = {block.name: block for block in page.blocks() if isinstance(block, (Lines, Bars))}
    curves = drawn["validation-perplexity-time-1"]
    assert isinstance(curves, Lines)
    assert curves.level == (11.0, "target 11")
    assert [curve.y for curve in curves.curves if curve.strategy == "serial"] == [(40.0, 20.0, 10.0)]
    assert drawn["to-target-1"].title == "Time to perplexity 11"
    assert "validation-time-1" not in drawn


def test_a_target_by_a_metric_beats_the_accuracy(runs: list[Run], tmp_path: Path) -> None:
    found = copy_runs(runs, tmp_path, classes=True, own_loop=False)
    assert rows_of(found)[0].metric.name == "accuracy"
    both = table(document_of(found), "results-1")
    assert [column.name for column in both.columns[4:6]] == ["test accuracy", "test perplexity"]
    page = document_of(found, target="perplexity<=20")
    assert "First to reach the target of perplexity 20, as asked for: hogwild" not in said(page)
    assert (
        "First to reach the target of perplexity 20, as asked for: sync, 2 ranks, in 2.00 s; serial took 4.00 s"
        in said(page)
    )
    assert "hogwild" in said(page).partition("not reached by")[2]
    assert [cell for row in table(page, "results-1").rows for cell in row[4:5]] == [10.0, 30.0, 10.4]


def test_a_higher_value_may_be_better_or_its_direction_unknown(runs: list[Run], tmp_path: Path) -> None:
    values = {"serial": [0.2, 0.4, 0.6], "sync": [0.2, 0.4, 0.58], "hogwild": [0.1, 0.2, 0.3]}
    for name in ("bleu", "my-own"):
        (tmp_path / name).mkdir()
        found = copy_runs(runs, tmp_path / name, name=name, values=values)
        text = said(document_of(found, target=f"{name}>=0.39"))
        assert (
            f"the target of {name} 0.39, as asked for: sync, 2 ranks, in 2.00 s; serial took 4.00 s" in text
        )
        lower = said(document_of(found, target=f"{name}<=0.15")) if name == "my-own" else ""
        assert name == "bleu" or "as asked for: hogwild, 2 ranks, in 0.500 s" in lower
    assert "sync, 2 ranks, in 3.00 s, is 2.00 times" in said(document_of(copy_runs(runs, tmp_path / "bleu", name="bleu",
                                                                              values=values)))  # fmt: skip
    with pytest.raises(UsageError, match="unknown whether higher or lower values of my-own are better"):
        document_of(found, target="my-own 3")
    with pytest.raises(UsageError, match="no run has the metric wer; they have my-own"):
        document_of(found, target="wer<=3")


def test_the_diagnosis_looks_at_the_metric(runs: list[Run], tmp_path: Path) -> None:
    found = {one.strategy: one for one in diagnose(copy_runs(runs, tmp_path))}
    causes = " ".join(cause.words for cause in found["hogwild"].causes)
    assert "validation perplexity is 30, serial's 10 (one seed)" in causes
    assert "perplexity" not in " ".join(cause.words for cause in found["sync"].causes)


def test_regression_has_a_target_by_its_loss(runs: list[Run], tmp_path: Path) -> None:
    found = copy_runs(runs, tmp_path, name="speed", own_loop=False)
    rows = rows_of(found)
    assert rows[0].metric.name == "loss"
    target = target_of(rows, None)
    assert target is not None
    assert str(target) == "loss 0.55, within a tenth of the best serial loss on the validation samples"
    assert [find_target_times(row, target).seconds for row in rows] == [(2.0,), (0.5,), (1.0,)]
    goal = Goal.parse("loss<=0.3")
    assert not find_target_times(rows[0], Target(metric=goal.metric, value=goal.value, words="")).seconds


def test_metrics_are_exported(runs: list[Run], tmp_path: Path) -> None:
    run = copy_runs(runs, tmp_path, own_loop=False)[0]
    values = [(point.name, point.step, point.value) for point in points(run) if "perplexity" in point.name]
    assert values[:3] == [
        ("validation/perplexity", 12 * n, value) for n, value in enumerate(LATE["serial"], 1)
    ]
    assert values[3][0] == "test/perplexity"


@pytest.mark.parametrize(
    ("text", "name", "higher", "value"),
    [
        ("0.9", "accuracy", True, 0.9), ("98%", "accuracy", True, 0.98), ("accuracy >= 98 %", "accuracy", True, 0.98),
        ("perplexity<=12", "perplexity", False, 12.0), ("perplexity 12", "perplexity", False, 12.0),
        ("loss<0.3", "loss", False, 0.3), ("my metric>=-1e-3", "my metric", True, -1e-3), ("F1=0.5", "F1", True, 0.5),
    ],
)  # fmt: skip
def test_a_goal_is_written_as_one_would_say_it(text: str, name: str, higher: bool, value: float) -> None:
    goal = Goal.parse(text)
    assert (goal.metric, goal.value) == (Metric(name, higher), pytest.approx(value))
    assert Goal.parse(goal.text) == goal


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a target must be a metric and a value"), ("perplexity<=", "a target must be"), ("x>=nan", "a target must be"),
        ("accuracy>=98", "above 0 and at most 1; got 98"), ("accuracy<=0.9", "needs >=, because higher is better"),
        ("loss>=0.9", "needs <=, because lower is better"), ("1.2.3", "a target must be"),
        ("a<=b<=3", "a target must be"),
        ("speed=3", "write speed>=3 or speed<=3"), ("loss<=1e999", "a target must be"),
    ],
)  # fmt: skip
def test_a_bad_goal_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        Goal.parse(text)
    assert "\n" not in str(caught.value)


def test_names_say_which_way_is_better() -> None:
    assert [direction(name) for name in ("val_loss", "WordErrorRate", "top5_acc", "mIoU", "x")] == [
        False, False, True, True, None,
    ]  # fmt: skip


def test_a_study_has_a_target_by_any_metric(tmp_path: Path) -> None:
    part = '[[matrix]]\nstrategy = "sync"\nranks = 2\n'
    path = tmp_path / "study.toml"
    path.write_text(f'target = "perplexity<=12"\n{part}')
    study = study_file.read(path)
    assert study.target == Goal.parse("perplexity<=12")
    (tmp_path / "study.json").write_text(json.dumps(study.as_json()))
    assert context_of([tmp_path]).target == study.target
    for wrong, words in (
        ('target = "fast"', "target: a target must be a metric and a value"),
        ('target = "0.9"\ntarget_accuracy = 0.9', "target and target_accuracy exclude each other"),
    ):
        path.write_text(f"{wrong}\n{part}")
        with pytest.raises(study_file.BadStudyError, match=words):
            study_file.read(path)
