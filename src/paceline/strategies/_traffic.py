"""The base of strategies that average their ranks' models, and the traffic of a strategy's collectives."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, ClassVar, TypeGuard

from paceline.collectives import Case, Cost, Nodes, cost, cut, has_cost, length
from paceline.collectives.auto import choose, name_of
from paceline.collectives.hierarchical import between_nodes
from paceline.comm.shared import CACHE_LINE
from paceline.data import check_own
from paceline.strategies import Load, Strategy, Traffic

# The numbers that all p ranks together send in one call, per element of the array.
FORMULAS = {"naive": "p (p - 1)", "ring": "2 (p - 1)", "rabenseifner": "2 (p - 1)", "native": "p"}


def allreduce_traffic(load: Load, collective: str, *, calls: int, when: str) -> Traffic:
    """Return the traffic of `calls` allreduces of all parameters plus one number (a count of ranks).

    >>> from paceline.strategies import Load
    >>> allreduce_traffic(Load(ranks=2, parameters=9), "ring", calls=3, when="every turn")
    Traffic(bytes=240, messages=12, words='3 x 2 (p - 1) (n + 1): ring, every turn')
    """
    n = load.parameters + 1
    each = _of_allreduce(collective, n, load.ranks, load.itemsize, load.nodes)
    name = _choose(collective, n * load.itemsize, load)
    return _traffic_of_calls(load, each, calls, _words(load, calls, "(n + 1)", name, when))


def exchange_traffic(load: Load, collective: str, *, calls: int, when: str, planned: bool = False) -> Traffic:
    """Return the traffic of `calls` gradient exchanges; inside a node they use shared memory if they can.

    `planned`: gradients are sent in buckets or compressed; what is sent in one exchange is in the findings of the run.
    """
    if planned:
        return _planned_traffic(load, collective, calls=calls, when=when)
    if collective == "auto":
        one, many = load.nodes.count == 1, load.nodes.largest > 1
        collective = "shared-memory" if one else "hierarchical" if many else "auto"
    elif collective == "hierarchical" and load.nodes.count == 1:
        collective = "shared-memory"
    n = load.parameters
    each = _of_exchange(collective, n, load.ranks, load.itemsize, load.nodes)
    name = _choose(collective, n * load.itemsize, load)
    return _traffic_of_calls(load, each, calls, _words(load, calls, "n", name, when))


def _planned_traffic(load: Load, collective: str, *, calls: int, when: str) -> Traffic:
    """Return the traffic of exchanges of the arrays that a run has found to send: for each place on a node, their sizes.

    >>> plan = {"buckets": 2, "gathers": False, "sums": [[[6, 2], [3, 2]]]}
    >>> load = Load(ranks=2, parameters=9, findings={"exchange": plan})
    >>> exchange_traffic(load, "ring", calls=3, when="at every batch", planned=True)
    Traffic(bytes=108, messages=24, words='3 x 36 bytes in 8 messages: ring, 2 buckets, at every batch')
    """
    plan: Any = load.findings.get("exchange")
    layout, p = load.nodes, load.ranks
    if not _is_plan(plan) or len(plan["sums"]) > layout.smallest:
        return Traffic.unknown("what is sent depends on the layers of the model")
    between = collective == "hierarchical" or (collective == "auto" and layout.largest > 1)
    messages = sent = 0
    for place, sums in enumerate(plan["sums"]):
        groups = [layout.peers(rank) for rank in range(p) if layout.place(rank) == place][:1]
        size = len(groups[0]) if between else p
        for n, item in sums:
            if plan["gathers"]:
                each = size * (size - 1), size * (size - 1) * n
            elif n == 0:
                each = 0, 0
            elif between:
                made = between_nodes(n * item, size)
                each = _total([made.cost(Case(n=n, p=size, r=r, itemsize=item)) for r in range(size)])
            else:
                name = _choose(collective, n * item, load)
                if (found := _of_allreduce(name, n, p, item, layout)) is None:
                    return Traffic.unknown("the collective has no formula")
                each = found
            messages, sent = messages + each[0], sent + each[1] * item
    buckets = f"{plan['buckets']} bucket{'s' if plan['buckets'] != 1 else ''}"
    words = (
        f"{load.per_epoch(calls)} x {sent:,} bytes in {messages:,} messages: {collective}, {buckets}, {when}"
    )
    return Traffic(bytes=sent * calls, messages=messages * calls, words=words)


def _is_plan(plan: Any) -> TypeGuard[dict[str, Any]]:
    """Return True if this is what an exchange describes as its plan; a record may hold anything."""
    if not isinstance(plan, dict) or not {"buckets", "gathers", "sums"} <= plan.keys():
        return False
    if not _all_lists(plan["sums"]):
        return False
    pairs = [pair for place in plan["sums"] for pair in place]
    return _all_lists(pairs) and all(
        len(pair) == 2 and all(isinstance(number, int) and 0 <= number < 1 << 60 for number in pair)
        for pair in pairs
    )


def _all_lists(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, list) for each in value)


def _choose(collective: str, nbytes: int, load: Load) -> str:
    """Return the collective that `auto` chooses for this many bytes, or the given one."""
    if collective != "auto":
        return collective
    return name_of(choose(nbytes, load.ranks, load.nodes))


@lru_cache(maxsize=256)
def _of_allreduce(name: str, n: int, p: int, item: int, nodes: Nodes) -> tuple[int, int] | None:
    """Count the messages and numbers that all ranks send in one allreduce of n numbers; None: no formula."""
    if not has_cost(name):
        return None
    return _total([cost(name, n=n, p=p, r=r, itemsize=item, nodes=nodes) for r in range(p)])


@lru_cache(maxsize=256)
def _of_exchange(name: str, n: int, p: int, item: int, nodes: Nodes) -> tuple[int, int] | None:
    """Count the same for one gradient exchange, which sends nothing inside a node."""
    if name not in ("shared-memory", "hierarchical"):
        return _of_allreduce(name, n, p, item, nodes)
    if nodes.count == 1:
        return 0, 0
    parts = [length(part) for part in cut(n, nodes.smallest, align=CACHE_LINE // item)]
    found = []
    for rank in range(p):
        place, among = nodes.place(rank), nodes.peers(rank)
        if place < len(parts) and parts[place]:
            case = Case(n=parts[place], p=len(among), r=among.index(rank), itemsize=item)
            found.append(between_nodes(case.n * item, case.p).cost(case))
    return _total(found)


def _total(costs: list[Cost]) -> tuple[int, int]:
    return sum(each.messages for each in costs), sum(each.sent for each in costs)


def _traffic_of_calls(load: Load, each: tuple[int, int] | None, calls: int, words: str) -> Traffic:
    if each is None:
        return Traffic.unknown("the collective has no formula")
    return Traffic(bytes=each[1] * load.itemsize * calls, messages=each[0] * calls, words=words)


def _words(load: Load, calls: int, array: str, name: str, when: str) -> str:
    """Format the formula: calls per epoch, numbers per call, the collective, and when it is called."""
    if name == "shared-memory":
        return "nothing: the ranks share memory"
    p, q = load.ranks, 1 << (load.ranks.bit_length() - 1)
    known = {
        **FORMULAS,
        "recursive-doubling": "p log2(p)" if p == q else f"({q} log2({q}) + 2 (p - {q}))",
    }
    parts = f"parts of {array}, between nodes only" if name == "hierarchical" else f"its own of {array}"
    sent = f"{known[name]} {array}" if name in known else parts
    handed = ", as handed to MPI" if name == "native" else ""
    return f"{load.per_epoch(calls)} x {sent}: {name}, {when}{handed}"


# ---- averaging


class OnOwnData(Strategy):
    """A strategy whose ranks train on their own parts of the data; an allreduce averages them every `interval()` steps."""

    whole_batches: ClassVar[bool] = True
    averages: ClassVar[bool] = True
    own_data: ClassVar[bool] = True
    allreduce: str

    def traffic(self, load: Load) -> Traffic:
        return averages_traffic(load, self.allreduce, every=self.interval())

    def check_data(self, ranks: int, batch: int, samples: int) -> None:
        check_own(samples, batch, ranks)


def averages_traffic(load: Load, allreduce: str, *, every: int | None, warmup: int = 0) -> Traffic:
    """Return the traffic of averaging all parameters every `every` turns (None: at the end), or every turn in a warm-up.

    >>> averages_traffic(Load(ranks=2, parameters=9, turns=10), "ring", every=4, warmup=3).words
    '5 x 2 (p - 1) (n + 1): ring, every 4 turns, and at each of the first 3'
    """
    first = min(warmup, load.turns)
    calls = first + -(-(load.turns - first) // (every or max(load.turns, 1)))
    when = "once in the run" if every is None else "at every turn" if every == 1 else f"every {every} turns"
    when += f", and at each of the first {warmup}" if warmup and every != 1 else ""
    return allreduce_traffic(load, allreduce, calls=calls, when=when)
