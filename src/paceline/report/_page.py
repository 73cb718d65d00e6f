"""One self-contained page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from paceline.errors import UsageError
from paceline.record import Run
from paceline.record._files import replacing
from paceline.report import _figures
from paceline.report._rows import Row, rows_of
from paceline.report._verdict import best, divergence, notes, quality, real, simulated, verdict
from paceline.report._words import breakable, mark, megabytes, seconds, times

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a;
  overflow-wrap: anywhere }
table { border-collapse: collapse; font-size: 0.9rem; overflow-wrap: normal } .wide { overflow-x: auto }
th, td { padding: 0.25rem 0.55rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap }
th:first-child, td:first-child { text-align: left; padding-left: 0 } th { vertical-align: bottom }
tr.best { background: #e8f4ee } tr.diverged { color: #8a3b12; background: #fbeee6 } .note { color: #555; font-size: 0.9rem }
h2 { margin: 2.5rem 0 0 } h2 + .note { margin-top: 0 } ul.note { padding-left: 1.2rem } h3 { margin-bottom: 0.6rem }
@media (max-width: 45rem) {
  th, td { padding: 0.25rem 0.35rem } th { white-space: normal }
  td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 7.5rem }
  tr.diverged td { white-space: normal } }
"""
# What matters most comes first: it is what a narrow screen shows.
HEADINGS = (
    "strategy",
    "ranks",
    "seconds",
    "speedup",
    "test accuracy",
    "samples/s",
    "MB sent",
    "threads",
    "runs",
    "seeds",
)
NOTE = (
    "Means over the runs of a row. Tinted: the fastest row that did not diverge and whose accuracy is within a point of "
    "the best serial row's (of the best row's, where there is no serial one). seconds: of training, without evaluation. "
    "speedup: against the fastest serial row. MB sent: by all ranks together. threads: of each rank."
)
SIMULATED = (
    "simulated: nobody waited for these seconds; they are what the strategy's own code would take on that network, by a "
    "model of what messages and computing cost. Accuracies are of gradients that were really computed. Speedups are "
    "against a simulated serial row where there is one."
)


def write_report(runs: Sequence[Run], path: Path) -> None:
    """Write a page about `runs` to `path`, whole or not at all; its folder must be there."""
    if not runs:
        raise UsageError("there are no complete runs to report on")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}")
    page = _page(runs)
    try:
        with replacing(path) as file:
            file.write(page.encode(errors="surrogateescape"))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def _page(runs: Sequence[Run]) -> str:
    problems = [list(group) for _, group in groupby(rows_of(runs), key=lambda row: row.problem)]
    items = "".join(
        f'<li><a href="#p{number}">{breakable(rows[0].problem.title)}</a>: {escape(verdict(rows))}</li>'
        for number, rows in enumerate(problems, 1)
    )
    parts = ["<h1>paceline report</h1>", f"<ul>{items}</ul>"]
    for number, rows in enumerate(problems, 1):
        problem = rows[0].problem
        parts += [
            f'<h2 id="p{number}">{breakable(problem.title)}</h2><p class="note">{escape(problem.details)}</p>',
            f'<div class="wide">{_table(rows)}</div>',
        ]
        if number == 1:
            parts.append(f'<p class="note">{NOTE}</p>')
        if any(row.oversubscribed for row in rows):
            parts.append('<p class="note">* more ranks than cores: not a measure of scaling.</p>')
        if simulated(rows):
            parts.append(f'<p class="note">{SIMULATED}</p>')
        if said := "".join(f"<li>{breakable(note)}</li>" for note in notes(rows)):
            parts.append(f'<ul class="note">{said}</ul>')
        parts += ["<h3>Where the time went</h3>", _figures.time_split(rows)]
        if spread := _figures.accuracy(rows):
            parts += ["<h3>Test accuracy</h3>", spread]
        if ages := _figures.staleness(rows):
            parts += ["<h3>Staleness</h3>", ages]
    parts += ["<h2>Environment</h2>", _environment(runs)]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>paceline report</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}{_figures.STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def cells(row: Row) -> tuple[str, ...]:
    """A row's values as the table shows them, in the order of HEADINGS."""
    return (
        row.strategy + mark(row),
        f"{row.ranks}{' *' if row.oversubscribed else ''}",
        seconds(row.train_seconds),
        divergence(row) or ("" if row.speedup is None else times(row.speedup)),
        quality(row),
        "" if row.samples_per_second is None else f"{row.samples_per_second:,.0f}",
        megabytes(row.bytes_sent),
        str(row.threads),
        str(row.runs),
        str(row.seeds),
    )


def _table(rows: Sequence[Row]) -> str:
    head = "".join(f"<th>{name}</th>" for name in HEADINGS)
    fastest = [best(some) for some in (real(rows), simulated(rows)) if len(some) > 1]
    body = "".join(
        f"<tr{' class=diverged' if row.diverged else ' class=best' if row in fastest else ''}>"
        + "".join(f"<td>{breakable(cell)}</td>" for cell in cells(row))
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _environment(runs: Sequence[Run]) -> str:
    """A line for each machine and set of versions; serial runs have no MPI to name."""
    libraries: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        e = run.environment
        packages = ", ".join(f"{name} {number}" for name, number in e["packages"].items())
        line = f"{e['processor']}, {e['cores']} cores; {e['system']}; Python {e['python']}; {packages}"
        line += f"; simulated: {told['machine']}" if (told := e.get("simulated")) else ""
        libraries[line] |= {" ".join(e["mpi"].partition(",")[0].split())} if e["mpi"] else set()
    lines = [f"{line}; {', '.join(sorted(names)) or 'no MPI'}" for line, names in sorted(libraries.items())]
    return "".join(f'<p class="note">{escape(line)}</p>' for line in lines)
