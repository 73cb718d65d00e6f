"""The example does what it says."""

from __future__ import annotations

import runpy
from pathlib import Path

from paceline import vmpi
from paceline.vmpi.faults import fail_at

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "simulated.py"))


def test_a_stencil_is_faster_on_a_faster_network() -> None:
    networks = ("1gbe:ranks-per-node=4", "10gbe:ranks-per-node=4", "infiniband:ranks-per-node=4")
    outcomes = [vmpi.run(EXAMPLE["halo"], ranks=16, network=network) for network in networks]
    assert all(outcome.values == [16.0] * 16 for outcome in outcomes)
    seconds = [outcome.seconds for outcome in outcomes]
    assert seconds == sorted(seconds, reverse=True)
    assert min(seconds) > 10 * 200e-6


def test_survivors_go_on() -> None:
    outcome = vmpi.run(EXAMPLE["survivors"], ranks=8, faults=[fail_at(rank=3, step=2)])
    assert outcome.values == [7.0, 7.0, 7.0, None, 7.0, 7.0, 7.0, 7.0]
