"""The figures of a report as pictures: SVG with its text as text, PNG, and onto pages of others.

Nothing of matplotlib's global state is used, and the same figure gives the same bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from paceline.report._draw_bars import BarsDrawing
from paceline.report._draw_columns import ColumnsDrawing
from paceline.report._draw_lines import LinesDrawing
from paceline.report._measure import FONT
from paceline.report._sheet import Drawing, Hit, Sheet
from paceline.report.document import Bars, Figure, Lines

# Widths in points; a browser shows a point of a drawing as one of its pixels, so that text keeps its size.
WIDE, PHONE = 928.0, 352.0
SIZE = 12.0
PNG_DPI = 144


def drawing_of(
    figure: Figure, width: float, among: Sequence[str] = (), *, size: float = SIZE, titled: bool = False
) -> Drawing:
    """The figure laid out for a width; `among` as `palette.style_of` takes it."""
    if isinstance(figure, Lines):
        return LinesDrawing(figure, width, size, among, titled=titled)
    if isinstance(figure, Bars):
        return BarsDrawing(figure, width, size, among, titled=titled)
    return ColumnsDrawing(figure, width, size, among, titled=titled)


def svg(
    figure: Figure, among: Sequence[str] = (), *, width: float = WIDE, titled: bool = True
) -> tuple[str, list[Hit]]:
    """The figure as SVG, and the places of it that have something to say.

    >>> from paceline.report.document import Axis, Bar
    >>> bar = Bar(label="psgd, 2 ranks", strategy="psgd", parts=(1.5,))
    >>> time = Bars(name="t", title="Time", caption="", x=Axis(label="time (s)"), kinds=("time",), bars=(bar,))
    >>> text, hits = svg(time)
    >>> "psgd, 2 ranks</text>" in text, [hit.words for hit in hits]
    (True, ['psgd, 2 ranks\\ntime (s): 1.5'])
    """
    with _settings(figure.name, width):
        page, sheet = _drawn(figure, among, width, titled)
        file = io.StringIO()
        page.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue(), sheet.hits


def png(figure: Figure, among: Sequence[str] = (), *, width: float = WIDE) -> bytes:
    """The figure as PNG, with its title.

    >>> from paceline.report.document import Axis, Columns
    >>> png(Columns(name="c", title="Ages", caption="", x=Axis(label="age"), y=Axis(label="share"), strategy="psgd",
    ...     labels=("0", "1"), heights=(0.25, 0.75)))[1:4]
    b'PNG'
    """
    with _settings(figure.name, width):
        page, _ = _drawn(figure, among, width, True)
        file = io.BytesIO()
        page.savefig(file, format="png", dpi=PNG_DPI, facecolor="white", metadata={"Software": None})
    return file.getvalue()


@contextmanager
def settings(salt: str) -> Iterator[None]:
    """matplotlib's settings while a report is drawn, whatever the user's own are."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "svg.hashsalt": salt,
                "svg.fonttype": "none",
                "pdf.fonttype": 42,
                "font.family": FONT,
                "text.parse_math": False,
                "text.hinting": "none",  # else letters are moved apart to whole pixels, and text is wider than measured
                "hatch.linewidth": 1.6,
                "path.simplify": True,
            }
        )
        yield


def blank(width: float, height: float) -> Any:
    """An empty figure, so wide and high in points."""
    from matplotlib.figure import Figure as Page

    return Page(figsize=(width / 72, height / 72), dpi=72)


def _settings(name: str, width: float) -> Any:
    return settings(f"{name} {width:g}")


def _drawn(figure: Figure, among: Sequence[str], width: float, titled: bool) -> tuple[Any, Sheet]:
    border = 12.0 if titled else 2.0
    drawing = drawing_of(figure, width - 2 * border, among, titled=titled)
    page = blank(width, drawing.height + 2 * border)
    sheet = Sheet(page, border, border, width - 2 * border)
    drawing.draw(sheet)
    return page, sheet
