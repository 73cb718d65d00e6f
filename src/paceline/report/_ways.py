"""What the spelling of a strategy says of its ranks: how many compute, and how much between two exchanges."""

from __future__ import annotations

from paceline.job import strategy_in
from paceline.record import Run


def workers(strategy: str, ranks: int) -> int:
    """How many of the ranks compute gradients.

    >>> workers("parameter-server:masters=4", 16), workers("main-worker", 4), workers("sync", 4)
    (12, 3, 4)
    """
    name = strategy.partition(":")[0]
    if name == "main-worker":
        return ranks - 1
    found = strategy_in(strategy) if name == "parameter-server" else None
    return ranks - getattr(found, "masters", 0)


def grows(run: Run) -> bool:
    """Whether more is computed between two exchanges the more ranks there are: weak scaling.

    So it is with a batch for each rank, and with strategies whose ranks compute whole batches. Else the ranks share the
    work of one batch: strong scaling.
    """
    whole = getattr(strategy_in(run.config["strategy"]), "whole_batches", False)
    return run.config["batch_per_rank"] is not None or whole
