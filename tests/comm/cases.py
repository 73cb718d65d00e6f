"""What the communicators' tests do on each rank."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from paceline.collectives import allreduce
from paceline.comm import Recorded, channel, pretend_nodes
from paceline.comm.control import Control, agree, check_same
from paceline.comm.shared import PAGEMAP, make_common_file
from paceline.errors import AgreedError, UsageError


def recorded(world: Any) -> None:
    """A counting communicator is used like mpi4py's own."""
    from mpi4py import MPI

    comm = Recorded(world)
    r, p = comm.rank, comm.Get_size()
    inbox = np.empty(3)
    requests = [
        comm.Irecv(inbox, source=(r - 1) % p),
        comm.Isend([np.full(3, float(r)), MPI.DOUBLE], dest=(r + 1) % p),
    ]
    type(requests[0]).Waitall(requests)
    comm.Send(np.zeros(8, np.uint8), dest=MPI.PROC_NULL)
    assert (comm.counts.messages, comm.counts.bytes) == (1, 24)

    comm.counts.clear()
    total = np.ones(5)
    comm.Allreduce(MPI.IN_PLACE, total)
    comm.Bcast([total, MPI.DOUBLE], root=1)
    comm.Barrier()
    assert (total == p).all()
    assert comm.counts.collective.messages == 3
    assert comm.counts.collective.bytes == (80 if r == 1 else 40)

    comm.counts.clear()
    sent, summed = np.ones(4, np.float32), np.empty(4, np.float32)
    comm.Allreduce(sendbuf=sent, recvbuf=summed, op=MPI.SUM)
    comm.Bcast(buf=summed, root=0)
    request = comm.Isend(buf=sent, dest=(r + 1) % p)
    comm.Recv(buf=summed, source=(r - 1) % p)
    request.Wait()
    comm.Sendrecv(sendbuf=sent, dest=(r + 1) % p, recvbuf=summed, source=(r - 1) % p)
    assert (summed == 1).all()
    assert comm.counts.collective.bytes == (32 if r == 0 else 16)
    assert (comm.counts.point_to_point.messages, comm.counts.point_to_point.bytes) == (2, 32)

    comm.counts.clear()
    half = comm.Split(r % 2, r)
    node = half.Split_type(MPI.COMM_TYPE_SHARED)
    again = node.Dup()
    total = np.ones(2)
    allreduce(total, total, again, algorithm="naive")
    others = again.Get_size() - 1
    assert (comm.counts.messages, comm.counts.bytes) == (others, 16 * others)
    for made in (again, node, half):
        made.Free()
    assert not half
    assert comm == world
    assert comm.Split(MPI.UNDEFINED) == MPI.COMM_NULL
    assert "Recorded" in repr(comm)


def channels(world: Any) -> None:
    """One channel for a communicator, however it is seen; another for its duplicates."""
    own = channel(world)
    assert channel(world) is own
    assert channel(own) is own
    dup = world.Dup()
    assert channel(dup) is not own
    dup.Free()

    one, two = Recorded(world), Recorded(world)
    for seen in (one, two, one):
        allreduce(np.ones(1), np.ones(1), seen, algorithm="naive")
    assert (one.counts.messages, two.counts.messages) == (2 * (world.size - 1), world.size - 1)
    assert channel(one).bare == own.bare

    scratch = own.scratch(100, np.float32)
    assert np.shares_memory(scratch, own.scratch(10, np.int8))
    assert not np.shares_memory(scratch, own.scratch((64 << 20) + 1, np.int8))

    assert own.node.size == world.size
    apart = pretend_nodes(world, world.rank)
    assert channel(apart).node.size == 1
    seen = Recorded(apart)
    assert channel(seen).node.size == 1
    apart.Free()


def shared(world: Any) -> None:
    """Memory that all ranks write and read, at a cache line; it is grown, and given back."""
    own = channel(world)
    for nbytes in (10, 1000, 500):
        memory = own.shared(nbytes)
        assert memory.memory.size >= nbytes
        assert memory.memory.ctypes.data % 64 == 0
        memory.fence()
        memory.memory[world.rank] = world.rank + 1
        memory.fence()
        assert memory.memory[: world.size].tolist() == list(range(1, world.size + 1))
    assert own.shared(500) is own.shared(1000)
    for nbytes in (100, 3 * mmap.PAGESIZE + 100):
        common_file(world, nbytes)
    refused_file(world)


def common_file(world: Any, nbytes: int) -> None:
    """What one rank writes to its own view is its own, and is found; what all ranks write in common is seen."""
    file = make_common_file(world, nbytes)
    assert (file is None) == (not Path(PAGEMAP).exists())
    if file is None:
        return
    r, last = world.rank, (nbytes - 1) // mmap.PAGESIZE
    file.memory[100 * r] = r + 1
    world.Barrier()
    assert file.own[: 100 * world.size : 100].tolist() == list(range(1, world.size + 1))
    assert file.find_changes() == []
    file.own[nbytes - 1] = 7 + r
    pages = [slice(last * mmap.PAGESIZE, (last + 1) * mmap.PAGESIZE)]
    if nbytes > mmap.PAGESIZE:
        file.own[mmap.PAGESIZE] = 1
        pages.insert(0, slice(mmap.PAGESIZE, 2 * mmap.PAGESIZE))
    world.Barrier()
    assert file.find_changes() == pages
    assert file.own[nbytes - 1] == 7 + r
    assert file.memory[nbytes - 1] == 0
    file.forget_changes(pages)
    assert file.find_changes() == []
    assert file.own[nbytes - 1] == 0
    file.free()


def refused_file(world: Any) -> None:
    """If one rank's system cannot do it, none does, and nothing stays open."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    with mock.patch("paceline.comm.shared.PAGEMAP", PAGEMAP if world.rank else "/proc/self/no-such-file"):
        assert make_common_file(world, 100) is None
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def control(world: Any) -> dict[str, Any]:
    """What is said between ranks beside training: who, how much, and refusals that all ranks raise alike."""
    own, r = Control(world), world.rank
    gathered = own.gather(np.full((r, 2), float(r)))
    found = {
        "shapes": [rows.shape for rows in gathered],
        "values": [rows.tolist() for rows in gathered],
        "everyones": own.allgather(np.array([r])).tolist(),
        "nobody": own.vote(False),
        "some": own.vote(r > 0),
        "all": own.vote(True),
    }

    def refuse() -> None:
        if r > 0:
            raise UsageError(f"rank {r} would not")

    for name, work in {
        "refused": lambda: agree(world, refuse),
        "different": lambda: check_same(world, {"epochs": 3, "batch": 16 if r < 2 else 32}),
        "equal": lambda: check_same(world, {"epochs": 3, "lr": 1 if r < 2 else 1.0}),
    }.items():
        try:
            work()
        except AgreedError as error:
            found[name] = str(error)
    found["agreed"] = agree(world, lambda: r * 10)
    check_same(world, {"epochs": 3})
    own.close()
    return found
