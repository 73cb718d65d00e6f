"""What a master does with a stale gradient before the run's update applies it: one file per rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from paceline import names as spec
from paceline.errors import UsageError

Array = NDArray[Any]
State = dict[str, Array]


@dataclass(slots=True)
class Arrival:
    """What a master knows of a gradient that has arrived."""

    worker: int
    """Which worker sent it, from 0."""
    tau: int
    """Staleness: updates made since the parameters that it was computed with were sent."""
    drift: Array
    """x - x_then: how far the parameters are from what the worker was shown. May be overwritten.

    Only filled for rules that do not say `needs_drift = False`."""
    gap: float
    """Root mean square of x - x_then; masters may take it from a sample of the coordinates."""
    scale: float
    """One over the samples of the batch: `scale * g` is the mean gradient."""
    eta: float
    """The learning rate of this update."""
    shape: float = 1.0
    """The schedule's factor, which `eta` contains: a rule with a step of its own multiplies that by it."""


@runtime_checkable
class Rule(Protocol):
    """How a master treats staleness: a frozen dataclass whose fields are its hyper-parameters; its memory is `state`.

    The master calls `correct`, then applies the run's update with `eta` times the factor that came back, and at last
    lets `show` fill what the worker gets. Every piece of the parameters has a state of its own.

    >>> import numpy as np
    >>> from paceline.strategies.parameter_server.rules.plain import Plain
    >>> x, g, rule = np.ones(3), np.ones(3), Plain()
    >>> state = rule.start(x, workers=2)
    >>> rule.correct(g, x, Arrival(worker=1, tau=4, drift=x * 0, gap=0.0, scale=1.0, eta=0.1), state)
    1.0
    """

    def start(self, x: Array, workers: int) -> State:
        """The state of one piece before its first update: arrays alone."""
        ...

    def correct(self, g: Array, x: Array, arrival: Arrival, state: State) -> float:
        """Change the summed gradient `g` in place; return the factor on the learning rate.

        A rule that makes the whole step itself moves `x` and returns 0; it has `whole_step = True`, so that an update
        which would have no part in it is refused.
        """
        ...

    def show(self, x: Array, out: Array, worker: int, state: State) -> None:
        """Fill `out`, what the worker gets to compute its next gradient with."""
        ...


def make_rule(text: str) -> Rule:
    """Make a rule from its words, its options separated by slashes.

    >>> make_rule("clip:norm=2")
    Clip(norm=2.0)
    """
    rule = spec.parse("rules", text.replace("/", ",") if ":" in text else text).make()
    if isinstance(rule, type) or not isinstance(rule, Rule):
        raise UsageError(
            f"{text} is not a rule: it makes a {type(rule).__name__} without start, correct and show"
        )
    return rule
