"""mpi4py's own tests on virtual ranks: some files of what `make conformance` runs whole."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# Files that take a second or two; the others are run by `make conformance`.
FILES = [
    "buffer",
    "comm",
    "comm_inter",
    "comm_topo",
    "group",
    "op",
    "p2p_obj_matched",
    "request",
    "status",
    "ulfm",
    "win",
]


@pytest.fixture(scope="module")
def conformance() -> Any:
    spec = importlib.util.spec_from_file_location("conformance", ROOT / "tools" / "conformance.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["conformance"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tests(conformance: Any) -> Path:
    try:
        found: Path = conformance.find_tests()
    except conformance.Unavailable as why:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(why))
    return found


@pytest.mark.parametrize("name", FILES)
def test_every_test_of_the_file_passes(conformance: Any, tests: Path, name: str) -> None:
    score = conformance.run_file(tests, name, 3)
    assert score.failed == ()
    assert score.passed == score.ran > 0


def test_every_file_is_run_or_left_out_with_a_reason(conformance: Any, tests: Path) -> None:
    known = {name for names in (*conformance.AREAS.values(), *conformance.LEFT_OUT) for name in names.split()}
    assert {file.stem.removeprefix("test_") for file in tests.glob("test_*.py")} == known


def test_a_file_beyond_its_limit_is_not_finished(conformance: Any, tests: Path) -> None:
    score = conformance.run_file(tests, "status", 2, limit=0.01)
    assert (score.finished, score.passed, score.ran) == (False, 0, 0)


@pytest.mark.parametrize(
    ("score", "status", "last"),
    [
        ((10, 10), 0, "total: 20 of 20 passed (100.00%), 0 files not finished"),
        ((9, 10, ("TestOp.testIt",)), 1, "total: 18 of 20 passed (90.00%), 0 files not finished"),
        ((0, 0, (), 1.0, False), 1, "total: 0 of 0 passed (0.00%), 2 files not finished"),
    ],
)
def test_one_line_at_the_end_says_passed_of_all(
    conformance: Any, score: tuple[Any, ...], status: int, last: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(conformance, "find_tests", Path)
    monkeypatch.setattr(conformance, "run_file", lambda *_: conformance.Score(*score))
    assert conformance.main(["op", "--ranks", "3", "2", "-j", "2"]) == status
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith(last)
    assert lines[1].split() == ["file", "2", "3"]
    assert ("unfinished" in lines[2]) == (score[1] == 0)
    assert ("  op on 3: TestOp.testIt" in lines) == (len(score) == 3)


def test_refuses_unknown_files_and_numbers(conformance: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["p2p"], ["op", "--ranks", "0"], ["op", "-j", "x"]):
        with pytest.raises(SystemExit) as ended:
            conformance.main(wrong)
        assert ended.value.code == 2
    assert "unknown test file 'p2p'; choose from p2p_buf" in capsys.readouterr().err
