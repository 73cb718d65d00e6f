"""What is done on ranks with the two allreduces."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from paceline.comm import Recorded
from tests.ranks import ROOT

sys.path.insert(0, str(ROOT / "examples/course"))


def small_and_odd(comm: Any) -> list[str]:
    """Arrays of any length, shape, kind and order under every operation, against MPI's; what did not come out equal."""
    from mpi4py import MPI
    from my_naive_allreduce import allreduce
    from my_ring_allreduce import ringallreduce

    wrong, p = [], comm.size
    rng = np.random.default_rng(comm.rank)
    ops = {
        "SUM": [MPI.SUM, np.add, lambda a, b: a + b],
        "MIN": [MPI.MIN],
        "MAX": [MPI.MAX, np.maximum],
        "PROD": [MPI.PROD],
    }
    shapes: list[tuple[int, ...]] = [(), (1,), (2,), (p - 1,), (p,), (784,), (5, 3)]
    for shape in shapes:
        for kind in (np.int64, np.float64, np.float32):
            send = np.asarray(rng.integers(-3, 4, shape)).astype(kind)  # such numbers add up exactly
            for name, ours in ops.items():
                expected = np.empty_like(send)
                comm.Allreduce(send, expected, getattr(MPI, name))
                for op in ours:
                    for way in (allreduce, ringallreduce):
                        counting, recv = Recorded(comm), np.empty_like(send)
                        way(send, recv, counting, op)
                        sent = np.array([counting.counts.point_to_point.bytes])
                        total = np.empty_like(sent)
                        comm.Allreduce(sent, total)
                        formula = {allreduce: p * (p - 1), ringallreduce: 2 * (p - 1)}[way] * send.nbytes
                        if not np.array_equal(recv, expected) or total[0] != formula:
                            wrong.append(
                                f"{way.__name__} {shape} {kind.__name__} {name}: {total[0]} {formula}"
                            )
    every_other, recv = np.arange(20.0)[::2] + comm.rank, np.zeros((10, 2))
    for way in (allreduce, ringallreduce):
        way(every_other, recv[:, 1], comm, MPI.SUM)
        if recv[:, 1].tolist() != (p * np.arange(0.0, 20, 2) + p * (p - 1) / 2).tolist() or recv[:, 0].any():
            wrong.append(f"{way.__name__} not contiguous")
    return wrong


def late(comm: Any) -> int:
    """Calls in a row with one rank late each time; how many went wrong."""
    import allreduce_test

    return int(allreduce_test.errors_when_late(comm, size=100))
