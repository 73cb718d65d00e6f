"""Plays the programs of `programs` on a communicator, mpi4py's or the simulator's, and tells all that was received."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.vmpi.programs import Round, program

NOTHING = 77  # what is in a buffer before


def play(comm: Any, *, seeds: list[int]) -> list[Any]:
    """What this rank received in the programs of these seeds."""
    found = []
    for seed in seeds:
        rounds = program(seed, comm.Get_size())
        found.append([])
        for number, each in enumerate(rounds):
            with _telling(lambda: f"seed {seed}, round {number}: {each}"):  # noqa: B023 (called at once)
                found[-1].append(_play(comm, each))
        comm.Barrier()
    plain: list[Any] = json.loads(json.dumps(found))
    return plain


def _play(comm: Any, drawn: Round) -> Any:
    # A receive from anybody must not see the messages of another round.
    comm.Barrier()
    found = PLAYERS[drawn["what"]](comm, drawn)
    comm.Barrier()
    return found


@contextlib.contextmanager
def _telling(tell: Callable[[], str]) -> Iterator[None]:
    """Add what is known to an error: the cause of one that depends on the load of the machine is seen only once."""
    try:
        yield
    except Exception as error:
        error.add_note(tell())
        raise


def _errors(MPI: Any, statuses: list[Any]) -> str:
    return f"statuses: {[MPI.Get_error_string(status.Get_error()) for status in statuses]}"


def _values(seed: int, length: int, kind: str) -> Any:
    if kind == "?":
        return (np.arange(length) * 7 + seed) % 3 == 0
    return ((np.arange(length) * 7 + seed * 13) % 11 + 1).astype(kind)


def _room(length: int, kind: str) -> Any:
    return np.full(length, True if kind == "?" else NOTHING, kind)


def _digest(values: Any) -> Any:
    if values is None:
        return None
    if values.size <= 8:
        return [str(value) for value in values.reshape(-1).tolist()]
    return [values.size, hashlib.sha1(values.tobytes()).hexdigest()]


def _status(status: Any) -> list[int]:
    return [status.Get_source(), status.Get_tag(), status.Get_count()]


# ---- messages


def _messages(comm: Any, drawn: Round) -> Any:
    from mpi4py import MPI

    rank, sent = comm.Get_rank(), drawn["sent"]
    rooms, requests = [], []
    for receive in drawn["receives"][rank]:
        message = sent[receive["number"]]
        room = _room(message["length"] + receive["more"], message["kind"])
        source = MPI.ANY_SOURCE if receive["any source"] else message["source"]
        tag = MPI.ANY_TAG if receive["any tag"] else message["tag"]
        requests.append(comm.Irecv(room, source, tag))
        rooms.append(room)
    outgoing = []
    for message in sent:
        if message["source"] == rank:
            values = _values(drawn["seed"] + message["number"], message["length"], message["kind"])
            made = getattr(comm, message["call"])(values, message["dest"], message["tag"])
            if made is not None:
                outgoing.append((made, values))
    statuses = ENDS[drawn["end"][rank]](MPI, requests)
    MPI.Request.Waitall([request for request, _ in outgoing])
    return [[_digest(room), _status(status)] for room, status in zip(rooms, statuses, strict=True)]


def _waitall(MPI: Any, requests: list[Any]) -> list[Any]:
    statuses = [MPI.Status() for _ in requests]
    with _telling(lambda: _errors(MPI, statuses)):
        MPI.Request.Waitall(requests, statuses)
    return statuses


def _one_by_one(call: Callable[[Any, list[Any], Any], int | None]) -> Callable[[Any, list[Any]], list[Any]]:
    def wait(MPI: Any, requests: list[Any]) -> list[Any]:
        statuses: list[Any] = [None] * len(requests)
        while None in statuses:
            status = MPI.Status()
            number = call(MPI, requests, status)
            if number is not None:
                statuses[number] = status
        return statuses

    return wait


def _waitany(MPI: Any, requests: list[Any], status: Any) -> int:
    return int(MPI.Request.Waitany(requests, status))


def _testany(MPI: Any, requests: list[Any], status: Any) -> int | None:
    number, done = MPI.Request.Testany(requests, status)
    return number if done else None


def _test(MPI: Any, requests: list[Any], status: Any) -> int | None:
    for number, request in enumerate(requests):
        if request != MPI.REQUEST_NULL and request.Test(status):
            return number
    return None


def _some(name: str) -> Callable[[Any, list[Any]], list[Any]]:
    def wait(MPI: Any, requests: list[Any]) -> list[Any]:
        found: list[Any] = [None] * len(requests)
        while None in found:
            statuses: list[Any] = [MPI.Status() for _ in requests]
            with _telling(lambda: _errors(MPI, statuses)):  # noqa: B023 (called at once)
                done = getattr(MPI.Request, name)(requests, statuses) or []
            for place, number in enumerate(done):
                found[number] = statuses[place]
        return found

    return wait


def _testall(MPI: Any, requests: list[Any]) -> list[Any]:
    statuses = [MPI.Status() for _ in requests]
    with _telling(lambda: _errors(MPI, statuses)):
        while not MPI.Request.Testall(requests, statuses):
            pass
    return statuses


def _backwards(MPI: Any, requests: list[Any]) -> list[Any]:
    statuses = [MPI.Status() for _ in requests]
    for request, status in reversed(list(zip(requests, statuses, strict=True))):
        request.Wait(status)
    return statuses


ENDS: dict[str, Callable[[Any, list[Any]], list[Any]]] = {
    "Waitall": _waitall,
    "Waitany": _one_by_one(_waitany),
    "Waitsome": _some("Waitsome"),
    "Wait backwards": _backwards,
    "Test": _one_by_one(_test),
    "Testall": _testall,
    "Testany": _one_by_one(_testany),
    "Testsome": _some("Testsome"),
}


def _shift(comm: Any, drawn: Round) -> Any:
    from mpi4py import MPI

    rank, p, by = comm.Get_rank(), comm.Get_size(), drawn["by"]
    to, of = rank + by, rank - by
    if drawn["around"]:
        to, of = to % p, of % p
    to, of = to if to < p else MPI.PROC_NULL, of if of >= 0 else MPI.PROC_NULL
    lengths = [drawn["lengths"][0]] * p if drawn["replace"] else drawn["lengths"]
    status = MPI.Status()
    mine = _values(drawn["seed"] + rank, lengths[rank], drawn["kind"])
    source = MPI.ANY_SOURCE if drawn["any"] and of >= 0 else of
    if drawn["replace"]:
        comm.Sendrecv_replace(mine, to, 3, source, 3, status)
        theirs = mine
    else:
        theirs = _room(max(lengths), drawn["kind"])
        comm.Sendrecv(mine, to, 3, theirs, source, 3, status)
    told = _status(status)
    return [_digest(theirs), ["nobody", told[1] == MPI.ANY_TAG, told[2]] if of < 0 else told]


def _probed(comm: Any, drawn: Round) -> Any:
    from mpi4py import MPI

    rank = comm.Get_rank()
    if drawn["call"] == "nobody":
        status = MPI.Status()
        comm.Probe(MPI.PROC_NULL, 5, status)
        assert comm.Iprobe(MPI.PROC_NULL)
        return [status.Get_source() == MPI.PROC_NULL, status.Get_tag() == MPI.ANY_TAG, status.Get_count()]
    if rank == drawn["source"]:
        made = getattr(comm, drawn["send"])(
            _values(drawn["seed"], drawn["length"], drawn["kind"]), drawn["dest"], drawn["tag"]
        )
        return made.Wait() if made is not None else True
    if rank != drawn["dest"]:
        return None
    source = MPI.ANY_SOURCE if drawn["any source"] else drawn["source"]
    tag = MPI.ANY_TAG if drawn["any tag"] else drawn["tag"]
    status, again = MPI.Status(), MPI.Status()
    message = None
    if "m" in drawn["call"].lower():
        while not message:
            message = getattr(comm, drawn["call"])(source, tag, status)
    else:
        while not getattr(comm, drawn["call"])(source, tag, status):
            pass
    size = np.dtype(drawn["kind"]).itemsize
    room = _room(status.Get_count() // size, drawn["kind"])
    if message:
        message.Recv(room, again)
    else:
        comm.Recv(room, status.Get_source(), status.Get_tag(), again)
    return [_digest(room), _status(status), _status(again)]


def _contexts(comm: Any, drawn: Round) -> Any:
    other = comm.Dup()
    rank, n = comm.Get_rank(), drawn["length"]
    found = None
    if rank == drawn["source"]:
        one, two = _values(1, n, "i4"), _values(2, n, "i4")
        sent = [comm.Isend(one, drawn["dest"], 9), other.Isend(two, drawn["dest"], 9)]
        for request in sent:
            request.Wait()
    elif rank == drawn["dest"]:
        rooms = [_room(n, "i4"), _room(n, "i4")]
        pairs = list(zip([comm, other], rooms, strict=True))
        for each, room in reversed(pairs) if drawn["second first"] else pairs:
            each.Recv(room, drawn["source"], 9)
        found = [_digest(room) for room in rooms]
    other.Free()
    return found


def _repeated(comm: Any, drawn: Round) -> Any:
    from mpi4py import MPI

    rank, p = comm.Get_rank(), comm.Get_size()
    mine, theirs = (_room(drawn["length"], drawn["kind"]) for _ in range(2))
    requests = [
        comm.Recv_init(theirs, (rank - drawn["by"]) % p, 4),
        comm.Send_init(mine, (rank + drawn["by"]) % p, 4),
    ]
    found = []
    for time in range(drawn["times"]):
        mine[:] = _values(drawn["seed"] + time + rank, mine.size, drawn["kind"])
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
        found.append(_digest(theirs))
    for request in requests:
        request.Free()
    return found


# ---- all together


def _called(comm: Any, drawn: Round, *arguments: Any) -> None:
    if drawn["wait"]:
        getattr(comm, drawn["call"])(*arguments)
    else:
        getattr(comm, "I" + drawn["call"].lower())(*arguments).Wait()


def _moved(comm: Any, drawn: Round) -> Any:
    from mpi4py import MPI

    rank, p, root, kind = comm.Get_rank(), comm.Get_size(), drawn["root"], drawn["kind"]
    call, n, mine = drawn["call"], drawn["length"], rank == root
    here = drawn["in place"]
    first = 1 if call.startswith("All") else 0
    if call == "Bcast":
        into = _values(drawn["seed"], n, kind) if mine else _room(n, kind)
        _called(comm, drawn, into, root)
        return _digest(into)
    if call.endswith("v"):
        return _moved_parts(comm, drawn)
    own, whole = _values(drawn["seed"] + rank, n, kind), _room(n * p, kind)
    if call in ("Gather", "Allgather"):
        if here and (first or mine):
            whole[rank * n : (rank + 1) * n] = own
        send = MPI.IN_PLACE if here and (first or mine) else own
        _called(comm, drawn, send, whole if first or mine else None, *([] if first else [root]))
        return _digest(whole)
    if call == "Scatter":
        whole = _values(drawn["seed"], n * p, kind)
        into = _room(n, kind)
        _called(comm, drawn, whole if mine else None, MPI.IN_PLACE if here and mine else into, root)
        return _digest(into)
    send = _values(drawn["seed"] + rank, n * p, kind)
    if here:
        whole[:] = send
    _called(comm, drawn, MPI.IN_PLACE if here else send, whole)
    return _digest(whole)


def _moved_parts(comm: Any, drawn: Round) -> Any:
    rank, p, root, kind = comm.Get_rank(), comm.Get_size(), drawn["root"], drawn["kind"]
    call, lengths, gap, mine = drawn["call"], drawn["lengths"], drawn["gap"], rank == drawn["root"]

    def parts(counts: list[int], fill: bool) -> tuple[Any, Any]:
        """A buffer with gaps, and what mpi4py is given."""
        starts = [sum(counts[:place]) + gap * place for place in range(p)]
        size = sum(counts) + gap * p
        room = _values(drawn["seed"] + rank, size, kind) if fill else _room(size, kind)
        datatype = np.dtype(kind).char
        return room, [room, counts, starts, datatype] if drawn["listed"] else [room, (counts, starts)]

    if call == "Alltoallv":
        room, into = parts([lengths[source][rank] for source in range(p)], fill=False)
        _called(comm, drawn, parts(lengths[rank], fill=True)[1], into)
        return _digest(room)
    counts = lengths[0]
    own = _values(drawn["seed"] + rank, counts[rank], kind)
    if call == "Scatterv":
        into = _room(counts[rank], kind)
        _called(comm, drawn, parts(counts, fill=True)[1] if mine else None, into, root)
        return _digest(into)
    room, into = parts(counts, fill=False)
    if call == "Gatherv":
        _called(comm, drawn, own, into if mine else None, root)
    else:
        _called(comm, drawn, own, into)
    return _digest(room)


def _combined(comm: Any, drawn: Round) -> Any:
    from mpi4py import MPI

    rank, p, root, kind = comm.Get_rank(), comm.Get_size(), drawn["root"], drawn["kind"]
    call, n = drawn["call"], drawn["length"]
    own = drawn["op"] in ("own", "first")

    def function(lower: Any, upper: Any, datatype: Any) -> None:
        a, b = np.frombuffer(lower, kind), np.frombuffer(upper, kind)
        b[:] = a if drawn["op"] == "first" else a + b + 1

    op = MPI.Op.Create(function, commute=drawn["op"] == "own") if own else getattr(MPI, drawn["op"])
    counts = drawn["lengths"][:p]
    size = sum(counts) if call == "Reduce_scatter" else n * p if call == "Reduce_scatter_block" else n
    mine = (_values(drawn["seed"] + rank, size, kind) % 3).astype(kind)
    into = _room(counts[rank] if call == "Reduce_scatter" else n, kind)
    send: Any = mine
    if drawn["in place"] and (call in ("Allreduce", "Scan", "Exscan") or (call == "Reduce" and rank == root)):
        into[:] = mine
        send = MPI.IN_PLACE
    if call == "Reduce":
        _called(comm, drawn, send, into if rank == root else None, op, root)
    elif call == "Reduce_scatter":
        _called(comm, drawn, send, into, counts, op)
    else:
        _called(comm, drawn, send, into, op)
    if own:
        op.Free()
    return None if call == "Exscan" and rank == 0 else _digest(into)


def _objects(comm: Any, drawn: Round) -> Any:
    from mpi4py import MPI

    rank, p, root, call = comm.Get_rank(), comm.Get_size(), drawn["root"], drawn["call"]
    op = getattr(MPI, drawn["op"])
    number: Any = (drawn["seed"] * (rank + 3)) % 17
    thing = {"rank": rank, "text": "x" * drawn["length"]}
    if drawn["op"] == "MAXLOC":
        number = (number, rank)
    if call == "ring":
        status = MPI.Status()
        request = comm.isend(thing, (rank + 1) % p, 6)
        received = comm.irecv(source=(rank - 1) % p, tag=6) if drawn["length"] < 10 else None
        found = received.wait(status) if received else comm.recv(None, MPI.ANY_SOURCE, 6, status)
        request.wait()
        back = comm.sendrecv([rank], (rank - 1) % p, source=(rank + 1) % p)
        return [found, back, status.Get_source(), status.Get_tag()]
    if call == "bcast":
        return comm.bcast(thing if rank == root else None, root)
    if call == "gather":
        return comm.gather(thing, root)
    if call == "allgather":
        return comm.allgather(thing)
    if call == "scatter":
        return comm.scatter([[rank, each] for each in range(p)] if rank == root else None, root)
    if call == "alltoall":
        return comm.alltoall([[rank, each] for each in range(p)])
    if call == "reduce":
        return comm.reduce(number, op, root)
    return getattr(comm, call)(number, op)


# ---- communicators


def _split(comm: Any, drawn: Round) -> Any:
    from mpi4py import MPI

    rank = comm.Get_rank()
    color = drawn["colors"][rank]
    part = comm.Split(color if color >= 0 else MPI.UNDEFINED, drawn["keys"][rank])
    if part == MPI.COMM_NULL:
        return "alone"
    found = [part.Get_rank(), part.Get_size(), part.Get_group().Translate_ranks(None, comm.Get_group())]
    for inner in drawn["inner"].get(str(color), []):
        found.append(_play(part, inner))
    part.Free()
    return found


def _dup(comm: Any, drawn: Round) -> Any:
    other = comm.Dup()
    found = [_play(other, inner) for inner in drawn["inner"]]
    other.Free()
    return found


PLAYERS: dict[str, Callable[[Any, Round], Any]] = {
    "messages": _messages,
    "shift": _shift,
    "probed": _probed,
    "contexts": _contexts,
    "repeated": _repeated,
    "moved": _moved,
    "combined": _combined,
    "objects": _objects,
    "split": _split,
    "dup": _dup,
}
