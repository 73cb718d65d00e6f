"""How a diagnosis spells its figures."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.simulate.bottleneck import duration, times

__all__ = ["count", "duration", "listed", "percent", "times"]


def percent(share: float) -> str:
    """
    >>> percent(0.347), percent(0.004)
    ('35 %', '0.4 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.01 or share == 0 else f"{100 * share:.1g} %"


def count(number: int, name: str, plural: str = "s") -> str:
    """
    >>> count(1, "rank"), count(4, "rank"), count(1200, "batch", "es")
    ('1 rank', '4 ranks', '1,200 batches')
    """
    return f"{number:,} {name}{'' if number == 1 else plural}"


def listed(names: Sequence[object]) -> str:
    """
    >>> listed([3]), listed([3, 5, 7])
    ('3', '3, 5 and 7')
    """
    *first, last = map(str, names)
    return f"{', '.join(first)} and {last}" if first else last
