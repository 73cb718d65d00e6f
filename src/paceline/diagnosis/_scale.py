"""The runs of one strategy on one number of ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from paceline.diagnosis._place import Place, place_of
from paceline.diagnosis._timing import Timing, timing_of
from paceline.job import strategy_in
from paceline.record import Run

# Strategies whose ranks come to one place in every step, though they measure no waiting in it.
MEETING = ("main-worker",)


@dataclass(frozen=True, kw_only=True, eq=False)
class Scale:
    """The runs of one strategy on one number of ranks, that differ in nothing but their seed."""

    runs: tuple[Run, ...]
    timing: Timing
    place: Place

    @property
    def ranks(self) -> int:
        """How many there are."""
        return int(self.runs[0].config["ranks"])

    @property
    def threads(self) -> int:
        """Of a rank."""
        return int(self.runs[0].summary["threads"])

    @property
    def seconds(self) -> float:
        """Of training, mean over the runs."""
        return fmean(run.summary["train_seconds"] for run in self.runs)

    @property
    def diverged(self) -> str | None:
        """Why the first of them that diverged did."""
        return next((str(run.summary["diverged"]) for run in self.runs if run.summary.get("diverged")), None)

    @property
    def oversubscribed(self) -> bool:
        """Whether there are more threads on a node than cores."""
        return not self.fits(self.ranks)

    def fits(self, ranks: int) -> bool:
        """Whether so many ranks, with as many threads each, would have a core for each thread where these ran."""
        # What a simulated rank computes was measured with its threads; they take no core of another's.
        return self.place.fits(ranks, self.threads if self.runs[0].simulated is None else 1)

    def means(self, name: str) -> tuple[float, float] | None:
        """The mean of a figure over the runs, and how far that may be off (its standard error); None: unknown."""
        values = [value for run in self.runs if (value := run.summary.get(name)) is not None]
        if not values or len(values) < len(self.runs):
            return None
        return fmean(values), stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0

    def found(self, *keys: str) -> Any:
        """Something that the first run's strategy found out; None where it did not."""
        value: Any = self.runs[0].summary.get("findings") or {}
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value


def scale_of(members: Sequence[Run]) -> Scale:
    """Runs of one strategy on one number of ranks and threads."""
    strategy = str(members[0].config["strategy"])
    found, name = strategy_in(strategy), strategy.partition(":")[0]
    together = bool(getattr(found, "in_step", True)) or name in MEETING
    timing = timing_of(members, together=together, served=name == "parameter-server")
    return Scale(runs=tuple(members), timing=timing, place=place_of(members[0]))


def fastest(scales: Sequence[Scale]) -> tuple[Scale, ...]:
    """Of those on the same number of ranks, with other threads, the fastest that did not diverge."""
    by_ranks: dict[int, list[Scale]] = defaultdict(list)
    for scale in scales:
        by_ranks[scale.ranks].append(scale)
    return tuple(
        min(those, key=lambda scale: (scale.diverged is not None, scale.seconds))
        for _, those in sorted(by_ranks.items())
    )
