"""Memory that a rank frees stays with it, so that the next step need not get it again page by page."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from paceline.launch import keep_memory
import numpy as np

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        blocks = [np.ones(1 << 18, np.float32) for _ in range(20)]  # 20 MiB, freed at the end of each turn
        del blocks
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 20

print(faults(), keep_memory(), faults() and faults())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
@pytest.mark.parametrize("own", [{}, {"MALLOC_TRIM_THRESHOLD_": "65536"}])
def test_memory_that_is_freed_is_kept_unless_the_user_says_otherwise(own: dict[str, str]) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=clean | own
    )
    before, kept, after = found.stdout.split()
    assert kept == str(not own)
    assert float(before) > 1000
    assert float(after) < 100 if kept == "True" else float(after) > 1000
