"""Tables as CSV, their values unspelled: seconds, fractions, bytes."""

from __future__ import annotations

import csv
import io

from paceline.report._spelling import mark_of, raw_name
from paceline.report.document import Table


def csv_text(table: Table) -> str:
    """One line of headings, then the rows; rows' marks, where there are any, in a last column.

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
    writer.writerow([*map(raw_name, table.columns), *(["mark"] if marked else [])])
    for number, row in enumerate(table.rows):
        cells = ["" if value is None else value for value in row]
        writer.writerow([*cells, *([mark_of(table, number)] if marked else [])])
    return file.getvalue()
