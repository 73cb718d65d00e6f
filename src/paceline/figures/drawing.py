"""Figures drawn with matplotlib, as files and as parts of pages: SVG whose text is text, PNG and PDF.

Descriptions of figures are put onto matplotlib axes; ticks, legends and layout are matplotlib's. Its global state is not
used, and the same figure gives the same bytes.

A figure is laid out for a width; its height follows from what is in it. Below `NARROW` points it is for a phone: labels
stand above their bars instead of beside them. Each value has a `Hit`: a place that a page can attach words to.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from paceline.errors import UsageError
from paceline.figures.description import (
    Axis,
    Bar,
    Bars,
    Curve,
    Figure,
    Histogram,
    Lines,
    Origin,
    Point,
    Points,
)
from paceline.figures.palette import (
    FAINT,
    GREY,
    INK,
    ON_DARK,
    ORIGINS,
    PAPER,
    PUBLISHED,
    Style,
    kind_colour,
    on_dark,
    style_of,
    variant_of,
)

# Widths in points. A browser shows a point of a drawing as one of its pixels, so that text keeps its size.
WIDE, PHONE = 928.0, 352.0
FORMATS = (".png", ".svg", ".pdf")
DPI = 144  # of PNG
RADIUS = 8.0  # of the circle around a point that reacts to the pointer
FONT = "DejaVu Sans"
NARROW = 500.0
LINE = 1.25  # from one line of text to the next, in font sizes
# A curve of more points than FEW has markers at some of them only, and at most HITS places that tell a value.
FEW, HITS = 16, 120
# An ideal line reaches at most this far above the other curves; it does not flatten them.
BEYOND = 1.5
THICK, HATCH, PALE = 15.0, "////", 0.4  # bars: thickness in points; simulated; oversubscribed
# A legend of more entries is kept low.
MANY = 8
# Of more points, each has only its number of ranks as a label, and each strategy an entry in the legend.
CROWD = 24
OVERSUBSCRIBED = "more ranks than cores"
STOPPED = "stopped early, before the target"
LESS, CROSSED = "learned less than serial", "learned less than serial, or diverged"


def svg(
    figure: Figure, among: Sequence[str] = (), *, width: float = WIDE, titled: bool = True
) -> tuple[str, list[Hit]]:
    """Return the figure as SVG, and the places of it that tell a value.

    >>> from paceline.figures import Axis, Bar, Bars
    >>> bar = Bar(label="sync, 2 ranks", strategy="sync", parts=(1.5,))
    >>> time = Bars(name="t", title="Time", caption="", x=Axis(label="time (s)"), kinds=("time",), bars=(bar,))
    >>> text, hits = svg(time)
    >>> "sync, 2 ranks</text>" in text, [hit.words for hit in hits]
    (True, ['sync, 2 ranks\\ntime (s): 1.5'])
    """
    with settings(f"{figure.name} {width:g}"):
        page, hits = _page(figure, among, width, titled)
        return _write(page, ".svg").decode(), hits


def png(figure: Figure, among: Sequence[str] = ()) -> bytes:
    """Return the figure as PNG, with its title.

    >>> from paceline.figures import Axis, Histogram
    >>> png(Histogram(name="c", title="Ages", caption="", x=Axis(label="age"), y=Axis(label="share"), strategy="sync",
    ...     labels=("0", "1"), heights=(0.25, 0.75)))[1:4]
    b'PNG'
    """
    with settings(figure.name):
        page, _ = _page(figure, among, WIDE, True)
        return _write(page, ".png")


def save(
    grid: Sequence[Sequence[Figure]],
    paths: Sequence[Path],
    *,
    title: str = "",
    width: float = WIDE,
    among: Sequence[str] = (),
) -> None:
    """Draw figures in rows and columns on one page with one legend, into each of the files (.png, .svg or .pdf)."""
    with settings("paceline"):
        page, _ = draw_page(grid, width, among=among, title=title, margin=10.0)
        for path in paths:
            save_page(page, path)


def save_page(page: Any, path: Path) -> None:
    """Write a matplotlib figure to a file, whole or not at all, in the format that its name ends with."""
    from paceline.files import replace_file

    content = _write(page, check_format(path))
    with replace_file(path) as file:
        file.write(content)


def check_format(path: Path) -> str:
    """Return the ending of a picture's name; refuse unknown ones.

    >>> check_format(Path("steps.bmp"))
    Traceback (most recent call last):
    paceline.errors.UsageError: a picture must end in one of .png, .svg, .pdf; got steps.bmp
    """
    ending = path.suffix.lower()
    if ending not in FORMATS:
        raise UsageError(f"a picture must end in one of {', '.join(FORMATS)}; got {path.name}")
    return ending


@contextmanager
def settings(salt: str) -> Iterator[None]:
    """Replace matplotlib's settings, including the user's own, by those of these drawings."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        # A name may have letters that the font has not: they are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "svg.hashsalt": salt,
                "svg.fonttype": "none",
                "pdf.fonttype": 42,
                "font.family": FONT,
                "text.parse_math": False,
                "text.hinting": "none",  # otherwise letters move to whole pixels, and text is wider than measured
                "hatch.linewidth": 1.6,
            }
        )
        yield


def inline_svg(
    figure: Figure,
    among: Sequence[str] = (),
    *,
    width: float = WIDE,
    css: str = "",
    prefix: str = "",
    drawn: tuple[str, list[Hit]] | None = None,
) -> str:
    """Return the figure as an SVG element of an HTML page; its values appear when a reader points at them.

    `prefix` distinguishes the names inside: two drawings of a page would have the same ones. A page may change every colour
    by a variable of its style sheet: --c0072b2 for #0072B2 (see `dark_colours`).
    `drawn`: the figure, if `svg` has drawn it already.
    """
    drawing, hits = svg(figure, among, width=width, titled=False) if drawn is None else drawn
    return _embed(drawing, prefix, hits, f"{figure.title}. {figure.caption}".strip(), css)


def dark_colours(page: str) -> str:
    """Return CSS declarations that make the drawings of a page readable on a dark background.

    >>> dark_colours('<path style="fill: var(--c222222, #222222)"/>')
    '--c222222: #e8e8e8'
    """
    used = dict(re.findall(r"var\((--c[0-9a-f]{6}), (#[0-9a-fA-F]{6})\)", page))
    return "; ".join(
        f"{name}: {dark}" for name, colour in sorted(used.items()) if (dark := on_dark(colour)) != colour
    )


def _page(figure: Figure, among: Sequence[str], width: float, titled: bool) -> tuple[Any, list[Hit]]:
    title = figure.title if titled else ""
    return draw_page([[figure]], width, among=among, title=title, margin=12.0 if titled else 2.0)


