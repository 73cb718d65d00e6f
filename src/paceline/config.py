"""The settings of a run: each with its default and its help, in one place."""

from __future__ import annotations

import dataclasses
import math
import numbers
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, Literal

from paceline.errors import UsageError, unknown

# The smallest allowed values of whole numbers.
LEAST = {"batch": 1, "batch_per_rank": 1, "epochs": 0, "draws": 1, "threads": 1, "seed": 0, "reproducible": 1}
# The largest: thread pools take 32 bits, and far fewer threads than that; generators take 64 bits.
MOST = {"threads": 4096, "reproducible": 1 << 16}
LARGEST = 2**63 - 1
# The environment variable in which `paceline run` passes settings to the program that it starts.
SESSION = "PACELINE_SESSION"


def make_setting(default: Any, text: str, metavar: str | None = None) -> Any:
    """Return a field of a dataclass of settings; the command line shows `text` as its help."""
    return dataclasses.field(default=default, metadata={"help": text, "metavar": metavar})


@dataclass(frozen=True, kw_only=True)
class Config:
    """The settings of one run, as the command line, `fit` and the record spell them.

    >>> Config(data="iris", model="mlp:30,20").epochs
    5
    """

    data: str = make_setting("mnist", "a data set by name, a file or folder, or module:function", "DATA")
    model: str = make_setting("mlp:128,64", "a network by name with its options, or module:function", "MODEL")
    labels: Literal["classes", "numbers"] | None = make_setting(
        None,
        "what the labels of arrays, tables and archives are: classes, or numbers to be predicted (default: text and "
        "integers are classes, floats are numbers)",
    )
    strategy: str = make_setting("sync", "how the ranks train together, or module:class", "STRATEGY")
    update: str = make_setting("sgd", "how a gradient changes the parameters", "UPDATE")
    lr: float | None = make_setting(
        None,
        "learning rate, applied to the mean gradient of a batch (default: the model's own, or 0.1, as it suits --update)",
        "RATE",
    )
    clip: float | None = make_setting(
        None,
        "scale the mean gradient of a batch down to this norm, if its norm is larger; it is the one that the update uses",
        "NORM",
    )
    schedule: str = make_setting("constant", "how the learning rate changes with the step", "SCHEDULE")
    lr_scaling: Literal["none", "linear", "square-root"] = make_setting(
        "none", "with --batch-per-rank: how the learning rate grows with the ranks"
    )
    batch: int | None = make_setting(
        None,
        "samples in a batch, which the ranks of synchronous strategies divide among themselves (strong scaling); with "
        "other strategies every rank computes whole batches (default: 64)",
        "N",
    )
    batch_per_rank: int | None = make_setting(
        None,
        "samples per rank, instead of --batch: if ranks divide a batch, it grows with their number (weak scaling)",
        "N",
    )
    epochs: int = make_setting(5, "passes over the training data", "N")
    draws: int | None = make_setting(
        None, "make an epoch this many randomly drawn batches instead of one pass over the data", "N"
    )
    dtype: Literal["float32", "float64"] = make_setting("float32", "type of the parameters of NumPy networks")
    seed: int = make_setting(0, "seed of the initial weights, the order of the samples and dropout", "N")
    threads: int | None = make_setting(None, "threads per rank (default: cores // ranks; simulated: 1)", "N")
    on_divergence: Literal["stop", "halve", "ignore"] = make_setting(
        "stop",
        "what to do when the loss becomes NaN or infinite, runs away or no longer changes: stop, go back to good "
        "parameters with half the learning rate, or continue",
    )
    reproducible: int | None = make_setting(
        None,
        "compute gradients in V fixed pieces of each batch and add them in a fixed order, so that 1, 2, 4 ... V ranks "
        "give the same bits (sync and serial; V is a power of two; threads: 1, unless given)",
        "V",
    )
    replay: str | None = make_setting(
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
            if int(value) > (most := MOST.get(name, LARGEST)):
                raise UsageError(f"{name.replace('_', '-')} must be at most {most:,}; got {value}")
            object.__setattr__(self, name, int(value))  # JSON has no NumPy numbers
        if self.batch is not None and self.batch_per_rank is not None:
            raise UsageError("batch and batch-per-rank exclude each other; give one of them")
        if self.reproducible is not None:
            if self.reproducible & (self.reproducible - 1):
                raise UsageError(f"reproducible must be a power of two; got {self.reproducible}")
            if self.batch_per_rank is not None:
                raise UsageError(
                    "reproducible needs batch: with batch-per-rank, the batch grows with the ranks"
                )
            if self.threads is None:
                object.__setattr__(self, "threads", 1)  # libraries add in another order with another number
        for name in ("lr", "clip"):
            if (number := getattr(self, name)) is None:
                continue
            real = isinstance(number, numbers.Real) and not isinstance(number, bool)
            if not (real and 0 < number < math.inf):
                raise UsageError(f"{name} must be a number above 0; got {number!r}")
            object.__setattr__(self, name, float(number))
        for name, choices in (
            ("lr_scaling", ("none", "linear", "square-root")),
            ("dtype", ("float32", "float64")),
            ("on_divergence", ("stop", "halve", "ignore")),
            ("labels", (None, "classes", "numbers")),
        ):
            if getattr(self, name) not in choices:
                raise unknown(
                    name.replace("_", "-"), str(getattr(self, name)), [word for word in choices if word]
                )
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


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program with its own training loop, as `paceline run` starts it.

    >>> Program(file="train.py", arguments=("--seed", "{seed}")).words(seed=3)
    ['train.py', '--seed', '3']
    """

    file: str
    arguments: tuple[str, ...] = ()
    """In them, {seed} stands for the seed of a run."""
    until: str = ""
    """The target at which training ends, such as "perplexity<=9"; empty: only after the last epoch."""

    def words(self, seed: int) -> list[str]:
        """Return the file and the arguments for a run with this seed."""
        return [self.file, *self.fill(seed=seed).arguments]

    def fill(self, **values: object) -> Program:
        """Return the program with the values of placeholders in its arguments; None leaves a placeholder as it is."""
        arguments = self.arguments
        for name, value in values.items():
            if value is not None:
                arguments = tuple(word.replace(f"{{{name}}}", str(value)) for word in arguments)
        return replace(self, arguments=arguments)

    def check_placeholders(self, known: Sequence[str] = ("seed",)) -> None:
        """Raise a UsageError for a placeholder that is misspelt or that nothing would replace.

        Other words in braces are the program's own.

        >>> Program(file="train.py", arguments=("--seed={sed}", "--as", "{name}")).check_placeholders()
        Traceback (most recent call last):
        paceline.errors.UsageError: unknown placeholder {sed} in the arguments of train.py; choose one of {seed}
        """
        settings = {setting.name for setting in fields(Config)} | {"ranks"}
        for word in (found for argument in self.arguments for found in re.findall(r"\{(\w+)\}", argument)):
            near = get_close_matches(word.lower(), known, cutoff=0.7)
            if word not in known and (near or word.lower() in settings):
                choices = ", ".join(f"{{{name}}}" for name in known)
                raise UsageError(
                    f"unknown placeholder {{{word}}} in the arguments of {self.file}; choose one of {choices}"
                )


@dataclass(frozen=True)
class Interval:
    """A time between two checkpoints: in seconds, steps or epochs; all None: never.

    >>> Interval.parse("30s"), Interval.parse("500 steps"), Interval.parse("epoch").epochs
    (Interval(seconds=30.0, steps=None, epochs=None), Interval(seconds=None, steps=500, epochs=None), 1)
    """

    seconds: float | None = None
    steps: int | None = None
    epochs: int | None = None

    @property
    def any(self) -> bool:
        """True unless it means never."""
        return (self.seconds, self.steps, self.epochs) != (None, None, None)

    @classmethod
    def parse(cls, text: str, what: str = "checkpoint-every") -> Interval:
        """Parse "30s", "10m", "1h", "500 steps", "epoch", "2 epochs" or "never"."""
        words = str(text).strip().lower()
        if words == "never":
            return cls()
        if words == "auto":
            return cls(seconds=180.0)
        if words == "epoch":
            return cls(epochs=1)
        counted = re.fullmatch(r"(\d{1,15})\s*(step|epoch)s?", words)
        if counted and int(counted[1]) > 0:
            return cls(**{f"{counted[2]}s": int(counted[1])})
        if counted is None and (found := parse_duration(words)) is not None and found > 0:
            return cls(seconds=found)
        raise UsageError(
            f"{what} must be a time (30s, 10m, 1h), N steps, epoch, N epochs or never; got {text!r}"
        )


def parse_duration(text: str) -> float | None:
    """Return the seconds that a text such as "30s", "1.5m", "2h" or "45" means; None if it means none.

    >>> parse_duration("1.5m"), parse_duration("45"), parse_duration("soon")
    (90.0, 45.0, None)
    """
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{0,9})?)\s*(s|m|h|d)?", text.strip().lower())
    return (
        None if found is None else float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2] or "s"]
    )


@dataclass(frozen=True, kw_only=True)
class Safety:
    """How a run is protected against signals, failures and stalls. None of this changes what is trained.

    >>> Safety(checkpoint_every="500 steps").interval.steps
    500
    """

    checkpoint_every: str = make_setting(
        "auto",
        "save a checkpoint at this interval: 30s, 10m, 500 steps, epoch or never (auto: 3m, and never in the simulator)",
        "TIME",
    )
    checkpoints: int = make_setting(2, "keep this many of the latest checkpoints", "K")
    stall_timeout: str = make_setting(
        "60s", "report a rank that makes no progress for this long, beyond the longest step so far", "TIME"
    )
    on_stall: Literal["warn", "abort", "checkpoint-abort"] = make_setting(
        "warn", "what to do about such a rank: only report it, end the run, or save a checkpoint and end it"
    )
    tolerate_failures: bool = make_setting(False, "continue without ranks that die (Open MPI), or restart")
    restarts: int = make_setting(
        3, "with --tolerate-failures: restart from the last checkpoint at most this many times", "R"
    )

    def __post_init__(self) -> None:
        Interval.parse(self.checkpoint_every)
        if not parse_duration(str(self.stall_timeout)) and self.stall_timeout != "never":
            raise UsageError(
                f"stall-timeout must be a time above 0 (60s, 5m) or never; got {self.stall_timeout!r}"
            )
        if self.on_stall not in ("warn", "abort", "checkpoint-abort"):
            raise unknown("on-stall", str(self.on_stall), ("warn", "abort", "checkpoint-abort"))
        if self.on_stall != "warn" and self.patience is None:
            raise UsageError(
                f"on-stall={self.on_stall} needs a stall-timeout; with never, no stall is noticed"
            )
        for name, least in (("checkpoints", 1), ("restarts", 0)):
            value: Any = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
                raise UsageError(f"{name} must be a whole number of at least {least}; got {value!r}")
        if "restarts" in self.changed and not self.tolerate_failures:
            raise UsageError(f"restarts={self.restarts} needs tolerate-failures")

    @classmethod
    def of_program(cls, stall_timeout: str = "60s", on_stall: Any = "warn") -> Safety:
        """Return the settings of a program with its own training loop, which has no checkpoints.

        >>> Safety.of_program("5m", "abort").patience
        300.0
        """
        if on_stall == "checkpoint-abort":
            raise UsageError("a program with its own loop has no checkpoints: on-stall must be warn or abort")
        return cls(checkpoint_every="never", stall_timeout=stall_timeout, on_stall=on_stall)

    @property
    def interval(self) -> Interval:
        """The interval between checkpoints."""
        return Interval.parse(self.checkpoint_every)

    @property
    def changed(self) -> tuple[str, ...]:
        """The names of the settings that differ from their defaults."""
        return tuple(
            setting.name for setting in fields(self) if getattr(self, setting.name) != setting.default
        )

    @property
    def patience(self) -> float | None:
        """Seconds without progress before a rank is reported; None: for ever."""
        return parse_duration(str(self.stall_timeout))
