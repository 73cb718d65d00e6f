"""A few of the cases of `make chaos`: real ranks are killed in mid-run, and the others end it well."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from paceline import fit

STARTS_RANKS = True
pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def chaos() -> ModuleType:
    path = Path(__file__).parent.parent / "tools" / "chaos.py"
    spec = importlib.util.spec_from_file_location("chaos", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["chaos"] = importlib.util.module_from_spec(spec)  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("case", ["sync:allreduce=ring/killed/4", "parameter-server:masters=2/killed/6"])
def test_a_real_rank_is_killed(chaos: ModuleType, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    settings = {
        **chaos.SETTINGS,
        **chaos.ADAM,
        "data": chaos.REAL_DATA,
        "epochs": chaos.REAL_EPOCHS,
        "seed": 1,
    }
    alone = fit(**settings, strategy="serial", runs=None, quiet=True)
    undisturbed = chaos.Undisturbed(None, alone.test_loss, (alone.test_accuracy,), 1.0, 0.0)
    monkeypatch.setattr(chaos, "train_undisturbed", lambda _: undisturbed)
    verdict = chaos.try_case(case, 0, None)
    assert not verdict.wrong, verdict.output
    assert verdict.struck, verdict.output
    assert " died in epoch " in verdict.output or "restart 1 of " in verdict.output
