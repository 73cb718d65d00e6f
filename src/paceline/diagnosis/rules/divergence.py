"""Training that was stopped because it diverged."""

from __future__ import annotations

from dataclasses import replace

from paceline.diagnosis.case import Case, Cause, DiagnosisRule, Scale
from paceline.diagnosis.rules import staleness
from paceline.text import count


def find(case: Case) -> Cause | None:
    """Return a cause if a run diverged, on any number of ranks."""
    wild = [scale for scale in case.scales if scale.diverged]
    if not wild:
        return None
    first = wild[0]
    there = replace(case, looked_at=first.ranks)
    rate = there.config.get("lr")
    also = ", ".join(f"at {scale.ranks} {_count_diverged(scale) or 'all'}" for scale in wild[1:])
    words = (
        f"at {count(first.ranks, 'rank')} {_count_diverged(first) or 'training'} diverged"
        f"{f' with --lr {rate:g}' if rate else ''}{f' ({also})' if also else ''}: {first.diverged}"
    )
    remedy = [f"--lr {rate / 2:g}"] if rate else []
    remedy.append("--schedule warmup")
    if first.finding("staleness", "mean") is not None:
        remedy = [staleness.remedies(there)]
    remedy.append("--on-divergence halve (goes back and halves the learning rate by itself)")
    advice = ", or ".join(filter(None, remedy))
    return Cause(rule=RULE.name, share=1.0, words=words, advice=advice, of_accuracy=True, ranks=first.ranks)


def _count_diverged(scale: Scale) -> str:
    """Say how many of the runs diverged; nothing if all did."""
    runs = [run for run in scale.runs if run.summary.get("diverged")]
    return "" if len(runs) == len(scale.runs) else f"{len(runs)} of {count(len(scale.runs), 'run')}"


RULE = DiagnosisRule(name="divergence", short="training diverged", find=find)
