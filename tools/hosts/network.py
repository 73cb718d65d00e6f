"""Several hosts on one machine, each with a network of its own: for tests, and to try `--hosts`.

    python tools/hosts/network.py --hosts 2 paceline train --data iris --hosts h1:2,h2:2

makes h1, h2, ... as Linux namespaces (network, host name, processes, shared memory; files are shared, as on a cluster),
connects them by a switch, puts a program in place of ssh first on the PATH, runs the command on h1, and removes them.
Needs root, and the programs ip, tc, unshare and nsenter. Nothing of the machine's own network is touched.

The program in place of ssh starts commands without a terminal or a password, as ssh does with a key. Like ssh, it ends
with the command's exit status, or with 255 if the host does not answer; what it started on a host does not end with it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PROGRAMS = ("ip", "tc", "unshare", "nsenter")
SPACES = ("--net", "--uts", "--ipc", "--mount", "--pid")
PORT = 22
ALIVE = 2  # seconds between two checks whether a silent host still answers; it is lost after three
LEAST_BURST = 10_000  # bytes that pass a line of limited rate at once, or as many as pass it in BURST_SECONDS
BURST_SECONDS = 100e-6
FRAME = 1514
RATES = {"kbit": 1e3 / 8, "mbit": 1e6 / 8, "gbit": 1e9 / 8}
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


class Network:
    """The hosts of one network, in a temporary folder."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.names = [f"h{number + 1}" for number in range(count)]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def run(
        self,
        command: Sequence[str],
        *,
        on: str = "h1",
        cwd: Path | None = None,
        time_limit: float = 280,
        **options: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end; options are those of `subprocess.run`."""
        return subprocess.run(
            self.entering(on, command, cwd), timeout=time_limit, text=True, stdin=subprocess.DEVNULL,
            **{"capture_output": True, "env": self.environment(), **options},
        )  # fmt: skip

    def start(
        self, command: Sequence[str], *, on: str = "h1", cwd: Path | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start a command on a host; options are those of `subprocess.Popen`."""
        return subprocess.Popen(
            self.entering(on, command, cwd), text=True, stdin=subprocess.DEVNULL,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": self.environment(), **options},
        )  # fmt: skip

    def entering(self, name: str, command: Sequence[str], cwd: Path | None = None) -> list[str]:
        """Return the command line that runs a command on a host, in this process's working directory or in `cwd`."""
        there = [
            "sh",
            "-c",
            'cd "$0" && exec "$@"',
            str(cwd or Path.cwd()),
        ]  # nsenter --wd would stay outside
        return ["nsenter", "-t", str(self.inside(name)), "-n", "-u", "-i", "-m", "-p", *there, *command]

    def environment(self) -> dict[str, str]:
        """Return the environment in which `ssh` reaches the hosts."""
        return {**os.environ, "PATH": f"{self.folder}:{PATH}"}

    def inside(self, name: str) -> int:
        """Return the first process of a host, as seen from outside."""
        outside = self.processes[name].pid
        return int(Path(f"/proc/{outside}/task/{outside}/children").read_text().split()[0])

    def commands(self, name: str) -> list[str]:
        """Return the command lines of what runs on a host, except for its own daemon."""
        found = []
        first = str(self.inside(name))
        space = Path(f"/proc/{first}/ns/pid").readlink()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if process.name != first and (process / "ns/pid").readlink() == space and words:
                    found.append(words.strip())
        return found

    def shared_memory(self, name: str) -> list[str]:
        """Return the names of the files in a host's /dev/shm."""
        return sorted(path.name for path in Path(f"/proc/{self.inside(name)}/root/dev/shm").iterdir())

    def limit(self, name: str, rate: str, burst: int = 1 << 15) -> None:
        """Limit what a host can send and receive, for example to "10mbit".

        After a silence, the first `burst` bytes pass at once.
        """
        bucket = ("root", "tbf", "rate", rate, "burst", str(burst), "latency", "400ms")
        self._in(name, "tc", "qdisc", "replace", "dev", "eth0", *bucket)
        self._in("switch", "tc", "qdisc", "replace", "dev", f"to-{name}", *bucket)

    def resemble_line(self, name: str, rate: str) -> None:
        """Limit a host as a card of this rate does: hardly anything passes at once, and TCP adapts to losses alone.

        The kernel hands packets over in pieces that fit into the small burst. Linux's plainest congestion control is
        used, because others (BBR) pace what they send by their own guess of the rate.
        """
        burst = max(LEAST_BURST, round(BURST_SECONDS * bytes_per_second(rate)))
        self._in(name, "ip", "link", "set", "eth0", "gso_max_size", str(min(burst - FRAME, 65536)))
        control = "echo reno > /proc/sys/net/ipv4/tcp_congestion_control"
        subprocess.run(self.entering(name, ["sh", "-c", control], Path("/")), check=True)
        self.limit(name, rate, burst)

    def cut(self, name: str) -> None:
        """Cut a host off from the others, without a word to anybody."""
        self._in("switch", "ip", "link", "set", f"to-{name}", "nomaster")

    def join(self, name: str) -> None:
        """Connect a host again."""
        self._in("switch", "ip", "link", "set", f"to-{name}", "master", "bridge")

    def kill(self, name: str) -> None:
        """End a host and everything that runs on it."""
        self.processes[name].kill()
        self.processes.pop(name).wait()

    def _in(self, name: str, *command: str) -> None:
        pid = self.processes["switch"].pid if name == "switch" else self.inside(name)
        path = shutil.which(command[0], path=PATH) or command[0]
        subprocess.run(["nsenter", "-t", str(pid), "-n", path, *command[1:]], check=True)

    def _start(self) -> None:
        table = "".join(f"10.0.0.{number + 1} {name}\n" for number, name in enumerate(self.names))
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{table}")
        (self.folder / "ssh").write_text(f'#!/bin/sh\nexec {sys.executable} -I {__file__} ssh "$@"\n')
        (self.folder / "ssh").chmod(0o755)
        self.processes["switch"] = _daemon(["unshare", "--net", "sleep", "infinity"])
        _wait(lambda: _apart(self.processes["switch"].pid), "the switch")
        self._in("switch", "ip", "link", "add", "bridge", "type", "bridge")
        self._in("switch", "ip", "link", "set", "bridge", "up")
        for number, name in enumerate(self.names):
            script = (
                f"hostname {name} && mount -t tmpfs -o mode=1777 none /dev/shm && "
                f"mount --bind {self.folder}/hosts /etc/hosts && exec {sys.executable} -I {__file__} sshd"
            )
            ready = self.folder / f"{name}.ready"
            self.processes[name] = _daemon(
                ["unshare", *SPACES, "--fork", "--kill-child", "--mount-proc", "sh", "-c", script],
                READY=str(ready), ADDRESS=f"10.0.0.{number + 1}",
            )  # fmt: skip
            _wait(lambda path=ready: path.exists(), name)
            self._in(
                "switch", *f"ip link add to-{name} type veth peer name eth0 netns {self.inside(name)}".split()
            )
            self._in("switch", *f"ip link set to-{name} master bridge up".split())
            self._in(name, *f"ip address add 10.0.0.{number + 1}/24 dev eth0".split())
            self._in(name, "ip", "link", "set", "lo", "up")
            self._in(name, "ip", "link", "set", "eth0", "up")


