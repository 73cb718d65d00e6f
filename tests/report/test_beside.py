"""What stands beside the runs of a report: a study's words, targets, published figures, failed cells, other machines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from paceline.compare.metric import Goal
from paceline.errors import UsageError
from paceline.figures import Bars, Histogram, Lines
from paceline.record import Run, find_runs
from paceline.report import bench_section, document_of
from paceline.report.document import Document, Table, Text
from paceline.report.html import html_page
from paceline.report.writing import markdown_page
from paceline.study.folder import Context, context_of
from tests.report.conftest import copy_run, on_two_ranks, rewrite, table
from tests.simulate.costs import PROCESSOR

ROOT = Path(__file__).parents[2]


def titles(page: Document) -> list[str]:
    return [inner.title for section in page.sections for inner in (section, *section.sections)]


def said(page: Document) -> str:
    return "\n".join(line for text in page.summary for line in text.lines)


@pytest.fixture
def study(matrix: Path, tmp_path: Path) -> Path:
    """A study's folder: some of the runs, published figures, and cells that failed."""
    for path in matrix.glob("*-s0"):
        if "sync-allreduce-ring" in path.name or "serial" in path.name or "parameter" in path.name:
            shutil.copytree(path, tmp_path / path.name)
    published = [
        {"strategy": "sync:allreduce=ring", "ranks": 4, "seconds": 34.1, "accuracy": 0.904, "source": "the course"},
        {"strategy": "sync:allreduce=ring", "ranks": 8, "seconds": 42.0, "accuracy": 0.897, "source": "the course"},
        {"strategy": "parameter-server:masters=2,rule=plain", "ranks": 8, "accuracy": 0.1, "source": "the course"},
        {"strategy": "psgd", "ranks": 1, "accuracy": 0.976, "of": "training", "seconds": 727.2, "what": "20 epochs"},
        {"strategy": "sync:allreduce=ring", "ranks": 2, "seconds": 1.0, "problem": {"data": "mnist"}},
        {"strategy": "sync:allreduce=ring", "ranks": 2, "seconds": 1.0, "problem": {"data": "iris", "draws": 3}},
        {"strategy": "sync:allreduce=ring", "ranks": 0, "seconds": 9.0, "accuracy": 0.5, "source": "the course"},
    ]  # fmt: skip
    (tmp_path / "study.json").write_text(
        json.dumps(
            {"title": "ring or server", "question": "which?", "target_accuracy": 0.5, "published": published}
        )
    )
    (tmp_path / "failed").mkdir()
    mine = {
        "data": "iris",
        "model": "mlp:8",
        "strategy": "sync:allreduce=ring",
        "ranks": 16,
        "batch": 10,
        "lr": None,
    }
    other = {"data": "mnist", "strategy": "serial", "ranks": 1}
    for name, settings in (("a", mine), ("b", other)):
        cell = {"settings": settings, "why": "rank 3 was killed", "status": 137}
        (tmp_path / "failed" / f"{name}.json").write_text(json.dumps(cell))
    return tmp_path


def test_a_study_is_told_with_its_runs(study: Path) -> None:
    page = document_of(find_runs([study]), context=context_of([study]))
    assert page.title == "ring or server"
    assert page.summary[0].lines == ("which?",)
    answer = page.problems[0].opening
    assert answer is not None
    for text in (html_page(page), markdown_page(page, "figures")):
        assert text.index("which?") < text.index(answer.sentence.split(":")[0])  # right above the answer
    assert "the study's target of 50.00 %" in said(page)
    assert "1 cell failed: sync:allreduce=ring, 16 ranks: rank 3 was killed." in said(page)
    assert "1 cell failed: serial, 1 rank, mnist: rank 3 was killed." in said(
        page
    )  # of a problem that has no run
    results = table(page, "results-1")
    assert results.rows[-1][:4] == ("sync:allreduce=ring", 16, None, "failed")
    assert results.marks[-1] == "failed"
    assert table(page, "failed").rows == (("serial, 1 rank", "mnist", None, "rank 3 was killed"),)


