"""What the collectives' tests do on each rank."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from paceline.collectives import _buffers, _cost, allreduce, hierarchical, shared_memory
from paceline.collectives._cost import Nodes, cost
from paceline.comm import Recorded, pretend_nodes
from tests.collectives.drawn import LAYOUTS, draw, laid_out
from tests.ranks import first

POINT_TO_POINT = ("naive", "ring", "recursive-doubling", "rabenseifner")
NAMES = (*POINT_TO_POINT, "shared-memory", "hierarchical", "native", "auto")


def layouts(ranks: int) -> list[list[int]]:
    """Ways to put the ranks on nodes: one node, pairs, round robin, one rank apart, each alone."""
    every = [
        [0] * ranks,
        [r // 2 for r in range(ranks)],
        [r % 2 for r in range(ranks)],
        [min(r, 1) for r in range(ranks)],
        [5 * (ranks - r) for r in range(ranks)],
    ]
    return [nodes for k, nodes in enumerate(every) if nodes not in every[:k]]


def any_case(world: Any, count: int, seed: int) -> None:
    """Random shapes, dtypes, orders, ops, in place or not, for every collective and 1 to 6 ranks."""
    from mpi4py import MPI

    for ranks in range(1, world.size + 1):
        with first(world, ranks) as comm:
            if comm is None:
                continue
            for number in range(count):
                rng = np.random.default_rng([seed, ranks, number])
                case = draw(rng, ranks, MPI)
                mine = case.values[comm.rank]
                name = NAMES[number % len(NAMES)]
                # ranks differ in memory order, which must not matter
                order = LAYOUTS[(LAYOUTS.index(case.layout) + comm.rank) % len(LAYOUTS)]
                recv = laid_out(mine, order)
                send = recv if case.in_place else laid_out(mine, case.layout)
                kept = send.copy()
                allreduce(send, recv, comm, case.op, algorithm=name)
                where = f"{name} on {ranks} ranks, number {number}: {case}"
                assert recv.dtype == case.dtype, where
                assert np.array_equal(recv, case.expected), f"{where}\n{recv}\n{case.expected}"
                assert case.in_place or np.array_equal(send, kept), where


@patch.object(shared_memory, "ROW_BYTES", 1 << 12)  # longer arrays go in pieces
@patch.object(hierarchical, "ROW_BYTES", 1 << 12)
@patch.object(_buffers, "LONGEST", 5000)
@patch.object(_cost, "LONGEST", 5000)
def sizes(world: Any) -> None:
    """Arrays shorter than the ranks, around multiples of them, longer than a shared row, on any nodes."""
    for ranks in (2, 3, 4, 6):
        with first(world, ranks) as comm:
            if comm is None:
                continue
            for nodes in layouts(ranks):
                there = pretend_nodes(comm, nodes[comm.rank])
                for name in NAMES if nodes == [0] * ranks else ("hierarchical", "auto"):
                    for n in (1, 2, ranks - 1, ranks, ranks + 1, 100, 1025, 10_007):
                        x = np.arange(n, dtype=np.float64) + there.rank
                        allreduce(x, x, there, algorithm=name)
                        expected = ranks * np.arange(n) + ranks * (ranks - 1) / 2
                        assert np.array_equal(x, expected), (name, ranks, nodes, n)
                there.Free()


def same_bits(world: Any) -> None:
    """Rounded sums are the same on all ranks to the last bit, and right to rounding; ours are repeatable."""
    for ranks in (2, 3, 4, 6):
        with first(world, ranks) as comm:
            if comm is None:
                continue
            for nodes in layouts(ranks):
                there = pretend_nodes(comm, nodes[comm.rank])
                for name in NAMES if nodes == [0] * ranks else ("hierarchical",):
                    for dtype in (np.float32, np.float16, np.complex64):
                        values = np.random.default_rng(1).standard_normal((ranks, 501)).astype(dtype)
                        digests = set()
                        for _ in range(2):
                            total = np.empty(501, dtype)
                            allreduce(values[comm.rank], total, there, algorithm=name)
                            digests |= set(there.allgather(hashlib.sha256(total.tobytes()).hexdigest()))
                        assert len(digests) == 1, (name, ranks, nodes, dtype)
                        wide = np.longdouble if dtype != np.complex64 else np.clongdouble
                        error = np.abs(total - values.astype(wide).sum(axis=0)).max()
                        assert error < 20 * ranks * np.finfo(dtype).eps, (name, ranks, dtype, error)
                there.Free()


def rank_order(world: Any) -> None:
    """naive adds in the order of the ranks: what a loop over them gives, to the bit; shared-memory as BLAS does."""
    values = np.random.default_rng(2).standard_normal((world.size, 9001)).astype(np.float32)
    expected = values[0].copy()
    for row in values[1:]:
        expected += row
    total = np.empty_like(expected)
    allreduce(values[world.rank], total, world, algorithm="naive")
    assert np.array_equal(total, expected)
    allreduce(values[world.rank], total, world, algorithm="shared-memory")
    bound = world.size * np.finfo(np.float32).eps * np.abs(values).sum(axis=0)
    assert (np.abs(total - expected) <= bound).all()


@patch.object(_buffers, "LONGEST", 50_000)
@patch.object(_cost, "LONGEST", 50_000)
def counted(world: Any) -> None:
    """Messages and bytes sent equal the formulas, on every rank, for uneven blocks and any nodes."""
    for ranks in range(1, world.size + 1):
        with first(world, ranks) as comm:
            if comm is None:
                continue
            for nodes in layouts(ranks):
                there = pretend_nodes(comm, nodes[comm.rank])
                for name in NAMES if nodes == [0] * ranks else ("hierarchical", "auto"):
                    for n in (0, 1, ranks - 1, ranks + 1, 1000, 60_001):
                        seen = Recorded(there)
                        allreduce(np.ones(n, np.float32), np.empty(n, np.float32), seen, algorithm=name)
                        theory = cost(name, n=n, p=ranks, r=there.rank, nodes=Nodes(tuple(nodes)))
                        where = (name, ranks, nodes, n, there.rank)
                        assert seen.counts.messages == theory.messages, (where, seen.counts, theory)
                        assert seen.counts.bytes == 4 * theory.sent, (where, seen.counts, theory)
                        if name != "native" and theory.messages:
                            used = seen.counts.collective.messages
                            assert used == 0 or name == "auto", (where, seen.counts)
                there.Free()


def beside_user_messages(world: Any) -> None:
    """The caller's wildcard receives and waiting messages are never confused with ours."""
    from mpi4py import MPI

    r, p = world.rank, world.size
    for name in NAMES:
        for n in (3, 20_000):
            early = world.Isend(np.full(n, 100.0 + r), dest=(r + 1) % p, tag=0)  # waits for us all the while
            user = np.empty(n)
            waiting = world.Irecv(user, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG)
            total = np.full(n, float(r))
            allreduce(total, total, world, algorithm=name)
            late = world.Isend(np.full(n, 200.0 + r), dest=(r + 1) % p, tag=5)
            waiting.Wait()
            assert (user == 100.0 + (r - 1) % p).all(), name
            world.Recv(user, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG)
            assert (user == 200.0 + (r - 1) % p).all(), name
            early.Wait()
            late.Wait()
            assert (total == p * (p - 1) / 2).all(), name


