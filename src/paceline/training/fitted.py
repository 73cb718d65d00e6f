"""The results of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.models import Model
from paceline.record import Epoch


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The results of a run; `summary()` is what `--json` prints.

    >>> from paceline import fit
    >>> fitted = fit("mlp:8", "iris", strategy="serial", epochs=2, batch=10, runs=None, quiet=True)
    >>> fitted.parameters, len(fitted.history), fitted.summary()["global_batch"]
    (67, 2, 10)
    """

    run: Path | None
    """The run's folder, or None if none was asked for."""
    strategy: str
    ranks: int
    simulated: bool
    """True if the ranks were simulated: then all seconds are virtual."""
    seed: int
    epochs: int
    steps: int
    test_accuracy: float | None
    test_loss: float | None
    validation_accuracy: float | None
    loss: float | None
    """Mean training loss of the last epoch."""
    train_seconds: float
    """Evaluation left out."""
    samples_per_second: float | None
    seconds: dict[str, float]
    """By kind, mean over the ranks; `wait` is what an exchange took longer than on the rank that came to it last."""
    bytes_sent: int
    messages_sent: int
    data: str
    model_name: str
    parameters: int
    global_batch: int
    threads: int
    diverged: str | None
    """What went wrong, in words, if training diverged and was stopped."""
    findings: dict[str, Any]
    """What the strategy found out: staleness, each rank's convergence …"""
    remarks: tuple[str, ...]
    """The same in sentences."""
    history: tuple[Epoch, ...] = field(repr=False)
    model: Model = field(repr=False)
    """The trained model, in this process."""

    def summary(self) -> dict[str, Any]:
        """Return the results as JSON values."""
        values = {k: v for k, v in vars(self).items() if k not in ("history", "model")}
        return {**values, "run": None if self.run is None else str(self.run), "remarks": list(self.remarks)}
