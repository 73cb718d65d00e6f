"""Using a trained network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline import spec
from paceline.data import chunks, load
from paceline.errors import UsageError
from paceline.models import Model
from paceline.models._wrap import as_model, make
from paceline.record import Run

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """Scores of each sample, the class of the largest (empty for regression), and how they compare to the labels."""

    scores: Array
    classes: Array
    accuracy: float | None
    loss: float | None


def load_model(run: str | Path, *, model: Any = None, data: Any = None) -> Model:
    """The trained model of a run; `model` is needed where it was given as an object and not by name."""
    source = Run(run)
    config = source.config
    dataset = load(config["data"] if data is None else data)
    seeded = {"seed": config["seed"], "dtype": config["dtype"]}
    if model is not None:
        made = as_model(model, dataset, **seeded)
    else:
        try:
            made = make(spec.parse("models", config["model"]), dataset, **seeded)
        except (UsageError, TypeError) as error:
            raise UsageError(
                f"the model {config['model']!r} of {source.folder} cannot be made again: {error}"
            ) from None
    source.restore(made)
    return made


def predict(run: str | Path, *, data: Any = None, split: str = "test", model: Any = None) -> Predicted:
    """Apply the trained model of a run to one split of a data set (the run's own, unless another is given)."""
    config = Run(run).config
    dataset = load(config["data"] if data is None else data)
    trained = load_model(run, model=model)
    samples = getattr(dataset, split)
    if not len(samples):
        raise UsageError(f"{dataset.name} has no {split} samples")
    scores, loss, correct = [], 0.0, 0
    for inputs, labels in chunks(samples, dtype=trained.x.dtype):
        scores.append(np.array(trained.predict(inputs)))
        some_loss, some_correct = trained.evaluate(inputs, labels)
        loss, correct = loss + some_loss, correct + some_correct
    whole = np.concatenate(scores)
    return Predicted(
        scores=whole,
        classes=whole.argmax(axis=1) if dataset.classes else np.empty(0, np.int64),
        accuracy=correct / len(samples) if dataset.classes else None,
        loss=loss / len(samples),
    )
