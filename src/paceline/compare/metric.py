"""Measures of quality: accuracy, loss and the user's own metrics, which way is better, and their values in a record."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from paceline.errors import UsageError
from paceline.record import Run
from paceline.text import percent

# Words in the names of well-known metrics.
LOWER = (
    "loss", "error", "perplexity", "ppl", "mse", "rmse", "mae", "mape", "msle", "wer", "cer", "nll", "bpc", "bpb", "bits",
    "fid", "deviance", "distance", "regret", "brier", "ece", "crossentropy", "entropy",
)  # fmt: skip
HIGHER = (
    "accuracy", "acc", "f1", "fscore", "precision", "recall", "auc", "auroc", "auprc", "bleu", "rouge", "meteor", "iou",
    "miou", "dice", "map", "r2", "psnr", "ssim", "mcc", "kappa", "ndcg", "mrr", "hits", "sensitivity", "specificity",
    "reward", "score", "likelihood", "correlation", "spearman", "pearson", "em",
)  # fmt: skip
# Accuracies within a point of each other, and other values within a tenth, count as equally good.
POINT, TENTH = 0.01, 0.1
# Values that differ by less are equal.
EQUAL = 1e-9


@dataclass(frozen=True)
class Metric:
    """A measure of quality.

    >>> Metric("perplexity", higher=False).spell(12.34567), Metric("accuracy", higher=True).spell(0.975)
    ('12.35', '97.50 %')
    """

    name: str
    higher: bool
    """True if higher values are better."""

    @property
    def percent(self) -> bool:
        """True for fractions that are shown as percentages."""
        return self.name == "accuracy"

    def spell(self, value: float) -> str:
        """Format a value."""
        return percent(value) if self.percent else f"{value:.4g}"

    def describe(self, value: float, where: str = "test") -> str:
        """Format a value with the metric's name, unless its unit says enough."""
        if self.percent:
            return percent(value)
        return f"{self.heading(where)} {value:.3g}"

    def heading(self, where: str) -> str:
        """Return its name with the samples that it was computed on, "test" or "validation"."""
        return f"{where} {self.name}"

    def key(self, value: float) -> float:
        """Return a number that is lower for better values."""
        return -value if self.higher else value

    def best(self, values: Iterable[float]) -> float | None:
        """Return the best of some values; None if there are none."""
        return min(values, key=self.key, default=None)

    def worst(self, values: Iterable[float]) -> float | None:
        """Return the worst of some values; None if there are none."""
        return max(values, key=self.key, default=None)

    def slack(self, value: float) -> float:
        """Return the distance from a value within which others are as good."""
        return POINT if self.percent else TENTH * abs(value)

    def relax(self, value: float) -> float:
        """Return the worst value that is about as good as another.

        >>> Metric("loss", higher=False).relax(0.5), round(Metric("accuracy", higher=True).relax(0.98), 2)
        (0.55, 0.97)
        """
        return value - self.slack(value) if self.higher else value + self.slack(value)

    def reaches(self, value: float, goal: float) -> bool:
        """Return True if a value is at least as good as another.

        >>> Metric("loss", higher=False).reaches(0.3, goal=0.5), Metric("f1", higher=True).reaches(0.3, goal=0.5)
        (True, False)
        """
        room = EQUAL * max(1.0, abs(goal))
        return value >= goal - room if self.higher else value <= goal + room

    def points(self, run: Run) -> list[tuple[float, float]]:
        """Return the seconds and values at the ends of epochs; without validation samples, those of the final test."""
        found = [
            (epoch["train_seconds"], value)
            for epoch in run.epochs
            if (value := read_epoch(epoch, self.name)) is not None
        ]
        if not found and (end := read_test(run, self.name)) is not None:
            found = [(run.summary["train_seconds"], end)]
        return found


ACCURACY, LOSS = Metric("accuracy", higher=True), Metric("loss", higher=False)


def read_epoch(epoch: dict[str, object], name: str) -> float | None:
    """Return the value of a metric on the validation samples, in a line of epochs.jsonl."""
    found = epoch[f"validation_{name}"] if name in ("accuracy", "loss") else None
    if found is None:
        found = (epoch.get("metrics") or {}).get(name)  # type: ignore[attr-defined]
    return None if found is None else float(found)  # type: ignore[arg-type]


