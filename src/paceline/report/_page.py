"""One self-contained page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from paceline.errors import UsageError
from paceline.record import Run
from paceline.record._files import replacing
from paceline.report import _figures
from paceline.report._rows import Row, rows_of

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a }
table { border-collapse: collapse; font-size: 0.9rem } .wide { overflow-x: auto }
th, td { padding: 0.25rem 0.7rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
svg { max-width: 100%; height: auto } .note { color: #555; font-size: 0.9rem } h2 { margin-top: 2.5rem }
"""
HEADINGS = (
    "strategy",
    "ranks",
    "threads",
    "runs",
    "seeds",
    "test accuracy",
    "seconds",
    "speedup",
    "samples/s",
    "MB sent",
)


def write_report(runs: Sequence[Run], path: Path) -> None:
    """Write a page about `runs` to `path`, whole or not at all."""
    if not runs:
        raise UsageError("there are no complete runs to report on")
    parts = ["<h1>paceline report</h1>", f"<p>{escape(best(rows_of(runs)))}</p>"]
    for problem, group in groupby(rows_of(runs), key=lambda row: row.problem):
        rows = list(group)
        parts += [f"<h2>{escape(str(problem))}</h2>", f'<div class="wide">{_table(rows)}</div>']
        if any(row.oversubscribed for row in rows):
            parts.append('<p class="note">* more ranks than cores: not a measure of scaling.</p>')
        parts += ["<h3>Where the time went</h3>", _figures.time_split(rows)]
        if any(row.accuracy is not None for row in rows):
            parts += ["<h3>Accuracy</h3>", _figures.accuracy(rows)]
    parts += ["<h2>Environment</h2>", _environment(runs)]
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>paceline report</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body>{''.join(parts)}</body></html>\n"
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(page.encode())
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def best(rows: Sequence[Row]) -> str:
    """In words: the fastest way that was tried of each problem."""
    sentences = []
    for problem, group in groupby(rows, key=lambda row: row.problem):
        fastest = min(group, key=lambda row: row.train_seconds)
        bought = "" if fastest.speedup is None else f", {fastest.speedup:.2f} times as fast as serial"
        accuracy = "" if fastest.accuracy is None else f", at {100 * fastest.accuracy:.2f} % test accuracy"
        where = f"{fastest.ranks} rank{'s' if fastest.ranks > 1 else ''}"
        sentences.append(
            f"Fastest on {problem}: {fastest.strategy} on {where}, {fastest.train_seconds:.3g} s{bought}{accuracy}."
        )
    return " ".join(sentences)


def cells(row: Row) -> tuple[str, ...]:
    """A row's values as the table shows them, in the order of HEADINGS."""
    return (
        row.strategy,
        f"{row.ranks}{' *' if row.oversubscribed else ''}",
        str(row.threads),
        str(row.runs),
        str(row.seeds),
        "" if row.accuracy is None else f"{100 * row.accuracy:.2f} %",
        f"{row.train_seconds:.3g}",
        "" if row.speedup is None else f"{row.speedup:.2f}x",
        "" if row.samples_per_second is None else f"{row.samples_per_second:,.0f}",
        f"{row.bytes_sent / 1e6:,.1f}",
    )


def _table(rows: Sequence[Row]) -> str:
    head = "".join(f"<th>{name}</th>" for name in HEADINGS)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells(row)) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _environment(runs: Sequence[Run]) -> str:
    lines = set()
    for run in runs:
        e = run.environment
        packages = ", ".join(f"{name} {number}" for name, number in e["packages"].items())
        lines.add(
            f"{e['processor']}, {e['cores']} cores; {e['system']}; Python {e['python']}; {packages}; {e['mpi'] or 'no MPI'}"
        )
    return "".join(f'<p class="note">{escape(line)}</p>' for line in sorted(lines))