def _write(page: Any, ending: str) -> bytes:
    file = io.BytesIO()
    metadata: dict[str, None] = {
        ".svg": {"Date": None, "Creator": None},
        ".png": {"Software": None},
        ".pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    }[ending]
    page.savefig(file, format=ending[1:], dpi=DPI, facecolor="white", metadata=metadata)
    return file.getvalue()


def _embed(drawn: str, prefix: str, hits: Sequence[Hit], label: str, css: str) -> str:
    """Make matplotlib's SVG part of an HTML page: short, with names of its own, and with hits.

    >>> text = '<?xml version="1.0"?><svg width="72pt" height="36pt" viewBox="0 0 72 36"><g id="a"><path id="m"/>' \\
    ...     '<use xlink:href="#m"/></g></svg>'
    >>> print(_embed(text, "f1", [Hit(1, 2, "sync & co")], "Time", "wide").replace("><", ">\\n<"))
    <svg class="wide" role="img" aria-label="Time" width="72" height="36" viewBox="0 0 72 36" style="fill: var(--c000000, \
#000000)" stroke-linejoin="round">
    <g>
    <path id="f1-m"/>
    <use href="#f1-m"/>
    </g>
    <circle class="hit" cx="1.0" cy="2.0" r="8">
    <title>sync &amp; co</title>
    </circle>
    </svg>
    """
    found = re.search(r"<svg\b[^>]*>", drawn)
    if found is None:
        raise ValueError("no svg element in the drawing")
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', found[0])
    wide, high = (size[1], size[2]) if size else ("100", "100")
    body = drawn[found.end() : drawn.rindex("</svg>")]
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.S)
    # matplotlib's style element would apply to the whole page.
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, count=1, flags=re.S)
    body = re.sub(r"<[^>]+>", lambda tag: _shorten(tag[0]), body)
    used = {a or b for a, b in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', body)}
    body = re.sub(r' id="([^"]+)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in used else "", body)
    body = re.sub(r'(href="#|url\(#)', rf"\1{prefix}-", body)
    body = re.sub(r">\s*\n\s*<", "><", body.strip())
    body = re.sub(r": #([0-9a-fA-F]{6})\b", lambda m: f": var(--c{m[1].lower()}, #{m[1]})", body)
    black = "fill: var(--c000000, #000000)"  # matplotlib leaves it out, since it is the default
    return (
        f'<svg class="{css}" role="img" aria-label="{escape(label)}" width="{wide}" height="{high}" '
        f'viewBox="0 0 {wide} {high}" style="{black}" stroke-linejoin="round">{body}{"".join(map(_hit, hits))}</svg>'
    )


def _shorten(tag: str) -> str:
    """Keep two decimals of each coordinate, and drop rotations by 0.

    >>> _shorten('<text x="1.23456" transform="rotate(-0 1.23456 7)">')
    '<text x="1.23">'
    """
    tag = re.sub(r' transform="rotate\(-?0 [^)]*\)"', "", tag.replace("xlink:href", "href"))
    return re.sub(r"(\d\.\d\d)\d+", r"\1", tag.replace(" \n", " "))


def _hit(hit: Hit) -> str:
    words = f"<title>{escape(hit.words, quote=False)}</title>"
    if hit.width:
        return (
            f'<rect class="hit" x="{hit.x:.1f}" y="{hit.y:.1f}" width="{hit.width:.1f}" height="{hit.height:.1f}">'
            f"{words}</rect>"
        )
    return f'<circle class="hit" cx="{hit.x:.1f}" cy="{hit.y:.1f}" r="{RADIUS:g}">{words}</circle>'


# ---- pages


@dataclass(frozen=True)
class Hit:
    """A place of a drawing that tells a value, in points from the upper left corner; a circle if it has no size."""

    x: float
    y: float
    words: str
    width: float = 0.0
    height: float = 0.0


@dataclass
class Drawing:
    """A description on a page: its axes, their height in points, the entries of the legend, and its values."""

    axes: Any
    size: float
    height: float = 0.0
    handles: list[Any] = field(default_factory=list)
    values: list[tuple[float, float, float, float, str]] = field(default_factory=list)
    """Two corners in data coordinates (the same one twice: a point), and the words shown there."""

    def hits(self) -> list[Hit]:
        """Return where the values are, once the page has its layout."""
        page = self.axes.get_figure()
        tall = 72 * float(page.get_figheight())
        found = []
        for x0, y0, x1, y1, words in self.values:
            corners = self.axes.transData.transform([(x0, y0), (x1, y1)]) * 72 / page.dpi
            (left, first), (right, second) = corners.tolist()
            point = (x0, y0) == (x1, y1)
            size = () if point else (max(right - left, 2.0), abs(second - first))
            found.append(Hit(left, tall - max(first, second), words, *size))
        return found


def blank_page(width: float, height: float, *, layout: Literal["constrained"] | None = None) -> Any:
    """Return an empty matplotlib figure of a size in points."""
    from matplotlib.figure import Figure as Page

    return Page(figsize=(width / 72, height / 72), dpi=72, layout=layout)


def draw_page(
    grid: Sequence[Sequence[Figure]],
    width: float,
    *,
    among: Sequence[str] = (),
    size: float = 12.0,
    title: str = "",
    margin: float = 2.0,
) -> tuple[Any, list[Hit]]:
    """Draw figures in rows and columns on one page with one legend; return the matplotlib figure and the hits.

    `among`: all names of the document, as `palette.style_of` takes them. `margin`: around everything, in points.
    """
    page = blank_page(width, 1000.0 * len(grid), layout="constrained")
    pads = {"w_pad": margin / 72, "h_pad": min(margin, 6.0) / 72}
    page.get_layout_engine().set(**pads, wspace=0.02 * (len(grid[0]) > 1), hspace=0.02 * (len(grid) > 1))
    drawings = draw_on(page, grid, width, among=among, size=size, title=title, margin=margin)
    _fit(page, drawings)
    return page, [hit for row in drawings for drawing in row for hit in drawing.hits()]


def draw_on(
    page: Any,
    grid: Sequence[Sequence[Figure]],
    width: float,
    *,
    among: Sequence[str] = (),
    size: float = 12.0,
    title: str = "",
    margin: float = 2.0,
) -> list[list[Drawing]]:
    """Draw figures on a matplotlib figure or subfigure of this width, which lays them out."""
    rows = page.subplots(len(grid), len(grid[0]), squeeze=False)
    room = width - 2 * margin
    drawings = [
        [_draw(one, axes, room / len(line), among, size) for one, axes in zip(line, row, strict=True)]
        for line, row in zip(grid, rows, strict=True)
    ]
    if title:
        words = "\n".join(wrap(title, size + 1, room, bold=True))
        page.suptitle(words, x=margin / width, ha="left", fontsize=size + 1, weight="bold", color=INK)
    every = [drawing for row in drawings for drawing in row]
    if len(every) > 1:
        for drawing, one in zip(every, (one for line in grid for one in line), strict=True):
            titles = "\n".join(filter(None, (one.title, drawing.axes.get_title(loc="left"))))
            drawing.axes.set_title(titles, loc="left", fontsize=size, color=INK)
    unique = {handle.get_label(): handle for drawing in every for handle in drawing.handles}
    _add_legend(page, list(unique.values()), width, margin, size)
    return drawings


def _draw(figure: Figure, axes: Any, width: float, among: Sequence[str], size: float) -> Drawing:
    axes.set_facecolor("none")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=GREY, labelcolor=INK, labelsize=size, length=3, pad=3)
    axes.set_axisbelow(True)
    drawing = Drawing(axes, size)
    if isinstance(figure, Lines):
        _draw_lines(figure, drawing, width, among)
    elif isinstance(figure, Bars):
        _draw_bars(figure, drawing, width, among)
    elif isinstance(figure, Points):
        _draw_points(figure, drawing, width, among)
    else:
        _draw_histogram(figure, drawing, width, among)
    return drawing


def _fit(page: Any, drawings: Sequence[Sequence[Drawing]]) -> None:
    """Make the page as high as its axes, labels and legend need, and leave out x ticks whose labels would touch."""
    layout = page.get_layout_engine()
    legends = sum(legend.get_window_extent().height for legend in page.legends)
    page.set_figheight(
        page.get_figheight() + legends / page.dpi
    )  # of many entries: the axes need room beside it
    layout.execute(page)
    wanted = sum(max(drawing.height for drawing in row) for row in drawings)
    there = sum(row[0].axes.get_position().height for row in drawings) * page.get_figheight() * 72
    page.set_figheight(page.get_figheight() + (wanted - there) / 72)
    for row in drawings:
        for drawing in row:
            _thin_ticks(drawing.axes.xaxis, drawing.size)
    layout.execute(page)
    page.set_layout_engine(None)  # matplotlib draws a page that has one twice


def _thin_ticks(axis: Any, size: float) -> None:
    from matplotlib.ticker import FixedLocator

    low, high = sorted(axis.get_view_interval())
    labelled = [tick for tick in axis.get_major_ticks() if tick.label1.get_text()]
    ticks = [(tick.get_loc(), tick.label1.get_window_extent()) for tick in labelled]
    kept: list[tuple[float, Any]] = []
    for place, box in ticks:
        if low <= place <= high and (not kept or box.x0 >= kept[-1][1].x1 + 0.6 * size):
            kept.append((place, box))
    if kept and ticks[-1][0] <= high:  # the last one stays
        kept = [one for one in kept if one[1].x1 + 0.6 * size <= ticks[-1][1].x0] + ticks[-1:]
    axis.set_major_locator(FixedLocator([place for place, _ in kept]))


def _add_legend(page: Any, handles: Sequence[Any], width: float, margin: float, size: float) -> None:
    """Put a legend below everything, in as many columns as fit; many entries on a wide page in at least three."""
    if not handles:
        return
    many = width >= NARROW and len(handles) > MANY
    size -= 1.5 * many
    room = (width - 2 * margin) / (3 if many else 1) - 3.5 * size
    for handle in handles:
        handle.set_label("\n".join(wrap(handle.get_label(), size, room)))
    broken = any("\n" in handle.get_label() for handle in handles)  # then rows do not stay beside each other
    for columns in range(min(len(handles), 6), 0, -1):
        legend = page.legend(
            handles=handles if broken else _order_by_rows(handles, columns), loc="outside lower left", ncols=columns,
            frameon=False, fontsize=size, labelcolor=INK, handlelength=2.2, columnspacing=1.5, handletextpad=0.6,
            labelspacing=0.3, borderpad=0, borderaxespad=margin / size, alignment="left",
        )  # fmt: skip
        if columns == 1 or legend.get_window_extent().width * 72 / page.dpi <= width - 2 * margin:
            return
        legend.remove()


def _order_by_rows(handles: Sequence[Any], columns: int) -> list[Any]:
    """Reorder entries so that matplotlib, which fills columns, shows them row by row.

    >>> _order_by_rows("abcde", 3)
    ['a', 'd', 'b', 'e', 'c']
    """
    return [handle for column in range(columns) for handle in handles[column::columns]]


# ---- axes


def limits(axis: Axis, values: Iterable[float], *, margin: float = 0.05) -> tuple[float, float]:
    """Return where an axis begins and ends: at its bounds, or at the values with a margin.

    >>> limits(Axis(label="a", bounds=(0, None)), [1, 9], margin=0.1)
    (0.0, 9.9)
    >>> [round(end, 3) for end in limits(Axis(label="a", percent=True), [0.95, 0.95])]
    [0.895, 1.002]
    """
    usable = [v for v in values if math.isfinite(v) and (v > 0 or not axis.log)]
    bounds = [v if v is not None and (v > 0 or not axis.log) else None for v in axis.bounds]
    usable += [v for v in bounds if v is not None]
    low, high = (min(usable), max(usable)) if usable else (1.0, 2.0)
    if axis.log:
        low, high = (low / 1.5, high * 1.5) if low == high else (low, high)
        room = (high / low) ** margin
        found = [low / room, high * room]
    else:
        if low == high:
            half = 0.05 if axis.percent else 0.5 * abs(low)
            low, high = (low - half, high + half) if low else (0.0, 1.0)
        room = (high - low) * margin
        found = [0.0 if 0 <= low < 0.15 * high else low - room, high + room]
        if axis.percent and max(usable, default=1.0) <= 1:
            found[1] = min(found[1], 1 + room / 2)
    first, last = (float(end if bound is None else bound) for end, bound in zip(found, bounds, strict=True))
    return (first, last) if first < last else (found[0], found[1])


def _set_ticks(mpl_axis: Any, axis: Axis) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

    low, high = sorted(mpl_axis.get_view_interval())
    if axis.ticks is not None:
        locator: Any = FixedLocator(axis.ticks)
    elif axis.log and axis.base == 2 and low >= 1 / 10:
        octaves = math.log2(high / low)
        locator = LogLocator(
            base=2, subs=(1, 1.25, 1.5, 1.75) if octaves < 1 else (1, 1.5) if octaves < 2.5 else (1,)
        )
    elif axis.log:
        decades = math.log10(high / low)
        few = (1,) if decades > 3 else (1, 2, 5)
        locator = LogLocator(subs=few if decades > 1 else (1, 1.5, 2, 3, 4, 5, 6, 8))
    else:
        locator = MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10])
    mpl_axis.set_major_locator(locator)
    mpl_axis.set_major_formatter(FuncFormatter(lambda value, _: axis.spell_tick(value)))
    mpl_axis.set_minor_locator(NullLocator())


