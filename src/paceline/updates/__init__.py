"""Updates: how a gradient changes the parameters, in place, on a whole vector or any slice of it; one file each.

`TorchOptimizer` is any `torch.optim.Optimizer` as an update; PyTorch is imported when it is first used.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from paceline import import_when_used
from paceline.errors import UsageError

if TYPE_CHECKING:
    from paceline.updates._torch import TorchOptimizer as TorchOptimizer
    from paceline.updates._torch import TorchState as TorchState
    from paceline.updates._torch import describe_optimizer as describe_optimizer

Array = NDArray[Any]
State = dict[str, Array]

__getattr__ = import_when_used(
    __name__, {"TorchOptimizer": "_torch", "TorchState": "_torch", "describe_optimizer": "_torch"}
)


@runtime_checkable
class Update(Protocol):
    """A rule that moves `x` against its gradient. Its fields are its hyper-parameters; its memory is `state`.

    An update that works element by element may be applied to slices of a vector separately, each with its own state, by
    the ranks that own them: the result equals that of the whole vector, bit for bit. One that does not, because it clips
    the gradient by its norm for example, has an attribute `elementwise = False` and is given whole vectors only. One whose
    hyper-parameters depend on the place in the vector has a method `start_at(x, first)`, which is called instead of `start`
    with the number of the slice's first element. One that has no state, and whose steps depend on nothing but their
    arguments, may say so with `keeps_nothing = True`: simulated steps can then be taken in another process. One that needs
    another learning rate than plain SGD has a method `default_rate(rate)`: see `choose_rate`.

    >>> import numpy as np
    >>> from paceline.updates.sgd import Sgd
    >>> x, update = np.ones(3), Sgd()
    >>> update.apply(x, np.full(3, 8.0), 0.5, update.start(x), scale=0.25)
    >>> x
    array([0., 0., 0.])
    """

    def start(self, x: Array) -> State:
        """Return the state of a slice before its first step: only arrays, so that no pickle is needed to save it.

        A key that starts with an underscore is working memory, which need not be saved.
        """
        ...

    def apply(self, x: Array, g: Array, eta: float, state: State, scale: float = 1.0) -> None:
        """Take a step of learning rate `eta` against the mean gradient `scale * g`; `g` may be overwritten."""
        ...


def is_elementwise(update: Any) -> bool:
    """Return True if an update may be applied to slices of a vector; those that do not say otherwise may.

    >>> from paceline.updates.sgd import Sgd
    >>> is_elementwise(Sgd())
    True
    """
    return bool(getattr(update, "elementwise", True))


def start_update(update: Any, x: Array, first: int = 0) -> State:
    """Return the state of an update for the slice `x` of the vector that begins with element `first`.

    >>> from paceline.updates.momentum import Momentum
    >>> start_update(Momentum(), np.zeros(2), first=10)
    {'v': array([0., 0.])}
    """
    start_at = getattr(update, "start_at", None)
    state: State = update.start(x) if start_at is None else start_at(x, first)
    return state


def choose_rate(update: Any, rate: float) -> float:
    """Return the learning rate of an update for which the user gives none, if `rate` suits the model with plain SGD.

    >>> from paceline.updates.adam import Adam
    >>> from paceline.updates.momentum import Momentum
    >>> choose_rate(Adam(), 2.0), round(choose_rate(Momentum(beta=0.9), 2.0), 3)
    (0.001, 0.2)
    """
    inner = update.update if isinstance(update, Clipped) else update
    choose = getattr(inner, "default_rate", None)
    return rate if choose is None else float(choose(rate))


def describe_update(update: Any) -> str:
    """Return a torch optimizer, clipped or not, as records describe it."""
    from paceline.updates._torch import describe_optimizer

    inner = update.update if isinstance(update, Clipped) else update
    return describe_optimizer(inner.optimizer)


class Clipped:
    """An update whose mean gradient is first scaled down to the norm `most`, if its norm is larger.

    As in `torch.nn.utils.clip_grad_norm_`, the factor is most / (norm + 1e-6). The norm is that of all parameters together,
    so this update gets whole vectors only.

    >>> from paceline.updates.sgd import Sgd
    >>> x, update = np.zeros(2), Clipped(Sgd(), 1.0)
    >>> update.apply(x, np.array([30.0, 40.0]), 0.5, update.start(x), scale=0.1)
    >>> x.round(3)
    array([-0.3, -0.4])
    """

    elementwise = False

    def __init__(self, update: Any, most: float) -> None:
        self.update, self.most = update, most

    def start(self, x: Array) -> State:
        return start_update(self.update, x)

    def apply(self, x: Array, g: Array, eta: float, state: State, scale: float = 1.0) -> None:
        norm = abs(scale) * float(np.linalg.norm(g))
        if not norm < math.inf:  # the squares of a float32 may be too large for it
            norm = abs(scale) * float(np.linalg.norm(g.astype(np.float64)))
        factor = self.most / (norm + 1e-6)
        self.update.apply(x, g, eta, state, scale * factor if factor < 1 else scale)


def check_not_negative(what: str, value: float) -> None:
    """Check that a hyper-parameter is finite and at least 0.

    >>> check_not_negative("weight-decay of sgd", -1)
    Traceback (most recent call last):
    paceline.errors.UsageError: weight-decay of sgd must be at least 0; got -1
    """
    if not 0 <= value < math.inf:
        raise UsageError(f"{what} must be at least 0; got {value}")


def check_positive(what: str, value: float) -> None:
    """Check that a hyper-parameter is finite and above 0.

    >>> check_positive("epsilon of adam", 0)
    Traceback (most recent call last):
    paceline.errors.UsageError: epsilon of adam must be above 0; got 0
    """
    if not 0 < value < math.inf:
        raise UsageError(f"{what} must be above 0; got {value}")


def check_below_one(what: str, value: float) -> None:
    """Check that a hyper-parameter is at least 0 and below 1.

    >>> check_below_one("beta of momentum", 1)
    Traceback (most recent call last):
    paceline.errors.UsageError: beta of momentum must be at least 0 and below 1; got 1
    """
    if not 0 <= value < 1:
        raise UsageError(f"{what} must be at least 0 and below 1; got {value}")


def scale_and_decay(g: Array, scale: float, x: Array, weight_decay: float) -> None:
    """Replace g by scale g + weight_decay x, the gradient with an L2 penalty, without further memory.

    >>> g = np.array([2.0])
    >>> scale_and_decay(g, 0.5, np.array([4.0]), 0.25)
    >>> g
    array([2.])
    """
    if weight_decay == 0:
        np.multiply(g, scale, g)
        return
    np.multiply(g, scale / weight_decay, g)
    np.add(g, x, g)
    np.multiply(g, weight_decay, g)
