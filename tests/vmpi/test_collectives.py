"""Every collective on 1 to 33 simulated ranks: right results, and messages and bytes as the formulas say.

Nothing is sent before it is asked for, and every message comes late by a random time: what relies on buffering, on an
order of arrival, or on a buffer that is still in use would stop here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from paceline.collectives import allreduce
from paceline.collectives._cost import Nodes, cost
from paceline.comm import Recorded
from paceline.errors import UsageError
from paceline.vmpi import run
from paceline.vmpi.errors import Deadlock
from paceline.vmpi.faults import shuffle

MESSAGES = ("naive", "ring", "recursive-doubling", "rabenseifner")
NAMES = (*MESSAGES, "shared-memory", "hierarchical", "native", "auto")
DTYPES = ("f4", "f8", "i4", "i8", "f2", "u1", "c8", "f4")
OPS = (np.add, np.maximum, lambda a, b: a + b, np.minimum, np.add)
ORDERED = "iufb"  # kinds of numbers that have a largest


@dataclass(frozen=True)
class Case:
    name: str
    n: int
    dtype: str
    op: Any
    in_place: bool

    def values(self, rank: int) -> Any:
        """Small whole numbers: sums are exact in any order, and bytes wrap around alike."""
        return ((np.arange(self.n) * 7 + rank * 5) % 13).astype(self.dtype)

    def result(self, ranks: int) -> Any:
        total = self.values(0)
        for rank in range(1, ranks):
            total = self.op(total, self.values(rank))
        return total


def cases(ranks: int, names: tuple[str, ...]) -> Iterator[Case]:
    """Sizes below, at and above the number of ranks, with each collective; types and operations in turn.

    Of many ranks, those that send each a message for every other take two of the sizes only, in turn.
    """
    for k, n in enumerate((0, 1, ranks - 1, ranks + 1, 1000)):
        for j, name in enumerate(names):
            if name in ("naive", "ring") and ranks > 12 and (ranks + k) % 3:
                continue
            turn = ranks + 3 * k + j
            dtype = DTYPES[turn % len(DTYPES)]
            op = OPS[turn % len(OPS)] if np.dtype(dtype).kind in ORDERED else np.add
            yield Case(name, n, dtype, op, in_place=(ranks + k + j) % 2 == 0)


def check(world: Any, names: tuple[str, ...], expected: dict[Case, Any], mixed: bool) -> None:
    """What every rank does: all cases, each counted."""
    # An order that has nothing to do with the nodes: 0, 5, 10 …
    comm = world.Split(0, 5 * world.rank % world.size) if mixed else world
    nodes = Nodes(comm.node_of)
    for case in cases(comm.size, names):
        if case not in expected:
            expected[case] = case.result(comm.size)
        mine = case.values(comm.rank)
        recv = mine.copy() if case.in_place else np.empty_like(mine)
        seen = Recorded(comm)
        allreduce(recv if case.in_place else mine, recv, seen, case.op, algorithm=case.name)
        assert np.array_equal(recv, expected[case]), case
        assert case.in_place or np.array_equal(mine, case.values(comm.rank)), case
        theory = cost(case.name, n=case.n, p=comm.size, r=comm.rank, itemsize=mine.itemsize, nodes=nodes)
        sent = (seen.counts.messages, seen.counts.bytes)
        assert sent == (theory.messages, theory.sent * mine.itemsize), (case, comm.rank, nodes)
    if mixed:
        comm.Free()


def on_nodes(ranks: int, ranks_per_node: int | str, names: tuple[str, ...], mixed: bool = False) -> None:
    network = f"10gbe:ranks-per-node={ranks_per_node}"
    run(
        check, names, {}, mixed,
        ranks=ranks, network=network, seed=ranks, rendezvous=True, strict=True, faults=[shuffle(most=1e-5)],
    )  # fmt: skip


@pytest.mark.parametrize("ranks", range(1, 34))
def test_on_one_node(ranks: int) -> None:
    on_nodes(ranks, "all", NAMES)


@pytest.mark.parametrize("ranks", range(1, 34))
def test_on_nodes_of_one_rank(ranks: int) -> None:
    on_nodes(ranks, 1, ("hierarchical", "auto"))


@pytest.mark.parametrize("ranks", range(1, 34))
def test_on_nodes_of_three_ranks(ranks: int) -> None:
    """Every third time they are even."""
    on_nodes(ranks, 3, ("hierarchical", "auto"))


@pytest.mark.parametrize("ranks", [2, 3, 6, 7, 11, 16, 19, 24, 33])
def test_in_any_order_on_uneven_nodes(ranks: int) -> None:
    """Ranks of one node are not neighbours, and the last node has fewer."""
    on_nodes(ranks, 4, ("ring", "hierarchical", "auto"), mixed=ranks % 5 != 0)


def test_shared_memory_on_several_nodes_is_refused() -> None:
    def program(comm: Any) -> None:
        with pytest.raises(UsageError, match="shared-memory needs all ranks on one node; 2 of 4 are"):
            allreduce(np.ones(3), np.empty(3), comm, algorithm="shared-memory")

    run(program, ranks=4, network="10gbe:ranks-per-node=2")


def test_a_collective_that_relied_on_buffering_would_be_found() -> None:
    """The same with blocking sends: what these tests are for."""

    def careless(comm: Any) -> None:
        x = np.ones(10)
        comm.Send(x, (comm.rank + 1) % comm.size)
        comm.Recv(x, (comm.rank - 1) % comm.size)

    run(careless, ranks=3)
    with pytest.raises(Deadlock, match="3 of 3 ranks are waiting"):
        run(careless, ranks=3, rendezvous=True)
