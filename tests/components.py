"""What some tests need besides Python: programs that a machine may not have.

    pytestmark = pytest.mark.requires("chromium")

Where a component is missing, such tests are skipped with a line that says what to install; with `CI=true` they fail.
"""

from __future__ import annotations

import shutil

from tools.slurm.cluster import PATH

# Of each component: programs, of each of which one name must be found, and how to install them.
COMPONENTS = {
    "chromium": (
        [("chromium", "chromium-browser")],
        "needs Chromium: run `make system-packages`, or `apt install chromium`",
    ),
    "slurm": (
        [
            (name,)
            for name in ("munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc", "sinfo", "scancel")
        ],
        "needs Slurm: run `make system-packages`, or `apt install slurm-wlm munge`",
    ),
}


def find(*names: str) -> str | None:
    """Return the path of the first of these programs that is there and may be executed."""
    return next((path for name in names if (path := shutil.which(name, path=PATH))), None)


def missing(component: str) -> str | None:
    """Return what a component's absence is reported with, or None where it is there."""
    programs, advice = COMPONENTS[component]
    return None if all(find(*names) for names in programs) else advice
