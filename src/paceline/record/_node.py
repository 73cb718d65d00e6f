"""Where the ranks of a run were: found out for its record, and read from it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from paceline.comm._processes import Processes
from paceline.errors import UsageError
from paceline.launch import machine_cores
from paceline.record._reader import Run


def nodes_of(comm: Any) -> dict[str, list[int]]:
    """The node of every rank, and the cores of every node, as a record has them. Collective.

    >>> nodes_of(None)["ranks"]
    [0]
    """
    size = 1 if comm is None else comm.Get_size()
    if size == 1 or isinstance(comm, Processes):
        return {"ranks": [0] * size, "cores": [machine_cores()]}
    from paceline.comm._mpi import mpi

    # A node is told by its first rank, and has the cores that this one sees.
    here = np.array([comm.Get_rank(), machine_cores()])
    node = comm.Split_type(mpi().COMM_TYPE_SHARED)
    node.Bcast(here, 0)
    node.Free()
    told = np.empty((size, 2), here.dtype)
    comm.Allgather(here, told)
    cores = {int(first): int(count) for first, count in told}
    numbers = {first: number for number, first in enumerate(cores)}
    return {"ranks": [numbers[int(first)] for first in told[:, 0]], "cores": list(cores.values())}


def layout(run: Run) -> tuple[int, ...]:
    """The node of each rank. Ranks of records that do not tell are together, or by their network.

    >>> class Old:
    ...     config, environment, simulated = {"ranks": 2}, {"cores": 2}, None
    >>> layout(Old)
    (0, 0)
    """
    if run.simulated is None and (told := run.environment.get("nodes")):
        return tuple(told["ranks"])
    on_node, _ = node_of(run)
    return tuple(rank // on_node for rank in range(run.config["ranks"]))


def node_of(run: Run) -> tuple[int, int | None]:
    """How many ranks share a node, and the cores that it has; None: enough. Of several nodes, of the fullest.

    Real ranks of which the record does not tell are taken to be on one node. Records of simulated ranks that do not
    tell either name a network, which does.
    """
    ranks, cores, told = run.config["ranks"], run.environment["cores"], run.simulated
    if told is None:
        if (known := run.environment.get("nodes")) is None:
            return ranks, cores
        here = Counter(known["ranks"])
        fullest = max(here, key=lambda node: here[node] / known["cores"][node])
        return here[fullest], known["cores"][fullest]
    if "node_cores" in told:
        return min(told["ranks_per_node"] or ranks, ranks), told["node_cores"]
    from paceline.sim.network import parse_network

    try:
        network = parse_network(str(told["network"]))
    except UsageError:  # the file of a machine that is no longer there: all ranks are on it
        return ranks, cores
    return min(network.ranks_per_node or ranks, ranks), network.node_cores(cores)