def test_published_figures_stand_beside_ours(study: Path) -> None:
    page = document_of(find_runs([study]), context=context_of([study]))
    shown = table(page, "published-1")
    rows = [dict(zip([column.name for column in shown.columns], row, strict=True)) for row in shown.rows]
    accuracies = [row["published accuracy"] for row in rows]
    assert accuracies == [
        0.904,
        0.897,
        0.1,
        0.976,
        0.5,
    ]  # those of mnist, and of other draws, are no figures of these runs
    ours = json.loads(next(study.glob("*ring-n4-s0/summary.json")).read_text())
    names = {row["strategy"]: row for row in rows[:1]}
    assert names["sync:allreduce=ring"]["our accuracy"] == ours["test_accuracy"]
    assert rows[1]["our time (s)"] is None
    assert (rows[4]["ranks"], rows[4]["our time (s)"]) == (None, None)  # in no curve either
    assert (rows[3]["accuracy of"], rows[3]["our accuracy"], rows[3]["time of"]) == (
        "training",
        None,
        "20 epochs",
    )
    figures = {block.name: block for block in page.blocks() if isinstance(block, Lines)}
    theirs = {c.label: (c.x, c.y) for c in figures["accuracy-1"].curves if c.origin == "published"}
    assert theirs == {
        "sync:allreduce=ring, published": ((4.0, 8.0), (0.904, 0.897)),
        # Of 8 ranks 6 compute.
        "parameter-server:masters=2,rule=plain, published": ((6.0,), (0.1,)),
    }
    theirs = {c.label: (c.x, c.y) for c in figures["time-1"].curves if c.origin == "published"}
    assert theirs == {
        "sync:allreduce=ring, published: the course": ((4.0, 8.0), (34.1, 42.0)),
        "psgd, 20 epochs, published": ((1.0,), (727.2,)),
    }
    alone = document_of(find_runs([study]))
    assert table(alone, "laws-1") == table(page, "laws-1")  # nothing of theirs is fitted
    verdicts = [page.summary[1].lines[0], alone.summary[0].lines[0]]
    assert verdicts[0] == verdicts[1]


def test_targets(matrix: Path, runs: list[Run]) -> None:
    found = find_runs([matrix])
    assert "the target of 2.00 %, as asked for: " in said(document_of(found, target=0.02))
    context = Context(target=Goal.parse("0.3"))
    assert "target of 2.00 %, as asked for" in said(document_of(found, target=0.02, context=context))
    nobody = said(document_of(found, target=1.0))
    assert "Nothing reached the target of 100.00 %, as asked for; closest was " in nobody
    for wrong in (0.0, 92.0):
        with pytest.raises(UsageError, match=r"must be above 0 and at most 1; got"):
            document_of(runs, target=wrong)
    without = [run for run in found if run.config["strategy"] != "serial"]
    assert "one point below the best accuracy of all, since no serial run was made" in said(
        document_of(without)
    )


