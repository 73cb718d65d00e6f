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


@pytest.mark.parametrize("name", FILES)
def test_passes_whole(conformance: Any, name: str) -> None:
    try:
        tests = conformance.find_tests()
    except conformance.Unavailable as why:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(why))
    score = conformance.run_file(tests, name, 3)
    assert score.failed == ()
    assert score.passed == score.ran > 0


def test_every_file_is_run_or_left_out_with_a_reason(conformance: Any) -> None:
    try:
        tests = conformance.find_tests()
    except conformance.Unavailable as why:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(why))
    known = {name for names in (*conformance.AREAS.values(), *conformance.LEFT_OUT) for name in names.split()}
    assert {file.stem.removeprefix("test_") for file in tests.glob("test_*.py")} == known
