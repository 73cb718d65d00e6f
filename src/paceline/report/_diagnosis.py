"""Why each strategy stops scaling here, and what to try next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.compare.rows import Row
from paceline.report.document import Block, Column, Section, Table, Text

if TYPE_CHECKING:
    from paceline.diagnosis import Cause, Diagnosis

NOTE = "Of each strategy the main cause; the table has all of them."


def diagnosis(rows: Sequence[Row], number: int) -> Section | None:
    """The section of one problem: the main cause of each strategy, and all in a table; None with serial runs alone."""
    from paceline.diagnosis import diagnose

    found = diagnose([run for row in rows for run in row.members])
    if not found:
        return None
    several = any(len(one.causes) > 1 for one in found)
    blocks: list[Block] = [Text(kind="note", lines=(NOTE,))] if several else []
    for one in found:
        blocks.append(Text(lines=(f"{one.summary.rstrip('.')}.",)))
        blocks.append(Text(kind="list", lines=(_told(one.causes[0]),)))
    if several:
        blocks.append(_table(found, number))
    return Section(title="Why it stops scaling here", blocks=tuple(blocks))


def _told(cause: Cause) -> str:
    advice = f" Try {cause.advice}." if cause.advice else ""
    return f"{cause.rule}: {cause.words.rstrip('.')}.{advice}"


def _table(found: Sequence[Diagnosis], number: int) -> Table:
    return Table(
        name=f"diagnosis-{number}",
        title="All causes",
        columns=(
            Column(name="strategy"),
            Column(name="ranks", kind="count"),
            Column(name="cause"),
            Column(name="share", kind="percent"),
            Column(name="of"),
            Column(name="what is the matter"),
            Column(name="what to try"),
        ),
        rows=tuple(
            (
                one.strategy + (f" (simulated: {one.simulated})" if one.simulated else ""),
                cause.ranks,
                cause.rule,
                cause.share,
                None if cause.share is None else "accuracy" if cause.of_accuracy else "time",
                cause.words,
                cause.advice,
            )
            for one in found
            for cause in one.causes
        ),
        folded=True,
    )
