"""Notices that training has diverged: a loss that is no number any more, or that has run away."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
log = logging.getLogger(__name__)

# How far above where it began, or above the best it has been, a mean loss has run away.
FAR = 3.0
# Losses of different batches that differ by less than this part of their mean stand still, unless they are low.
STILL, LOW = 1e-4, 0.25
# So many batches of an epoch say that its losses are all the same.
ENOUGH = 8


def alike(batches: float, total: float, squares: float) -> bool:
    """Whether the losses of enough batches were all the same, from how many there were, their sum and that of squares.

    >>> alike(23, 23 * 0.5, 23 * 0.25), alike(2, 1.0, 0.5), alike(8, 8 * 0.5, 8 * 0.26)
    (True, False, False)
    """
    return batches >= ENOUGH and squares / batches - (total / batches) ** 2 < (STILL * total / batches) ** 2


class Guard:
    """Watches losses; `horizon` is over how many of them, about, they are averaged.

    A loss has run away when its mean is three times what it was at first, or three times the best mean so far and no
    better than at first. It also notices a network that is saturated: whatever the batch, the loss is the same, and not a
    low one; with a horizon of one loss (an epoch's, say) whoever knows the batches tells it so.

    >>> guard = Guard(horizon=1)
    >>> [guard.see(loss) for loss in (2.3, 0.4, 0.5)]
    [None, None, None]
    >>> guard.see(7.5)
    'the loss has risen to 7.5, from 2.3 at first'
    >>> guard.see(float("nan"))
    'the loss is nan'
    >>> guard = Guard(horizon=32, first=4)
    >>> [guard.see(0.5) for _ in range(32)][-1]
    'the loss stands still at 0.5, whatever the batch,'
    """

    def __init__(self, horizon: int, first: int = 1) -> None:
        """`first`: how many losses make up what the loss was at first."""
        self.horizon = horizon
        self._begun = first
        self.mean = 0.0
        self._seen = 0
        self._level, self._alike = math.inf, 0  # the last losses, so many of them, were all about this
        self.still = False
        """Whether what was wrong is that the loss stands still."""
        self._first = self._best = math.inf

    def see(self, loss: float, *, same: bool = False) -> str | None:
        """Take note of a loss; what is wrong with it, in words, if training has diverged.

        `same`: it is the mean of losses that were all the same, whatever the batch, and that changed nothing.
        """
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        self._seen += 1
        weight = 1 / min(self._seen, self.horizon)
        self.mean += (loss - self.mean) * weight
        if not abs(loss - self._level) < STILL * loss:
            self._level, self._alike = loss, 0
        self._alike += 1
        if self._seen <= self._begun:
            self._first = self._best = self.mean
            return None
        self._best = min(self._best, self.mean)
        if self.mean > FAR * self._first or (self.mean > FAR * self._best and self.mean > self._first):
            return f"the loss has risen to {self.mean:.3g}, from {self._first:.3g} at first"
        level = loss if same else self._level
        self.still = (same or self._alike >= self.horizon > 1) and level > LOW * self._first
        return f"the loss stands still at {level:.3g}, whatever the batch," if self.still else None

    def forget(self) -> None:
        """The parameters have been set back: what comes is compared with the best mean so far."""
        self._seen, self.mean, self._alike, self.still = self.horizon, self._best, 0, False


class Recovery:
    """What to do about a loss that has run away, at the ends of epochs: `stop`, `halve` or `ignore`.

    >>> x, recovery = np.ones(2), Recovery("halve")
    >>> recovery.keep(x)
    >>> recovery.act(0.7, x, "epoch 1", told=False)
    False
    >>> x += 5
    >>> recovery.act(math.nan, x, "epoch 2", told=False), x
    (True, array([1., 1.]))
    """

    def __init__(self, kind: str) -> None:
        self.stopped: str | None = None
        """Why training has stopped, in words."""
        self.told: list[str] = []
        """What was said: every time that the loss ran away, and what was done about it."""
        self._kind = kind
        self._guard = Guard(horizon=1)
        self._good: Array | None = None
        self._start: Array | None = None

    def keep(self, x: Array) -> None:
        """The parameters before the first step are good."""
        if self._kind == "halve" and self._good is None:
            self._good, self._start = x.copy(), x.copy()

    def stop(self, why: str, *, told: bool) -> None:
        """Training ends here."""
        self.stopped = why
        if told:
            log.warning(
                "training has diverged: %s; it stops here (a smaller --lr, or --on-divergence halve)", why
            )

    def act(self, loss: float, x: Array, when: str, *, told: bool, same: bool = False) -> bool:
        """See a loss; whether x has been set back, to be trained on with half the learning rate.

        `same`: as `Guard.see` has it.
        """
        wrong = self._guard.see(loss, same=same)
        if wrong is None:
            if self._good is not None:
                np.copyto(self._good, x)
            return False
        if self._kind == "stop":
            self.stop(f"{wrong} in {when}", told=told)
            return False
        # A network that stands still has perhaps done so since before the last time that nothing was noticed.
        to, name = (self._start, "start") if self._guard.still else (self._good, "last good parameters")
        back = to is not None
        then = f"back to the {name} with half the learning rate" if back else "ignored"
        self.told.append(f"{wrong} in {when}; {then}")
        if told:
            log.warning("training has diverged: %s", self.told[-1])
        if to is not None:
            np.copyto(x, to)
            self._guard.forget()
        return back
