"""How a gradient changes the parameters: one file an update, each on flat vectors or any slice of them, in place."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

Array = NDArray[Any]
State = dict[str, Array]


@runtime_checkable
class Update(Protocol):
    """A rule that moves `x` along its gradient. Its fields are its hyper-parameters; what it remembers is in `state`.

    Every rule works element by element, so the slices of a vector may be updated apart, each with its own state, by
    whoever owns them: the result is that of the whole, bit for bit.

    >>> import numpy as np
    >>> from paceline.updates.sgd import Sgd
    >>> x, update = np.ones(3), Sgd()
    >>> update.apply(x, np.full(3, 8.0), 0.5, update.start(x), scale=0.25)
    >>> x
    array([0., 0., 0.])
    """

    def start(self, x: Array) -> State:
        """The state of one slice before its first step: arrays only, so that a checkpoint is a set of arrays."""
        ...

    def apply(self, x: Array, g: Array, eta: float, state: State, scale: float = 1.0) -> None:
        """One step of learning rate `eta` along the mean gradient `scale * g`. `g` is consumed: it may be overwritten."""
        ...
