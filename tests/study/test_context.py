"""A study's notes that were cut off or edited: what is wrong is said in one line each, and the rest is believed."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from paceline.study.folder import Context, Published, context_of

GOOD = {"strategy": "sync", "ranks": 2, "seconds": 1.5}
WHOLE: dict[str, Any] = {"title": "t", "question": "q?", "target_accuracy": 0.9, "published": [GOOD]}
SHARE = "target_accuracy must be a fraction above 0 and at most 1; got"


def read(folder: Path, caplog: pytest.LogCaptureFixture) -> tuple[Context, list[str]]:
    with caplog.at_level(logging.WARNING):
        context = context_of([folder])
    assert list(context.left_out) == [r.getMessage().removeprefix("left out: ") for r in caplog.records]
    return context, list(context.left_out)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("title", 5, "title must be a string; got 5"),
        ("question", ["q"], "question must be a string; got ['q']"),
        ("target_accuracy", "x", f"{SHARE} 'x'"),
        ("target_accuracy", 95, f"{SHARE} 95"),
        ("target_accuracy", 0, f"{SHARE} 0"),
        ("target_accuracy", True, f"{SHARE} True"),
        ("published", 5, "published must be a list of objects; got 5"),
        ("published", {"strategy": "sync"}, "published must be a list of objects; got {'strategy': 'sync'}"),
        ("published", [GOOD, 7], "published 2: it must be an object; got 7"),
        ("published", [{"seconds": 1.0}, GOOD], "published 1: strategy is missing"),
        ("published", [GOOD | {"ranks": "2"}, GOOD], "published 1: ranks must be a whole number; got '2'"),
        ("published", [GOOD | {"seconds": "x"}, GOOD], "published 1: seconds must be a number from 0; got 'x'"),
        ("published", [GOOD | {"accuracy": 97}, GOOD], "published 1: accuracy must be a fraction from 0 to 1; got 97"),
        ("published", [GOOD | {"of": 3}, GOOD], "published 1: of must be test or training; got 3"),
        ("published", [GOOD | {"source": []}, GOOD], "published 1: source must be a string; got []"),
        ("published", [GOOD | {"problem": "iris"}, GOOD], "published 1: problem must be an object; got 'iris'"),
    ],
)  # fmt: skip
def test_a_broken_study_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, value: object, said: str
) -> None:
    file = tmp_path / "study.json"
    file.write_text(json.dumps({**WHOLE, name: value}))
    context, left_out = read(tmp_path, caplog)
    assert left_out == [f"{file}: {said}"]
    believed = {"title": context.title, "question": context.question}
    believed["target_accuracy"] = context.target and context.target.value
    assert believed == {key: None if key == name else WHOLE[key] for key in believed}
    some = not isinstance(value, list) or GOOD in value
    figure = Published(strategy="sync", ranks=2, seconds=1.5)
    assert context.published == ((figure,) if name != "published" or (some and said[10] in "12") else ())


def test_a_whole_study_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nothing = dict.fromkeys(("accuracy", "of", "what", "source", "setting", "part", "problem"))
    (tmp_path / "study.json").write_text(json.dumps({**WHOLE, "published": [GOOD | nothing]}))
    context, left_out = read(tmp_path, caplog)
    assert left_out == []
    assert context.published == (Published(strategy="sync", ranks=2, seconds=1.5),)  # null is not said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", " is not JSON: expecting property name"),
        ("[]", " is damaged: it is not an object"),
        ('{"settings": {}, "why": NaN}', " is not JSON: the number NaN is not finite"),
        ("[" * 200_000, " is not JSON: it is nested more than 100 deep"),
        ('{"why": "w"}', ": settings is missing"),
        ('{"settings": 5}', ": settings must be an object; got 5"),
        ('{"settings": {"ranks": "2"}}', ": ranks must be a whole number of at least 1; got '2'"),
        ('{"settings": {"strategy": 2}}', ": strategy must be a string; got 2"),
        ('{"settings": {}, "why": 3}', ": why must be a string; got 3"),
        ('{"settings": {}, "status": "x"}', ": status must be a whole number; got 'x'"),
    ],
)
def test_a_broken_note_of_a_failed_cell(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, said: str
) -> None:
    (tmp_path / "failed").mkdir()
    (tmp_path / "failed/a.json").write_text(text)
    (tmp_path / "failed/b.json").write_text('{"settings": {"ranks": 2}, "why": "w", "status": -9}')
    context, (line,) = read(tmp_path, caplog)
    assert line.startswith(f"{tmp_path / 'failed/a.json'}{said}")
    assert [cell.why for cell in context.failed] == ["w"]
