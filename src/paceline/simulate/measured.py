"""The speedups of real runs, to stand beside predicted ones."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from paceline.machine import Machine
from paceline.record import Run, find_runs
from paceline.simulate.bottleneck import Point
from paceline.simulate.case import Bench
from paceline.simulate.scaling import Curve, Prediction
from paceline.training.config import Config

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


# ---- A prediction as JSON values, with all that it depends on.

FORMAT = 1


def title(bench: Bench) -> str:
    """What is predicted, in a line."""
    config, data = bench.config, bench.data
    batch = (
        f"batch {config.batch or 64}"
        if config.batch_per_rank is None
        else f"batch {config.batch_per_rank} a rank"
    )
    on_node = bench.network.ranks_per_node
    nodes = "all ranks on one node" if on_node is None else f"{on_node} rank{'s' * (on_node > 1)} a node"
    slow = f", slow {bench.options.slow}" if bench.options.slow else ""
    uneven = f", jitter {bench.options.jitter:g}" if bench.options.jitter else ""
    machine = None if bench.network.node is None else Machine.of_network(bench.network)
    inside = (
        f"; messages in a node as on {machine.processor}" if machine is not None and machine.processor else ""
    )
    computing = f"; computing as on {bench.costs.processor}" if bench.costs.processor else ""
    return f"{data.name}, {config.model}, {batch}; {bench.network}, {nodes}{slow}{uneven}{inside}{computing}"


def values(bench: Bench, prediction: Prediction, points: Sequence[Measured]) -> dict[str, Any]:
    """Everything, as JSON has it."""
    from paceline.record.environment import environment

    return {
        "simulated": "scaling",
        "format": FORMAT,
        "title": title(bench),
        "config": {name: value for name, value in asdict(bench.config).items() if name != "strategy"},
        "samples": len(bench.data.train),
        "parameters": bench.model.x.size,
        "network": str(bench.network),
        "slow": bench.options.slow,
        "jitter": bench.options.jitter,
        "serial": {**asdict(prediction.serial), "accuracy": prediction.serial_accuracy},
        "strategies": [_curve(curve) for curve in prediction.curves],
        "measured": [asdict(point) for point in points],
        "machine": Machine.of_network(bench.network).values(),
        "costs": bench.costs.values(),
        "own_costs": {name: costs.values() for name, costs in bench.own_costs.items()},
        "environment": environment(threads=bench.config.threads or 1),
    }


def _curve(curve: Curve) -> dict[str, Any]:
    found = curve.limit
    return {
        "strategy": curve.strategy,
        "points": [_point(point) for point in curve.points],
        "left_out": [{"ranks": ranks, "why": why} for ranks, why in curve.left_out.items()],
        "limit": None
        if found is None
        else {
            "ranks": found.at.ranks,
            "speedup": found.at.speedup,
            "still_rising": found.rising,
            "efficiency_below_half_from": found.half,
            "reason": found.reason,
            "reason_at": found.shown.ranks,
        },
        "told": curve.told,
    }


def _point(point: Point) -> dict[str, Any]:
    found = asdict(point)
    found["efficiency"] = point.efficiency
    found["lost"] = point.lost()
    found["speedup_without"] = {name: point.speedup_without(name) for name in point.without}
    return found
