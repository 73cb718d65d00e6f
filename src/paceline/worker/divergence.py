"""Detection of divergence: a loss that is NaN or infinite, has grown far too large, or no longer changes."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
log = logging.getLogger(__name__)

# A mean loss this many times its initial or its best value has diverged.
FAR = 3.0
# Losses of different batches that differ by less than this fraction of their mean count as constant, unless they are low.
STILL, LOW = 1e-4, 0.25
# The fewest batches from which to conclude that the losses of an epoch are all the same.
ENOUGH = 8


def all_equal(batches: float, total: float, squares: float) -> bool:
    """Return True if enough batches had the same loss, given their number, sum and sum of squares.

    >>> all_equal(23, 23 * 0.5, 23 * 0.25), all_equal(2, 1.0, 0.5), all_equal(8, 8 * 0.5, 8 * 0.26)
    (True, False, False)
    """
    return batches >= ENOUGH and squares / batches - (total / batches) ** 2 < (STILL * total / batches) ** 2


class Guard:
    """A monitor of losses, averaged over about `horizon` of them.

    A loss has diverged if its mean is three times its initial value, or three times the best mean so far and no better
    than initially. The guard also detects a saturated network, whose loss is the same for every batch, and not low; with
    a horizon of one loss (that of an epoch, say) the caller, who knows the batches, must pass `same`.

    >>> guard = Guard(horizon=1)
    >>> [guard.see(loss) for loss in (2.3, 0.4, 0.5)]
    [None, None, None]
    >>> guard.see(7.5)
    'the loss has risen to 7.5, from 2.3 at first'
    >>> guard.see(float("nan"))
    'the loss is nan'
    >>> guard = Guard(horizon=32, first=4)
    >>> [guard.see(0.5) for _ in range(32)][-1]
    'the loss stays at 0.5, whatever the batch,'
    """

    def __init__(self, horizon: int, first: int = 1) -> None:
        """`first`: the number of losses that define the initial value."""
        self.horizon = horizon
        self._begun = first
        self.mean = 0.0
        self._seen = 0
        self._level, self._alike = math.inf, 0  # the value that the last losses share, and their number
        self.still = False
        """True if the problem is that the loss does not change."""
        self._first = self._best = math.inf

    @property
    def first(self) -> float:
        """The initial value; infinite until it is known."""
        return self._first

    def see(self, loss: float, *, same: bool = False) -> str | None:
        """Record a loss; return a description of the problem if training has diverged.

        `same`: it is the mean of losses that were the same for every batch and did not change the parameters.
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
        return f"the loss stays at {level:.3g}, whatever the batch," if self.still else None

    def state(self) -> Array:
        """Return what the guard has seen, for `resume`."""
        return np.array(
            [self.mean, self._seen, self._level, self._alike, self.still, self._first, self._best]
        )

    def resume(self, state: Array) -> None:
        """Continue from what another guard has seen."""
        self.mean, seen, self._level, alike, still, self._first, self._best = map(float, state)
        self._seen, self._alike, self.still = int(seen), int(alike), bool(still)

    def start_at(self, first: float) -> None:
        """Set the initial value, because the run had begun before this guard was made."""
        self._first = self._best = self.mean = first
        self._seen = max(self.horizon, self._begun)

    def forget(self) -> None:
        """Compare only with the best mean so far from now on, because the parameters have been restored."""
        self._seen, self.mean, self._alike, self.still = self.horizon, self._best, 0, False


class Recovery:
    """The response to divergence at the end of an epoch: `stop`, `halve` or `ignore`.

    >>> x, recovery = np.ones(2), Recovery("halve")
    >>> recovery.keep(x)
    >>> recovery.act(0.7, x, "epoch 1", warn=False)
    False
    >>> x += 5
    >>> recovery.act(math.nan, x, "epoch 2", warn=False), x
    (True, array([1., 1.]))
    """

    def __init__(self, kind: str) -> None:
        self.stopped: str | None = None
        """The reason why training has stopped."""
        self.messages: list[str] = []
        """A message for each divergence and the response to it."""
        self._kind = kind
        self._guard = Guard(horizon=1)
        self._good: Array | None = None
        self._start: Array | None = None

    def keep(self, x: Array) -> None:
        """Store the parameters before the first step as good ones."""
        if self._kind == "halve" and self._good is None:
            self._good, self._start = x.copy(), x.copy()

    def stop(self, why: str, *, warn: bool) -> None:
        """End training; `warn`: log a warning."""
        self.stopped = why
        if warn:
            log.warning(
                "training has diverged: %s; it stops here (a smaller --lr, or --on-divergence halve)", why
            )

    def act(self, loss: float, x: Array, when: str, *, warn: bool, same: bool = False) -> bool:
        """Record a loss; return True if x was restored, to continue with half the learning rate.

        `same`: see `Guard.see`.
        """
        wrong = self._guard.see(loss, same=same)
        if wrong is None:
            if self._good is not None:
                np.copyto(self._good, x)
            return False
        if self._kind == "stop":
            self.stop(f"{wrong} in {when}", warn=warn)
            return False
        # A saturated network may have been so before the last parameters were stored.
        to, name = (self._start, "start") if self._guard.still else (self._good, "last good parameters")
        back = to is not None
        then = f"back to the {name} with half the learning rate" if back else "ignored"
        self.messages.append(f"{wrong} in {when}; {then}")
        if warn:
            log.warning("training has diverged: %s", self.messages[-1])
        if to is not None:
            np.copyto(x, to)
            self._guard.forget()
        return back
