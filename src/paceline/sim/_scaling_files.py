"""A prediction as JSON values, with all that it depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from paceline.sim._bottleneck import Point
from paceline.sim._case import Bench
from paceline.sim._measured import Measured
from paceline.sim.scaling import Curve, Prediction

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
    machine = bench.network.machine
    inside = (
        f"; messages in a node as on {machine.processor}" if machine is not None and machine.processor else ""
    )
    computing = f"; computing as on {bench.costs.processor}" if bench.costs.processor else ""
    return f"{data.name}, {config.model}, {batch}; {bench.network}, {nodes}{slow}{uneven}{inside}{computing}"


def values(bench: Bench, prediction: Prediction, points: Sequence[Measured]) -> dict[str, Any]:
    """Everything, as JSON has it."""
    from paceline.record._environment import environment

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
        "machine": bench.network.node_machine().values(),
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
