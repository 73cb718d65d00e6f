"""Figures: described as data, drawn by matplotlib, with one palette for everything that paceline draws.

`description` has the kinds of figures (`Lines`, `Bars`, `Histogram`, `Points`), `palette` their colours and markers,
and `drawing` makes SVG (also as part of a page, with values to point at), PNG and PDF of a description, with matplotlib.
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
from paceline.figures.drawing import (
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
