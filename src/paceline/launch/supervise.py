# ruff: noqa: PTH102, PTH106, PTH108, PTH110, PTH118, PTH123, PTH208, SIM105
"""Run one mpiexec and leave nothing of it behind, whatever happens.

    python -I -S supervise.py PARENT LOCK FOLDER STDERR COMMAND...
    python -I -S supervise.py remote

The second form runs the daemon that mpiexec starts on another host (see `remote`). It reads one line of JSON (command,
variables, folder) from its standard input, and ends the daemon when that input ends or falls silent.

This is a separate script because it must outlive the process that asked for the job, which may be killed without a chance
to clean up. It imports little (no pathlib, nothing from paceline) and starts in 10 ms.

1. Every process of the job whose parent ends becomes a child of this one, so none can escape.
2. SIGINT, SIGTERM and SIGUSR1 ask the job to stop. They are passed on to the ranks that understand that (each has a file
   FOLDER/stoppable/PROCESS; FOLDER/stop holds the number of the signal), which have STOP_WITHIN seconds to save their
   work and end. They do not go to mpiexec: Open MPI's kills its ranks a quarter of a second after a SIGTERM. If the
   ranks are on other machines, mpiexec passes SIGUSR1 on to them.
3. The job is ended at once by SIGHUP, by PARENT's death, or if no rank understands the request: this process asks mpiexec
   to end, and kills it after GRACE seconds.
4. While the ranks do not watch each other (FOLDER/watched lacks some of them: before and after training), this process
   looks for ranks that are stopped (SIGSTOP), and reports or ends them as FOLDER/stall says: SECONDS, and what to do.
5. A launcher that does not end, although its ranks have ended or, after a signal, have left their work (FOLDER/left), is
   killed LOOK seconds after that has been seen: Open MPI's may hang when a signal tells it to end.
6. If ranks are to survive the deaths of others (FOLDER/survive), Open MPI waits for ever for one that dies before all have
   started MPI (FOLDER/started): such a job is ended.
7. When mpiexec has ended, whatever still runs is killed, and segments in /dev/shm that the job had mapped are removed.
   If PARENT is no more, so are FOLDER and the folders of PARENT that FOLDER/also lists.

STDERR is a descriptor of the stderr of PARENT (-1: none), for what is to be said when PARENT is no more.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

GRACE = 3.0
LOOK = 10.0  # seconds between two looks at a job whose ranks may have ended
STARTING = 1.0  # seconds between two looks at ranks that start
START_WITHIN = 30.0  # seconds within which the launcher starts all processes
STOP_WITHIN = 300.0
# The exit statuses of jobs that are ended because a rank makes no progress (EX_TEMPFAIL of sysexits.h), and because a rank
# died before MPI had started.
STALLED, KILLED = 75, 137
SILENCE = 60.0
FOREVER = 1e6
REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
WATCHED = (*REQUESTS, signal.SIGHUP, signal.SIGCHLD)
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def main() -> int:
    if sys.argv[1] == "remote":
        return supervise_remote()
    parent, lock, folder, stderr, *command = sys.argv[1:]
    os.set_inheritable(int(lock), False)  # held until this process ends: it marks the folder as in use
    if stderr != "-1":
        os.set_inheritable(int(stderr), False)
    return supervise(int(parent), folder, command, stderr=int(stderr))


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
    """End the job of this process when its standard input ends, or says nothing for SILENCE seconds."""
    import select

    try:
        while select.select([0], [], [], SILENCE)[0] and os.read(0, 4096):
            pass
    except OSError:
        pass
    os.kill(os.getpid(), signal.SIGHUP)


def supervise(
    parent: int, folder: str, command: list[str], *, stderr: int = -1, tethered: bool = False
) -> int:
    """Run `command`, and leave nothing of it behind; return its exit status."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)  # PARENT has blocked them from the start
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGHUP)
    process = os.fork()
    if process == 0:
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
    job = RunningJob(process, command[0].rpartition("/")[2], folder, parent, stderr)
    status = job.watch()
    end_everything()
    for name in job.segments:
        remove(name)
    if is_gone(parent):
        say(f"the process that started {job.name} is gone; its ranks were ended", stderr)
        for name in (*job.list_other_folders(), folder):
            remove(name)
    elif tethered:
        remove(folder)
    return status


