"""One process at a time writes a run's folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import paceline
from paceline.errors import UsageError
from paceline.record.writing import check_idle, hold, is_held, release

HOLDER = (
    "import sys; from pathlib import Path; from paceline.record.writing import hold; "
    "hold(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
)


@pytest.fixture
def held(tmp_path):
    """A folder that another process holds until it is killed, and that process."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield tmp_path, process
        process.kill()


def test_a_folder_that_another_process_holds_is_refused_until_that_process_is_gone(held):
    folder, process = held
    for attempt in (check_idle, hold):
        with pytest.raises(UsageError, match=f"is being trained .process {process.pid} on .*running$"):
            attempt(folder)
    process.kill()
    process.wait()
    check_idle(folder)
    hold(folder)
    release(folder)
    assert not list(folder.iterdir())


def test_a_folder_of_a_lost_host_is_taken_anyway(held):
    folder, process = held
    hold(folder, anyway=True)
    hold(folder)  # this process has it already
    assert f"process {process.pid}" not in (folder / "running").read_text()
    release(folder)
    assert not (folder / "running").exists()


def test_a_link_is_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("text")
    run = tmp_path / "run"
    run.mkdir()
    (run / "running").symlink_to(precious)
    with pytest.raises(UsageError, match="cannot write"):
        check_idle(run)
    with pytest.raises(OSError):
        hold(run)
    assert precious.read_text() == "text"


def test_a_pipe_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "running")
    assert not is_held(tmp_path)
    with pytest.raises(UsageError, match="it is a named pipe"):
        check_idle(tmp_path)


def test_a_run_under_way_is_not_resumed(tmp_path):
    refused = []

    def train(me):
        if me.rank == 0:
            run = next(tmp_path.iterdir())
            command = [sys.executable, "-m", "paceline", "resume", str(run), "--epochs", "1"]
            refused.append(subprocess.run(command, capture_output=True, text=True, check=False))
        for epoch in me.epochs():
            me.validate(epoch)

    fitted = paceline.fit("mlp:4", "iris", strategy=train, epochs=1, runs=tmp_path)
    assert refused[0].returncode == 2
    assert "is being trained (process" in refused[0].stderr
    assert len(refused[0].stderr.splitlines()) == 1
    assert not (Path(fitted.run) / "running").exists()


def test_samples_of_ranks_that_are_gone_count(tmp_path, machine):
    settings = {"strategy": "sync", "batch": 30, "runs": tmp_path, "on": "sim", "machine": machine}
    first = paceline.fit("mlp:4", "iris", ranks=4, epochs=2, checkpoint_every="epoch", **settings)
    epoch = first.samples_per_second * max(_busy(first)) / 2
    for ranks, epochs in ((1, 3), (3, 4), (3, 5)):
        again = paceline.fit(resume=first.run, ranks=ranks, epochs=1)
        assert again.samples_per_second * max(_busy(again)) == pytest.approx(epochs * epoch)


def _busy(fitted):
    rows = paceline.Run(fitted.run).summary["seconds_by_rank"]
    return [sum(seconds for kind, seconds in row.items() if kind != "evaluation") for row in rows]


@pytest.mark.parametrize(
    ("outputs", "rows", "why"),
    [(3, 120, "8 parameters, and the model 12"), (2, 100, "samples, and the data now have")],
)
def test_a_record_is_left_as_it_is_if_the_model_or_the_data_do_not_fit(tmp_path, outputs, rows, why):
    x, y = np.ones((120, 3), np.float32), np.arange(120) % 2
    torch = pytest.importorskip("torch")
    first = paceline.fit(torch.nn.Linear(3, 2), (x, y), strategy="serial", epochs=1, runs=tmp_path)
    _ = paceline.fit(
        torch.nn.Linear(3, 2), (x, y), strategy="serial", resume=first.run, epochs=1
    )  # has checkpoints
    before = {path: path.read_bytes() for path in first.run.iterdir() if path.is_file()}
    with pytest.raises(UsageError, match=why):
        paceline.fit(
            torch.nn.Linear(3, outputs), (x[:rows], y[:rows]), strategy="serial", resume=first.run, epochs=1
        )
    assert {path: path.read_bytes() for path in first.run.iterdir() if path.is_file()} == before


def test_a_traced_run_that_is_resumed_is_traced(tmp_path):
    first = paceline.fit("mlp:4", "iris", strategy="serial", epochs=1, runs=tmp_path, trace=True)
    (first.run / "trace.npz").unlink()  # as in a run that was cut
    again = paceline.fit(resume=first.run, epochs=1)
    assert paceline.Run(again.run).trace is not None