def test_first_to_reach_the_target(runs: list[Run], tmp_path: Path) -> None:
    made = []
    paths = {"serial": [0.5, 0.9], "sync": [0.91, 0.92], "psgd": [None, 0.95], "hogwild": [0.2, 0.3]}
    for strategy, accuracies in paths.items():
        ranks = 1 if strategy == "serial" else 2
        run = copy_run(runs[0], tmp_path, strategy=strategy, threads=1, ranks=ranks, cores=4)
        lines = [
            {"epoch": e, "step": 0, "loss": 1.0, "validation_loss": 1.0, "validation_accuracy": a, "train_seconds": 2.0 + e}
            for e, a in enumerate(accuracies)
        ]  # fmt: skip
        (run.folder / "epochs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        made.append(Run(run.folder))
    page = document_of(made)
    assert (
        "First to reach the target of 89.00 %, one point below the best serial accuracy on the validation samples: "
        "sync, 2 ranks, in 2.00 s; serial took 3.00 s; not reached by hogwild." in said(page)
    )
    bars = next(block for block in page.blocks() if isinstance(block, Bars) and block.name == "to-target-1")
    assert {bar.strategy: bar.words for bar in bars.bars} == {
        "serial": "3.00 s",
        "sync": "2.00 s",
        "psgd": "3.00 s",
        "hogwild": "not reached; at best 30.00 %",
    }


def test_two_machines(matrix: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(matrix, other, ignore=shutil.ignore_patterns("model.npz", "costs.json"))
    for path in other.glob("*/environment.json"):
        rewrite(path, processor="one of theirs", host="elsewhere", cores=64)
    first, both = document_of(find_runs([matrix])), document_of(find_runs([matrix, other]))
    assert [section.title for section in both.sections] == [
        f"iris, mlp:8, on {PROCESSOR}",
        "iris, mlp:8, on one of theirs",
        "Environment",
    ]
    notes = [section.note for section in both.sections[:2]]
    assert notes[0].endswith(f"on {PROCESSOR}")
    assert notes[1].endswith("on one of theirs")
    assert both.sections[0].sections == first.sections[0].sections  # nothing of the other's is mixed in
    shown = table(both, "environment")
    assert [column.name for column in shown.columns] == ["fact", "machine 1", "machine 2"]
    facts = {row[0]: row[1:] for row in shown.rows}
    assert facts["processor"] == (PROCESSOR, "one of theirs")
    assert facts["cores"] == ("4", "64")
    assert facts["host"][1] == "elsewhere"
    assert "host" not in {row[0] for row in table(first, "environment").rows}
    names = [block.name for block in both.blocks() if not isinstance(block, Text)]
    assert len(names) == len(set(names))


def test_the_environment_is_said_once(runs: list[Run], tmp_path: Path) -> None:
    library = "Open MPI v5.0.11, package: Open MPI user@host Distribution, ident: 5.0.11"
    page = document_of([runs[0], copy_run(runs[0], tmp_path, mpi=library, strategy="sync")])
    shown = table(page, "environment")
    assert len(shown.columns) == 2
    assert dict(shown.rows)["MPI"] == "Open MPI v5.0.11"  # type: ignore[arg-type]
    assert len({row[0] for row in shown.rows}) == len(shown.rows)


def test_a_report_on_one_run_is_short(matrix: Path, runs: list[Run]) -> None:
    page = document_of(runs[:1])
    assert titles(page) == ["iris, mlp:6", "Where the time went", "Environment"]
    assert [type(block) for block in page.blocks()] == [Text, Table, Bars, Table]
    assert said(page).startswith("serial, 1 rank")
    assert page.summary[0].title == "iris, mlp:6"
    longer = document_of([next(run for run in find_runs([matrix]) if run.config["strategy"] == "serial")])
    assert [b.name for b in longer.blocks() if isinstance(b, (Lines, Bars, Histogram))] == [
        "loss-time-1",
        "validation-time-1",
        "time-split-1",
    ]


def test_time_alone_has_no_accuracy(matrix: Path) -> None:
    alone = [run for run in find_runs([matrix]) if run.simulated and not run.simulated["compute"]]
    page = document_of(alone)
    assert titles(page)[-3:] == ["Where the time went", "Messages", "Environment"]
    accuracy = [column.name for column in table(page, "results-1").columns].index("test accuracy")
    assert table(page, "results-1").rows[0][accuracy] is None
    assert not any(isinstance(block, Lines) for block in page.blocks())


def test_what_diverged_is_marked(runs: list[Run], tmp_path: Path) -> None:
    why = "the loss has risen to 7.5, from 2.3 at first in epoch 1"
    ways = (("serial", 3.0, 0.93), ("sync", 2.0, 0.93), ("gossip", 0.1, 0.1, why))
    page = document_of(on_two_ranks(runs, tmp_path, *ways))
    results = table(page, "results-1")
    assert {row[0]: mark for row, mark in zip(results.rows, results.marks, strict=True)} == {
        "serial": "",
        "gossip": "diverged",
        "sync": "best",
    }
    assert next(row for row in results.rows if row[0] == "gossip")[3] == "diverged"  # and not 30 times
    opening = page.sections[0].opening
    assert opening is not None
    assert f"gossip, 2 ranks, diverged: {why}" in opening.notices
    bars = next(block for block in page.blocks() if isinstance(block, Bars) and block.name == "time-split-1")
    assert next(bar.words for bar in bars.bars if bar.strategy == "gossip") == "0.100 s  diverged"


def test_nothing_to_report() -> None:
    with pytest.raises(UsageError, match="no complete runs"):
        document_of([])


# ---- the allreduce benchmark


def test_the_benchmark_beside_theory_and_mpi() -> None:
    path = ROOT / "benchmarks/results/allreduce.json"
    result = json.loads(path.read_text())
    section = bench_section(path, 2)
    figures = [block for block in section.blocks if isinstance(block, Lines)]
    assert [figure.name for figure in figures] == [
        f"allreduce-2-{n}" for n in range(1, len(result["jobs"]) + 1)
    ]
    for figure, job in zip(figures, result["jobs"], strict=True):
        for curve in figure.curves:
            cells = [cell for cell in job["cells"] if cell["algorithm"] == curve.strategy]
            assert curve.x == tuple(cell["size"] for cell in cells)
            key = "model" if curve.origin == "theory" else "median"
            assert curve.y == pytest.approx([1e6 * cell[key] for cell in cells])
            if curve.origin == "measured":
                assert curve.low == pytest.approx([1e6 * cell["p10"] for cell in cells])
                assert curve.high == pytest.approx([1e6 * cell["p90"] for cell in cells])
    labels = {curve.label for curve in figures[0].curves}
    assert {"ring", "ring: model", "native (MPI's own)"} <= labels
    first = next(block for block in section.blocks if isinstance(block, Table))
    assert len(first.rows) == len(result["jobs"][0]["cells"])


@pytest.mark.parametrize("text", ["[]", "{}", '{"benchmark": "allreduce", "dtype": "f4", "jobs": [{}]}', "x"])
def test_what_is_no_benchmark_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UsageError, match=r"a\.json is not "):
        bench_section(tmp_path / "a.json")


# ---- several studies at once


def test_each_study_has_its_own_target(runs: list[Run], tmp_path: Path) -> None:
    def page(*told: tuple[str, float | None, int]) -> Document:
        for number, (name, target, batch) in enumerate(told):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
            (tmp_path / name).mkdir()
            for strategy in ("serial", "sync"):
                copy_run(
                    runs[0],
                    tmp_path / name,
                    strategy=strategy,
                    batch=batch,
                    threads=1,
                    train_seconds=3.0 + number,
                )
            study = {"title": name, "question": f"{name}?", "target_accuracy": target}
            (tmp_path / name / "study.json").write_text(json.dumps(study))
        places = [tmp_path / name for name, *_ in told]
        return document_of(find_runs(places), context=context_of(places))

    apart = page(("a", 0.9, 10), ("b", 0.8, 20))
    assert apart.title == "a / b"
    assert apart.summary[0].lines == ("a: a?", "b: b?")
    assert ["the study's target of 90.00 %" in str(text.lines) for text in apart.summary] == [
        False,
        True,
        False,
    ]
    assert ["the study's target of 80.00 %" in str(text.lines) for text in apart.summary] == [
        False,
        False,
        True,
    ]
    assert "the study's target of 90.00 %" in said(page(("a", 0.9, 10), ("b", None, 10)))
    assert "which differ (80.00 %, 90.00 %)" in said(page(("a", 0.9, 10), ("b", 0.8, 10)))
