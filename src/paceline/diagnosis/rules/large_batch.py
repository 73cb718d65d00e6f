"""A global batch that grows with the ranks takes fewer steps over the same samples, and less is learned in them."""

from __future__ import annotations

from paceline.diagnosis import advice
from paceline.diagnosis.case import Case
from paceline.diagnosis.findings import Cause
from paceline.text import count

NAME = "large batch"
SHORT = "the batch grows with the ranks, so there are fewer steps"


def find(case: Case) -> Cause | None:
    """Less was learned than by serial training, with a batch for each rank."""
    if case.worse is None or case.whole_batches or case.config.get("batch_per_rank") is None:
        return None
    batch, ranks = advice.present_batch(case), case.at.ranks
    words = (
        f"at {count(ranks, 'rank')} a batch has {count(batch, 'sample')} ({batch // ranks} per rank), so an epoch has "
        f"1/{ranks} of the steps; {case.worse.words}"
    )
    epochs = int(case.config.get("epochs") or 1)
    tried = [] if case.astray or case.config.get("lr_scaling", "none") != "none" else ["--lr-scaling linear"]
    tried.append(f"--epochs {epochs * ranks}")
    if batch // ranks >= case.at.timing.workers:  # a sample for each
        tried.append(f"--batch {batch // ranks} (divided among the ranks)")
    return Cause(
        rule=NAME, share=case.worse.amount, words=words, advice=", or ".join(tried), of_accuracy=True
    )
