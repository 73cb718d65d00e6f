"""What a record or a study's file names as `module:attribute` is run only where the user allows it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paceline import cli, fit, load_model, predict
from paceline.errors import UntrustedError

KEYS = ("model", "data", "strategy", "update", "schedule")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("runs")
    fitted = fit("mlp:8", "digits", strategy="serial", epochs=1, runs=runs, quiet=True)
    assert fitted.run is not None
    return fitted.run


@pytest.fixture
def naming(record: Path, tmp_path: Path) -> Iterator[Callable[[str, str], Path]]:
    """A copy of the record in which one setting names something else."""
    before = (record / "config.json").read_text()

    def name(key: str, value: str) -> Path:
        (record / "config.json").write_text(json.dumps({**json.loads(before), key: value}))
        return record

    yield name
    (record / "config.json").write_text(before)


def check_refusal(words: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that a command ends with status 2 and one line that says what would be run, and how to allow it."""
    assert cli.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert what in line
    assert "--trust" in line


@pytest.mark.parametrize("key", ["model", "data"])
def test_predict_runs_nothing_that_a_record_names(
    key: str, naming: Callable[[str, str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "mark"
    run = naming(key, f"os:system:command=touch {mark}")
    check_refusal(["predict", str(run)], "os:system", capsys)
    with pytest.raises(UntrustedError):
        predict(run)
    assert not mark.exists()


@pytest.mark.parametrize("key", KEYS)
def test_replay_runs_nothing_that_a_record_names(
    key: str, naming: Callable[[str, str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark = tmp_path / "mark"
    run = naming(key, f"os:system:command=touch {mark}")
    check_refusal(["train", "--replay", str(run), "--runs", str(tmp_path)], "os:system", capsys)
    assert not mark.exists()


def test_nor_a_rule_inside_a_strategy(
    naming: Callable[[str, str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = naming("strategy", "parameter-server:rule=antigravity:fly")
    check_refusal(["train", "--replay", str(run), "--runs", str(tmp_path)], "antigravity:fly", capsys)


def test_trust_allows_it(
    naming: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trusted_net.py").write_text(
        "from paceline.models import mlp\ndef build(data, seed, dtype):\n"
        "    return mlp.build(data, 8, seed=seed, dtype=dtype)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = naming("model", "trusted_net:build")
    with pytest.raises(UntrustedError, match="trusted_net:build"):
        load_model(run)
    assert (load_model(run, trust=True).x == load_model(naming("model", "mlp:8")).x).all()


@pytest.mark.parametrize("key", ["strategy", "data", "model"])
def test_a_dry_run_of_a_study_runs_nothing(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark, file = tmp_path / "mark", tmp_path / "study.toml"
    settings = {
        "data": "digits",
        "model": "mlp:8",
        "strategy": "sync",
        key: f"os:system:command=touch {mark}",
    }
    common = "".join(f'{name} = "{settings[name]}"\n' for name in ("data", "model"))
    file.write_text(f'[settings]\n{common}[[matrix]]\nstrategy = "{settings["strategy"]}"\nranks = [1]\n')
    assert cli.main(["study", str(file), "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert "os:system" in said
    assert "--trust" in said
    assert not mark.exists()
