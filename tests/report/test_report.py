from __future__ import annotations

from pathlib import Path

import pytest

from paceline import UsageError
from paceline.compare.rows import Row, problem_of, rows_of
from paceline.compare.verdict import verdict
from paceline.figures import Bars
from paceline.record import Run
from paceline.report import document_of, write_report
from paceline.report.document import Text
from paceline.report.learning import end_quality
from paceline.report.results import cells, columns_of, metrics_of, results
from paceline.text import seconds
from tests.report.conftest import copy_run, on_two_ranks


def test_seeds_are_averaged_and_speedup_is_against_serial(runs: list[Run], tmp_path: Path) -> None:
    serial = [copy_run(run, tmp_path, train_seconds=8.0 + n) for n, run in enumerate(runs)]
    parallel = copy_run(runs[0], tmp_path, strategy="sync", ranks=400, train_seconds=3.0)
    first, second = rows_of([*serial, parallel])
    assert (first.strategy, first.seeds, first.train_seconds, first.speedup) == ("serial", 3, 9.0, 1.0)
    assert first.seconds_range == (8.0, 10.0)
    assert (second.strategy, second.ranks, second.speedup) == ("sync", 400, 3.0)
    assert second.oversubscribed
    assert not first.oversubscribed


@pytest.mark.parametrize(
    "change",
    [
        {"batch": 99},
        {"dtype": "float64"},
        {"batch": None, "batch_per_rank": 10},
        {"batch": None, "batch_per_rank": 10, "lr_scaling": "linear"},
        {"parameters": 5},
        {"samples": 40},
        {"processor": "another"},
        {"data": "iris:test=0"},
    ],
)
def test_problems_are_not_mixed(runs: list[Run], tmp_path: Path, change: dict[str, object]) -> None:
    other = copy_run(runs[0], tmp_path, strategy="sync", train_seconds=1.0, **change)
    serial, parallel = sorted(rows_of([runs[1], other]), key=lambda row: row.strategy)
    assert serial.problem != parallel.problem
    assert str(serial.problem) != str(parallel.problem)
    assert (serial.runs, parallel.runs) == (1, 1)
    assert serial.speedup == 1.0
    assert parallel.speedup is None


def test_titles_tell_problems_apart(runs: list[Run], tmp_path: Path) -> None:
    made = [copy_run(runs[0], tmp_path, lr=lr, batch=batch) for lr, batch in ((1, 10), (100, 10), (100, 20))]
    for some, ends in ((made[:1], [""]), (made[:2], [", lr 1", ", lr 100"]),
                       (made, [", batch 10, lr 1", ", batch 10, lr 100", ", batch 20, lr 100"])):  # fmt: skip
        page = document_of(some)
        expected = [f"iris, mlp:6{end}" for end in ends]
        assert [section.title for section in page.sections[:-1]] == expected
        assert [text.title for text in page.summary] == expected


def test_runs_on_other_threads_have_a_row_of_their_own(runs: list[Run], tmp_path: Path) -> None:
    one = copy_run(runs[0], tmp_path, threads=1, train_seconds=4.0)
    two = copy_run(runs[0], tmp_path, threads=2, train_seconds=3.0)
    sync = copy_run(runs[0], tmp_path, strategy="sync", ranks=2, threads=1, train_seconds=2.0)
    assert [(r.strategy, r.threads, r.speedup) for r in rows_of([sync, two, one])] == [
        ("serial", 1, 1.0),  # what others are measured against
        ("serial", 2, 4 / 3),
        ("sync", 1, 2.0),
    ]
    assert [row.against_threads for row in rows_of([sync, two, one])] == [0.75, 1.0, 1.5]
    assert rows_of([sync, one])[1].against_threads is None
    slow = copy_run(runs[0], tmp_path, threads=2, train_seconds=40.0)
    assert [row.against_threads for row in rows_of([sync, slow, one])] == [
        None
    ] * 3  # 20 times would look like a success


def test_threads_are_beside_the_name_where_rows_differ_in_them_only(runs: list[Run], tmp_path: Path) -> None:
    one = copy_run(runs[0], tmp_path, threads=1, train_seconds=4.0)
    two = copy_run(runs[0], tmp_path, threads=2, train_seconds=3.0)
    sync = copy_run(runs[0], tmp_path, strategy="sync", ranks=2, threads=1, train_seconds=2.0)
    first = ("strategy", "ranks", "threads", "time (s)", "speedup", "against all threads")
    found = results(rows_of([sync, two, one]), (), 1)
    assert tuple(column.name for column in found.columns)[:6] == first
    assert [row[:4] for row in found.rows] == [
        ("serial", 1, 1, 4.0),
        ("serial", 1, 2, 3.0),
        ("sync", 2, 1, 2.0),
    ]
    found = results(rows_of([sync, two]), (), 1)
    assert [column.name for column in found.columns].index("threads") > 4


