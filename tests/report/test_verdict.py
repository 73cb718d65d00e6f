"""What a report may not say of a speedup: that one rank has one, that noise is one, that larger batches are."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.compare.rows import Row, label, rows_of
from paceline.compare.verdict import best, notes, verdict
from paceline.diagnosis import diagnose
from paceline.record import Run
from paceline.report import document_of
from paceline.report.document import Document, Table, Text
from paceline.report.results import ALONE, results
from paceline.report.series import series_of
from tests.report.conftest import copy_run, make_runs


def said(page: Document) -> tuple[str, ...]:
    return tuple(line for text in page.summary for line in text.lines)


def costs(page: Document) -> tuple[str, ...]:
    (section,) = [one for one in page.sections[0].sections if one.title == "What each strategy costs"]
    (listed,) = section.blocks
    assert isinstance(listed, Text)
    return listed.lines


# ---- one rank


def test_one_rank_never_wins(runs: list[Run], tmp_path: Path) -> None:
    ways = [("serial", 1, 4.0, 0.95), ("sync", 1, 1.0, 0.95), ("psgd", 1, 1.0, 0.95), ("sync", 2, 3.0, 0.95)]
    page = document_of(make_runs(runs, tmp_path, *ways), target=0.9)
    verdict, first = said(page)
    assert verdict.startswith("sync, 2 ranks, in 3.00 s, is 1.33 times as fast as serial; ")
    assert first.endswith(": sync, 2 ranks, in 3.00 s; serial took 4.00 s.")
    assert [line.partition(":")[0] for line in costs(page)] == ["psgd, 1 rank", "sync, 2 ranks"]
    results = next(block for block in page.blocks() if isinstance(block, Table))
    marks = {row[:2]: mark for row, mark in zip(results.rows, results.marks, strict=True)}
    assert [way for way, mark in marks.items() if mark == "best"] == [("sync", 2)]
    assert len(marks) == len(ways)  # the table has all
    assert ALONE in results.caption
    several = document_of(make_runs(runs, tmp_path, ways[0], ways[-1]))
    assert not any(ALONE in block.caption for block in several.blocks() if isinstance(block, Table))


def test_serial_wins_where_more_ranks_are_slower(runs: list[Run], tmp_path: Path) -> None:
    ways = [("serial", 1, 4.0, 0.95), ("sync", 1, 1.0, 0.95), ("sync", 2, 8.0, 0.95)]
    rows = rows_of(make_runs(runs, tmp_path, *ways))
    fastest = best(rows)
    assert fastest is not None
    assert fastest.strategy == "serial"
    assert verdict(rows)[0].startswith("Nothing was faster than serial; closest was sync, 2 ranks, in 8.00 s")


def test_nothing_but_one_rank(runs: list[Run], tmp_path: Path) -> None:
    page = document_of(make_runs(runs, tmp_path, ("sync", 1, 2.0, 0.95), ("psgd", 1, 1.0, 0.94)), target=0.9)
    assert said(page) == ("sync, 1 rank, in 2.00 s; nothing was tried on more than one rank.",)
    assert not any(mark for block in page.blocks() if isinstance(block, Table) for mark in block.marks)
    assert len(costs(page)) == 2
    page = document_of(
        make_runs(runs, tmp_path, ("serial", 1, 3.0, 0.95), ("psgd", 1, 1.0, 0.95)), target=0.9
    )
    assert said(page)[0] == "serial, 1 rank, in 3.00 s; nothing was tried on more than one rank."
    assert said(page)[1].endswith(": serial, 1 rank, in 3.00 s.")


def test_who_reached_the_target_in_some_runs_is_not_said_to_have_missed_it(
    runs: list[Run], tmp_path: Path
) -> None:
    ways = [
        ("serial", 1, 4.0, 0.95),
        ("hogwild", 2, 2.0, 0.95),
        ("hogwild", 2, 2.5, 0.5, 1),
        ("psgd", 2, 1.0, 0.5),
    ]
    page = document_of(make_runs(runs, tmp_path, *ways), target=0.9)
    assert said(page)[1].endswith(
        ": serial, 1 rank, in 4.00 s; not reached by psgd; not in every run by hogwild."
    )


def test_who_reached_the_target_on_one_rank_alone(runs: list[Run], tmp_path: Path) -> None:
    ways = [("serial", 1, 4.0, 0.95), ("psgd", 1, 1.0, 0.95), ("psgd", 2, 2.0, 0.5)]
    page = document_of(make_runs(runs, tmp_path, *ways), target=0.9)
    assert said(page)[1].endswith(": serial, 1 rank, in 4.00 s; not reached by psgd on more than one rank.")
    page = document_of(make_runs(runs, tmp_path, *ways[1:]), target=0.9)
    assert said(page)[1] == (
        "Nothing on more than one rank reached the target of 90.00 %, as asked for; closest was psgd, 2 ranks, 50.00 %."
    )


def test_what_is_lost_is_said_of_the_fastest_row_with_more_ranks(runs: list[Run], tmp_path: Path) -> None:
    ways = [("serial", 1, 8.0, 0.95), ("psgd", 1, 7.0, 0.95), ("psgd", 2, 4.0, 0.9), ("psgd", 4, 2.0, 0.89),
            ("psgd", 8, 1.0, 0.3)]  # fmt: skip
    (line,) = costs(document_of(make_runs(runs, tmp_path, *ways)))
    assert line.startswith("psgd, 4 ranks: 2.00 s (4.00 times as fast as serial), ")
    assert "6.0 points of accuracy lost" in line


# ---- spread


@pytest.mark.parametrize(
    ("serial", "sync", "noise"),
    [
        ([4.0, 5.0], [2.0, 4.5], True),
        ([4.0, 5.0], [2.0, 3.9], True),  # two runs each, and a wide spread
        ([4.0, 4.1], [2.0, 2.1], False),
        ([4.0, 5.0], [4.2], True),
        ([4.0, 4.01], [2.0], False),  # the spread of serial is taken for the other one, too
        ([4.0], [2.0], False),
        ([4.0], [4.0], False),  # nothing is known of the noise
        ([4.0, 5.0], [4.9, 6.0], True),
        ([4.0, 4.1], [5.1, 5.2], False),
    ],
)
def test_times_within_the_noise(
    runs: list[Run], tmp_path: Path, serial: list[float], sync: list[float], noise: bool
) -> None:
    ways = [*(("serial", 1, took, 0.9) for took in serial), *(("sync", 2, took, 0.9) for took in sync)]
    (line,) = verdict(rows_of(make_runs(runs, tmp_path, *ways)))
    assert ("(the difference is within the noise)" in line) == noise
    assert ("closest was" in line) == (sum(sync) / len(sync) >= sum(serial) / len(serial))


# ---- serial rows


def with_threads(run: Run, folder: Path, *ways: tuple[str, int, int, float, float]) -> list[Run]:
    """Runs, each a strategy, ranks, threads, seconds and an accuracy."""
    folder.mkdir()
    return [
        copy_run(
            run,
            folder,
            strategy=name,
            ranks=ranks,
            threads=threads,
            train_seconds=took,
            test_accuracy=got,
            cores=4,
        )
        for name, ranks, threads, took, got in ways
    ]


def test_threads_of_one_process_are_compared(runs: list[Run], tmp_path: Path) -> None:
    alone, sync = ("serial", 1, 1, 4.0, 0.9), ("sync", 2, 1, 2.0, 0.9)
    for took, gain in ((2.0, "2.00"), (8.0, "0.50")):
        ways = [alone, ("serial", 1, 4, took, 0.9)]
        (line,) = verdict(rows_of(with_threads(runs[0], tmp_path / f"{took}", *ways)))
        words = f"one process with 4 threads runs at {gain} times its speed with 1 ({took:.2f} s instead of 4.00 s)"
        assert f"{words}; nothing was tried on more than one rank." in line
        (line,) = verdict(rows_of(with_threads(runs[0], tmp_path / f"ranks {took}", *ways, sync)))
        assert (words in line) == (
            gain == "0.50"
        )  # the sentence has compared the ranks with all threads otherwise
        assert "thread" in line


def test_one_process_with_a_rule_is_compared_with_serial(runs: list[Run], tmp_path: Path) -> None:
    ways = [("serial", 1, 3.0, 0.93), ("serial:rule=adaptive", 1, 4.5, 0.98)]
    first, *more = verdict(rows_of(make_runs(runs, tmp_path, *ways)))
    assert first == (
        "The optimizer differs: serial:rule=adaptive, 1 rank, makes its steps by the rule adaptive and ends at 98.00 %, in "
        "1.50 times the time of serial; the update of the others is sgd, with which serial ends at 93.00 %. Each is "
        "compared with serial under its own optimizer."
    )
    assert not more


# ---- batches


def test_a_batch_that_grows_with_the_ranks_is_said(runs: list[Run], tmp_path: Path) -> None:
    common = {"cores": 16, "threads": 1, "test_accuracy": 0.9, "batch": None, "batch_per_rank": 4}
    ways = [("serial", 1, 4), ("main-worker", 2, 8), ("main-worker", 8, 32), ("psgd", 8, 4), ("sync", 8, 32)]
    rows = rows_of([
        copy_run(runs[0], tmp_path, strategy=name, ranks=ranks, global_batch=batch, train_seconds=20 / ranks, **common)
        for name, ranks, batch in ways
    ])  # fmt: skip
    assert notes(rows) == [
        "main-worker; sync: their batch grows with the ranks, to 32 samples at 8; larger batches take less time per sample "
        "on one process too, so the speedup is not due to the ranks alone"
    ]
    assert verdict(rows)[0].startswith(
        "main-worker, 8 ranks, in 2.50 s, is 8.00 times as fast as serial (with batches of 32, serial's are 4); "
    )
    alike = [row for row in rows if row.batch == 4]
    assert notes(alike) == []
    assert "batches" not in verdict(alike)[0]
    assert notes(rows[1:]) == []  # nobody to compare with


# ---- what runs say of themselves


@pytest.mark.parametrize(("count", "folded"), [(4, False), (5, True)])
def test_many_remarks_are_folded(runs: list[Run], tmp_path: Path, count: int, folded: bool) -> None:
    found = [
        copy_run(
            runs[0], tmp_path, strategy="psgd", ranks=ranks, cores=16, threads=1, remarks=[f"{ranks} parts"]
        )
        for ranks in range(2, 2 + count)
    ]
    (block,) = [
        b for b in document_of(found).blocks() if isinstance(b, Text) and any(" parts" in x for x in b.lines)
    ]
    assert (len(block.lines), block.folded) == (count, folded)
    assert block.title == (f"Remarks in the records ({count})" if folded else "")


# ---- optimizers

SERVER = ("parameter-server:masters=1", 2, 2.0, 0.98)
FIRST = (
    "The optimizer differs: parameter-server:masters=1 makes its steps by the rule adaptive; {}the update of the others is "
    "sgd, with which serial ends at 93.00 %. "
)


def test_a_rule_s_accuracy_is_not_the_server_s(runs: list[Run], tmp_path: Path) -> None:
    """One worker, whose gradients are never stale: what is gained is the rule's doing."""
    ways = [("serial", 1, 3.0, 0.93), ("serial:rule=adaptive", 1, 4.0, 0.98), SERVER, ("sync", 2, 1.5, 0.93)]
    page = document_of(make_runs(runs, tmp_path, *ways))
    beside = (
        "serial:rule=adaptive, 1 rank, applies that rule without staleness and ends at 98.00 %, in 1.33 times the time of "
        "serial; "
    )
    assert said(page)[:3] == (
        FIRST.format(beside) + "Each is compared with serial under its own optimizer.",
        "With sgd, sync, 2 ranks, in 1.50 s, is 2.00 times as fast as serial; test accuracy 93.00 %, serial 93.00 %.",
        "With adaptive, parameter-server:masters=1, 2 ranks, in 2.00 s, is 2.00 times as fast as serial:rule=adaptive; "
        "test accuracy 98.00 %, serial:rule=adaptive 98.00 %.",
    )
    assert [line.partition(", 93")[0] for line in costs(page)] == [
        "parameter-server:masters=1, 2 ranks: 2.00 s (2.00 times as fast as serial:rule=adaptive), nothing sent, same "
        "accuracy as serial:rule=adaptive, 92.00 % after 2.00 s",
        "sync, 2 ranks: 1.50 s (2.00 times as fast as serial), nothing sent, same accuracy as serial, 92.00 % after 1.50 "
        "s",
    ]


