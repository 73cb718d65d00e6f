"""What is said of our own runs beside published figures where they diverged, in every format."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from paceline.record import Run
from paceline.report import document_of
from paceline.report.document import Document, Table
from paceline.report.study import STOPPED
from paceline.report.writing import write, write_tables
from paceline.study.folder import Context, Published
from tests.report.conftest import copy_run, table

SERVER = "parameter-server:masters=2,rule=plain"
# Of how many runs how many diverged, by ranks.
STRAY = {4: (3, 0), 8: (3, 2), 16: (3, 3)}
WILD = "the loss stands still"


@pytest.fixture
def report(runs: list[Run], tmp_path: Path) -> Document:
    made = list(runs)
    for ranks, (whole, wild) in STRAY.items():
        for seed in range(whole):
            why = WILD if seed < wild else None
            taken = 0.0352 if why else 2.5
            made.append(copy_run(runs[0], tmp_path, strategy=SERVER, ranks=ranks, seed=seed, threads=1,
                                train_seconds=taken, diverged=why, test_accuracy=0.1))  # fmt: skip
    figures = [Published(strategy=SERVER, ranks=ranks, seconds=3.8, accuracy=0.1) for ranks in STRAY]
    return document_of(made, context=Context(published=tuple(figures)))


def find_table(page: Document) -> Table:
    return table(page, "published-1")


def test_no_time_of_ours_where_runs_were_stopped(report: Document) -> None:
    table = find_table(report)
    names = [column.name for column in table.columns]
    rows = {row[names.index("ranks")]: dict(zip(names, row, strict=True)) for row in table.rows}
    assert {ranks: row["our time (s)"] for ranks, row in rows.items()} == {
        4: 2.5,
        8: "2 of 3 diverged",
        16: "diverged",
    }
    assert [row["our accuracy"] for row in rows.values()] == pytest.approx([0.1] * 3)
    assert table.caption.endswith(STOPPED)


def test_nothing_is_said_of_runs_that_were_not_stopped(runs: list[Run]) -> None:
    context = Context(published=(Published(strategy="serial", ranks=1, seconds=3.8),))
    table = find_table(document_of(runs, context=context))
    assert STOPPED not in table.caption
    assert isinstance(table.rows[0][3], float)


def page_of(runs: list[Run], *figures: Published) -> Document:
    return document_of(runs, context=Context(published=figures))


def test_what_all_figures_have_in_common_is_said_once(runs: list[Run], tmp_path: Path) -> None:
    who, what = "a course report of many words", "20 passes"
    figures = [
        Published(strategy=name, ranks=ranks, seconds=3.8, source=who, what=what, setting=setting)
        for name, setting in (("psgd", "their laptop"), ("sync", ""))
        for ranks in (1, 2)
    ]
    page = page_of(runs, *figures)
    table = find_table(page)
    assert [column.name for column in table.drop_unseen().columns][-1] == "published time (s)"
    assert {len(row) for row in table.drop_unseen().rows} == {3}
    assert table.caption.startswith(
        f"Time of: {what}. Source: {who}. Setting: their laptop (psgd). Published "
    )
    folder = tmp_path / "written"
    folder.mkdir()
    for name in ("a.html", "a.md"):
        write(page, folder / name)
        assert (folder / name).read_text().count(who) == 1
    write_tables(page, folder)
    with (folder / "published-1.csv").open(newline="") as file:
        assert [(row["source"], row["setting"]) for row in csv.DictReader(file)] == [
            (figure.source, figure.setting) for figure in figures
        ]


def test_what_differs_stays_in_the_table(runs: list[Run]) -> None:
    figures = [Published(strategy="psgd", ranks=n, seconds=3.8, source=f"their {n}") for n in (1, 2)]
    table = find_table(page_of(runs, *figures))
    assert [column.name for column in table.drop_unseen().columns][-1] == "source"
    assert "Source" not in table.caption


def test_every_format_says_so(report: Document, tmp_path: Path) -> None:
    folder = tmp_path / "written"
    folder.mkdir()
    for name in ("a.html", "a.md"):
        write(report, folder / name)
    (line,) = [
        line for line in (folder / "a.md").read_text().splitlines() if line.startswith(f"| † {SERVER} | 8 |")
    ]
    assert "| 3.80 | 2 of 3 diverged | 10.00 % |" in line
    page = re.sub(r"<[^>]+>", " ", (folder / "a.html").read_text())
    assert " ".join(page.split()).count("16 3.80 diverged 10.00 % 10.00 %") == 1
    write_tables(report, tmp_path / "tables")
    with (tmp_path / "tables" / "published-1.csv").open(newline="") as file:
        times = [row["our time (s)"] for row in csv.DictReader(file)]
    assert times == ["2.5", "2 of 3 diverged", "diverged"]
