"""Collectives: `allreduce` by several algorithms, one file each, and the exchange of a training step.

    allreduce                         combine the arrays of all ranks, by the algorithm of a name
    make_exchange, Exchange           sum gradients and publish parameters, with as few copies as possible
    Divided, ProgramNeeds             the exchange of programs with a loop of their own, on one node
    IN_ORDER                          collectives whose exchange can add in a fixed order
    Sending, cut_buckets              how gradients are sent between nodes: bucket by bucket, in fewer bytes
    choose_bucket                     the size of buckets, from what they cost
    parse_compression                 the compression of a name
    refuse_one_node                   refuse these where ranks share memory
    prepare_sum                       an allreduce whose arguments are checked once
    cost, has_cost, Case, Cost        how many messages and bytes an algorithm takes, exactly
    CostModel                         the alpha-beta-gamma model of its time
    Nodes, nodes, one_node, peers     which rank is on which node
    require_room                      refuse what does not fit into shared memory, on all ranks
    cut, length                       a vector cut into parts, the same way on every rank
    collective                        the decorator of every algorithm

The other files are the algorithms: `naive`, `ring`, `recursive_doubling`, `rabenseifner`, `shared_memory`,
`hierarchical`, `native` and `auto`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.collectives._buffers import Array, collective, find_allreduce, prepare_sum
from paceline.collectives._compression import parse_compression
from paceline.collectives._cost import Cost, CostCase, CostModel, Nodes, cost, cut, has_cost, length, one_node
from paceline.collectives._exchange import (
    IN_ORDER,
    Divided,
    Exchange,
    Factored,
    ProgramNeeds,
    Sending,
    choose_bucket,
    cut_buckets,
    factors_pay,
    make_exchange,
    refuse_one_node,
)
from paceline.collectives._nodes import nodes, peers, require_room


def allreduce(send: Array, recv: Array, comm: Any, op: Any = np.add, *, algorithm: str = "auto") -> None:
    """Combine `send` of all ranks with `op` into `recv` on every rank, by the algorithm of this name.

    The arrays may have any shape, order and numeric dtype; `send` may be `recv`. `op` is a NumPy ufunc, an MPI.Op or
    a Python function of two arrays that works element by element; it must be associative and commutative. `comm` is
    an mpi4py communicator or one with the same interface; None means this process alone. Collective: every rank calls
    it with the same shape, dtype and op.

    >>> total = np.zeros(3)
    >>> allreduce(np.ones(3), total, None, algorithm="ring")
    >>> total
    array([1., 1., 1.])
    """
    find_allreduce(algorithm)(send, recv, comm, op)


__all__ = [
    "IN_ORDER", "Array", "Cost", "CostCase", "CostModel", "Divided", "Exchange", "Factored", "Nodes", "ProgramNeeds",
    "Sending", "allreduce", "choose_bucket", "collective", "cost", "cut", "cut_buckets", "factors_pay", "has_cost",
    "length", "make_exchange", "nodes", "one_node", "parse_compression", "peers", "prepare_sum", "refuse_one_node",
    "require_room",
]  # fmt: skip