def test_without_serial_under_the_rule_the_first_line_warns(runs: list[Run], tmp_path: Path) -> None:
    page = document_of(make_runs(runs, tmp_path, ("serial", 1, 3.0, 0.93), SERVER))
    assert said(page)[0] == FIRST.format("") + (
        "There is no run of serial:rule=adaptive: differences in accuracy may be due to the rule, not to the strategy."
    )
    assert said(page)[1].startswith(
        "With adaptive, parameter-server:masters=1, 2 ranks, in 2.00 s, is 1.50 times as fast"
    )
    (line,) = costs(page)
    assert "5.0 points of accuracy gained compared with serial, whose optimizer is another" in line


def test_a_server_that_loses_what_its_rule_gains_is_not_praised(runs: list[Run], tmp_path: Path) -> None:
    ways = [
        ("serial", 1, 3.0, 0.93),
        ("serial:rule=adaptive", 1, 4.0, 0.98),
        ("parameter-server", 4, 1.0, 0.95),
    ]
    rows = rows_of(make_runs(runs, tmp_path, *ways))
    fastest = best(rows)
    assert fastest is not None
    assert fastest.strategy == "serial"
    assert "nothing was as good as serial:rule=adaptive, 98.00 %" in verdict(rows)[1]
    (found,) = diagnose([run for row in rows for run in row.members])
    assert "test accuracy is 95.0 %, serial's 98.0 %" in " ".join(cause.words for cause in found.causes)


