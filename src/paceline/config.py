"""The settings of a run: each with its default and its help, in one place."""

from __future__ import annotations

import dataclasses
import math
import numbers
from dataclasses import dataclass
from typing import Any, Literal

from paceline.errors import UsageError, unknown

# The smallest allowed values of whole numbers.
LEAST = {"batch": 1, "batch_per_rank": 1, "epochs": 0, "draws": 1, "threads": 1, "seed": 0}


def _setting(default: Any, text: str, metavar: str | None = None) -> Any:
    return dataclasses.field(default=default, metadata={"help": text, "metavar": metavar})


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of one run, as the command line, `fit` and the record spell them.

    >>> Config(data="iris", model="mlp:30,20").epochs
    5
    """

    data: str = _setting("mnist", "a data set by name, a file or folder, or module:function", "DATA")
    model: str = _setting("mlp:128,64", "a network by name with its options, or module:function", "MODEL")
    strategy: str = _setting("sync", "how the ranks train together, or module:class", "STRATEGY")
    update: str = _setting("sgd", "how a gradient changes the parameters", "UPDATE")
    lr: float | None = _setting(
        None,
        "learning rate, applied to the mean gradient of a batch (default: the model's own, or 0.1)",
        "RATE",
    )
    schedule: str = _setting("constant", "how the learning rate changes with the step", "SCHEDULE")
    lr_scaling: Literal["none", "linear", "square-root"] = _setting(
        "none", "with --batch-per-rank: how the learning rate grows with the ranks"
    )
    batch: int | None = _setting(
        None,
        "samples in a batch, which the ranks of synchronous strategies divide among themselves (strong scaling); with "
        "other strategies every rank computes whole batches (default: 64)",
        "N",
    )
    batch_per_rank: int | None = _setting(
        None,
        "samples per rank, instead of --batch: if ranks divide a batch, it grows with their number (weak scaling)",
        "N",
    )
    epochs: int = _setting(5, "passes over the training data", "N")
    draws: int | None = _setting(
        None, "make an epoch this many randomly drawn batches instead of one pass over the data", "N"
    )
    dtype: Literal["float32", "float64"] = _setting("float32", "type of the parameters of NumPy networks")
    seed: int = _setting(0, "seed of the initial weights, the order of the samples and dropout", "N")
    threads: int | None = _setting(None, "threads per rank (default: cores // ranks; simulated: 1)", "N")
    on_divergence: Literal["stop", "halve", "ignore"] = _setting(
        "stop",
        "what to do when the loss becomes NaN or infinite, runs away or no longer changes: stop, go back to good "
        "parameters with half the learning rate, or go on",
    )
    replay: str | None = _setting(
        None, "repeat the order in which the masters of an earlier run served its workers", "RUN"
    )

    def __post_init__(self) -> None:
        if self.replay is not None and not (isinstance(self.replay, str) and self.replay):
            raise UsageError(f"replay must be the folder of a run; got {self.replay!r}")
        for name in ("data", "model", "strategy", "update", "schedule"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise UsageError(f"{name} must be a name, with options or without; got {value!r}")
        for setting in dataclasses.fields(self):
            name, value = setting.name, getattr(self, setting.name)
            least = LEAST.get(name)
            if least is None or (value is None and setting.default is None):
                continue
            if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
                raise UsageError(
                    f"{name.replace('_', '-')} must be a whole number of at least {least}; got {value!r}"
                )
            object.__setattr__(self, name, int(value))  # JSON has no NumPy numbers
        if self.batch is not None and self.batch_per_rank is not None:
            raise UsageError("batch and batch-per-rank exclude each other; give one of them")
        if self.lr is not None:
            rate: Any = self.lr
            real = isinstance(rate, numbers.Real) and not isinstance(rate, bool)
            if not (real and 0 < rate < math.inf):
                raise UsageError(f"lr must be a number above 0; got {rate!r}")
            object.__setattr__(self, "lr", float(rate))
        for name, choices in (
            ("lr_scaling", ("none", "linear", "square-root")),
            ("dtype", ("float32", "float64")),
            ("on_divergence", ("stop", "halve", "ignore")),
        ):
            if getattr(self, name) not in choices:
                raise unknown(name.replace("_", "-"), str(getattr(self, name)), choices)
        if self.lr_scaling != "none" and self.batch_per_rank is None:
            raise UsageError(
                f"lr-scaling={self.lr_scaling} needs batch-per-rank: a fixed batch does not grow"
            )

    def global_batch(self, ranks: int) -> int:
        """Return the samples in one step of all ranks together."""
        return self.batch_per_rank * ranks if self.batch_per_rank is not None else self.batch or 64

    def own_batch(self) -> int:
        """Return the samples in one step of one rank, if ranks compute whole batches."""
        return self.batch_per_rank or self.batch or 64
