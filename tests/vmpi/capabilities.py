"""One program for each part of MPI, run by simulated ranks and, for truth, by real ones: functions of a communicator."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import numpy as np


def datatypes(comm: Any) -> list[Any]:
    """Columns, blocks and structs sent to the next rank; sizes; packing."""
    from mpi4py import MPI

    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    matrix = np.arange(24.0).reshape(4, 6) + 100 * comm.rank
    found: list[Any] = []
    made = [
        MPI.DOUBLE.Create_vector(4, 1, 6),
        MPI.DOUBLE.Create_indexed([2, 1, 3], [0, 7, 12]),
        MPI.DOUBLE.Create_hindexed([1, 2], [8, 80]),
        MPI.DOUBLE.Create_indexed_block(2, [3, 9]),
        MPI.DOUBLE.Create_subarray([4, 6], [2, 3], [1, 2]),
        MPI.DOUBLE.Create_subarray([6, 4], [3, 2], [2, 1], order=MPI.ORDER_F),
        MPI.DOUBLE.Create_vector(2, 2, 3).Create_resized(0, 16).Create_contiguous(2),
        MPI.Datatype.Create_struct([1, 2], [0, 16], [MPI.DOUBLE, MPI.DOUBLE]),
    ]
    for datatype in made:
        datatype.Commit()
        there = np.zeros((4, 6))
        comm.Sendrecv([matrix, 1, datatype], right, recvbuf=[there, 1, datatype], source=left)
        found.append([there.tolist(), datatype.Get_size(), datatype.Get_extent(), datatype.Get_true_extent()])
        datatype.Free()
    for part in ((2, 1), [2, 1]):  # a count and a displacement
        some = np.zeros(3)
        comm.Sendrecv(
            [matrix.reshape(-1), part, MPI.DOUBLE], right, recvbuf=[some, part, MPI.DOUBLE], source=left
        )
        found.append([some.tolist()])
    row = np.zeros(4)
    comm.Sendrecv([matrix, [2, 3], MPI.DOUBLE], right, recvbuf=[row, (2, 1), MPI.DOUBLE], source=left)
    found.append(row.tolist())
    column = MPI.DOUBLE.Create_vector(4, 1, 6).Commit()
    comm.Sendrecv([matrix, 1, column], right, recvbuf=row, source=left)
    packed = np.zeros(5)
    end = column.Pack(matrix.reshape(-1)[:19], packed, 8, comm)
    unpacked = np.zeros(19)
    column.Unpack(packed, 8, unpacked, comm)
    mixed = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.INT, MPI.DOUBLE])
    record = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.DOUBLE, MPI.INT]).Create_resized(0, 12).Commit()
    for length in (1, 2):  # packed: NumPy describes a single one differently
        mine, theirs = np.full(length, comm.rank, "f8,i4"), np.zeros(length, "f8,i4")
        for element in (record, MPI.BYTE):
            comm.Sendrecv([mine, element], right, recvbuf=[theirs, element], source=left)
            found.append(theirs.tolist())
        found.append([MPI.Get_address(mine) == mine.ctypes.data])
    record.Free()
    return [
        *found,
        row.tolist(),
        packed.tolist(),
        end,
        unpacked.tolist(),
        mixed.Get_size(),
        mixed.Get_extent(),
    ]


def one_sided(comm: Any) -> list[Any]:
    """Put, Get, accumulate and atomic calls, under fences, locks and Post/Start/Complete/Wait."""
    from mpi4py import MPI

    rank, size = comm.rank, comm.size
    memory = np.full(8, float(rank))
    window = MPI.Win.Create(memory, 8, comm=comm)
    window.Fence()
    window.Put(np.array([10.0 + rank]), (rank + 1) % size, 1)
    window.Fence()
    got = np.zeros(2)
    window.Get(got, (rank + 1) % size, [1, 2, MPI.DOUBLE])
    window.Accumulate(np.array([1.0, 2.0]), 0, 4)
    window.Fence()
    window.Accumulate(np.array([float(rank)]), 0, 6, op=MPI.MAX)
    window.Fence(MPI.MODE_NOSUCCEED)
    found = [memory.tolist(), got.tolist()]
    window.Free()

    counter = MPI.Win.Allocate(16, 8, comm=comm)
    np.frombuffer(counter.tomemory(), "i8")[:] = 0
    comm.Barrier()
    before = np.zeros(1, "i8")
    counter.Lock(0)
    counter.Fetch_and_op(np.ones(1, "i8"), before, 0)
    counter.Unlock(0)
    comm.Barrier()
    taken = sorted(comm.allgather(int(before[0])))
    counter.Lock_all()
    counter.Compare_and_swap(np.array([rank + 1]), np.zeros(1, "i8"), before, size - 1, 1)
    counter.Flush(size - 1)
    counter.Unlock_all()
    winners = comm.allreduce(int(before[0] == 0))
    comm.Barrier()
    own = np.frombuffer(counter.tomemory(), "i8").tolist()
    found += [taken, winners, own[0]]
    counter.Free()

    part = np.zeros(size)
    window = MPI.Win.Create(part, 8, comm=comm)
    everyone = comm.Get_group()
    others = everyone.Excl([rank])
    window.Post(others)
    window.Start(others)
    for other in range(size):
        if other != rank:
            window.Put(np.array([rank + 0.5]), other, rank)
    window.Complete()
    window.Wait()
    window.Free()
    return [*found, part.tolist()]


def arrangements(comm: Any) -> list[Any]:
    """Grids, graphs, and collectives among neighbours."""
    from mpi4py import MPI

    rank, size = comm.rank, comm.size
    grid = comm.Create_cart(MPI.Compute_dims(size, 2), periods=[True, False])
    here = [grid.coords, grid.dims, grid.periods, list(grid.Shift(0, 1))]
    around = np.full(4, -1.0)
    grid.Neighbor_allgather(np.array([float(rank)]), around)
    swapped = np.full(4, -1.0)
    grid.Neighbor_alltoall(np.arange(4.0) + 10 * rank, swapped)
    line = grid.Sub([True, False])
    found = [here, around.tolist(), swapped.tolist(), line.size]
    ring = comm.Create_dist_graph_adjacent([(rank - 1) % size], [(rank + 1) % size])
    found += [ring.neighbor_allgather(rank), ring.Get_dist_neighbors_count()[:2]]
    index, edges = np.arange(1, size + 1).tolist(), [(each + 1) % size for each in range(size)]
    graph = comm.Create_graph(index, edges)
    found += [graph.Get_neighbors(rank), graph.Get_dims()]
    for each in (line, grid, ring, graph):
        each.Free()
    return found


def two_groups(comm: Any) -> list[Any]:
    """Messages and collectives between two groups of ranks."""
    from mpi4py import MPI

    side = comm.rank % 2
    half = comm.Split(side)
    other = half.Create_intercomm(0, comm, 1 - side, 3)
    sizes = [other.size, other.remote_size]
    total = np.zeros(1)
    other.Allreduce(np.array([comm.rank + 1.0]), total)
    gathered = np.zeros(other.remote_size)
    other.Allgather(np.array([float(comm.rank)]), gathered)
    root = (MPI.ROOT if half.rank == 0 else MPI.PROC_NULL) if side == 0 else 0
    told = other.bcast("hello", root=root)
    echoed = other.sendrecv(comm.rank, 0, source=0) if half.rank == 0 else None
    merged = other.Merge(high=bool(side))
    found = [sizes, total.tolist(), gathered.tolist(), told if side else None, echoed, merged.rank]
    for each in (merged, other, half):
        each.Free()
    return found


def repeated(comm: Any) -> list[Any]:
    """Persistent requests, v- and w-collectives, Sendrecv_replace and matched probes."""
    from mpi4py import MPI

    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    mine, theirs = np.zeros(2), np.zeros(2)
    requests = [comm.Send_init(mine, right), comm.Recv_init(theirs, left)]
    seen = []
    for turn in range(3):
        mine[:] = rank, turn
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
        seen.append(theirs.tolist())
    for request in requests:
        request.Free()
    replaced = np.array([float(rank)])
    comm.Sendrecv_replace(replaced, right, source=left)
    counts = [each + 1 for each in range(size)]
    every = np.zeros(sum(counts))
    comm.Allgatherv(np.full(rank + 1, float(rank)), [every, counts])
    numbers, into = np.arange(float(size)) + 10 * rank, np.zeros(size)
    places, ones = [8 * each for each in range(size)], [1] * size
    comm.Alltoallw([numbers, ones, places, [MPI.DOUBLE] * size], [into, ones, places, [MPI.DOUBLE] * size])
    sent = comm.isend({"rank": rank}, right, tag=5)
    message = comm.mprobe(source=left, tag=5)
    matched = message.recv()
    sent.wait()
    pairs = np.zeros(1, np.dtype([("value", "f8"), ("place", "i4")], align=True))
    pair = np.array([(rank * 7 % 5, rank)], pairs.dtype)
    comm.Allreduce([pair, 1, MPI.DOUBLE_INT], [pairs, 1, MPI.DOUBLE_INT], op=MPI.MAXLOC)
    best = [float(pairs["value"][0]), int(pairs["place"][0])]
    return [seen, replaced.tolist(), every.tolist(), into.tolist(), matched, best]


def attributes(comm: Any) -> list[Any]:
    """Attributes and their copies, error handlers, hints and groups."""
    from mpi4py import MPI

    deleted: list[Any] = []
    copied = MPI.Comm.Create_keyval(
        copy_fn=lambda _, __, value: value + 1, delete_fn=lambda *each: deleted.append(each[2])
    )
    kept = MPI.Comm.Create_keyval()
    first = comm.Dup()
    first.Set_attr(copied, 5)
    first.Set_attr(kept, "x")
    second = first.Dup()
    found = [second.Get_attr(copied), second.Get_attr(kept), first.Get_attr(kept)]
    second.Free()
    first.Free()
    group = comm.Get_group()
    odd = group.Range_incl([(1, comm.size - 1, 2)])
    both = MPI.Group.Union(odd, group.Incl([0]))
    hints = MPI.Info.Create({"a": "1"})
    hints["b"] = "2"
    try:
        comm.Send(np.zeros(1), comm.size + 5)
        error = 0
    except MPI.Exception as raised:
        error = int(raised.Get_error_class() == MPI.ERR_RANK)
    return [
        found,
        sorted(deleted),
        odd.size,
        both.Translate_ranks([0, both.size - 1], group),
        hints.items(),
        error,
    ]


def operations(comm: Any) -> list[Any]:
    """An operation made from a function, on elements with gaps; what predefined operations refuse."""
    from mpi4py import MPI

    record = np.dtype([("value", "f8"), ("rank", "i4")], align=True)
    element = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.DOUBLE, MPI.INT]).Create_resized(
        0, record.itemsize
    )
    told = set()

    def keep_larger(given: Any, into: Any, datatype: Any) -> None:
        lower, upper = np.frombuffer(given, record), np.frombuffer(into, record)
        told.add((datatype.Get_size(), datatype.Get_extent()))
        upper[lower["value"] > upper["value"]] = lower[lower["value"] > upper["value"]]

    larger = MPI.Op.Create(keep_larger, commute=True)
    mine, best = np.zeros(3, record), np.zeros(3, record)
    mine["value"], mine["rank"] = [comm.rank, -comm.rank, comm.rank * 7 % 5], comm.rank
    element.Commit()
    comm.Allreduce([mine, 3, element], [best, 3, element], larger)
    found = [best.tolist()]
    comm.Scan([mine, element], [best, element], larger)
    found.append(best.tolist())
    block = np.zeros(1, record)
    comm.Reduce_scatter_block([np.resize(mine, comm.size), 1, element], [block, 1, element], larger)
    larger.Reduce_local([mine, 3, element], [best, 3, element])
    found += [block.tolist(), best.tolist(), sorted(told)]
    pair = MPI.DOUBLE.Create_contiguous(2).Commit()
    try:
        comm.Allreduce([np.zeros(2), 1, pair], [np.zeros(2), 1, pair])
        error = 0
    except MPI.Exception as raised:
        error = int(raised.Get_error_class() == MPI.ERR_OP)
    for each in (larger, element, pair):
        each.Free()
    halves = np.arange(4.0)
    comm.Allreduce([halves, 2, MPI.DOUBLE], [halves, (2, 2), MPI.DOUBLE])
    found.append(halves.tolist())
    try:
        comm.Allreduce(halves, halves)
    except MPI.Exception as raised:
        found.append(raised.Get_error_class() == MPI.ERR_BUFFER)
    return [*found, error]


def refused(comm: Any) -> list[str]:
    """Buffers of elements that MPI has no datatype for, and no buffer at all."""
    found = []
    names: Any = np.array(["one", "three"])
    for given in (
        np.array([None, 1]), names, names.astype("S"), np.zeros(2, "f8,i4"), np.zeros(2, "V8"), None,
        np.array([b"a", b"b"]), np.zeros((4, 4))[:, 1],
    ):  # fmt: skip
        try:
            request = comm.Irecv(bytearray(100), comm.rank)
            comm.Send(given, comm.rank)
            request.Wait()
            found.append("sent")
        except (BufferError, KeyError, TypeError) as error:
            found.append(type(error).__name__)
            request.Cancel()
            request.Wait()
    calls: list[Any] = [
        lambda: comm.Bcast(None),
        lambda: comm.Reduce_scatter(np.ones(comm.size), np.zeros(2), [1] * comm.size),
    ]
    for call in calls:
        with contextlib.suppress(TypeError, ValueError):
            call()
            found.append("done")
    return found


def objects(comm: Any) -> list[Any]:
    """The order in which reductions combine objects, copies of what is sent, and a program's own MPI.pickle."""
    from mpi4py import MPI

    def join(a: str, b: str) -> str:
        return f"({a}{b})"

    def extend(a: list[int], b: list[int]) -> list[int]:
        a.extend(b)
        return a

    letter, mine, number = "abcdefghi"[comm.rank], [comm.rank], 0.1 + comm.rank / 7
    found: list[Any] = [comm.reduce(letter, join, root=comm.size - 1)]
    for call in (comm.allreduce, comm.scan, comm.exscan):
        found += [call(letter, join), call(mine, extend), repr(call(number))]
    side = comm.rank % 2
    half = comm.Split(side)
    both = half.Create_intercomm(0, comm, 1 - side, 7)
    found += [mine, both.allreduce(letter, join)]
    root = side and (MPI.ROOT if comm.rank == 1 else MPI.PROC_NULL)
    found.append(both.reduce(letter, join, root=root))
    both.Free()
    half.Free()
    shared = comm.bcast(mine, root=1)
    shared.append(9)
    found += [mine, shared]
    comm.send(lambda: 0, MPI.PROC_NULL)  # an object that cannot be pickled
    comm.bsend(lambda: 0, MPI.PROC_NULL)

    def dumps(thing: Any) -> bytes:
        return json.dumps([comm.rank, thing]).encode()

    before = MPI.pickle.PROTOCOL
    MPI.pickle.__init__(dumps, lambda data: json.loads(bytes(data)))  # type: ignore[misc]
    found += [comm.bcast((1, 2), root=1), comm.sendrecv(0, comm.rank, source=comm.rank), comm.allgather(())]
    found.append(MPI.pickle.PROTOCOL)
    MPI.pickle.__init__()  # type: ignore[misc]
    return [*found, before == MPI.pickle.PROTOCOL, comm.bcast((1, 2)) == (1, 2)]