def test_rules_that_only_correct_staleness_are_compared_with_serial(runs: list[Run], tmp_path: Path) -> None:
    ways = [("serial", 1, 3.0, 0.93), ("parameter-server:rule=plain", 4, 2.0, 0.93),
            ("parameter-server:rule=gap-aware", 4, 1.0, 0.93), ("sync", 4, 1.0, 0.93)]  # fmt: skip
    (only,) = verdict(rows_of(make_runs(runs, tmp_path, *ways)))
    assert "optimizer" not in only


# ---- threads


def make_threaded_rows(runs: list[Run], folder: Path, *ways: tuple[str, int, int, float]) -> list[Row]:
    """Make a row for each strategy, ranks, threads and seconds."""
    return rows_of([
        copy_run(runs[0], folder, strategy=strategy, ranks=ranks, threads=threads, cores=16, train_seconds=took,
                test_accuracy=0.93)
        for strategy, ranks, threads, took in ways
    ])  # fmt: skip


WIDE = [("serial", 1, 1, 60.0), ("serial", 1, 16, 12.0), ("sync", 16, 1, 52.0), ("sync", 4, 4, 20.0)]


def test_threads_win(runs: list[Run], tmp_path: Path) -> None:
    """A wide network: one process with 16 threads is faster than 16 ranks."""
    rows = make_threaded_rows(runs, tmp_path, *WIDE)
    assert verdict(rows) == (
        "Threads win: one process with 16 threads takes 12.0 s, and nothing was faster; closest was sync, 4 ranks of 4 "
        "threads, in 20.0 s, at 0.60 times its speed.",
    )
    assert {label(row): (row.speedup, row.against_threads) for row in rows}["sync, 16 ranks"] == (
        pytest.approx(60 / 52), pytest.approx(12 / 52),
    )  # fmt: skip
    fastest = best(rows)
    assert fastest is not None
    assert label(fastest) == "serial, 1 rank of 16 threads"


