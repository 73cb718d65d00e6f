"""The exchange of a small batch's gradient as its factors, between ranks that share memory.

With few samples a gradient has low rank: the activations and deltas of a batch of 16 are a sixth as long as
the reference network's gradient. So no rank forms a gradient of its own. Each leaves its samples' factors in
a shared window, and after a barrier multiplies out its own part of the sum from everybody's. What goes from
one core's cache to another's is the factors and the new x, and no gradient.

Xie et al., "Distributed machine learning via sufficient factor broadcasting", 2015.
"""

from __future__ import annotations

from typing import Any, TypeGuard

from paceline.collectives._exchange import Array, InWindow
from paceline.comm import channel
from paceline.models import FactoredModel, Model


def pays(model: Model, batch: int, ranks: int) -> TypeGuard[FactoredModel]:
    """Whether `model` can leave the factors of a batch, and they are few enough beside a gradient's bytes.

    The more ranks, the smaller the part of the activations that each of them reads. On 16 cores, with the reference
    network, factors were ahead up to a batch of 128 with 4 ranks (392 against 408 us a step) and up to 256 with 16
    (408 against 461): `benchmarks/factored.py`.

    >>> from paceline.models.mlp import MLP
    >>> [pays(MLP([784, 128, 64, 10]), batch, ranks=4) for batch in (16, 132, 133)]
    [True, True, False]
    """
    if not isinstance(model, FactoredModel):
        return False
    return model.factor_bytes(batch) < model.g.nbytes * (1 + ranks / 8)


class Factored(InWindow):
    """One x and one batch's factors, in one window; each rank sums and updates its part of x. One node."""

    def __init__(self, model: FactoredModel, comm: Any, batch: int) -> None:
        node = channel(comm).node
        super().__init__(model, node, model.factor_bytes(batch))
        if not node.hollow:
            model.place(self._x, model.g)
        self._sum = model.share_factors(self._rest, batch, node.rank, node.size)
        self._shared.fence()
        self.part = self._sum.part

    def reduce(self) -> Array:
        self._shared.fence()
        return self._sum()  # sum over all samples of h^T d, rows of part r

    def _own_g(self) -> Array:
        return self._model.g

    def _forget(self) -> None:
        del self._sum