def _set_scale(set_scale: Any, axis: Axis) -> None:
    if axis.log:
        set_scale("log", base=axis.base)


# ---- curves


def _draw_lines(figure: Lines, drawing: Drawing, width: float, among: Sequence[str]) -> None:
    axes, size = drawing.axes, drawing.size
    drawing.height = 230.0 if width < NARROW else min(0.42 * width, 330.0)
    _set_scale(axes.set_xscale, figure.x)
    _set_scale(axes.set_yscale, figure.y)
    xs, ys = _extent(figure)
    axes.set_xlim(limits(figure.x, xs, margin=0.04))
    axes.set_ylim(limits(figure.y, ys, margin=0.06))
    _set_ticks(axes.xaxis, figure.x)
    _set_ticks(axes.yaxis, figure.y)
    axes.grid(color=FAINT, linewidth=0.7)
    axes.set_xlabel("\n".join(wrap(figure.x.label, size, width)), fontsize=size, color=GREY)
    label = "\n".join(wrap(figure.y.label, size, width - 4 * size))
    axes.set_title(label, loc="left", fontsize=size, color=GREY)
    for curve in figure.curves:
        own = style_of(curve.strategy, among)
        _draw_curve(figure, curve, variant_of(own, curve.strategy, among, curve.variant), drawing)
    if figure.band is not None:
        axes.axhspan(*figure.band, color=GREY, alpha=0.12, linewidth=0, zorder=0.5)
    _add_origins(figure, drawing)
    if figure.level is not None:
        axes.axhline(figure.level[0], color=INK, linewidth=1, dashes=(2, 2), zorder=1.5)
        drawing.handles.append(_line(label=figure.level[1], color=INK, linewidth=1, dashes=(2, 2)))


