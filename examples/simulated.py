"""The simulator: an MPI program on 512 ranks, a program that survives the death of a rank, and training on a cluster.

    python examples/simulated.py

All simulated ranks are in this process. Only the last part needs MPI, and only once: the cost of computing is measured on
all cores of this machine, and stored.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import paceline
from paceline import vmpi
from paceline.vmpi.faults import fail_at


def halo(comm: Any) -> float:
    """Run ten steps of a stencil: compute, exchange edges with both neighbours, and every fifth step sum over all ranks."""
    rank, size = comm.Get_rank(), comm.Get_size()
    left, right = (rank - 1) % size, (rank + 1) % size
    edge, here, there, total = np.zeros(8192), np.empty(8192), np.empty(8192), np.empty(1)
    for step in range(10):
        comm.Compute(200e-6)  # the measured time of a step
        requests = [
            comm.Irecv(here, left),
            comm.Irecv(there, right),
            comm.Isend(edge, left),
            comm.Isend(edge, right),
        ]
        type(requests[0]).Waitall(requests)
        if step % 5 == 4:
            comm.Allreduce(np.ones(1), total)
    return float(total[0])


def survivors(comm: Any) -> float:
    """Sum over all ranks; when one dies, go on without it, as with Open MPI's ULFM."""
    from mpi4py import MPI  # inside the simulator, this is the simulator's MPI

    total = np.zeros(1)
    for _ in range(5):
        comm.Step()
        comm.Compute(1e-3)
        try:
            comm.Allreduce(np.ones(1), total)
        except MPI.Exception as error:
            if error.Get_error_class() not in (MPI.ERR_PROC_FAILED, MPI.ERR_REVOKED):
                raise
            comm.Revoke()
            comm = comm.Shrink()
            comm.Allreduce(np.ones(1), total)
    return float(total[0])


def main() -> None:
    print("ten steps of a stencil, ms")
    for network in ("1gbe:ranks-per-node=16", "10gbe:ranks-per-node=16", "infiniband:ranks-per-node=16"):
        outcome = vmpi.run(halo, ranks=512, network=network)
        print(f"  {network:30}{1e3 * outcome.seconds:8.2f}   {outcome.messages:,} messages")

    outcome = vmpi.run(survivors, ranks=8, faults=[fail_at(rank=3, step=2)])
    print(f"\nrank 3 of 8 dies; the {outcome.values[0]:.0f} others go on")

    print("\nmnist on 16 nodes with 10 Gbit Ethernet, one epoch")
    for strategy in ("sync", "parameter-server:masters=4,placement=even", "local-sgd:every=50"):
        fitted = paceline.fit(
            strategy=strategy, on="sim", ranks=16, network="10gbe", epochs=1, batch=64, runs=None, quiet=True
        )
        print(f"  {strategy:44}{fitted.train_seconds:7.2f} s  {100 * (fitted.test_accuracy or 0):.2f} %")


if __name__ == "__main__":
    main()
