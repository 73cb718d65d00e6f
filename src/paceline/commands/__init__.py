"""The commands of `paceline`: one module each, with `add_arguments(parser)` and `main(args)`."""

from __future__ import annotations

import sys
from pathlib import Path

from paceline.errors import UsageError


def import_from_here() -> None:
    """Make modules in the working directory importable, as in `--model my_module:build_net`."""
    try:
        here = Path.cwd()
    except OSError:
        raise UsageError("the working directory no longer exists; change to another one") from None
    sys.path.insert(0, str(here))
