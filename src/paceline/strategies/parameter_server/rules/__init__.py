"""Rules that correct stale gradients before a master applies the update: one file per rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from paceline import names as spec
from paceline.errors import UsageError
from paceline.updates import Update

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

    One that derives from this class has no state, and shows a worker the current values, unless it says otherwise.
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
        return {}

    def correct(self, g: Array, x: Array, arrival: Arrival, state: State) -> float:
        """Change the summed gradient `g` in place; return the factor on the learning rate.

        A rule that makes the whole step itself moves `x` and returns 0; it has `whole_step = True`, so that an update
        which would have no part in it is refused. One that changes even a gradient that is not stale is an optimizer of its
        own, and says so with `changes_fresh = True`: it is compared with serial training under the same rule.
        """
        ...

    def show(self, x: Array, out: Array, worker: int, state: State) -> None:
        """Fill `out` with the values that the worker uses for its next gradient."""
        np.copyto(out, x)

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


def is_optimizer(rule: Rule) -> bool:
    """Return True for a rule that acts even without staleness, so that its results are not those of the update alone.

    >>> is_optimizer(make_rule("adaptive")), is_optimizer(make_rule("gap-aware"))
    (True, False)
    """
    return any(getattr(rule, name, False) for name in ("changes_fresh", "whole_step", "own_momentum"))


def check_rule(text: str, update: str) -> None:
    """Raise a UsageError for an update that a rule leaves nothing to do, or that does the same as the rule."""
    rule = make_rule(text)
    if getattr(rule, "own_momentum", False) and update.partition(":")[0] != "sgd":
        raise UsageError(
            f"rule={text} has its own momentum: it cannot be combined with --update {update}; choose another rule"
        )
    if getattr(rule, "whole_step", False) and update != "sgd":
        raise UsageError(
            f"rule={text} makes the whole step itself: --update {update} would have no effect; choose another rule"
        )


@dataclass(frozen=True, kw_only=True)
class Fresh:
    """A rule as the update of a single process, which applies every gradient at once, so that none is stale.

    The state holds the parameters of the master as `x`; those that `apply` is given are what it shows its worker.

    >>> x, sgd = np.zeros(2), spec.parse("updates", "sgd").make()
    >>> update = Fresh(rule=make_rule("clip:norm=2.5"), update=sgd, rate=0.1)
    >>> update.apply(x, np.array([3.0, 4.0]), 0.1, update.start(x))
    >>> x.round(3)
    array([-0.15, -0.2 ])
    """

    elementwise: ClassVar[bool] = False

    rule: Rule
    update: Update
    rate: float
    """The learning rate without the schedule's factor."""

    def start(self, x: Array) -> State:
        found = {"x": x.copy()}
        if getattr(self.rule, "needs_drift", True):
            found["_drift"] = np.zeros_like(x)
        found |= {_put("rule", name): values for name, values in self.rule.start(x, 1).items()}
        return found | {_put("update", name): values for name, values in self.update.start(x).items()}

    def apply(self, x: Array, g: Array, eta: float, state: State, scale: float = 1.0) -> None:
        own, drift = state["x"], state.get("_drift", x)
        if drift is not x:
            drift.fill(0)
        rule, update = dict(_take("rule", state)), dict(_take("update", state))
        shape = eta / self.rate if self.rate else 1.0
        arrival = Arrival(worker=0, tau=0, drift=drift, gap=0.0, scale=scale, eta=eta, shape=shape)
        factor = self.rule.correct(g, own, arrival, rule)
        if factor:
            self.update.apply(own, g, eta * factor, update, scale)
        self.rule.show(own, x, 0, rule)


def _put(kind: str, name: str) -> str:
    """Return the name of an array of a rule or update in the state of `Fresh`; one of working memory stays one."""
    return f"_{kind}.{name[1:]}" if name.startswith("_") else f"{kind}.{name}"


def _take(kind: str, state: State) -> Iterator[tuple[str, Array]]:
    for key, values in state.items():
        head, _, name = key.partition(".")
        if head.lstrip("_") == kind:
            yield ("_" if head.startswith("_") else "") + name, values
