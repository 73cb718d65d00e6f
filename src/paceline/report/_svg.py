"""A drawing as part of a page: no names that another drawing has, and words where a reader points."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from paceline.report._sheet import Hit

RADIUS = 8.0


def inline(svg: str, prefix: str, hits: Sequence[Hit], label: str, css: str) -> str:
    """matplotlib's SVG fit to stand in an HTML page.

    Names get a prefix: two drawings would have the same ones, and what one that is not displayed defines, a browser
    does not draw.

    >>> text = '<?xml version="1.0"?><svg width="72pt" height="36pt" viewBox="0 0 72 36"><g id="a"><path id="m"/>' \\
    ...     '<use xlink:href="#m"/></g></svg>'
    >>> print(inline(text, "f1", [Hit(1, 2, "psgd & co")], "Time", "wide").replace("><", ">\\n<"))
    <svg class="wide" role="img" aria-label="Time" width="72" height="36" viewBox="0 0 72 36" stroke-linejoin="round">
    <g>
    <path id="f1-m"/>
    <use href="#f1-m"/>
    </g>
    <circle class="hit" cx="1.0" cy="2.0" r="8">
    <title>psgd &amp; co</title>
    </circle>
    </svg>
    """
    found = re.search(r"<svg\b[^>]*>", svg)
    if found is None:
        raise ValueError("no svg element in the drawing")
    size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', found[0])
    wide, high = (size[1], size[2]) if size else ("100", "100")
    body = svg[found.end() : svg.rindex("</svg>")]
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.S)
    body = re.sub(
        r"<defs>\s*<style.*?</style>\s*</defs>", "", body, count=1, flags=re.S
    )  # it would be all the page's
    body = re.sub(r"<[^>]+>", lambda tag: _short(tag[0]), body)
    used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', body))
    kept = {a or b for a, b in used}
    body = re.sub(r' id="([^"]+)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in kept else "", body)
    body = re.sub(r'href="#', f'href="#{prefix}-', body)
    body = re.sub(r"url\(#", f"url(#{prefix}-", body)
    body = re.sub(r">\s*\n\s*<", "><", body.strip())
    return (
        f'<svg class="{css}" role="img" aria-label="{escape(label)}" width="{wide}" height="{high}" '
        f'viewBox="0 0 {wide} {high}" stroke-linejoin="round">{body}{"".join(map(_hit, hits))}</svg>'
    )


def _short(tag: str) -> str:
    """A tag with two decimals to a coordinate, and nothing that says nothing.

    >>> _short('<text x="1.23456" transform="rotate(-0 1.23456 7)">')
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
