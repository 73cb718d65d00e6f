"""The speedups of real runs, to stand beside predicted ones."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from paceline.config import Config
from paceline.record import Run, find_runs

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Real runs of one strategy on one number of ranks."""

    strategy: str
    ranks: int
    runs: int
    samples_per_second: float
    speedup: float
    against: str
    """What it is compared with: serial runs that were measured too, or the simulated one."""
    oversubscribed: bool
    """More ranks than cores: the time says little about scaling."""


def measured(
    places: Iterable[str | Path], config: Config, strategies: Sequence[str], serial: float
) -> tuple[Measured, ...]:
    """Those of the runs in some folders that did the same work: data, model, and batch, under one of the strategies.

    `serial`: samples a second of the simulated serial run, for where none was measured.
    """
    places = list(places)
    groups: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in find_runs(places):
        if run.simulated is None and not run.summary.get("diverged") and _same(run, config):
            groups[run.config["strategy"], run.config["ranks"]].append(run)
    alone = _rate(groups[found]) if (found := ("serial", 1)) in groups else None
    wanted = [key for key in sorted(groups) if key[0] in strategies]
    if places and not wanted:
        log.warning(
            "no run in %s has this data, model and batch under one of %s",
            ", ".join(map(str, places)),
            ", ".join(strategies),
        )
    return tuple(
        Measured(
            strategy=strategy,
            ranks=ranks,
            runs=len(groups[strategy, ranks]),
            samples_per_second=(rate := _rate(groups[strategy, ranks])),
            speedup=rate / (alone or serial),
            against="serial, simulated" if alone is None else "serial, measured",
            oversubscribed=any(ranks > run.environment["cores"] for run in groups[strategy, ranks]),
        )
        for strategy, ranks in wanted
    )


def _same(run: Run, config: Config) -> bool:
    then = run.config
    same = all(then[name] == getattr(config, name) for name in ("data", "model", "batch_per_rank"))
    rate = run.summary["samples_per_second"]
    return bool(same and rate and (then["batch"] or 64) == (config.batch or 64))


def _rate(runs: list[Run]) -> float:
    return fmean(run.summary["samples_per_second"] for run in runs)
