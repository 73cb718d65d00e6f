"""Strategies for training one model on many ranks: one file per strategy.

A strategy is a frozen dataclass. Its fields are its hyper-parameters, `train` is the whole loop of its ranks, and the
class attributes and methods below describe it to reports, the diagnosis, the simulator and the figures, none of which
refers to a strategy by name. A run's record stores this description (`Facts`), so that your own strategies are reported
and diagnosed like the built-in ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from paceline import names as registry
from paceline.errors import UsageError, unknown
from paceline.strategies._facts import Change, Facts, Load, Traffic, Trouble, epoch_samples, passes_of

if TYPE_CHECKING:
    from paceline.models import Model
    from paceline.updates import Update
    from paceline.worker import Saves, Worker

__all__ = [
    "Change", "Facts", "Load", "Strategy", "Traffic", "Trouble", "at_least", "check_collective", "epoch_samples",
    "passes_of",
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


def check_collective(name: str) -> None:
    """Raise a UsageError for an unknown collective.

    >>> check_collective("rng")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    paceline.errors.UsageError: unknown collective 'rng'; choose one of auto, hierarchical, naive, native, ...
    """
    if not registry.has("collectives", name):
        raise unknown("collective", name, registry.names("collectives"))


def at_least(least: int, what: str, value: int) -> None:
    """Raise a UsageError for a value below the minimum.

    >>> at_least(1, "every of elastic", 0)
    Traceback (most recent call last):
    paceline.errors.UsageError: every of elastic must be at least 1; got 0
    """
    if value < least:
        raise UsageError(f"{what} must be at least {least}; got {value}")