def _draw_curve(figure: Lines, curve: Curve, style: Style, drawing: Drawing) -> None:
    axes, origin = drawing.axes, ORIGINS[curve.origin]
    xs = [_drawable(x, figure.x.log) for x in curve.x]
    ys = [_drawable(y, figure.y.log) for y in curve.y]
    line, marker = _line_look(curve.origin, style), _marker_look(curve.origin, style)
    if curve.joined:
        axes.plot(xs, ys, **line)
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    inside = [k for k in range(len(xs)) if left <= xs[k] <= right and low <= ys[k] <= high]
    if curve.low is not None and curve.high is not None:
        _draw_spread(axes, curve, xs, line["color"])
    crowded = curve.oversubscribed or (False,) * len(xs)
    if origin.marked:
        shown = inside if len(inside) <= FEW else inside[:: -(-len(inside) // 8)]
        for hollow in (False, True):
            some = [k for k in shown if crowded[k] == hollow]
            look = marker | (HOLLOW if hollow else {})
            if some:
                axes.plot([xs[k] for k in some], [ys[k] for k in some], clip_on=False, **look)
        some = [k for k in shown if curve.less is not None and curve.less[k]]
        if some:
            axes.plot([xs[k] for k in some], [ys[k] for k in some], clip_on=False, **CROSS)
    for k, words in enumerate(curve.captions or ()):
        if words and k in inside:
            axes.annotate(
                words, (xs[k], ys[k]), xytext=(0, -0.9 * drawing.size), textcoords="offset points", ha="center",
                va="top", color=style.colour, fontsize=drawing.size - 2, zorder=6,
                bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.85, "pad": 0.6},
            )  # fmt: skip
    if curve.stops is not None and curve.stops in inside:
        crossing = {"marker": "|", "markersize": 22, "markeredgewidth": 1.6, "color": style.colour}
        axes.plot([xs[curve.stops]], [ys[curve.stops]], **crossing)
    for k in inside[:: max(1, -(-len(inside) // HITS))]:
        drawing.values.append((xs[k], ys[k], xs[k], ys[k], _point_words(figure, curve, k)))
    handle = line if curve.joined else {"linestyle": "none"}
    if origin.marked:
        hollow_look = HOLLOW if curve.oversubscribed and all(curve.oversubscribed) else {}
        handle = {**{k: v for k, v in marker.items() if k != "linestyle"}, **hollow_look, **handle}
    drawing.handles.append(_line(label=curve.label, **handle))


def _extent(figure: Lines) -> tuple[list[float], list[float]]:
    """Return every x, and every y with its spread: what the axes must hold."""
    xs = [x for curve in figure.curves for x, y in zip(curve.x, curve.y, strict=True) if y is not None]
    ours = [y for curve in figure.curves if curve.origin != "ideal" for y in curve.y if y is not None]
    ideal = [y for curve in figure.curves if curve.origin == "ideal" for y in curve.y if y is not None]
    if ours and ideal and not figure.y.log:
        ideal = [min(max(ideal), BEYOND * max(*ours, min(ideal)))]
    spreads = [y for c in figure.curves for y in (*(c.low or ()), *(c.high or ())) if y is not None]
    levels = [*((figure.level[0],) if figure.level is not None else ()), *(figure.band or ())]
    return xs, [*ours, *ideal, *spreads, *levels]


def _drawable(value: float | None, log: bool) -> float:
    """Return a value that can be drawn, or NaN, which is a gap."""
    return math.nan if value is None or not math.isfinite(value) or (log and value <= 0) else float(value)


def _draw_spread(axes: Any, curve: Curve, xs: list[float], colour: str) -> None:
    """Draw the spread over seeds: a band along a line, and whiskers if there are few points."""
    bottom, top = axes.get_ylim()
    lows = [math.nan if low is None else max(low, bottom) for low in curve.low or ()]
    highs = [math.nan if high is None else min(high, top) for high in curve.high or ()]
    if curve.joined:
        axes.fill_between(xs, lows, highs, color=colour, alpha=0.15, linewidth=0, zorder=1.2)
    if len(xs) <= FEW:
        look = {"color": colour, "linewidth": 1.1, "marker": "_", "markersize": 6, "zorder": 2}
        for x, low, high in zip(xs, lows, highs, strict=True):
            if low < high:
                axes.plot([x, x], [low, high], **look)


def _point_words(figure: Lines, curve: Curve, k: int) -> str:
    value = curve.y[k]
    words = f"{curve.label}\n{figure.x.name}: {figure.x.spell(curve.x[k])}"
    words += "" if value is None else f"\n{figure.y.name}: {figure.y.spell(value)}"
    if curve.low is not None and curve.high is not None:
        words += _spread_words(figure.y, curve.low[k], curve.high[k])
    if curve.oversubscribed is not None and curve.oversubscribed[k]:
        words += f"\n{OVERSUBSCRIBED}"
    note = curve.notes[k] if curve.notes is not None else ""
    if curve.less is not None and curve.less[k] and "diverged" not in note:
        words += f"\n{LESS}"
    if note:
        words += f"\n{note}"
    return words


def _spread_words(axis: Axis, low: float | None, high: float | None, before: str = "") -> str:
    if low is None or high is None or low == high:
        return ""
    return f" ({before}{axis.spell(low)} to {axis.spell(high)})"


HOLLOW = {"markerfacecolor": PAPER, "fillstyle": "full"}
CROSS: dict[str, Any] = {
    "linestyle": "none", "marker": "x", "markersize": 11, "markeredgewidth": 1.8, "color": INK, "zorder": 4,
}  # fmt: skip
# The ring around the answer.
RING: dict[str, Any] = {
    "linestyle": "none", "marker": "o", "markersize": 13, "markeredgewidth": 1.6, "markerfacecolor": "none",
    "markeredgecolor": "#1a7f4b", "zorder": 2.8,
}  # fmt: skip


def _line_look(origin: Origin, style: Style) -> dict[str, Any]:
    look = ORIGINS[origin]
    dash = style.dash if look.dash is None else look.dash
    line = {"color": GREY if origin == "ideal" else style.colour, "linewidth": look.width, "zorder": 2.5}
    return line | ({"dashes": dash} if dash else {"linestyle": "-", "solid_capstyle": "round"})


def _marker_look(origin: Origin, style: Style) -> dict[str, Any]:
    look: dict[str, Any] = {
        "linestyle": "none", "marker": style.marker, "markersize": 6.5, "color": style.colour,
        "markeredgecolor": style.colour, "markeredgewidth": 1.3, "zorder": 3,
    }  # fmt: skip
    if origin == "published":
        marker = PUBLISHED[style.variant % len(PUBLISHED)]
        return look | {"marker": marker, "markersize": 8, "markeredgewidth": 1.8}
    return look | ({"fillstyle": "bottom", "markerfacecoloralt": PAPER} if ORIGINS[origin].half else {})


def _add_origins(figure: Lines, drawing: Drawing) -> None:
    """Add what the looks of origins and oversubscribed points mean to the legend, where the labels do not say it."""
    curves, style = figure.curves, Style(colour=GREY, marker="o", dash=(), variant=0)
    kinds = [kind for kind in ("measured", "simulated", "published") if kind in {c.origin for c in curves}]
    unsaid = [c for c in curves if c.origin in ("simulated", "published") and c.origin not in c.label.lower()]
    if unsaid:
        for kind in kinds:
            marker = {k: v for k, v in _marker_look(kind, style).items() if k != "linestyle"}
            drawing.handles.append(_line(label=kind, **{**marker, **_line_look(kind, style)}))
    if any(any(curve.oversubscribed or ()) for curve in curves):
        look = _marker_look("measured", style) | HOLLOW
        drawing.handles.append(_line(label=f"hollow: {OVERSUBSCRIBED}", **look))
    if any(any(curve.less or ()) for curve in curves):
        drawing.handles.append(_line(label=f"crossed out: {CROSSED}", **CROSS))


def _line(**look: Any) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], **look)


# ---- labelled points

# The places of a label around its point, the best first: its direction, and which edge of the label is there.
PLACES = (
    (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1), (1, 2), (1, -2), (-1, 2), (-1, -2),
)  # fmt: skip
# From the point, in font sizes; a label that is further away than one has a line to its point.
DISTANCES = (0.75, 1.5, 2.5, 4.0)
# How much wider than measured a label may be: in PNG, every letter is as wide as a whole number of pixels.
HINTED = 1.08
# How much further away the label of the answer is, in points: its point has a ring.
RINGED = 3.0
# Points far worse than the others are drawn below the axis: the height of their band, and of their arrows, in points.
BAND, ARROW = 44.0, 20.0
# How much smaller labels are than other text, and the part of the width for those of points without x.
SMALLER, LABELLED = 1.5, 0.25
FAR_WORSE = "worse"
Box = tuple[float, float, float, float]


@dataclass(frozen=True, kw_only=True)
class Areas:
    """The areas of a drawing of points, in data coordinates.

    Beside the axes is a column for points without x, and below them a band for points far worse than the others.
    """

    low: float
    high: float
    """The limits of x."""
    column: float
    """The middle of the column."""
    end: float
    """The right edge of the column; that of the axes if there is no column."""
    bottom: float
    top: float
    """The limits of y."""
    far: tuple[int, ...]
    """The numbers of the points in the band."""
    worst: float
    """The limit of y with the worse values, where the band begins."""
    level: float
    """Where points are drawn in the band."""
    edge: float
    """The lower edge of the band; if there is none, all three are the same."""


def _draw_points(figure: Points, drawing: Drawing, width: float, among: Sequence[str]) -> None:
    axes = drawing.axes
    drawing.height = 250.0 if width < NARROW else min(0.36 * width, 330.0)
    _set_scale(axes.set_xscale, figure.x)
    areas = _divide_page(figure, width, drawing.height, drawing.size - SMALLER)
    _draw_areas(figure, drawing, areas, width)
    front = [figure.points[k] for k in figure.front if k not in areas.far]
    corners = [(point.x or 0.0, point.y) for point in front] if len(front) > 1 else []
    if corners:  # between its points only: a line that goes on would look like a spread
        look = {"color": GREY, "linewidth": 1.2, "dashes": (5, 3), "alpha": 0.8, "zorder": 1.5}
        axes.plot(*zip(*corners, strict=True), drawstyle="steps-post", **look)
        drawing.handles.append(_line(label=_describe_front(figure), **look))
    if figure.level is not None:
        axes.axhline(figure.level[0], color=INK, linewidth=1, dashes=(2, 2), zorder=1.5)
        drawing.handles.append(_line(label=figure.level[1], color=INK, linewidth=1, dashes=(2, 2)))
    marks = _place_points(figure, areas, width, drawing.height)
    for k, (point, mark) in enumerate(zip(figure.points, marks, strict=True)):
        _draw_point(figure, point, mark, drawing, among, areas, far=k in areas.far)
    ticks = [text for text in (label.get_text() for label in axes.get_yticklabels()) if text]
    room = width - max((text_width(words, drawing.size) for words in ticks), default=0.0) - 12

    def spot(x: float, y: float) -> tuple[float, float]:
        return _fraction(axes, x, y, room, drawing.height)

    lines, spreads = _find_obstacles(figure, areas, marks, corners, spot, drawing.height)
    spots, page = [spot(*mark) for mark in marks], (room, drawing.height)
    _add_labels(figure, drawing, marks, spots, page, lines, spreads, areas.far, among)
    _add_point_legend(figure, drawing)


def _divide_page(figure: Points, width: float, height: float, size: float) -> Areas:
    """Divide a drawing of this size in points into its areas; `size`: that of the labels."""
    xs = [v for p in figure.points if p.x is not None for v in (p.x, *(p.x_range or ()))]
    least, most = (
        -math.inf if figure.y.bounds[0] is None else figure.y.bounds[0],
        math.inf if figure.y.bounds[1] is None else figure.y.bounds[1],
    )
    near = [point for point in figure.points if least <= point.y <= most]
    ys = [v for p in near for v in (p.y, *(p.y_range or ())) if least <= v <= most]
    ys += [] if figure.level is None else [figure.level[0]]
    low, high = limits(figure.x, xs, margin=0.08)
    bottom, top = limits(figure.y, ys, margin=0.08)
    far = tuple(k for k, point in enumerate(figure.points) if not bottom <= point.y <= top)
    column, end = (low * high) ** 0.5 if figure.x.log else (low + high) / 2, high
    if xs:
        # Those without x that are also beyond the other axis are beside each other: the column has room for them.
        several = sum(figure.points[k].x is None for k in far)
        beside = [p.y for k, p in enumerate(figure.points) if p.x is None and k not in far]
        most = max(map(abs, _swarm(_heights(beside, bottom, top, height, far))), default=0.0)
        part = min(max(1 / 6, max((several + 1) * 15, 2 * (most + 15)) / (width - 50)), 0.45)
        widest = max((text_width(point.label, size) for point in figure.points if point.x is None), default=0)
        part = max(part, min((HINTED * widest + 10) / (width - 50), LABELLED))
        outside = any(point.x is None for point in figure.points)
        column, end = _column_outside(low, high, part, log=figure.x.log) if outside else (high, high)
    edge = level = worst = top if figure.descending else bottom
    if far:
        best = bottom if figure.descending else top
        edge = worst - (best - worst) * BAND / (height - BAND)
        level = edge + (worst - edge) * ARROW / BAND
    return Areas(
        low=low, high=high, column=column, end=end, bottom=bottom, top=top, far=far, worst=worst, level=level, edge=edge
    )  # fmt: skip


def _draw_areas(figure: Points, drawing: Drawing, areas: Areas, width: float) -> None:
    """Draw the axes with their ticks and labels, and the borders of the column and the band."""
    axes, size = drawing.axes, drawing.size
    axes.set_xlim(areas.low, areas.end)
    _set_ticks(axes.xaxis, figure.x)
    _set_ticks(axes.yaxis, figure.y)
    axes.set_ylim(*((areas.top, areas.bottom) if figure.descending else (areas.bottom, areas.top)))
    if areas.far:
        _mark_far(figure, drawing, areas)
    axes.grid(color=FAINT, linewidth=0.7)
    axes.set_xlabel("\n".join(wrap(figure.x.label, size, width)), fontsize=size, color=GREY)
    axes.set_title(
        "\n".join(wrap(figure.y.label, size, width - 4 * size)), loc="left", fontsize=size, color=GREY
    )
    if any(point.x is None for point in figure.points):
        _mark_outside(figure, drawing, areas)
    else:
        ticks = axes.xaxis.get_major_locator()
        axes.xaxis.set_major_locator(_select_ticks(ticks, areas.low, areas.high))


def _place_points(figure: Points, areas: Areas, width: float, height: float) -> list[tuple[float, float]]:
    """Return where the points are drawn; those without x are moved aside, so that they do not cover each other."""
    points, far, log = figure.points, areas.far, figure.x.log
    moved: dict[int, float] = {}
    if any(point.x is not None for point in points):
        several = [k for k in far if points[k].x is None]
        moved.update(zip(several, _spread_evenly(areas.high, areas.end, len(several), log=log), strict=True))
        beside = [k for k, point in enumerate(points) if point.x is None and k not in far]
        heights = _heights([points[k].y for k in beside], areas.bottom, areas.top, height, far)
        low, high, end = (math.log(x) if log else x for x in (areas.low, areas.high, areas.end))
        offsets = [offset / (width - 50) for offset in _swarm(heights)]
        room = (end - high) / (end - low) / 2 - 9 / (width - 50)  # from the middle of the column
        closer = min(1.0, room / max(map(abs, offsets), default=1.0)) if any(offsets) else 1.0
        for k, offset in zip(beside, offsets, strict=True):
            across, (low, end) = closer * offset, (areas.low, areas.end)
            moved[k] = areas.column * (end / low) ** across if log else areas.column + across * (end - low)
    return [
        (moved.get(k, areas.column) if point.x is None else point.x, areas.level if k in far else point.y)
        for k, point in enumerate(points)
    ]


def _find_obstacles(
    figure: Points,
    areas: Areas,
    marks: Sequence[tuple[float, float]],
    corners: Sequence[tuple[float, float]],
    spot: Callable[[float, float], tuple[float, float]],
    height: float,
) -> tuple[list[Box], list[Box]]:
    """Return the boxes of lines, which no label may cross, and those of the spreads of points.

    `corners`: those of the front. `spot`: where a place in data coordinates is on the page, which has this height.
    """
    bends = [spot(x, y) for x, y in corners]
    lines = [_line_box(one, (other[0], one[1])) for one, other in pairwise(bends)]
    lines += [_line_box((other[0], one[1]), other) for one, other in pairwise(bends)]
    lines += [_line_box(spot(marks[k][0], areas.edge), spot(*marks[k])) for k in areas.far]
    if areas.far:
        lines.append(_line_box(spot(areas.low, areas.worst), spot(areas.end, areas.worst)))
    if figure.level is not None:
        lines.append(_line_box(spot(areas.low, figure.level[0]), spot(areas.end, figure.level[0])))
    if areas.end > areas.high:
        border = spot(areas.high, areas.bottom)[0]
        lines.append(_line_box((border, 0.0), (border, height)))
    spreads = []
    for k, (point, (x, y)) in enumerate(zip(figure.points, marks, strict=True)):
        if point.x_range is not None and point.x is not None:
            spreads.append(_line_box(*(spot(end, y) for end in point.x_range)))
        if point.y_range is not None and k not in areas.far:
            ends = (min(max(end, areas.bottom), areas.top) for end in point.y_range)
            spreads.append(_line_box(*(spot(x, end) for end in ends)))
    return lines, spreads


def _mark_far(figure: Points, drawing: Drawing, areas: Areas) -> None:
    """Add the band for points far worse than the others below the axis, and draw its border."""
    from matplotlib.ticker import FixedLocator, FuncFormatter

    axes, axis = drawing.axes, drawing.axes.yaxis
    inside = [value for value in axis.get_major_locator()() if areas.bottom <= value <= areas.top]
    axes.set_ylim(areas.edge, areas.bottom if figure.descending else areas.top)
    axes.axhline(areas.worst, color=GREY, linewidth=1, dashes=(1.5, 2), zorder=1)
    axis.set_major_locator(FixedLocator([*inside, areas.level]))
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: FAR_WORSE if value == areas.level else figure.y.spell_tick(value))
    )


