"""Where the ranks of a run were, as far as its record tells."""

from __future__ import annotations

from paceline.errors import UsageError
from paceline.record._reader import Run


def node_of(run: Run) -> tuple[int, int | None]:
    """How many ranks share a node, and the cores that it has; None: enough. Real ranks are taken to be on one node.

    Records of simulated ranks that do not tell either name a network, which does.
    """
    ranks, cores, told = run.config["ranks"], run.environment["cores"], run.simulated
    if told is None:
        return ranks, cores
    if "node_cores" in told:
        return min(told["ranks_per_node"] or ranks, ranks), told["node_cores"]
    from paceline.sim.network import parse_network

    try:
        network = parse_network(str(told["network"]))
    except UsageError:  # the file of a machine that is no longer there: all ranks are on it
        return ranks, cores
    return min(network.ranks_per_node or ranks, ranks), network.node_cores(cores)