def ahead(world: Any) -> None:
    """Ranks that are a whole call ahead of others, one collective after the other, of differing sizes."""
    rng = np.random.default_rng(world.rank)
    for name in NAMES:
        for n in (1, 50, 40_000, 3):
            totals = []
            for call in range(3):
                if rng.random() < 0.3:
                    time.sleep(0.003)
                total = np.full(n + call, float(world.rank + 10 * call))
                allreduce(total, total, world, algorithm=name)
                totals.append(total)
            for call, total in enumerate(totals):
                p = world.size
                assert (total == p * (p - 1) / 2 + 10 * call * p).all(), (name, n, call)


def own_communicators(world: Any) -> None:
    """Duplicates, splits, reordered ranks, topologies, groups; a communicator of one; None."""
    from mpi4py import MPI

    made = {
        "dup": world.Dup(),
        "reversed": world.Split(0, -world.rank),
        "halves": world.Split(world.rank % 2, world.rank),
        "ring": world.Create_cart([world.size], periods=[True]),
        "group": world.Create_group(world.Get_group()),
    }
    for kind, comm in {**made, "self": MPI.COMM_SELF, "none": None}.items():
        members = [world.rank] if comm is None else comm.allgather(world.rank)
        for name in NAMES:
            total = np.full(5, world.rank)
            allreduce(total, total, comm, algorithm=name)
            assert (total == sum(members)).all(), (kind, name)
    for comm in made.values():
        comm.Free()