class RunningJob:
    """A job that is running: its mpiexec, and when that must have ended."""

    def __init__(self, process: int, name: str, folder: str, parent: int, stderr: int) -> None:
        self.process = process
        self.name = name
        self.folder = folder
        self.parent = parent
        self.stderr = stderr
        self.segments: set[str] = set()
        self.asked = 0  # the signal that asked the job to stop
        self.stop_by: float | None = None  # when ranks that were asked to stop must have ended
        self.kill_at: float | None = None  # when mpiexec, which was told to end, must have ended
        seconds, _, self.on_stall = " ".join(self.lines("stall")).partition(" ")
        self.patience = float(seconds or FOREVER)
        self.starting = os.path.exists(os.path.join(folder, "survive"))  # and not all ranks have started MPI
        self.begun: set[str] = set()  # ranks that have been seen
        self.missed: float | None = None  # since when one of them is gone
        self.ended: float | None = None  # since when the ranks have been seen to have ended
        self.look_at = time.monotonic() + self.interval()
        self.stopped: dict[int, float] = {}  # ranks that are stopped, and since when
        self.reported: set[int] = set()
        self.result: int | None = None  # the exit status of a job that was ended because of them

    def interval(self) -> float:
        """Return the seconds until the next look at the ranks."""
        return min(STARTING if self.starting else LOOK, self.patience / 4)

    def watch(self) -> int:
        """Wait for mpiexec to end, by itself or because it was told to; return its exit status as a shell reports it.

        If the job was ended because of a request to stop, return 128 + that signal.
        """
        if is_gone(self.parent):
            self.end()
        while True:
            late = self.kill_at if self.kill_at is not None else self.stop_by
            until = self.look_at if late is None else min(late, self.look_at)
            received = signal.sigtimedwait(WATCHED, min(FOREVER, max(0.0, until - time.monotonic())))
            if received is None and until == self.look_at != late:
                self.look()
                continue
            if received is not None and received.si_signo in REQUESTS:
                self.ask(received.si_signo)
            elif received is not None and received.si_signo == signal.SIGHUP:
                self.end()
            elif received is None and self.kill_at is not None:
                self.kill()
            elif received is None and self.stop_by is not None:
                say(f"the ranks did not stop within {STOP_WITHIN:g} s; they are ended")
                self.end()
            for process, status in reap_children():
                if process == self.process:
                    return self.status(os.waitstatus_to_exitcode(status))

    def ask(self, number: int) -> None:
        """Ask the job to stop, if it has not been asked before; end it if no rank understands that."""
        if self.asked or self.kill_at is not None:
            return
        self.asked = number
        with open(os.path.join(self.folder, "stop"), "w") as file:  # for ranks that are not ready yet
            file.write(str(number))
        told = [process for process in descendants() if os.path.exists(self.stop_file(process))]
        if not told and not os.path.exists(self.stop_file("elsewhere")):
            self.end()
            return
        say(  # before a rank says what it did
            f"{name_of(number)}: the ranks are asked to save a checkpoint and stop; a second one ends them at once"
        )
        for process in told:
            kill(process, number)
        if not told:
            kill(self.process, signal.SIGUSR1)
        self.stop_by = time.monotonic() + STOP_WITHIN

    def look(self) -> None:
        """Report a rank that has been stopped for long while the ranks do not watch each other, or end the job."""
        now = time.monotonic()
        if self.starting:
            # A rank that dies now ends the others, which then do not unlink them.
            self.segments |= mapped_segments()
            self.check_start(now)
        else:
            self.check_end(now)
        self.look_at = now + self.interval()
        if self.is_watched() or self.kill_at is not None:
            self.stopped = {}
            return
        found = [(process, name) for process, name, state in rank_processes(self.process) if state == b"T"]
        self.stopped = {process: self.stopped.get(process, now) for process, _ in found}
        for process, name in found:
            seconds = now - self.stopped[process]
            if seconds < self.patience or process in self.reported:
                continue
            self.reported.add(process)
            words = f"{name} (process {process}) has been stopped for {seconds:.0f} s (SIGSTOP)"
            if os.path.exists(os.path.join(self.folder, "done")):
                say(f"{words}; all ranks have done their work, and it is ended")
                self.result = 0
            elif self.on_stall != "warn":
                say(f"{words}; the run ends with status {STALLED} (--on-stall {self.on_stall})")
                self.result = STALLED
            else:
                say(f"{words}; `kill -CONT {process}` continues it")
        if self.result is not None:
            self.kill()

    def check_start(self, now: float) -> None:
        """End the job if a rank has been gone for a while and not all ranks have started MPI."""
        self.starting = not self.all_have("started")
        if not self.starting or self.kill_at is not None:
            return
        alive = {name for _, name, _ in rank_processes()}
        gone = [
            name for name in map("rank {}".format, range(int(self.lines("ranks")[0]))) if name not in alive
        ]
        self.begun |= alive
        self.missed = (now if self.missed is None else self.missed) if gone and alive else None
        seen = not self.begun.isdisjoint(gone)  # otherwise it may be about to be started
        if self.missed is not None and now - self.missed >= (GRACE if seen else START_WITHIN):
            say(f"{', '.join(gone)} ended before all ranks had started MPI; the job is ended")
            self.result = KILLED
            self.kill()

    def check_end(self, now: float) -> None:
        """Kill a launcher that does not end after its ranks."""
        ended = self.all_have("left") or (self.all_have("started") and not self.any_alive("started"))
        if not ended or self.kill_at is not None or os.path.exists(self.stop_file("elsewhere")):
            self.ended = None
            return
        self.ended = now if self.ended is None else self.ended
        if now - self.ended >= LOOK:
            say(f"{self.name} did not end after its ranks; it is killed")
            heard = self.asked or self.find_common_signal()
            self.result = 128 + heard if heard else KILLED
            self.kill()

    def any_alive(self, what: str) -> bool:
        """Return True if a rank is running that has a file in this folder of the job."""
        return not {*map(str, descendants())}.isdisjoint(os.listdir(os.path.join(self.folder, what)))

    def all_have(self, what: str) -> bool:
        """Return True if all ranks have a file in this folder of the job."""
        try:
            return len(os.listdir(os.path.join(self.folder, what))) >= int(self.lines("ranks")[0])
        except OSError:
            return False

    def is_watched(self) -> bool:
        """Return True if all ranks notice stalls themselves."""
        return self.all_have("watched")

    def stop_file(self, process: object) -> str:
        """Return the file that a process makes when it understands requests to stop."""
        return os.path.join(self.folder, "stoppable", str(process))

    def end(self) -> None:
        """Tell mpiexec to end, once."""
        if self.kill_at is None:
            if self.asked:
                say(f"ended by {name_of(self.asked)}")
            self.kill_at = time.monotonic() + GRACE
            self.segments |= mapped_segments()
            kill(self.process, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the whole job."""
        self.segments |= mapped_segments()
        for process in descendants():
            kill(process, signal.SIGKILL)
        self.kill_at = time.monotonic() + GRACE

    def status(self, code: int) -> int:
        """Return the exit status of a job whose mpiexec has ended in this way."""
        if self.result is not None:
            return self.result
        if self.kill_at is not None and self.asked:
            return 128 + self.asked
        if code < 0 and self.kill_at is None:
            say(f"{self.name} was ended by {name_of(-code)}, and the ranks with it")
        heard = self.find_common_signal() if code == 1 and not self.asked and self.kill_at is None else 0
        if heard:
            say(f"{self.name} was told to end by a signal, and ended the ranks with {name_of(heard)}")
            with open(os.path.join(self.folder, "cut"), "w"):  # it has not passed on what they said
                pass
            return 128 + heard
        return code if code >= 0 else 128 - code

    def find_common_signal(self) -> int:
        """Return the signal that all ranks have received from elsewhere; 0: there is none."""
        if not (ranks := self.lines("ranks")):
            return 0
        names = os.listdir(os.path.join(self.folder, "stoppable"))
        numbers = [line for name in names for line in self.lines(os.path.join("stoppable", name))]
        everyone = len(numbers) == int(ranks[0])
        return int(numbers[0]) if everyone and len(set(numbers)) == 1 else 0

    def list_other_folders(self) -> list[str]:
        """Return the folders of the process that started the job."""
        return self.lines("also")

    def lines(self, name: str) -> list[str]:
        try:
            with open(os.path.join(self.folder, name), "rb") as file:
                return os.fsdecode(file.read()).splitlines()
        except OSError:
            return []


def is_gone(parent: int) -> bool:
    """Return True if the process that started this one has ended, or only has threads left that are about to end."""
    if os.getppid() != parent:
        return True
    try:
        with open(f"/proc/{parent}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in b"ZX"
    except OSError:
        return True


def name_of(number: int) -> str:
    return f"signal {number} ({signal.strsignal(number)})"


def say(text: str, stderr: int = 2) -> None:
    try:
        os.write(stderr, f"{text}\n".encode())
    except OSError:
        pass


def reap_children() -> list[tuple[int, int]]:
    """Return the children that have ended since the last call, with their wait statuses."""
    found = []
    try:
        while (pair := os.waitpid(-1, os.WNOHANG))[0]:
            found.append(pair)
    except ChildProcessError:
        pass
    return found


def end_everything() -> None:
    """Kill all processes that are left and wait for them; give up on uninterruptible ones after GRACE seconds."""
    until = time.monotonic() + GRACE
    while time.monotonic() < until:
        for process in descendants():
            kill(process, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # none is left: those whose parents have ended are children of this one
            return
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


def rank_processes(launcher: int = 0) -> list[tuple[int, str, bytes]]:
    """Return the processes of ranks, and that of the launcher if it is given, with their names and states."""
    found = []
    for process in descendants():
        try:
            with open(f"/proc/{process}/stat", "rb") as file:
                state = file.read().rpartition(b") ")[2][:1]
            with open(f"/proc/{process}/environ", "rb") as file:
                variables = dict(pair.partition(b"=")[::2] for pair in file.read().split(b"\0"))
        except OSError:
            continue
        rank = variables.get(b"OMPI_COMM_WORLD_RANK", variables.get(b"PMI_RANK"))
        if process == launcher:
            found.append((process, "the launcher", state))
        elif rank is not None:
            found.append((process, f"rank {os.fsdecode(rank)}", state))
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
    for folder, folders, files in os.walk(path, topdown=False):
        for name in (*files, *folders):
            remove_one(os.path.join(folder, name))
    remove_one(path)


def remove_one(path: str) -> None:
    """Remove a file or an empty folder, if it exists: another process may have removed it."""
    try:
        try:
            os.unlink(path)
        except IsADirectoryError:
            os.rmdir(path)
    except OSError:
        pass


if __name__ == "__main__":
    sys.exit(main())
