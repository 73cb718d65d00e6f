"""What a strategy sends in a run, by the formulas of its page: messages and bytes of all ranks together.

n parameters, p ranks, T turns (batches of each rank's own part), H steps between averages:

    sync               the collective's own, at every batch; in shared memory nothing
    main-worker        2 (p - 1) messages at every batch: n + 1 numbers there, n back
    weight-average     an allreduce of n + 1 numbers at every turn
    local-sgd          the same every H turns, and at every turn of a warm-up;    elastic: every H turns
    psgd               one such allreduce in the whole run
    parameter-server   2 n numbers a gradient, a header a master, and which batch is next
    hogwild            nothing, on one node
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from paceline.collectives import Case, Cost, Nodes, cost, cut, has_cost, length
from paceline.collectives.auto import choose
from paceline.collectives.hierarchical import between_nodes
from paceline.comm.shared import CACHE_LINE
from paceline.record import Run
from paceline.record.environment import layout
from paceline.training.job import strategy_in

# ---- What the spelling of a strategy says of its ranks: how many compute, and how much between two exchanges.


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


# The formulas go rank by rank: above so many ranks that takes too long.
MOST = 1024
HEADER, ORDER, NUMBER = 40, 16, 8
# Numbers that all p ranks together send in a call, for each number of the array.
FORMULAS = {"naive": "p (p - 1)", "ring": "2 (p - 1)", "rabenseifner": "2 (p - 1)", "native": "p"}


@dataclass(frozen=True, kw_only=True)
class Theory:
    """Of a whole run, all ranks together; None: there is no formula.

    `words` say which, with what it comes to in an epoch (`epochs_of`), or why there is none.
    """

    bytes: float | None
    messages: float | None
    words: str


def theory_of(run: Run) -> Theory:
    """What the run should have sent."""
    c, s = run.config, run.summary
    strategy: Any = strategy_in(c["strategy"])
    p, name = c["ranks"], c["strategy"].partition(":")[0]
    if p == 1:
        return Theory(bytes=0, messages=0, words="nothing: one rank")
    if s.get("diverged"):
        return _none("it was stopped")
    if p > MOST:
        return _none(f"not worked out above {MOST:,} ranks")
    if (run.simulated or {}).get("faults"):
        return _none("ranks failed")
    layout = layout_of(run)
    n, item, steps = s["parameters"], np.dtype(c["dtype"]).itemsize, s["steps"]
    if name == "sync" and strategy is not None:
        name = exchange_of(strategy.allreduce, layout)
        by = spelled(name, n * item, p, layout)
        words = _words(run, steps, p, "n", by, "at every batch")
        return _called(exchanged(name, n, p, item, layout), steps, item, words)
    if name == "main-worker":
        sent = (p - 1) * (2 * n + 1) * item * steps
        words = f"{_often(run, steps)} x (p - 1) (2 n + 1): at every batch"
        return Theory(bytes=sent, messages=2 * (p - 1) * steps, words=words)
    if name in ("weight-average", "local-sgd", "elastic", "psgd") and strategy is not None:
        each = summed(strategy.allreduce, n + 1, p, item, layout)
        by = spelled(strategy.allreduce, (n + 1) * item, p, layout)
        calls = averages(name, strategy, turns_of(run), warm=getattr(strategy, "warmup", 0))
        return _called(each, calls, item, _words(run, calls, p, "(n + 1)", by, _when(name, strategy)))
    if name == "parameter-server" and strategy is not None:
        return _served(run, strategy, n * item)
    if name == "hogwild":
        if layout.count == 1:
            return Theory(bytes=0, messages=0, words="nothing: one x in shared memory")
        return _none("several nodes")
    if name == "gossip":
        return _none("which messages are put off depends on the times")
    return _none("no formula is known of it")


def layout_of(run: Run) -> Nodes:
    """Which rank was on which node."""
    return Nodes(layout(run))


def turns_of(run: Run) -> int:
    """Batches of the rank that has most, in the whole run, where every rank has its own part of the data."""
    c, p = run.config, run.config["ranks"]
    if c["draws"] is not None:
        return int(c["epochs"] * -(-c["draws"] // p))
    most = -(-c["samples"] // p)
    return int(c["epochs"] * -(-most // run.summary["global_batch"]))


def averages(name: str, strategy: Any, turns: int, warm: int = 0) -> int:
    """Allreduces in so many turns.

    >>> from paceline.strategies.local_sgd import LocalSgd
    >>> averages("local-sgd", LocalSgd(every=4, warmup=3), turns=10, warm=3)
    5
    """
    if name == "weight-average":
        return turns
    if name == "psgd":
        return min(turns, 1)
    warm = min(warm, turns)
    every = strategy.every or turns
    return warm + (-(-(turns - warm) // every) if turns > warm else 0)


def exchange_of(name: str, layout: Nodes) -> str:
    """What a synchronous run does where `auto` is asked for."""
    if name != "auto":
        return "shared-memory" if name == "hierarchical" and layout.count == 1 else name
    return "shared-memory" if layout.count == 1 else "hierarchical" if layout.largest > 1 else "auto"


def spelled(name: str, nbytes: int, p: int, layout: Nodes) -> str:
    """The collective that `auto` chooses for so many bytes, or the one named."""
    if name != "auto":
        return name
    return choose(nbytes, p, layout).__name__.rpartition(".")[2].replace("_", "-")


@lru_cache(maxsize=256)
def summed(name: str, n: int, p: int, item: int, layout: Nodes) -> tuple[int, int] | None:
    """Messages and numbers that all ranks send in one allreduce of n numbers; None where there is no formula."""
    if not has_cost(name):
        return None
    return _total([cost(name, n=n, p=p, r=r, itemsize=item, nodes=layout) for r in range(p)])


@lru_cache(maxsize=256)
def exchanged(name: str, n: int, p: int, item: int, layout: Nodes) -> tuple[int, int] | None:
    """The same of one exchange of a synchronous run, where nothing is sent inside a node."""
    if name not in ("shared-memory", "hierarchical"):
        return summed(name, n, p, item, layout)
    if layout.count == 1:
        return 0, 0
    parts = [length(part) for part in cut(n, layout.smallest, align=CACHE_LINE // item)]
    found = []
    for rank in range(p):
        place, among = layout.place(rank), layout.peers(rank)
        if place < len(parts) and parts[place]:
            case = Case(n=parts[place], p=len(among), r=among.index(rank), itemsize=item)
            found.append(between_nodes(case.n * item, case.p).cost(case))
    return _total(found)


def _total(costs: list[Cost]) -> tuple[int, int]:
    return sum(each.messages for each in costs), sum(each.sent for each in costs)


def _called(each: tuple[int, int] | None, calls: int, item: int, words: str) -> Theory:
    """So many calls of one collective."""
    if each is None:
        return _none("the collective has no formula")
    return Theory(bytes=each[1] * item * calls, messages=each[0] * calls, words=words)


def _words(run: Run, calls: int, p: int, array: str, name: str, when: str) -> str:
    """The formula of so many calls of a collective: how many in an epoch, the numbers of one, its name, and when."""
    if name == "shared-memory":
        return "nothing: the ranks share memory"
    q = 1 << (p.bit_length() - 1)
    known = {
        **FORMULAS,
        "recursive-doubling": "p log2(p)" if p == q else f"({q} log2({q}) + 2 (p - {q}))",
    }
    parts = f"parts of {array}, between nodes alone" if name == "hierarchical" else f"its own of {array}"
    sent = f"{known[name]} {array}" if name in known else parts
    handed = ", as handed to MPI" if name == "native" else ""
    return f"{_often(run, calls)} x {sent}: {name}, {when}{handed}"


def _when(name: str, strategy: Any) -> str:
    """When parameters are averaged."""
    every, warm = getattr(strategy, "every", 1), getattr(strategy, "warmup", 0)
    if name == "psgd" or every is None:
        often = "once in the run"
    else:
        often = "at every turn" if every == 1 else f"every {every} turns"
    return often + (f", and at each of the first {warm}" if warm and every != 1 else "")


def _often(run: Run, calls: int) -> str:
    """How often in an epoch something is that is so often in a run."""
    times = calls / epochs_of(run)
    return f"{round(times):,}" if abs(times - round(times)) < 1e-9 else f"{times:,.3f}".rstrip("0")


def _served(run: Run, strategy: Any, x: int) -> Theory:
    """Gradients, values, headers and which batch is next; at every epoch's end, and at last, the other masters' pieces."""
    c, s = run.config, run.summary
    masters, batches = strategy.masters, s["steps"]
    workers = c["ranks"] - masters
    sent = batches * (2 * x + masters * HEADER + NUMBER) + workers * masters * HEADER + (masters - 1) * ORDER
    parts = ", and the other masters' parts at every epoch's end" if masters > 1 else ""
    words = f"{_often(run, batches)} x 2 n: at every gradient, with headers{parts}"
    pieces = ((s.get("findings") or {}).get("staleness") or {}).get("pieces")
    if not pieces:
        return Theory(bytes=sent, messages=None, words=words)
    theirs = [piece for piece in pieces if piece["master"] != 0]
    item = x // s["parameters"]
    sent += (c["epochs"] + 1) * item * sum(piece["parameters"] for piece in theirs)
    messages = batches * (2 * len(pieces) + masters + 1) + workers * (masters + len(pieces))
    messages += (c["epochs"] + 1) * len(theirs) + masters - 1
    return Theory(bytes=sent, messages=messages, words=words)


def _none(why: str) -> Theory:
    return Theory(bytes=None, messages=None, words=f"none: {why}")
