"""Records that were cut off or edited are left out, each with one line that names it; the rest is reported."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from paceline.cli import main
from paceline.files import read_arrays, write_arrays
from paceline.record import Run, find_runs
from paceline.report import document_of
from tests.report.conftest import rewrite

Harm = Callable[[Path], object]


def edit(name: str, **values: object) -> Harm:
    return lambda folder: rewrite(folder / name, **values)


def edit_inside(name: str, *keys: str, value: object) -> Harm:
    """Another value inside an object of a JSON file."""

    def harm(folder: Path) -> None:
        values = json.loads((folder / name).read_text())
        inner = values
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
        inner[keys[-1]] = value
        (folder / name).write_text(json.dumps(values))

    return harm


def without(name: str, key: str) -> Harm:
    def harm(folder: Path) -> None:
        values = json.loads((folder / name).read_text())
        del values[key]
        (folder / name).write_text(json.dumps(values))

    return harm


def cut(name: str) -> Harm:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:60])


def fill(name: str, text: str) -> Harm:
    return lambda folder: (folder / name).write_text(text)


def flip_bit(name: str, place: float, bit: int = 1) -> Harm:
    """Flip a bit, at this fraction of the file's length."""

    def harm(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[int(place * len(content))] ^= bit
        (folder / name).write_bytes(content)

    return harm


def zip_version(name: str, version: int) -> Harm:
    """Claim that another version of the format is needed to unpack the first array."""

    def harm(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[content.index(b"PK\x01\x02") + 6] = version
        (folder / name).write_bytes(content)

    return harm


def column(name: str, **changes: Callable[[np.ndarray], np.ndarray]) -> Harm:
    def harm(folder: Path) -> None:
        table = read_arrays(folder / f"{name}.npz")
        write_arrays(
            folder / f"{name}.npz", table | {key: change(table[key]) for key, change in changes.items()}
        )

    return harm


def put_instead(name: str, make: Callable[[Path], object]) -> Harm:
    def harm(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return harm


HARMS: dict[str, tuple[Harm, str]] = {
    "no steps": (lambda folder: (folder / "steps.npz").unlink(), "has no steps.npz"),
    "steps of others": (fill("steps.npz", "x" * 50), "steps.npz cannot be read: "),
    "steps cut off": (cut("steps.npz"), "steps.npz cannot be read: "),
    "steps without columns": (
        lambda folder: shutil.copy(folder / "model.npz", folder / "steps.npz"),
        "steps.npz cannot be read: it has no column 'rank'",
    ),
    "a flipped bit": (flip_bit("steps.npz", 0.4), "steps.npz cannot be read: "),
    "another flipped bit": (flip_bit("steps.npz", 0.1, 64), "steps.npz cannot be read: "),
    "version of zip": (zip_version("steps.npz", 108), "steps.npz cannot be read: zip file version 10.8"),
    "long columns": (column("steps", loss=lambda loss: loss[1:]), "its columns are not equally long"),
    "a square column": (column("steps", loss=lambda loss: loss.reshape(2, -1)), "loss has 2 dimensions"),
    "text for numbers": (column("steps", count=lambda count: count.astype(str)), "count has impossible values"),
    "a rank too many": (column("steps", rank=lambda rank: rank + 1), "rank has impossible values"),
    "endless steps": (column("steps", compute=lambda c: c * np.inf), "compute has impossible values"),
    "large steps": (column("steps", step=lambda s: s + np.uint64(2**63)), "step has impossible values"),
    "epochs cut off": (cut("epochs.jsonl"), "epochs.jsonl"),
    "no epochs": (lambda folder: (folder / "epochs.jsonl").unlink(), "has no epochs.jsonl"),
    "epochs of others": (fill("epochs.jsonl", "[1]\n"), "epochs.jsonl is damaged: [1] is not an object"),
    "epoch without time": (fill("epochs.jsonl", '{"epoch": 0}\n'), "train_seconds is missing"),
    "epochs in no order": (
        fill("epochs.jsonl", '{"epoch": 1, "train_seconds": 1}\n' * 2), "is damaged: epoch 1 follows 1",
    ),
    "no time": (edit("summary.json", train_seconds=0), "train_seconds is 0"),
    "less than no time": (edit("summary.json", train_seconds=-5.0), "train_seconds is -5.0"),
    "time in words": (edit("summary.json", train_seconds="1.5"), "train_seconds is '1.5'"),
    "time that is none": (edit("summary.json", train_seconds=float("nan")), "the number NaN is not finite"),
    "endless time": (fill("summary.json", '{"train_seconds": 1e999}'), "the number 1e999 is not finite"),
    "too many digits": (fill("summary.json", f'{{"steps": {"9" * 5000}}}'), "a number of 5000 digits"),
    "a long time": (edit("summary.json", train_seconds=10**60), "train_seconds is 1000"),
    "seconds": (edit("summary.json", seconds={}), "seconds is {}"),
    "seconds in words": (edit_inside("summary.json", "seconds", "evaluation", value="1"), "seconds is {"),
    "seconds of ranks": (edit("summary.json", seconds_by_rank=[{}] * 5), "the seconds of 5 ranks"),
    "accuracy": (edit("summary.json", test_accuracy=93.0), "test_accuracy is 93.0"),
    "no accuracy": (without("summary.json", "test_accuracy"), "test_accuracy is missing"),
    "findings": (edit("summary.json", findings=[1]), "findings is [1]"),
    "staleness": (edit_inside("summary.json", "findings", "staleness", value=3), "findings.staleness is 3"),
    "histogram": (
        edit_inside("summary.json", "findings", "staleness", value={"histogram": {"a": 1}}),
        "findings.staleness.histogram is {'a': 1}",
    ),
    "no ranks": (edit("config.json", ranks=0), "ranks is 0"),
    "ranks in words": (edit("config.json", ranks="2"), "ranks is '2'"),
    "ranks without end": (edit("config.json", ranks=10**15), "ranks is 1000000000000000"),
    "epochs": (edit("config.json", epochs=-1), "epochs is -1"),
    "a type": (edit("config.json", dtype="float3"), "unknown dtype 'float3'; choose one of float32, float64"),
    "no model": (without("config.json", "model"), "config.json is not a paceline run's: it has no model"),
    "code": (edit("config.json", code={"model": 1}), "code is {'model': 1}"),
    "classes": (edit("config.json", class_names=["a"]), "it has 3 classes and 1 class_names"),
    "format": (edit("config.json", format=99), "has format 99; this version of paceline reads formats up to 1"),
    "keys twice": (fill("config.json", '{"ranks": 1, "ranks": 2}'), "the key 'ranks' appears twice"),
    "deep": (fill("config.json", "[" * 200_000), "config.json is not JSON: it is nested more than 100 deep"),
    "cores": (edit("environment.json", cores=None), "cores is None"),
    "nodes": (edit("environment.json", nodes={"ranks": [0, 1], "cores": [4]}), "nodes is {"),
    "too many nodes": (
        edit("environment.json", nodes={"ranks": [0, 0], "cores": [4]}), "it has the nodes of 2 ranks; the run has 1",
    ),
    "packages": (edit("environment.json", packages={"numpy": 2}), "packages is {'numpy': 2}"),
    "simulated": (edit("config.json", simulated={}), "simulated.network is missing"),
    "costs": (
        edit("config.json", simulated={"network": "10gbe", "costs": {"cores": 1, "work": {"gradient": {"1": [[1]]}}}}),
        "simulated.costs.work is {",
    ),
    "bytes": (lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe"), "config.json: it is not text in UTF-8"),
    "pipe": (put_instead("config.json", os.mkfifo), "config.json: it is a named pipe"),
    "another pipe": (put_instead("steps.npz", os.mkfifo), "steps.npz: it is a named pipe"),
    "device": (put_instead("summary.json", lambda path: path.symlink_to("/dev/null")), "it is a device"),
    "folder": (put_instead("environment.json", Path.mkdir), "environment.json: it is a folder"),
    "loop": (put_instead("epochs.jsonl", lambda path: path.symlink_to(path.name)), "too many levels of symbolic links"),
}  # fmt: skip


def find_with_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> tuple[list[Run], str]:
    with caplog.at_level(logging.WARNING):
        found = find_runs([folder])
    (record,) = caplog.records
    return found, record.getMessage()


@pytest.mark.parametrize("name", HARMS)
def test_what_is_damaged_is_left_out(
    runs: list[Run], tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    harm, said = HARMS[name]
    for run in runs[:2]:
        shutil.copytree(run.folder, tmp_path / run.folder.name)
    harm(tmp_path / runs[0].folder.name)
    found, told = find_with_warning(tmp_path, caplog)
    assert [run.folder.name for run in found] == [runs[1].folder.name]
    assert told.startswith("left out: ")
    assert runs[0].folder.name in told
    assert said in told
    assert "\n" not in told
    assert document_of(found).sections


def test_what_masters_wrote_is_looked_at(
    matrix: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = next(matrix.glob("*parameter-server*"))
    shutil.copytree(path, tmp_path / path.name)
    cut("updates.npz")(tmp_path / path.name)
    found, told = find_with_warning(tmp_path, caplog)
    assert found == []
    assert "updates.npz cannot be read: " in told


# What reads which file; the export is of a tool that is installed in any case.
COMMANDS = {
    "predict": ["predict", "RUN"],
    "trace": ["trace", "RUN", "-o", "trace.json"],
    "export": ["export", "RUN", "--to", "tensorboard", "--out", "boards"],
    "replay": ["train", "--replay", "RUN"],
}
REFUSED = {
    "a flipped bit": ("trace", "export"),
    "version of zip": ("trace", "export"),
    "another pipe": ("trace", "export"),
    "no model": ("predict", "trace", "export", "replay"),
    "deep": ("predict", "trace", "export", "replay"),
    "ranks without end": ("predict", "trace", "export", "replay"),
    "pipe": ("predict", "trace", "export", "replay"),
    "device": ("export",),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_commands_refuse_it_in_one_line(
    runs: list[Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    shutil.copytree(runs[0].folder, tmp_path / "RUN")
    HARMS[name][0](tmp_path / "RUN")
    monkeypatch.chdir(tmp_path)
    for command in REFUSED[name]:
        assert main(COMMANDS[command]) == 2
        said = capsys.readouterr().err
        assert len(said.splitlines()) == 1
        assert HARMS[name][1] in said
    assert [path.name for path in tmp_path.iterdir()] == ["RUN"]


def test_a_damaged_model_is_refused(
    runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs[0].folder, folder)
    for harm in (
        flip_bit("model.npz", 0.5),
        column("model", x=lambda x: x[1:]),
        put_instead("model.npz", os.mkfifo),
    ):
        harm(folder)
        assert main(["predict", str(folder)]) == 2
        said = capsys.readouterr().err
        assert len(said.splitlines()) == 1
        assert str(folder) in said
        (folder / "model.npz").unlink()
        shutil.copy(runs[0].folder / "model.npz", folder)
