"""How good a model is, where one is evaluated and where time only is simulated."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.comm.control import Control
from paceline.data import ArraySplit, load
from paceline.models.mlp import build
from paceline.vmpi import run
from paceline.worker.evaluation import agree_on_buffers, score, score_together
from tests.data.test_batches import Unread


class Hollow:
    """A model that only says how many samples it was asked about."""

    time_only = True

    def __init__(self) -> None:
        self.x = np.zeros(3, np.float32)
        self.asked: list[tuple[Any, ...]] = []
        self.buffers = {"mean": np.zeros(2)}

    def evaluate(self, inputs: np.ndarray, labels: np.ndarray) -> tuple[float, int]:
        self.asked.append((inputs.shape, inputs.dtype.name, len(labels)))
        return 0.0, 0


def test_a_hollow_model_is_asked_about_every_sample_and_none_is_read() -> None:
    model: Any = Hollow()
    split = Unread(np.zeros((2500, 4), np.float32), np.zeros(2500))
    assert score(model, split).means() == (None, None)  # and so knows nothing
    assert model.asked == [((count, 4), "float32", count) for count in (1000, 1000, 500)]
    model.asked.clear()
    score(model, split, rank=2, ranks=3)
    assert model.asked == [((833, 4), "float32", 833)]
    assert score_together(model, split, Control(None)).means() == (None, None)


def test_parts_of_a_split_add_up() -> None:
    iris = load("iris")
    model = build(iris, 8)
    split = ArraySplit(np.random.default_rng(1).normal(size=(11, 4)), np.arange(11) % 3)
    whole = score(model, split)
    parts = [score(model, split, rank, 3) for rank in range(3)]
    assert whole.weight == sum(part.weight for part in parts) == 11
    assert whole.answers == sum(part.answers for part in parts) == 11
    assert np.isclose(whole.loss, sum(part.loss for part in parts))
    assert score(model, split, 0, 20).answers == 1
    assert score(model, split, 19, 20).weight == 0


def test_hollow_buffers_are_not_spoken_of() -> None:
    control: Any = Control(None)
    control.size = 4  # who spoke would fail: there is nobody
    agree_on_buffers(Hollow(), control)  # type: ignore[arg-type]


def test_buffers_are_averaged_where_they_are_finite() -> None:
    """An attention mask holds -inf, which minus itself would be NaN."""

    def program(comm: Any) -> tuple[np.ndarray, np.ndarray]:
        model: Any = Hollow()
        mask, mean = np.array([0.0, -np.inf]), np.array([1.0, comm.Get_rank(), np.inf], np.float32)
        model.time_only, model.buffers = False, {"mask": mask, "mean": mean}
        agree_on_buffers(model, Control(comm))
        return mask, mean

    for mask, mean in run(program, ranks=3).values:
        assert np.array_equal(mask, [0.0, -np.inf])
        assert np.array_equal(mean, [1.0, 1.0, np.inf])