def bytes_per_second(rate: str) -> float:
    """Return a rate as tc spells it in bytes per second.

    >>> bytes_per_second("100mbit"), bytes_per_second("2.5gbit")
    (12500000.0, 312500000.0)
    """
    unit = rate.lstrip("0123456789.")
    number = rate.removesuffix(unit)
    if unit not in RATES or number.count(".") > 1 or not number.strip(".") or not float(number) > 0:
        raise ValueError(f"a rate must look like 100mbit or 1gbit; got {rate!r}")
    return float(number) * RATES[unit]


@contextlib.contextmanager
def network(count: int = 2) -> Iterator[Network]:
    """Make `count` hosts, h1, h2, ...; remove them at the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix="hosts-"))
    folder.chmod(0o755)
    made = Network(folder, count)
    try:
        made._start()
        yield made
    finally:
        for process in made.processes.values():
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _daemon(command: list[str], **variables: str) -> subprocess.Popen[bytes]:
    """Start a process that ends with this one, however this one ends."""
    ending = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    return subprocess.Popen(
        [*ending, *command], env={**os.environ, "PATH": PATH, **variables}, stdin=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def _apart(pid: int) -> bool:
    return Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()


def _wait(ready: Any, what: str) -> None:
    until = time.monotonic() + 60
    while not ready():
        if time.monotonic() > until:
            raise RuntimeError(f"{what} does not come up")
        time.sleep(0.01)


# ---- the program in place of ssh, and its daemon on each host

LOCK = threading.Lock()  # held from the start of a process until it is known as one that somebody waits for


def serve() -> None:
    """Start what clients ask for, on a host; be the first process of its namespace."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("0.0.0.0", PORT))
    listener.listen(64)
    Path(os.environ["READY"]).touch()
    running: set[int] = set()
    threading.Thread(target=_reap, args=(running,), daemon=True).start()
    while True:
        client, _ = listener.accept()
        _keep_alive(client)
        threading.Thread(target=_answer, args=(client, running), daemon=True).start()


