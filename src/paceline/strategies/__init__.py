"""How ranks train together: one file per strategy.

A strategy is a frozen dataclass. Its fields are its hyper-parameters, `train` is the whole loop of its ranks, and the
class attributes and methods below say what others need to know about it: reports, the diagnosis, the simulator and the
figures ask the strategy and know none by name. A run's record holds the answers (`Facts`), so that a strategy of your own
is reported and diagnosed as a built-in one is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from paceline import names as registry
from paceline.errors import UsageError, unknown
from paceline.strategies._facts import Change, Facts, Load, Traffic, Trouble, epoch_samples, passes_of

if TYPE_CHECKING:
    from paceline.models import Model
    from paceline.worker import Worker

__all__ = [
    "Change", "Facts", "Load", "Strategy", "Traffic", "Trouble", "at_least", "check_collective", "epoch_samples",
    "passes_of", "summarize_staleness",
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
    in_step: ClassVar[bool] = True
    """True if all ranks take part in the same exchanges, so that early ranks wait for the last one."""
    replayable: ClassVar[bool] = False
    """True if the order of its messages is recorded and can be repeated with `--replay`."""
    averages: ClassVar[bool] = False
    """True if every rank trains a model of its own and the models are averaged."""
    own_data: ClassVar[bool] = False
    """True if every rank trains on its own part of the data, chosen at the start."""
    equals_serial: ClassVar[bool] = False
    """True if it learns what serial SGD learns with the same batches, up to rounding."""
    in_place: ClassVar[bool] = False
    """True if gradients are computed directly in shared memory where its collective uses that."""
    interval_option: ClassVar[str] = ""
    """The option that sets how many steps a rank takes between two exchanges, if there is one."""
    masters_option: ClassVar[str] = ""
    """The option that sets how many ranks hold parameters instead of computing, if there is one."""
    colour: ClassVar[str] = ""
    """Its colour in figures, as #RRGGBB; none: one is chosen by its name."""
    marker: ClassVar[str] = ""
    """Its marker in figures, as matplotlib spells it."""

    @abstractmethod
    def train(self, me: Worker) -> None:
        """Train `me.model`; runs on every rank."""

    def launcher(self) -> Literal["mpi", "torch"]:
        """Return what starts its ranks and connects them: an MPI, or torch's multiprocessing on one machine."""
        return "mpi"

    # ---- what others need to know about it

    def role(self, rank: int, ranks: int) -> str:
        """Return what a rank does where not all do the same: "worker" if it computes gradients, else another word."""
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
        """Return True if it is fixed in advance which rank computes which batches."""
        return True

    def uses(self) -> Sequence[object]:
        """Return what its options name, such as a rule: if that is the user's own code, the record has its digest."""
        return []

    def traffic(self, load: Load) -> Traffic:
        """Return the messages and bytes that all ranks together send in a run on more than one rank."""
        return Traffic.unknown("the strategy declares no formula")

    def measured_work(self) -> str:
        """Return a name for work of its own that must be measured on real ranks before it is simulated; "": none."""
        return ""

    def remedies(self, trouble: Trouble, *, update: str = "sgd") -> Sequence[Change]:
        """Return changes of this strategy's options, or of the run's settings, that help against a trouble."""
        return [Change(factors={"lr": 0.5})] if trouble in ("old gradients", "divergence") else []

    @classmethod
    def offers(cls, trouble: Trouble, *, ranks: int, amount: int = 1) -> Sequence[Change]:
        """Return options with which runs of other strategies should try this one instead, to get rid of a trouble.

        `amount` is the number of slow ranks, or the steps between exchanges that would be enough.
        """
        return []

    # ---- what it refuses

    def check(self, ranks: int) -> None:  # noqa: B027
        """Refuse, with a UsageError, a number of ranks that it cannot use; called before any message."""

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
    """Refuse the name of a collective that does not exist.

    >>> check_collective("rng")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    paceline.errors.UsageError: unknown collective 'rng'; choose one of auto, hierarchical, naive, native, ...
    """
    if name not in registry.names("collectives"):
        raise unknown("collective", name, registry.names("collectives"))


def at_least(least: int, what: str, value: int) -> None:
    """Refuse a value below the least that is possible.

    >>> at_least(1, "every of elastic", 0)
    Traceback (most recent call last):
    paceline.errors.UsageError: every of elastic must be at least 1; got 0
    """
    if value < least:
        raise UsageError(f"{what} must be at least {least}; got {value}")


def summarize_staleness(tau: NDArray[Any]) -> dict[str, Any]:
    """Summarize how many updates old gradients were when they were applied; `histogram`: how many were 0, 1, 2 … old.

    >>> summarize_staleness(np.array([0, 1, 1, 4]))
    {'mean': 1.5, 'median': 1.0, 'largest': 4, 'histogram': [1, 2, 0, 0, 1]}
    """
    if not tau.size:
        return {"mean": 0.0, "median": 0.0, "largest": 0, "histogram": []}
    return {
        "mean": float(tau.mean()),
        "median": float(np.median(tau)),
        "largest": int(tau.max()),
        "histogram": np.bincount(tau.astype(np.int64)).tolist(),
    }
