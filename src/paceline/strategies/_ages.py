"""How old gradients were when they were applied, summed up."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def summed_up(tau: NDArray[Any]) -> dict[str, Any]:
    """Of updates that were `tau` updates old; `histogram`: how many were 0, 1, 2 … old.

    >>> summed_up(np.array([0, 1, 1, 4]))
    {'mean': 1.5, 'median': 1.0, 'largest': 4, 'histogram': [1, 2, 0, 0, 1]}
    """
    if not tau.size:
        return {"mean": 0.0, "median": 0.0, "largest": 0, "histogram": []}
    return {
        "mean": float(tau.mean()),
        "median": float(np.median(tau)),
        "largest": int(tau.max()),
        "histogram": np.bincount(tau.astype(np.int64)).tolist(),
    }