def read_test(run: Run, name: str) -> float | None:
    """Return the value of a metric on the test samples; None if it is unknown."""
    summary = run.summary
    found = summary.get(f"test_{name}") if name in ("accuracy", "loss") else None
    found = (summary.get("test_metrics") or {}).get(name) if found is None else found
    return None if found is None else float(found)


def read_last(run: Run, name: str) -> float | None:
    """Return the value of a metric on the validation samples at the end of the last epoch; None if it is unknown."""
    return read_epoch(run.epochs[-1], name) if run.epochs else None


def names_in(runs: Iterable[Run]) -> list[str]:
    """Return the names of the user's own metrics in some runs, in the order in which they first appear."""
    found: dict[str, None] = {}
    for run in runs:
        for values in (*(epoch.get("metrics") for epoch in run.epochs), run.summary.get("test_metrics")):
            found |= dict.fromkeys(values or ())
    return [name for name in found if name not in ("accuracy", "loss")]


def direction(name: str) -> bool | None:
    """Return True if higher values of a well-known metric are better, False if lower ones are; None if it is unknown.

    >>> direction("token_error_rate"), direction("F1 macro"), direction("speed")
    (False, True, None)
    """
    apart = re.sub(r"([a-z])([A-Z])", r"\1 \2", name)
    words = re.findall(r"[a-z0-9]+", f"{name} {apart}".lower())
    found = {False for word in words if word in LOWER} | {True for word in words if word in HIGHER}
    return next(iter(found)) if len(found) == 1 else None


def metric_named(name: str) -> Metric | None:
    """Return a metric whose direction is well known; None if it is not."""
    higher = direction(name)
    return None if higher is None else Metric(name, higher)


@dataclass(frozen=True)
class Goal:
    """A value of a metric that should be reached, as a user writes it.

    >>> Goal.parse("perplexity<=12"), Goal.parse("0.9").metric.name, str(Goal.parse("accuracy>=98%"))
    (Goal(metric=Metric(name='perplexity', higher=False), value=12.0), 'accuracy', 'accuracy >= 98.00 %')
    """

    metric: Metric
    value: float

    def __str__(self) -> str:
        return f"{self.metric.name} {'>=' if self.metric.higher else '<='} {self.metric.spell(self.value)}"

    @property
    def text(self) -> str:
        """The text that `parse` reads."""
        return f"{self.metric.name}{'>=' if self.metric.higher else '<='}{self.value:.15g}"

    @classmethod
    def parse(cls, text: object) -> Goal:
        """Parse "perplexity<=12", "accuracy>=98%", "loss 0.3" or, for an accuracy, "0.9"."""
        found = re.fullmatch(
            r"\s*(?:(?P<name>[^<>=]*?[^<>=\s])\s*(?P<sign><=|>=|<|>|=|\s))?\s*(?P<value>[-+]?[0-9.]+(?:e[-+]?[0-9]+)?)\s*(?P<percent>%)?\s*",
            str(text), re.IGNORECASE,
        )  # fmt: skip
        try:
            value = float(found["value"]) if found else float("nan")
        except ValueError:
            value = float("nan")
        if found is None or not abs(value) < 1e300:
            raise UsageError(
                f"a target must be a metric and a value, such as accuracy>=0.9, loss<=0.3 or perplexity<=12; got {text!r}"
            )
        name, sign = found["name"] or "accuracy", (found["sign"] or "").strip()
        value /= 100 if found["percent"] else 1
        known = direction(name)
        higher = sign.startswith(">") if sign and sign != "=" else known
        if higher is None:
            raise UsageError(
                f"it is unknown whether higher or lower values of {name} are better: write {name}>={value:g} or "
                f"{name}<={value:g}"
            )
        if name in ("accuracy", "loss") and higher is not known:
            better = "higher" if known else "lower"
            raise UsageError(
                f"a target for {name} needs {'>=' if known else '<='}, because {better} is better"
            )
        if name == "accuracy" and not 0 < value <= 1:
            if found["percent"]:
                raise UsageError(f"a target accuracy must be above 0% and at most 100%; got {100 * value:g}%")
            percent = f"; write {value:g}% for percent" if 1 < value <= 100 else ""
            raise UsageError(f"a target accuracy must be above 0 and at most 1; got {value:g}{percent}")
        return cls(Metric(name, higher), value)
