"""The programs of the user's page run."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from paceline.models import Model

PAGE = Path(__file__).parents[2] / "docs" / "models-torch.md"


def test_the_programs_of_the_page_run() -> None:
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S))
    names: dict[str, object] = {}
    exec(compile(program, PAGE.name, "exec"), names)
    assert names["fitted"].test_accuracy > 0.5
    assert names["biases"].tolist() == [3.0] * 10
    assert names["model"].layers == [slice(0, 64 * 32 + 32), slice(64 * 32 + 32, 64 * 32 + 32 + 330)]
    assert names["Net"]()(torch.ones(3, 8, 8)).shape == (3, 10)
    assert names["done"] == [[0, 1], [1, 0]]
    assert names["line"].x.round(1).tolist() == [3, 1]
    assert names["order"] == [1, 0] * 200
    assert isinstance(names["line"], Model)
