"""Text that people read: one spelling for every quantity, lists of words, tables and progress bars.

Quantities: `seconds`, `duration`, `time_span`, `clock_time`, `percent`, `share`, `times`, `megabytes`, `amount`, `size`,
`number`.
Words: `count`, `join`, `ranges`, `one_line`. Terminal: `table`, `ProgressBar`, `progress` (drawn by rich).
"""

from __future__ import annotations

import io
import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO


def seconds(value: float) -> str:
    """Format seconds with three figures and no unit, for a column whose heading has the unit.

    >>> [seconds(value) for value in (0, 0.0512, 4.8, 61.24, 999.6, 12345.6)]
    ['0.00', '0.0512', '4.80', '61.2', '1,000', '12,346']
    """
    return "0.00" if value == 0 else f"{value:,.0f}" if value >= 100 else f"{value:#.3g}".rstrip(".")


def duration(value: float) -> str:
    """Format seconds with three figures and the unit that suits them.

    >>> duration(0.0000314), duration(0.00314), duration(31.4)
    ('31.4 us', '3.14 ms', '31.4 s')
    """
    for unit, size_ in (("us", 1e-6), ("ms", 1e-3)):
        if value < 999.5 * size_:
            return f"{value / size_:.3g} {unit}"
    return f"{value:.3g} s" if value < 999.5 else f"{value:,.0f} s"


def time_span(value: float) -> str:
    """Format seconds as people say them: with up to two units.

    >>> [time_span(value) for value in (0.0123, 1.234, 75.4, 3600, 7980)]
    ['12.3 ms', '1.23 s', '1 min 15 s', '1 h', '2 h 13 min']
    """
    if value < 59.95:
        return duration(value)
    large, small, each = ("min", "s", 1) if value < 3599.5 else ("h", "min", 60)
    whole, rest = divmod(round(value / each), 60)
    return f"{whole:,} {large}" + (f" {rest} {small}" if rest else "")


def percent(fraction: float) -> str:
    """Format an accuracy: a fraction as a percentage with two decimals.

    >>> percent(0.9297)
    '92.97 %'
    """
    return f"{100 * fraction:.2f} %"


def share(fraction: float) -> str:
    """Format a part of a whole as a percentage without decimals, or with one figure when it is below 1 %.

    >>> share(0.347), share(0.004)
    ('35 %', '0.4 %')
    """
    return f"{100 * fraction:.0f} %" if fraction >= 0.01 or fraction == 0 else f"{100 * fraction:.1g} %"


def ratio(factor: float) -> str:
    """Format a ratio of two times with at least three figures.

    >>> ratio(3.2), ratio(41.26), ratio(1234.5)
    ('3.20', '41.3', '1,234')
    """
    return f"{factor:.2f}" if factor < 10 else f"{factor:.1f}" if factor < 100 else f"{factor:,.0f}"


def times(factor: float) -> str:
    """Format a speedup.

    >>> times(3.2), times(41.26), times(1234.5)
    ('3.20x', '41.3x', '1,234x')
    """
    return f"{ratio(factor)}x"


