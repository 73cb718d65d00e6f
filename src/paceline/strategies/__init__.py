"""How ranks train together, one file a strategy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from paceline.models import Model
    from paceline.worker import Worker


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
    """Whether a rank computes whole batches, each of `--batch` samples; else the ranks take pieces of each."""
    in_step: ClassVar[bool] = True
    """Whether all ranks go through the same exchanges, so that those who come early wait for the last."""
    replayable: ClassVar[bool] = False
    """Whether the order of its messages is recorded and can be repeated with `--replay`."""

    def launcher(self) -> Literal["mpi", "torch"]:
        """What starts its ranks and connects them: an MPI, or torch's multiprocessing on one machine."""
        return "mpi"

    def role(self, rank: int, ranks: int) -> str:
        """What a rank is, where not all are the same: master, worker …"""
        return ""

    @abstractmethod
    def train(self, me: Worker) -> None:
        """Train `me.model`; runs on every rank."""

    def check(self, ranks: int) -> None:  # noqa: B027
        """Refuse, with a UsageError, a number of ranks that this strategy cannot use: called before any message."""

    def check_nodes(self, nodes: int) -> None:  # noqa: B027
        """Refuse a number of nodes that this strategy cannot use, where it is known before the ranks are started."""

    def check_update(self, update: str) -> None:  # noqa: B027
        """Refuse an update that would have no part in this strategy; called before any message."""

    def check_data(self, ranks: int, batch: int, samples: int) -> None:  # noqa: B027
        """Refuse what this strategy cannot do with so many training samples; called before any message."""

    def check_model(self, ranks: int, model: Model) -> None:  # noqa: B027
        """Refuse a model that this strategy cannot train on so many ranks; called before any message, on every rank."""
