"""Strategies that go wrong, for tests of what happens then."""

from __future__ import annotations

import time
from typing import Any


def raises(me: Any) -> None:
    """Rank 1 fails while the others wait for it."""
    if me.rank == 1:
        raise RuntimeError("this rank has had enough")
    me.comm.Barrier()


def lingers(me: Any) -> None:
    """Every rank says that it is there, then computes for ever."""
    print(f"rank {me.rank} is here", flush=True)
    while True:
        time.sleep(0.05)


def no_model() -> int:
    """No rank can make a model of this."""
    return 3


not_a_function = 3
