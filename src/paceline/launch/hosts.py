"""Several hosts without a batch system (`--hosts a:8,b:8`): the list, which hosts can be used, and starting ranks there.

mpiexec starts a daemon on each host by ssh; `remote` and `supervise` make sure that nothing of it stays there. All hosts
need the same Python environment and working directory at the same paths, as on a cluster with shared files.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.errors import UsageError
from paceline.launch.remote import PACKAGES, SSH, describe

REMOTE = Path(__file__).with_name("remote.py")
LIMIT = 30.0  # seconds for a host to describe itself
LONGEST = 64  # of a host's name
LOCAL = ("localhost", "127.0.0.1", "::1")
# Variables of this process that ranks on other hosts get too, besides those that paceline sets for them.
PASSED = (
    "PACELINE_",
    "PYTHON",
    "MPI4PY_",
    "OMPI_",
    "PRTE_",
    "PMIX_MCA_",
    "MPIR_",
    "MPICH_",
    "UCX_",
    "FI_",
    "TORCH_",
)
PASSED_NAMES = ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LANG", "LC_ALL", "TZ")


@dataclass(frozen=True)
class Host:
    """A host and the number of ranks that it can take.

    >>> Host("a", 8)
    Host(name='a', slots=8)
    """

    name: str
    slots: int
    cores: int | None = None
    """The cores that a rank there may use; None: not asked yet."""

    def __repr__(self) -> str:
        known = "" if self.cores is None else f", cores={self.cores}"
        return f"Host(name={self.name!r}, slots={self.slots}{known})"

    @property
    def here(self) -> bool:
        """True if this is the machine of this process."""
        own = os.uname().nodename
        return self.name in (own, own.partition(".")[0], socket.getfqdn())


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Parse a list of hosts, each with the number of its ranks (1 if it is left out).

    >>> parse_hosts("a:8,b:8")
    (Host(name='a', slots=8), Host(name='b', slots=8))
    """
    hosts = []
    for word in text.split(","):
        found = re.fullmatch(
            rf"([A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST - 1}}})(?::(\d{{1,6}}))?", word.strip()
        )
        slots = int(found[2] or 1) if found else 0
        if found is None or slots < 1:
            raise UsageError(f"hosts must look like a:8,b:8 (a name and its ranks); got {text!r}")
        hosts.append(Host(os.uname().nodename if found[1] in LOCAL else found[1], slots))
    names = [host.name for host in hosts]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"hosts must differ; {twice} is listed twice in {text!r}")
    return tuple(hosts)


def ranks_on(hosts: Iterable[Host], ranks: int) -> dict[str, int]:
    """Return the ranks on each host that gets any: the hosts are filled in order.

    >>> ranks_on(parse_hosts("a:4,b:4,c:4"), 6)
    {'a': 4, 'b': 2}
    """
    shares = {}
    for host in hosts:
        if (share := min(host.slots, ranks)) > 0:
            shares[host.name] = share
            ranks -= share
    if ranks > 0:
        slots = sum(shares.values())
        raise UsageError(f"{slots + ranks} ranks do not fit on the hosts, which take {slots}")
    return shares


def check_hosts(
    hosts: Sequence[Host], *, ranks: int | None = None, shared: Path | None = None
) -> tuple[Host, ...]:
    """Return the hosts with their cores, if ranks can be started there; otherwise raise a UsageError in one line.

    Only hosts that get any of `ranks` ranks are asked and returned. Each must answer ssh without a password and have the
    same Python, paceline and MPI at the same path. `shared` is a folder, existing or not, that must be the same one on
    all hosts; None: it need not be.
    """
    if "SLURM_JOB_ID" in os.environ:
        raise UsageError("hosts are chosen by Slurm in an allocation; leave out --hosts")
    used = ranks_on(hosts, sum(host.slots for host in hosts) if ranks is None else ranks)
    hosts = [host for host in hosts if host.name in used]
    with _probe(shared) as probe:
        answers = _ask(hosts, [sys.executable, "-I", str(REMOTE), "describe", str(probe)])
        wanted = describe(str(probe))
    if wrong := [
        f"host {host.name} {why}" for host in hosts if (why := _fault(answers[host.name], wanted, shared))
    ]:
        raise UsageError("; ".join(wrong))
    return tuple(replace(host, cores=answers[host.name]["cores"]) for host in hosts)


def answering_hosts(hosts: Iterable[Host]) -> tuple[Host, ...]:
    """Return the hosts that answer now: those on which a job can be started again after one was lost."""
    hosts = tuple(hosts)
    answers = _ask(hosts, ["echo", "{}"])
    return tuple(host for host in hosts if "error" not in answers[host.name])


@contextmanager
def _probe(shared: Path | None) -> Iterator[Path]:
    """Make a file inside `shared`, or in the nearest folder above it that exists, which other hosts are to see."""
    if shared is None:
        yield Path("/")
        return
    folder = next(above for above in (shared.absolute(), *shared.absolute().parents) if above.is_dir())
    try:
        with tempfile.NamedTemporaryFile(prefix=".paceline-", dir=folder) as file:
            yield Path(file.name)
    except PermissionError:  # found, with a better message, when the record is made
        yield Path("/")


def _ask(hosts: Sequence[Host], command: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Run a command on all hosts at once; return the JSON that it prints on each, or an "error"."""
    if shutil.which(SSH[0]) is None and not all(host.here for host in hosts):
        raise UsageError("hosts are reached by ssh, and there is no ssh on the PATH")
    started = {}
    for host in hosts:
        words = list(command) if host.here else [*SSH, host.name, shlex.join(command)]
        started[host.name] = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            errors="replace", start_new_session=True,
        )  # fmt: skip
    return {name: _answer(process) for name, process in started.items()}


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    with process:
        try:
            out, err = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            return {"error": f"does not answer within {LIMIT:.0f} s"}
    said = next(iter([line.strip() for line in err.splitlines() if line.strip()][-1:]), "")
    if process.returncode == 255:
        return {"error": f"does not answer: {said or 'ssh failed'}"}
    with suppress(ValueError, IndexError):
        found = json.loads(out.splitlines()[-1])  # above it, what a shell's profile may print
        if isinstance(found, dict):
            return found
    return {"error": f"cannot run {sys.executable}: {said or f'exit status {process.returncode}'}"}


def _fault(answer: dict[str, Any], wanted: Mapping[str, Any], shared: Path | None) -> str | None:
    """Return what is wrong with a host, or None."""
    if "error" in answer:
        return str(answer["error"])
    for name in ("python", *PACKAGES):
        here, there = wanted[name], answer.get(name)
        if here != there:
            return f"has {name} {there}, this machine has {here}"
    if not answer.get("shared"):
        return f"does not share the folder {shared}: checkpoints of its ranks would stay there"
    return None


def hand_over(folder: Path, variables: Mapping[str, str]) -> list[str]:
    """Write what `remote` needs into the job's folder; return the command that a launcher runs in place of ssh.

    It is run by sh, because the folder may be mounted without permission to execute.
    """
    passed = {
        name: value for name, value in variables.items() if name.startswith(PASSED) or name in PASSED_NAMES
    }
    passed |= {name: value for name, value in variables.items() if os.environ.get(name) != value}
    given = folder / "remote.json"
    given.touch(0o600)
    given.write_text(json.dumps({"environment": passed}))
    agent = folder / "agent"
    start = shlex.join([sys.executable, "-I", "-S", str(REMOTE), "start", str(folder)])
    agent.write_bytes(os.fsencode(f'exec {start} "$@"\n'))
    return ["/bin/sh", str(agent)]
