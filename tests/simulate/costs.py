"""What computing costs in tests of simulated training."""

from __future__ import annotations

from paceline.machine import Costs
from paceline.vmpi import Curves

WORK = {
    "gradient": [[1, 50e-6], [64, 400e-6]],
    "factors": [[1, 40e-6], [64, 300e-6]],
    "part": [[1, 1e-6], [1_000_000, 80e-6]],
    "update": [[1, 1e-6], [100_000, 20e-6]],
    "rule": [[1, 2e-6], [100_000, 50e-6]],
    "serve": [[1, 20e-6]],
    "evaluate": [[1, 20e-6], [1000, 2e-3]],
}
PROCESSOR = "one of ours"
COSTS = Costs(
    work={kind: Curves.of({1: points}) for kind, points in WORK.items()}, processor=PROCESSOR, cores=64
)
