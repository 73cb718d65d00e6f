"""The command line where the system does not play along: full disks, closed streams, unreadable files."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from paceline import files, prediction
from paceline.cli import main
from paceline.errors import UsageError
from paceline.launch.resources import VARIABLES
from paceline.record import Epoch, Record, Run, find_runs

SMALL = "--data iris --model mlp:4 --epochs 1 --batch 10 --strategy serial --quiet"


def shell(line: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """A line as a user types it, `paceline` being this one."""
    command = f'paceline() {{ "{sys.executable}" -m paceline "$@"; }}\n{line}'
    environment = {**os.environ, **variables}
    return subprocess.run(["bash", "-c", command], cwd=cwd, env=environment, capture_output=True, timeout=280)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root reads what nobody may read; inside, this process cannot."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.fixture(autouse=True)
def _state(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `main` changes in its process is undone."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in VARIABLES:
        monkeypatch.setenv(name, "1")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run, made once more for each test."""
    from paceline import fit

    fitted = fit("mlp:4", "iris", strategy="serial", epochs=1, batch=10, runs=tmp_path / "runs", quiet=True)
    assert fitted.run is not None
    return fitted.run


def test_output_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    for words in ("list", "--help", "train --help"):
        done = shell(f"paceline {words} > /dev/full", tmp_path)
        assert done.returncode == 1, words
        assert done.stderr.endswith(b": no space left on device\n")
        assert done.stderr.count(b"\n") == 1, done.stderr


@pytest.mark.mpi
@pytest.mark.parametrize("how", ["--strategy serial", "-n 2 --strategy sync"])
def test_a_log_on_a_full_disk_does_not_end_training(how: str, tmp_path: Path) -> None:
    done = shell(f"paceline train {SMALL.replace('--quiet', '')} {how} 2> /dev/full", tmp_path)
    assert done.returncode == 0, done
    assert b"test accuracy" in done.stdout
    assert len(find_runs([tmp_path / "runs"])) == 1


def test_a_reader_that_leaves_before_the_last_line_ends_the_command_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Reader(io.StringIO):
        def write(self, words: str) -> int:
            if words.startswith("next: "):
                raise BrokenPipeError
            return super().write(words)

    monkeypatch.setattr(sys, "stdout", Reader())
    monkeypatch.setattr("paceline.cli._drop_output", lambda: None)
    assert main(["train", *SMALL.replace("--quiet", "").split(), f"--runs={tmp_path}"]) == 141
    assert not caplog.messages


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = shell(f"cd gone; rmdir ../gone; paceline train {SMALL}", tmp_path)
    assert done.returncode == 2
    assert done.stderr == b"paceline train: the working directory no longer exists; change to another one\n"


@pytest.mark.mpi
def test_closed_streams(tmp_path: Path) -> None:
    assert shell(f"paceline train {SMALL} --json 2>&- <&-", tmp_path).returncode == 0
    assert shell(f"paceline train {SMALL} -n 2 --strategy sync 2>&- >&-", tmp_path).returncode == 0
    assert shell("paceline train --data nothing 2>&-", tmp_path).returncode == 2
    assert len(find_runs([tmp_path / "runs"])) == 2


