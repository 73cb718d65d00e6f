"""What a report makes of runs that diverged, lost accuracy, or have something to say of their gradients' age."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from paceline.cli import main
from paceline.compare.answer import target_of
from paceline.compare.rows import Row, rows_of
from paceline.compare.staleness import BARS, RowStaleness, staleness_of
from paceline.compare.verdict import best, notes, remarks, verdict
from paceline.figures import Bars, Histogram
from paceline.record import Run
from paceline.report import document_of
from paceline.report.document import Table
from paceline.report.exchange import staleness
from paceline.report.learning import end_quality
from paceline.report.results import cells, columns_of, metrics_of
from tests.report.conftest import copy_run, on_two_ranks

WHY = "the loss has risen to 7.5, from 2.3 at first in epoch 1"
PIECE = {
    "master": 0,
    "layers": [0, 1, 2],
    "parameters": 1200,
    "mean": 1.0,
    "median": 1.0,
    "largest": 3,
    "mean_gap": 0.25,
}


def make_rows(runs: list[Run], folder: Path, *ways: tuple[object, ...]) -> list[Row]:
    """Make the rows of such runs."""
    return rows_of(on_two_ranks(runs, folder, *ways))


@pytest.mark.parametrize(
    ("ways", "praised", "said"),
    [
        (
            [("serial", 3.0, 0.93), ("sync", 2.0, 0.93), ("hogwild", 1.0, 0.1064)],
            "sync",
            "sync, 2 ranks, in 2.00 s, is 1.50 times as fast as serial; test accuracy 93.00 %, serial 93.00 %; "
            "faster, but worse: hogwild, 2 ranks, at 10.64 %, which is guessing.",
        ),
        (
            [("serial", 3.0, 0.93), ("sync", 2.0, 0.92), ("psgd", 1.5, 0.9199), ("gossip", 1.0, 0.5),
             ("elastic", 0.5, 0.6)],
            "sync",  # a point less is as good; more is not
            "sync, 2 ranks, in 2.00 s, is 1.50 times as fast as serial; test accuracy 92.00 %, serial 93.00 %; faster, but "
            "worse: elastic, 2 ranks, at 60.00 %; gossip, 2 ranks, at 50.00 %; and 1 more.",
        ),
        (
            [("serial", 3.0, 0.93), ("sync", 2.0, 0.93), ("gossip", 0.1, 0.93, WHY)],
            "sync",
            "sync, 2 ranks, in 2.00 s, is 1.50 times as fast as serial; test accuracy 93.00 %, serial 93.00 %; diverged: "
            "gossip, 2 ranks.",
        ),
        (
            [("serial", 1.0, 0.93), ("sync", 2.0, 0.93), ("hogwild", 0.5, 0.2), ("psgd", 1.5, 0.2)],
            "serial",
            "Nothing as good was faster than serial; closest was sync, 2 ranks, in 2.00 s, at 0.50 times its speed; "
            "faster, but worse: hogwild, 2 ranks, at 20.00 %, which is guessing.",
        ),
        (
            [("serial", 1.0, 0.93), ("hogwild", 0.5, 0.2), ("psgd", 0.1, 0.9, WHY)],
            "serial",
            "Nothing was as good as serial, 93.00 %; closest was hogwild, 2 ranks, at 20.00 %, which is guessing.",
        ),
        (
            [("serial", 3.0, 0.93), ("sync", 2.0, 0.93), ("elastic", 9.0, 0.96)],
            "sync",
            "sync, 2 ranks, in 2.00 s, is 1.50 times as fast as serial; test accuracy 93.00 %, serial 93.00 %; most "
            "accurate was elastic, 2 ranks, at 96.00 %.",
        ),
        (
            [("sync", 2.0, 0.93), ("hogwild", 0.5, 0.2)],  # nothing serial: the best row is the measure
            "sync",
            "sync, 2 ranks, in 2.00 s is the fastest; there is no serial run to compare it with; "
            "faster, but worse: hogwild, 2 ranks, at 20.00 %, which is guessing.",
        ),
        (
            [("serial", 0.1, 0.1, WHY), ("sync", 2.0, 0.93)],
            "sync",
            "sync, 2 ranks, in 2.00 s is the fastest; diverged: serial, 1 rank.",
        ),
        ([("serial", 0.1, 0.1, WHY), ("sync", 0.2, 0.1, WHY)], None, "Every strategy tried diverged."),
        ([("sync", 0.2, 0.1, WHY)], None, "Every run diverged."),
    ],
)  # fmt: skip
def test_what_diverged_or_lost_accuracy_is_not_praised(
    runs: list[Run], tmp_path: Path, ways: list[tuple[object, ...]], praised: str | None, said: str
) -> None:
    rows = make_rows(runs, tmp_path, *ways)
    fastest = best(rows)
    assert (fastest.strategy if fastest else None) == praised
    assert verdict(rows) == (said,)


def test_without_classes_the_loss_is_the_measure(runs: list[Run], tmp_path: Path) -> None:
    made = {"serial": (3.0, 0.5), "sync": (2.0, 0.54), "psgd": (1.0, 0.56), "gossip": (0.5, None)}
    rows = rows_of([
        copy_run(runs[0], tmp_path, threads=1, strategy=name, ranks=1 if name == "serial" else 2, cores=4,
                train_seconds=took, test_accuracy=None, test_loss=loss)
        for name, (took, loss) in made.items()
    ])  # fmt: skip
    fastest = best(rows)
    assert fastest is not None
    assert fastest.strategy == "sync"
    assert verdict(rows)[0].endswith(
        "faster, but worse: gossip, 2 ranks, at unknown quality; psgd, 2 ranks, at test loss 0.56."
    )


def test_one_run_of_several_that_diverged(runs: list[Run], tmp_path: Path) -> None:
    sync = on_two_ranks(runs, tmp_path, ("sync", 1.0, 0.9), ("sync", 1.0, 0.1, WHY), ("sync", 1.0, 0.9))
    [row] = rows_of(sync)
    assert (
        cells(row, metrics_of([row]))[[column.name for column in columns_of([row])].index("speedup")]
        == "1 of 3 diverged"
    )
    assert best([row]) is None
    serial = on_two_ranks(runs, tmp_path, ("serial", 3.0, 0.9), ("serial", 0.1, 0.1, WHY))
    assert all(
        row.speedup is None for row in rows_of([*sync, *serial])
    )  # a baseline that was stopped is none


def test_what_is_far_below_does_not_flatten_the_rest(runs: list[Run], tmp_path: Path) -> None:
    rows = make_rows(runs, tmp_path, ("serial", 1.0, 0.93), ("sync", 1.0, 0.92), ("hogwild", 1.0, 0.1))
    section = end_quality(rows, 1)
    assert section is not None
    (drawn,) = section.blocks
    assert isinstance(drawn, Bars)
    assert drawn.x.bounds == pytest.approx((0.919, 0.931))
    assert "; an arrow means far below." in drawn.caption
    assert {bar.strategy: bar.words for bar in drawn.bars}["hogwild"] == "10.00 %"


def test_a_replay_and_another_way_with_divergence_are_rows_of_their_own(
    runs: list[Run], tmp_path: Path
) -> None:
    ways: list[dict[str, object]] = [
        {},
        {"replay": "runs/a"},
        {"on_divergence": "halve"},
        {"reproducible": 8},
    ]
    rows = rows_of([copy_run(runs[0], tmp_path, strategy="sync", **way) for way in ways])
    named = ["sync", "sync (on-divergence halve)", "sync (replay)", "sync (reproducible 8)"]
    assert [row.strategy for row in rows] == named


# ---- remarks


def test_a_remark_is_made_once(runs: list[Run], tmp_path: Path) -> None:
    psgd = [
        copy_run(
            run, tmp_path, threads=1, strategy="psgd", remarks=[f"{n} of 4 converged, after {n + 1} epochs"]
        )
        for n, run in enumerate(runs)
    ]
    both = [
        copy_run(runs[0], tmp_path, threads=1, strategy=name, remarks=["all alike"]) for name in ("elastic", "gossip")
    ]  # fmt: skip
    known = copy_run(
        runs[0], tmp_path, threads=1, strategy="sync",
        remarks=["staleness: 1 on average"], findings={"staleness": {"histogram": [1]}},
    )  # fmt: skip
    assert remarks(rows_of([*psgd, *both, known])) == [
        "elastic, 1 rank; gossip, 1 rank: all alike",
        "psgd, 1 rank (one of 3 runs): 0 of 4 converged, after 1 epochs",
    ]  # what the staleness is, the figure says


def test_records_of_before_are_read(runs: list[Run], tmp_path: Path) -> None:
    old = copy_run(runs[0], tmp_path)
    summary = json.loads((old.folder / "summary.json").read_text())
    for key in ("diverged", "findings", "remarks", "test_loss"):
        del summary[key]
    (old.folder / "summary.json").write_text(json.dumps(summary))
    [row] = rows_of([Run(old.folder)])
    assert (row.diverged, row.remarks, row.staleness, row.loss) == ((), (), None, None)
    page = document_of([Run(old.folder)])
    assert "Staleness" not in [section.title for section in page.sections[0].sections]


# ---- staleness


def test_ages_of_several_runs_are_added_up(runs: list[Run], tmp_path: Path) -> None:
    other = {**PIECE, "mean": 3.0, "largest": 9, "mean_gap": 0.75}
    found = [
        {"staleness": {"histogram": [1, 5, 3], "pieces": [PIECE]}, "gradients_dropped": 2.0},
        {"staleness": {"histogram": [0, 1], "pieces": [other]}, "gradients_dropped": 1.0},
    ]
    rows = rows_of([copy_run(runs[0], tmp_path, strategy="sync", threads=2, findings=one) for one in found])
    section = staleness(rows, 1)
    assert section is not None
    _, drawn, every, pieces = section.blocks
    assert isinstance(drawn, Histogram)
    assert (drawn.labels, drawn.heights) == (("0", "1", "2"), (0.1, 0.6, 0.3))
    assert (drawn.low, drawn.high) == ((0.0, 5 / 9, 0.0), (1 / 9, 1.0, 3 / 9))
    assert drawn.caption == "Mean 1.2, largest 2; 10 updates; the lines are the spread over the runs."
    assert isinstance(every, Table)
    assert every.rows == (("sync, 1 rank of 2 threads", 1, 1.2, 2, 10, 3.0),)
    assert isinstance(pieces, Table)
    assert pieces.rows == (("sync, 1 rank of 2 threads", 0, "0-2", 1200, 2.0, 9, 0.5),)
    assert "mean gap: the root" in pieces.caption


def test_ages_by_name_as_hogwild_has_them() -> None:
    found = staleness_of([{"findings": {"staleness": {"histogram": {"0": 3, "4": 1}}}}])
    assert found is not None
    assert (found.mean, found.largest, found.updates, found.pieces) == (1.0, 4, 4, ())
    assert [(bar.first, bar.share) for bar in found.bars()] == [(0, 0.75), (1, 0), (2, 0), (3, 0), (4, 0.25)]


@pytest.mark.parametrize("found", [None, 3.0, {}, {"mean": 2.0}, {"histogram": 4}, {"histogram": ["x"]}, {"histogram": []},
                                   {"histogram": {"one": 2}}])  # fmt: skip
def test_findings_of_any_shape(found: object) -> None:
    assert staleness_of([{"findings": {"staleness": found}}, {"findings": None}, {}]) is None


@pytest.mark.parametrize("largest", [0, 1, 23, 24, 25, 100, 5000])
def test_every_update_is_in_one_bar(largest: int) -> None:
    counts = {tau: 1 + tau % 3 for tau in range(largest + 1)}
    bars = RowStaleness(counts).bars()
    assert len(bars) <= BARS + 1
    assert sum(bar.share for bar in bars) == pytest.approx(1)
    assert (bars[0].first, bars[-1].last >= largest) == (0, True)
    for one, next_ in pairwise(bars):
        assert next_.first == one.last + 1
    for bar in bars:
        within = sum(count for tau, count in counts.items() if bar.first <= tau <= bar.last)
        assert bar.share == pytest.approx(within / sum(counts.values()))
    assert [bar.tail for bar in bars] == [False] * (len(bars) - 1) + [bars[-1].tail]


def test_a_few_old_gradients_do_not_flatten_the_rest() -> None:
    bars = RowStaleness({0: 500, 1: 480, 10_000: 20}).bars()
    assert [(bar.first, bar.last, bar.tail) for bar in bars] == [
        (0, 0, False),
        (1, 1, False),
        (2, 10_000, True),
    ]


def test_the_command_says_what_the_page_does(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sync = on_two_ranks(runs, tmp_path, ("sync", 2.0, 0.9), ("sync", 2.0, 0.1, WHY))
    assert main(["report", *(str(run.folder) for run in sync), "-o", str(tmp_path / "page.html")]) == 0
    printed = capsys.readouterr().out
    assert "1 of 2 diverged" in printed
    assert "Every run diverged." in printed


# ---- nothing learned


def test_who_guesses_is_not_praised(runs: list[Run], tmp_path: Path) -> None:
    rows = make_rows(runs, tmp_path, ("serial", 1.0, 1 / 3), ("sync", 0.5, 1 / 3))
    assert best(rows) is None
    assert verdict(rows) == ("Nothing learned: accuracy is that of guessing (33.3 %).",)
    assert target_of(rows, None) is None
    page = document_of([run for row in rows for run in row.members])
    assert not any(
        mark == "best" for block in page.blocks() if isinstance(block, Table) for mark in block.marks
    )
    rows = make_rows(runs, tmp_path, ("serial", 1.0, 1 / 3), ("sync", 0.5, 0.3), ("gossip", 2.0, 0.9))
    fastest = best(rows)
    assert fastest is not None
    assert fastest.strategy == "gossip"
    assert verdict(rows) == (
        "gossip, 2 ranks, in 2.00 s is the fastest that learned anything, which serial did not; faster, "
        "but worse: sync, 2 ranks, at 30.00 %, which is guessing.",
    )
    assert "serial, 1 rank; sync, 2 ranks: nothing learned: accuracy is that of guessing (33.3 %)" in notes(
        rows
    )