def _describe_front(figure: Points) -> str:
    """Describe the front; if only some points are simulated, it is that of the measured ones."""
    kinds = {point.simulated for point in figure.points}
    of = " of the measured rows" if len(kinds) > 1 else ""
    return f"front{of}: nothing else {'measured ' * bool(of)}is both faster and better"


def _select_ticks(locator: Any, low: float, high: float) -> Any:
    """Return the ticks of a locator that are inside of some limits."""
    from matplotlib.ticker import FixedLocator

    return FixedLocator([value for value in locator() if low <= value <= high])


def _column_outside(low: float, high: float, part: float, *, log: bool) -> tuple[float, float]:
    """Return where the points without x are drawn, right of the axis, and where the drawing ends.

    `part`: the part of the drawing's width that they take.
    """
    wide = part / (1 - part)
    if log:
        return high * (high / low) ** (wide / 2), high * (high / low) ** wide
    return high + wide / 2 * (high - low), high + wide * (high - low)


def _spread_evenly(low: float, high: float, number: int, *, log: bool) -> list[float]:
    """Return places at equal distances between two others.

    >>> _spread_evenly(0.0, 4.0, 3, log=False)
    [1.0, 2.0, 3.0]
    """
    parts = [(k + 1) / (number + 1) for k in range(number)]
    return [low * (high / low) ** part if log else low + part * (high - low) for part in parts]


def _heights(
    values: Sequence[float], bottom: float, top: float, height: float, far: Sequence[int]
) -> list[float]:
    """Return how high values are on a page of this height, in points, from an arbitrary level."""
    scale = (height - BAND * bool(far)) / (top - bottom)
    return [value * scale for value in values]


def _swarm(heights: Sequence[float]) -> list[float]:
    """Return how far points of one column are moved aside, so that those of the same height do not cover each other.

    >>> _swarm([10, 10, 50, 11])
    [0.0, 15.0, 0.0, -15.0]
    """
    found: list[float] = []
    for height in heights:
        near = {offset for offset, other in zip(found, heights, strict=False) if abs(other - height) < 12}
        steps = (15.0 * step for k in range(len(heights)) for step in (k, -k))
        found.append(next(offset for offset in steps if offset not in near))
    return found


def _mark_outside(figure: Points, drawing: Drawing, areas: Areas) -> None:
    """Draw the border of the column for points without x, with its meaning below it."""
    from matplotlib.ticker import FixedLocator, FuncFormatter

    axis = drawing.axes.xaxis
    inside = []
    if areas.end > areas.high:
        drawing.axes.axvline(areas.high, color=GREY, linewidth=1, dashes=(1.5, 2), zorder=1)
        inside = [value for value in axis.get_major_locator()() if areas.low <= value <= areas.high]
    axis.set_major_locator(FixedLocator([*inside, areas.column]))
    axis.set_major_formatter(
        FuncFormatter(
            lambda value, _: figure.outside if value == areas.column else figure.x.spell_tick(value)
        )
    )


