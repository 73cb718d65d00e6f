"""What ranks send is told for the same samples of every strategy, and is what the formulas beside it come to."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import fit
from paceline.compare.rows import rows_of
from paceline.compare.theory import epoch_samples, epochs_of
from paceline.figures import Lines
from paceline.record import Run, find_runs
from paceline.report import document_of
from paceline.report.document import Section, Table, data_of
from paceline.report.exchange import traffic
from tests.report.conftest import copy_run, rewrite, table
from tests.simulate.costs import COSTS

PARAMETERS = 67
PER_RANK = {"batch": None, "batch_per_rank": 4}
STRATEGIES = [
    ("sync:allreduce=ring", 2),
    ("sync:allreduce=ring", 4),
    ("sync:allreduce=naive", 3),
    ("main-worker", 2),
    ("main-worker", 4),
    ("weight-average:allreduce=native", 2),
    ("weight-average:allreduce=native", 4),
    ("weight-average:allreduce=recursive-doubling", 3),
    ("local-sgd:every=4,warmup=3,allreduce=rabenseifner", 3),
    ("elastic:every=2,allreduce=ring", 2),
    ("psgd:allreduce=ring", 3),
    ("parameter-server", 3),
    ("parameter-server:masters=2", 4),
]


def simulate_runs(folder: Path, strategies: list[tuple[str, int]], **settings: Any) -> list[Run]:
    costs = folder / "costs.json"
    COSTS.save(costs)
    one: dict[str, Any] = {"data": "iris", "model": "mlp:8", "epochs": 2, "lr": 0.1, "threads": 1, **settings}
    for strategy, ranks in strategies:
        fit(strategy=strategy, ranks=ranks, on="sim", machine=str(costs), runs=folder, quiet=True, **one)
    return find_runs([folder])


def figure_and_table(section: Section | None) -> tuple[Lines | None, Table]:
    assert section is not None
    figure = next((block for block in section.blocks if isinstance(block, Lines)), None)
    return figure, next(block for block in section.blocks if isinstance(block, Table))


def worked_out(words: str, ranks: int) -> float:
    """The number that a formula comes to, as it is written."""
    formula = words.partition(":")[0].replace(",", "").replace(" x ", " * ")
    written = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", formula)
    names = {"p": ranks, "n": PARAMETERS, "log2": math.log2, "__builtins__": {}}
    return float(eval(written, names))


@pytest.mark.parametrize(
    "settings",
    [
        {"batch": 8},
        PER_RANK,
        {"batch": 8, "draws": 12},
        {**PER_RANK, "draws": 12},
    ],
)
def test_one_unit_for_every_strategy(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Counted, theory and the formula as it is written are of the same samples."""
    runs = simulate_runs(tmp_path, STRATEGIES, **settings)
    one = 120 if "draws" not in settings else 12 * (settings["batch"] or 4)
    figure, told = figure_and_table(traffic(rows_of(runs), 1))
    assert f"as one process computes in an epoch ({one:,})" in told.caption
    by_label = {row[0]: row for row in told.rows}
    assert len(by_label) == len(STRATEGIES)
    for run in runs:
        strategy, ranks = run.config["strategy"], run.config["ranks"]
        label = f"{strategy}, {ranks} ranks"
        _, sent, theory, messages, theory_messages, words = by_label[label]
        computed = int(run.steps["count"].sum())
        for counted, what in ((sent, "bytes_sent"), (messages, "messages_sent")):
            assert counted == pytest.approx(run.summary[what] * one / computed), label
        assert (theory, theory_messages) == (pytest.approx(sent), pytest.approx(messages)), label
        by_formula = 4 * worked_out(str(words), ranks)
        if strategy.startswith("parameter-server"):  # headers, and the parts of other masters, are not in it
            assert 0.7 * sent < by_formula < sent  # type: ignore[operator]
        else:
            assert by_formula == pytest.approx(sent, rel=1e-3), (
                label
            )  # how often is written with three decimals
    assert figure is not None
    assert (figure.y.label, told.columns[1].name) == ("MB per epoch", "bytes per epoch")
    assert f"in an epoch ({one:,})" in figure.caption
    for name, at, value, *_ in data_of(figure).rows:
        row = by_label[f"{str(name).removesuffix(': theory')}, {at:g} ranks"]
        assert 1e6 * value == pytest.approx(row[2 if str(name).endswith(": theory") else 1])  # type: ignore[operator]


