"""A report into files, written whole or not at all; and the report as Markdown and CSV.

What cannot be written is refused before any work.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from paceline.errors import UsageError
from paceline.figures import Figure, png, svg
from paceline.figures.palette import names_in
from paceline.files import cannot, check_folder, check_place, read_json, replace_file
from paceline.record import Run
from paceline.report.contents import document_of
from paceline.report.document import (
    NO_SUCCESS,
    SIGNS,
    Block,
    Document,
    Section,
    Spread,
    Table,
    Text,
    data_of,
    is_speedup,
)
from paceline.report.html import Links, html_page
from paceline.report.pdf import pdf_bytes

FORMATS = (".html", ".md", ".pdf")
# The list of what reports have put into a folder: each file's name and the checksum of its content.
LIST = ".paceline-report.json"


def write(document: Document, path: Path) -> None:
    """Write a report in the format of its name's ending.

    A Markdown report's figures go to `NAME-figures` beside it. Beside an HTML report, `NAME-files` has each figure as SVG,
    all data as CSV, and of several problems a page each, to which the report itself is the index.

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
        text = _write_pages(document, path)
    elif path.suffix == ".pdf":
        put(path, pdf_bytes(document))
        return
    else:
        folder = _figures_of(path)
        if folder.is_dir() or document.figures():
            check([], [folder])
            write_figures(document, folder, formats=("svg",))
        text = markdown_page(document, folder.name)
    put(path, text.encode(errors="surrogateescape"))


def _write_pages(document: Document, path: Path) -> str:
    """Write the files beside an HTML report; return the report itself."""
    folder, problems = _files_of(path), document.problems
    if not folder.is_dir() and not any(not isinstance(block, Text) for block in document.blocks()):
        return html_page(document)
    check([], [folder])
    among = names_in(document.figures())
    drawings = {figure.name: svg(figure, among, titled=False) for figure in document.figures()}
    made = {f"{name}.svg": drawn for name, (drawn, _) in drawings.items()}
    made |= {f"{table.name}.csv": csv_text(table) for table in _tables(document)}
    pages = [page_name(number, section.title) for number, section in enumerate(problems, 1)]
    pages = pages if len(pages) > 1 else []
    for name, section in zip(pages, problems, strict=False):
        own = tuple(
            replace(text, title="Results") for text in document.summary if text.title == section.title
        )
        one = Document(title=section.title, summary=own, sections=(replace(section, title="Results"),))
        made[name] = html_page(one, Links(files="", home=f"../{path.name}", drawings=drawings))
    told = {section.title for section in problems} if pages else set()
    top = replace(document, summary=tuple(text for text in document.summary if text.title not in told))
    page = html_page(
        top,
        Links(files=folder.name, pages=tuple(f"{folder.name}/{name}" for name in pages), drawings=drawings),
    )
    _create(folder)
    with Written(folder, ("svg", "csv", "html")) as files:
        for name, content in made.items():
            files.put(name, content.encode(errors="surrogateescape"))
    return page


def page_name(number: int, title: str) -> str:
    """Return the name of the page of one problem.

    >>> page_name(2, "mnist, mlp:128,64")
    '2-mnist-mlp-128-64.html'
    """
    return f"{number}-{re.sub('[^A-Za-z0-9]+', '-', title).strip('-')[:60]}.html"


def _tables(document: Document) -> list[Table]:
    """Return every table, and the data of every figure."""
    blocks = [block for block in document.blocks() if not isinstance(block, Text)]
    return [block if isinstance(block, Table) else data_of(block) for block in blocks]


