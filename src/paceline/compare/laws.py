"""Amdahl's and Gustafson's laws, fitted to measured speedups; and lines, fitted to times.

    Amdahl       S(p) = 1 / (s + (1 - s) / p)     the work stays the same; its part s cannot be divided
    Gustafson    S(p) = p - s (p - 1)             the work grows with the ranks; s is a part of the time

The serial fraction s is found by least squares in S. It is at least 0, even if p ranks are more than p times as fast; above
1 it means that ranks are slower than one process.

Amdahl, Validity of the single processor approach (1967); Gustafson, Reevaluating Amdahl's law (1988).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Law = Literal["Amdahl", "Gustafson"]
Array = NDArray[np.float64]
# A law with one unknown fits any single point, so it takes this many numbers of ranks above 1.
LEAST = 2


def amdahl(p: Array | float, s: float) -> Array:
    """Return Amdahl's speedup on p ranks.

    >>> amdahl(np.array([1, 2, 4]), s=0.5).tolist()
    [1.0, 1.3333333333333333, 1.6]
    """
    return np.asarray(1 / (s + (1 - s) / np.asarray(p, float)))


def gustafson(p: Array | float, s: float) -> Array:
    """Return Gustafson's speedup on p ranks.

    >>> gustafson(np.array([1, 2, 4]), s=0.5).tolist()
    [1.0, 1.5, 2.5]
    """
    p = np.asarray(p, float)
    return np.asarray(p - s * (p - 1))


LAWS: dict[Law, Callable[[Array | float, float], Array]] = {"Amdahl": amdahl, "Gustafson": gustafson}


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A law with its serial fraction, and how well it fits."""

    law: Law
    serial: float
    residual: float
    """Root mean square of the differences, in units of speedup."""

    def at(self, ranks: Sequence[float]) -> list[float]:
        """Return the law's speedups."""
        return [float(value) for value in LAWS[self.law](np.array(ranks, float), self.serial)]


def fit(law: Law, ranks: Sequence[int], speedups: Sequence[float]) -> Fit:
    """Fit the law to the points; those of one rank do not count, since both laws start there.

    >>> exact = fit("Amdahl", [2, 4, 8], amdahl(np.array([2, 4, 8]), s=0.05).tolist())
    >>> round(exact.serial, 9), round(exact.residual, 9)
    (0.05, 0.0)
    >>> exact = fit("Gustafson", [2, 4, 8], [1.9, 3.7, 7.3])
    >>> round(exact.serial, 9), round(exact.residual, 9), exact.at([16])
    (0.1, 0.0, [14.5])
    >>> fit("Amdahl", [4, 8], [4.5, 9.0]).serial
    0.0
    """
    p, measured = np.array(ranks, float), np.array(speedups, float)
    p, measured = p[p > 1], measured[p > 1]
    if law == "Gustafson":
        serial = max(0.0, float(((p - measured) * (p - 1)).sum() / ((p - 1) ** 2).sum()))
    else:
        serial = _least(p, measured)
    away = LAWS[law](p, serial) - measured
    return Fit(law=law, serial=serial, residual=float(np.sqrt((away**2).mean())))


def _least(p: Array, measured: Array) -> float:
    """Search Amdahl's fraction between the smallest and the largest that single points have, ever more finely."""
    own = np.maximum((1 / measured - 1 / p) / (1 - 1 / p), 0.0)
    low, high = float(own.min()), float(own.max())
    for _ in range(8):
        tried = np.linspace(low, high, 101)
        missed = ((_many(p, tried) - measured) ** 2).sum(axis=1)
        best = int(missed.argmin())
        low, high = float(tried[max(best - 1, 0)]), float(tried[min(best + 1, 100)])
    return float(tried[best])


def _many(p: Array, fractions: Array) -> Array:
    """Return Amdahl's speedups, one row per fraction."""
    s = fractions[:, None]
    return np.asarray(1 / (s + (1 - s) / p[None, :]))


def fit_line(sizes: tuple[int, ...], seconds: Array) -> tuple[float, float]:
    """Return a, b > 0 of T = a + b * size with the least squared error of log T: each size counts alike.

    >>> a, b = fit_line((1, 10, 100, 1000), np.array([2.1, 3.0, 12.0, 102.0]))
    >>> round(a, 6), round(b, 6)
    (2.0, 0.1)
    """
    x, logs = np.array(sizes, float), np.log(seconds)
    a, b = float(seconds.min()), float(seconds[-1] / x[-1])
    for _ in range(100):  # Gauss-Newton steps for log a and log b
        fitted = a + b * x
        slopes = np.stack([a / fitted, b * x / fitted], axis=1)
        step, *_ = np.linalg.lstsq(slopes, logs - np.log(fitted))
        a, b = (float(v) for v in np.array([a, b]) * np.exp(np.clip(step, -1, 1)))
        if np.abs(step).max() < 1e-12:
            break
    return a, b


def refusal(ranks: Sequence[int]) -> str | None:
    """Say why no law can be fitted to points at these numbers of ranks; None if one can be.

    >>> refusal([1, 4, 4])
    'a fit needs at least two rank counts above 1; there is only one'
    """
    several = len({count for count in ranks if count > 1})
    if several >= LEAST:
        return None
    return f"a fit needs at least two rank counts above 1; there {'is only one' if several else 'are none'}"
