"""The thread pools of this process, held to a size for the length of a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from paceline.launch import apply_threads, usable_cores
from paceline.launch._threads import VARIABLES


@contextmanager
def held_to(threads: int) -> Iterator[None]:
    """Inside, BLAS, OpenMP and torch use `threads` threads; afterwards what they used before.

    >>> with held_to(1):
    ...     pass
    """
    from threadpoolctl import threadpool_limits

    variables = {name: os.environ.get(name) for name in VARIABLES}
    torch = sys.modules.get("torch")
    torch_before = usable_cores() if torch is None else torch.get_num_threads()
    with threadpool_limits(threads):
        apply_threads(threads)
        try:
            yield
        finally:
            if (torch := sys.modules.get("torch")) is not None:
                torch.set_num_threads(torch_before)
            for name, value in variables.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
