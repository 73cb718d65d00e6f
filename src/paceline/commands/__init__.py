"""One module a command: its arguments, and what it prints."""

from __future__ import annotations

import sys
from pathlib import Path

from paceline.errors import UsageError


def import_from_here() -> None:
    """Let modules of the working directory be named, as in `--model my_module:build_net`."""
    try:
        here = Path.cwd()
    except OSError:
        raise UsageError("the working directory is gone; change to another one") from None
    sys.path.insert(0, str(here))
