"""Sums and means over the ranks of vectors and of the number of ranks that they come from, in one message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.comm.clocks import Stopwatch
from paceline.comm.control import Control

Array = NDArray[Any]


class Mean:
    """Averages of vectors as long as the model's; a worker's `mean` makes it. Results are good until the next call.

    The last element of the message is a count, so that a rank which had nothing to do is left out without another message,
    and without any rank having to know which others had nothing.
    """

    def __init__(
        self,
        message: Array,
        allreduce: Callable[[Array, str], None],
        algorithm: str,
        control: Control,
        watch: Stopwatch,
    ) -> None:
        self._message, self._allreduce, self._algorithm = message, allreduce, algorithm
        self._control, self._watch = control, watch

    def __call__(self, values: Array, counts: bool = True) -> Array:
        """Return the mean of the values of those ranks whose values count; there must be at least one. Collective."""
        with self._watch.during("exchange"):
            total, count = self.total(values if counts else np.zeros((), values.dtype), int(counts))
            total /= count
        return total

    def total(self, values: Array, count: int) -> tuple[Array, float]:
        """Return the sums of every rank's values and count. Collective."""
        message = self._message
        with self._watch.during("exchange"):
            message[:-1] = values
            message[-1] = count
            self._allreduce(message, self._algorithm)
        return message[:-1], float(message[-1])

    def preview(self, values: Array, counts: bool = True) -> Array:
        """Return the mean for evaluation only: neither its bytes nor its seconds are those of training. Collective."""
        message = self._message
        with self._watch.during("evaluation"):
            message[:-1] = values if counts else 0
            message[-1] = counts
            total = self._control.total(message)
            total[:-1] /= total[-1]
        return total[:-1]

    def rehearse(self) -> None:
        """Sum zeros. Collective."""
        self._message[...] = 0
        self._allreduce(self._message, self._algorithm)
