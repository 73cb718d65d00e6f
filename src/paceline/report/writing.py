"""A report into files: whole or not at all, and what cannot be written is said before any work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from paceline.errors import UsageError
from paceline.files import cannot, check_folder, check_place
from paceline.record import Run
from paceline.report import pictures
from paceline.report._data import table_of
from paceline.report._written import Written, put
from paceline.report.contents import document_of
from paceline.report.csv import csv_text
from paceline.report.document import Block, Document, Figure, Table, Text
from paceline.report.html import html_page
from paceline.report.markdown import markdown_page
from paceline.report.palette import strategies_of
from paceline.report.pdf import pdf_bytes

FORMATS = (".html", ".md", ".pdf")


def write(document: Document, path: Path) -> None:
    """Write a report in the format that its name ends with; a Markdown report's figures go to `NAME-figures` beside it.

    >>> import tempfile
    >>> from paceline.report.document import Text
    >>> report = Document(title="report", summary=(Text(lines=("sync is faster",)),), sections=())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(report, Path(folder) / "report.md")
    ...     print((Path(folder) / "report.md").read_text())
    # report
    <BLANKLINE>
    sync is faster
    <BLANKLINE>
    >>> write(report, Path("report.txt"))
    Traceback (most recent call last):
    paceline.errors.UsageError: unknown format of report.txt; its name must end with one of .html, .md, .pdf
    """
    check([path])
    if path.suffix == ".html":
        text = html_page(document)
    elif path.suffix == ".pdf":
        put(path, pdf_bytes(document))
        return
    else:
        folder = _figures_of(path)
        if folder.is_dir() or any(True for _ in _figures(document)):
            check([], [folder])
            write_figures(document, folder, formats=("svg",))
        text = markdown_page(document, folder.name)
    put(path, text.encode(errors="surrogateescape"))


def write_figures(document: Document, folder: Path, *, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """A picture of each figure, in each of the formats; the folder is made where there is none.

    Pictures that an earlier report left there are removed, as `Written` says.
    """
    among = strategies_of(document)
    made = []
    _make(folder)
    with Written(folder, formats) as files:
        for figure in _figures(document):
            for kind in formats:
                drawn = (
                    pictures.png(figure, among) if kind == "png" else pictures.svg(figure, among)[0].encode()
                )
                made.append(files.put(f"{figure.name}.{kind}", drawn))
    return made


def write_tables(document: Document, folder: Path) -> list[Path]:
    """A CSV file of each table and of each figure's data; the folder is made where there is none.

    Tables that an earlier report left there are removed, as `Written` says.
    """
    _make(folder)
    tables = [table_of(block) if not isinstance(block, Table) else block for block in _with_data(document)]
    with Written(folder, ("csv",)) as files:
        return [
            files.put(f"{table.name}.csv", csv_text(table).encode(errors="surrogateescape"))
            for table in tables
        ]


def write_report(runs: Sequence[Run], path: Path) -> None:
    """Write a report on some runs to `path`, whole or not at all; its folder must be there.

    >>> write_report([], Path("report.html"))
    Traceback (most recent call last):
    paceline.errors.UsageError: there are no complete runs to report on
    """
    check([path])
    write(document_of(runs), path)


def check(files: Iterable[Path], folders: Iterable[Path] = ()) -> None:
    """Refuse what could not be written: no such format, no such folder, no right to write there."""
    for path in files:
        if path.suffix not in FORMATS:
            raise UsageError(f"unknown format of {path}; its name must end with one of {', '.join(FORMATS)}")
        check_place(path)
        if path.suffix == ".md":
            _check_new(_figures_of(path))
    for folder in folders:
        _check_new(folder)


def _check_new(folder: Path) -> None:
    """A folder that is there, or can be made where it is asked for."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"cannot write into {folder}: it is no folder")
    check_folder(folder, folder if folder.is_dir() else folder.parent)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise cannot(folder, error) from None


def _figures_of(path: Path) -> Path:
    """Where the figures of a Markdown report go."""
    return path.with_name(f"{path.stem}-figures")


def _figures(document: Document) -> Iterator[Figure]:
    return (block for block in document.blocks() if not isinstance(block, Text | Table))


def _with_data(document: Document) -> Iterator[Table | Figure]:
    blocks: Iterator[Block] = document.blocks()
    return (block for block in blocks if not isinstance(block, Text))
