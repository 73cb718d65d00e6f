"""The costs of messages and work on a machine: measured once, stored in files, used by the simulator.

calibrate            measure messages, MPI's collectives and passes over memory, with real MPI
calibrate_hosts      the same, and the network between hosts
costs_of             the costs of a job's work on this machine: stored, or measured now
measure_costs        the same, always measured now
measure_ranks, measure_work     the ranks' side of both; make_machine, make_costs: from what they return
measure_between, network_of     the network between hosts: the ranks' side, and the network with what they return
Machine, Costs       the measurements, and their JSON files
load_network         a network of the simulator by name, or from a machine's file
make_compute         the simulator's computing costs, from measurements
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline import import_when_used

# Imported when first used: the command line reads its options before NumPy is loaded, whose number of threads is set
# by the environment.
_MODULES = {
    "Costs": "profile", "Machine": "profile", "load_network": "profile", "make_compute": "profile",
    "calibrate": "calibration", "make_machine": "calibration", "measure_ranks": "calibration",
    "calibrate_hosts": "between", "measure_between": "between", "network_of": "between",
    "costs_of": "costs", "make_costs": "costs", "measure_costs": "costs", "measure_work": "costs",
}  # fmt: skip
__all__ = [*sorted(_MODULES)]

if TYPE_CHECKING:
    from paceline.machine.between import calibrate_hosts as calibrate_hosts
    from paceline.machine.between import measure_between as measure_between
    from paceline.machine.between import network_of as network_of
    from paceline.machine.calibration import calibrate as calibrate
    from paceline.machine.calibration import make_machine as make_machine
    from paceline.machine.calibration import measure_ranks as measure_ranks
    from paceline.machine.costs import costs_of as costs_of
    from paceline.machine.costs import make_costs as make_costs
    from paceline.machine.costs import measure_costs as measure_costs
    from paceline.machine.costs import measure_work as measure_work
    from paceline.machine.profile import Costs as Costs
    from paceline.machine.profile import Machine as Machine
    from paceline.machine.profile import load_network as load_network
    from paceline.machine.profile import make_compute as make_compute

__getattr__ = import_when_used(__name__, _MODULES)