class Matrix(np.ndarray):
    """An array that stays two-dimensional when it is reshaped, like NumPy's own matrix."""

    def reshape(self, *shape: Any, **named: Any) -> Any:
        return np.atleast_2d(super().reshape(*shape, **named))


def prepared(world: Any) -> None:
    """A prepared call does the same again and again, with what is then in the arrays."""
    from paceline.names import find

    for name in NAMES:
        for dtype, order in ((np.float32, "C"), (np.float16, "C"), (np.float64, "F")):
            send, recv = np.ones((3, 5), dtype, order=order), np.zeros((3, 5), dtype)
            for target in (recv, send):
                call = find("collectives", name).prepare(send, target, world, np.add)
                for value in (1, 2, 3):
                    send[...] = value
                    call()
                    assert (target == value * world.size).all(), (name, dtype, order)
    total = np.array([[1.0, 2.0], [3.0, 4.0]]).view(Matrix)
    allreduce(total, total, world, algorithm="ring")
    assert total.tolist() == [[world.size, 2 * world.size], [3 * world.size, 4 * world.size]]


def freed(world: Any, times: int) -> dict[str, int]:
    """Communicators made, used and freed, more often than an MPI has numbers for them; nothing piles up."""

    def once(windows: bool) -> None:
        comm = world.Dup()
        there = pretend_nodes(comm, comm.rank)
        for name in ("ring", "shared-memory", "hierarchical", "native") if windows else ("ring",):
            x = np.ones(10)
            allreduce(x, x, there if name == "hierarchical" else comm, algorithm=name)
            assert (x == world.size).all()
        there.Free()
        comm.Free()

    for _ in range(10):
        once(windows=True)
    before = _open_files_and_mappings()
    for time_ in range(times):
        once(windows=time_ % 20 == 0)
    after = _open_files_and_mappings()
    return {"files": after[0] - before[0], "mappings": after[1] - before[1]}


def many_calls(world: Any, times: int) -> int:
    """Thousands of calls; returns by how many KiB the process grew."""
    x = np.ones(1000)
    for call in range(times + 200):
        if call == 200:
            before = _resident()
        allreduce(x, x, world, np.maximum, algorithm=NAMES[call % len(NAMES)])
    return _resident() - before


def _open_files_and_mappings() -> tuple[int, int]:
    own = Path("/proc/self")
    return len(list((own / "fd").iterdir())), len((own / "maps").read_text().splitlines())


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def left_open(world: Any) -> list[str]:
    """Uses everything, frees nothing; returns the files of shared memory that are mapped."""
    for name in NAMES:
        x = np.ones(10)
        allreduce(x, x, world, algorithm=name)
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    return [line[5].strip() for line in lines if len(line) == 6 and line[1] == "rw-s"]


def dies(world: Any) -> None:
    """One rank fails while the others wait for it, with windows open."""
    left_open(world)
    if world.rank == 1:
        raise RuntimeError("rank 1 has had enough")
    x = np.ones(10)
    allreduce(x, x, world, algorithm="ring")