def types_of_elements(comm: Any) -> list[Any]:
    """The codes of datatypes, and which operations combine which of them."""
    from mpi4py import MPI

    found: list[Any] = []
    codes = "? b B h H i I l L q Q f d g D G c S s a U M m u Zd b1 i1 i4 u8 f4 f8 c16 S1 U1 M8 m8 O V S4 <i4 float64"
    for code in codes.split():
        try:
            datatype = MPI.Datatype.fromcode(code)
            known = MPI._typedict[code]
            found.append([code, datatype.Get_size(), datatype.typechar, datatype.typestr, known == datatype])
        except ValueError:
            found.append([code, code in MPI._typedict])
    operations = "SUM PROD MAX MIN LAND LOR LXOR BAND BOR BXOR MAXLOC MINLOC REPLACE NO_OP"
    with np.errstate(all="ignore"):
        for letter in "?bBhHiIlLqQfdgFDG":
            for name in operations.split():
                into = np.zeros(2, letter)
                try:
                    comm.Allreduce(np.array([comm.rank, 1]).astype(letter), into, getattr(MPI, name))
                    found.append([letter, name, str(into)])
                except MPI.Exception as error:
                    found.append([letter, name, error.Get_error_class() == MPI.ERR_OP])
    try:
        comm.Allreduce(np.ones(1, "?"), np.zeros(1, "?"))
    except MPI.Exception as error:
        found.append(error.Get_error_class() == MPI.ERR_OP)
    try:
        comm.Send(np.ones(1), comm.rank, 1 << 31)
    except OverflowError:
        found.append("no such tag")
    return found