def _draw_point(
    figure: Points,
    point: Point,
    at: tuple[float, float],
    drawing: Drawing,
    among: Sequence[str],
    areas: Areas,
    *,
    far: bool,
) -> None:
    """Draw one point and its spread; one that is far worse than the others has an arrow in their place."""
    axes, style, (x, y) = drawing.axes, style_of(point.strategy, among), at
    look = _dot_look(style.colour, simulated=point.simulated, oversubscribed=point.oversubscribed)
    look |= {"marker": style.marker, "markersize": 8}
    if point.stopped:
        look |= {"markerfacecolor": PAPER, "markersize": 5, "markeredgewidth": 1}
    if far:
        arrow = {"arrowstyle": "-|>", "color": style.colour, "linewidth": 0.8 if point.stopped else 1.4}
        arrow |= {"shrinkA": 4, "shrinkB": 0, "mutation_scale": 6 if point.stopped else 10}
        axes.annotate("", (x, areas.edge), xytext=(x, y), arrowprops=arrow, zorder=2.5).set_in_layout(False)
    for across, ends in ((True, point.x_range), (False, point.y_range)):
        missing = point.x is None if across else far
        if ends is None or ends[0] >= ends[1] or missing:
            continue
        span = ends if across else (max(ends[0], areas.bottom), min(ends[1], areas.top))
        line = ([*span], [y, y]) if across else ([x, x], [*span])
        axes.plot(*line, color=style.colour, linewidth=1.1, zorder=2, clip_on=False)
        for end, cut, marker in zip(ends, span, "^v" if figure.descending else "v^", strict=True):
            if end != cut:  # it goes on beyond the axis
                axes.plot(
                    [x], [cut], marker=marker, color=style.colour, markersize=5, zorder=2, clip_on=False
                )
    axes.plot([x], [y], clip_on=False, zorder=3, **look)
    if point.chosen:
        axes.plot([x], [y], clip_on=False, **RING)
    if point.flag:
        axes.plot([x], [y], clip_on=False, **CROSS)
    shown = figure.outside if point.x is None else figure.x.spell(point.x)
    if point.x_range is not None:
        shown += _spread_words(figure.x, *point.x_range)
    words = f"{point.label}\n{figure.x.name}: {shown}\n{figure.y.name}: {figure.y.spell(point.y)}"
    words += _spread_words(figure.y, *point.y_range) if point.y_range is not None else ""
    words += "\nthe answer" if point.chosen else ""
    words += f"\n{point.flag}" if point.flag else ""
    words += f"\n{OVERSUBSCRIBED}" if point.oversubscribed else ""
    words += f"\n{STOPPED}" if point.stopped else ""
    drawing.values.append((x, y, x, y, words))


def _fraction(axes: Any, x: float, y: float, width: float, height: float) -> tuple[float, float]:
    """Return where a point is in points of a page, in axes of this size, from the lower left."""
    low, high = axes.get_xlim()
    bottom, top = axes.get_ylim()
    if axes.get_xscale() == "log":
        x, low, high = math.log(x), math.log(low), math.log(high)
    return (x - low) / (high - low) * width, (y - bottom) / (top - bottom) * height


def _add_labels(
    figure: Points,
    drawing: Drawing,
    marks: Sequence[tuple[float, float]],
    spots: Sequence[tuple[float, float]],
    page: tuple[float, float],
    lines: Sequence[Box],
    spreads: Sequence[Box],
    far: Sequence[int],
    among: Sequence[str],
) -> None:
    """Label every point where there is room, the answer first; the others are numbered and listed in the legend.

    Those that were stopped have no label: there may be many of them.
    """
    named = [k for k, point in enumerate(figure.points) if not point.stopped]
    named.sort(key=lambda k: not figure.points[k].chosen)
    small = [(x - 3, y - 3, x + 3, y + 3) for k, (x, y) in enumerate(spots) if k not in named]
    values = [figure.y.spell(figure.points[k].y) if k in far else "" for k in named]
    figure = replace(figure, points=tuple(figure.points[k] for k in named))
    marks, spots, lines = [marks[k] for k in named], [spots[k] for k in named], [*lines, *small]
    flags = {point.flag for point in figure.points if point.flag}
    full, brief = (
        [
            ", ".join(filter(None, (point.label, value, point.flag if with_flags else "")))
            for point, value in zip(figure.points, values, strict=True)
        ]
        for with_flags in (True, len(flags) > 1)  # if all flags are the same, the cross explains them
    )
    size = drawing.size - SMALLER
    column = [k for k, point in enumerate(figure.points) if point.x is None]
    # A label may cross the spread of points, if there is no other room, but never the front or the border of a column.
    labels, found = full, None
    for some in (full, brief):
        if found is None:
            labels = some
            found = place_labels(labels, spots, size, page, avoid=lines, rather=spreads, close=column)
    entries = _short_legend(figure.points, among) if found is None and len(full) > CROWD else []
    if entries:
        labels = [point.label if point.chosen else point.short[1] for point in figure.points if point.short]
        found = place_labels(labels, spots, size, page, avoid=lines, rather=spreads, close=column, must=True)
        drawing.handles += entries
    if found is None:
        chosen = {k for k, point in enumerate(figure.points) if point.chosen}
        labels, kept = _number_some(brief, spots, size, page, lines, spreads, chosen)
        close = kept - chosen
        found = (
            place_labels(labels, spots, size, page, avoid=[*lines, *spreads], close=close, must=True) or []
        )
        for k, (number, point) in enumerate(zip(labels, figure.points, strict=True)):
            if k not in kept:
                style = style_of(point.strategy, among)
                look = _dot_look(style.colour, simulated=point.simulated, oversubscribed=point.oversubscribed)
                handle = _line(
                    label=f"{number}  {brief[k]}", **(look | {"marker": style.marker, "markersize": 6})
                )
                drawing.handles.append(handle)
    for words, (dx, dy), mark, point in zip(labels, found, marks, figure.points, strict=True):
        dx += math.copysign(RINGED, dx) if point.chosen and dx else 0.0
        across = ("left", 0.0) if dx > 0 else ("right", 1.0) if dx < 0 else ("center", 0.5)
        along = ("bottom", 0.0) if dy > 0 else ("top", 1.0) if dy < 0 else ("center", 0.5)
        leader: dict[str, Any] = {
            "arrowstyle": "-",
            "color": GREY,
            "linewidth": 0.6,
            "shrinkA": 0,
            "shrinkB": 5,
        }
        drawing.axes.annotate(
            words, mark, xytext=(dx, dy), textcoords="offset points", fontsize=size, zorder=6, ha=across[0],
            va=along[0], color=GREY if point.flag else INK, annotation_clip=False,
            arrowprops=leader | {"relpos": (across[1], along[1])} if max(abs(dx), abs(dy)) > size else None,
        ).set_in_layout(False)  # fmt: skip


def _short_legend(points: Sequence[Point], among: Sequence[str]) -> list[Any]:
    """Return an entry for each strategy; none if points that look alike do not belong together."""
    groups: dict[tuple[str, bool], set[str]] = {}
    for point in points:
        groups.setdefault((point.strategy, point.simulated), set()).add(point.short[0] if point.short else "")
    if any(len(names) > 1 or "" in names for names in groups.values()):
        return []
    handles = [_line(label="a number at a point: its ranks", linestyle="none")]
    for (strategy, simulated), (name,) in groups.items():
        style = style_of(strategy, among)
        look = _dot_look(style.colour, simulated=simulated) | {"marker": style.marker, "markersize": 6}
        handles.append(_line(label=name, **look))
    return handles


def _number_some(
    labels: Sequence[str],
    spots: Sequence[tuple[float, float]],
    size: float,
    page: tuple[float, float],
    lines: Sequence[Box],
    spreads: Sequence[Box],
    chosen: Collection[int],
) -> tuple[list[str], set[int]]:
    """Replace labels without room beside their points by numbers; return all, and which ones are words.

    If there is little room even for numbers, all are, except for that of the answer, `chosen`: it may be at some distance.
    """
    kept: set[int] = set()
    for k in chosen:
        others = [(x - 7, y - 7, x + 7, y + 7) for x, y in [*spots[:k], *spots[k + 1 :]]]
        if place_labels([labels[k]], [spots[k]], size, page, avoid=[*lines, *others]) is not None:
            kept.add(k)
    whole = frozenset(kept)

    def choose(whole: set[int]) -> list[str]:
        numbers = iter(range(1, len(labels) + 1))
        return [words if k in whole else str(next(numbers)) for k, words in enumerate(labels)]

    for k in range(len(labels)):
        more = kept | {k}
        avoid, close = [*lines, *spreads], more - whole
        if place_labels(choose(more), spots, size, page, avoid=avoid, close=close) is not None:
            kept = more
    return choose(kept), kept