def test_ranks_win_over_threads(runs: list[Run], tmp_path: Path) -> None:
    rows = make_threaded_rows(runs, tmp_path, *WIDE[:2], ("sync", 16, 1, 6.0))
    assert verdict(rows)[0].startswith(
        "sync, 16 ranks, in 6.00 s, is 10.0 times as fast as serial with 1 thread and 2.00 times as fast as with 16; "
    )


def test_the_table_and_the_curves_name_the_threads(runs: list[Run], tmp_path: Path) -> None:
    rows = make_threaded_rows(runs, tmp_path, *WIDE, ("sync", 8, 2, 30.0), ("sync", 8, 1, 50.0))
    told = results(rows, (), 1)
    names = [column.name for column in told.columns]
    at = names.index("against all threads")
    assert [row[at] for row in told.rows] == [row.against_threads for row in rows]
    assert all(len(row) == len(names) for row in told.rows)
    assert [one.label for one in series_of(rows)] == [
        "serial, 1 thread a rank", "serial, 16 threads a rank", "sync, 1 thread a rank", "sync, 16 threads in all",
    ]  # fmt: skip
    assert [row.ranks for row in series_of(rows)[-1].rows] == [4, 8]
    (varying,) = series_of(make_threaded_rows(runs, tmp_path, ("sync", 4, 4, 1.0), ("sync", 8, 2, 1.0)))
    assert varying.label == "sync, 2 to 4 threads a rank"
    assert "against all threads" not in [
        c.name for c in results(make_threaded_rows(runs, tmp_path, *WIDE[1:]), (), 1).columns
    ]
