"""How ranks train together, one file a strategy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

    @abstractmethod
    def train(self, me: Worker) -> None:
        """Train `me.model`; runs on every rank."""

    def check(self, ranks: int) -> None:  # noqa: B027
        """Refuse, with a UsageError, a number of ranks that this strategy cannot use: called before any message."""
