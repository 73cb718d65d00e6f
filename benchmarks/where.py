"""The command and the machine that made some figures: what every result file begins with."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any


def where() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {
        "command": [Path(word).name if "/" in word else word for word in sys.argv],
        "machine": {
            "processor": processor,
            "cores": os.cpu_count(),
            "system": platform.system(),
            "python": platform.python_version(),
        },
    }
