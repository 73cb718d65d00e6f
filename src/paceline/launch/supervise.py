# ruff: noqa: PTH102, PTH106, PTH108, PTH112, PTH118, PTH123, PTH208, SIM105
"""Run one mpiexec and leave nothing of it behind, whatever happens.

    python -I -S supervise.py PARENT LOCK FOLDER COMMAND...
    python -I -S supervise.py remote

The second form runs the daemon that mpiexec starts on another host (see `remote`). It reads one line of JSON (command,
variables, folder) from its standard input, and asks the daemon to end when that input ends.

This is a separate script because it must outlive the process that asked for the job, which may be killed without a chance
to clean up. It imports little (no pathlib, nothing from paceline) and starts in 10 ms.

1. Every process of the job whose parent ends becomes a child of this one, so none can escape.
2. The job is over when mpiexec ends, or when this process is asked to stop by SIGTERM or by PARENT's death. Then it asks
   mpiexec to end, and kills it after GRACE seconds.
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
    if sys.argv[1] == "remote":
        return supervise_remote()
    parent, lock, folder, *command = sys.argv[1:]
    os.set_inheritable(int(lock), False)  # held until this process ends: it marks the folder as in use
    return supervise(int(parent), folder, command)


def supervise_remote() -> int:
    import json

    given = json.loads(sys.stdin.buffer.readline() or b"{}")
    if not given:
        return 255
    try:
        os.mkdir(given["folder"], 0o700)
    except FileExistsError:
        pass
    os.environ.update(given["environment"])
    return supervise(os.getppid(), given["folder"], ["/bin/sh", "-c", given["command"]], tethered=True)


def end_with_input() -> None:
    """Ask this process to stop when its standard input ends."""
    try:
        while os.read(0, 4096):
            pass
    except OSError:
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def supervise(parent: int, folder: str, command: list[str], *, tethered: bool = False) -> int:
    """Run `command`, and leave nothing of it behind; return its exit status."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    job = os.fork()
    if job == 0:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        os.setpgid(0, 0)
        if tethered:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
        try:
            os.execve(command[0], command, os.environ)
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())
            os._exit(127)
    if tethered:
        import threading  # after the fork

        threading.Thread(target=end_with_input, daemon=True).start()
    segments: set[str] = set()
    status = watch(job, parent, segments, command[0])
    end_everything()
    for name in segments:
        remove(name)
    remove(folder)
    return status


def watch(job: int, parent: int, segments: set[str], command: str) -> int:
    """Wait for `job` to end, by itself or because it was asked to; return its exit status as a shell reports it."""
    stop_at: float | None = 0.0 if os.getppid() != parent else None
    while True:
        patience = FOREVER if stop_at is None else max(0.0, stop_at - time.monotonic())
        received = signal.sigtimedwait(WATCHED, patience)
        if received is None and stop_at is None:
            continue
        if received is None:  # the time is up
            segments |= mapped_segments()
            for process in descendants():
                kill(process, signal.SIGKILL)
            stop_at = time.monotonic() + GRACE
        elif received.si_signo != signal.SIGCHLD and stop_at is None:
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
    """Return the children that have ended since the last call, with their wait statuses."""
    found = []
    try:
        while (pair := os.waitpid(-1, os.WNOHANG))[0]:
            found.append(pair)
    except ChildProcessError:
        pass
    return found


def end_everything() -> None:
    """Kill all processes that are left; give up on uninterruptible ones after GRACE seconds."""
    until = time.monotonic() + GRACE
    while (left := descendants()) and time.monotonic() < until:
        for process in left:
            kill(process, signal.SIGKILL)
        ended()
        time.sleep(0.005)


def descendants() -> list[int]:
    """Return every living process below this one."""
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
    """Return MPICH's files in /dev/shm that the job has mapped; they would stay there when it is killed."""
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
    """Remove a file, or a folder with everything in it, if it exists."""
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
