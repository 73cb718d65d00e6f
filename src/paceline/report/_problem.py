"""What the times and accuracies of runs must have in common to be compared, and how it is called."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from paceline.record import Run


@dataclass(frozen=True, kw_only=True, order=True)
class Problem:
    """What the times and accuracies of two runs must have in common to be compared."""

    title: str
    """The data and the model."""
    details: str
    """All other settings, and the processor."""
    settings: tuple[str, ...] = ()
    """Each of them in words, always in the same order: what tells two problems of one title apart."""

    def __str__(self) -> str:
        return f"{self.title}, {self.details}"


def problem_of(run: Run) -> Problem:
    """What the run may be compared with: everything but strategy, ranks, threads and seed."""
    c, s = run.config, run.summary
    data = (
        s["data"] if c["data"].startswith("builtins:") else c["data"]
    )  # arrays have no spelling of their own
    samples = "" if c.get("samples") is None else f"{_count(c['samples'], 'training sample')}, "
    whole = c["batch"] or s["global_batch"]
    batch = f"batch {whole}" if c["batch_per_rank"] is None else f"batch {c['batch_per_rank']} a rank"
    length = _count(c["epochs"], "epoch")
    length += "" if c["draws"] is None else f" of {_count(c['draws'], 'random batch', 'es')}"
    extra = "" if c["lr_scaling"] == "none" else f" scaled by {c['lr_scaling']}"
    extra += "" if c["schedule"] == "constant" else f", {c['schedule']}"
    parameters, rate, where = (
        _count(s["parameters"], "parameter"),
        f"lr {c['lr']:g}",
        run.environment["processor"],
    )
    scaled = "lr not scaled" if c["lr_scaling"] == "none" else f"lr scaled by {c['lr_scaling']}"
    return Problem(
        title=f"{data}, {c['model']}",
        details=f"{samples}{parameters} ({c['dtype']}), {batch}, {length}, {c['update']} {rate}{extra}, on {where}",
        settings=(
            samples.removesuffix(", "), parameters, c["dtype"], batch, length, c["update"], rate, scaled, c["schedule"],
            f"on {where}",
        ),
    )  # fmt: skip


def titles_of(problems: Iterable[Problem]) -> dict[Problem, str]:
    """The title of each problem; where several have one, with the settings in which those differ.

    >>> slow, fast = (Problem(title="iris, mlp:8", details="", settings=("batch 8", rate)) for rate in ("lr 1", "lr 9"))
    >>> list(titles_of([slow, fast]).values()), list(titles_of([slow]).values())
    (['iris, mlp:8, lr 1', 'iris, mlp:8, lr 9'], ['iris, mlp:8'])
    """
    groups: dict[str, list[Problem]] = defaultdict(list)
    for problem in dict.fromkeys(problems):
        groups[problem.title].append(problem)
    found = {}
    for title, alike in groups.items():
        for problem in alike:
            others = zip(problem.settings, *(one.settings for one in alike), strict=True)
            found[problem] = ", ".join([title, *(own for own, *all_ in others if own and len(set(all_)) > 1)])
    return found


def _count(number: int, name: str, plural: str = "s") -> str:
    """
    >>> _count(1, "epoch"), _count(50_000, "sample")
    ('1 epoch', '50,000 samples')
    """
    return f"{number:,} {name}{'' if number == 1 else plural}"
