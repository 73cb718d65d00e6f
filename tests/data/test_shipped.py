from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from paceline.data import ArraySplit, chunks, load
from paceline.data._cache import FOLDER, SHA256
from paceline.errors import UsageError


@pytest.mark.parametrize("name", sorted(SHA256))
def test_the_files_are_the_published_data(name: str) -> None:
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
        digest = hashlib.sha256(file["inputs"].tobytes() + file["labels"].tobytes()).hexdigest()
    assert digest == SHA256[name]
    about = (FOLDER / f"{name}.txt").read_text()
    assert digest in about
    assert "Licence:" in about
    assert "Source:" in about


def test_every_file_is_accounted_for() -> None:
    assert {file.name for file in FOLDER.iterdir()} == {f"{n}.{e}" for n in SHA256 for e in ("npz", "txt")}


def test_mnist_is_the_original() -> None:
    data = load("mnist")
    assert (data.shape, data.classes, data.label_shape) == ((28, 28), 10, ())
    assert [len(split) for split in (data.train, data.validation, data.test)] == [50_000, 10_000, 10_000]
    firsts = [next(chunks(split, size=5))[1].tolist() for split in (data.train, data.validation, data.test)]
    assert firsts == [[5, 0, 4, 1, 9], [3, 8, 6, 9, 6], [7, 2, 1, 0, 4]]
    assert isinstance(data.train, ArraySplit)
    assert data.train.inputs.dtype == np.uint8
    # the mean of the 60,000 that everybody quotes: 0.1307
    whole = load("mnist:validation=0")
    assert [len(split) for split in (whole.train, whole.validation, whole.test)] == [60_000, 0, 10_000]
    assert isinstance(whole.train, ArraySplit)
    assert round(float(whole.train.inputs.mean()) / 255, 4) == 0.1307
    inputs, _ = next(chunks(data.train, size=100))
    assert inputs.dtype == np.float32
    assert inputs.max() == pytest.approx(1.0)
    with pytest.raises(UsageError, match="validation of mnist must be from 0 to 59999 images; got 60000"):
        load("mnist:validation=60000")


def test_iris_has_fishers_rows() -> None:
    data = load("iris:validation=0,test=0")
    [(inputs, labels)] = list(chunks(data.train, size=150, dtype=np.float64))
    assert inputs[34].tolist() == [4.9, 3.1, 1.5, 0.2]  # UCI's copy has 0.1 at the end
    assert inputs[37].tolist() == [4.9, 3.6, 1.4, 0.1]  # UCI's copy has 3.1, 1.5
    assert np.bincount(labels).tolist() == [50, 50, 50]
    assert data.class_names == ("setosa", "versicolor", "virginica")


def test_iris_is_divided_evenly_and_by_its_seed() -> None:
    first, again, other = load("iris"), load("iris"), load("iris:seed=1")
    for split, count in ((first.train, 40), (first.validation, 5), (first.test, 5)):
        [(_, labels)] = list(chunks(split))
        assert np.bincount(labels).tolist() == [count] * 3
    samples = [next(chunks(data.test))[0].tolist() for data in (first, again, other)]
    assert samples[0] == samples[1] != samples[2]


def test_digits() -> None:
    data = load("digits:validation=0,test=0")
    assert (data.shape, data.classes, len(data.train)) == ((8, 8), 10, 1797)
    [(inputs, labels)] = list(chunks(data.train, size=1797))
    assert (inputs.min(), inputs.max()) == (0, 1)
    assert labels[:10].tolist() == list(range(10))


def test_importing_starts_nothing_and_brings_nothing_heavy() -> None:
    code = """
import sys, threading, pathlib, os
os.environ["PACELINE_CACHE"] = "/nonexistent"
import paceline.data
from paceline import names as registry
for name in registry.names("data"):
    registry.find("data", name)
heavy = {"torch", "PIL", "matplotlib", "mpi4py.MPI", "pandas"} & set(sys.modules)
assert not heavy, heavy
assert threading.active_count() == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=280)
