"""Strategies for training one model on many ranks: one file per strategy.

A strategy is a frozen dataclass. Its fields are its hyper-parameters, `train` is the whole loop of its ranks, and the
class attributes and methods below describe it to reports, the diagnosis, the simulator and the figures, none of which
refers to a strategy by name. A run's record stores this description as plain data (`Facts`), so that your own strategies
are reported and diagnosed like the built-in ones.

`OnOwnData` is the base of strategies that average their ranks' models. `allreduce_traffic` and the functions like it return
the traffic of a strategy's collectives.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeGuard, get_args

from paceline import names as registry
from paceline.collectives import Cost, CostCase, Nodes, cost, cut, has_cost, length, one_node
from paceline.collectives.auto import choose, name_of
from paceline.collectives.hierarchical import choose_between_nodes
from paceline.comm.shared import CACHE_LINE
from paceline.data import check_own
from paceline.errors import UsageError, unknown

if TYPE_CHECKING:
    from paceline.models import Model
    from paceline.updates import Update
    from paceline.worker import Saves, Worker

__all__ = [
    "Change", "Facts", "Load", "OnOwnData", "Strategy", "Traffic", "Trouble", "allreduce_traffic", "averages_traffic",
    "check_collective", "check_minimum", "epoch_samples", "exchange_traffic", "passes_of",
]  # fmt: skip


class Strategy(ABC):
    """One way of training one model on many ranks; a frozen dataclass whose fields are its hyper-parameters.

    A subclass holds the whole loop of its ranks in `train`:

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Alone(Strategy):
    ...     def train(self, me):
    ...         for epoch in me.epochs():
    ...             for batch in me.batches(epoch):
    ...                 me.gradient(batch)
    ...                 me.step(me.model.g, batch.total)
    ...             me.validate(epoch)
    """

    whole_batches: ClassVar[bool] = False
    """True if a rank computes whole batches, each of `--batch` samples; False if the ranks divide every batch."""
    remote_update: ClassVar[bool] = False
    """True if a rank sends its gradients away to be applied, and takes no step with them itself."""
    in_step: ClassVar[bool] = True
    """True if all ranks take part in the same exchanges, so that early ranks wait for the last one."""
    replayable: ClassVar[bool] = False
    """True if the order of its messages is recorded and can be repeated with `--replay`."""
    averages: ClassVar[bool] = False
    """True if every rank trains a model of its own and the models are averaged."""
    own_data: ClassVar[bool] = False
    """True if every rank trains on its own part of the data, chosen at the start."""
    equals_serial: ClassVar[bool] = False
    """True if the result equals that of serial SGD with the same batches, up to rounding."""
    in_place: ClassVar[bool] = False
    """True if gradients are computed directly in shared memory where its collective uses that."""
    saves: ClassVar[Saves | None] = None
    """How its ranks save checkpoints: "together" at a common step, if all iterate over the same number of batches;
    "alone", if they do not depend on each other; "itself", by calls of its own; None: they cannot be saved."""
    interval_option: ClassVar[str] = ""
    """The option that sets how many steps a rank takes between two exchanges, if there is one."""
    masters_option: ClassVar[str] = ""
    """The option that sets how many ranks hold parameters instead of computing, if there is one."""
    colour: ClassVar[str] = ""
    """Its colour in figures, as #RRGGBB; if empty, one is chosen by its name."""
    marker: ClassVar[str] = ""
    """Its marker in figures, as matplotlib spells it."""

    @abstractmethod
    def train(self, me: Worker) -> None:
        """Train `me.model`; runs on every rank."""

    def launcher(self) -> Literal["mpi", "torch"]:
        """Return what starts and connects its ranks: MPI, or torch.multiprocessing on one machine."""
        return "mpi"

    # ---- description

    def sends_messages(self) -> bool:
        """Return True if its ranks send messages of their own, and not only in collectives that all of them call."""
        return True

    def role(self, rank: int, ranks: int) -> str:
        """Return the role of a rank if roles differ: "worker" if it computes gradients, otherwise another word."""
        return ""

    def workers(self, ranks: int) -> int:
        """Return how many of the ranks compute gradients."""
        return sum(self.role(rank, ranks) in ("", "worker") for rank in range(ranks))

    def interval(self) -> int | None:
        """Return how many steps a rank takes between two exchanges; None: it exchanges once, at the end of the run."""
        return 1

    def even_pieces(self) -> bool:
        """Return True if the pieces of a divided batch are meant to be equally large."""
        return True

    def fixed_shares(self) -> bool:
        """Return True if the batches of each rank are fixed in advance."""
        return True

    def follows_values(self) -> bool:
        """Return True if what its ranks do depends on losses or parameters, as with an adaptive period.

        Its time is then known only if they are computed: time-only simulation refuses it.
        """
        return False

    def uses(self) -> Sequence[object]:
        """Return the objects that its options name, such as a rule; if they are user code, their digest is recorded."""
        return []

    def for_update(self, update: str) -> Strategy:
        """Return this strategy with those options decided that it chooses by the run's update."""
        return self

    def optimizer(self) -> str:
        """Return the rule that makes its steps, if that is an optimizer other than the run's update; otherwise "".

        Its results are then compared with those of `serial:rule=RULE`.
        """
        return ""

    def own_update(self, update: Update, rate: float) -> Update:
        """Return the update that a rank applies with a learning rate: the run's, unless the strategy replaces it."""
        return update

    def traffic(self, load: Load) -> Traffic:
        """Return the messages and bytes that all ranks together send in a run on more than one rank."""
        return Traffic.unknown("the strategy declares no formula")

    def measured_work(self) -> str:
        """Return a name for work specific to this strategy that must be measured before simulation, or ""."""
        return ""

    def remedies(self, trouble: Trouble, *, update: str = "sgd") -> Sequence[Change]:
        """Return changes to this strategy's options, or to the run's settings, that address a problem."""
        return [Change(factors={"lr": 0.5})] if trouble in ("old gradients", "divergence") else []

    @classmethod
    def offers(cls, trouble: Trouble, *, ranks: int, amount: int = 1) -> Sequence[Change]:
        """Return options with which to try this strategy instead of another one that has a problem.

        `amount` is the number of slow ranks, or the steps between exchanges that would be enough.
        """
        return []

    def variants(self, ranks: int, nodes: int = 1) -> Sequence[Mapping[str, Any]]:
        """Return options worth trying instead of its own when the fastest way of training is searched for.

        By default, exchanges four times and a quarter as often, if `interval_option` says how often they happen.
        """
        steps = self.interval()
        if not self.interval_option or steps is None:
            return []
        return [{self.interval_option: every} for every in (4 * steps, steps // 4) if every]

    # ---- checks

    def check(self, ranks: int) -> None:  # noqa: B027
        """Raise a UsageError for a number of ranks that it cannot use; called before any message."""

    def check_reproducible(self) -> None:
        """Raise a UsageError if the bits of its result depend on the number of ranks even with fixed pieces."""
        name = type(self).__module__.rpartition(".")[2].replace("_", "-")
        raise UsageError(
            f"{name} cannot be reproducible: its result depends on the number of ranks; choose sync or serial"
        )

    def check_survivors(self, ranks: int) -> None:
        """Refuse a number of ranks that are left of more, if others have died (`--tolerate-failures`)."""
        self.check(ranks)

    def check_nodes(self, nodes: int) -> None:  # noqa: B027
        """Refuse a number of nodes that this strategy cannot use, if it is known before the ranks are started."""

    def check_update(self, update: str, *, elementwise: bool = True) -> None:  # noqa: B027
        """Refuse an update that this strategy cannot use; called before any message.

        `elementwise`: the update may be applied to slices of the parameters.
        """

    def check_data(self, ranks: int, batch: int, samples: int) -> None:  # noqa: B027
        """Refuse a batch that this strategy cannot take from this many training samples; called before any message."""

    def check_model(self, ranks: int, model: Model) -> None:  # noqa: B027
        """Refuse a model that this strategy cannot train on these ranks; called before any message, on every rank."""


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


def check_collective(name: str) -> None:
    """Raise a UsageError for an unknown collective.

    >>> check_collective("rng")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    paceline.errors.UsageError: unknown collective 'rng'; choose one of auto, hierarchical, naive, native, ...
    """
    if not registry.has("collectives", name):
        raise unknown("collective", name, registry.names("collectives"))


def check_minimum(least: int, what: str, value: int) -> None:
    """Raise a UsageError for a value below the minimum.

    >>> check_minimum(1, "every of elastic", 0)
    Traceback (most recent call last):
    paceline.errors.UsageError: every of elastic must be at least 1; got 0
    """
    if value < least:
        raise UsageError(f"{what} must be at least {least}; got {value}")


# ---- the description of a strategy as plain data

Trouble = Literal[
    "slow ranks",
    "uneven steps",
    "costly exchange",
    "exposed exchange",
    "long messages",
    "queue",
    "uneven masters",
    "idle ranks",
    "undivided update",
    "old gradients",
    "dropped gradients",
    "divergence",
    "drift",
    "single average",
    "bad average",
]
"""The problems that a diagnosis may find, and that a strategy may have a remedy for:

slow ranks          some ranks always compute more slowly than the others
uneven steps        now one rank is slow and now another
costly exchange     messages take too large a part of a step
exposed exchange    ranks wait for messages between nodes that could travel while they compute
long messages       the bytes between nodes take too large a part of a step
queue               workers queue at the ranks that hold the parameters
uneven masters      one master holds far more parameters than the others
idle ranks          too many ranks compute no gradients
undivided update    every rank updates all parameters
old gradients       gradients are old when they are applied, and less is learned
dropped gradients   gradients are not applied, and less is learned
divergence          training diverged
drift               models that are averaged drift apart in between, and less is learned
single average      models are averaged only once, at the end, and less is learned
bad average         the average of the models is worse than each of them
"""


@dataclass(frozen=True, kw_only=True)
class Change:
    """Something to try: other options of a strategy, or other settings of the run.

    >>> Change(options={"every": 4}, why="fewer exchanges").options
    {'every': 4}
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the strategy and their new values."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """Settings of the run (lr, epochs) and what to multiply them by."""
    why: str = ""
    """The reason in a few words; may be empty."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """The quantities of a run that determine its traffic."""

    ranks: int
    parameters: int
    itemsize: int = 4
    """Bytes per parameter."""
    buffers: int = 0
    """The number of values in the model's buffers; those that are no floating-point numbers are packed into eight bytes."""
    steps: int = 0
    """Batches in the whole run."""
    turns: int = 0
    """Batches of the rank that has the most, where each rank has its own part of the data."""
    epochs: int = 1
    passes: float = 1.0
    """The number of times that all ranks together processed the samples of one epoch."""
    nodes: Nodes = field(default=Nodes(()))
    findings: Mapping[str, Any] = field(default_factory=dict)
    """The strategy's findings in the run."""

    def __post_init__(self) -> None:
        if len(self.nodes.of) != self.ranks:
            object.__setattr__(self, "nodes", one_node(self.ranks))

    @classmethod
    def of(cls, config: Mapping[str, Any], summary: Mapping[str, Any], nodes: Nodes) -> Load:
        """Return the load of a run, from its config.json, its summary.json and the node of each rank."""
        ranks, draws, epochs = config["ranks"], config["draws"], config["epochs"]
        own = -(-(config.get("samples") or 0) // ranks)  # of the rank with the most
        turns = -(-own // summary["global_batch"]) if draws is None else -(-draws // ranks)
        return cls(
            ranks=ranks,
            parameters=summary["parameters"],
            itemsize=4 if config["dtype"] == "float32" else 8,
            buffers=summary.get("buffers") or 0,
            steps=summary.get("steps") or 0,
            turns=epochs * turns,
            epochs=epochs,
            passes=passes_of(config, summary),
            nodes=nodes,
            findings=summary.get("findings") or {},
        )

    def per_epoch(self, count: float) -> str:
        """Format the number of times per epoch of something that happened `count` times in the run.

        >>> Load(ranks=2, parameters=10, passes=2.0).per_epoch(2400)
        '1,200'
        """
        often = count / self.passes
        return f"{round(often):,}" if abs(often - round(often)) < 1e-9 else f"{often:,.3f}".rstrip("0")


def epoch_samples(config: Mapping[str, Any], summary: Mapping[str, Any]) -> int | None:
    """Return the samples that ONE process uses in an epoch: the same for all runs of a problem.

    With --draws and --batch-per-rank, ranks that share a batch use more than that in an epoch. None in old records.
    """
    if config["draws"] is None:
        return config.get("samples")
    return int(config["draws"] * (config["batch_per_rank"] or config["batch"] or summary["global_batch"]))


def passes_of(config: Mapping[str, Any], summary: Mapping[str, Any]) -> float:
    """Return the number of passes that all ranks together made: the run's epochs, unless it was stopped early."""
    rate, samples = summary.get("samples_per_second"), epoch_samples(config, summary)
    if not rate or not samples:
        return float(config["epochs"] or 1)
    return round(rate * summary["train_seconds"]) / samples or 1.0


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """The messages and bytes that all ranks together send in a run; None where no formula is known."""

    bytes: float | None
    messages: float | None
    words: str
    """The formula and its value for one epoch, or why there is none."""

    @staticmethod
    def unknown(why: str) -> Traffic:
        """Return traffic for which there is no formula, with the reason."""
        return Traffic(bytes=None, messages=None, words=f"none: {why}")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts that reports and diagnoses need about the strategy of a run."""

    workers: int
    """Ranks that compute gradients."""
    whole_batches: bool = False
    in_step: bool = True
    averages: bool = False
    own_data: bool = False
    equals_serial: bool = False
    in_place: bool = False
    even_pieces: bool = True
    fixed_shares: bool = True
    interval: int | None = 1
    interval_option: str = ""
    masters_option: str = ""
    optimizer: str = ""
    """The rule that makes the steps, if that is an optimizer other than the run's update."""
    colour: str = ""
    marker: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    """All options and their values."""
    remedies: Mapping[str, tuple[Change, ...]] = field(default_factory=dict)
    """Changes to this strategy, by the problem that they address."""

    @classmethod
    def of(cls, strategy: Strategy, *, ranks: int, update: str = "sgd") -> Facts:
        """Collect what a strategy declares, for a run on `ranks` ranks with this update.

        >>> from paceline.strategies.sync import Sync
        >>> Facts.of(Sync(allreduce="ring"), ranks=4).options
        {'allreduce': 'ring', 'balance': False, 'overlap': False, 'bucket': 'auto', 'compress': 'none'}
        """
        strategy = strategy.for_update(update)
        declared = {
            name: getattr(strategy, name)
            for name in (
                *("whole_batches", "in_step", "averages", "own_data", "equals_serial", "in_place"),
                *("interval_option", "masters_option", "colour", "marker"),
            )
        }
        remedies = {
            trouble: tuple(strategy.remedies(trouble, update=update)) for trouble in get_args(Trouble)
        }
        return cls(
            **declared,
            workers=strategy.workers(ranks),
            even_pieces=strategy.even_pieces(),
            fixed_shares=strategy.fixed_shares(),
            interval=strategy.interval(),
            optimizer=strategy.optimizer(),
            options={option.name: _plain(getattr(strategy, option.name)) for option in fields(strategy)},  # type: ignore[arg-type]
            remedies={trouble: changes for trouble, changes in remedies.items() if changes},
        )

    def as_json(self) -> dict[str, Any]:
        """Return the facts as JSON values, for config.json."""
        return asdict(self)

    @classmethod
    def read(cls, values: Any, *, ranks: int) -> Facts | None:
        """Read the output of `as_json`, ignoring damaged and unknown entries; return None if there is none.

        >>> Facts.read({"averages": True, "workers": "many", "new": 1}, ranks=4)
        Facts(workers=4, whole_batches=False, in_step=True, averages=True, own_data=False, equals_serial=False, \
in_place=False, even_pieces=True, fixed_shares=True, interval=1, interval_option='', masters_option='', optimizer='', \
colour='', marker='', options={}, remedies={})
        """
        if not isinstance(values, Mapping):
            return None
        given = dict(values)
        known: dict[str, Any] = {}
        for name, setting in cls.__dataclass_fields__.items():
            if name in given and _fits(str(setting.type), given[name]):
                known[name] = given[name]
        known["workers"] = min(known.get("workers", ranks), ranks)
        known["remedies"] = _changes(known.get("remedies", {}))
        return cls(**known)


def _fits(kind: str, value: Any) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind.startswith("int"):
        whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
        return whole or (value is None and "None" in kind)
    return isinstance(value, str if kind == "str" else Mapping)


def _changes(given: Mapping[str, Any]) -> dict[str, tuple[Change, ...]]:
    found: dict[str, tuple[Change, ...]] = {}
    for trouble, changes in given.items():
        if isinstance(changes, list | tuple):
            found[trouble] = tuple(
                Change(
                    options=dict(change.get("options") or {}),
                    factors={k: v for k, v in (change.get("factors") or {}).items() if _positive(v)},
                    why=str(change.get("why") or ""),
                )
                for change in changes
                if isinstance(change, Mapping)
            )
    return found


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _plain(value: Any) -> Any:
    """Convert a value to one that JSON can represent."""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


# ---- the traffic of collectives

# The numbers that all p ranks together send in one call, per element of the array.
FORMULAS = {"naive": "p (p - 1)", "ring": "2 (p - 1)", "rabenseifner": "2 (p - 1)", "native": "p"}


def allreduce_traffic(load: Load, collective: str, *, calls: int, when: str) -> Traffic:
    """Return the traffic of `calls` allreduces of all parameters plus one number (a count of ranks).

    >>> from paceline.strategies import Load
    >>> allreduce_traffic(Load(ranks=2, parameters=9), "ring", calls=3, when="every turn")
    Traffic(bytes=240, messages=12, words='3 x 2 (p - 1) (n + 1): ring, every turn')
    """
    n = load.parameters + 1
    each = _count_in_allreduce(collective, n, load.ranks, load.itemsize, load.nodes)
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
    each = _count_in_exchange(collective, n, load.ranks, load.itemsize, load.nodes)
    name = _choose(collective, n * load.itemsize, load)
    return _traffic_of_calls(load, each, calls, _words(load, calls, "n", name, when))


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
                made = choose_between_nodes(n * item, size)
                each = _total([made.cost(CostCase(n=n, p=size, r=r, itemsize=item)) for r in range(size)])
            else:
                name = _choose(collective, n * item, load)
                if (found := _count_in_allreduce(name, n, p, item, layout)) is None:
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
def _count_in_allreduce(name: str, n: int, p: int, item: int, nodes: Nodes) -> tuple[int, int] | None:
    """Count the messages and numbers that all ranks send in one allreduce of n numbers; None: no formula."""
    if not has_cost(name):
        return None
    return _total([cost(name, n=n, p=p, r=r, itemsize=item, nodes=nodes) for r in range(p)])


@lru_cache(maxsize=256)
def _count_in_exchange(name: str, n: int, p: int, item: int, nodes: Nodes) -> tuple[int, int] | None:
    """Count the same for one gradient exchange, which sends nothing inside a node."""
    if name not in ("shared-memory", "hierarchical"):
        return _count_in_allreduce(name, n, p, item, nodes)
    if nodes.count == 1:
        return 0, 0
    parts = [length(part) for part in cut(n, nodes.smallest, align=CACHE_LINE // item)]
    found = []
    for rank in range(p):
        place, among = nodes.place(rank), nodes.peers(rank)
        if place < len(parts) and parts[place]:
            case = CostCase(n=parts[place], p=len(among), r=among.index(rank), itemsize=item)
            found.append(choose_between_nodes(case.n * item, case.p).cost(case))
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
