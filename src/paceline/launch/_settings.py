"""The settings that make each MPI start fast, run under root and bear more ranks than cores."""

from __future__ import annotations

import os

from paceline.launch._library import Library

# What one job's launcher tells its own ranks: it must not reach the ranks of a job started from inside.
INHERITED = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "HYDI_", "MPI_LOCAL")


def clean(environment: dict[str, str]) -> dict[str, str]:
    """`environment` without the traces of a surrounding MPI job.

    >>> clean({"PMI_RANK": "0", "HOME": "/root"})
    {'HOME': '/root'}
    """
    return {name: value for name, value in environment.items() if not name.startswith(INHERITED)}


def for_library(library: Library, *, crowded: bool) -> tuple[list[str], dict[str, str]]:
    """mpiexec's options and the variables for `library`; `crowded`: there are more ranks than cores.

    The figures behind each are those of 2 ranks on one machine.
    """
    if library.kind == "openmpi":
        return _open_mpi(library.major, crowded)
    if library.kind == "mpich":
        # Yielding halves the wait for a late rank where ranks share cores; elsewhere it costs latency.
        return [], {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"} if crowded else {}
    if library.kind == "intel":
        return [], {"I_MPI_PIN": "0"} | ({"I_MPI_THREAD_YIELD": "2"} if crowded else {})
    return [], {}


def _open_mpi(major: int, crowded: bool) -> tuple[list[str], dict[str, str]]:
    variables = {
        "OMPI_MCA_pml": "ob1",  # with btl: 0.1 s to start and not 1.2 s
        "OMPI_MCA_btl": "self,sm,tcp" if major >= 5 else "self,vader,tcp",
        "OMPI_MCA_osc": "^ucx",  # else one error line for every shared window
    }
    if os.geteuid() == 0:
        for prefix in ("OMPI", "PRTE"):  # PRTE's: for Comm.Spawn
            variables |= {f"{prefix}_ALLOW_RUN_AS_ROOT": "1", f"{prefix}_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if major >= 5:
        variables["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    else:
        variables["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
    if crowded:
        variables["OMPI_MCA_mpi_yield_when_idle"] = "1"
    return ["--bind-to", "none"], variables
