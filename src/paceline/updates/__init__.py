"""How a gradient changes the parameters: one file an update, in place, on a vector or any slice of it."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

Array = NDArray[Any]
State = dict[str, Array]


@runtime_checkable
class Update(Protocol):
    """A rule that moves `x` against its gradient. Its fields are its hyper-parameters; its memory is `state`.

    Every rule works element by element, so the slices of a vector may be updated apart, each with its own
    state, by whoever owns them: the result is that of the whole, bit for bit.

    >>> import numpy as np
    >>> from paceline.updates.sgd import Sgd
    >>> x, update = np.ones(3), Sgd()
    >>> update.apply(x, np.full(3, 8.0), 0.5, update.start(x), scale=0.25)
    >>> x
    array([0., 0., 0.])
    """

    def start(self, x: Array) -> State:
        """The state of one slice before its first step: arrays alone, so that saving it needs no pickle.

        A key that starts with an underscore is room to work in: it may be left out of what is saved.
        """
        ...

    def apply(self, x: Array, g: Array, eta: float, state: State, scale: float = 1.0) -> None:
        """One step of learning rate `eta` against the mean gradient `scale * g`; `g` may be overwritten."""
        ...
