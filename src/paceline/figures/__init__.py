"""Figures: described as data, drawn by matplotlib, with one palette for everything that paceline draws.

`description` has the kinds of figures (`Lines`, `Bars`, `Histogram`, `Points`), `palette` their colours and markers,
`drawing` puts a description onto matplotlib axes, and `rendering` makes SVG (also as part of a page, with values to point
at), PNG and PDF of it.
"""

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
from paceline.figures.rendering import (
    FORMATS,
    PHONE,
    WIDE,
    dark_colours,
    inline_svg,
    png,
    save,
    save_page,
    settings,
    svg,
)

__all__ = [
    "FORMATS",
    "PHONE",
    "WIDE",
    "Axis",
    "Bar",
    "Bars",
    "Curve",
    "Figure",
    "Histogram",
    "Lines",
    "Origin",
    "Point",
    "Points",
    "dark_colours",
    "inline_svg",
    "png",
    "save",
    "save_page",
    "settings",
    "svg",
]
