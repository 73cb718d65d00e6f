"""The same seed, the same outcome to the bit, in every process; another seed, another order of what happens at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from paceline import vmpi
from tests.ranks import ROOT
from tests.vmpi.random_orders import first_come, outcome

JITTER = "10gbe:ranks-per-node=3,jitter=0.3"


def _elsewhere(hash_seed: str) -> list[str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
    command = [sys.executable, "-m", "tests.vmpi.random_orders", JITTER]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


def test_the_same_in_every_process() -> None:
    here = [outcome(seed, JITTER) for seed in range(4)]
    assert _elsewhere("0") == _elsewhere("1234") == here
    assert len(set(here)) == 4


@pytest.mark.parametrize("network", ["loopback", "10gbe"])
def test_seeds_explore_orders(network: str) -> None:
    orders = [vmpi.run(first_come, ranks=6, network=network, seed=seed).values[0] for seed in range(12)]
    again = [vmpi.run(first_come, ranks=6, network=network, seed=seed).values[0] for seed in range(12)]
    assert orders == again
    assert len({tuple(order) for order in orders}) > 6
    assert all(sorted(order) == [1, 2, 3, 4, 5] for order in orders)


def test_what_happens_at_other_times_has_one_order() -> None:
    def late(comm: object) -> list[int]:
        comm.Compute(comm.rank * 1e-3)  # type: ignore[attr-defined]
        return first_come(comm)

    orders = [vmpi.run(late, ranks=6, seed=seed).values[0] for seed in range(5)]
    assert orders == [[1, 2, 3, 4, 5]] * 5
