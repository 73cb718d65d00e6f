"""What strategies that average their ranks' models have in common."""

from __future__ import annotations

from typing import ClassVar

from paceline.data import check_own
from paceline.strategies import Load, Strategy, Traffic
from paceline.strategies._traffic import allreduce_traffic


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
    """Return what averaging all parameters every `every` turns (None: at the end) sends; in a warm-up, at every turn.

    >>> averages_traffic(Load(ranks=2, parameters=9, turns=10), "ring", every=4, warmup=3).words
    '5 x 2 (p - 1) (n + 1): ring, every 4 turns, and at each of the first 3'
    """
    first = min(warmup, load.turns)
    calls = first + -(-(load.turns - first) // (every or max(load.turns, 1)))
    when = "once in the run" if every is None else "at every turn" if every == 1 else f"every {every} turns"
    when += f", and at each of the first {warmup}" if warmup and every != 1 else ""
    return allreduce_traffic(load, allreduce, calls=calls, when=when)