def place_labels(
    labels: Sequence[str],
    spots: Sequence[tuple[float, float]],
    size: float,
    page: tuple[float, float],
    *,
    avoid: Sequence[Box] = (),
    rather: Sequence[Box] = (),
    close: Collection[int] = (),
    must: bool = False,
) -> list[tuple[float, float]] | None:
    """Return the offset of each label from its point, so that no label covers another one, a point or something to avoid.

    `page`: the width and height of the axes. `rather`: to be avoided, too, if there is room elsewhere. `close`: the numbers
    of labels that must be right beside their points. None if there is no room; `must`: then a label without room covers
    what is to be avoided or, if it must, a point.

    >>> place_labels(["a", "b"], [(50, 50), (52, 50)], 10, (100, 100))
    [(-7.5, 0.0), (7.5, 0.0)]
    >>> place_labels(["a long label"], [(10, 10)], 10, (20, 20)) is None
    True
    """
    taken: list[Box] = [(x - 7, y - 7, x + 7, y + 7) for x, y in spots]
    found = []
    for k, (words, spot) in enumerate(zip(labels, spots, strict=True)):
        others = [*taken[:k], *taken[k + 1 :]]
        places = list(_places(spot, text_width(words, size), size))
        each = len(PLACES)
        beside, near, inside = (
            [(to, box) for to, box in places[:most] if _inside(box, page)]
            for most in (each, each if k in close else 2 * each, len(places))
        )
        able = beside if k in close else inside
        ways = [(near, [*others, *avoid, *rather]), (able, [*others, *avoid])]
        ways += [(inside, [*others, *avoid]), (inside, others)] if must else []
        free = next(((to, box) for some, full in ways for to, box in some if not _touch(box, full)), None)
        if free is None and not must:
            return None
        offset, box = free or min(
            inside or places, key=lambda place: sum(_touch(place[1], [other]) for other in others)
        )
        found.append(offset)
        taken.append(box)
    return found


def _line_box(one: tuple[float, float], other: tuple[float, float]) -> Box:
    """Return the room that a horizontal or vertical line takes."""
    (x0, x1), (y0, y1) = sorted((one[0], other[0])), sorted((one[1], other[1]))
    return x0 - 1.5, y0 - 1.5, x1 + 1.5, y1 + 1.5


def _places(spot: tuple[float, float], wide: float, size: float) -> Iterator[tuple[tuple[float, float], Box]]:
    """Yield the places of a label of this width, the best first: its offset from its point, and its box."""
    (x, y), wide, high = spot, HINTED * wide, LINE * size
    for distance in DISTANCES:
        for right, up in PLACES:
            dx, dy = right * distance * size, up * distance * size
            left = x + dx - (0 if right > 0 else wide if right < 0 else wide / 2)
            below = y + dy - (0 if up > 0 else high if up < 0 else high / 2)
            yield (dx, dy), (left - 1, below - 1, left + wide + 1, below + high + 1)


def _inside(box: Box, page: tuple[float, float]) -> bool:
    return box[0] >= -4 and box[1] >= -2 and box[2] <= page[0] and box[3] <= page[1] + 4


def _touch(one: Box, others: Iterable[Box]) -> bool:
    return any(
        one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
        for other in others
    )


def _add_point_legend(figure: Points, drawing: Drawing) -> None:
    if any(point.chosen for point in figure.points):
        drawing.handles.append(_line(label="ring: the answer", **(RING | {"markersize": 9})))
    flags = list(dict.fromkeys(point.flag for point in figure.points if point.flag))
    if flags:
        drawing.handles.append(_line(label=f"crossed out: {' or '.join(flags)}", **CROSS))
    if any(point.simulated for point in figure.points):
        drawing.handles.append(_line(label="half: simulated", **_dot_look(GREY, simulated=True)))
    if any(point.oversubscribed for point in figure.points):
        drawing.handles.append(
            _line(label=f"hollow: {OVERSUBSCRIBED}", **_dot_look(GREY, oversubscribed=True))
        )
    if any(point.stopped for point in figure.points):
        look = _dot_look(GREY, oversubscribed=True) | {"markersize": 5, "markeredgewidth": 1}
        drawing.handles.append(_line(label=f"small, hollow: {STOPPED}", **look))


# ---- bars


def _draw_bars(figure: Bars, drawing: Drawing, width: float, among: Sequence[str]) -> None:
    axes, size, narrow = drawing.axes, drawing.size, width < NARROW
    stacked = len(figure.kinds) > 1
    dots = figure.dots or (not stacked and (figure.x.bounds[0] or 0) > 0)
    labels = [wrap(bar.label, size, width - 12 if narrow else 0.36 * width) for bar in figure.bars]
    texts = [len(lines) * LINE * size for lines in labels]
    heights = [text + THICK + 9 if narrow else max(text, THICK) + 6 for text in texts]
    ends = [sum(heights[: k + 1]) for k in range(len(heights))]
    drawing.height = sum(heights) + 4  # a data unit of y is a point
    below = [THICK / 2 + 5 if narrow else height / 2 for height in heights]
    middles = [end - part for end, part in zip(ends, below, strict=True)]
    if not stacked:
        _set_scale(axes.set_xscale, figure.x)
    low, high = _bar_limits(figure, dots)
    axes.set_xlim(low, high)
    axes.set_ylim(max(drawing.height, 1.0), 0)
    _set_ticks(axes.xaxis, figure.x)
    axes.grid(axis="x", color=FAINT, linewidth=0.7)
    axes.spines["left"].set_visible(not dots and not narrow)
    axes.set_yticks([] if narrow else middles, [] if narrow else ["\n".join(lines) for lines in labels])
    axes.tick_params(axis="y", length=0, pad=6)
    axes.set_xlabel("\n".join(wrap(figure.x.label, size, width)), fontsize=size, color=GREY, loc="left")
    for bar, lines, middle in zip(figure.bars, labels, middles, strict=True):
        if narrow:
            axes.annotate(
                "\n".join(lines), (0, middle - THICK / 2), xycoords=("axes fraction", "data"), xytext=(0, 3),
                textcoords="offset points", fontsize=size, color=INK, ha="left", va="bottom",
                bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 0.5},
            )  # fmt: skip
        colour = style_of(bar.strategy, among).colour
        if dots:
            _draw_dot(figure, bar, middle, colour, drawing)
        else:
            _draw_parts(figure, bar, middle, colour, drawing, width)
    _add_bar_legend(figure, drawing, dots=dots)


def _bar_limits(figure: Bars, dots: bool) -> tuple[float, float]:
    ends = [max(sum(bar.parts), bar.high or 0.0) for bar in figure.bars]
    ends += [bar.low for bar in figure.bars if bar.low is not None]
    ends += [] if dots else [0.0]
    ends += [figure.level[0]] if figure.level is not None else []
    low, high = limits(figure.x, ends, margin=0.0)
    return (low if dots or figure.x.log else min(low, 0.0)), high


def _draw_dot(figure: Bars, bar: Bar, y: float, colour: str, drawing: Drawing) -> None:
    axes, value = drawing.axes, sum(bar.parts)
    low, high = axes.get_xlim()
    look = _dot_look(colour, simulated=bar.simulated, oversubscribed=bar.oversubscribed)
    if not low <= value <= high:
        look |= {"marker": "<" if value < low else ">", "fillstyle": "full"}
    at = min(max(value, low), high)
    axes.plot([at], [y], clip_on=False, zorder=4, **look)
    if bar.less:
        axes.plot([at], [y], clip_on=False, **(CROSS | {"zorder": 5}))
    _draw_whisker(axes, bar, y)
    # The words are in a column of their own: a line may cross the place beside the dot.
    axes.annotate(
        bar.words, (1, y), xycoords=("axes fraction", "data"), xytext=(14, 0), textcoords="offset points",
        fontsize=drawing.size, color=INK, va="center",
    )  # fmt: skip
    spread = _spread_words(figure.x, bar.low, bar.high)
    words = f"{bar.label}\n{figure.x.name}: {figure.x.spell(value)}{spread}"
    words += f"\n{OVERSUBSCRIBED}" if bar.oversubscribed else ""
    drawing.values.append((at, y, at, y, words))


