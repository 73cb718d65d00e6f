"""Runs that go on from a checkpoint end where an undisturbed run ends."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import fit
from paceline.record import STEP_COLUMNS, Run, checkpoint
from paceline.record.rows import unpack_rows

COMMON: dict[str, Any] = {
    "model": "mlp:12", "data": "iris", "epochs": 3, "batch": 10, "seed": 3, "lr": 0.05, "quiet": True,
    "on": "sim",
}  # fmt: skip
IN_STEP = ["sync:allreduce=ring", "sync:allreduce=shared-memory", "sync:allreduce=native", "main-worker", "weight-average",
           "local-sgd:every=4", "local-sgd:every=3,outer-momentum=0.9,outer-lr=0.7", "elastic:every=3"]  # fmt: skip


def cut(run: Path, to: Path, number: int) -> Path:
    """Copy a run as it would be if it had been killed just after a checkpoint."""
    shutil.copytree(run, to)
    unpack_rows(to, "steps", STEP_COLUMNS)
    for name in ("summary.json", "model.npz", "steps.npz"):
        (to / name).unlink()
    for rank in checkpoint.saved_ranks(to):
        checkpoint.discard(to, rank, keep=lambda other: other <= number)
    return to


@pytest.mark.parametrize("update", ["momentum", "adam"])
@pytest.mark.parametrize("strategy", IN_STEP)
def test_same_bits_from_any_checkpoint(strategy: str, update: str, tmp_path: Path) -> None:
    whole = fit(
        **COMMON,
        strategy=strategy,
        update=update,
        ranks=3,
        runs=tmp_path / "runs",
        checkpoint_every="5 steps",
        checkpoints=99,
    )
    plain = fit(**COMMON, strategy=strategy, update=update, ranks=3, runs=None)
    assert np.array_equal(plain.model.x, whole.model.x)  # saving changes nothing
    assert whole.run is not None
    numbers = checkpoint.numbers(whole.run, 0)
    assert len(numbers) > 2
    for number in numbers[1::3]:
        again = fit(resume=cut(whole.run, tmp_path / f"{number}", number), quiet=True)
        assert np.array_equal(whole.model.x, again.model.x), number
        assert [e.validation_loss for e in again.history] == [e.validation_loss for e in whole.history]
        assert again.bytes_sent == whole.bytes_sent
        for name in ("rank", "step", "loss", "count"):
            assert np.array_equal(Run(again.run).steps[name], Run(whole.run).steps[name])
