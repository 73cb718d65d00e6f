"""`paceline.vmpi.run`: a function of a communicator, on simulated ranks."""

from __future__ import annotations

import gc
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from paceline.errors import UsageError
from paceline.vmpi.communicator import Comm
from paceline.vmpi.compute import Compute
from paceline.vmpi.groups import Group
from paceline.vmpi.kernel import Kernel
from paceline.vmpi.network import Network, parse_network
from paceline.vmpi.standin import standing_in
from paceline.vmpi.world import entered

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a simulation."""

    values: list[Any] = field(repr=False)
    """What the function returned, by rank."""
    seconds: float
    """Virtual time at which the last rank ended."""
    clocks: list[float] = field(repr=False)
    """When each rank ended."""
    messages: int
    """Point-to-point messages of all ranks."""
    bytes: int
    killed: dict[int, float] = field(default_factory=dict)
    """Ranks that were killed, and when."""


def run(
    function: Callable[..., Any],
    *arguments: Any,
    ranks: int,
    network: str | Network = "loopback",
    compute: Compute | None = None,
    seed: int = 0,
    faults: Sequence[Any] = (),
    strict: bool = True,
    rendezvous: bool = False,
    time_only: bool = False,
) -> Outcome:
    """Run `function(comm, *arguments)` on `ranks` simulated ranks of this one process, in virtual time.

    `comm` has mpi4py's buffer interface; `comm.Compute(seconds)` lets a rank compute, `comm.Wtime()` is its clock. The
    same seed gives the same result to the bit; another one explores another order of what happens at the same time.
    `network`: a name with options (`"10gbe:ranks-per-node=4"`) or a `Network`. `strict`: changed buffers, mismatched
    types and what is left over at the end are errors. `rendezvous`: no message is buffered, so that a program that
    relies on it stops in a Deadlock. `faults`: see `paceline.vmpi.faults`.

    >>> import numpy as np
    >>> def ring(comm):
    ...     mine, theirs = np.array([comm.Get_rank()]), np.array([-1])
    ...     p, r = comm.Get_size(), comm.Get_rank()
    ...     comm.Sendrecv(mine, (r + 1) % p, recvbuf=theirs, source=(r - 1) % p)
    ...     return int(theirs[0])
    >>> outcome = run(ring, ranks=5)
    >>> outcome.values, outcome.messages
    ([4, 0, 1, 2, 3], 5)
    """
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise UsageError(f"ranks must be a whole number of at least 1; got {ranks!r}")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise UsageError(f"seed must be a whole number; got {seed!r}")
    if not isinstance(faults, Sequence) or not all(hasattr(fault, "prepare") for fault in faults):
        raise UsageError(f"faults must be a list of faults, as [fail_at(rank=3, step=100)]; got {faults!r}")
    network = parse_network(network) if isinstance(network, str) else network
    wires = network.wires(ranks, random.Random(f"{seed} wires"))
    computing = None if compute is None else compute.start(wires.node, seed)
    kernel = Kernel(
        ranks, wires, computing, seed=seed, strict=strict, rendezvous=rendezvous, time_only=time_only
    )
    for fault in faults:
        fault.prepare(kernel)
    world = Group(kernel, range(ranks), "MPI_COMM_WORLD")

    def body(rank: int) -> Callable[[], Any]:
        return lambda: function(entered(Comm(world, rank)), *arguments)

    with _little_collecting(), standing_in(function):
        kernel.run([body(rank) for rank in range(ranks)])
    if kernel.faults is not None:
        for sentence in kernel.faults.spared():
            log.warning(sentence)
    clocks = [rank.t for rank in kernel.ranks]
    return Outcome(
        values=[rank.value for rank in kernel.ranks], seconds=max(clocks), clocks=clocks,
        messages=kernel.messages, bytes=kernel.bytes,
        killed={} if kernel.faults is None else {rank: death.time for rank, death in kernel.faults.dead.items()},
    )  # fmt: skip


@contextmanager
def _little_collecting() -> Iterator[None]:
    """Messages leave no cycles, and looking for some in the memory of thousands of ranks takes most of the time."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
