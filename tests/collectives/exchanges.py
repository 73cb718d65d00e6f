"""What the exchange's tests do on each rank."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.collectives import make_exchange
from paceline.comm import Recorded, pretend_nodes
from paceline.errors import UsageError
from tests.collectives.cases import NAMES, first, layouts


class Vectors:
    """The part of a model that an exchange needs."""

    def __init__(self, x: np.ndarray) -> None:
        self.x, self.g = x, np.zeros_like(x)

    def place(self, x: np.ndarray, g: np.ndarray) -> None:
        x[...] = self.x
        self.x, self.g = x, g


def names_for(nodes: list[int]) -> list[str]:
    return [name for name in NAMES if name != "shared-memory" or len(set(nodes)) == 1]


def equals_allreduce(world: Any) -> None:
    """x after some steps is what one process gets that adds up all gradients, starting from rank 0's x."""
    steps = 3
    for ranks in (1, 2, 3, 4, 6):
        with first(world, ranks) as comm:
            if comm is None:
                continue
            for nodes in layouts(ranks):
                there = pretend_nodes(comm, nodes[comm.rank])
                for number, name in enumerate(names_for(nodes)):
                    n = (1, 15, 16, 17, 100, 1003, 20_000)[(number + ranks) % 7]
                    dtype = (np.float32, np.float64)[number % 2]
                    gradients = np.random.default_rng(n).integers(-9, 9, (steps, ranks, n)).astype(dtype)
                    start = np.arange(n, dtype=dtype)
                    one_node = len(set(nodes)) == 1
                    model = Vectors(start.copy() if comm.rank == 0 or not one_node else start + 7)
                    if name not in ("shared-memory", "hierarchical", "auto"):
                        model.x[...] = start
                    with make_exchange(name, model, there) as exchange:
                        for step in range(steps):
                            model.g[...] = gradients[step, comm.rank]
                            total = exchange.reduce()
                            expected = gradients[step].sum(axis=0)[exchange.part]
                            assert np.array_equal(total, expected), (name, ranks, nodes, n)
                            model.x[exchange.part] -= total
                            total[...] = np.nan  # the caller may do with it what it wants
                            exchange.publish()
                            expected = start - gradients[: step + 1].sum(axis=(0, 1))
                            assert np.array_equal(model.x, expected), (name, ranks, nodes, n)
                    exchange.close()  # again: does nothing
                    assert np.array_equal(model.x, expected), (name, ranks, nodes, n)
                    model.x += comm.rank  # private again: nobody else sees this
                    comm.Barrier()
                    assert np.array_equal(model.x, expected + comm.rank), (name, ranks)
                there.Free()


def parts(world: Any) -> None:
    """The parts of a node's ranks cover x once, in order, at cache lines; some may be empty."""
    for nodes in layouts(world.size):
        there = pretend_nodes(world, nodes[world.rank])
        for n in (1, 40, 1000):
            with make_exchange("hierarchical", Vectors(np.zeros(n, np.float32)), there) as exchange:
                mine = world.allgather((nodes[world.rank], exchange.part.start, exchange.part.stop))
            for node in set(nodes):
                edges = [edge for where, *edge in mine if where == node]
                assert [0, *(stop for _, stop in edges[:-1])] == [start for start, _ in edges], edges
                assert edges[-1][1] == n
                assert all(start % 16 == 0 or start == n for start, _ in edges)
        there.Free()


def traffic(world: Any) -> None:
    """Shared memory sends nothing; between nodes only each owner's part goes."""
    seen = Recorded(world)
    with make_exchange("auto", Vectors(np.zeros(1000, np.float32)), seen) as exchange:
        exchange.reduce()
        exchange.publish()
    assert seen.counts.messages == 0
    there = pretend_nodes(world, world.rank % 2)  # 2 nodes of 2
    seen = Recorded(there)
    with make_exchange("auto", Vectors(np.zeros(1000, np.float32)), seen) as exchange:
        exchange.reduce()
        exchange.publish()
    assert (seen.counts.messages, seen.counts.bytes) == (1, 4 * (512, 488)[world.rank // 2])
    there.Free()


def chosen(world: Any) -> list[str]:
    """What `auto` becomes on one node, on some nodes, on nodes of one rank."""
    kinds = []
    for nodes in ([0, 0, 0, 0], [0, 0, 1, 1], [0, 0, 0, 1], [0, 1, 2, 3]):
        there = pretend_nodes(world, nodes[world.rank])
        with make_exchange("auto", Vectors(np.zeros(8)), there) as exchange:
            kinds.append(type(exchange).__name__)
        if len(set(nodes)) > 1:
            try:
                make_exchange("shared-memory", Vectors(np.zeros(8)), there)
            except UsageError as error:
                kinds.append(str(error))
        there.Free()
    return kinds


def many(world: Any) -> None:
    """Exchanges made and closed many times, several at once."""
    for _ in range(50):
        one, other = Vectors(np.zeros(100)), Vectors(np.zeros(100, np.float32))
        with (
            make_exchange("shared-memory", one, world) as a,
            make_exchange("hierarchical", other, world) as b,
        ):
            one.g[...] = other.g[...] = world.rank
            expected = world.size * (world.size - 1) // 2
            assert (a.reduce() == expected).all()
            assert (b.reduce() == expected).all()
            a.publish()
            b.publish()