def mistakes(comm: Any) -> list[Any]:
    """Datatypes that were not committed, displacements of no bytes; and objects that are None on all ranks."""
    from mpi4py import MPI

    column = MPI.INT.Create_vector(2, 1, 2)
    numbers, into = np.arange(4, dtype="i"), np.zeros(4 * comm.size, "i")
    window = MPI.Win.Create(numbers, 4, comm=MPI.COMM_SELF)
    window.Fence()
    calls: list[Any] = [
        lambda each: comm.Send([numbers, 1, each], comm.rank),
        lambda each: comm.Recv([numbers, 1, each], comm.rank),
        lambda each: comm.Allgather([numbers, 1, each], into[: 2 * comm.size]),
        lambda each: window.Put(np.zeros(2, "i"), 0, [0, 1, each]),
        lambda each: MPI.Win.Create(numbers, 0, comm=MPI.COMM_SELF),
        lambda each: each.Pack(numbers, bytearray(8), 0, comm),
        lambda each: each.Unpack(bytearray(8), 0, numbers.copy(), comm),
    ]
    found: list[Any] = []
    for call in calls:
        for each in (column, column.Dup()):
            try:
                call(each)
                found.append("done")
            except MPI.Exception as error:
                found.append(error.Get_error_class() in (MPI.ERR_TYPE, MPI.ERR_DISP))
    window.Fence()
    window.Free()
    given = comm.bcast(column if comm.rank else column.Commit(), root=0)  # what arrives is committed
    for each in (column.Commit(), column.Dup(), given):
        comm.Allgather([numbers, 1, each], into[: 2 * comm.size])
        found.append(into.tolist())
    return [*found, comm.scatter(None), comm.alltoall(None)]


CASES = {
    each.__name__: each
    for each in (
        datatypes, one_sided, arrangements, two_groups, repeated, attributes, operations, refused, objects,
        types_of_elements, mistakes,
    )
}  # fmt: skip


def play(comm: Any) -> list[Any]:
    """Run all of them; errors are exceptions."""
    from mpi4py import MPI

    comm.Set_errhandler(MPI.ERRORS_RETURN)
    return [[name, case(comm)] for name, case in CASES.items()]
