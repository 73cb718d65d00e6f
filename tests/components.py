"""What some tests need besides Python: programs that a machine may not have.

    pytestmark = pytest.mark.requires("chromium")

Where a component is missing, such tests are skipped with a line that says what to install; with `CI=true` they fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

from tools.hosts.network import PROGRAMS
from tools.slurm.cluster import PATH

# Of each component: programs, of each of which one name must be found, and how to install them.
COMPONENTS = {
    "chromium": (
        [("chromium", "chromium-browser")],
        "needs Chromium: run `make system-packages`, or `apt install chromium`",
    ),
    "hosts": (
        [(name,) for name in PROGRAMS],
        "needs root, and network namespaces: `apt install iproute2 util-linux`",
    ),
    "slurm": (
        [
            (name,)
            for name in (
                "munged",
                "slurmctld",
                "slurmd",
                "srun",
                "sbatch",
                "salloc",
                "sinfo",
                "scancel",
                "scontrol",
            )
        ],
        "needs Slurm: run `make system-packages`, or `apt install slurm-wlm munge`",
    ),
}


def find(*names: str) -> str | None:
    """Return the path of the first of these programs that is there and may be executed."""
    return next((path for name in names if (path := shutil.which(name, path=PATH))), None)


def explain_missing(component: str) -> str | None:
    """Return what to install for a component that is missing here; None if it is not."""
    programs, advice = COMPONENTS[component]
    there = all(find(*names) for names in programs)
    return None if there and (component != "hosts" or _may_make_hosts()) else advice


@cache
def _may_make_hosts() -> bool:
    """Return True if this user may make network namespaces: as root, and not in a container that forbids it."""
    words = [str(find("unshare")), "--net", "--pid", "--fork", "true"]
    return os.geteuid() == 0 and subprocess.run(words, capture_output=True).returncode == 0