def _reap(running: set[int]) -> None:
    """Collect processes that nobody waits for, as the first process of a machine does."""
    while True:
        time.sleep(0.1)
        with LOCK, contextlib.suppress(ChildProcessError):
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None and found.si_pid not in running:
                os.waitpid(found.si_pid, 0)


def _answer(client: socket.socket, running: set[int]) -> None:
    stream = client.makefile("rwb", buffering=0)
    command = json.loads(stream.readline())
    environment = {
        "HOME": os.environ.get("HOME", "/root"),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "USER": "root",
    }
    with LOCK:
        process = subprocess.Popen(
            ["sh", "-c", command], env=environment, cwd="/", start_new_session=True, bufsize=0,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        running.add(process.pid)

    def feed() -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                process.stdin.write(data)  # type: ignore[union-attr]
        with contextlib.suppress(OSError):
            process.stdin.close()  # type: ignore[union-attr]

    threading.Thread(target=feed, daemon=True).start()
    with contextlib.suppress(OSError), selectors.DefaultSelector() as selector:
        for kind, pipe in ((b"o", process.stdout), (b"e", process.stderr)):
            selector.register(pipe, selectors.EVENT_READ, kind)  # type: ignore[arg-type]
        while selector.get_map():
            for key, _ in selector.select():
                if data := os.read(key.fd, 65536):
                    client.sendall(key.data + len(data).to_bytes(4, "big") + data)
                else:
                    selector.unregister(key.fd)
    status = process.wait()
    running.discard(process.pid)
    with contextlib.suppress(OSError):
        client.sendall(b"x" + (status if status >= 0 else 255).to_bytes(4, "big"))
    client.close()


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, ALIVE),
        (socket.TCP_KEEPINTVL, ALIVE),
        (socket.TCP_KEEPCNT, 3),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 3000 * ALIVE)


def reach(words: list[str]) -> int:
    """Run a command on a host, as ssh does; return its exit status, or 255 if the host does not answer."""
    while words and words[0].startswith("-"):
        del words[: 2 if words[0] == "-o" else 1]
    host, command = words[0], " ".join(words[1:])
    try:
        connection = socket.create_connection((host, PORT), timeout=3 * ALIVE)
        connection.settimeout(None)
        _keep_alive(connection)
        connection.sendall(json.dumps(command).encode() + b"\n")

        def feed() -> None:
            with contextlib.suppress(OSError):
                while data := os.read(0, 65536):
                    connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)

        threading.Thread(target=feed, daemon=True).start()
        stream = connection.makefile("rb")
        while kind := stream.read(1):
            size = int.from_bytes(stream.read(4), "big")
            if kind == b"x":
                return size
            os.write(1 if kind == b"o" else 2, stream.read(size))
    except OSError as error:
        os.write(2, f"ssh: connect to host {host} port {PORT}: {error.strerror or error}\n".encode())
    return 255


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Run a command on the first of several hosts, all on this machine."
    )
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    with network(args.hosts) as made:
        return made.run(args.command or ["sh"], capture_output=False, time_limit=1e6).returncode


if __name__ == "__main__":
    if sys.argv[1:2] == ["sshd"]:
        serve()
    elif sys.argv[1:2] == ["ssh"]:
        code = reach(sys.argv[2:])
        sys.stdout.flush()
        os._exit(code)
    else:
        sys.exit(main())
