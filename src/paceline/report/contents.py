"""Records into a report: which sections there are, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from paceline.compare.rows import Row, rows_of, titles_of
from paceline.compare.target import target_of, target_told
from paceline.compare.verdict import notes, remarks
from paceline.errors import UsageError
from paceline.record import Run
from paceline.report._ages import ages
from paceline.report._diagnosis import diagnosis
from paceline.report._environment import environment, left_out
from paceline.report._published import failed_for, published, published_for
from paceline.report._results import results
from paceline.report._split import time_split
from paceline.report._summary import costs, summary
from paceline.report.accuracy import accuracy
from paceline.report.curves import curves
from paceline.report.document import Block, Document, Section, Text, foldable
from paceline.report.failed import cell_of, failed_section, telling
from paceline.report.scaling import scaling
from paceline.report.traffic import traffic
from paceline.study.context import Context, Failed

TITLE = "paceline report"


def document_of(
    runs: Sequence[Run],
    *,
    context: Context | None = None,
    target: float | None = None,
    title: str | None = None,
) -> Document:
    """A report on some runs: a section for each problem, and the environment.

    `context`: what a study says beside its runs (`paceline.study.context.context_of`): title, question, target, published
    figures, failed cells. `target`: the accuracy to be reached, a fraction; else the study's, else one point below the best
    serial accuracy on the validation samples.

    >>> import tempfile
    >>> from paceline import fit
    >>> from paceline.record import find_runs
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = fit("mlp:8", "iris", strategy="serial", epochs=2, batch=10, runs=folder, quiet=True)
    ...     page = document_of(find_runs([folder]))
    >>> [section.title for section in page.sections]
    ['iris, mlp:8', 'Environment']
    """
    context = Context() if context is None else context
    if target is not None and not 0 < target <= 1:
        raise UsageError(f"a target accuracy must be above 0 and at most 1; got {target:g}")
    if not runs and not context.failed:
        raise UsageError("there are no complete runs to report on")
    said: list[Text] = _asked(context)
    sections: list[Section] = []
    left = list(context.failed)
    problems = [list(group) for _, group in groupby(rows_of(runs), key=lambda row: row.problem)]
    titles = titles_of(rows[0].problem for rows in problems)
    for number, rows in enumerate(problems, 1):
        failed = failed_for(rows, left)
        left = [cell for cell in left if cell not in failed]
        name = titles[rows[0].problem]
        section, words = _problem(rows, number, context, target, failed)
        sections.append(replace(section, title=name))
        said.append(Text(kind="verdict", title=name, lines=words))
    if left:
        names = telling(context.failed, runs)
        sections.append(failed_section(left, names))
        said.append(Text(kind="verdict", lines=summary((), None, left, names)))
    if runs:
        sections.append(environment(runs, context.left_out))
    elif context.left_out:
        sections.append(Section(title="Left out", blocks=(left_out(context.left_out),)))
    named = context.title or " / ".join(dict.fromkeys(one.title for one in context.studies if one.title))
    return Document(title=title or named or TITLE, summary=tuple(said), sections=tuple(sections))


def _asked(context: Context) -> list[Text]:
    """The question of the study, or, of several studies, each's under its title."""
    if context.question or not any(one.question for one in context.studies):
        return [Text(lines=(context.question,))] if context.question else []
    lines = (": ".join(filter(None, (one.title, one.question))) for one in context.studies if one.question)
    return [Text(lines=tuple(dict.fromkeys(lines)))]


def _problem(
    rows: list[Row], number: int, context: Context, given: float | None, failed: Sequence[Failed]
) -> tuple[Section, tuple[str, ...]]:
    """The section of one problem, and what is said of it at the top."""
    asked, words = (given, "as asked for") if given is not None else target_told(rows, context)
    target = target_of(rows, asked, words)
    target = None if len(rows) == 1 and asked is None else target  # one row has nobody to be compared with
    theirs = published_for(rows, context.published)
    blocks: list[Block] = [results(rows, failed, number)]
    names = telling(failed, (run for row in rows for run in row.members))
    if failed:
        lines = (f"Failed: {cell_of(cell, names)}: {cell.why}" for cell in failed)
        blocks.append(Text(kind="note", lines=tuple(lines)))
    if told := notes(rows):
        blocks.append(Text(kind="note", lines=tuple(told)))
    if told := remarks(rows):
        blocks.append(foldable(told, f"What the runs say of themselves ({len(told)})"))
    bought = costs(rows, target)
    sections = [
        Section(title="What each strategy costs", blocks=(Text(kind="list", lines=bought),))
        if bought
        else None,
        diagnosis(rows, number),
        scaling(rows, number, theirs),
        accuracy(rows, number, theirs),
        curves(rows, number, target),
        Section(title="Where the time went", blocks=(time_split(rows, number),)),
        ages(rows, number),
        traffic(rows, number),
        published(rows, theirs, number),
    ]
    problem = rows[0].problem
    section = Section(
        title=problem.title,
        note=problem.details,
        blocks=tuple(blocks),
        sections=tuple(one for one in sections if one is not None),
    )
    return section, summary(rows, target, failed, names)
