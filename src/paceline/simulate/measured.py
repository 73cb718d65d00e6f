"""The speedups of real runs beside predicted ones, and a prediction as JSON values."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from paceline.config import Config
from paceline.machine import Machine
from paceline.record import Run, find_runs
from paceline.simulate.bottleneck import ScalingPoint
from paceline.simulate.case import Workload
from paceline.simulate.scaling import Prediction, ScalingCurve

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
    """The baseline of the comparison: measured serial runs, or the simulated one."""
    oversubscribed: bool
    """True if there were more ranks than cores: the time says little about scaling."""


def find_measured(
    places: Iterable[str | Path], config: Config, strategies: Sequence[str], serial: float
) -> tuple[Measured, ...]:
    """Find the runs in some folders that did the same work (data, model, batch) with one of the strategies.

    `serial`: samples per second of the simulated serial run, used if no serial run was measured. Of runs that differ only
    in threads, those with the fewest count.
    """
    places = list(places)
    by_threads: dict[tuple[str, int], dict[int, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in find_runs(places):
        if run.simulated is None and not run.summary.get("diverged") and _same(run, config):
            by_threads[run.config["strategy"], run.config["ranks"]][run.summary["threads"]].append(run)
    groups = {key: found[min(found)] for key, found in by_threads.items()}
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


FORMAT = 1


def describe(workload: Workload) -> str:
    """Describe the subject of the prediction in one line."""
    config, data = workload.config, workload.data
    batch = (
        f"batch {config.batch or 64}"
        if config.batch_per_rank is None
        else f"batch {config.batch_per_rank} a rank"
    )
    on_node = workload.network.ranks_per_node
    nodes = "all ranks on one node" if on_node is None else f"{on_node} rank{'s' * (on_node > 1)} per node"
    slow = f", slow {workload.options.slow}" if workload.options.slow else ""
    uneven = f", jitter {workload.options.jitter:g}" if workload.options.jitter else ""
    network = workload.network
    typical = network.node is None or network.inside is not None
    machine = None if typical else Machine.of_network(network)
    inside = (
        f"; messages in a node as on {machine.processor}" if machine is not None and machine.processor else ""
    )
    computing = f"; computing as on {workload.costs.processor}" if workload.costs.processor else ""
    return (
        f"{data.name}, {config.model}, {batch}; {workload.network}, {nodes}{slow}{uneven}{inside}{computing}"
    )


def to_values(workload: Workload, prediction: Prediction, points: Sequence[Measured]) -> dict[str, Any]:
    """Return a prediction as JSON values, with everything that it depends on."""
    from paceline.record.environment import environment

    return {
        "simulated": "scaling",
        "format": FORMAT,
        "title": describe(workload),
        "config": {name: value for name, value in asdict(workload.config).items() if name != "strategy"},
        "samples": len(workload.data.train),
        "parameters": workload.model.x.size,
        "network": str(workload.network),
        "slow": workload.options.slow,
        "jitter": workload.options.jitter,
        "serial": {**asdict(prediction.serial), "accuracy": prediction.serial_accuracy},
        "strategies": [_curve(curve) for curve in prediction.curves],
        "splits": [asdict(split) for split in prediction.splits],
        "threads": prediction.threads,
        "measured": [asdict(point) for point in points],
        "machine": Machine.of_network(workload.network).values(),
        "costs": workload.costs.values(),
        "own_costs": {name: costs.values() for name, costs in workload.own_costs.items()},
        "environment": environment(threads=workload.config.threads or 1),
    }


def _curve(curve: ScalingCurve) -> dict[str, Any]:
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
        "told": curve.summary,
    }


def _point(point: ScalingPoint) -> dict[str, Any]:
    found = asdict(point)
    found["efficiency"] = point.efficiency
    found["lost"] = point.lost()
    found["speedup_without"] = {name: point.speedup_without(name) for name in point.without}
    return found
