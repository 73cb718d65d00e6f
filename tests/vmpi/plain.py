"""A program as people write them for mpi4py: nothing in it knows of a simulator."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI
from mpi4py.MPI import Status, Win

comm = MPI.COMM_WORLD


def main() -> list[object]:
    rank, size = comm.Get_rank(), comm.Get_size()
    right, left = (rank + 1) % size, (rank - 1) % size

    # a halo exchange
    field = np.full(6, float(rank))
    edges = np.zeros(2)
    requests = [
        comm.Irecv(edges[:1], source=left, tag=1),
        comm.Irecv([edges[1:], 1, MPI.DOUBLE], source=right, tag=2),
        comm.Isend([field[-1:], MPI.DOUBLE], dest=right, tag=1),
        comm.Isend(field[:1], dest=left, tag=2),
    ]
    MPI.Request.Waitall(requests)

    # work that is handed out to whoever asks
    done = []
    if rank == 0:
        status = Status()
        left_over, busy = list(range(2 * size)), size - 1
        while busy:
            result = np.zeros(1, dtype="i")
            comm.Recv([result, MPI.INT], source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
            assert status.Get_count(MPI.INT) == 1
            if status.Get_tag() == 7:
                done.append(int(result[0]))
            if left_over:
                comm.send(left_over.pop(), dest=status.Get_source(), tag=5)
            else:
                comm.send(None, dest=status.Get_source(), tag=5)
                busy -= 1
    else:
        comm.Send(np.zeros(1, dtype="i"), dest=0, tag=6)
        while (task := comm.recv(source=0, tag=5)) is not None:
            comm.Send(np.array([task**2], dtype="i"), dest=0, tag=7)

    # sums
    total = np.empty(3)
    comm.Allreduce(np.arange(3.0) + rank, total, op=MPI.SUM)
    comm.Allreduce(MPI.IN_PLACE, total, op=MPI.MAX)
    largest = comm.allreduce((rank * 7 % 5, rank), op=MPI.MAXLOC)
    names = comm.gather(f"rank {rank}", root=0)

    # memory of all ranks of a node
    node = comm.Split_type(MPI.COMM_TYPE_SHARED, rank)
    window = Win.Allocate_shared(8 * node.Get_size() if node.Get_rank() == 0 else 0, 8, comm=node)
    memory, unit = window.Shared_query(0)
    shared = np.ndarray(buffer=memory, dtype="d", shape=(node.Get_size(),))
    shared[node.Get_rank()] = rank**2
    window.Fence()
    seen = shared.tolist()
    window.Fence()
    window.Free()
    odd = comm.Split(rank % 2 if rank else MPI.UNDEFINED, key=-rank)
    place = odd.Get_rank() if odd != MPI.COMM_NULL else None
    assert MPI.Wtime() >= 0
    return [edges.tolist(), sorted(done), total.tolist(), largest, names, seen, unit, place]


def case(_: object) -> list[object]:
    return main()
