"""Training runs on simulated ranks, and predictions of how they scale.

Options, options_of      the settings of a simulated run (`options`)
simulate                 a training run on simulated ranks (`training`)
Scaling, Workload        predict speedup and accuracy by number of ranks (`scaling`, `case`)
find_measured            real runs to compare a prediction with (`scaling`)
Simulations              the simulations of a prediction, in this process or in several (`case`)
find_limit, ScalingPoint where scaling stops, and why (`bottleneck`)
Scenario                 the same network and machine with some costs removed (`whatif`)

`model` charges the computing of a rank to its clock, `together` computes it on all cores, and `work` is a network that
is known by its figures alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline import import_when_used

# Imported when first used: the command line reads its options before NumPy is loaded, whose number of threads is set
# by the environment.
_MODULES = {
    "Options": "options", "ScalingPoint": "bottleneck", "Scaling": "scaling", "Scenario": "whatif",
    "Simulations": "case", "Workload": "case",
    "find_limit": "bottleneck", "find_measured": "scaling", "options_of": "options", "simulate": "training",
}  # fmt: skip
__all__ = [*sorted(_MODULES)]

if TYPE_CHECKING:
    from paceline.simulate.bottleneck import ScalingPoint as ScalingPoint
    from paceline.simulate.bottleneck import find_limit as find_limit
    from paceline.simulate.case import Simulations as Simulations
    from paceline.simulate.case import Workload as Workload
    from paceline.simulate.options import Options as Options
    from paceline.simulate.options import options_of as options_of
    from paceline.simulate.scaling import Scaling as Scaling
    from paceline.simulate.scaling import find_measured as find_measured
    from paceline.simulate.training import simulate as simulate
    from paceline.simulate.whatif import Scenario as Scenario

__getattr__ = import_when_used(__name__, _MODULES)
