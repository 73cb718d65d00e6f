"""What averaging strategies share: values and the number of those they come from, summed in one message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from paceline import names as registry
from paceline.data import check_own
from paceline.errors import UsageError, unknown
from paceline.strategies import Load, Strategy, Traffic
from paceline.strategies._traffic import allreduce_traffic
from paceline.strategies._vectors import vector

if TYPE_CHECKING:
    from paceline.worker import Worker

Array = NDArray[Any]


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
    """Return what averaging all parameters every so many turns (None: at the end) sends; in a warm-up, at every turn.

    >>> averages_traffic(Load(ranks=2, parameters=9, turns=10), "ring", every=4, warmup=3).words
    '5 x 2 (p - 1) (n + 1): ring, every 4 turns, and at each of the first 3'
    """
    first = min(warmup, load.turns)
    calls = first + -(-(load.turns - first) // (every or max(load.turns, 1)))
    when = "once in the run" if every is None else "at every turn" if every == 1 else f"every {every} turns"
    when += f", and at each of the first {warmup}" if warmup and every != 1 else ""
    return allreduce_traffic(load, allreduce, calls=calls, when=when)


class Together:
    """Sums and means over the ranks of vectors as long as the model's; the arrays are good until the next call.

    The last element of the array that goes round is the count, so that a rank which had nothing to do is left out
    without a message more, and without any rank having to know who else had nothing.
    """

    def __init__(self, me: Worker, allreduce: str) -> None:
        self._me = me
        self._allreduce = allreduce
        self._packed = vector(me, more=1)
        me.rehearse(self._packed, allreduce)

    def total(self, values: Array, count: int) -> tuple[Array, int]:
        """The sums of every rank's values and count."""
        time_only = self._me.time_only
        if not time_only:
            self._packed[:-1], self._packed[-1] = values, count
        self._me.charge("copy", self._packed.nbytes)
        self._me.allreduce(self._packed, self._allreduce)
        return self._packed[:-1], 1 if time_only else int(self._packed[-1])

    def mean(self, values: Array, counts: bool = True) -> Array:
        """The mean of the values of those ranks that count; at least one must. On the worker's clock as exchange."""
        total, count = self.total(values if counts else np.zeros((), values.dtype), int(counts))
        if not self._me.time_only:
            total /= count
        self._me.charge("copy", total.nbytes)
        self._me.watch.lap("exchange")
        return total

    def glimpse(self, values: Array, counts: bool) -> Array:
        """The same, to be evaluated only: neither its bytes nor its seconds are those of training."""
        if self._me.time_only:
            return self._packed[:-1]
        self._packed[:-1], self._packed[-1] = values if counts else 0, counts
        total = self._me.control.total(self._packed)
        total[:-1] /= total[-1]
        return total[:-1]


def validate_as(me: Worker, epoch: int, shown: Array) -> bool:
    """Validate with `shown` in the place of this rank's own parameters, which come back; as `me.validate` says.

    Where training ends here, `shown` stays; where it was set back, the parameters to which.
    """
    if me.time_only:
        return me.validate(epoch)
    own = me.model.x.copy()
    me.model.x[:] = shown
    back = me.validate(epoch)
    if not back and me.diverged is None and epoch != me.last_epoch:
        me.model.x[:] = own
    return back


def check_collective(name: str) -> None:
    """
    >>> check_collective("rng")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    paceline.errors.UsageError: unknown collective 'rng'; choose one of auto, hierarchical, naive, native, ...
    """
    if name not in registry.names("collectives"):
        raise unknown("collective", name, registry.names("collectives"))


def at_least(least: int, what: str, value: int) -> None:
    """
    >>> at_least(1, "every of elastic", 0)
    Traceback (most recent call last):
    paceline.errors.UsageError: every of elastic must be at least 1; got 0
    """
    if value < least:
        raise UsageError(f"{what} must be at least {least}; got {value}")
