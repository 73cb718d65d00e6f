"""Ranks without MPI: the program that starts them, used instead of mpiexec.

The processes are spawned (a fork would copy locks that threads hold) and connected by pipes; the memory that they share is
torch's. torch.multiprocessing only adds the sending of tensors to Python's, so it is imported only where tensors are
sent, which saves two seconds at the start. The first process that fails ends the others.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from paceline.launch.cores import take_cores
from paceline.launch.library import clean
from paceline.launch.resources import thread_variables, threads_per_rank

START = "import sys; from paceline.launch.processes import main; sys.exit(main())"


def process_command(
    ranks: int, command: Sequence[str], threads: int | None, *, folder: Path, environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment that start `python -m module ...` on `ranks` processes.

    >>> argv, variables = process_command(2, ["python", "-m", "paceline", "list"], 3, folder=Path("/tmp"), environment={})
    >>> argv[3:], variables["OMP_NUM_THREADS"]
    (['/tmp', '2', 'paceline', 'list'], '3')
    """
    python, _, *module = command
    variables = clean(dict(os.environ)) | thread_variables(threads_per_rank(ranks, threads))
    return [python, "-c", START, str(folder), str(ranks), *module], variables | dict(environment)


def main() -> int:
    """Start the processes, wait for all or for the first that fails, and return the exit status of the job."""
    folder, ranks, words = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    tempfile.tempdir = str(folder)  # multiprocessing's files are removed with the job, however it ends
    multiprocessing.util.get_temp_dir()
    spawn = multiprocessing.get_context("spawn")
    pipes = [spawn.Pipe() for _ in range(1, ranks)]
    started: list[Any] = []
    try:
        for rank in range(ranks):
            ends = [pipe[0] for pipe in pipes] if rank == 0 else [pipes[rank - 1][1]]
            process = spawn.Process(
                target=_rank, args=(rank, ranks, ends, folder, words), name=f"process {rank}"
            )
            process.start()
            started.append(process)
        for pipe in pipes:  # so that a pipe is closed when the process at its other end exits
            for end in pipe:
                end.close()
        return _end_of([*started], ranks, folder)
    except KeyboardInterrupt:
        os.write(2, b"the process that starts the others was interrupted (signal 2); they were ended\n")
        return 128 + signal.SIGINT
    finally:
        for process in started:
            process.kill()


def _end_of(running: list[Any], ranks: int, folder: Path) -> int:
    """Wait for all processes or for the first that fails; report one that a signal ended."""
    while running:
        wait([process.sentinel for process in running])
        for process in [one for one in running if one.exitcode is not None]:
            running.remove(process)
            if process.exitcode < 0:
                ended = f"signal {-process.exitcode} ({signal.strsignal(-process.exitcode)})"
                text = f"{process.name} of {ranks} was ended by {ended}; the others were ended with it\n"
                os.write(2, text.encode())
                (folder / "dead").write_text(process.name.rpartition(" ")[2])
                return 128 - int(process.exitcode)
            if process.exitcode > 0:
                return int(process.exitcode)
    return 0


def _rank(rank: int, ranks: int, ends: list[Connection[Any, Any]], folder: Path, words: list[str]) -> None:
    """Run one process: what `python -m` would run, with a communicator."""
    os.environ.update(PACELINE_RANK=str(rank), PACELINE_SIZE=str(ranks))
    take_cores()
    from paceline.comm.torch_processes import Processes

    comm = Processes(rank, ends, ranks, folder)
    vars(multiprocessing.current_process())["communicator"] = comm
    sys.argv = words
    status: Any = 0
    with comm.guard():
        try:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        except SystemExit as leaving:
            status = leaving.code
    sys.stdout.flush()
    comm.Barrier()  # no process is ended because of another's exit status before all have printed
    sys.exit(status)
