"""Figures as files and as parts of pages: SVG whose text is text, PNG and PDF.

matplotlib's global state is not used, and the same figure gives the same bytes.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.figures.description import Figure
from paceline.figures.drawing import FONT, Hit, draw_page
from paceline.figures.palette import on_dark

# Widths in points. A browser shows a point of a drawing as one of its pixels, so that text keeps its size.
WIDE, PHONE = 928.0, 352.0
FORMATS = (".png", ".svg", ".pdf")
DPI = 144  # of PNG
RADIUS = 8.0  # of the circle around a point that reacts to the pointer


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


def png(figure: Figure, among: Sequence[str] = (), *, width: float = WIDE) -> bytes:
    """Return the figure as PNG, with its title.

    >>> from paceline.figures import Axis, Histogram
    >>> png(Histogram(name="c", title="Ages", caption="", x=Axis(label="age"), y=Axis(label="share"), strategy="sync",
    ...     labels=("0", "1"), heights=(0.25, 0.75)))[1:4]
    b'PNG'
    """
    with settings(figure.name):
        page, _ = _page(figure, among, width, True)
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
    from paceline.files import replacing

    content = _write(page, check_format(path))
    with replacing(path) as file:
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
