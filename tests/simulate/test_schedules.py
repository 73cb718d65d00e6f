"""Every variant of every strategy under random schedules: messages late by a random time, work longer by a random factor,
one rank slow, on every network twice with and without eager messages, buffers watched. One that fails is tried alone:

    python -m pytest 'tests/simulate/test_schedules.py::test_schedules[elastic:every=2-2]'
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paceline import names as registry
from tests.simulate.scheduled import (
    NETWORKS,
    Trained,
    Variant,
    all_applied,
    all_written,
    as_its_log_says,
    as_mean_of_parts,
    as_serial,
    as_variant,
    conserved,
    same_bits,
    train_variant,
    well,
    within_bound,
)

SEEDS = 4 * len(NETWORKS)
ONE_NODE = ("loopback",)
FACTORED = (("model", "mlp:64,32"), ("batch", 5))  # whose gradients are exchanged as factors
Checked = tuple[Variant, Callable[[Trained], None]]
VARIANTS: dict[str, list[Checked]] = {
    "serial": [(Variant("serial", 1), as_serial)],
    "sync": [
        (Variant("sync", 3), as_serial),
        (Variant("sync:allreduce=ring", 4), as_serial),
        (Variant("sync:allreduce=shared-memory", 4, ONE_NODE), as_serial),
        (Variant("sync:allreduce=hierarchical", 5), as_serial),
        (Variant("sync:allreduce=rabenseifner,balance=true", 3), as_serial),
        (Variant("sync:allreduce=recursive-doubling", 5, ONE_NODE), same_bits),
        (Variant("sync:allreduce=naive", 3, ONE_NODE), same_bits),
        (Variant("sync", 4, ONE_NODE, FACTORED), as_serial),
    ],
    "main-worker": [(Variant("main-worker", ranks), as_serial) for ranks in (2, 3, 5)],
    "weight-average": [
        (Variant("weight-average", 3), same_bits),
        (Variant("weight-average:allreduce=ring", 4), as_variant("weight-average")),
    ],
    "local-sgd": [
        (Variant("local-sgd:every=1", 3), as_variant("weight-average")),
        (Variant("local-sgd:every=2", 4), same_bits),
        (Variant("local-sgd:every=none", 3), as_mean_of_parts),
        (Variant("local-sgd:every=3,outer-momentum=0.9,outer-lr=0.7", 2), same_bits),
        (Variant("local-sgd:every=2,warmup=2", 3), same_bits),
    ],
    "elastic": [(Variant("elastic:every=2", 2), same_bits), (Variant("elastic:every=1", 4), same_bits)],
    "psgd": [(Variant("psgd", ranks), as_mean_of_parts) for ranks in (2, 3, 5)],
    "gossip": [(Variant("gossip", 2), conserved), (Variant("gossip", 5), conserved)],
    "hogwild": [
        (Variant("hogwild", 2, ONE_NODE), all_written),
        (Variant("hogwild", 4, ONE_NODE), all_written),
        (Variant("hogwild:every=2", 5), all_written),
    ],
    "parameter-server": [
        (Variant("parameter-server:rule=plain", 2), as_serial),
        (Variant("parameter-server:rule=plain", 4), as_its_log_says),
        (Variant("parameter-server:masters=2,rule=plain,share=dynamic", 5), as_its_log_says),
        (Variant("parameter-server:masters=2,placement=even", 4), all_applied),
        (Variant("parameter-server:bound=1,share=dynamic", 3), within_bound),
        (Variant("parameter-server:backup=1,rule=staleness", 4), all_applied),
    ],
}


def test_every_strategy_is_here() -> None:
    assert set(VARIANTS) == set(registry.names("strategies"))


@pytest.mark.parametrize(
    ("variant", "holds"),
    [
        pytest.param(*checked, id=f"{checked[0].strategy}-{checked[0].ranks}")
        for variants in VARIANTS.values()
        for checked in variants
    ],
)
def test_schedules(variant: Variant, holds: Callable[[Trained], None]) -> None:
    for seed in range(SEEDS):
        print("seed", seed)  # shown if it fails
        run = train_variant(variant, seed)
        well(run)
        holds(run)


def test_schedules_differ() -> None:
    """Asynchronous runs come to different ends, and the same seed to the same."""
    variant = Variant("parameter-server:rule=plain", 4, ONE_NODE)
    ends = {train_variant(variant, seed).x.tobytes() for seed in range(6)}
    assert len(ends) > 3
    assert train_variant(variant, 5).x.tobytes() in ends
