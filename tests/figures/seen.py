"""The text that a matplotlib figure really shows."""

from __future__ import annotations

from typing import Any

from matplotlib.text import Text


def seen_texts(page: Any) -> list[tuple[str, Any]]:
    """Every text that is drawn, with its box in pixels; ticks outside their axis are not drawn."""
    page.draw_without_rendering()
    unseen = {
        id(label)
        for axes in page.findobj(lambda one: hasattr(one, "xaxis"))
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis.get_major_ticks()
        for label in (tick.label1, tick.label2)
        if label is tick.label2
        or not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    }
    return [
        (text.get_text(), text.get_window_extent())
        for text in page.findobj(Text)
        if text.get_visible() and text.get_text().strip() and id(text) not in unseen
    ]