def write_figures(document: Document, folder: Path, *, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write a picture of each figure in each of the formats; create the folder if necessary.

    Pictures that an earlier report left there are removed, as `Written` explains.
    """
    among = names_in(document.figures())
    written = []
    _create(folder)
    with Written(folder, formats) as files:
        for figure in document.figures():
            for kind in formats:
                drawn = png(figure, among) if kind == "png" else svg(figure, among)[0].encode()
                written.append(files.put(f"{figure.name}.{kind}", drawn))
    return written


def write_tables(document: Document, folder: Path) -> list[Path]:
    """Write a CSV file of each table and of each figure's data; create the folder if necessary.

    Tables that an earlier report left there are removed, as `Written` explains.
    """
    _create(folder)
    with Written(folder, ("csv",)) as files:
        return [
            files.put(f"{table.name}.csv", csv_text(table).encode(errors="surrogateescape"))
            for table in _tables(document)
        ]


def write_report(runs: Sequence[Run], path: Path) -> None:
    """Write a report on some runs to `path`, whole or not at all; its folder must exist.

    >>> write_report([], Path("report.html"))
    Traceback (most recent call last):
    paceline.errors.UsageError: there are no complete runs to report on
    """
    check([path])
    write(document_of(runs), path)


def check(files: Iterable[Path], folders: Iterable[Path] = ()) -> None:
    """Refuse files and folders that could not be written: unknown format, missing folder, no permission."""
    for path in files:
        if path.suffix not in FORMATS:
            raise UsageError(f"unknown format of {path}; its name must end with one of {', '.join(FORMATS)}")
        check_place(path)
        if path.suffix in (".md", ".html"):
            _check_new(_figures_of(path) if path.suffix == ".md" else _files_of(path))
    for folder in folders:
        _check_new(folder)


def _check_new(folder: Path) -> None:
    """Refuse a folder that neither exists nor can be created."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"cannot write into {folder}: it is not a folder")
    check_folder(folder, folder if folder.is_dir() else folder.parent)


def _create(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise cannot(folder, error) from None


def _figures_of(path: Path) -> Path:
    """Return the folder for the figures of a Markdown report."""
    return path.with_name(f"{path.stem}-figures")


def _files_of(path: Path) -> Path:
    """Return the folder for the files of an HTML report."""
    return path.with_name(f"{path.stem}-files")


def csv_text(table: Table) -> str:
    """Return a table as CSV with values as they are (seconds, fractions, bytes); marks of rows are a last column.

    A column of means over several runs is followed by their lowest and highest values.

    >>> from paceline.report.document import Column
    >>> table = Table(name="t", title="", columns=(Column(name="strategy"), Column(name="MB sent", kind="megabytes")),
    ...     rows=(("sync:a=1,b=2", 1_500_000),), marks=("best",))
    >>> print(csv_text(table), end="")
    strategy,bytes sent,mark
    "sync:a=1,b=2",1500000,best
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    marked = any(table.marks)
    spread = [any(isinstance(row[k], Spread) for row in table.rows) for k in range(len(table.columns))]
    names: list[str] = []
    for column, wide in zip(table.columns, spread, strict=True):
        name = column.raw_name
        names += [name, f"{name}, lowest", f"{name}, highest"] if wide else [name]
    writer.writerow([*names, *(["mark"] if marked else [])])
    for number, row in enumerate(table.rows):
        cells: list[object] = []
        for value, wide in zip(row, spread, strict=True):
            known = value if not isinstance(value, Spread) else float(value)
            ends = (value.low, value.high) if isinstance(value, Spread) else ("", "")
            cells += ["" if known is None else known, *(ends if wide else ())]
        writer.writerow([*cells, *([table.mark(number)] if marked else [])])
    return file.getvalue()


class Written:
    """Writes the files of one report into a folder; at the end, removes those of the same kinds of an earlier report.

    A file is removed only if it is in the folder's own list and unchanged since it was written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     for names in (("a.csv", "b.csv", "c.csv"), ("a.csv",)):
    ...         with Written(Path(name), ("csv",)) as files:
    ...             made = [files.put(one, b"1") for one in names]
    ...         _ = (Path(name) / "c.csv").write_text("mine") if len(names) > 1 else None
    ...     sorted(path.name for path in Path(name).glob("*.csv"))
    ['a.csv', 'c.csv']
    """

    def __init__(self, folder: Path, kinds: Sequence[str]) -> None:
        self.folder, self._kinds = folder, {f".{kind}" for kind in kinds}
        self._before = _read_list(folder / LIST)
        self._written: dict[str, str] = {}

    def __enter__(self) -> Written:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        others = {name: sum_ for name, sum_ in self._before.items() if Path(name).suffix not in self._kinds}
        if failed is not None:
            others = self._before  # the earlier report's files are still there
        else:
            for name in self._before.keys() - others.keys() - self._written.keys():
                self._remove(self.folder / name, self._before[name])
        text = json.dumps({**others, **self._written}, indent=0, sort_keys=True)
        put(self.folder / LIST, f"{text}\n".encode())

    def put(self, name: str, content: bytes) -> Path:
        """Write a file, whole or not at all."""
        path = put(self.folder / name, content)
        self._written[name] = _checksum(content)
        return path

    def _remove(self, path: Path, expected: str) -> None:
        try:
            if path.is_file() and not path.is_symlink() and _checksum(path.read_bytes()) == expected:
                path.unlink()
        except OSError as error:
            raise UsageError(f"cannot remove {path}: {(error.strerror or str(error)).lower()}") from None


def put(path: Path, content: bytes) -> Path:
    """Write a file, whole or not at all."""
    try:
        with replace_file(path) as file:
            file.write(content)
    except OSError as error:
        raise cannot(path, error) from None
    return path


def _read_list(path: Path) -> dict[str, str]:
    """Read a folder's list, without names that lead out of the folder."""
    try:
        found = read_json(path)
    except UsageError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: str(sum_) for name, sum_ in found.items() if Path(name).name == name and name != LIST}


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# ---- Markdown


def markdown_page(document: Document, figures: str) -> str:
    """Return the whole page; it links to figures as NAME.svg in the folder `figures`.

    >>> text = Text(lines=("sync is 2 * as fast",), kind="verdict")
    >>> print(markdown_page(Document(title="report", summary=(text,), sections=()), "f"), end="")
    # report
    <BLANKLINE>
    > sync is 2 \\* as fast
    """
    parts = [f"# {escape(document.title)}", *map(_text, document.questions)]
    problems = document.problems
    if len(problems) == 1 and problems[0].opening is not None:
        parts += [_block(block, figures) for block in problems[0].opening.blocks()]
    elif problems:
        answers = (
            (section.title, " ".join(filter(None, (section.opening.sentence, section.opening.sure))))
            for section in problems
            if section.opening is not None
        )
        parts.append("\n".join(f"- **{escape(title)}**: {escape(sentence)}" for title, sentence in answers))
    parts += map(_text, document.findings)
    parts += _sections(document.sections, figures, 2, alone=len(problems) == 1)
    return "\n\n".join(filter(None, parts)) + "\n"


def escape(text: str) -> str:
    """Escape text so that Markdown shows it unchanged.

    >>> print(escape("a|b <c> 8 * [d] e_f `g`"))
    a\\|b \\<c\\> 8 \\* \\[d\\] e\\_f \\`g\\`
    """
    escaped = re.sub(r"([\\`*_\[\]<>|~])", r"\\\1", " ".join(text.split()))
    return re.sub(r"^(\s*)([#+-]|\d+[.)])(?=\s)", r"\1\\\2", escaped)


def _sections(sections: Sequence[Section], figures: str, level: int, *, alone: bool = False) -> list[str]:
    """Return sections; `alone`: that of a single problem, whose answer is at the top already."""
    parts = []
    for section in sections:
        parts.append(f"{'#' * min(level, 6)} {escape(section.title)}")
        parts.append(escape(section.note))
        if section.opening is not None and not alone:
            parts += [_block(block, figures) for block in section.opening.blocks()]
        parts += [_block(block, figures) for block in section.blocks]
        parts += _sections(section.sections, figures, level + 1)
    return parts


def _block(block: Block, figures: str) -> str:
    if isinstance(block, Text):
        return _text(block)
    return _table(block) if isinstance(block, Table) else _figure(block, figures)


def _text(text: Text) -> str:
    if text.folded:
        return _fold(text.title, _text(replace(text, folded=False, title="")))
    if text.kind == "command":
        return "\n\n".join(f"```sh\n{line}\n```" for line in text.lines)
    lines = [f"**{escape(text.title)}**"] if text.title else []
    lines += [escape(line) for line in text.lines]
    if text.kind == "list":
        return "\n".join(f"- {line}" for line in lines)
    if text.kind == "verdict":
        return "\n>\n".join(f"> {line}" for line in lines)
    return "\n\n".join(lines)


def _figure(figure: Figure, figures: str) -> str:
    picture = f"![{escape(figure.title)}]({quote(f'{figures}/{figure.name}.svg', errors='surrogateescape')})"
    return "\n\n".join(filter(None, (f"**{escape(figure.title)}**", picture, escape(figure.caption))))


def _table(table: Table) -> str:
    table = table.drop_unseen()
    heads = [escape(column.name) for column in table.columns]
    rules = ["---" if column.kind == "text" else "--:" for column in table.columns]
    lines = [heads, rules]
    for number, row in enumerate(table.cells()):
        cells = [escape(cell) for cell in row]
        mark = table.mark(number)
        if sign := SIGNS.get(mark):
            cells[0] = f"{sign} {cells[0]}"
        if mark in NO_SUCCESS:
            cells[0] += f" *{mark}*"
            for k, column in enumerate(table.columns):
                cells[k] = f"~~{cells[k]}~~" if column.kind == "times" and is_speedup(cells[k]) else cells[k]
        lines.append(cells)
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    marks = ", ".join(f"{SIGNS[mark]} {mark}" for mark in table.used_marks())
    below = [marks, escape(table.caption)]
    if table.folded:
        return _fold(table.title or table.name, "\n\n".join(filter(None, (rows, *below))))
    title = f"**{escape(table.title)}**" if table.title else ""
    return "\n\n".join(filter(None, (title, rows, *below)))


def _fold(title: str, inside: str) -> str:
    words = escape(title).replace("\\", "").replace("<", "&lt;")
    return f"<details><summary>{words}</summary>\n\n{inside}\n\n</details>"
