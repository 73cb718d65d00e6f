"""What a step leaves behind in memory: nothing. `make soak` shows the same for every strategy on real ranks."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from paceline import fit
from paceline.record import Epoch, Run
from paceline.worker import Worker

# Bytes that a step may leave; it was 72 and more when every step was kept in memory.
LIMIT = 36


@pytest.mark.parametrize("recorded", [True, False])
def test_memory_does_not_grow_with_the_steps(
    recorded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.record.rows.CHUNK", 64)  # so that a short run is a long one
    monkeypatch.setattr("paceline.record.rows.MOST", 256)
    seen: list[int] = []
    end_epoch = Worker.end_epoch

    def measured(me: Worker, *given: Any, **named: Any) -> None:
        end_epoch(me, *given, **named)
        if given[0] in (8, 23):  # what other libraries and tests keep meanwhile does not count
            gc.collect()
            ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/paceline/*")])
            seen.append(sum(trace.size for trace in ours.traces))

    monkeypatch.setattr(Worker, "end_epoch", measured)
    tracemalloc.start()
    try:
        fitted = fit(
            "mlp:4", "iris", strategy="serial", batch=1, epochs=24, lr=0.001, quiet=True, on_divergence="ignore",
            runs=tmp_path if recorded else None,
        )  # fmt: skip
    finally:
        tracemalloc.stop()
    left = seen[1] - seen[0] - 15 * 800  # 15 epochs, which are remembered up to a limit
    assert left / (fitted.steps * 15 / 24) < LIMIT, seen
    if recorded:
        assert fitted.run is not None
        assert len(Run(fitted.run).steps["step"]) == fitted.steps


def test_a_long_history_is_thinned_out_in_memory_but_not_in_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("paceline.worker.worker", "paceline.record.writing"):
        monkeypatch.setattr(f"{place}.EPOCHS", 20)
    fitted = fit("mlp:4", "iris", strategy="serial", batch=60, epochs=100, quiet=True, runs=tmp_path)
    kept = [epoch.epoch for epoch in fitted.history]
    assert len(kept) <= 20
    assert (kept[0], kept[-1], kept == sorted(kept)) == (0, 99, True)
    assert fitted.run is not None
    assert [epoch["epoch"] for epoch in Run(fitted.run).epochs] == list(range(100))
    assert all(isinstance(epoch, Epoch) for epoch in fitted.history)
