"""A network that takes its time until a file says otherwise: a test can act while it trains. Tests copy this file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from paceline.models.mlp import MLP, build


def net(data: Any, seed: int = 0, dtype: str = "float32") -> MLP:
    made = build(data, 8, seed=seed, dtype=dtype)
    gradient = made.gradient

    def slowly(*arguments: Any, **named: Any) -> float:
        if not Path("fast").exists():
            time.sleep(0.2)
        return gradient(*arguments, **named)

    made.gradient = slowly  # type: ignore[method-assign]
    return made
