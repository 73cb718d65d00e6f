"""The calls of mpi4py's buffer interface: their names, and what their arguments are about."""

from __future__ import annotations

from typing import Any

# Calls that put one message of their first argument on the way to `dest`, that receive one, that wait for requests.
SENDS = (
    *("Send", "Isend", "Ssend", "Issend", "Bsend", "Ibsend", "Rsend", "Irsend"),
    *("Sendrecv", "Isendrecv", "Sendrecv_replace", "Isendrecv_replace"),
)
RECEIVES = ("Recv", "Irecv")
WAITS = ("Wait", "Test", "Waitall", "Waitany", "Waitsome", "Testall", "Testany", "Testsome", "Probe")
# Collective calls, with an I before them or not, in which every rank hands its first argument to MPI …
COLLECTIVE = (
    *("Allreduce", "Reduce", "Reduce_scatter", "Reduce_scatter_block", "Scan", "Exscan"),
    *("Allgather", "Allgatherv", "Gather", "Gatherv", "Alltoall", "Alltoallv"),
)
# … in which only the root does (with the place of `root` among the arguments), and in which nobody does.
ROOTED = {"Bcast": 1, "Scatter": 2, "Scatterv": 2}
EMPTY = ("Barrier",)
TOGETHER = (*COLLECTIVE, *ROOTED, *EMPTY)
# Calls that make another communicator.
MAKERS = (
    *("Dup", "Dup_with_info", "Clone", "Split", "Split_type", "Create", "Create_group"),
    *("Create_cart", "Create_graph"),
)


def plain_name(name: str) -> str:
    """The blocking call of the same kind, of a collective one.

    >>> plain_name("Iallreduce"), plain_name("Bcast")
    ('Allreduce', 'Bcast')
    """
    return name[1:].capitalize() if name[:1] == "I" else name


def handed(name: str, arguments: tuple[Any, ...], named: dict[str, Any], rank: int) -> Any:
    """The buffer that a rank hands to MPI in a collective call of this (plain) name; None where it hands none."""
    if name in ROOTED:
        root = argument(arguments, named, ROOTED[name], "root", default=0)
        return argument(arguments, named, 0, "buf", "sendbuf") if root == rank else None
    if name not in COLLECTIVE:
        return None
    given = argument(arguments, named, 0, "sendbuf")
    if not _has_data(given):  # MPI.IN_PLACE: the second buffer is what is handed in
        given = argument(arguments, named, 1, "recvbuf")
    return given


def argument(
    arguments: tuple[Any, ...], named: dict[str, Any], place: int, *names: str, default: Any = None
) -> Any:
    """An argument by its place or by one of mpi4py's names for it.

    A call without it is answered by mpi4py's own TypeError, when it is made.
    """
    if place < len(arguments):
        return arguments[place]
    return next((named[name] for name in names if name in named), default)


def nbytes(buffer: Any) -> int:
    """The bytes of an mpi4py buffer: an array, or [array, datatype], [array, count, datatype] …

    >>> import numpy as np
    >>> nbytes(np.zeros(3, np.float32)), nbytes([np.zeros(8), 2, "d"]), nbytes(None)
    (12, 16, 0)
    """
    if not isinstance(buffer, (list, tuple)):
        return memoryview(buffer).nbytes if _has_data(buffer) else 0
    data = memoryview(buffer[0])
    count = buffer[1] if len(buffer) > 1 else None
    if count is None or not isinstance(count, (int, list, tuple)):
        return data.nbytes
    if isinstance(count, (list, tuple)):  # counts for each rank, or (counts, displacements)
        counts = count[0] if isinstance(count[0], (list, tuple)) else count
        count = sum(counts)
    size = buffer[-1].Get_size() if hasattr(buffer[-1], "Get_size") else data.itemsize
    return int(count * size)


def _has_data(buffer: Any) -> bool:
    """Whether this is memory, and not MPI.IN_PLACE or MPI.BOTTOM."""
    kind = type(buffer)
    return not (buffer is None or issubclass(kind, int) or kind.__name__ in ("InPlaceType", "BottomType"))
