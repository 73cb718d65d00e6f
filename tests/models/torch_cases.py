"""Cases that run on real MPI ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from paceline.data import piece
from paceline.models import cnn
from tests.models.torch_zoo import batch


def cnn_in_a_shared_window(comm: Any, samples: int, steps: int) -> dict[str, float]:
    """Every rank's gradient is born in one window, and all share one x; compared with a process alone."""
    from mpi4py import MPI

    data: Any = SimpleNamespace(name="noise", shape=(28, 28), classes=10)
    together, alone = (cnn.build(data, seed=2, dtype="float64") for _ in range(2))
    size, real = alone.x.size, alone.x.itemsize
    window = MPI.Win.Allocate_shared(
        (size * (comm.size + 1) if comm.rank == 0 else 0) * real, real, comm=comm
    )
    rows = np.frombuffer(window.Shared_query(0)[0], alone.x.dtype).reshape(comm.size + 1, size)
    together.place(rows[-1], rows[comm.rank])
    comm.Barrier()
    draw = np.random.default_rng(0)
    inputs, labels = draw.random((samples, 28, 28)), draw.integers(0, 10, samples)
    start, stop = piece(samples, comm.rank, comm.size)
    apart = 0.0
    for step in range(steps):
        mine = batch(inputs[start:stop], labels[start:stop], step=step, offset=start, total=samples)
        loss = comm.allreduce(together.gradient(mine))
        expected = alone.gradient(batch(inputs, labels, step=step))
        comm.Barrier()
        summed = rows[:-1].sum(axis=0)
        apart = max(apart, abs(loss - expected), float(np.abs(summed - alone.g).max()))
        comm.Barrier()
        if comm.rank == 0:
            rows[-1] -= 0.1 * summed / samples
        alone.x -= 0.1 * alone.g / samples
        comm.Barrier()
    weights = together.module.linear2.weight.detach().numpy()
    answer = {
        "apart": apart,
        "x_apart": float(np.abs(rows[-1] - alone.x).max()),
        "weights_apart": float(np.abs(weights - alone.module.linear2.weight.detach().numpy()).max()),
    }
    together.place(alone.x.copy(), alone.g.copy())  # the window's memory goes away, and nobody may look at it
    del rows
    window.Free()
    together.predict(inputs)
    return answer
