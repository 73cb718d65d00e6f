"""Open MPI, and every command of its, gives up where HOME is not set: under cron, `env -i`, in some containers."""

from __future__ import annotations

import os
import pwd


def home_settings() -> dict[str, str]:
    """A HOME where there is none: Open MPI cannot start without one."""
    if os.environ.get("HOME"):
        return {}
    try:
        return {"HOME": pwd.getpwuid(os.geteuid()).pw_dir}
    except KeyError:  # a number without a name, as containers have
        return {"HOME": "/nonexistent"}