def test_runs_are_counted_and_their_samples_added_up(runs: list[Run], tmp_path: Path) -> None:
    fast = copy_run(runs[0], tmp_path, train_seconds=1.0, samples_per_second=300.0)
    slow = copy_run(runs[0], tmp_path, train_seconds=3.0, samples_per_second=100.0)
    [row] = rows_of([fast, slow])
    assert (row.runs, row.seeds, row.train_seconds, row.samples_per_second) == (2, 1, 2.0, 150.0)
    told = dict(
        zip([column.name for column in columns_of([row])], cells(row, metrics_of([row])), strict=True)
    )
    assert (told["runs"], told["seeds"]) == (2, 1)


def test_one_of_something_is_spelled_so(runs: list[Run], tmp_path: Path) -> None:
    assert ", 1 epoch, " in str(problem_of(runs[0]))
    other = copy_run(runs[0], tmp_path, epochs=2, draws=3)
    assert ", 2 epochs of 3 random batches, " in str(problem_of(other))


def test_the_page_shows_the_figures_of_the_records(runs: list[Run], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    write_report(runs, page)
    text = page.read_text()
    row = rows_of(runs)[0]
    assert row.accuracy is not None
    assert f">{100 * row.accuracy:.2f}\xa0% <small>" in text
    assert f">{seconds(row.train_seconds)} <small>" in text
    assert "src=" not in text
    assert "http" not in text  # one file, that needs no other


def drawn(rows: list[Row]) -> Bars | Text:
    """The accuracies of some rows, as a figure or in a sentence."""
    section = end_quality(rows, 1)
    assert section is not None
    (block,) = section.blocks
    assert isinstance(block, Bars | Text)
    return block


def test_accuracies_that_do_not_differ_are_not_drawn(runs: list[Run], tmp_path: Path) -> None:
    one = copy_run(runs[0], tmp_path, test_accuracy=0.93)
    same, other, perfect = (
        copy_run(runs[0], tmp_path, test_accuracy=value, strategy="sync") for value in (0.9305, 0.9, 1.0)
    )
    assert drawn(rows_of([one, same])) == Text(
        lines=("Test accuracy is the same for all rows, to a tenth of a point: from 93.00 % to 93.05 %.",)
    )
    apart = drawn(rows_of([one, other]))
    assert isinstance(apart, Bars)
    assert apart.dots
    assert apart.x.bounds == pytest.approx((0.897, 0.933))
    assert [bar.parts for bar in apart.bars] == [(0.93,), (0.9,)]
    assert drawn(rows_of([one, perfect])).x.bounds == pytest.approx((0.923, 1.0))  # type: ignore[union-attr]
    assert end_quality(rows_of([copy_run(runs[0], tmp_path, test_accuracy=None)]), 1) is None


@pytest.mark.parametrize(
    ("tried", "said"),
    [
        ({"serial": 2.0}, "serial, 1 rank, in 2.00 s; there is nothing to compare it with."),
        (
            {"sync": 2.0},
            "sync, 2 ranks, in 2.00 s is the fastest; there is no serial run to compare it with.",
        ),
        (
            {"serial": 2.0, "sync": 4.0, "sync:balance=true": 5.0},
            "Nothing was faster than serial; closest was sync, 2 ranks, in 4.00 s, at 0.50 times its speed.",
        ),
        (
            {"serial": 3.0, "sync": 2.0},
            "sync, 2 ranks, in 2.00 s, is 1.50 times as fast as serial; test accuracy 90.00 %, serial 90.00 %.",
        ),
    ],
)
def test_what_was_bought_in_words(
    runs: list[Run], tmp_path: Path, tried: dict[str, float], said: str
) -> None:
    made = on_two_ranks(runs, tmp_path, *((name, took, 0.9) for name, took in tried.items()))
    assert verdict(rows_of(made)) == (said,)


def test_the_page_opens_with_an_item_for_each_problem(runs: list[Run], tmp_path: Path) -> None:
    page = document_of([*runs, copy_run(runs[0], tmp_path, batch=99)])
    assert [text.kind for text in page.summary] == ["verdict", "verdict"]
    assert len(page.sections) == 3
    assert "1.00 times" not in str(page.summary)


def test_a_folder_that_is_not_there_is_not_made(runs: list[Run], tmp_path: Path) -> None:
    page = tmp_path / "typo" / "page.html"
    with pytest.raises(UsageError, match=r"cannot write .*/page.html: there is no folder .*/typo$"):
        write_report(runs, page)
    assert not page.parent.exists()


def test_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no complete runs"):
        write_report([], tmp_path / "page.html")
