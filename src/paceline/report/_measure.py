"""How wide text is in points, and how it is broken into lines: what a layout is made from."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

# Every drawing has text, and measures it, in these; a browser's own fonts are narrower, if anything.
FONT = "DejaVu Sans"
LINE = 1.25  # of the size: from one line to the next
# Where a line may be broken: before a word, after the marks of an option, after a hyphen between letters.
PLACES = re.compile(r"(?<=\s)(?=\S)|(?<=[:=,/])(?=\S)|(?<=\w-)(?=\w)")


@cache
def _properties(size: float, bold: bool) -> Any:
    from matplotlib.font_manager import FontProperties

    return FontProperties(family=FONT, size=size, weight="bold" if bold else "normal")


@cache
def _units(character: str, bold: bool) -> float:
    """The advance of one character at a size of 100."""
    from matplotlib.textpath import text_to_path

    # A blank at the end is not counted, so everything is measured between two marks.
    whole, _, _ = text_to_path.get_text_width_height_descent(f"|{character}|", _properties(100, bold), False)
    marks, _, _ = text_to_path.get_text_width_height_descent("||", _properties(100, bold), False)
    return float(whole - marks)


def width_of(text: str, size: float, *, bold: bool = False) -> float:
    """The width of a line in points; kerning, which is little, left out.

    >>> 20 < width_of("ranks", 10) < 32
    True
    """
    return sum(_units(character, bold) for character in text) * size / 100


def wrap(text: str, size: float, room: float, *, bold: bool = False) -> list[str]:
    """Lines no wider than `room`: broken at blanks, else after the marks of a long option, else anywhere.

    >>> wrap("sync:allreduce=ring, 4 ranks", 10, 100)
    ['sync:allreduce=', 'ring, 4 ranks']
    >>> wrap("", 10, 100)
    ['']
    """
    lines: list[str] = []
    for paragraph in text.split("\n"):
        line = ""
        for word in re.findall(r"\s*\S+", paragraph):
            if not line or width_of(line + word, size, bold=bold) <= room:
                line = line + word if line else word.lstrip()
                if width_of(line, size, bold=bold) <= room:
                    continue
                word, line = line, ""
            elif width_of(word.strip(), size, bold=bold) <= room and not _long(word, size, room, bold):
                lines.append(line)
                line = word.lstrip()
                continue
            pieces = _pieces((line + word) if line else word, size, room, bold)
            lines += pieces[:-1]
            line = pieces[-1]
        lines.append(line)
    return lines


def _long(word: str, size: float, room: float, bold: bool) -> bool:
    """Whether a word with marks would leave most of a line empty."""
    return bool(re.search(r"[:=,](?=\S)", word)) and width_of(word, size, bold=bold) > 0.6 * room


def _pieces(text: str, size: float, room: float, bold: bool) -> list[str]:
    lines, line = [], ""
    for piece in PLACES.split(text):
        if width_of((line + piece).rstrip(), size, bold=bold) <= room:
            line += piece
            continue
        if line.strip():
            lines.append(line.rstrip())
        line = piece.lstrip()
        while width_of(line, size, bold=bold) > room and len(line) > 1:
            fits = max(
                1, next(k for k in range(len(line), -1, -1) if width_of(line[:k], size, bold=bold) <= room)
            )
            lines.append(line[:fits])
            line = line[fits:]
    return [*lines, line.rstrip()]
