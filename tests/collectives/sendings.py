"""What the tests of gradients that are sent in buckets, or compressed, do on each rank."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from paceline.collectives import Nodes, Sending, make_exchange
from paceline.comm import Recorded, pretend_nodes
from paceline.strategies import Load, exchange_traffic
from tests.collectives.exchanges import Vectors

SENDERS = ("naive", "ring", "recursive-doubling", "rabenseifner", "native")
LENGTHS = (40, 1, 300, 90, 24, 150)
"""Of the layers."""


class Layers(Vectors):
    """The part of a model that an exchange with buckets needs; one layer is a matrix, another one has one, too."""

    matrices = ((41, (20, 15)), (431, (4, 6)), (460, (9, 14)))

    def __init__(self, x: np.ndarray) -> None:
        super().__init__(x)
        ends = np.cumsum([0, *LENGTHS]).tolist()
        self.layers = [slice(*edges) for edges in pairwise(ends)]
        self.buffers: dict[str, Any] = {}


def draw(steps: int, ranks: int, seed: int = 1) -> np.ndarray:
    """Gradients of all ranks: whole numbers, so that sums of them are exact."""
    return np.random.default_rng(seed).integers(-9, 9, (steps, ranks, sum(LENGTHS))).astype(np.float32)


def train(
    name: str,
    comm: Any,
    gradients: np.ndarray,
    sending: Sending,
    order: str = "backward",
    whole: bool = False,
) -> tuple[np.ndarray, list[np.ndarray], Any]:
    """Take a step for each row of gradients, as a backward pass fills them; return x, the sums and the exchange."""
    model, sums = Layers(np.zeros(gradients.shape[2], np.float32)), []
    with make_exchange(name, model, comm, sending=sending, whole=whole) as exchange:
        for step, mine in enumerate(gradients[:, comm.Get_rank()]):
            layers = list(range(len(model.layers)))[:: -1 if order == "backward" else 1]
            if order == "any":
                np.random.default_rng([step, comm.Get_rank()]).shuffle(layers)
            model.g[...] = np.nan
            for layer in layers if exchange.ready is not None else ():
                model.g[model.layers[layer]] = mine[model.layers[layer]]
                exchange.ready(layer)
            if exchange.ready is None:
                model.g[...] = mine
            total = exchange.reduce()
            sums.append(np.array(total))
            model.x[exchange.part] -= total
            total[...] = np.nan
            exchange.publish()
    return np.array(model.x), sums, exchange


def overlap(comm: Any) -> None:
    """Buckets that are sent during the backward pass add up to the same, in whatever order layers are ready."""
    gradients = draw(3, comm.Get_size())
    expected = -gradients.sum(axis=(0, 1))
    for order in ("backward", "forward", "any"):
        for bucket in (1, 500, 10**6):
            sending = Sending(overlap=True, bucket=bucket)
            for name in SENDERS:
                x, sums, exchange = train(name, comm, gradients, sending, order)
                assert np.array_equal(x, expected), (name, order, bucket)
                assert np.array_equal(sums[1], gradients[1].sum(axis=0)), (name, order, bucket)
                assert exchange.plan["buckets"] == {1: 6, 500: 3, 10**6: 1}[bucket]


def overlap_on_nodes(comm: Any, layouts: list[list[int]]) -> None:
    """The same with `hierarchical` and `auto`, where ranks of a node share memory."""
    gradients = draw(3, comm.Get_size())
    for layout in layouts:
        there = pretend_nodes(comm, layout[comm.Get_rank()])
        for name in ("hierarchical", "auto"):
            for whole in (False, True):
                for order in ("backward", "any"):
                    way = Sending(overlap=True, bucket=500)
                    x, _, exchange = train(name, there, gradients, way, order, whole)
                    assert np.array_equal(x, -gradients.sum(axis=(0, 1))), (layout, name, whole, order)
                    everything = slice(0, x.size)
                    assert not whole or exchange.part == everything
        there.Free()


def compressed(comm: Any, layouts: list[list[int] | None], steps: int = 40) -> list[list[float]]:
    """Errors of the sum of all steps, for every compression, and what is sent; every rank has the same x."""
    ranks = comm.Get_size()
    gradients = np.random.default_rng(3).standard_normal((steps, ranks, sum(LENGTHS))).astype(np.float32)
    gradients += (
        np.random.default_rng(4).standard_normal(sum(LENGTHS)).astype(np.float32)
    )  # a direction in common
    gradients *= 30
    expected, found = -gradients.sum(axis=(0, 1)), []
    for layout in layouts:
        there = comm if layout is None else pretend_nodes(comm, layout[comm.Get_rank()])
        nodes = Nodes(()) if layout is None else Nodes(tuple(layout))
        for compress in ("bfloat16", "float16", "topk:share=0.1", "powersgd:rank=2"):
            for bucket in (None, 500):
                for name in ("ring", "native", "recursive-doubling") if layout is None else ("hierarchical",):
                    seen = Recorded(there)
                    way = Sending(
                        overlap=bucket is not None, bucket=bucket or 0, compress=compress, samples=64
                    )
                    x, _, exchange = train(name, seen, gradients, way)
                    every = comm.allgather(x.tobytes())
                    assert every == [every[0]] * ranks, (layout, compress, name)
                    load = Load(
                        ranks=ranks, parameters=x.size, nodes=nodes, findings={"exchange": exchange.plan}
                    )
                    formula = exchange_traffic(load, name, calls=len(gradients), when="", planned=True)
                    counts = comm.allgather((seen.counts.messages, seen.counts.bytes))
                    counted = tuple(sum(column) for column in zip(*counts, strict=True))
                    assert counted == (formula.messages, formula.bytes), (layout, compress, name, bucket)
                    error = np.linalg.norm(x - expected) / np.linalg.norm(expected)
                    found.append([compress, float(error), counted[1] / len(gradients)])
        if there is not comm:
            there.Free()
    return found


def remembered(comm: Any, compress: str) -> float:
    """Return how far the sum of what was sent is from the sum of all gradients, with what ranks remember added."""
    kept: dict[str, Any] = {}

    def keep(name: str, **values: Any) -> Any:
        kept.update(values)
        return type("Kept", (), values)

    gradients = draw(5, comm.Get_size())
    _, sums, _ = train("ring", comm, gradients, Sending(compress=compress, keep=keep))
    left = np.array(kept["error"])
    comm.Allreduce(np.array(left), left)
    expected = gradients.sum(axis=(0, 1))
    return float(np.abs(np.sum(sums, axis=0) + left - expected).max() / np.abs(expected).max())
