"""Why each strategy stops scaling here, and what to try next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.report._rows import Row
from paceline.report.document import Block, Section, Text

if TYPE_CHECKING:
    from paceline.diagnosis import Cause

# So many causes of a strategy are told; the others matter less.
CAUSES = 3
TOO_FEW = "too few runs"
ONCE = "Strategies that ran on one number of ranks alone do not show where they stop scaling: try others with -n."


def diagnosis(rows: Sequence[Row]) -> Section | None:
    """The section of one problem; None where there is nothing but serial runs."""
    from paceline.diagnosis import diagnose

    blocks: list[Block] = []
    repeated = False
    for found in diagnose([run for row in rows for run in row.members]):
        first, *others = found.causes
        more = [cause for cause in others if cause.rule != TOO_FEW]
        repeated |= len(more) < len(others)
        blocks.append(Text(lines=(f"{found.summary.rstrip('.')}.",)))
        blocks.append(Text(kind="list", lines=tuple(map(_told, [first, *more][:CAUSES]))))
    if repeated:  # said of each it would be most of the section
        blocks.append(Text(kind="note", lines=(ONCE,)))
    return Section(title="Why it stops scaling here", blocks=tuple(blocks)) if blocks else None


def _told(cause: Cause) -> str:
    advice = f" Try {cause.advice}." if cause.advice else ""
    return f"{cause.rule}: {cause.words.rstrip('.')}.{advice}"
