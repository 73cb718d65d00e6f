"""`paceline report`: compare runs in tables, figures and words."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.commands import add_folders, parse_path
from paceline.errors import UsageError

if TYPE_CHECKING:
    from paceline.report.document import Document, Table

DEFAULT = Path("report.html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.epilog = """
examples:
  paceline report runs -o report.html
  paceline report runs -o report.md -o report.pdf --figures figures --tables tables --target 0.9
  paceline report runs --target 'perplexity<=12'
"""
    add_folders(parser)
    parser.add_argument(
        "-o", "--out", type=parse_path, action="append", metavar="FILE",
        help="the report: .html, .md (with a folder of figures) or .pdf; may be given several times "
        f"(default: {DEFAULT})",
    )  # fmt: skip
    parser.add_argument(
        "--figures", type=parse_path, metavar="DIR", help="also write every figure to DIR as PNG and SVG"
    )
    parser.add_argument(
        "--tables",
        type=parse_path,
        metavar="DIR",
        help="also write every table and every figure's data to DIR as CSV",
    )
    parser.add_argument(
        "--target", metavar="GOAL",
        help="what to reach on the validation samples: accuracy>=0.9, loss<=0.3, perplexity<=12, or the fraction of an "
        "accuracy (default: the study's, or one point below serial's best)",
    )  # fmt: skip
    parser.add_argument("--title", help="the report's title (default: the study's)")
    parser.add_argument(
        "--bench", type=parse_path, action="append", default=[], metavar="FILE",
        help="also show the results of `paceline bench allreduce --json FILE`",
    )  # fmt: skip


def main(args: argparse.Namespace) -> int:
    """Write the reports; print the tables and what is to be learned from each."""
    report_on(
        args.runs,
        args.out or [DEFAULT],
        figures=args.figures,
        tables=args.tables,
        target=args.target,
        title=args.title,
        bench=args.bench,
    )
    return 0


def report_on(
    folders: Sequence[Path],
    outs: Sequence[Path],
    *,
    figures: Path | None = None,
    tables: Path | None = None,
    target: str | None = None,
    title: str | None = None,
    bench: Sequence[Path] = (),
) -> None:
    """Write reports on the runs of some folders, and print their tables and verdicts."""
    from dataclasses import replace

    from paceline.record import Run, find_runs
    from paceline.report import bench_section, document_of
    from paceline.report.writing import check, write, write_figures, write_tables
    from paceline.study.folder import context_of

    check(outs, [folder for folder in (figures, tables) if folder is not None])
    damaged: list[str] = []
    cut: list[Run] = []
    runs, context = find_runs(folders, damaged, cut), context_of(folders)
    context = replace(context, left_out=(*damaged, *context.left_out))
    if not runs and not cut and not context.failed and (inside := _studies_in(folders)):
        raise UsageError(
            f"{folders[0]} has no runs of its own: report on one of {', '.join(map(str, inside))}"
        )
    document = document_of(runs, context=context, target=target, title=title, cut=cut)
    benchmarks = tuple(bench_section(path, number) for number, path in enumerate(bench, 1))
    *first, last = document.sections  # the environment
    document = replace(document, sections=(*first, *benchmarks, last))
    for out in outs:
        write(document, out)
    if figures is not None:
        write_figures(document, figures)
    if tables is not None:
        write_tables(document, tables)
    _print_results(document)
    given = {folder.resolve() for folder in folders}
    if beside := [path for path in _studies_in(folders) if path.resolve() not in given]:
        print(
            f"not in this report, because they are studies or searches of their own: {', '.join(map(str, beside))}"
        )
    for path in filter(None, (*outs, figures, tables)):
        print(f"report: {path}" if path in outs else f"files: {path}")


def _studies_in(folders: Sequence[Path]) -> list[Path]:
    """Return the studies and searches in some folders, as for runs/."""
    from paceline.study.folder import STUDY

    return sorted(path.parent for folder in folders for path in folder.glob(f"*/{STUDY}"))


def _print_results(document: Document) -> None:
    """Print the results of each problem, with the conclusions from the top of the report."""
    from paceline.compare.answer import UNREACHED
    from paceline.report.document import Table

    verdicts = [text.lines for text in document.summary if text.kind == "verdict"]
    tried = [section for section in document.sections if any(isinstance(b, Table) for b in section.blocks)]
    for section, lines in zip(tried, verdicts, strict=False):
        print(f"\n{', '.join(filter(None, (section.title, section.note)))}")
        _print_table(next(block for block in section.blocks if isinstance(block, Table)))
        answer = "" if section.opening is None else section.opening.sentence
        for line in lines:
            # The answer says it as well.
            if not (line.startswith(UNREACHED) and answer.startswith(UNREACHED)):
                print(line)
        if (opening := section.opening) is not None:
            print(*filter(None, (opening.sentence, opening.sure, opening.command)), sep="\n")
    print()


def _print_table(table: Table) -> None:
    from paceline import text
    from paceline.report.document import NO_SUCCESS

    table = table.drop_unseen()
    justify = "".join("l" if column.kind == "text" else "r" for column in table.columns)
    headings = [column.name for column in table.columns]
    cells = table.cells()
    for number, row in enumerate(cells):
        row[0] += f" ({mark})" if (mark := table.mark(number)) in NO_SUCCESS else ""
    print(text.table(cells, headings, justify=justify, indent=2))
