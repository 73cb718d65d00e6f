"""Ranks on several hosts by ssh: the list of hosts, what is checked before the start, and real jobs between namespaces."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tools.hosts.network import Network, network

from paceline.diagnosis import diagnose
from paceline.errors import UsageError
from paceline.launch import Host, answering_hosts, check_hosts, find, parse_hosts
from paceline.launch.hosts import ranks_on
from paceline.launch.remote import describe
from paceline.machine import load_network
from paceline.record import find_runs

STARTS_RANKS = True
HERE = os.uname().nodename


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("a:8,b:8", (Host("a", 8), Host("b", 8))),
        ("node-1.cluster", (Host("node-1.cluster", 1),)),
        ("localhost:2, b", (Host(HERE, 2), Host("b", 1))),
    ],
)
def test_lists_of_hosts(text: str, hosts: tuple[Host, ...]) -> None:
    assert parse_hosts(text) == hosts


@pytest.mark.parametrize(
    "text", ["", ",", "a:", "a:0", "a:-1", "a:8;b", "-o:1", "a b", "a:8,,b", "a:9999999", "u@a"]
)
def test_malformed_lists_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="hosts must look like a:8,b:8"):
        parse_hosts(text)


def test_a_host_that_is_listed_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="hosts must differ; a is listed twice"):
        parse_hosts("a:1,b:1,a:2")


def test_hosts_are_filled_in_order() -> None:
    hosts = parse_hosts("a:2,b:3,c:1")
    assert [ranks_on(hosts, ranks) for ranks in (1, 2, 4, 6)] == [
        {"a": 1},
        {"a": 2},
        {"a": 2, "b": 2},
        {"a": 2, "b": 3, "c": 1},
    ]
    with pytest.raises(UsageError, match="7 ranks do not fit on the hosts, which take 6"):
        ranks_on(hosts, 7)


# ---- what is checked, with a program in place of ssh


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a shell script in place of ssh; its last two arguments are the host and the command."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(body: str) -> None:
        head = "#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done; host=$1 command=$2\n"
        (tmp_path / "ssh").write_text(head + body)
        (tmp_path / "ssh").chmod(0o755)

    return write


def test_good_hosts_are_returned_with_their_cores(ssh: Callable[[str], None], tmp_path: Path) -> None:
    ssh('echo "a profile speaks"; eval "$command"')
    cores = len(os.sched_getaffinity(0))
    hosts = check_hosts(parse_hosts(f"{HERE}:1,b:2"), shared=tmp_path / "runs")
    assert hosts == (Host(HERE, 1, cores), Host("b", 2, cores))
    assert [path.name for path in tmp_path.iterdir()] == ["ssh"]


def test_hosts_that_get_no_rank_are_not_asked(ssh: Callable[[str], None]) -> None:
    ssh('[ "$host" = b ] && exit 255; eval "$command"')
    assert [host.name for host in check_hosts(parse_hosts("a:2,b:2"), ranks=2)] == ["a"]


def test_a_host_that_does_not_answer(ssh: Callable[[str], None]) -> None:
    ssh(
        '[ "$host" = a ] || { echo "ssh: connect to host $host port 22: No route" >&2; exit 255; }; eval "$command"'
    )
    with pytest.raises(UsageError) as refused:
        check_hosts(parse_hosts("a,b,c"))
    assert str(refused.value) == "; ".join(
        f"host {name} does not answer: ssh: connect to host {name} port 22: No route" for name in "bc"
    )
    assert [host.name for host in answering_hosts(parse_hosts("a,b,c"))] == ["a"]


def test_without_ssh_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="there is no ssh on the PATH"):
        check_hosts(parse_hosts(f"{HERE},b"))


def test_a_host_without_this_python(ssh: Callable[[str], None]) -> None:
    ssh('echo "sh: python: not found" >&2; exit 127')
    with pytest.raises(UsageError, match=f"^host b cannot run {sys.executable}: sh: python: not found$"):
        check_hosts(parse_hosts("b"))


@pytest.mark.parametrize("package", ["python", "paceline", "mpi4py", find().kind])
def test_a_host_with_another_version(ssh: Callable[[str], None], package: str) -> None:
    there = {**describe("/"), package: "0.0.1"}
    ssh(f"echo '{json.dumps(there)}'")
    with pytest.raises(
        UsageError, match=rf"^host b has {package} 0\.0\.1, this machine has {describe('/')[package]}$"
    ):
        check_hosts(parse_hosts("b"))


def test_a_host_with_other_files(ssh: Callable[[str], None], tmp_path: Path) -> None:
    ssh(f"echo '{json.dumps({**describe('/'), 'shared': False})}'")
    with pytest.raises(UsageError, match=r"^host b does not share the folder .*runs"):
        check_hosts(parse_hosts("b"), shared=tmp_path / "runs")


def test_hosts_in_an_allocation_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(UsageError, match="chosen by Slurm"):
        check_hosts(parse_hosts("b"))


# ---- real jobs


TRAIN = (sys.executable, "-m", "paceline", "train", "--data", "iris", "--model", "mlp:8", "--batch", "10")


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    with network(3) as made:
        yield made


def start_training(net: Network, folder: Path, hosts: str) -> subprocess.Popen[str]:
    """Start a training that does not end by itself; return when it has taken steps."""
    words = [*TRAIN, "--epochs", "1000000", "--hosts", hosts]
    with (folder / "stderr").open("w") as log:
        job = net.start(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=log)
    until = time.monotonic() + 280
    while "epoch 1/" not in (folder / "stderr").read_text():
        assert job.poll() is None, (folder / "stderr").read_text()
        assert time.monotonic() < until, (folder / "stderr").read_text()
        time.sleep(0.05)
    return job


def find_left_over(net: Network) -> dict[str, list[str]]:
    """Return what is still on the hosts, after some time for an end that nobody waits for."""
    until = time.monotonic() + 280
    while True:
        found = {
            name: net.commands(name) + net.shared_memory(name) for name in net.processes if name != "switch"
        }
        if not any(found.values()) or time.monotonic() > until:
            return {name: things for name, things in found.items() if things}
        time.sleep(0.05)


@pytest.mark.requires("hosts")
def test_the_hosts_train_together(net: Network, tmp_path: Path) -> None:
    words = [*TRAIN, "--epochs", "1", "--quiet", "--json"]
    done = net.run([*words, "--hosts", "h1:1,h2:2,h3:2", "-n", "4"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    result = json.loads(done.stdout)
    assert result["ranks"] == 4
    nodes = json.loads((tmp_path / result["run"] / "environment.json").read_text())["nodes"]
    assert (nodes["ranks"], nodes["hosts"]) == ([0, 1, 1, 2], ["h1", "h2", "h3"])
    assert find_left_over(net) == {}


@pytest.mark.requires("hosts")
def test_nothing_stays_on_the_hosts_if_paceline_is_killed(net: Network, tmp_path: Path) -> None:
    job = start_training(net, tmp_path, "h1:1,h2:1")
    assert net.commands("h2")
    inside = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    os.kill(int(inside[0]), signal.SIGKILL)  # the job itself is a child of nsenter
    job.wait(280)
    assert find_left_over(net) == {}


@pytest.mark.requires("hosts")
@pytest.mark.once
def test_a_slow_link_is_diagnosed(net: Network, tmp_path: Path) -> None:
    """Two runs that differ in the link of one host alone. On a busy machine, other links may look slow as well."""
    words = [
        sys.executable,
        "-m",
        "paceline",
        "train",
        "--data",
        "digits",
        "--model",
        "mlp:64",
        "--epochs",
        "1",
        "--batch",
        "120",
    ]
    words += ["--strategy", "sync:allreduce=ring", "--quiet", "--hosts", "h1:1,h2:1,h3:1"]
    speeds, named = [], []
    for rate in (None, "6mbit"):
        if rate is not None:
            net.limit("h2", rate)
        done = net.run([*words, "--runs", f"at {rate}"], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        [run] = find_runs([tmp_path / f"at {rate}"])
        nodes = run.environment["nodes"]
        speeds.append(dict(zip(nodes["hosts"], nodes["links"], strict=True)))
        (found,) = diagnose([run])
        named.append([cause.words for cause in found.causes if cause.rule == "slow link"])
    net.limit("h2", "10gbit")
    assert speeds[1]["h2"] < 1e6 < speeds[0]["h2"]
    assert min(speeds[1], key=speeds[1].__getitem__) == "h2"
    [said] = named[1]
    assert re.match(r"at 3 ranks the links? of hosts? (h1 and )?h2 ", said)


@pytest.mark.requires("hosts")
@pytest.mark.once
def test_the_network_between_hosts_is_measured(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "paceline", "simulate", "calibrate", "-n", "2", "--seconds", "0.2"]
    with network(2) as two:
        for name in two.names:
            two.resemble_line(name, "80mbit")
        done = two.run([*words, "--hosts", "h1:1,h2:1", "-o", "cluster.json"], cwd=tmp_path, time_limit=280)
    assert done.returncode == 0, done.stderr
    found = load_network(str(tmp_path / "cluster.json"))
    assert f"network: {found}" in done.stdout.splitlines()
    assert (found.name, found.ranks_per_node, found.stream) == ("1gbe", 1, math.inf)
    # About the 10 MB/s of the line; without a limit it would be a hundred times more.
    assert 1e6 < found.bandwidth < 1e8


@pytest.mark.requires("hosts")
def test_a_host_that_is_cut_off_ends_the_job(net: Network, tmp_path: Path) -> None:
    job = start_training(net, tmp_path, "h1:1,h3:1")
    net.cut("h3")
    assert job.wait(280) == 1
    said = [line for line in (tmp_path / "stderr").read_text().splitlines() if "epoch" not in line]
    assert said[-1] == "host h3 is lost, and the ranks there with it"
    assert find_left_over(net) == {}  # also on h3, whose own end of the line fell silent
    net.join("h3")


@pytest.mark.requires("hosts")
def test_a_run_that_loses_a_host_is_resumed_on_the_others(net: Network, tmp_path: Path) -> None:
    """The last test of this module: h3 is gone afterwards."""
    shutil.copy(Path(__file__).with_name("slow.py"), tmp_path)
    words = [
        sys.executable,
        "-m",
        "paceline",
        "train",
        "--data",
        "iris",
        "--model",
        "slow:net",
        "--epochs",
        "40",
    ]
    words += [
        "--strategy",
        "sync:allreduce=ring",
        "--batch",
        "12",
        "--name",
        "run",
        "--tolerate-failures",
        "--quiet",
    ]
    words += ["--checkpoint-every", "5 steps", "--hosts", "h2:1,h1:1,h3:1"]
    with (tmp_path / "stderr").open("w") as log:
        job = net.start(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=log)
    until = time.monotonic() + 280
    while len(list((tmp_path / "runs/run/checkpoints/rank-0").glob("[0-9]*.npz"))) < 2:
        assert job.poll() is None, (tmp_path / "stderr").read_text()
        assert time.monotonic() < until, (tmp_path / "stderr").read_text()
        time.sleep(0.05)
    net.kill("h3")
    said = (tmp_path / "stderr").read_text
    # Ranks that are quick by then would end the run without it, before anybody has noticed.
    while "host h3 is lost, and the ranks there with it\n" not in said():
        assert job.poll() is None, said()
        assert time.monotonic() < until, said()
        time.sleep(0.05)
    (tmp_path / "fast").touch()
    assert job.wait(280) == 0, said()
    assert "restart 1 of 3: from its last checkpoint, on 2 ranks (3 before)\n" in said()
    nodes = json.loads((tmp_path / "runs/run/environment.json").read_text())["nodes"]
    assert nodes["hosts"] == ["h2", "h1"]
    assert [epoch["epoch"] for epoch in find_runs([tmp_path / "runs"])[0].epochs] == list(range(40))
    assert find_left_over(net) == {}
