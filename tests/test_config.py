from __future__ import annotations

import numpy as np
import pytest

from paceline import Config, UsageError


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"epochs": -1}, "epochs must be a whole number of at least 0; got -1"),
        ({"batch": 0}, "batch must be a whole number of at least 1; got 0"),
        ({"batch": 1.5}, "got 1.5"),
        ({"batch": True}, "got True"),
        ({"batch_per_rank": 0}, "batch-per-rank must be"),
        ({"batch": 8, "batch_per_rank": 4}, "batch and batch-per-rank exclude each other; give one of them"),
        ({"lr": 0.0}, "lr must be a number above 0; got 0.0"),
        ({"lr": float("nan")}, "got nan"),
        ({"lr": True}, "lr must be a number above 0; got True"),
        ({"lr": "0.1"}, "lr must be a number above 0; got '0.1'"),
        ({"epochs": None}, "epochs must be a whole number of at least 0; got None"),
        ({"update": 3}, "update must be a name, with options or without; got 3"),
        ({"schedule": ""}, "schedule must be a name, with options or without; got ''"),
        ({"seed": -1}, "seed must be"),
        ({"threads": 0}, "threads must be"),
        ({"dtype": "float16"}, "unknown dtype 'float16'; choose one of float32, float64"),
        ({"lr_scaling": "linear"}, "lr-scaling=linear needs batch-per-rank"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Config(**settings)


def test_the_global_batch_grows_only_with_batch_per_rank() -> None:
    assert Config(batch=48).global_batch(7) == 48
    assert Config(batch_per_rank=16).global_batch(7) == 112


def test_numbers_of_numpy_s_are_numbers() -> None:
    config = Config(epochs=np.int64(2), seed=np.uint8(3), lr=np.float32(0.5))  # type: ignore[arg-type]
    assert [type(value) for value in (config.epochs, config.seed, config.lr)] == [int, int, float]
    assert (config.epochs, config.seed, config.lr) == (2, 3, 0.5)
    assert Config(lr=1).lr == 1.0
