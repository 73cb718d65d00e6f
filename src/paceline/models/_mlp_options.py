"""What an mlp's options may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.errors import UsageError, unknown
from paceline.models._activations import ACTIVATIONS
from paceline.models._losses import LOSSES


def check_options(
    sizes: Sequence[int], activation: str, loss: str, regression: bool, normalise: bool, dtype: Any
) -> None:
    """Refuse what makes no network, with a UsageError."""
    if len(sizes) < 2 or min(sizes) < 1:
        raise UsageError(f"an mlp's layers must have at least 1 unit each; got {'-'.join(map(str, sizes))}")
    if activation not in ACTIVATIONS:
        raise unknown("activation of mlp", activation, ACTIVATIONS)
    if loss not in LOSSES:
        raise unknown("loss of mlp", loss, LOSSES)
    if np.dtype(dtype) not in (np.float32, np.float64):
        raise UsageError(f"an mlp computes in float32 or float64; got {np.dtype(dtype)}")
    if loss == "cross-entropy" and regression:
        raise UsageError(
            "cross-entropy needs classes, and these labels are real numbers; choose squared-error"
        )
    if loss == "cross-entropy" and sizes[-1] < 2:
        raise UsageError(f"cross-entropy needs at least 2 classes; got {sizes[-1]}")
    if normalise and min(sizes[1:-1], default=2) < 2:
        raise UsageError(
            f"normalise needs hidden layers of at least 2 units; got {'-'.join(map(str, sizes))}"
        )