def megabytes(nbytes: float) -> str:
    """Format bytes in MB, without the unit, for a column whose heading has it.

    >>> [megabytes(nbytes) for nbytes in (0, 12_345, 29_850_000, 2_765_300_000)]
    ['0', '0.01', '29.9', '2,765']
    """
    value = nbytes / 1e6
    return f"{value:,.0f}" if value == 0 or value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def amount(nbytes: float) -> str:
    """Format an amount of traffic in bytes, in decimal units, as network speeds are given.

    >>> amount(437_544), amount(1.2e9), amount(12)
    ('438 kB', '1.2 GB', '12 B')
    """
    for unit, size_ in (("EB", 1e18), ("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size_:
            return f"{nbytes / size_:.3g} {unit}"
    return f"{nbytes:.0f} B"


def size(nbytes: float) -> str:
    """Format the size of a buffer in bytes, in binary units, since such sizes are often powers of two.

    >>> size(1024), size(437544), size(64 << 20)
    ('1 KiB', '427.3 KiB', '64 MiB')
    """
    value, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.1f}".removesuffix(".0") + f" {unit}"


def number(value: float) -> str:
    """Format any other number: four figures, whole numbers whole.

    >>> [number(value) for value in (12345, 3.0, 0.0512345, 1234.567)]
    ['12,345', '3', '0.05123', '1,235']
    """
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def count(number_: int, noun: str, plural: str = "s") -> str:
    """Format a number of things; `plural` is the ending of the plural.

    >>> count(1, "rank"), count(4, "rank"), count(1200, "batch", "es")
    ('1 rank', '4 ranks', '1,200 batches')
    """
    return f"{number_:,} {noun}{'' if number_ == 1 else plural}"


def join(words: Iterable[object], last: str = "and") -> str:
    """Join words with commas and, before the last one, a conjunction.

    >>> join([3]), join([3, 5, 7]), join(["png", "svg"], "or"), join([])
    ('3', '3, 5 and 7', 'png or svg', '')
    """
    *first, end = [str(word) for word in words] or [""]
    return f"{', '.join(first)} {last} {end}" if first else end


LONGEST_LINE = 2000


def one_line(words: str) -> str:
    """Return a message as one line of at most 2,000 characters, with control characters spelled out.

    >>> print(one_line("no such file: a\\nb"))
    no such file: a\\nb
    >>> len(one_line("9" * 5000))
    2000
    """
    shown = "".join(
        repr(letter)[1:-1] if unicodedata.category(letter) in ("Cc", "Zl", "Zp") else letter
        for letter in words
    )
    half = (LONGEST_LINE - 3) // 2
    return shown if len(shown) <= LONGEST_LINE else f"{shown[: half + 1]}...{shown[-half:]}"


def ranges(numbers: Iterable[int]) -> str:
    """Format rising whole numbers, with runs of them shortened.

    >>> ranges([0, 1, 2, 5])
    '0-2, 5'
    """
    runs: list[list[int]] = []
    for value in numbers:
        if runs and value == runs[-1][-1] + 1:
            runs[-1][1:] = [value]
        else:
            runs.append([value])
    return ", ".join("-".join(map(str, run)) for run in runs)


def table(
    rows: Iterable[Sequence[str]], headings: Sequence[str] = (), *, justify: str = "", indent: int = 0
) -> str:
    """Lay out cells in columns as plain text, without colours or lines; no cell is broken or cut.

    `justify` has a letter for each column, l or r; columns beyond it are to the right, and without it the first is to the
    left. A row of no cells is an empty line.

    >>> print(table([("sync", "4", "1.80x"), ("serial", "1", "")], ("strategy", "ranks", "speedup"), indent=2))
      strategy  ranks  speedup
      sync          4    1.80x
      serial        1
    """
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    rows = [list(row) for row in rows]
    columns = max([len(headings), *map(len, rows)], default=0)
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(headings), header_style="")
    for place, side in enumerate((justify or "l").ljust(columns, "r")[:columns]):
        heading = Text(headings[place] if place < len(headings) else "")
        grid.add_column(heading, justify="left" if side == "l" else "right", no_wrap=True)
    for row in rows:
        grid.add_row(*map(Text, row))
    file = io.StringIO()
    width = 10_000  # wider than any table, so that rich has no reason to shorten a cell
    console = Console(file=file, width=width, color_system=None, legacy_windows=False)
    console.print(Padding(grid, (0, 0, 0, indent), expand=False))
    return "\n".join(line.rstrip() for line in file.getvalue().split("\n")[:-1])


class ProgressBar:
    """A progress bar on the last line of a terminal, with lines of text above it.

    It is drawn only from inside `draw`, with no thread of its own, at most ten times a second and, where drawing is slow,
    only once a second, so that it does not slow down what it shows.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        width: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
        from rich.text import Text

        class Terminal(Console):
            def show_cursor(self, show: bool = True) -> bool:
                return False  # a process that is killed would leave the cursor hidden

        class Beam(BarColumn):
            def render(self, task: Task) -> Any:
                return Text("") if task.total is None else super().render(task)

        stream = sys.stderr if stream is None else stream
        console = Terminal(file=stream, width=width, force_terminal=True, legacy_windows=False)
        columns: tuple[ProgressColumn, ...] = (
            TextColumn("{task.description}", markup=False),
            Beam(bar_width=None),
            TextColumn("{task.fields[after]}", markup=False),
        )
        self._progress = Progress(
            *columns, console=console, auto_refresh=False, transient=True, expand=True,
            redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        self._task = self._progress.add_task("", after="", total=None)
        self._clock = clock
        self._due = clock()

    def is_due(self) -> bool:
        """Return True if the next call of `draw` will draw."""
        return self._clock() >= self._due

    def draw(self, done: float = 0, total: float | None = None, *, before: str = "", after: str = "") -> None:
        """Draw the bar, if it is time or all is done, with text on both sides; without a total, only the text."""
        start = self._clock()
        if start < self._due and done != total:
            return
        self._progress.update(self._task, completed=done, total=total, description=before, after=after)
        self._progress.start()
        self._progress.refresh()
        self._due = start + min(1.0, max(0.1, 200 * (self._clock() - start)))

    def write(self, line: str) -> None:
        """Write a line above the bar."""
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the bar; `draw` shows it again."""
        self._progress.stop()
        self._due = self._clock()


@contextmanager
def progress(
    description: str, total: float, *, stream: TextIO | None = None, quiet: bool = False
) -> Iterator[Callable[[float], None]]:
    """Show a progress bar on standard error and yield a function that moves it to a number done so far.

    Nothing is shown when the stream is not a terminal; the bar disappears at the end.
    """
    stream = sys.stderr if stream is None else stream
    if quiet or not stream.isatty():
        yield lambda done: None
        return
    bar = ProgressBar(stream)
    try:
        yield lambda done: bar.draw(done, total, before=description, after=f"{done:,}/{total:,}")
    finally:
        bar.close()


def clock_time(seconds_: float) -> str:
    """Format seconds as a clock shows them.

    >>> clock_time(65.2), clock_time(3600)
    ('1:05', '1:00:00')
    """
    minutes, whole = divmod(round(seconds_), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{whole:02}" if hours else f"{minutes}:{whole:02}"
