"""The same code on thousands of simulated ranks, in virtual time, in one process.

>>> from paceline import vmpi
>>> vmpi.run(lambda comm: comm.Get_rank() ** 2, ranks=4).values
[0, 1, 4, 9]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Public names and where they live, imported when first used: the command line asks for its options before NumPy is
# loaded, whose threads are set by the environment.
_PLACES = {
    "Compute": "paceline.vmpi.compute",
    "Costs": "paceline.machine.profile",
    "Machine": "paceline.machine.profile",
    "Network": "paceline.vmpi.network",
    "Options": "paceline.simulate.options",
    "Outcome": "paceline.vmpi.program",
    "run": "paceline.vmpi.program",
    "standing_in": "paceline.vmpi.standin",
}
__all__ = [*sorted(_PLACES)]

if TYPE_CHECKING:
    from paceline.machine.profile import Costs as Costs
    from paceline.machine.profile import Machine as Machine
    from paceline.simulate.options import Options as Options
    from paceline.vmpi.compute import Compute as Compute
    from paceline.vmpi.network import Network as Network
    from paceline.vmpi.program import Outcome as Outcome
    from paceline.vmpi.program import run as run
    from paceline.vmpi.standin import standing_in as standing_in


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'paceline.vmpi' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PLACES[name]), name)
    globals()[name] = value
    return value
