"""Models with which a process of `hogwild:backend=torch` does not come to its end."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from paceline.launch import world
from paceline.models.mlp import MLP, build


def raises(data: Any) -> MLP:
    """No process can make it."""
    raise ArithmeticError("this process has had enough")


def lingers(data: Any) -> MLP:
    """Every process says that it is there, and is not heard of again."""
    sys.stdout.write(f"process {os.getpid()} is here\n")  # in one piece
    sys.stdout.flush()
    time.sleep(600)
    raise AssertionError("nobody has ended this process")


def kills(data: Any) -> MLP:
    """Process 1 is killed in the midst of training."""
    model = build(data, 4)
    compute = model.gradient

    def gradient(batch: Any, ready: Any = None) -> float:
        here = world()
        if batch.epoch == 1 and here is not None and here.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return compute(batch, ready=ready)

    model.gradient = gradient  # type: ignore[method-assign]
    return model