def _draw_parts(figure: Bars, bar: Bar, y: float, colour: str, drawing: Drawing, width: float) -> None:
    axes, stacked, whole, at = drawing.axes, len(figure.kinds) > 1, sum(bar.parts), 0.0
    low, high = axes.get_xlim()
    spread = _spread_words(figure.x, bar.low, bar.high, "in all " if stacked else "")
    for kind, part in zip(figure.kinds, bar.parts, strict=True):
        fill, ink = kind_colour(kind) if stacked else (colour, ON_DARK)
        look: dict[str, Any] = {"facecolor": fill, "linewidth": 0}
        if bar.simulated:
            look |= {"hatch": HATCH, "edgecolor": (PAPER, 0.6)}
        elif bar.oversubscribed or bar.less:
            look |= {"facecolor": (fill, PALE), "edgecolor": fill, "linewidth": 0.8}
        axes.barh(y, part, left=at, height=THICK, **look)
        # A share is written in its part if there is room: bars have about half of a wide page.
        if stacked and whole and part / (high - low) * width * (0.75 if width < NARROW else 0.5) >= 34:
            behind = {"facecolor": fill, "edgecolor": "none", "pad": 1.0} if bar.simulated else None
            axes.text(
                at + part / 2, y, f"{100 * part / whole:.0f} %", fontsize=drawing.size - 2, ha="center",
                va="center_baseline", color=INK if bar.oversubscribed or bar.less else ink, bbox=behind,
            ).set_in_layout(False)  # fmt: skip
        words = f"{bar.label}\n{kind if stacked else figure.x.name}: {figure.x.spell(part)}{spread}"
        words += f"\n{OVERSUBSCRIBED}" if bar.oversubscribed else ""
        drawing.values.append((max(at, low), y - THICK / 2, at + part, y + THICK / 2, words))
        at += part
    end = max(min(max(whole, low), high), _draw_whisker(axes, bar, y))
    look = {"fontsize": drawing.size, "color": GREY if bar.less else INK, "va": "center"}
    axes.annotate(bar.words, (end, y), xytext=(7, 0), textcoords="offset points", **look)


def _draw_whisker(axes: Any, bar: Bar, y: float) -> float:
    """Draw the spread of a bar, below the shares that are written in its parts; return where it ends.

    Minus infinity without one.
    """
    low, high = axes.get_xlim()
    if bar.low is None or bar.high is None or bar.low >= bar.high or bar.high <= low:
        return -math.inf
    ends = [max(bar.low, low), min(bar.high, high)]
    y += 0.32 * THICK if len(bar.parts) > 1 else 0.0
    axes.plot(ends, [y, y], color=INK, linewidth=1.2, marker="|", markersize=5, zorder=3, clip_on=False)
    return float(ends[1])


def _dot_look(colour: str, *, simulated: bool = False, oversubscribed: bool = False) -> dict[str, Any]:
    look: dict[str, Any] = {
        "linestyle": "none", "marker": "o", "markersize": 8, "color": colour, "markeredgecolor": colour,
        "markeredgewidth": 1.5,
    }  # fmt: skip
    if oversubscribed:
        return look | {"markerfacecolor": PAPER}
    return look | ({"fillstyle": "bottom", "markerfacecoloralt": PAPER} if simulated else {})


def _add_bar_legend(figure: Bars, drawing: Drawing, *, dots: bool) -> None:
    from matplotlib.patches import Patch

    handles = drawing.handles
    simulated = any(bar.simulated for bar in figure.bars)
    crowded = any(bar.oversubscribed and not bar.less for bar in figure.bars)
    less = any(bar.less for bar in figure.bars)
    if len(figure.kinds) > 1:
        handles += [Patch(facecolor=kind_colour(kind)[0], label=kind) for kind in figure.kinds]
    if simulated and dots:
        handles.append(_line(label="half: simulated", **_dot_look(GREY, simulated=True)))
    elif simulated:
        hatched = Patch(label="hatched: simulated", facecolor=GREY, edgecolor=PAPER, hatch=HATCH, linewidth=0)
        handles.append(hatched)
    if crowded and dots:
        handles.append(_line(label=f"hollow: {OVERSUBSCRIBED}", **_dot_look(GREY, oversubscribed=True)))
    elif crowded or less:
        meaning = " or ".join(filter(None, (OVERSUBSCRIBED if crowded else "", LESS if less else "")))
        pale = Patch(label=f"pale: {meaning}", facecolor=(GREY, PALE), edgecolor=GREY, linewidth=0.8)
        handles.append(pale)
    if less and dots:
        handles.append(_line(label=f"crossed out: {CROSSED}", **CROSS))
    if figure.level is not None:
        drawing.axes.axvline(figure.level[0], color=INK, linewidth=1, dashes=(2, 2), zorder=2.5)
        handles.append(_line(label=figure.level[1], color=INK, linewidth=1, dashes=(2, 2)))


# ---- histograms


def _draw_histogram(figure: Histogram, drawing: Drawing, width: float, among: Sequence[str]) -> None:
    axes, size, count = drawing.axes, drawing.size, len(figure.labels)
    drawing.height = 130.0 if width < NARROW else 150.0
    tops = [max(pair) for pair in zip(figure.heights, figure.high or figure.heights, strict=True)]
    _set_scale(axes.set_yscale, figure.y)
    axes.set_ylim(limits(figure.y, [0.0, *tops], margin=0.15))
    # Few columns do not fill the page.
    axes.set_xlim(-0.6, max(count, min(width / 70, 12)) - 0.4)
    _set_ticks(axes.yaxis, figure.y)
    axes.grid(axis="y", color=FAINT, linewidth=0.7)
    axes.set_title(figure.y.label, loc="left", fontsize=size, color=GREY)
    axes.set_xlabel(figure.x.label, fontsize=size, color=GREY, loc="left")
    colour = style_of(figure.strategy, among).colour
    columns = axes.bar(range(count), figure.heights, width=0.82, color=colour)
    if figure.tail and count:
        columns[-1].set_facecolor("#aaaaaa")
    room = 0.9 * width / max(axes.get_xlim()[1], 1)
    widest = max((text_width(label, size) for label in figure.labels[:-1]), default=0.0) + 8
    places = sorted({*range(0, count, max(1, math.ceil(widest / room))), count - 1}) if count else []
    axes.set_xticks(places)
    axes.xaxis.set_major_formatter(lambda place, _: figure.labels[round(place)])
    bottom, top = axes.get_ylim()
    for k, (label, height) in enumerate(zip(figure.labels, figure.heights, strict=True)):
        low, high = (figure.low or figure.heights)[k], (figure.high or figure.heights)[k]
        if low < high:
            axes.plot([k, k], [low, high], color=INK, linewidth=1.1, marker="_", markersize=6)
        shown = f"{100 * height:.1f} %" if figure.y.percent else figure.y.spell(height)
        if text_width(shown, size - 2) < room - 4:
            axes.annotate(
                shown, (k, tops[k]), xytext=(0, 3), textcoords="offset points", ha="center", fontsize=size - 2,
                color=INK,
            )  # fmt: skip
        words = f"{figure.x.label}: {label}\n{figure.y.name}: {figure.y.spell(height)}"
        drawing.values.append((k - 0.5, bottom, k + 0.5, top, words + _spread_words(figure.y, low, high)))


# ---- text

# Where a line may be broken: before a word, after the punctuation of an option, after a hyphen between letters.
BREAKS = re.compile(r"(?<=\s)(?=\S)|(?<=[:=/])(?=\S)|(?<=,)(?=[^\d\s])|(?<=\w-)(?=\w)")


@cache
def _font(size: float, bold: bool) -> Any:
    from matplotlib.font_manager import FontProperties

    return FontProperties(family=FONT, size=size, weight="bold" if bold else "normal")


@cache
def text_width(line: str, size: float, *, bold: bool = False) -> float:
    """Return the width of a line of text in points, as matplotlib measures it.

    >>> 20 < text_width("ranks", 10) < 32
    True
    """
    from matplotlib.textpath import text_to_path

    width, _, _ = text_to_path.get_text_width_height_descent(line, _font(size, bold), False)
    return float(width)


def wrap(words: str, size: float, room: float, *, bold: bool = False) -> list[str]:
    """Break text into lines no wider than `room`: at blanks, else after punctuation of an option, else anywhere.

    >>> wrap("sync:allreduce=ring, 4 ranks", 10, 100)
    ['sync:allreduce=', 'ring, 4 ranks']
    >>> wrap("", 10, 100)
    ['']
    """
    lines = [""]
    for piece in BREAKS.split(" ".join(words.split())):
        if text_width((lines[-1] + piece).rstrip(), size, bold=bold) > room and lines[-1]:
            lines.append("")
        lines[-1] += piece
        while text_width(lines[-1].rstrip(), size, bold=bold) > room and len(lines[-1]) > 1:
            line = lines[-1]
            fits = [k for k in range(2, len(line)) if text_width(line[:k], size, bold=bold) <= room]
            end = max(fits, default=1)
            lines[-1:] = [line[:end], line[end:]]
    return [line.rstrip() for line in lines]
