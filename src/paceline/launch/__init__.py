"""Starting ranks: the right mpiexec with the right settings for the MPI that is installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path


def mpiexec(ranks: int, command: Sequence[str], *, threads: int | None = None) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment that start `command` on `ranks` ranks of this machine."""
    prefixes = ("OMPI_", "PMIX_", "PMI_", "PRTE_", "HYDRA_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(prefixes)}
    environment |= {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_ALLOW_RUN_AS_ROOT": "1",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,sm,tcp",
        "OMPI_MCA_osc": "^ucx",
    }
    cores = len(os.sched_getaffinity(0))
    if ranks > cores:
        environment["OMPI_MCA_mpi_yield_when_idle"] = "1"
    environment["OMP_NUM_THREADS"] = environment["OPENBLAS_NUM_THREADS"] = str(threads or max(1, cores // ranks))
    starter = str(Path(sys.executable).parent / "mpiexec")
    return [starter, "--bind-to", "none", "-n", str(ranks), *command], environment
