"""The same code on thousands of simulated ranks, in virtual time, in one process.

>>> from paceline import sim
>>> sim.run(lambda comm: comm.Get_rank() ** 2, ranks=4).values
[0, 1, 4, 9]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Public names and where they live, imported when first used: the command line asks for its options before NumPy is
# loaded, whose threads are set by the environment.
_PLACES = {
    "Compute": "paceline.sim.compute",
    "Costs": "paceline.sim.machine",
    "Machine": "paceline.sim.machine",
    "Network": "paceline.sim.network",
    "Options": "paceline.sim.options",
    "Outcome": "paceline.sim._run",
    "run": "paceline.sim._run",
    "standing_in": "paceline.sim._standing_in",
}
__all__ = [*sorted(_PLACES)]

if TYPE_CHECKING:
    from paceline.sim._run import Outcome as Outcome
    from paceline.sim._run import run as run
    from paceline.sim._standing_in import standing_in as standing_in
    from paceline.sim.compute import Compute as Compute
    from paceline.sim.machine import Costs as Costs
    from paceline.sim.machine import Machine as Machine
    from paceline.sim.network import Network as Network
    from paceline.sim.options import Options as Options


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'paceline.sim' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = value
    return value
