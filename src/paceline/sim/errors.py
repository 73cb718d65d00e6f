"""What the simulator refuses: mistakes that a real MPI may let pass, hang on, or crash with.

Each says which ranks, which operations, and in which lines of the program.
"""

from __future__ import annotations


class SimulationError(Exception):
    """A program did on simulated ranks what no MPI program may do."""


class Deadlock(SimulationError):
    """Ranks wait for each other, and nothing is under way that could wake one of them."""


class BufferChanged(SimulationError):
    """A buffer was written while a message was being sent from it or received into it."""


class Unmatched(SimulationError):
    """A message that nobody received, or a receive that nobody answered, at the end."""


class Unfinished(SimulationError):
    """A request that was never waited for, or tested until it was done."""


class Truncated(SimulationError):
    """A message that is longer than the buffer it was received into."""


class TypeMismatch(SimulationError):
    """A message of one type of number, received as another."""


class CollectiveMismatch(SimulationError):
    """Ranks of one communicator that call different collectives, or the same with other arguments."""


class RankFailed(SimulationError):
    """A rank raised an exception: the simulation ends, as a job does. The exception is this one's cause."""

    def __init__(self, rank: int, ranks: int, error: BaseException) -> None:
        super().__init__(f"rank {rank} of {ranks} failed: {type(error).__name__}: {error}")
        self.rank = rank
        self.error = error
