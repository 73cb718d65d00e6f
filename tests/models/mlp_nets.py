"""Small networks and batches for the tests of the MLP."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.data import Batch
from paceline.models.mlp import MLP

SIZES = (5, 7, 6, 4)
VARIANTS = [
    dict(activation=activation, loss=loss, normalise=normalise, standardise=standardise)
    for activation, loss, normalise, standardise in itertools.product(
        ("sigmoid", "tanh", "relu"), ("squared-error", "cross-entropy"), (False, True), (False, True)
    )
] + [
    dict(activation=a, regression=True, normalise=n)
    for a in ("sigmoid", "tanh", "relu")
    for n in (False, True)
]


def name(variant: dict[str, Any]) -> str:
    return "-".join(str(k if v is True else v) for k, v in variant.items() if v is not False)


def net(
    variant: dict[str, Any], sizes: tuple[int, ...] = SIZES, dtype: Any = np.float64, seed: int = 3
) -> MLP:
    """A network with biases, and input statistics, that are not the trivial ones of its start."""
    made = MLP(sizes, seed=seed, dtype=dtype, **variant)
    random = np.random.default_rng(seed)
    made.x += random.normal(0, 0.2, made.x.size).astype(dtype)
    if made.standardise:
        made.buffers["mean"][:] = random.normal(0, 1, sizes[0])
        made.buffers["std"][:] = random.uniform(0.5, 2, sizes[0])
    return made


def batch(net: MLP, count: int, seed: int = 0) -> Batch:
    random = np.random.default_rng(seed)
    inputs = random.normal(0, 1, (count, net.sizes[0])).astype(net.dtype)
    labels = (
        random.normal(0, 1, (count, net.sizes[-1]))
        if net.regression
        else random.integers(0, net.sizes[-1], count)
    )
    return part(inputs, labels)


def part(inputs: Any, labels: Any) -> Batch:
    count = len(inputs)
    return Batch(inputs=inputs, labels=labels, count=count, total=count, offset=0, step=0, epoch=0)


def measure_allocation(steps: Callable[[], None]) -> tuple[int, int]:
    """Return the bytes that steps allocate at most and in the end, once they have been taken before."""
    steps()
    tracemalloc.start()
    try:
        steps()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        steps()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak - before, after - before
