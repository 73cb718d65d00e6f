"""Virtual MPI: the same program on thousands of simulated ranks of one process, in virtual time.

>>> from paceline import vmpi
>>> vmpi.run(lambda comm: comm.Get_rank() ** 2, ranks=4).values
[0, 1, 4, 9]

    run, Outcome             run a function of a communicator on simulated ranks (`program`)
    Script                   a program written for mpi4py, unchanged
    replace_mpi4py           make `from mpi4py import MPI` import the simulator's
    Network, parse_network   the costs of messages, between nodes and inside them
    Node, Link               the costs of messages inside a node
    Compute                  the costs of work, and what makes ranks slow
    Curves                   measured costs, by amount and number of ranks
    faults                   faults to inject: `fail_at`, `cut_link`, `slow` and others
    errors                   errors that the simulator reports: `Deadlock`, `BufferChanged` and others
    MPI                      the names of mpi4py.MPI

Nothing here knows about training: it runs any program that uses mpi4py's interface.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Imported when first used: the command line reads its options before NumPy is loaded, whose number of threads is set
# by the environment.
_MODULES = {
    "Compute": "compute", "Curves": "compute", "Link": "network", "Network": "network", "Node": "network",
    "Outcome": "program", "Script": "program", "parse_network": "network", "replace_mpi4py": "program",
    "run": "program",
}  # fmt: skip
_SUBMODULES = ("MPI", "errors", "faults")
__all__ = [*sorted(_MODULES)]

if TYPE_CHECKING:
    from paceline.vmpi.compute import Compute as Compute
    from paceline.vmpi.compute import Curves as Curves
    from paceline.vmpi.network import Link as Link
    from paceline.vmpi.network import Network as Network
    from paceline.vmpi.network import Node as Node
    from paceline.vmpi.network import parse_network as parse_network
    from paceline.vmpi.program import Outcome as Outcome
    from paceline.vmpi.program import Script as Script
    from paceline.vmpi.program import replace_mpi4py as replace_mpi4py
    from paceline.vmpi.program import run as run


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"paceline.vmpi.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'paceline.vmpi' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"paceline.vmpi.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
