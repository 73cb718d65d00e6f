"""REPORT.md: made by one command, and its figures those that were measured."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.course.programs import COURSE, run_alone, run_each_alone

QUESTIONS = [
    "# Report",
    "## Run times and speedup",
    "## Amdahl or Gustafson?",
    "## Accuracy by workers and masters",
    "## Why the parameter server is split",
    "## Why asynchronous training diverges, and what stops it",
    "## What the two allreduces cost",
]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the words, which stands beside the report."""
    monkeypatch.syspath_prepend(str(COURSE))
    import answers

    yield answers
    for name in ("answers", "figures", "speed", "wording"):
        del sys.modules[name]


def test_a_quick_report(tmp_path: Path) -> None:
    status, lines = run_alone(COURSE / "report.py", "--quick", "--ranks", "2", "--out", str(tmp_path))
    assert status == 0, lines
    assert lines[-1] == str(tmp_path / "REPORT.md")
    text = (tmp_path / "REPORT.md").read_text()
    assert [line for line in text.splitlines() if line.startswith("#")] == QUESTIONS
    assert "In all 16 measured cases" in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["REPORT.md", "measured.json"]
    status, lines = run_alone(COURSE / "report.py", "--again", "--out", str(tmp_path))
    assert (status, (tmp_path / "REPORT.md").read_text()) == (0, text)


def test_what_cannot_be_reported_is_one_sentence() -> None:
    refused = {
        "--ranks 1,2": "argument --ranks: ranks must be at least 2; got 1,2",
        "--ranks 2,x": "argument --ranks: ranks must be at least 2; got 2,x",
        "--quick --ranks 999": r"one of --ranks must be at most \d+, 4 for each core; got 999",
        "--again --out nowhere": "--again needs earlier measurements in nowhere/measured.json: .*No such file.*",
    }
    for words, (status, lines) in run_each_alone(COURSE / "report.py", list(refused)).items():
        assert status == 2, words
        (line,) = lines
        assert re.fullmatch(f"report.py: {refused[words]}", line), line


def test_the_committed_report_is_of_the_committed_figures(answers: Any) -> None:
    measured = json.loads((COURSE / "measured.json").read_text())
    text = answers.answers(measured)
    assert text == (COURSE / "REPORT.md").read_text()
    assert "/home" not in text
    assert measured["settings"] == {"epochs": 5, "batches": 632, "batch": 16}
    ours = [run for run in measured["async"] if run["rule"] == "adaptive"]
    assert max(run["ranks"] - run["masters"] for run in ours) >= 14
    assert min(run["accuracy"] for run in ours) > 0.9  # published: 10.1 % with 6 workers and with 12


def test_the_words_follow_the_figures(answers: Any) -> None:
    """Only what is lost for good is an example of it; what is not there is said; only what grows is said to grow."""
    measured = json.loads((COURSE / "measured.json").read_text())
    for run in measured["async"]:
        if run["rule"] == "plain":
            workers = run["ranks"] - run["masters"]
            run["accuracy"] = 0.1 if workers > 5 else 0.494 if workers == 4 else 0.92
    for run in measured["sync"]:
        run["seconds"] = run["ranks"] * (1 if run["way"] == "sync" else 100 / run["ranks"] ** 3)
    text = " ".join(answers.answers(measured).split())
    assert "Here that happened in every run with 6 workers or more: 10.0 % to 10.0 %" in text
    assert "f grows with p (sync, our ring), or changes without order (sync, MPI's Allreduce)." in text
    assert "asterisk" not in text
    quickest = min(
        (run["seconds"], run["ranks"])
        for run in measured["async"]
        if run["rule"] == "plain" and run["accuracy"] == 0.92
    )
    assert f"on {quickest[1]} ranks took {quickest[0]:.2f} s, " in text
    assert "to 92.0 %, in one run. With more workers that rule fails" in text
    assert "Fewer workers can lose accuracy as well: 49.4 % with 4. " in text
    few = measured | {"machine": measured["machine"] | {"cores": 2}}
    few |= {"sync": [run for run in measured["sync"] if run["ranks"] < 16]}
    few |= {"allreduce": {p: rows for p, rows in measured["allreduce"].items() if p != "16"}}
    text = " ".join(answers.answers(few).split())
    assert "Nothing synchronous was measured on 16 ranks: with more than 4 for each core" in text
    assert "An asterisk marks more ranks than cores" in text
    for run in measured["sync"]:
        run["seconds"] = 0.1
    text = " ".join(answers.answers(measured).split())
    assert "Here that gives more samples a second than one process" in text
    assert "All of them are above 1" not in text


def test_the_figures(answers: Any) -> None:
    """Amdahl's fraction of times made by Amdahl's law, and the formulas."""
    figures = answers.figures
    f = 0.2
    points = [(p, 1 / (f + (1 - f) / p)) for p in (2, 4, 8)]
    assert [figures.serial_fraction(s, p) for p, s in points] == pytest.approx([f] * 3)
    assert figures.fitted_fraction(points) == pytest.approx(f)
    row = {"size": 1000, "kind": "float64"}
    assert figures.formula("naive", 4, row) == (3 * 8000, 12 * 8000)
    assert figures.formula("ring", 4, row) == (12_000, 6 * 8000)
    measured = {"serial": [{"layers": [784, 128, 64, 10]}]}
    assert figures.layer_sizes(measured) == [785, 100_480, 8_256, 650]
    assert figures.owned(measured, 4) == [785, 100_480, 8_256, 650]
    assert figures.owned(measured, 2) == [9_041, 101_130]
