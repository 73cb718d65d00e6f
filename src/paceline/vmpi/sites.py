"""Where in the user's program an operation was started: stored compactly, and formatted when an error needs it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

Site = tuple[CodeType, int]
# Code that only passes calls on: the simulator, and the wrappers of communicators that count, time and trace.
_PASSES_ON = tuple(f"{Path(__file__).parent.parent / name}/" for name in ("vmpi", "comm"))
_inside: dict[CodeType, bool] = {}


def _is_inside(code: CodeType) -> bool:
    """Return True if this code only passes calls on."""
    found = _inside.get(code)
    if found is None:
        found = _inside[code] = code.co_filename.startswith(_PASSES_ON)
    return found


def find_site() -> Site:
    """Return the innermost place outside the simulator that is being executed."""
    frame: FrameType = sys._getframe(2)
    while True:
        code = frame.f_code
        inside = _inside.get(code)
        if inside is None:
            inside = _is_inside(code)
        if not inside or frame.f_back is None:
            return code, frame.f_lasti
        frame = frame.f_back


def greenlet_site(greenlet: Any) -> Site | None:
    """Return where a greenlet that is not running will continue, outside the simulator."""
    return frame_site(greenlet.gr_frame)


def frame_site(frame: FrameType | None) -> Site | None:
    """Return the innermost place outside the simulator, from a frame outwards."""
    while frame is not None and _is_inside(frame.f_code):
        frame = frame.f_back
    return None if frame is None else (frame.f_code, frame.f_lasti)


def format_site(where: Site | None) -> str:
    """Format a site as file:line.

    >>> format_site(None)
    'an unknown line'
    """
    if where is None:
        return "an unknown line"
    code, instruction = where
    line = code.co_firstlineno
    for start, stop, number in code.co_lines():
        if start <= instruction < stop and number is not None:
            line = number
            break
    path = Path(code.co_filename)
    return f"{Path(path.parent.name) / path.name}:{line}"


def format_list(sentences: Iterable[str], most: int = 8) -> str:
    """Format sentences one per line; of a long list only the first ones.

    >>> format_list(["one", "two", "three"], most=2)
    '\\n  one\\n  two\\n  … and 1 more'
    """
    every = list(sentences)
    shown = every[:most]
    if len(every) > most:
        shown.append(f"… and {len(every) - most:,} more")
    return "".join(f"\n  {sentence}" for sentence in shown)