def test_what_averages_is_divided_by_the_same_samples_as_what_shares_batches(tmp_path: Path) -> None:
    """Of one problem the totals of two runs are to each other as their rows."""
    strategies = [("main-worker", 4), ("weight-average:allreduce=native", 4)]
    runs = simulate_runs(tmp_path, strategies, **PER_RANK)
    _, told = figure_and_table(traffic(rows_of(runs), 1))
    main, average = (row[1] for row in told.rows)
    totals = {run.config["strategy"]: run.summary["bytes_sent"] for run in runs}
    assert main / average == pytest.approx(  # type: ignore[operator]
        totals["main-worker"] / totals["weight-average:allreduce=native"]
    )
    assert [row[5] for row in told.rows] == [
        "8 x (p - 1) (2 n + 1): at every batch",
        "8 x p (n + 1): native, at every turn, as handed to MPI",
    ]


def test_a_run_that_was_stopped_is_left_out_where_others_were_not(tmp_path: Path) -> None:
    folder, other = tmp_path / "made", tmp_path / "more"
    folder.mkdir()
    other.mkdir()
    (run,) = simulate_runs(folder, [("sync:allreduce=ring", 3)], batch=8)
    seconds = run.summary["train_seconds"]
    stopped = copy_run(
        run, other, diverged="the loss stands still", bytes_sent=999, samples_per_second=24 / seconds
    )
    assert epochs_of(stopped) == 24 / 120
    _, told = figure_and_table(traffic(rows_of([run, stopped]), 1))
    assert told.rows[0][1] == told.rows[0][2] == run.summary["bytes_sent"] / 2
    _, told = figure_and_table(traffic(rows_of([stopped]), 1))
    assert told.rows[0][1:3] == (pytest.approx(999 * 120 / 24), None)
    assert told.rows[0][5] == "none: it was stopped"


def test_records_that_do_not_tell_their_samples(runs: list[Run], tmp_path: Path) -> None:
    old = copy_run(runs[0], tmp_path)
    values = {key: value for key, value in old.config.items() if key != "samples"}
    (old.folder / "config.json").write_text("{}")
    rewrite(old.folder / "config.json", **values)
    assert epoch_samples(Run(old.folder)) is None
    assert epochs_of(Run(old.folder)) == 1.0


def test_messages_are_those_of_the_formulas(matrix: Path) -> None:
    """Of runs on real ranks, and on simulated ones on several nodes."""
    runs = find_runs([matrix])
    page = document_of(runs)
    told = table(page, "messages-1")
    by_label: dict[str, list[Run]] = {}
    for run in runs:
        if run.config["ranks"] > 1:
            foretold = run.simulated
            words = "" if foretold is None else f" (simulated: {foretold['network']}"
            words += "" if foretold is None else (")" if foretold["compute"] else ", time only)")
            by_label.setdefault(f"{run.config['strategy']}, {run.config['ranks']} ranks{words}", []).append(
                run
            )
    assert {row[0] for row in told.rows} == set(by_label)
    for label, sent, theory, messages, theory_messages, words in told.rows:
        of_row = [run.summary for run in by_label[str(label)]]
        assert sent == pytest.approx(np.mean([summary["bytes_sent"] for summary in of_row]) / 3)
        assert messages == pytest.approx(np.mean([summary["messages_sent"] for summary in of_row]) / 3)
        if str(words).startswith("none"):
            assert theory is theory_messages is None
            assert str(label).startswith(("gossip", "hogwild, 4"))  # hogwild: on several nodes
        else:
            assert (theory, theory_messages) == (pytest.approx(sent), pytest.approx(messages)), label
    n, p, batches = PARAMETERS, 3, 12
    rows = {row[0]: row for row in told.rows}
    assert rows["sync:allreduce=naive, 3 ranks"][1] == batches * p * (p - 1) * n * 4
    assert rows["sync:allreduce=ring, 3 ranks"][1] == batches * 2 * (p - 1) * n * 4
    assert rows["hogwild, 2 ranks"][1] == 0
    figure = next(block for block in page.blocks() if isinstance(block, Lines) and block.name == "bytes-1")
    drawn = {curve.label: curve for curve in figure.curves}
    ring = drawn["sync:allreduce=ring"]
    assert ring.y == drawn["sync:allreduce=ring: theory"].y
    assert ring.y == tuple(batches * 2 * (p - 1) * n * 4 / 1e6 for p in (2, 3, 4))
    assert drawn["sync:allreduce=ring: theory"].origin == "theory"
