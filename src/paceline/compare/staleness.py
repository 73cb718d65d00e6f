"""The staleness of gradients: the findings of a row's runs added up, and the bars of a histogram."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from paceline.record.schema import STALENESS, passes

# A histogram has at most BARS bars for SHOWN of the updates, and one more for the rest.
BARS, SHOWN = 24, 0.95


@dataclass(frozen=True)
class StalenessBar:
    """The updates whose gradients were `first` to `last` updates old."""

    first: int
    last: int
    share: float
    tail: bool = False
    """True if it represents everything above the other bars."""


@dataclass(frozen=True)
class PieceStaleness:
    """A part of the parameters with one master."""

    master: int
    layers: tuple[int, ...]
    parameters: int
    mean: float
    largest: int
    mean_gap: float


@dataclass(frozen=True)
class RowStaleness:
    """The number of updates by staleness, tau, over all runs of a row.

    >>> found = RowStaleness({0: 6, 1: 3, 7: 1})
    >>> found.mean, found.largest, found.updates
    (1.0, 7, 10)
    """

    counts: Mapping[int, int]
    pieces: tuple[PieceStaleness, ...] = ()
    dropped: float = 0.0
    """Gradients that were not applied."""

    @property
    def updates(self) -> int:
        """The number of updates."""
        return sum(self.counts.values())

    @property
    def mean(self) -> float:
        """Mean tau."""
        return sum(tau * count for tau, count in self.counts.items()) / self.updates

    @property
    def largest(self) -> int:
        """Largest tau."""
        return max(self.counts)

    def bars(self) -> list[StalenessBar]:
        """Return bars of equal width from tau 0 on, and one more for the few updates above.

        >>> [(bar.first, bar.last, bar.share) for bar in RowStaleness({0: 6, 2: 4}).bars()]
        [(0, 0, 0.6), (1, 1, 0.0), (2, 2, 0.4)]
        >>> far = RowStaleness({tau: 10 for tau in range(50)} | {1000: 1}).bars()
        >>> len(far), (far[0].first, far[0].last), (far[-1].first, far[-1].last, far[-1].tail)
        (25, (0, 1), (48, 1000, True))
        """
        ordered, whole = sorted(self.counts), self.updates
        end = ordered[-1]
        if end >= BARS:
            seen = 0
            for end in ordered:
                seen += self.counts[end]
                if seen >= SHOWN * whole:
                    break
        width = math.ceil((end + 1) / BARS)
        sums: Counter[int] = Counter()
        for tau, count in self.counts.items():
            sums[min(tau // width, end // width + 1)] += count
        bars = [
            StalenessBar(n * width, (n + 1) * width - 1, sums[n] / whole) for n in range(end // width + 1)
        ]
        above = bars[-1].last + 1
        if self.largest >= above:
            bars.append(StalenessBar(above, self.largest, sums[len(bars)] / whole, tail=True))
        return bars


def staleness_of(summaries: Iterable[Mapping[str, Any]]) -> RowStaleness | None:
    """Add up the staleness that runs recorded; None if none did, as with synchronous runs.

    A histogram is a list (how many updates had tau 0, 1, 2 …) or a mapping by tau. Findings of a user's own strategy may
    have any shape: anything that is not a histogram is ignored.

    >>> run = {"findings": {"staleness": {"histogram": [3, 1]}}}
    >>> staleness_of([run, {"findings": {"staleness": {"histogram": {"1": 2}}}}, {}])
    RowStaleness(counts={0: 3, 1: 3}, pieces=(), dropped=0.0)
    """
    counts: Counter[int] = Counter()
    pieces: dict[tuple[int, tuple[int, ...], int], list[PieceStaleness]] = defaultdict(list)
    dropped = 0.0
    for summary in summaries:
        findings = summary.get("findings") or {}
        found = findings.get("staleness")
        if found is None or not passes(found, STALENESS):
            continue
        histogram = found["histogram"]
        pairs = histogram.items() if isinstance(histogram, dict) else enumerate(histogram)
        counts += Counter({int(tau): count for tau, count in pairs})
        for values in found.get("pieces") or ():
            known = {key: values.get(key) for key in ("master", "parameters", "mean", "largest", "mean_gap")}
            piece = PieceStaleness(**known, layers=tuple(values["layers"]))
            pieces[piece.master, piece.layers, piece.parameters].append(piece)
        dropped += findings.get("gradients_dropped") or 0
    if not counts:
        return None
    return RowStaleness(dict(counts), tuple(map(_together, pieces.values())), dropped)


def _together(runs: list[PieceStaleness]) -> PieceStaleness:
    return replace(
        runs[0],
        mean=fmean(piece.mean for piece in runs),
        largest=max(piece.largest for piece in runs),
        mean_gap=fmean(piece.mean_gap or 0.0 for piece in runs),  # null if a run diverged
    )
