"""MPI starts clean in a process that nobody launched, and under a launcher that the user typed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.errors import UsageError
from paceline.launch import find, mpiexec
from paceline.launch import prepare as _prepare
from paceline.launch.library import Library, home_settings
from paceline.launch.prepare import apply_settings
from paceline.launch.world import World

STARTS_RANKS = True
ALONE = """
import os, signal, sys
from paceline.launch import mpi
MPI = mpi()
assert MPI.COMM_WORLD.size == 1
window = MPI.Win.Allocate_shared(1000, 1, comm=MPI.COMM_WORLD)
mapped = {line.split()[5] for line in open("/proc/self/maps") if "/dev/shm/" in line and "(deleted)" not in line}
print(*mapped, *os.listdir(os.environ["TMPDIR"]), *(n for n in os.environ if n.startswith(("OMPI_MCA", "UCX_TLS"))))
window.Free()
if sys.argv[1:]:
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("killed", [False, True])
def test_a_process_alone_puts_nothing_where_it_would_stay(tmp_path: Path, killed: bool) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "UCX_"))}
    environment["TMPDIR"] = str(tmp_path)
    command = [sys.executable, "-c", ALONE, *(["killed"] if killed else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert (done.returncode, done.stdout, done.stderr) == (-9 if killed else 0, "\n", "")
    assert list(tmp_path.iterdir()) == []


def test_a_machine_without_mpi_is_told_so_in_one_line(tmp_path: Path) -> None:
    library = tmp_path / "libmpi.so"
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "train", "--data", "iris", "--epochs", "1"],
        cwd=tmp_path, env=os.environ | {"MPI4PY_LIBMPI": str(library)},
        capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"paceline train: the MPI library {library}, which MPI4PY_LIBMPI names, ")
    assert done.stderr.count("\n") == 1


def test_without_an_mpi_library_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPI4PY_LIBMPI", raising=False)
    monkeypatch.delenv("MPI4PY_MPIABI_LIBMPI", raising=False)
    message = _prepare._describe_missing(RuntimeError("cannot load MPI library\nlibmpi.so: no such file"))
    assert message.startswith("no MPI found")
    assert "paceline[openmpi]" in message
    assert "\n" not in message


@pytest.mark.parametrize("home", [{}, {"HOME": ""}])
def test_open_mpi_starts_without_a_home(tmp_path: Path, home: dict[str, str]) -> None:
    """Alone, and on ranks: `env -i`, cron and some containers have none."""
    program = (
        "import os, sys; from paceline.launch import mpi, run\n"
        "rank = 'import os; from paceline.launch import mpi; os.write(1, b\"%d\\\\n\" % mpi().COMM_WORLD.size)'\n"
        "status = run(2, [sys.executable, '-c', rank]); print(mpi().COMM_WORLD.size, status, repr(os.environ.get('HOME')))"
    )
    environment = {k: v for k, v in os.environ.items() if k != "HOME"} | home | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.stdout.splitlines() == ["2", "2", f"1 0 {home.get('HOME')!r}"]
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_a_user_without_a_name_has_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000_000)
    assert home_settings() == {"HOME": "/nonexistent"}
    monkeypatch.setenv("HOME", "/home/me")
    assert home_settings() == {}


def test_a_bare_mpiexec_needs_no_settings() -> None:
    """What the user types: the right mpiexec, none of paceline's variables."""
    library = find()
    command, environment = mpiexec(
        2,
        [
            sys.executable,
            "-c",
            "import sys; from paceline.launch import mpi; sys.stdout.write(f'{mpi().COMM_WORLD.size}\\n')",
        ],
    )
    kept = {k: v for k, v in environment.items() if "_MCA_" not in k or k.startswith("PRTE_")}
    done = subprocess.run(
        command, env=kept, capture_output=True, text=True, timeout=280, stdin=subprocess.DEVNULL
    )
    assert library.mpiexec == Path(command[0])
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["2", "2"], "")


def a_job(monkeypatch: pytest.MonkeyPatch, launcher: str, **variables: str) -> None:
    here = World(rank=0, size=4, local_rank=0, local_size=4, launcher=launcher)
    monkeypatch.setattr(_prepare, "world", lambda: here)
    for name in ("PMIX_RANK", "PMI_RANK", "PMI_FD", "PMI_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("vendor", "launcher", "variables", "refused"),
    [
        ("Open MPI", "mpiexec of Open MPI", {"PMIX_RANK": "0"}, False),
        ("Open MPI", "srun", {"PMIX_RANK": "0"}, False),
        ("Open MPI", "srun", {"PMI_RANK": "0", "PMI_FD": "4"}, True),
        ("Open MPI", "mpiexec of MPICH", {"PMI_RANK": "0"}, True),
        ("MPICH", "mpiexec of MPICH", {"PMI_RANK": "0"}, False),
        ("MPICH", "srun", {"PMI_RANK": "0", "PMI_FD": "4"}, False),
        ("MPICH", "srun", {}, True),
        ("MPICH", "mpiexec of Open MPI", {"PMIX_RANK": "0"}, True),
        ("Some MPI", "srun", {}, False),
    ],
)
def test_a_launcher_that_cannot_start_the_library_is_refused_before_mpi_starts(
    monkeypatch: pytest.MonkeyPatch, vendor: str, launcher: str, variables: dict[str, str], refused: bool
) -> None:
    a_job(monkeypatch, launcher, **variables)
    if not refused:
        with apply_settings(vendor, (5, 0, 2)):
            return
    sentence = f"{launcher} cannot start {vendor} 5.0.2: 4 ranks would be 4 jobs of 1; "
    with pytest.raises(UsageError, match=sentence), apply_settings(vendor, (5, 0, 2)):
        raise AssertionError("MPI would be started")


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    a_job(monkeypatch, "mpiexec of Open MPI", PMIX_RANK="0", OMPI_MCA_pml="cm")
    monkeypatch.delenv("OMPI_MCA_btl", raising=False)
    names = ("OMPI_MCA_pml", "OMPI_MCA_btl")
    with apply_settings("Open MPI", (5, 0, 11)):
        assert [os.environ.get(name) for name in names] == ["cm", "self,sm,tcp"]
    assert [os.environ.get(name) for name in names] == ["cm", None]


def test_a_library_is_named_with_its_version() -> None:
    assert Library(kind="openmpi", version="4.1.4", mpiexec=Path(), wheel=False).title == "Open MPI 4.1.4"
