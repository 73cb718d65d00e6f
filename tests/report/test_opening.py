"""The first screen: the answer is true in every situation, the command runs, and only what succeeds looks like success."""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.cli import main
from paceline.commands import train
from paceline.compare.rows import rows_of
from paceline.compare.verdict import describe_failure, is_implausible, verdict
from paceline.diagnosis import diagnose
from paceline.figures import Bars, Lines, Points, svg
from paceline.record import Run, find_runs
from paceline.record.environment import describe_other_programs
from paceline.report import document_of, write
from paceline.report.contents import command_of
from paceline.report.document import Document, Opening, Spread, data_of
from paceline.report.html import Links, html_page
from paceline.report.pdf import pdf_bytes
from paceline.report.series import choose_rows
from paceline.report.writing import csv_text, markdown_page
from paceline.study.folder import LOCK, Folder, context_of
from tests.report.conftest import NODES, Way, copy_run, make_runs, rewrite, table

WHY = "the loss has risen to 7.5, from 2.3 at first in epoch 1"


def opening_of(page: Document) -> Opening:
    found = page.sections[0].opening
    assert found is not None
    return found


SERIAL = ("serial", 1, 4.0, 0.95)
CASES: dict[str, tuple[list[Way], float | None, str, str]] = {
    "faster": (
        [SERIAL, ("sync", 2, 2.5, 0.95), ("psgd", 2, 3.0, 0.95)], 0.9,
        "Use sync, 2 ranks: it reaches 90.00 % first, after 2.5 s, 1.6 times as fast as serial, 1 rank (4 s).",
        "One run each, so the difference may be chance: run more seeds.",
    ),
    "serial is the fastest": (
        [SERIAL, ("sync", 2, 5.0, 0.95)], 0.9,
        "Stay with serial, 1 rank: it reaches 90.00 % first, after 4 s; closest is sync, 2 ranks, after 5 s.", "One run",
    ),
    "the closest to serial learned less": (
        [SERIAL, ("hogwild", 2, 5.0, 0.91)], 0.9,
        "Stay with serial, 1 rank: it reaches 90.00 % first, after 4 s; closest is hogwild, 2 ranks, after 5 s, but it "
        "learns less.", "One run",
    ),
    "nothing reaches it": (
        [SERIAL, ("sync", 2, 2.5, 0.96)], 0.99,
        "Nothing reached the target of 99.00 %; closest was sync, 2 ranks, at 96.00 % after its best epoch.", "",
    ),
    "not with every run": (
        [SERIAL, ("sync", 2, 2.5, 0.96), ("sync", 2, 2.5, 0.98, 1)], 0.97,
        "Nothing reached 97.00 % with every run; closest was sync, 2 ranks, with 1 of its 2 runs.", "",
    ),
    "only one row": (
        [("sync", 2, 2.5, 0.95)], None,
        "sync, 2 ranks trained for 2.5 s and ended at 95.00 %; there is nothing to compare it with.", "",
    ),
    "only serial": (
        [SERIAL, ("serial", 1, 4.2, 0.95, 1)], 0.9,
        "Use serial, 1 rank: it reaches 90.00 % after 4.1 s; nothing was tried on more than one rank.", "",
    ),
    "no serial": (
        [("sync", 2, 2.5, 0.95), ("psgd", 2, 3.0, 0.95)], 0.9,
        "Use sync, 2 ranks: it reaches 90.00 % first, after 2.5 s; there is no serial run to compare it with.", "One run",
    ),
    "serial never does": (
        [("serial", 1, 4.0, 0.8), ("sync", 2, 2.5, 0.95)], 0.9,
        "Use sync, 2 ranks: it reaches 90.00 % after 2.5 s; serial never reached it.", "One run",
    ),
    "all diverged": (
        [("serial", 1, 4.0, 0.3, 0, WHY), ("sync", 2, 2.5, 0.3, 0, WHY)], None,
        "Nothing can be recommended: every run diverged.", "",
    ),
    "the only run diverged": (
        [("sync", 2, 2.5, 0.3, 0, WHY)], None, "Nothing can be recommended: the only run diverged.", "",
    ),
    "some runs of every row diverged": (
        [("sync", 2, 2.5, 0.3, 0, WHY), ("sync", 2, 2.5, 0.95, 1)], 0.9,
        "Nothing can be recommended: every row has runs that diverged.", "",
    ),
    "nothing learned": (
        [("serial", 1, 4.0, 0.34), ("sync", 2, 2.5, 0.33)], None,
        "Nothing learned: accuracy is that of guessing (33.3 %).", "",
    ),
    "times overlap": (
        [SERIAL, ("serial", 1, 4.4, 0.95, 1), ("sync", 2, 2.5, 0.95), ("sync", 2, 2.9, 0.95, 1),
         ("psgd", 2, 2.6, 0.95), ("psgd", 2, 3.0, 0.95, 1)], 0.9,
        "Use sync, 2 ranks: it reaches 90.00 % first, after 2.7 s, 1.56 times as fast as serial, 1 rank (4.2 s); the "
        "difference from psgd, 2 ranks is within the noise.",
        "Not certain: sync, 2 ranks: 2 runs, 2.5 s to 2.9 s; psgd, 2 ranks: 2 runs, 2.6 s to 3 s. More seeds",
    ),
    "serial is slower within the noise": (
        [SERIAL, ("serial", 1, 2.4, 0.95, 1), ("sync", 2, 2.5, 0.95), ("sync", 2, 2.9, 0.95, 1)], 0.9,
        "Stay with serial, 1 rank: it reaches 90.00 % after 3.2 s; the difference from sync, 2 ranks is within the noise.",
        "Not certain: serial, 1 rank: 2 runs, 2.4 s to 4 s; sync",
    ),
    "a slower one within the noise": (
        [("serial", 1, 1.9, 0.95), ("serial", 1, 2.3, 0.95, 1), ("sync", 2, 2.4, 0.95), ("sync", 2, 2.4, 0.95, 1),
         ("psgd", 2, 2.2, 0.95), ("psgd", 2, 3.0, 0.95, 1)], 0.9,
        "Stay with serial, 1 rank: it reaches 90.00 % first, after 2.1 s; the difference from 2 others is within the "
        "noise.",
        "Not certain: serial, 1 rank: 2 runs, 1.9 s to 2.3 s; sync, 2 ranks: 2 runs, 2.4 s; and 1 other. More seeds",
    ),
    "times part": (
        [SERIAL, ("serial", 1, 4.4, 0.95, 1), ("sync", 2, 2.5, 0.95), ("sync", 2, 2.9, 0.95, 1)], 0.9,
        "Use sync, 2 ranks: it reaches 90.00 % first, after 2.7 s, 1.56 times as fast as serial, 1 rank (4.2 s).",
        "1.03 to 2.36 times as fast as serial, 1 rank, with 95 % confidence (sync, 2 ranks: 2 runs, 2.5 s to 2.9 s; ",
    ),
    "the noise of others": (
        [SERIAL, ("serial", 1, 4.05, 0.95, 1), ("sync", 2, 2.5, 0.95)], 0.9,
        "Use sync, 2 ranks: it reaches 90.00 % first, after 2.5 s, 1.61 times as fast as serial, 1 rank (4.03 s).",
        "1.40 to 1.85 times as fast as serial, 1 rank, with 95 % confidence (sync, 2 ranks: 1 run, 2.5 s; serial, 1 ",
    ),
    "almost as fast with one run each": (
        [SERIAL, ("serial:rule=adaptive", 1, 2.6, 0.97), ("hogwild", 2, 2.5, 0.95), ("sync", 2, 2.9, 0.95)], 0.9,
        "Use serial:rule=adaptive, 1 rank: it reaches 90.00 % after 2.6 s; the difference from hogwild, 2 ranks is too "
        "small to count with one run each.",
        "Run more seeds. It uses the rule adaptive instead of sgd.",
    ),
    "several ranks almost as fast with one run each": (
        [SERIAL, ("sync", 2, 2.5, 0.95), ("psgd", 2, 2.6, 0.95)], 0.9,
        "Use sync, 2 ranks: it reaches 90.00 % first, after 2.5 s, 1.6 times as fast as serial, 1 rank (4 s); the "
        "difference from psgd, 2 ranks is too small to count with one run each.", "Run more seeds.",
    ),
    "one process with a rule": (
        [("serial", 1, 4.0, 0.8), ("serial:rule=adaptive", 1, 5.0, 0.95), ("sync", 2, 2.5, 0.8)], 0.9,
        "Use serial:rule=adaptive, 1 rank: it reaches 90.00 % after 5 s; nothing else reached it with every run.",
        "One run each, so the difference may be chance: run more seeds. It uses the rule adaptive instead of sgd.",
    ),
    "implausible": (
        [SERIAL, ("sync", 2, 1.6, 0.95)], 0.9,
        "Use sync, 2 ranks: it reaches 90.00 % first, after 1.6 s, 2.5 times as fast as serial, 1 rank (4 s), which is "
        "implausible: more than 2 ranks can give.", "One run each",
    ),
    "what learned less is not the answer": (
        [SERIAL, ("hogwild", 2, 1.0, 0.7), ("sync", 2, 2.5, 0.95)], None,
        "Use sync, 2 ranks: it reaches 94.00 % first, after 2.5 s, 1.6 times as fast as serial, 1 rank (4 s).", "One run",
    ),
    "nothing but serial reached it": (
        [SERIAL, ("hogwild", 2, 1.0, 0.7)], None,
        "Stay with serial, 1 rank: it reaches 94.00 % after 4 s; nothing else reached it with every run.", "One run",
    ),
    "what learned less, but reached what was asked for": (
        [SERIAL, ("hogwild", 2, 3.0, 0.91)], 0.9,
        "Use hogwild, 2 ranks: it reaches 90.00 % first, after 3 s, 1.33 times as fast as serial, 1 rank (4 s); but it "
        "learns less: it ends at 91.00 %, serial, 1 rank at 95.00 %.", "One run",
    ),
    "only one rank": (
        [("sync", 1, 2.0, 0.95), ("psgd", 1, 1.0, 0.95)], 0.9,
        "Nothing was tried on more than one rank, where every strategy computes the same.", "",
    ),
    "another optimizer": (
        [SERIAL, ("parameter-server", 4, 2.0, 0.96)], 0.9,
        "Use parameter-server, 4 ranks: it reaches 90.00 % first, after 2 s, 2 times as fast as serial, 1 rank (4 s).",
        "One run each, so the difference may be chance: run more seeds. It uses the rule adaptive instead of sgd.",
    ),
    "the optimizer of others": (
        [SERIAL, ("parameter-server", 4, 3.0, 0.96), ("sync", 2, 2.5, 0.95)], 0.9,
        "Use sync, 2 ranks: it reaches 90.00 % first, after 2.5 s, 1.6 times as fast as serial, 1 rank (4 s).",
        "One run each, so the difference may be chance: run more seeds. The optimizer of parameter-server differs.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_answer_is_true(runs: list[Run], tmp_path: Path, case: str) -> None:
    ways, target, sentence, sure = CASES[case]
    page = document_of(make_runs(runs, tmp_path, *ways), target=target)
    found = opening_of(page)
    assert found.sentence == sentence
    assert found.sure.startswith(sure)
    assert bool(sure) or not found.sure
    recommended = sentence.startswith(("Use", "Stay")) or case == "only one row"
    assert bool(found.command) == recommended
    # Every format has it first.
    assert sentence.replace("%", "\\%").replace("\\", "") in markdown_page(page, "f").split("\n\n")[
        1
    ].replace("\\", "")


@pytest.mark.parametrize(
    ("last", "end"),
    [
        (0.6, "; but it does not stay there: it ends at 60.00 %."),
        (0.895, ", 1.6 times as fast as serial, 1 rank (4 s)."),
    ],
)
def test_a_row_that_falls_back_from_the_target_says_so(
    runs: list[Run], tmp_path: Path, last: float, end: str
) -> None:
    """A row that ends as well as serial, but clearly below the target that it reached before."""
    serial, sync = make_runs(runs, tmp_path, SERIAL, ("sync", 2, 2.5, 0.95))
    with (sync.folder / "epochs.jsonl").open("a") as file:
        file.write(
            json.dumps({"epoch": 1, "loss": 1.0, "validation_accuracy": last, "train_seconds": 2.6}) + "\n"
        )
    assert opening_of(document_of([serial, Run(sync.folder)], target=0.9)).sentence.endswith(end)


def with_epochs(run: Run, *epochs: tuple[float, float]) -> Run:
    """The run with other epochs: when each ended, and the accuracy then."""
    lines = (
        {"epoch": k, "loss": 1.0, "validation_accuracy": value, "train_seconds": seconds}
        for k, (seconds, value) in enumerate(epochs)
    )
    (run.folder / "epochs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return Run(run.folder)


def test_a_gain_that_ranks_cannot_give_names_the_epochs_it_comes_from(
    runs: list[Run], tmp_path: Path
) -> None:
    serial, sync = make_runs(runs, tmp_path, SERIAL, ("sync", 2, 3.2, 0.95))
    found = [with_epochs(serial, (2.0, 0.8), (4.0, 0.95)), with_epochs(sync, (1.6, 0.92), (3.2, 0.95))]
    assert opening_of(document_of(found, target=0.9)).sentence == (
        "Use sync, 2 ranks: it reaches 90.00 % first, after 1.6 s, 2.5 times as fast as serial, 1 rank (4 s), in 1 epoch "
        "instead of 2."
    )


def test_what_reached_the_target_but_ended_below_is_not_said_to_have_missed_it(
    runs: list[Run], tmp_path: Path
) -> None:
    serial, hogwild = make_runs(runs, tmp_path, SERIAL, ("hogwild", 2, 3.0, 0.7))
    found = [serial, with_epochs(hogwild, (2.0, 0.95), (3.0, 0.7))]
    assert opening_of(document_of(found)).sentence == (
        "Stay with serial, 1 rank: it reaches 94.00 % after 4 s; nothing else learned as much."
    )


def test_rows_are_compared_on_the_seeds_that_they_share(runs: list[Run], tmp_path: Path) -> None:
    """As while a study is running: serial has already run with a seed that learns more, sync has not."""
    found = make_runs(
        runs, tmp_path, SERIAL, ("serial", 1, 4.0, 0.99, 1), ("sync", 2, 2.5, 0.95), ("gossip", 2, 2.0, 0.93)
    )
    rows = rows_of(found)
    assert {row.strategy: describe_failure(row, rows) for row in rows} == {
        "serial": "", "sync": "", "gossip": "learned less",
    }  # fmt: skip


def test_a_serial_row_that_falls_back_is_named(runs: list[Run], tmp_path: Path) -> None:
    serial, sync = make_runs(runs, tmp_path, SERIAL, ("sync", 2, 5.0, 0.95))
    found = [with_epochs(serial, (2.0, 0.95), (4.0, 0.6)), sync]
    assert opening_of(document_of(found, target=0.9)).sentence.endswith(
        "closest is sync, 2 ranks, after 5 s; but serial, 1 rank does not stay there: it ends at 60.00 %."
    )


def test_of_threads_that_gain_nothing_fewer_are_used(runs: list[Run], tmp_path: Path) -> None:
    found = make_runs(
        runs, tmp_path, *(("serial", 1, took, 0.95, seed) for seed, took in enumerate((4.0, 4.3, 4.0, 4.2)))
    )
    for run in found[2:]:
        rewrite(run.folder / "summary.json", threads=2)
    page = document_of([Run(run.folder) for run in found], target=0.9)
    assert opening_of(page).sentence.startswith("Stay with serial, 1 rank: it reaches 90.00 % after 4.15 s; ")


def test_a_single_row_is_not_called_one_run_each(runs: list[Run], tmp_path: Path) -> None:
    assert opening_of(document_of(make_runs(runs, tmp_path, ("sync", 2, 2.5, 0.95)), target=0.9)).sure == ""


def test_the_answer_names_what_other_programs_slowed_down(runs: list[Run], tmp_path: Path) -> None:
    serial, sync = make_runs(runs, tmp_path, SERIAL, ("sync", 2, 2.5, 0.95))
    [remark] = describe_other_programs(3.0, 4.0)
    rewrite(serial.folder / "summary.json", remarks=[remark])
    page = document_of([Run(serial.folder), sync], target=0.9)
    slowed = "Other programs slowed down serial, 1 rank: measure again without them."
    assert opening_of(page).sure.endswith(f"run more seeds. {slowed}")


def test_simulated_rows_answer_if_nothing_else_was_compared(matrix: Path) -> None:
    from paceline.record import find_runs

    found = find_runs([matrix])
    foretold = [run for run in found if run.simulated and run.simulated.get("compute", True)]
    serial = [run for run in found if run.config["strategy"] == "serial" and not run.simulated]
    for some, begin in ((foretold, f"Simulated on {NODES}: "), ([*foretold, *serial], "Simulated: ")):
        answer = opening_of(document_of(some))
        assert answer.sentence.startswith(tuple(begin + words for words in ("use ", "stay with ", "nothing")))
        assert (f"(simulated: {NODES})" in answer.sentence) == (begin == "Simulated: ")  # said once
    alone = [run for run in foretold if run.config["strategy"] == "serial"]
    assert opening_of(document_of(alone)).sentence.startswith(f"Simulated on {NODES}: ")
    timed = [run for run in found if run.simulated and not run.simulated.get("compute", True)]
    assert opening_of(document_of(timed)).sentence.startswith(
        "Simulated on 1gbe, time only: sync, 4 ranks takes the"
    )
    assert not opening_of(document_of(found)).sentence.startswith("Simulated")


def test_lower_values_of_another_metric_are_better(runs: list[Run], tmp_path: Path) -> None:
    found = [
        copy_run(
            run,
            tmp_path,
            test_metrics={"perplexity": value},
            test_accuracy=None,
            classes=0,
            test_loss=None,
            class_names=[],
        )
        for run, value in zip(
            make_runs(runs, tmp_path, SERIAL, ("sync", 2, 2.5, 0.95)), (11.0, 10.0), strict=True
        )
    ]
    for run, value in zip(found, (11.0, 10.0), strict=True):
        line = json.loads((run.folder / "epochs.jsonl").read_text())
        (run.folder / "epochs.jsonl").write_text(
            json.dumps({**line, "metrics": {"perplexity": value}}) + "\n"
        )
    page = document_of([Run(run.folder) for run in found], target="perplexity<=12")
    answer = opening_of(page)
    assert answer.sentence == (
        "Use sync, 2 ranks: it reaches perplexity 12 first, after 2.5 s, 1.6 times as fast as serial, 1 rank (4 s)."
    )
    figure = answer.figure
    assert isinstance(figure, Points)
    assert figure.descending
    assert [figure.points[k].label for k in figure.front] == ["sync, 2 ranks"]
    assert pdf_bytes(page).startswith(b"%PDF")
    unreached = opening_of(document_of([Run(run.folder) for run in found], target="perplexity<=9"))
    assert (
        unreached.sentence
        == "Nothing reached the target of perplexity 9; closest was sync, 2 ranks, at 10 after its best epoch."
    )


# ---- the command


def test_the_command_is_one_that_train_takes(runs: list[Run], matrix: Path, tmp_path: Path) -> None:
    from paceline.record import find_runs

    odd = copy_run(
        runs[0], tmp_path, data="my file's data.csv", ranks=3, strategy="sync:allreduce=ring", seed=2
    )
    for run in (odd, *find_runs([matrix])):
        line = command_of(run)
        program, verb, *words = shlex.split(line)
        assert (program, verb) == ("paceline", "train")
        parser = argparse.ArgumentParser()
        train.add_arguments(parser)
        args = parser.parse_args(words)
        c = run.config
        assert (args.data, args.model, args.strategy) == (c["data"], c["model"], c["strategy"])
        assert (args.ranks or 1, args.batch, args.seed) == (c["ranks"], c["batch"], c["seed"])
        assert (args.on == "sim") == (run.simulated is not None)


def test_objects_of_python_have_no_command_and_programs_are_run(runs: list[Run], tmp_path: Path) -> None:
    run = copy_run(runs[0], tmp_path, ranks=2, strategy="gossip", objects=["data", "model"])
    assert command_of(run) == ""
    rewrite(run.folder / "config.json", program={"file": "my program.py", "arguments": ["--depth", "3"]})
    assert command_of(Run(run.folder)) == "paceline run -n 2 --strategy gossip 'my program.py' --depth 3"
    rewrite(
        run.folder / "config.json", program={"file": "program.py", "arguments": ["--seed={seed}"]}, seed=0
    )
    assert (
        command_of(Run(run.folder))
        == "paceline run -n 2 --strategy gossip --seed 0 program.py '--seed={seed}'"
    )


# ---- what is no success


def test_what_learned_less_is_struck_out_and_has_a_word_everywhere(runs: list[Run], tmp_path: Path) -> None:
    ways = [("serial", 1, 22.0, 0.97), ("sync", 2, 12.0, 0.97), ("sync", 4, 7.0, 0.97), ("hogwild", 2, 2.0, 0.5),
            ("hogwild", 4, 1.0, 0.6)]  # fmt: skip
    page = document_of(make_runs(runs, tmp_path, *ways))
    results = table(page, "results-1")
    marks = {row[:2]: mark for row, mark in zip(results.rows, results.marks, strict=True)}
    assert marks == {("serial", 1): "", ("sync", 2): "", ("sync", 4): "best", ("hogwild", 2): "learned less",
                     ("hogwild", 4): "learned less"}  # fmt: skip
    text = html_page(page)
    assert text.count("<s>22.0x</s>") == 1
    assert text.count('<span class="wrong">learned less</span>') == 2
    marked = markdown_page(page, "f")
    assert "| ~~22.0x~~ |" in marked
    assert "hogwild *learned less* |" in marked
    figures = {figure.name: figure for figure in page.figures()}
    for name in ("time-1", "speedup-1", "accuracy-1"):
        figure = figures[name]
        assert isinstance(figure, Lines)
        crossed = {curve.label: curve.less for curve in figure.curves if curve.less and any(curve.less)}
        assert crossed == {"hogwild": (True, True)}
    split = figures["time-split-1"]
    assert isinstance(split, Bars)
    assert [bar.words for bar in split.bars if bar.less] == ["2.00 s  learned less", "1.00 s  learned less"]
    front = figures["front-1"]
    assert isinstance(front, Points)
    assert {point.label: point.flag for point in front.points if point.flag} == {
        "hogwild, 2 ranks": "learned less",
        "hogwild, 4 ranks": "learned less",
    }
    assert [front.points[k].label for k in front.front] == ["sync, 4 ranks"]
    assert [point.x for point in front.points if point.flag] == [None, None]  # the target was not reached


def test_what_diverged_is_crossed_out_in_the_figure_of_accuracy(runs: list[Run], tmp_path: Path) -> None:
    ways: list[Way] = [("serial", 1, 4.0, 0.96), ("sync", 2, 3.0, 0.95), ("sync", 4, 2.0, 0.3, 0, WHY)]
    figures = {figure.name: figure for figure in document_of(make_runs(runs, tmp_path, *ways)).figures()}
    lines = figures["accuracy-1"]
    assert isinstance(lines, Lines)
    assert {curve.label: curve.less for curve in lines.curves}["sync"] == (False, True)
    (row,) = [row for row in data_of(lines).rows if "diverged" in str(row[-1])]
    assert "learned less" not in str(row[-1])
    page = document_of(make_runs(runs, tmp_path, ways[0], ("sync", 2, 2.0, 0.3, 0, WHY)))
    dots = next(figure for figure in page.figures() if figure.name == "accuracy-1")
    assert isinstance(dots, Bars)
    assert [bar.less for bar in dots.bars] == [False, True]


def test_the_answer_has_a_ring_in_the_figure(runs: list[Run], tmp_path: Path) -> None:
    figure = opening_of(
        document_of(make_runs(runs, tmp_path, SERIAL, ("sync", 2, 2.5, 0.95)), target=0.9)
    ).figure
    assert isinstance(figure, Points)
    assert {point.label: point.chosen for point in figure.points} == {
        "serial, 1 rank": False,
        "sync, 2 ranks": True,
    }
    drawn, hits = svg(figure)
    assert "ring: the answer" in drawn
    assert sum("the answer" in hit.words for hit in hits) == 1


def test_the_front_is_what_nothing_beats(runs: list[Run], tmp_path: Path) -> None:
    ways = [
        ("serial", 1, 4.0, 0.96),
        ("sync", 2, 3.0, 0.955),
        ("psgd", 2, 2.0, 0.953),
        ("gossip", 2, 3.5, 0.952),
    ]
    figure = opening_of(document_of(make_runs(runs, tmp_path, *ways), target=0.9)).figure
    assert isinstance(figure, Points)
    assert [figure.points[k].label for k in figure.front] == [
        "psgd, 2 ranks",
        "sync, 2 ranks",
        "serial, 1 rank",
    ]


def test_the_axis_has_room_for_the_spread_of_what_it_shows(runs: list[Run], tmp_path: Path) -> None:
    ways = [("serial", 1, 4.0, 0.96), ("serial", 1, 4.1, 0.90), ("sync", 2, 3.0, 0.95), ("psgd", 2, 2.0, 0.3)]
    figure = opening_of(document_of(make_runs(runs, tmp_path, *ways), target=0.9)).figure
    assert isinstance(figure, Points)
    assert figure.caption.endswith("An arrow: far worse, beyond the axis.")
    ((low, _),) = [point.y_range for point in figure.points if point.y_range is not None]
    assert figure.y.bounds[0] is not None
    assert 0.3 < figure.y.bounds[0] < low


@pytest.mark.parametrize(("other", "span"), [(0.9500001, 0.01), (0.99, None)])
def test_the_axis_does_not_magnify_differences_that_do_not_count(
    runs: list[Run], tmp_path: Path, other: float, span: float | None
) -> None:
    figure = opening_of(
        document_of(make_runs(runs, tmp_path, SERIAL, ("sync", 2, 2.5, other)), target=0.9)
    ).figure
    assert isinstance(figure, Points)
    low, high = figure.y.bounds
    assert (None if low is None or high is None else pytest.approx(high - low)) == span


def test_only_what_is_no_success_is_drawn_beyond_the_axis(runs: list[Run], tmp_path: Path) -> None:
    ways = [("serial", 1, 4.0, 0.5), ("sync", 2, 3.0, 0.5), ("gossip", 2, 3.5, 0.9), ("psgd", 2, 2.0, 0.1)]
    found = opening_of(document_of(make_runs(runs, tmp_path, *ways), target=0.4))
    assert isinstance(found.figure, Points)
    least = found.figure.y.bounds[0]
    assert least is not None
    below = {point.label: point.flag for point in found.figure.points if point.y < least}
    assert below == {
        "psgd, 2 ranks": "learned nothing"
    }  # not serial and sync, although gossip is much better
    drawn = {point.label for point in found.figure.points if point.chosen}
    assert drawn
    assert not drawn & set(below)


def test_of_many_rows_a_figure_shows_those_that_can_be_trusted_most(runs: list[Run], tmp_path: Path) -> None:
    ways = [(name, ranks, 2.0, 0.95) for name in ("sync", "gossip", "psgd") for ranks in (2, 4, 8)]
    rows = [replace(row, cores=4, on_node=row.ranks) for row in rows_of(make_runs(runs, tmp_path, *ways))]
    shown, words = choose_rows(rows)
    assert {row.ranks for row in shown} == {4}
    assert words.endswith("the row with the most ranks that have a core each.")
    shown, words = choose_rows([replace(row, cores=1) for row in rows])
    assert {row.ranks for row in shown} == {2}
    assert words.endswith(", or the fewest ranks.")


# ---- noise


def test_a_speedup_that_ranks_cannot_give_is_called_implausible_by_all(
    runs: list[Run], tmp_path: Path
) -> None:
    found = make_runs(runs, tmp_path, SERIAL, ("sync", 2, 1.6, 0.95))
    rows = rows_of(found)
    assert [is_implausible(row, rows) for row in rows] == [False, True]
    assert "(implausible: more than 2 ranks can give)" in verdict(rows)[0]
    (diagnosed,) = diagnose(found)
    assert diagnosed.causes[0].rule == "implausible speedup"
    assert "scales well" not in diagnosed.summary
    assert diagnosed.summary.endswith("the speedup is implausible: measure again")
    notices = opening_of(document_of(found)).notices
    assert any(
        line.startswith("sync, 2 ranks: 2.50 times as fast as serial on one run is implausible")
        for line in notices
    )
    # Runs whose spread explains it are not, nor is what caches could give.
    for more in (("serial", 1, 3.0, 0.95, 1), ("sync", 2, 2.1, 0.95, 1)):
        rows = rows_of([*found, *make_runs(runs, tmp_path, more)])
        assert not any(is_implausible(row, rows) for row in rows)
    rows = rows_of(make_runs(runs, tmp_path, SERIAL, ("sync", 2, 1.9, 0.95)))
    assert not any(is_implausible(row, rows) for row in rows)


def test_tables_have_intervals_over_the_runs(runs: list[Run], tmp_path: Path) -> None:
    found = make_runs(runs, tmp_path, SERIAL, ("serial", 1, 5.0, 0.97, 1), ("sync", 2, 3.0, 0.9))
    page = document_of(found)
    results = table(page, "results-1")
    serial, sync = results.rows
    assert isinstance(serial[2], Spread)
    assert (serial[2].low, serial[2].high) == (4.0, 5.0)
    assert not isinstance(sync[2], Spread)
    assert results.cells()[0][2:5] == ["4.50 (4.00 to 5.00)", "1.00x", "96.00 % (95.00 to 97.00)"]
    head, first, second = csv.reader(csv_text(results).splitlines())
    at = head.index("time (s)")
    assert head[at : at + 3] == ["time (s)", "time (s), lowest", "time (s), highest"]
    assert first[at : at + 3] == ["4.5", "4.0", "5.0"]
    assert second[at : at + 3] == ["3.0", "", ""]
    (row,) = (row for row in rows_of(found) if row.strategy == "sync")
    assert row.speedup_range == (4.0 / 3.0, 5.0 / 3.0)  # noise of serial's runs is noise of a speedup


def test_what_train_noticed_is_said(runs: list[Run], tmp_path: Path) -> None:
    found = make_runs(runs, tmp_path, SERIAL, ("sync", 2, 2.5, 0.95))
    remark = (
        "other programs were running: a rank waited 30 % of the time for a core, so its times are too long"
    )
    rewrite(found[1].folder / "summary.json", remarks=[remark])
    notices = opening_of(document_of([found[0], Run(found[1].folder)])).notices
    assert notices == (
        "Other programs were running during these runs, so their times are too long: sync, 2 ranks.",
    )


# ---- several problems


def test_several_problems_have_a_page_each_and_an_index(runs: list[Run], tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    found = make_runs(runs, folder, SERIAL, ("sync", 2, 2.5, 0.95))
    found += [copy_run(run, folder, lr=7.5) for run in found]
    page = document_of(found, title="Two problems")
    write(page, tmp_path / "report.html")
    index = (tmp_path / "report.html").read_text()
    pages = [path.name for path in sorted((tmp_path / "report-files").glob("*.html"))]
    assert [name[:11] for name in pages] == ["1-iris-mlp-", "2-iris-mlp-"]
    assert all(f'href="report-files/{name}"' in index for name in pages)
    for number, name in enumerate(pages, 1):
        # A small figure of each, which leads to the large one.
        assert index.count(f'href="report-files/{name}#f-front-{number}"') == 1
        one = (tmp_path / "report-files" / name).read_text()
        assert 'href="../report.html"' in one
        assert one.count('<p class="answer">') == 1
        assert 'href="front-' in one
    # One that is shorter leaves nothing of the longer one behind.
    write(document_of(found[:2]), tmp_path / "report.html")
    assert not list((tmp_path / "report-files").glob("*.html"))
    assert (tmp_path / "report.html").read_text().count('<p class="answer">') == 1


@pytest.mark.parametrize("problems", [12, 13])
def test_an_index_of_many_problems_has_no_figures(runs: list[Run], tmp_path: Path, problems: int) -> None:
    found = make_runs(runs, tmp_path, SERIAL, ("sync", 2, 2.5, 0.95))
    [section, _] = document_of(found).sections
    sections = tuple(replace(section, title=f"problem {number}") for number in range(problems))
    links = Links(pages=tuple(f"{number}.html" for number in range(problems)))
    index = html_page(Document(title="many", summary=(), sections=sections), links)
    assert index.count('<p class="answer">') == index.count('<div class="command">') == problems
    assert index.count("<svg") == (problems if problems == 12 else 0)


def test_the_figure_shows_training_times_if_nothing_reached_the_target(
    runs: list[Run], tmp_path: Path
) -> None:
    page = document_of(make_runs(runs, tmp_path, SERIAL, ("sync", 2, 2.5, 0.96)), target=0.99)
    figure = opening_of(page).figure
    assert isinstance(figure, Points)
    assert figure.title == "Training time against quality"
    assert [point.x for point in figure.points] == [4.0, 2.5]


# ---- the runs of a search


def report_search(runs: list[Run], folder: Path, *ways: tuple[int, float, int, float, int]) -> Document:
    """Report a search with runs of one process: batch, learning rate, epochs, seconds to 90 % and seed."""
    for batch, rate, epochs, took, seed in ways:
        run = copy_run(runs[0], folder, strategy="serial", ranks=1, threads=1, cores=16, seed=seed, epochs=epochs,
                      batch=batch, lr=rate, draws=None, train_seconds=2 * took, diverged=None)  # fmt: skip
        lines = [
            {"epoch": n, "loss": 1.0, "validation_accuracy": accuracy, "train_seconds": (n + 1) * took / 2}
            for n, accuracy in enumerate([0.5, 0.92 if epochs > 3 else 0.6, *[0.95] * (epochs - 2)][:epochs])
        ]
        (run.folder / "epochs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        rewrite(run.folder / "config.json", asked={"lr": rate, "on": "mpi"}, objects=[])
    about = {"format": 1, "title": "tune: iris", "target": "accuracy>=0.9", "search": {"draws": None}}
    (folder / "study.json").write_text(json.dumps(about))
    return document_of(find_runs([folder]), context=context_of([folder]))


def test_the_candidates_of_a_search_are_rows_of_one_problem(runs: list[Run], tmp_path: Path) -> None:
    page = report_search(
        runs, tmp_path, (64, 2.0, 2, 4.0, 0), (64, 2.0, 6, 4.0, 0), (64, 2.0, 5, 4.2, 1), (64, 4.0, 4, 2.0, 0),
        (256, 4.0, 2, 1.0, 0),
    )  # fmt: skip
    probe = copy_run(find_runs([tmp_path])[0], tmp_path, draws=8)
    page = document_of([*find_runs([tmp_path]), probe], context=context_of([tmp_path]))
    assert len(page.problems) == 1
    found = table(page, "candidates-1")
    assert [row[0] for row in found.rows] == [
        "serial, 1 rank, batch 64, lr 4", "serial, 1 rank, batch 64, lr 2", "serial, 1 rank, batch 256, lr 4",
    ]  # fmt: skip
    assert [row[-1] for row in found.rows] == [1, 2, 1]  # the longest run with each seed
    assert found.rows[1][1] == pytest.approx(4.1)
    assert found.marks == ("best", "", "stopped early")
    first = opening_of(page)
    assert first.sentence.startswith(
        "Use serial, 1 rank, batch 64, lr 4: it reaches 90.00 % first, after 2 s; closest is "
    )
    assert first.sure.endswith("There is no complete run on more than one rank.")
    assert "--batch 64" in first.command
    assert "--epochs 2" in first.command  # as many as it takes, not as many as it had
    assert isinstance(first.figure, Points)
    assert first.figure.title == "Time to 90.00 %"
    assert first.figure.level == (0.9, "target: 90.00 %")
    assert [(point.x, point.stopped) for point in first.figure.points] == [
        (2.0, False), (pytest.approx(4.1), False), (1.0, True),
    ]  # fmt: skip
    assert (
        first.figure.points[2].y == 0.6
    )  # as far as it had come, and the quality at the end of longer runs is not shown
    assert [point.y for point in first.figure.points[:2]] == [0.92, 0.92]
    assert not first.figure.front
    assert [text.lines for text in page.summary] == [
        ("2 of 3 candidates reached 90.00 % (4 runs in total).",)
    ]
    assert "stopped early" in html_page(page)
    assert "*stopped early*" in markdown_page(page, "figures")


def test_the_page_of_a_search_that_goes_on_says_so(runs: list[Run], tmp_path: Path) -> None:
    report_search(runs, tmp_path, (64, 2.0, 2, 4.0, 0), (64, 4.0, 1, 2.0, 0))
    with Folder(tmp_path).lock():
        own = opening_of(document_of(find_runs([tmp_path]), context=context_of([tmp_path])))
        assert own.sentence.startswith(
            "Nothing reached the target of 90.00 %"
        )  # its last report is made by itself
        (tmp_path / LOCK).write_text(f"{os.getppid()}\n")
        page = document_of(find_runs([tmp_path]), context=context_of([tmp_path]))
        assert opening_of(page).sentence.startswith(
            "Nothing has yet reached the target of 90.00 %; closest was "
        )
        assert opening_of(page).sure == "The search is still running; this is the answer so far."
        assert [text.lines for text in page.summary] == [
            ("None of the 2 candidates reached 90.00 % (2 runs so far).",)
        ]
    over = document_of(find_runs([tmp_path]), context=context_of([tmp_path]))
    assert opening_of(over).sentence.startswith("Nothing reached the target of 90.00 %")
    figure = opening_of(over).figure
    assert isinstance(figure, Points)
    assert [point.stopped for point in figure.points] == [
        False,
        True,
    ]  # the other one was stopped after its first epoch


def test_the_page_of_a_search_whose_runs_have_learned_nothing_yet_names_the_target(
    runs: list[Run], tmp_path: Path
) -> None:
    report_search(runs, tmp_path, (64, 2.0, 1, 4.0, 0))
    [run] = find_runs([tmp_path])
    rewrite(run.folder / "summary.json", test_accuracy=0.34)
    with_epochs(run, (1.0, 0.34))
    page = document_of(find_runs([tmp_path]), context=context_of([tmp_path]))
    assert opening_of(page).sentence == (
        "Nothing reached the target of 90.00 %; closest was serial, 1 rank, at 34.00 % after its best epoch."
    )


def test_candidates_that_reached_the_target_in_some_runs_are_counted_apart(
    runs: list[Run], tmp_path: Path
) -> None:
    page = report_search(runs, tmp_path, (64, 2.0, 6, 4.0, 0), (64, 2.0, 2, 4.0, 1), (64, 4.0, 2, 2.0, 0))
    said = "None of the 2 candidates reached 90.00 % in every run; 1 did in some runs (3 runs in total)."
    assert page.summary[0].lines == (said,)


def test_whole_runs_of_a_search_missed_the_target(runs: list[Run], tmp_path: Path) -> None:
    page = report_search(runs, tmp_path, (64, 2.0, 2, 4.0, 0), (64, 4.0, 2, 2.0, 0))
    assert set(table(page, "candidates-1").marks) == {"missed the target"}


def test_a_search_and_its_page_choose_the_same(runs: list[Run], tmp_path: Path) -> None:
    """The simpler of two that are as fast within the noise."""
    report_search(runs, tmp_path, *((64, 2.0, 6, took, seed) for seed, took in enumerate((4.0, 5.0, 4.4))))
    for seed, took in enumerate((3.9, 5.0, 4.3)):
        run = find_runs([tmp_path])[seed]
        more = copy_run(run, tmp_path, strategy="sync", ranks=2, seed=seed, train_seconds=2 * took)
        lines = [
            {"epoch": n, "loss": 1.0, "validation_accuracy": accuracy, "train_seconds": (n + 1) * took / 2}
            for n, accuracy in enumerate([0.5, 0.92, 0.95, 0.95, 0.95])
        ]
        (more.folder / "epochs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    found = opening_of(document_of(find_runs([tmp_path]), context=context_of([tmp_path])))
    assert found.sentence == (
        "Use serial, 1 rank: it reaches 90.00 % after 4.47 s; the difference from 1 other is within the noise."
    )


def test_candidates_that_missed_the_target_are_sorted_by_how_near_they_came(
    runs: list[Run], tmp_path: Path
) -> None:
    report_search(runs, tmp_path, (64, 2.0, 2, 4.0, 0), (64, 4.0, 2, 2.0, 0), (256, 4.0, 2, 1.0, 0))
    for value, run in zip((0.5, 0.7, 0.6), find_runs([tmp_path]), strict=True):
        line = {"epoch": 0, "loss": 1.0, "validation_accuracy": value, "train_seconds": 1.0}
        (run.folder / "epochs.jsonl").write_text(f"{json.dumps(line)}\n")
    page = document_of(find_runs([tmp_path]), context=context_of([tmp_path]))
    assert [row[2] for row in table(page, "candidates-1").rows] == [0.7, 0.6, 0.5]


def test_studies_beside_the_runs_are_named(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/mine").mkdir(parents=True)
    make_runs(runs, Path("runs"), SERIAL)
    (tmp_path / "runs/mine/study.json").write_text(json.dumps({"format": 1, "title": "mine"}))
    assert main(["report", "runs", "-o", "report.md"]) == 0
    assert (
        "not in this report, because they are studies or searches of their own: runs/mine\n"
        in capsys.readouterr().out
    )


def test_of_candidates_the_fastest_is_given_unless_a_simpler_one_is_as_fast(
    runs: list[Run], tmp_path: Path
) -> None:
    report_search(
        runs, tmp_path, (64, 2.0, 6, 4.0, 0), (64, 2.0, 5, 5.0, 1), (64, 4.0, 6, 3.0, 0), (64, 4.0, 5, 4.5, 1),
    )  # fmt: skip
    for folder in (run.folder for run in find_runs([tmp_path]) if run.config["lr"] == 4.0):
        rewrite(folder / "config.json", strategy="hogwild", ranks=2)
        rewrite(folder / "summary.json", ranks=2)
    found = opening_of(document_of(find_runs([tmp_path]), context=context_of([tmp_path]))).sentence
    assert found.startswith(
        "Use hogwild, 2 ranks, lr 4: it reaches 90.00 % first, after 3.75 s, 1.2 times as fast as serial"
    )
    assert found.endswith("; the difference from 1 other is within the noise.")


def test_the_learning_rates_of_a_program_are_candidates_for_one_problem(
    runs: list[Run], tmp_path: Path
) -> None:
    report_search(runs, tmp_path, (64, 0.1, 6, 4.0, 0), (64, 0.2, 6, 3.0, 0))
    for run in find_runs([tmp_path]):
        rate = run.config["lr"]
        rewrite(
            run.folder / "config.json", program={"file": "own.py", "arguments": ["--lr", str(rate)]},
            update=f"SGD(lr={rate})", objects=["data", "model", "update"],
        )  # fmt: skip
    page = document_of(find_runs([tmp_path]), context=context_of([tmp_path]))
    assert [row[0] for row in table(page, "candidates-1").rows] == [
        "serial, 1 rank, --lr 0.2", "serial, 1 rank, --lr 0.1",
    ]  # fmt: skip


def test_candidates_with_the_epochs_of_a_schedule_keep_them(runs: list[Run], tmp_path: Path) -> None:
    page = report_search(runs, tmp_path, (64, 2.0, 6, 4.0, 0), (64, 4.0, 6, 2.0, 0))
    assert "--epochs 6" in opening_of(page).command


def test_runs_that_end_at_a_target_are_compared_by_it(runs: list[Run], tmp_path: Path) -> None:
    found = make_runs(runs, tmp_path, ("serial", 1, 4.0, 0.95), ("sync", 2, 2.5, 0.91))
    for run in found:
        rewrite(run.folder / "config.json", asked={"on": "mpi", "strategy": None, "until": "accuracy>=0.9"})
    page = document_of([Run(run.folder) for run in found])
    assert opening_of(page).sentence.startswith("Use sync, 2 ranks: it reaches 90.00 % first, after 2.5 s")
