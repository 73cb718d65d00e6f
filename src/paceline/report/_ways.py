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


def epoch_samples(run: Run) -> int | None:
    """Samples that ONE process computes in an epoch: the same for all runs of a problem, whatever their strategy and ranks.

    With --draws and --batch-per-rank an epoch of several ranks that share a batch has more. None: records of before.
    """
    c = run.config
    if c["draws"] is None:
        return c.get("samples")
    return int(c["draws"] * (c["batch_per_rank"] or c["batch"] or run.summary["global_batch"]))


def epochs_of(run: Run) -> float:
    """How many times that was computed in the run, by all ranks together: its epochs, unless it was stopped."""
    rate, samples = run.summary.get("samples_per_second"), epoch_samples(run)
    if not rate or not samples:
        return float(run.config["epochs"] or 1)
    return round(rate * run.summary["train_seconds"]) / samples or 1.0


def grows(run: Run) -> bool:
    """Whether more is computed between two exchanges the more ranks there are: weak scaling.

    So it is where ranks share a batch of so many samples for each of them, and where all come to an average with whole
    batches of their own. Else it is strong scaling: the ranks share a batch that is always the same; or every batch is an
    update of its own, and their number stays what it is; or there is one average, at the end of the same work.
    """
    strategy = strategy_in(run.config["strategy"])
    if not getattr(strategy, "whole_batches", False):
        return run.config["batch_per_rank"] is not None
    return bool(getattr(strategy, "in_step", True)) and getattr(strategy, "every", 1) is not None
