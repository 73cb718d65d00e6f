"""Runs plain functions of a communicator on real MPI ranks, from pytest, with no mpirun typed.

    results = on_ranks("tests.collectives.cases:sums", 4, algorithm="ring")

has each of 4 ranks call `sums(comm, algorithm="ring")` within a time limit. Returns what each rank returned (as JSON), in
rank order. A failing rank fails the test with the job's output shown.

Starting ranks and importing torch costs more than most cases, so the job stays for the next case, of whatever test module,
in the same environment: a case on fewer ranks is called on the first of them, with a communicator of their own. One that
needs more ranks, or another environment, gets a new job; a case that failed has ended its job. Between cases the ranks wait
at a socket.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, TextIO

ROOT = Path(__file__).parent.parent
# Ranks that wait let others run, also where there is a core for each of them: other tests run there.
YIELD = {"OMPI_MCA_mpi_yield_when_idle": "1", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
FEW = 4  # ranks of a job that stays
MANY = 6  # of one whose first case needs more, or is of a folder with cases that do
WITH_MANY = ("tests.collectives.", "tests.strategies.")
# Variables that change while tests run and mean nothing to ranks: torch sets one when it is imported.
PASSING = ("PYTEST_CURRENT_TEST", "KMP_")


def on_ranks(
    case: str, ranks: int, *, time_limit: float = 280, alone: bool = False, **arguments: Any
) -> list[Any]:
    """Call a case on ranks. With `alone`, in a job of that many ranks, which has ended when this returns."""
    surroundings = (Path.cwd(), {k: v for k, v in os.environ.items() if not k.startswith(PASSING)})
    if not alone and not (_jobs and _jobs[0].surroundings == surroundings and len(_jobs[0].links) >= ranks):
        end_job()
    if alone:
        job = Job(ranks, surroundings, time_limit)
    else:
        usual = MANY if ranks > FEW or case.startswith(WITH_MANY) else FEW
        job = _jobs.pop() if _jobs else Job(max(ranks, usual), surroundings, time_limit)
    try:
        results = job.call(case, ranks, arguments, time_limit)
    except BaseException:
        job.kill()
        raise
    if alone:
        job.end()
    else:
        _jobs.append(job)
    return results


_jobs: list[Job] = []  # the one that stays, if there is one


def end_job() -> None:
    """End the job that stays, if there is one; it must end well."""
    if _jobs:
        _jobs.pop().end()


class Job:
    """Ranks that call one case after the other."""

    def __init__(self, ranks: int, surroundings: tuple[Path, dict[str, str]], time_limit: float) -> None:
        self.surroundings = surroundings
        self.folder = tempfile.TemporaryDirectory()
        self.said = Path(self.folder.name) / "said"
        self.links: dict[int, tuple[socket.socket, TextIO]] = {}
        address = str(Path(self.folder.name) / "cases")
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        with socket.socket(socket.AF_UNIX) as listener, self.said.open("wb") as said:
            listener.bind(address)
            listener.listen(ranks)
            listener.settimeout(0.2)
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.ranks", "start", str(ranks), address],
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
            late = time.monotonic() + time_limit
            while len(self.links) < ranks:
                try:
                    link = listener.accept()[0]
                except TimeoutError:
                    if self.process.poll() is not None or time.monotonic() > late:
                        self.fail(f"{ranks} ranks did not start", patience=0)
                    continue
                link.settimeout(None)
                stream = link.makefile("rw")
                self.links[int(stream.readline())] = link, stream

    def call(self, case: str, ranks: int, arguments: dict[str, Any], time_limit: float) -> list[Any]:
        """Call a case on the first ranks and return their results; if one fails, the job ends."""
        late = time.monotonic() + time_limit
        links = [self.links[rank] for rank in range(ranks)]
        for _, stream in links:
            with contextlib.suppress(BrokenPipeError):  # noticed below: there is no answer
                stream.write(json.dumps([case, ranks, arguments]) + "\n")
                stream.flush()
        results = []
        for link, stream in links:
            link.settimeout(max(late - time.monotonic(), 0.01))
            try:
                answer = stream.readline()
            except TimeoutError:
                self.fail(f"{case} on {len(links)} ranks: no end after {time_limit} s", patience=0)
            if not answer:
                self.fail(f"{case} on {len(links)} ranks failed", patience=30)
            link.settimeout(None)
            results.append(json.loads(answer))
        return results

    def end(self) -> None:
        """Let the ranks end, as a program does that has done its work."""
        self.close()
        try:
            status = self.process.wait(280)
        except subprocess.TimeoutExpired:
            self.fail("ranks whose cases were done did not end", patience=0)
        if status != 0:
            self.fail("ranks whose cases were done ended badly", patience=0)
        self.folder.cleanup()

    def fail(self, words: str, *, patience: float) -> NoReturn:
        """Raise an error with all that the ranks said, once the job has ended; end it after `patience` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        if (status := self.process.poll()) is None:
            self.process.terminate()
            self.process.wait()
        said = self.said.read_text(errors="replace")
        self.kill()
        if status == 130:
            raise KeyboardInterrupt
        raise AssertionError(f"{words}{'' if status is None else f': exit status {status}'}\n{said}")

    def kill(self) -> None:
        """End the job, whatever its ranks are doing."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        self.close()
        self.folder.cleanup()

    def close(self) -> None:
        """Hang up: a rank that waits for a case ends."""
        for link, stream in self.links.values():
            with contextlib.suppress(OSError):
                stream.close()
            link.close()


def start(ranks: int, address: str) -> int:
    """Run ranks until they end."""
    from paceline.launch import run

    command = [sys.executable, "-W", "error", "-m", "tests.ranks", "rank", address]
    return run(ranks, command, environment={"PYTHONPATH": os.environ["PYTHONPATH"], **YIELD})


def serve(address: str) -> None:
    """Call cases as a rank until there are no more."""
    from mpi4py import MPI

    from paceline.launch import abort_on_error

    os.fsync = lambda _: None  # type: ignore[assignment]  # as in pytest's own process
    world = MPI.COMM_WORLD
    comms = {world.size: world}
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(address)
        with link.makefile("rw") as stream:
            stream.write(f"{world.rank}\n")
            stream.flush()
            before = ""
            for line in stream:
                case, ranks, arguments = json.loads(line)
                if ranks not in comms:
                    comms[ranks] = world.Create_group(world.group.Incl(range(ranks)))
                comm = comms[ranks]
                module, _, name = case.partition(":")
                if module != before:
                    gc.collect()  # what other cases have left must not be freed in the middle of these
                    before = module
                with abort_on_error(comm):
                    answer = json.dumps(getattr(importlib.import_module(module), name)(comm, **arguments))
                stream.write(f"{answer}\n")
                stream.flush()


@contextlib.contextmanager
def first(comm: Any, ranks: int) -> Iterator[Any]:
    """Yield a communicator of the first ranks to them, and None to the others, which wait for them.

    They do not wait in a barrier, where each would keep a core busy that the first ranks need.
    """
    group = comm.Split(int(comm.rank >= ranks), comm.rank)
    yield group if comm.rank < ranks else None
    group.Free()
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.001)


if __name__ == "__main__":
    if sys.argv[1] == "start":
        sys.exit(start(int(sys.argv[2]), sys.argv[3]))
    serve(sys.argv[2])
