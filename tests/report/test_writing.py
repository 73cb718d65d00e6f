"""Reports as files, in every format."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest

from paceline import UsageError
from paceline.cli import main
from paceline.figures import settings
from paceline.record import Run
from paceline.report.document import Column, Document, Section, Table, Text
from paceline.report.html import html_page
from paceline.report.pdf import GAP, HEIGHT, LEFT, WIDTH, Pages, TableLayout, pdf_bytes
from paceline.report.writing import check, write, write_figures, write_tables
from tests.figures.seen import seen_texts
from tests.report import documents


@pytest.fixture(scope="module")
def report() -> Document:
    return documents.document(title="one & <two>")


@pytest.fixture(scope="module")
def small() -> Document:
    blocks = (documents.runs_table(), documents.ages())
    return Document(title="small", summary=(), sections=(Section(title="s", blocks=blocks),))


def test_the_same_report_is_the_same_file(small: Document) -> None:
    assert html_page(small) == html_page(small)
    made = pdf_bytes(small)
    assert made == pdf_bytes(small)
    assert b"CreationDate" not in made


def test_a_page_is_whole(report: Document, tmp_path: Path) -> None:
    write(report, tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text()
    assert "<h1>one &amp; &lt;two&gt;</h1>" in text
    assert "fast | and &lt;good&gt;" in text
    names = re.findall(r' id="([^"]+)"', text)
    assert len(names) == len(set(names))  # also those of two drawings of one figure
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', text)) <= set(names)
    assert {path.name for path in tmp_path.iterdir()} == {"a.html", "a-files"}
    links = set(re.findall(r'href="(a-files/[^"]+)"', text))
    assert {f"a-files/{path.name}" for path in (tmp_path / "a-files").glob("[!.]*")} == links
    assert {path.rpartition(".")[2] for path in links} == {"svg", "csv"}


def test_markdown_has_its_figures_beside_it(report: Document, tmp_path: Path) -> None:
    write(report, tmp_path / "a b.md")
    text = (tmp_path / "a b.md").read_text()
    links = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert len(links) == 6
    for link in links:
        assert (tmp_path / link.replace("%20", " ")).read_text().count("<svg") == 1
    rows = [line for line in text.splitlines() if line.startswith("|")]
    cells = {len(re.findall(r"(?<!\\)\|", row)) for row in rows[:8]}
    assert cells == {9}
    assert "★ sync:allreduce=ring" in text


def test_a_pdf_has_pages_and_no_text_leaves_them(report: Document) -> None:
    with settings("test"):
        pages = Pages(report)
        written = pages.write()
        seen = [found for page in pages.pages for found in seen_texts(page)]
    assert len(re.findall(rb"/Type /Page\b", written)) == len(pages.pages) >= 4
    for words, box in seen:
        assert LEFT - 2 <= box.x0 < box.x1 <= WIDTH - LEFT + 2, words
        assert 0 <= box.y0 < box.y1 <= HEIGHT, words
    words = "".join(words for words, _ in seen).replace("\n", "").replace(" ", "")
    for figure in report.figures():
        assert figure.title.replace(" ", "") in words
        assert figure.x.label.replace(" ", "") in words


def test_long_tables_take_several_pages_with_their_headings(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(Pages, "put", lambda pages, x, y, words, size, **look: drawn.append(words))
    rows = tuple((f"row {number}", number) for number in range(150))
    columns = (Column(name="what"), Column(name="ranks", kind="count"))
    table = Table(name="t", title="Long", columns=columns, rows=rows)
    text = Text(lines=("word " * 3000,))
    made = pdf_bytes(Document(title="t", summary=(), sections=(Section(title="s", blocks=(table, text)),)))
    assert len(re.findall(rb"/Type /Page\b", made)) >= 6
    assert [words for words in drawn if words.startswith("row ")] == [name for name, _ in rows]
    assert drawn.count("what") == drawn.count("ranks") >= 3
    assert sum(words.count("word") for words in drawn) == 3000


def test_wide_tables_are_made_to_fit() -> None:
    wide = Table(
        name="w", title="Wide", columns=tuple(Column(name=f"column {k}") for k in range(14)),
        rows=(tuple(f"long value {k} of a row" for k in range(14)),),
    )  # fmt: skip
    layout = TableLayout(wide, 500.0)
    assert sum(layout.widths) + GAP * 14 <= 500.1
    cells = ["".join(lines).replace(" ", "") for lines in layout.cells[0]]
    assert cells == [f"longvalue{k}ofarow" for k in range(14)]  # broken, and nothing lost


def test_tables_and_data_are_csv_with_raw_extent(report: Document, tmp_path: Path) -> None:
    made = write_tables(report, tmp_path / "tables")
    assert len(made) == 8
    with (tmp_path / "tables/runs-1.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[1]["strategy"] == documents.RING
    assert float(rows[1]["test accuracy (fraction)"]) == 0.914
    assert float(rows[2]["bytes sent"]) == 2_765_300_000
    assert [row["mark"] for row in rows] == ["", "best", "diverged", "failed", "simulated", "published"]
    with (tmp_path / "tables/speedup-1.csv").open(newline="") as file:
        points = list(csv.DictReader(file))
    expected = [
        (curve.label, x, y, curve.origin)
        for curve in documents.speedup().curves
        for x, y in zip(curve.x, curve.y, strict=True)
    ]
    assert [(p["curve"], p["origin"]) for p in points] == [
        (label, origin) for label, _, _, origin in expected
    ]
    assert [float(p["ranks"]) for p in points] == [x for _, x, _, _ in expected]
    assert [p["speedup against one process"] for p in points] == [
        "" if y is None else str(y) for _, _, y, _ in expected
    ]


def test_figures_are_png_and_svg(small: Document, tmp_path: Path) -> None:
    made = write_figures(small, tmp_path / "figures")
    assert sorted(path.name for path in made) == ["ages-1.png", "ages-1.svg"]


def test_what_an_earlier_report_left_is_removed(small: Document, tmp_path: Path) -> None:
    more = (*small.sections[0].blocks, documents.split(), documents.reached())
    large = Document(title="large", summary=(), sections=(Section(title="s", blocks=more),))
    write_tables(large, tmp_path / "out")
    write_figures(large, tmp_path / "out", formats=("svg",))
    write(large, tmp_path / "a.md")
    (tmp_path / "out/mine.csv").write_text("mine")
    (tmp_path / "out/split-1.csv").write_text("edited")
    write_tables(small, tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out").glob("*.csv"))
    assert names == ["ages-1.csv", "mine.csv", "runs-1.csv", "split-1.csv"]
    assert len(list((tmp_path / "out").glob("*.svg"))) == 3  # which are not its own
    write(small, tmp_path / "a.md")
    assert [path.name for path in (tmp_path / "a-figures").glob("*.svg")] == ["ages-1.svg"]
    write(Document(title="none", summary=(), sections=()), tmp_path / "a.md")
    assert list((tmp_path / "a-figures").glob("*.svg")) == []


def test_a_list_that_leads_elsewhere_removes_nothing(small: Document, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "a.csv").write_text("1")
    names = {
        "../a.csv": hashlib.sha256(b"1").hexdigest(),
        str(tmp_path / "a.csv"): hashlib.sha256(b"1").hexdigest(),
    }
    for text in (json.dumps(names), "[]", "x"):
        (tmp_path / "out/.paceline-report.json").write_text(text)
        write_tables(small, tmp_path / "out")
        assert (tmp_path / "a.csv").exists()


@pytest.mark.parametrize("option", ["-o", "--figures", "--tables", "--bench"])
def test_empty_names_are_refused(runs: list[Run], capsys: pytest.CaptureFixture[str], option: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report", str(runs[0].folder), option, ""])
    assert ended.value.code == 2
    assert capsys.readouterr().err.rstrip().endswith("must be a name; got an empty one")


# ---- what cannot be written


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder.html").mkdir()
    for paths, folders, words in (
        (["a.txt"], [], "unknown format of .*a.txt; its name must end with one of .html, .md, .pdf"),
        (["a"], [], "unknown format"),
        (["gone/a.html"], [], "cannot write .*a.html: there is no folder .*gone"),
        (["folder.html"], [], "it is a folder"),
        ([], ["file"], "cannot write into .*file: it is not a folder"),
        ([], ["gone/figures"], "there is no folder"),
        (["/proc/a.html"], [], "cannot write /proc/a.html: "),
    ):
        with pytest.raises(UsageError, match=words):
            check([tmp_path / path for path in paths], [tmp_path / folder for folder in folders])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.html"]


def test_a_report_that_cannot_be_made_leaves_the_old_one(tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    page.write_text("old")
    bad = Table(name="t", title="", columns=(Column(name="a"),), rows=(("one", "too many"),))
    with pytest.raises(ValueError):
        write(Document(title="t", summary=(), sections=(Section(title="s", blocks=(bad,)),)), page)
    assert page.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


# ---- the command


def test_the_command_writes_all_that_is_asked_for(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for run in runs[:2]:
        shutil.copytree(run.folder, tmp_path / "runs" / run.folder.name)
    asked = "runs -o a.md -o a.pdf --figures figures --tables tables --title Mine --target 0.5"
    assert main(["report", *asked.split()]) == 0
    printed = capsys.readouterr().out
    assert "serial, 1 rank" in printed
    assert printed.endswith("report: a.md\nreport: a.pdf\nfiles: figures\nfiles: tables\n")
    assert (tmp_path / "a.md").read_text().startswith("# Mine\n")
    assert {path.suffix for path in (tmp_path / "figures").glob("[!.]*")} == {".png", ".svg"}
    assert (tmp_path / "tables/results-1.csv").read_text().startswith("strategy,ranks,time (s),")
    assert not (tmp_path / "report.html").exists()
    assert main(["report", "runs"]) == 0
    assert "</html>" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-o a.docx", "unknown format of a.docx; its name must end with one of .html, .md, .pdf"),
        ("--figures gone/figures", "cannot write gone/figures: there is no folder gone"),
        ("--tables gone/tables", "cannot write gone/tables: there is no folder gone"),
        ("-o gone/a.html", "cannot write gone/a.html: there is no folder gone"),
        ("--target 90", "a target accuracy must be above 0 and at most 1; got 90; write 90% for percent"),
        ("--bench gone.json", "cannot read gone.json: no such file or directory"),
    ],
)
def test_bad_options_get_one_line_before_anything_is_written(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    words: str, said: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["report", str(runs[0].folder), *words.split()]) == 2
    assert capsys.readouterr().err == f"paceline report: {said}\n"
    assert list(tmp_path.iterdir()) == []
