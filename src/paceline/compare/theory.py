"""The facts that a record holds about its strategy: which ranks compute, how the work grows, and the expected traffic.

Built-in strategies are asked themselves. A strategy of the user's own is never imported from a record, which is data and
not code: what it declared is in its runs' records (`strategy_facts`, `expected_traffic`), and what is missing there is
inferred from the steps that were logged.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.collectives import Nodes
from paceline.record import Run
from paceline.record.environment import layout
from paceline.strategies import Facts, Load, Traffic, passes_of
from paceline.strategies import epoch_samples as samples_of
from paceline.training.job import find_built_in

# Formulas are evaluated rank by rank, which takes too long above this many ranks.
MOST = 1024


def facts_of(run: Run) -> Facts:
    """Return the facts about the strategy of a run."""
    c = run.config
    strategy = find_built_in(str(c["strategy"]))
    if strategy is not None:
        return Facts.of(strategy, ranks=c["ranks"], update=str(c.get("update", "sgd")))
    return Facts.read(c.get("strategy_facts"), ranks=c["ranks"]) or _infer_facts(run)


def workers(strategy: str, ranks: int) -> int:
    """Return the number of ranks that compute gradients, for the text of a built-in strategy; for others, all.

    >>> workers("sync", 4), workers("my_module:Mine", 4)
    (4, 4)
    """
    found = find_built_in(strategy)
    return ranks if found is None else found.workers(ranks)


def _infer_facts(run: Run) -> Facts:
    """Infer the facts of a strategy that declared none: which ranks log steps, and of how many samples."""
    ranks, rank, count = run.config["ranks"], run.steps["rank"], run.steps["count"]
    workers, whole = ranks, False
    if ranks > 1 and (count > 0).any():
        workers = len(np.unique(rank))
        whole = bool(np.median(count[count > 0]) >= run.summary["global_batch"])
    return Facts(workers=workers, whole_batches=whole, in_step="staleness" not in run.summary["findings"])


def epoch_samples(run: Run) -> int | None:
    """Return the samples that ONE process uses in an epoch: the same for all runs of a problem."""
    return samples_of(run.config, run.summary)


def epochs_of(run: Run) -> float:
    """Return the number of passes that all ranks together made: the run's epochs, unless it was stopped early."""
    return passes_of(run.config, run.summary)


def work_grows(run: Run) -> bool:
    """Return True if the work between two exchanges grows with the ranks: weak scaling.

    That is so where ranks share a batch of a fixed number of samples per rank, and where all come to an average with
    whole batches of their own. Otherwise it is strong scaling: the ranks share a batch of a fixed size, or every batch
    is an update of its own, or there is one average at the end of the same work.
    """
    facts = facts_of(run)
    if not facts.whole_batches:
        return run.config["batch_per_rank"] is not None
    return facts.in_step and facts.interval is not None


def theory_of(run: Run) -> Traffic:
    """Return the expected traffic of the run, by its strategy's formula."""
    c, s = run.config, run.summary
    if c["ranks"] == 1:
        return Traffic(bytes=0, messages=0, words="nothing: one rank")
    if s.get("diverged"):
        return Traffic.unknown("it was stopped")
    if c["ranks"] > MOST:
        return Traffic.unknown(f"not worked out above {MOST:,} ranks")
    if (run.simulated or {}).get("faults"):
        return Traffic.unknown("ranks failed")
    strategy = find_built_in(str(c["strategy"]))
    if strategy is not None:
        return strategy.traffic(Load.of(c, s, Nodes(layout(run))))
    return _read_traffic(s.get("expected_traffic"))


def _read_traffic(values: Any) -> Traffic:
    """Read the expected traffic of a user's own strategy from its record."""
    given = values if isinstance(values, dict) else {}
    known = {name: given.get(name) for name in ("bytes", "messages")}
    if not isinstance(given.get("words"), str) or not all(
        value is None or (isinstance(value, int | float) and value >= 0) for value in known.values()
    ):
        return Traffic.unknown("the strategy declares no formula")
    return Traffic(**known, words=given["words"])
