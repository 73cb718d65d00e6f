"""What `ready` was told in a pass, held against what the pass leaves."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.data import Batch

SENTINEL = 777


class Calls:
    """Runs `gradient(batch, ready)` and checks its promises.

    `order`: the layers as they came; `zeros`: for each, how many layers had no gradient yet at that moment.
    """

    def __init__(self, model: Any, batch: Batch, *, gradient: Any = None) -> None:
        gradient = gradient or model.gradient
        x = model.x.copy()
        self.order: list[int] = []
        self.zeros: list[int] = []
        parts: dict[int, np.ndarray] = {}

        def ready(layer: int) -> None:
            self.order.append(layer)
            self.zeros.append(sum(not model.g[part].any() for part in model.layers))
            parts[layer] = model.g[model.layers[layer]].copy()
            model.g[model.layers[layer]] = SENTINEL  # whoever touches it now is found out

        model.g[:] = 0
        self.loss = gradient(batch, ready)
        assert sorted(self.order) == list(range(len(model.layers)))
        assert (model.g == SENTINEL).all()
        self.g = np.concatenate([parts[layer] for layer in range(len(model.layers))])
        np.testing.assert_array_equal(model.x, x)
