"""A Slurm cluster of virtual nodes, all on this machine, in a temporary folder: for tests, and to try job scripts.

    python tools/slurm/cluster.py --nodes 2 --cpus 2 srun -N 2 -n 4 hostname

starts a private munged, a slurmctld and one slurmd a node, runs the command with SLURM_CONF pointing at them, and
stops them. Needs Debian's slurm-wlm and munge. Nothing of a Slurm that the machine may have is touched.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc", "sinfo", "scontrol", "scancel")
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])

CONFIGURATION = """
ClusterName=virtual
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool.%n
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
TmpFS={folder}
PlugStackConfig={folder}/plugstack.conf
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0
KillWait=2
MessageTimeout=30
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


@contextlib.contextmanager
def cluster(nodes: int = 2, cpus: int = 4, *, time_limit: float = 60) -> Iterator[dict[str, str]]:
    """A running cluster; yields the environment for srun, sbatch and salloc."""
    missing = [name for name in NEEDED if shutil.which(name, path=PATH) is None]
    if missing:
        raise RuntimeError(f"no {', '.join(missing)} on this machine; run `apt-get install slurm-wlm munge`")
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # short: sockets have short names
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        _configure(folder, nodes, cpus)
        environment = _outside_any_job() | {"SLURM_CONF": str(folder / "slurm.conf")}
        key, socket_, log = folder / "munge.key", folder / "munge.socket", folder / "munged.log"
        munge = [
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--socket={socket_}",
            f"--log-file={log}",
        ]
        munge += [f"--pid-file={folder / 'munged.pid'}", f"--seed-file={folder / 'munged.seed'}"]
        daemons.append(_start(munge, environment, folder))
        _wait(socket_.exists, "munged", folder, daemons, time_limit)
        daemons.append(_start(["slurmctld", "-D"], environment, folder))
        daemons += [_start(["slurmd", "-D", "-N", f"n{n + 1}"], environment, folder) for n in range(nodes)]
        _wait(lambda: _idle(environment) == nodes, "slurmctld", folder, daemons, time_limit)
        yield environment
        subprocess.run(["scancel", "--quiet", "--state=RUNNING"], env=environment, timeout=280, check=False)
    finally:
        _stop(daemons)
        shutil.rmtree(folder, ignore_errors=True)


def _configure(folder: Path, nodes: int, cpus: int) -> None:
    folder.chmod(0o755)  # munged refuses a folder that others can write to, and needs this one readable
    (folder / "state").mkdir()
    for node in range(nodes):
        (folder / f"spool.n{node + 1}").mkdir()
    (folder / "plugstack.conf").touch()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    ports = _free_ports(nodes + 1)
    lines = [
        f"NodeName=n{node + 1} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[node + 1]} CPUs={cpus} State=UNKNOWN"
        for node in range(nodes)
    ]
    user = pwd.getpwuid(os.geteuid()).pw_name
    text = CONFIGURATION.format(host=host, port=ports[0], user=user, folder=folder, nodes="\n".join(lines))
    (folder / "slurm.conf").write_text(text)
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _outside_any_job() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_", "SALLOC_"))} | {
        "PATH": PATH
    }


def _start(command: list[str], environment: dict[str, str], folder: Path) -> subprocess.Popen[bytes]:
    """A daemon that ends with this process, however this process ends."""
    path = shutil.which(command[0], path=PATH)
    with (folder / f"{command[0]}.out").open("ab") as output:
        return subprocess.Popen(
            [str(path), *command[1:]], env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True, preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGTERM),
        )  # fmt: skip


def _idle(environment: dict[str, str]) -> int:
    done = subprocess.run(["sinfo", "-h", "-N", "-o", "%t"], env=environment, capture_output=True, text=True)
    return done.stdout.split().count("idle")


def _wait(
    ready: Callable[[], bool],
    what: str,
    folder: Path,
    daemons: list[subprocess.Popen[bytes]],
    time_limit: float,
) -> None:
    until = time.monotonic() + time_limit
    while not ready():
        if time.monotonic() > until or any(daemon.poll() is not None for daemon in daemons):
            logs = [*sorted(folder.glob("*.log")), *sorted(folder.glob("*.out"))]
            told = "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)
            raise RuntimeError(f"{what} does not come up\n{told}")
        time.sleep(0.05)


def _stop(daemons: list[subprocess.Popen[bytes]]) -> None:
    for daemon in reversed(daemons):
        daemon.terminate()
    for daemon in daemons:
        try:
            daemon.wait(5)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Run a command inside a private Slurm cluster of virtual nodes."
    )
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--cpus", type=int, default=4, help="of each node, as Slurm is told")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    with cluster(args.nodes, args.cpus) as environment:
        command = args.command or [os.environ.get("SHELL", "sh")]
        return subprocess.run(
            [shutil.which(command[0], path=PATH) or command[0], *command[1:]], env=environment
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
