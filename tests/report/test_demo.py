"""`make demo` asks for what there is."""

from __future__ import annotations

import argparse
import runpy
import shlex
from pathlib import Path

from paceline import spec
from paceline.commands.train import DIVERGED, add_arguments


def test_the_demo_is_understood() -> None:
    demo = runpy.run_path(str(Path(__file__).parents[2] / "examples/demo.py"))
    assert demo["DIVERGED"] == DIVERGED
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_arguments(parser)
    for problem, strategies in demo["STRATEGIES"].items():
        asked = parser.parse_args(shlex.split(problem))
        assert spec.parse("models", asked.model).name in ("mlp", "cnn")
        for strategy in strategies:
            spec.parse("strategies", strategy).make().check(demo["SERVED"])
    tried = {
        strategy.partition(":")[0] for strategies in demo["STRATEGIES"].values() for strategy in strategies
    }
    assert tried >= {"sync", "weight-average", "local-sgd", "psgd", "hogwild", "parameter-server"}
