"""Somebody else's main.py: stands beside the five modules and a network.py, trains, and writes down what came out.

mpiexec -n 4 python program.py '{"module": "sync_network", …}'
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
from network import NeuralNetwork

from paceline.launch import world


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    kind = rng.integers(0, 3, 120)
    return rng.normal(size=(120, 12)) + 2 * np.eye(12)[kind], np.eye(3)[kind]


def main() -> None:
    asked = json.loads(sys.argv[1])
    here = world()
    rank = 0 if here is None else here.rank
    if asked.get("started"):  # by somebody else, and too early
        from mpi4py import MPI
    NeuralNetwork.seed = 0 if asked.get("same_seed") else rank  # type: ignore[attr-defined]
    NeuralNetwork.in_order = bool(asked.get("in_order"))  # type: ignore[attr-defined]
    module = importlib.import_module(asked["module"])
    from mpi4py import MPI

    more = {"number_of_masters": asked["masters"]} if "masters" in asked else {}
    kind = module.AsynchronicNeuralNetwork if more else module.SynchronicNeuralNetwork
    network = kind(
        asked["sizes"], 0.05, asked["batch"], asked["batches"], asked["epochs"], matmul=np.matmul, **more
    )
    assert MPI.Is_initialized() is bool(asked.get("started"))
    if "rule" in asked:
        network.rule = asked["rule"]
    if asked.get("fails") == rank:
        network.back_prop = lambda y: 1 / 0
    if asked.get("leaves") == rank:
        network.back_prop = lambda y: sys.exit(3)
    if asked.get("rows"):  # the gradients of columns
        columns = network.back_prop

        def rows(y: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
            nabla_b, nabla_w = columns(y)
            return [b.T for b in nabla_b], nabla_w

        network.back_prop = rows
    network.fit(data(), data())
    assert MPI.Is_finalized() is not bool(asked.get("started"))  # it ends what it has begun
    assert network.number_of_batches == asked["batches"]
    if rank == 0:
        print(f"in the end: {network.validate(data())}", flush=True)
    if asked.get("again"):
        network.fit(data())
    np.savez(
        Path(asked["out"]) / f"{rank}.npz",
        **{f"w{i}": w for i, w in enumerate(network.weights)},
        **{f"b{i}": b for i, b in enumerate(network.biases)},
        x=np.array([x for x, _ in network.given]),
        y=np.array([y for _, y in network.given]),
    )


if __name__ == "__main__":
    main()
