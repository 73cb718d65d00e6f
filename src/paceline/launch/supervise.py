# ruff: noqa: PTH106, PTH108, PTH112, PTH118, PTH123, PTH208, SIM105
"""Runs one mpiexec and leaves nothing of it behind, whatever happens to whom.

    python -I -S _supervise.py PARENT LOCK FOLDER COMMAND…

A script of its own, because it must outlive the process that asked for the job: that one may be killed with
no chance to clean up. It imports little (no pathlib, nothing of paceline), to start in 10 ms.

1. Every process of the job whose parent ends becomes this one's child, so none can get away.
2. The job is over when mpiexec ends, or when this process is told to stop: by SIGTERM, or by PARENT's death.
   Told to stop, it asks mpiexec to end, and after GRACE seconds kills.
3. Whatever still runs is killed; FOLDER is removed, and so are segments in /dev/shm that the job had mapped.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

GRACE = 3.0
FOREVER = 1e6
STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
WATCHED = (*STOP, signal.SIGCHLD)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main() -> int:
    parent, lock, folder, *command = sys.argv[1:]
    os.set_inheritable(int(lock), False)  # held until this process ends: the sign that the folder is in use
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    job = os.fork()
    if job == 0:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        try:
            os.execve(command[0], command, os.environ)
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())
            os._exit(127)
    segments: set[str] = set()
    status = watch(job, int(parent), segments, command[0])
    end_everything()
    for name in segments:
        remove(name)
    remove(folder)
    return status


def watch(job: int, parent: int, segments: set[str], command: str) -> int:
    """Waits for `job` to end, by itself or because it was told to; its exit status, as a shell says it."""
    stop_at: float | None = 0.0 if os.getppid() != parent else None
    while True:
        patience = FOREVER if stop_at is None else max(0.0, stop_at - time.monotonic())
        told = signal.sigtimedwait(WATCHED, patience)
        if told is None and stop_at is None:
            continue
        if told is None:  # the time is up
            segments |= mapped_segments()
            for process in descendants():
                kill(process, signal.SIGKILL)
            stop_at = time.monotonic() + GRACE
        elif told.si_signo != signal.SIGCHLD and stop_at is None:
            stop_at = time.monotonic() + GRACE
            segments |= mapped_segments()
            kill(job, signal.SIGTERM)
        for process, status in ended():
            if process == job:
                code = os.waitstatus_to_exitcode(status)
                if code < 0 and stop_at is None:  # not asked to
                    name, cause = command.rpartition("/")[2], f"signal {-code} ({signal.strsignal(-code)})"
                    say(f"{name} was ended by {cause}, and the ranks with it")
                return code if code >= 0 else 128 - code


def say(text: str) -> None:
    try:
        os.write(2, f"{text}\n".encode())
    except OSError:
        pass


def ended() -> list[tuple[int, int]]:
    """The children that have ended since the last call, with their wait statuses."""
    found = []
    try:
        while (pair := os.waitpid(-1, os.WNOHANG))[0]:
            found.append(pair)
    except ChildProcessError:
        pass
    return found


def end_everything() -> None:
    """Kills what is left until nothing is; a process in an uninterruptible wait is given up after GRACE."""
    until = time.monotonic() + GRACE
    while (left := descendants()) and time.monotonic() < until:
        for process in left:
            kill(process, signal.SIGKILL)
        ended()
        time.sleep(0.005)


def descendants() -> list[int]:
    """Every living process below this one."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    state, above = file.read().rpartition(b") ")[2].split()[:2]
            except OSError:
                continue
            if state != b"Z":
                children.setdefault(int(above), []).append(int(entry))
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def mapped_segments() -> set[str]:
    """MPICH's files in /dev/shm that processes of the job have mapped: they stay there when it is killed."""
    names = set()
    for process in descendants():
        try:
            with open(f"/proc/{process}/maps") as file:
                names |= {line.split()[5] for line in file if "/dev/shm/mpich_" in line}
        except OSError:
            continue
    return names


def kill(process: int, number: int) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        pass


def remove(path: str) -> None:
    """Removes a file or a folder with all that is in it; what is gone already does not matter."""
    try:
        for folder, folders, files in os.walk(path, topdown=False):
            for name in files:
                os.unlink(os.path.join(folder, name))
            for name in folders:
                os.rmdir(os.path.join(folder, name))
        if os.path.isdir(path):
            os.rmdir(path)
        else:
            os.unlink(path)
    except OSError:
        pass


if __name__ == "__main__":
    sys.exit(main())
