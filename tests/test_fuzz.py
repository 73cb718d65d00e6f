"""A few of the cases of `make fuzz`: damaged files end with their contents or with one line, in every reader."""

from __future__ import annotations

import gc
import importlib.util
import mmap
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    path = Path(__file__).parent.parent / "tools" / "fuzz.py"
    spec = importlib.util.spec_from_file_location("fuzz", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["fuzz"] = importlib.util.module_from_spec(spec)  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


# Cases that once ended otherwise come first.
CASES = {
    "records": (357, 928, 1199, 1981, 2186, 2434, 5715, *range(12)),
    "studies": (649, 1133, *range(12)),
    "machines": (3199, *range(20)),
    "checkpoints": (33, 450, *range(6)),
    "csv": tuple(range(30)),
    "idx": tuple(range(30)),
    "npz": (1466, *range(30)),
    "images": (0, 52, 72, 79, 8081, *range(1, 12)),
}


@pytest.mark.parametrize("reader", CASES)
def test_damaged_files(fuzz: ModuleType, monkeypatch: pytest.MonkeyPatch, reader: str) -> None:
    monkeypatch.setattr(fuzz, "LIMIT", 100.0)  # other tests run at the same time
    found: list[object] = []
    outcomes = fuzz.fuzz(reader, CASES[reader], show=found.append)
    assert found == []
    assert outcomes["refused"] > 0


def test_every_reader_is_tried(fuzz: ModuleType) -> None:
    assert CASES.keys() == fuzz.READERS.keys()


def test_findings_are_found(fuzz: ModuleType, tmp_path: Path) -> None:
    """What a reader must not do is noticed: raise anything else, say several lines, or use memory without end."""
    (tmp_path / "a").write_bytes(b"whole")

    def failing(error: Exception) -> Callable[[str], None]:
        def read(damaged: str) -> None:
            raise error

        return read

    for error, said in (
        (KeyError("x"), "KeyError: 'x'"),
        (fuzz.UsageError("one\ntwo"), "a message of several lines"),
        (fuzz.UsageError("a: there is not enough memory"), "it needed too much memory"),
    ):
        reader = fuzz.Reader(tmp_path, {"a": fuzz.mutate_bytes}, failing(error))
        outcome, finding = fuzz.try_case("a", reader, 0, 0)
        assert outcome == "finding"
        assert said in str(finding)
        assert (tmp_path / "a").read_bytes() == b"whole"

    def use_much(damaged: str) -> None:
        # Not memory that other tests have freed: the process may use that already.
        with mmap.mmap(-1, 200 << 20) as pages:
            pages[:: mmap.PAGESIZE] = b"x" * (len(pages) // mmap.PAGESIZE)

    gc.collect()  # garbage of other tests that is freed meanwhile would make up for some of it
    large = fuzz.Reader(tmp_path, {"a": fuzz.mutate_bytes}, use_much)
    assert "MB" in str(fuzz.try_case("a", large, 0, 0)[1])
