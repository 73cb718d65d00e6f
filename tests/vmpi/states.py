"""A program whose ranks change the state of their Python process, and look at it after the others have done so."""

# ruff: noqa: NPY002

from __future__ import annotations

import builtins
import contextlib
import io
import logging
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from random import random as draw
from typing import Any
from unittest import mock

import numpy as np


def case(comm: Any) -> list[Any]:
    """Return what every kind of state looks like."""
    return [state(comm) for state in (arguments, streams, prints, variables, folder, logs, errors, numbers)]


def arguments(comm: Any) -> Any:
    sys.argv = ["program.py"]
    comm.Barrier()
    sys.argv.append(str(comm.rank))
    comm.Barrier()
    return sys.argv


def streams(comm: Any) -> Any:
    mine = io.StringIO()
    before, sys.stdout = sys.stdout, mine
    comm.Barrier()
    print("rank", comm.rank)
    logging.StreamHandler(sys.stdout).stream.write("and")
    comm.Barrier()
    with contextlib.redirect_stdout(io.StringIO()):
        comm.Barrier()
        print("nowhere")
    with mock.patch("sys.stdout", io.StringIO()):
        print("nowhere")
    sys.stdout = mine
    print("end")
    sys.stdout = before
    return mine.getvalue()


def prints(comm: Any) -> Any:
    """Replace `print` on one rank, as many programs do so that only rank 0 prints."""
    said: list[Any] = []
    really = builtins.print
    if comm.rank:
        builtins.print = lambda *words: said.append(words)  # type: ignore[assignment]
    comm.Barrier()
    if comm.rank:
        print("rank", comm.rank)
    builtins.print = really
    return said


def variables(comm: Any) -> Any:
    os.environ["STATE"] = str(comm.rank)
    if comm.rank == 1:
        del os.environ["STATE"]
    comm.Barrier()
    found = [os.environ.get("STATE"), os.getenv("STATE", "none"), "STATE" in os.environ]
    if comm.rank == 2:
        os.environ["STATE"] = "again"
        told = subprocess.run(["printenv", "STATE"], stdout=subprocess.PIPE, text=True, check=True)
        found.append(told.stdout)
    comm.Barrier()
    os.environ.pop("STATE", None)
    return found


def folder(comm: Any) -> Any:
    before, file = Path.cwd(), Path("result")
    with tempfile.TemporaryDirectory() as top:
        os.chdir(top)
        comm.Barrier()
        Path(f"run{comm.rank}").mkdir()
        os.chdir(f"run{comm.rank}")
        comm.Barrier()
        file.write_text(str(comm.rank))
        comm.Barrier()
        found = [file.read_text(), str(Path.cwd().relative_to(Path(top).resolve()))]
        if comm.rank == 0:
            os.chdir(before)
        comm.Barrier()
        found.append(str(file.exists()))
        os.chdir(before)
    return found


def logs(comm: Any) -> Any:
    written = io.StringIO()
    level = logging.INFO if comm.rank % 2 else logging.ERROR
    logging.basicConfig(format=f"{comm.rank} %(name)s %(message)s", level=level, stream=written, force=True)
    comm.Barrier()
    shared = logging.getLogger("states.shared")
    if comm.rank == 3:
        shared.setLevel(logging.DEBUG)
    if comm.rank == 2:
        shared.addFilter(lambda record: False)
        logging.disable()
    comm.Barrier()
    for logger in (logging.getLogger(), shared):
        logger.debug("debug")
        logger.info("info")
        logger.error("error")
    logging.disable(logging.NOTSET)
    return [written.getvalue(), len(logging.root.handlers), shared.isEnabledFor(logging.INFO)]


def errors(comm: Any) -> Any:
    np.seterr(divide="raise" if comm.rank % 2 else "ignore")
    np.set_printoptions(precision=comm.rank + 1)
    comm.Barrier()
    try:
        np.ones(1) / np.zeros(1)
        found = "quiet"
    except FloatingPointError:
        found = "raised"
    return [found, str(np.array([0.123456789]))]


def numbers(comm: Any) -> Any:
    random.seed(comm.rank)
    np.random.seed(comm.rank)
    found: list[Any] = []
    for _ in range(3):
        comm.Barrier()
        found += [random.random(), draw(), random.gauss(0, 1), random.randint(0, 9)]
        found += [float(np.random.rand()), float(np.random.randn()), int(np.random.permutation(100)[0])]
    state, numpy_state = random.getstate(), np.random.get_state()
    ahead = [random.random(), float(np.random.random_sample())]
    comm.Barrier()
    random.setstate(state)
    np.random.set_state(numpy_state)
    comm.Barrier()
    assert ahead == [random.random(), float(np.random.ranf())]
    assert isinstance(np.random.mtrand._rand, np.random.RandomState)
    return found


def with_torch(comm: Any) -> list[float]:
    """Draw numbers of torch, whose generator is seeded on every rank."""
    import torch

    torch.manual_seed(comm.rank)
    found = []
    for _ in range(3):
        comm.Barrier()
        found += [float(torch.rand(1)), torch.nn.Linear(2, 2).weight[0, 0].item()]
    comm.Barrier()
    return found
