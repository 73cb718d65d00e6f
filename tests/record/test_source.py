"""Versions of a user's own code are distinguished by a digest: in records, rows, the diagnosis and studies."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Any

import pytest

from paceline import fit
from paceline.compare.rows import problem_of, rows_of, titles_of
from paceline.diagnosis import diagnose
from paceline.record import Run, code_digest, find_runs
from paceline.study.cells import Cell, read_request

STRATEGY = """
from dataclasses import dataclass
from paceline.strategies.serial import Serial
from own_helper import NUMBER

@dataclass(frozen=True, kw_only=True)
class Mine(Serial):
    '''Serial training under another name.'''

def net(data, seed=0, dtype="float32"):
    from paceline.models.mlp import build
    return build(data, 4 + NUMBER, seed=seed, dtype=dtype)
"""


@pytest.fixture
def edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Write a user's module, as if in a new process."""
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    (tmp_path / "code").mkdir()

    def write(name: str, text: str) -> None:
        (tmp_path / "code" / f"{name}.py").write_text(text)
        for module in ("own_code", "own_helper"):
            sys.modules.pop(module, None)
        importlib.invalidate_caches()

    write("own_helper", "NUMBER = 0\n")
    write("own_code", STRATEGY)
    return write


def train_run(folder: Path, **settings: Any) -> Run:
    one: dict[str, Any] = {
        "model": "mlp:4",
        "data": "iris",
        "epochs": 1,
        "batch": 10,
        "quiet": True,
        "threads": 1,
    }
    fitted = fit(**one | settings, runs=folder)
    assert fitted.run is not None
    return Run(fitted.run)


def test_a_digest_changes_with_the_code_and_what_it_imports(edit: Callable[[str, str], None]) -> None:
    def digest() -> str | None:
        return code_digest(importlib.import_module("own_code").Mine)

    first = digest()
    assert first is not None
    assert len(first) == 64
    edit("own_code", STRATEGY)
    assert digest() == first
    edit("own_code", STRATEGY + "# changed\n")
    assert digest() not in (first, None)
    edit("own_code", STRATEGY)
    edit("own_helper", "NUMBER = 1\n")
    assert digest() not in (first, None)


def test_runs_from_before_and_after_an_edit_are_two_rows(
    tmp_path: Path, edit: Callable[[str, str], None]
) -> None:
    runs = tmp_path / "runs"
    train_run(runs, strategy="serial")
    before = train_run(runs, strategy="own_code:Mine")
    assert set(before.config["code"]) == {"strategy"}
    assert [row.strategy for row in rows_of(find_runs([runs]))] == ["serial", "own_code:Mine"]
    edit("own_code", STRATEGY + "# changed\n")
    after = train_run(runs, strategy="own_code:Mine")
    names = [f"own_code:Mine (code {run.config['code']['strategy'][:8]})" for run in (before, after)]
    assert sorted(row.strategy for row in rows_of(find_runs([runs])))[:2] == sorted(names)
    assert sorted(found.strategy for found in diagnose(find_runs([runs]))) == sorted(names)
    after.config.pop("code")  # as an old record
    assert sorted(row.strategy for row in rows_of([before, after])) == sorted(
        [names[0], "own_code:Mine (code unknown)"]
    )


def test_other_code_of_a_model_is_another_problem(tmp_path: Path, edit: Callable[[str, str], None]) -> None:
    runs = [train_run(tmp_path, strategy="serial", model="own_code:net") for _ in range(2)]
    assert len({problem_of(run) for run in runs}) == 1
    edit("own_helper", "NUMBER = 0  # and no more\n")
    runs.append(train_run(tmp_path, strategy="serial", model="own_code:net"))
    problems = {problem_of(run) for run in runs}
    assert len(problems) == 2
    assert sorted(titles_of(problems).values()) == sorted(
        f"iris, own_code:net, model code {run.config['code']['model'][:8]}" for run in runs[1:]
    )


def test_built_in_things_have_no_digest(tmp_path: Path) -> None:
    assert train_run(tmp_path, strategy="serial").config["code"] == {}


def test_a_study_runs_a_cell_again_when_its_code_has_changed(
    tmp_path: Path, edit: Callable[[str, str], None]
) -> None:
    run = train_run(tmp_path, strategy="own_code:Mine")

    def cell() -> Cell:
        from paceline.config import Config

        return Cell(
            config=Config(
                strategy="own_code:Mine", data="iris", model="mlp:4", epochs=1, batch=10, threads=1
            ),
            ranks=1,
        )

    assert cell().key == read_request(run.config)
    edit("own_code", STRATEGY + "# changed\n")
    assert cell().key != read_request(run.config)
    run.config.pop("code")
    assert cell().key != read_request(run.config)  # it is not known what ran


def test_a_users_own_rule_is_part_of_the_strategy(tmp_path: Path, edit: Callable[[str, str], None]) -> None:
    from paceline.config import Config
    from paceline.training.job import Job

    rule = (
        "from paceline.strategies.parameter_server.rules.plain import Plain\n\nclass Own(Plain):\n    pass\n"
    )
    edit("own_code", rule)
    config = Config(strategy="parameter-server:rule=own_code:Own", data="iris")
    first = Job(config=config).code()
    assert set(first) == {"strategy"}
    edit("own_code", rule + "# changed\n")
    assert Job(config=config).code() != first


def test_the_standard_library_is_no_code_of_the_user() -> None:
    class Plain:
        pass

    class Abstract(Sized):
        pass

    assert code_digest(Abstract) == code_digest(Plain)
