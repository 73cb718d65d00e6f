"""The course's commands, as they are typed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.course.programs import COURSE, run_alone, run_each_alone, run_on_ranks

MAIN, TEST = COURSE / "main.py", COURSE / "allreduce_test.py"
SMALL = ("--images", "400", "--batches", "12", "--epochs", "2")
EPOCH = r"epoch \d: \d+\.\d\d % of the validation images"
RESULT = r"(serial|sync|async): \d+\.\d\d s, \d+\.\d\d % of the test images"


def expect(lines: list[str], *patterns: str) -> None:
    assert len(lines) == len(patterns), lines
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(pattern, line), (line, pattern)


def test_serial() -> None:
    status, lines = run_alone(
        MAIN, "serial", "--images", "2000", "--batches", "300", "--epochs", "2", "--seed", "1"
    )
    assert status == 0
    expect(lines, EPOCH, EPOCH, RESULT)
    assert float(lines[-1].split()[3]) > 50  # it learns; guessing is 10 %


def test_sync() -> None:
    status, lines = run_on_ranks(2, MAIN, "sync", *SMALL)
    assert status == 0, lines
    expect(lines, EPOCH, EPOCH, RESULT)


def test_sync_with_mpis_allreduce() -> None:
    status, lines = run_on_ranks(2, MAIN, "sync", "--collective", *SMALL)
    assert status == 0, lines
    expect(lines, EPOCH, EPOCH, RESULT)


@pytest.mark.parametrize(("ranks", "masters"), [(2, 1), (5, 2)])
def test_async(ranks: int, masters: int) -> None:
    status, lines = run_on_ranks(ranks, MAIN, "async", str(masters), *SMALL)
    assert status == 0, lines
    expect(lines, EPOCH, EPOCH, RESULT, r"staleness: \d+\.\d updates on average, at most \d+")


def test_allreduce_test() -> None:
    status, lines = run_on_ranks(4, TEST, "--sizes", "12-13")
    assert status == 0, lines
    assert len(lines) == 2 + 4 * 2
    for line in lines[2:]:
        naive, naive_formula, ring, ring_formula = re.findall(
            r"([\d,]+) / ([\d,]+) +([\d,]+) / ([\d,]+)", line
        )[0]
        assert (naive, ring) == (naive_formula, ring_formula)


@pytest.mark.parametrize(
    ("ranks", "words", "sentence"),
    [
        (2, "async 2", "2 masters and 0 workers cannot train: use at least 3 ranks, not 2"),
        (2, "async 5", "masters must be from 1 to 4, the layers of the network (each owns at least one); got 5"),
        (2, "sync --batch 1", "each rank takes mini_batch_size // ranks samples of a batch, and 1 // 2 is 0; use at most 1 "
            "ranks, or a larger batch"),
        (2, "serial", "serial runs on one process; the job has 2 ranks"),
        (3, "async 1 --batch 30", "every worker draws batches of 30 from samples of its own; 2 of them need 60 samples to "
            "train with; got 50"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_one_sentence(ranks: int, words: str, sentence: str) -> None:
    more = ("--images", "50") if "--batch" in words or words.startswith("async ") else ()
    assert run_on_ranks(ranks, MAIN, *words.split(), *more) == (2, [f"main.py: {sentence}"])


def test_what_cannot_work_on_one_process_is_one_sentence() -> None:
    no_number = "async needs the number of masters, and only async takes it: main.py async M"
    refused = {
        "async": no_number,
        "sync 2": no_number,
        "sync --rule plain": "--rule is for async; got sync",
        "async 1 --collective": "--collective is for sync; got async",
        "async 0": "argument M: must be a whole number of at least 1; got 0",
        "sync --epochs x": "argument --epochs: must be a whole number of at least 1; got x",
        "serial --rate -1": "argument --rate: must be a number above 0; got -1",
        "serial --rate nan": "argument --rate: must be a number above 0; got nan",
        "serial --seed 4294967296": "argument --seed: must be a whole number from 0 to 2147483647; got 4294967296",
        "async 1 --images 50": "1 master and 0 workers cannot train: use at least 2 ranks, not 1",
    }
    found = run_each_alone(MAIN, list(refused))
    assert found == {words: (2, [f"main.py: {sentence}"]) for words, sentence in refused.items()}


def test_rank_0_is_heard_however_late_it_comes(tmp_path: Path) -> None:
    program = tmp_path / "main.py"
    program.write_text(
        f"import sys, time\nsys.path.insert(0, {str(COURSE)!r})\nfrom arguments import Parser\n"
        "from paceline.launch import world\ntime.sleep(1.0 if world().rank == 0 else 0)\nParser('').error('no')\n"
    )
    assert run_on_ranks(2, program) == (2, ["main.py: no"])


def test_sizes_that_are_none() -> None:
    said = "allreduce_test.py: argument --sizes: must be A-B with A <= B <= 30; got "
    assert run_on_ranks(2, TEST, "--sizes", "x") == (2, [f"{said}x"])
    for words, found in run_each_alone(TEST, ["--sizes 5-3", "--sizes 12-99"]).items():
        assert found == (2, [said + words.split()[1]])
