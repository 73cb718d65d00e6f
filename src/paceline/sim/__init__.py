"""The same code on thousands of simulated ranks, in virtual time, in one process.

>>> from paceline import sim
>>> sim.run(lambda comm: comm.Get_rank() ** 2, ranks=4).values
[0, 1, 4, 9]
"""

from __future__ import annotations

from paceline.sim._run import Outcome, run

__all__ = ["Outcome", "run"]
