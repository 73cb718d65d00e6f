"""The studies that come with the source ask for what there is."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from paceline.data import load
from paceline.launch import allocated_cores
from paceline.study.file import mistakes, read

STUDIES = Path(__file__).parents[2] / "studies"
FILES = sorted(STUDIES.glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_every_cell_could_be_run(path: Path) -> None:
    study = read(path)
    assert study.title
    assert study.question
    for on in ("mpi", "sim"):
        cells = study.cells(on)
        # The pictures are many: they are drawn below, fewer of them.
        assert mistakes([cell for cell in cells if not cell.config.data.startswith("pictures:")]) == []
        assert all(
            cell.config.threads == 1 or cell.ranks * cell.config.threads <= allocated_cores()
            for cell in cells
        )
        seeds = {cell.config.seed for cell in cells}
        assert len(seeds) >= (1 if path.stem == "quickstart" else 3)


def test_the_quickstart_shows_the_main_strategies() -> None:
    tried = {
        cell.config.strategy.partition(":")[0] for cell in read(STUDIES / "quickstart.toml").cells("mpi")
    }
    assert tried >= {"serial", "sync", "weight-average", "local-sgd", "psgd", "hogwild", "parameter-server"}


def test_published_figures_are_there() -> None:
    figures = {path.stem: read(path).published for path in FILES}
    assert {stem: len(those) for stem, those in figures.items()} == {
        "quickstart": 0, "sync-async": 10, "psgd-hogwild": 6, "allreduce-sendrecv": 17,
    }  # fmt: skip
    assert all(figure["source"] for those in figures.values() for figure in those)
    assert {figure["problem"]["data"] for figure in figures["allreduce-sendrecv"]} == {
        "iris",
        "pictures:drawn:count=900",
    }
    assert {figure["problem"]["draws"] for figure in figures["psgd-hogwild"]} == {None}  # whole passes


def test_pictures_are_drawn_once_and_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(STUDIES), *sys.path])
    data = load("pictures:drawn:count=60")
    assert (data.shape, data.classes, len(data.train)) == ((3, 150, 150), 6, 48)
    assert data.class_names == ("buildings", "forest", "glacier", "mountain", "sea", "street")
    pictures = sys.modules["pictures"]
    one, again, other = (np.asarray(pictures.picture("sea", number)) for number in (4, 4, 10))
    assert (one == again).all()
    assert (one != other).mean() > 0.5
    monkeypatch.setattr(pictures, "draw_all", None)  # not called again
    assert len(load("pictures:drawn:count=60").train) == 48
    monkeypatch.delitem(sys.modules, "pictures")
