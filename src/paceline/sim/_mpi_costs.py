"""What MPI's own collectives cost, by the textbook's algorithms: of those that a library may choose, the cheapest.

    Barrier                            dissemination: log2 p rounds
    Bcast, Reduce                      a binomial tree; or scattered and gathered, combined on the way
    Allreduce                          recursive doubling, Rabenseifner's, or a ring
    Allgather, Gather, Scatter         recursive doubling or a ring; binomial trees
    Alltoall                           Bruck's, or pair by pair

Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH (2005).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple


class Steps(NamedTuple):
    """Seconds of an exchange, and of combining, by bytes."""

    exchange: Callable[[float], float]
    combine: Callable[[float], float]


def seconds(name: str, p: int, n: float, steps: Steps) -> float:
    """Seconds that p ranks take for the collective called `name`.

    n: the bytes that each hands in; of Scatter and Alltoall the whole of a rank's buffer, p blocks.

    >>> gigabit = Steps(lambda n: 50e-6 + 8e-9 * n, lambda n: 0.2e-9 * n)
    >>> round(seconds("Barrier", 8, 0, gigabit), 6), round(seconds("Allreduce", 8, 8, gigabit), 6)
    (0.00015, 0.00015)
    """
    if p <= 1:
        return 0.0
    rounds = math.ceil(math.log2(p))
    exchange, combine = steps

    def halving() -> float:
        """The whole of n, cut in halves in every round: what scatters, and backwards what gathers."""
        return sum(exchange(n / 2**k) for k in range(1, rounds + 1))

    def halves_combined() -> float:
        return sum(combine(n / 2**k) for k in range(1, rounds + 1))

    uneven = (
        0.0 if p & (p - 1) == 0 else exchange(n) + combine(n)
    )  # those beyond a power of two, before and after
    if name == "Barrier":
        return rounds * exchange(0)
    if name in ("Bcast", "Ibcast"):
        return min(rounds * exchange(n), halving() + min(halving(), (p - 1) * exchange(n / p)))
    if name in ("Reduce", "Reduce_scatter", "Reduce_scatter_block"):
        scattered = uneven + halving() + halves_combined()
        if name != "Reduce":
            return min(scattered, (p - 1) * (exchange(n / p) + combine(n / p)))
        return min(rounds * (exchange(n) + combine(n)), scattered + halving())
    if name in ("Allreduce", "Iallreduce", "Scan", "Exscan"):
        doubling = rounds * (exchange(n) + combine(n)) + (uneven and exchange(n))
        halved = uneven + 2 * halving() + halves_combined() + (uneven and exchange(n))
        ring = (p - 1) * (2 * exchange(n / p) + combine(n / p))
        return min(doubling, halved, ring)
    if name in ("Gather", "Gatherv"):
        return sum(exchange(n * 2**k) for k in range(rounds))
    if name in ("Scatter", "Scatterv"):
        return halving()
    if name in ("Alltoall", "Alltoallv"):
        return min(rounds * exchange(n / 2), (p - 1) * exchange(n / p))
    # Allgather, and all that lets everybody know a little of everybody else (Split, Dup, windows …)
    return min(sum(exchange(n * 2**k) for k in range(rounds)), (p - 1) * exchange(n))
