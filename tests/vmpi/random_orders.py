"""A program whose outcome depends on who is first at the same time: run as a script it tells the outcome as JSON."""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import numpy as np

from paceline import vmpi
from tests.vmpi.players import play


def first_come(comm: Any) -> list[int]:
    """Rank 0 is sent a message by each of the others, all at the same time, and takes them as they come."""
    room, found = np.zeros(1, np.int64), []
    if comm.rank:
        comm.Send(np.array([comm.rank]), 0)
        return []
    for _ in range(comm.size - 1):
        comm.Recv(room)
        found.append(int(room[0]))
    return found


def mixed(comm: Any) -> Any:
    """Wildcards, hashes of sets and of text: what may differ between processes."""
    parts = {f"part {number}" for number in range(20)}
    comm.Compute(1e-6 * (comm.rank % 3))
    order = first_come(comm)
    total = np.zeros(5)
    comm.Allreduce(np.random.default_rng(comm.rank).normal(size=5), total)
    got = play(comm, seeds=[3])
    return [order, sorted(parts)[:2], total.tobytes().hex(), got, comm.Wtime()]


def outcome(seed: int, network: str) -> str:
    found = vmpi.run(mixed, ranks=9, network=network, seed=seed)
    told = repr((found.values, found.clocks, found.messages, found.bytes))
    return hashlib.sha256(told.encode()).hexdigest()


if __name__ == "__main__":
    network = sys.argv[1]
    print(json.dumps([outcome(seed, network) for seed in range(4)]))
