"""How a report spells its figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from paceline.compare.rows import Row


def seconds(value: float) -> str:
    """Three figures, trailing zeros too, so that a column can be compared at a glance.

    >>> [seconds(value) for value in (0, 0.0512, 4.8, 61.24, 999.6, 12345.6)]
    ['0.00', '0.0512', '4.80', '61.2', '1,000', '12,346']
    """
    return "0.00" if value == 0 else f"{value:,.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def percent(fraction: float) -> str:
    """
    >>> percent(0.9297)
    '92.97 %'
    """
    return f"{100 * fraction:.2f} %"


def times(factor: float) -> str:
    """
    >>> times(1.8)
    '1.80x'
    """
    return f"{factor:.2f}x"


def megabytes(count: float) -> str:
    """
    >>> [megabytes(count) for count in (0, 12_345, 29_850_000, 2_765_300_000)]
    ['0', '0.01', '29.9', '2,765']
    """
    value = count / 1e6
    return f"{value:,.0f}" if value == 0 or value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def label(row: Row) -> str:
    """A row in a few words: strategy, ranks, and threads where there are several."""
    threads = "" if row.threads == 1 else f" of {row.threads} threads"
    return f"{row.strategy}, {ranks(row)}{threads}{' *' if row.oversubscribed else ''}{mark(row)}"


def mark(row: Row) -> str:
    """What says that a row was simulated."""
    return f" (simulated: {row.simulated})" if row.simulated else ""


def ranks(row: Row) -> str:
    """The row's number of ranks, with the word."""
    return f"{row.ranks} rank{'' if row.ranks == 1 else 's'}"


def ranges(numbers: Sequence[int]) -> str:
    """
    >>> ranges([0, 1, 2, 5])
    '0-2, 5'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def breakable(text: str) -> str:
    """As HTML that may be broken after the marks of a long option, and not only anywhere.

    A number stays with its unit, and thousands with what follows them.

    >>> breakable("mlp:8,seed=3, sgd"), breakable("19,357 MB")
    ('mlp:<wbr>8,<wbr>seed=<wbr>3, sgd', '19,357\xa0MB')
    >>> breakable("in 4.07 s, 94.14 %")
    'in 4.07\xa0s, 94.14\xa0%'
    """
    text = re.sub(r"(?<=\d) (?=(?:%|s|ms|us|MB|x)(?!\w))", "\u00a0", text)
    return re.sub(r"(?!(?<=\d),\d{3}(?!\d))([:=,])(?=\S)", r"\1<wbr>", escape(text, quote=False))
