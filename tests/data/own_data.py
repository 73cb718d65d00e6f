"""A user's own functions that give data, for `module:function`."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.data import Dataset, load


def pair(samples: int = 20, shift: float = 0.0) -> tuple[Any, Any]:
    return np.full((samples, 3), shift), np.arange(samples) % 2


def ready(seed: int = 0) -> Dataset:
    return load(pair(), seed=seed)


class Mapped:
    def __init__(self, *, samples: int = 10) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return np.full(4, index), index % 2


NUMBER = 3
