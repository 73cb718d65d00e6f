"""Rules that correct stale gradients before a master applies the update: one file per rule."""

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
    """The properties of a gradient that has arrived at a master."""

    worker: int
    """The index of the worker that sent it."""
    tau: int
    """Staleness: updates made since the parameters that it was computed with were sent."""
    drift: Array
    """x - x_then: the change of the parameters since the worker received them. May be overwritten.

    Not filled for rules with `needs_drift = False`."""
    gap: float
    """Root mean square of x - x_then; may be estimated from some of the coordinates."""
    scale: float
    """The reciprocal of the batch size: `scale * g` is the mean gradient."""
    eta: float
    """The learning rate of this update."""
    shape: float = 1.0
    """The schedule's factor, already contained in `eta`; a rule with its own step size multiplies it by this."""


@runtime_checkable
class Rule(Protocol):
    """A master's treatment of stale gradients: a frozen dataclass of hyper-parameters; the rest is in `state`.

    The master calls `correct`, applies the run's update with `eta` times the returned factor, and then calls `show`
    to fill the values for the worker. Every piece of the parameters has a state of its own.

    >>> import numpy as np
    >>> from paceline.strategies.parameter_server.rules.plain import Plain
    >>> x, g, rule = np.ones(3), np.ones(3), Plain()
    >>> state = rule.start(x, workers=2)
    >>> rule.correct(g, x, Arrival(worker=1, tau=4, drift=x * 0, gap=0.0, scale=1.0, eta=0.1), state)
    1.0
    """

    def start(self, x: Array, workers: int) -> State:
        """Return the state of one piece before its first update: a dictionary of arrays."""
        ...

    def correct(self, g: Array, x: Array, arrival: Arrival, state: State) -> float:
        """Change the summed gradient `g` in place; return the factor on the learning rate.

        A rule that makes the whole step itself moves `x` and returns 0; it has `whole_step = True`, so that an update
        which would have no part in it is refused.
        """
        ...

    def show(self, x: Array, out: Array, worker: int, state: State) -> None:
        """Fill `out` with the values that the worker uses for its next gradient."""
        ...

    # Optional, for a rule whose state has one row per worker: `share_out(state, workers)` returns the state for another
    # number of workers, when a run is resumed on other ranks or goes on without some. Without it the state starts anew.


def make_rule(text: str) -> Rule:
    """Create a rule from its specification, with options separated by slashes.

    >>> make_rule("clip:norm=2")
    Clip(norm=2.0)
    """
    rule = spec.parse("rules", text.replace("/", ",") if ":" in text else text).make()
    if isinstance(rule, type) or not isinstance(rule, Rule):
        raise UsageError(
            f"{text} is not a rule: it makes a {type(rule).__name__} without start, correct and show"
        )
    return rule