@pytest.mark.mpi
def test_folders_with_a_dash_reach_the_ranks(tmp_path: Path) -> None:
    done = shell(f"paceline train {SMALL} -n 2 --strategy sync --runs=-x --json", tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["run"].startswith("-x/")


def test_names_beyond_ascii_in_the_c_locale(tmp_path: Path) -> None:
    place = tmp_path / "d\u00e9j\u00e0"
    place.mkdir()
    np.savez(place / "\u00fc.npz", inputs=np.random.default_rng(0).random((40, 3)), labels=np.arange(40) % 2)
    small = SMALL.replace("--data iris", "--data d\u00e9j\u00e0/\u00fc.npz")
    sync = "-n 2 --strategy sync --runs d\u00e9j\u00e0"
    c = {"LC_ALL": "C", "PYTHONUTF8": "0"}
    done = shell(
        f"paceline train {small} {sync} && paceline report d\u00e9j\u00e0 -o \u00e9.html", tmp_path, **c
    )
    assert done.returncode == 0, done.stderr
    assert "d\u00e9j\u00e0/\u00fc.npz" in done.stdout.decode()
    assert "d\u00e9j\u00e0/\u00fc.npz" in (tmp_path / "\u00e9.html").read_text("utf-8")
    assert shell("paceline --help", tmp_path, **c).returncode == 0


def test_a_report_without_a_home_has_no_warnings(run: Path, tmp_path: Path) -> None:
    """The user of a container often has a home folder that does not exist."""
    home = {"HOME": "/proc/nobody", "MPLCONFIGDIR": "", "XDG_CONFIG_HOME": "", "XDG_CACHE_HOME": ""}
    done = shell("paceline report runs -o page.html", tmp_path, **home)
    assert (done.returncode, done.stderr) == (0, b"")


def test_predictions_that_cannot_be_written_are_not_made(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prediction, "predict", None)
    assert main(["predict", str(run), "--out", "/nope/p.npz"]) == 2
    assert capsys.readouterr().err == (
        "paceline predict: cannot write /nope/p.npz: there is no folder /nope\n"
    )


def test_what_may_not_be_read_is_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if folder == tmp_path or folder.name.startswith(("pytest-", "popen-")):
            folder.chmod(0o755)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    np.savez(tmp_path / "a.npz", inputs=np.zeros((9, 1)), labels=np.arange(9) % 2)
    (tmp_path / "images" / "cat").mkdir(parents=True)
    for words in (
        ["train", *SMALL.split(), "--data", f"{tmp_path}/images"],
        ["report", f"{tmp_path}/images"],
    ):
        assert main(words) == 2  # imports what it needs: later Python's own files, too, may not be read
    capsys.readouterr()
    (run / "config.json").chmod(0)
    for secret in ("a.npz", "images/cat", "images"):
        (tmp_path / secret).chmod(0)
    with unprivileged():
        for words, said in (
            (["predict", str(run)], f"cannot read {run}/config.json"),
            (["train", *SMALL.split(), "--data", f"{tmp_path}/a.npz"], f"{tmp_path}/a.npz"),
            (["train", *SMALL.split(), "--data", f"{tmp_path}/images"], f"cannot read {tmp_path}/images"),
            (
                ["report", f"{tmp_path}/images", "-o", f"{tmp_path}/cache/r.html"],
                f"cannot read {tmp_path}/images",
            ),
        ):
            assert main(words) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith(f"paceline {words[0]}: ")
            assert said in line
            assert "permission denied" in line
    (tmp_path / "images").chmod(0o755)
    with unprivileged():
        assert main(["train", *SMALL.split(), "--data", f"{tmp_path}/images"]) == 2
        assert capsys.readouterr().err == (
            f"paceline train: cannot read {tmp_path}/images/cat: permission denied\n"
        )
    assert main(["train", *SMALL.split(), "--data", "x" * 300 + ".npz"]) == 2
    assert "file name too long" in capsys.readouterr().err


def test_a_disk_that_fills_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "epochs.jsonl").symlink_to("/dev/full")
    epoch = Epoch(epoch=0, step=1, loss=0.0, validation_loss=0.0, validation_accuracy=0.0, train_seconds=1.0)
    record = Record(tmp_path)
    for _ in range(2):
        record.epoch(epoch)
    failed = f"cannot write the run to {tmp_path}: no space left on device"
    assert [entry.getMessage() for entry in caplog.records] == [
        f"{failed}; training continues, and writing is tried again"  # said once
    ]
    (tmp_path / "epochs.jsonl").unlink()
    record.epoch(epoch)
    assert len((tmp_path / "epochs.jsonl").read_text().splitlines()) == 3  # none is lost
    assert caplog.messages[1:] == [f"the run can be written to {tmp_path} again"]

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(UsageError, match="cannot write the run to"):
        Record(tmp_path).start({}, {})
    assert not tmp_path.exists()  # nothing was begun, nothing is left


def test_records_of_something_else_are_left_out(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, text in (("a", "{}"), ("b", "[]"), ("c", "{")):
        (run.parent / name).mkdir()
        (run.parent / name / "config.json").write_text(text)
        (run.parent / name / "summary.json").write_text("{}")
    assert [found.folder for found in find_runs([run.parent])] == [run]
    assert [record.getMessage().split(": ")[1] for record in caplog.records] == [
        f"{run.parent}/a/config.json is not a paceline run's",
        f"{run.parent}/b/config.json is not a paceline run's",
        f"{run.parent}/c/config.json is not JSON",
    ]
    assert [found.folder for found in find_runs([run.parent / "a", run])] == [run]
    with pytest.raises(UsageError, match="is not a paceline run's: it has no data, model"):
        _ = Run(run.parent / "a").config
