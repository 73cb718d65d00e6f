"""MPI's own collectives on simulated ranks, and the operations of their reductions.

All ranks meet in a call, the result is computed once, and every rank leaves with its part. Arguments on which the ranks
must agree (root, operation, length, type) are compared. Contributions are read in place, without copying, as long as
their ranks wait for the result.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from greenlet import getcurrent
from numpy.typing import NDArray

from paceline.comm.operations import UFUNCS
from paceline.vmpi.buffers import (
    CODES,
    DATATYPES,
    BufferMemory,
    Layout,
    RankParts,
    block,
    equal_blocks,
    find_datatype,
    poison,
)
from paceline.vmpi.constants import COMBINER_NAMED
from paceline.vmpi.errors import BufferChanged, mpi_error
from paceline.vmpi.groups import CollectiveRequest, Disagreement, meet
from paceline.vmpi.handles import Handle, constants
from paceline.vmpi.memory import buffer, is_in_place
from paceline.vmpi.network import equal_part, equal_parts

# ---- reduction operations: MPI's own, by name, and those made from a Python function

Function = Callable[[Any, Any, Any], None]


def _max(a: Any, b: Any) -> Any:
    return b if b > a else a


def _min(a: Any, b: Any) -> Any:
    return b if b < a else a


def _max_at(a: Any, b: Any) -> Any:
    if a[0] == b[0]:
        return a if a[1] <= b[1] else b
    return a if a[0] > b[0] else b


def _min_at(a: Any, b: Any) -> Any:
    if a[0] == b[0]:
        return a if a[1] <= b[1] else b
    return a if a[0] < b[0] else b


# The operations on Python objects.
OF_OBJECTS: dict[str, Callable[[Any, Any], Any]] = {
    "SUM": operator.add,
    "PROD": operator.mul,
    "MAX": _max,
    "MIN": _min,
    "LAND": lambda a, b: bool(a) & bool(b),
    "LOR": lambda a, b: bool(a) | bool(b),
    "LXOR": lambda a, b: bool(a) ^ bool(b),
    "BAND": operator.and_,
    "BOR": operator.or_,
    "BXOR": operator.xor,
    "MAXLOC": _max_at,
    "MINLOC": _min_at,
    "REPLACE": lambda a, b: b,
    "NO_OP": lambda a, b: a,
}


# The elements that MPI defines each operation for: integers, floating-point and complex numbers, truth values, pairs.
COMBINED = (
    dict.fromkeys(("SUM", "PROD"), "iufc")
    | dict.fromkeys(("MAX", "MIN"), "iuf")
    | dict.fromkeys(("LAND", "LOR", "LXOR"), "iub")
    | dict.fromkeys(("BAND", "BOR", "BXOR"), "iu")
    | dict.fromkeys(("MAXLOC", "MINLOC"), ",")
)
FOR_WINDOWS = ("REPLACE", "NO_OP")

# Operations that one process can have made from functions at a time, as in mpi4py.
MOST_FUNCTIONS = 32


class Op(Handle):
    """An operation: one of MPI's, or made from a function of two buffers and a type that writes into the second.

    >>> Op("SUM")(2, 3), Op("MAX")(2, 3)
    (5, 3)
    >>> total = np.array([1.0, 2.0])
    >>> Op("PROD").Reduce_local(np.array([5.0, 5.0]), total)
    >>> total.tolist()
    [5.0, 10.0]
    """

    __slots__ = ("__weakref__", "_commutes", "_counted", "_function", "name", "ufunc")

    def __init__(
        self, name: str | Op | None = "", function: Function | None = None, commute: bool = True
    ) -> None:
        self._counted: Any = None
        copied = name if isinstance(name, Op) else None
        self.name: str = copied.name if copied else str(name or "")
        self._function: Function | None = copied._function if copied else function
        self._commutes: bool = copied._commutes if copied else commute
        self.ufunc: np.ufunc | None = UFUNCS.get(self.name)

    @classmethod
    def Create(cls, function: Function, commute: bool = False) -> Op:
        running: Any = getcurrent()
        made = getattr(running, "paceline_operations", 0)
        if made == MOST_FUNCTIONS:
            raise RuntimeError(f"a process can have at most {MOST_FUNCTIONS} operations made from functions")
        running.paceline_operations = made + 1
        found = cls("a user-defined operation", lambda *arguments: function(*arguments), commute)
        found._counted = function, running
        return found

    def Free(self) -> None:
        if not self or self.Is_predefined():
            raise mpi_error("ERR_OP", "only an operation made from a function can be freed")
        if self._counted is not None:
            self._counted[1].paceline_operations -= 1
        self.name, self._function, self.ufunc, self._counted = "", None, None, None

    def toint(self) -> int:
        """Return the number of a predefined operation; -1 for a function, which has none."""
        return self.handle if self.Is_predefined() else -1

    py2f = toint

    def __reduce__(self) -> Any:
        if self._function is None:
            return super().__reduce__()
        if self._counted is None:
            raise ValueError("cannot pickle a copy of an operation made from a function")
        return type(self).Create, (self._counted[0], self._commutes)

    def Is_commutative(self) -> bool:
        return self._commutes

    def Is_predefined(self) -> bool:
        return self.name in OF_OBJECTS or not self.name

    is_commutative = property(Is_commutative)
    is_predefined = property(Is_predefined)

    def __bool__(self) -> bool:
        return bool(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Op) and (self.name, self._function) == (other.name, other._function)

    def __hash__(self) -> int:
        return hash((self.name, self._function))

    def __call__(self, a: Any, b: Any) -> Any:
        """Apply the operation to two objects."""
        if self._function is not None:
            return self._function(a, b, None)
        if not self.name:
            raise ValueError("the null operation combines nothing")
        return OF_OBJECTS[self.name](a, b)

    def Reduce_local(self, inbuf: Any, inoutbuf: Any) -> None:
        """inoutbuf <- inbuf op inoutbuf."""
        given, into = BufferMemory(inbuf, writing=False), BufferMemory(inoutbuf, writing=True)
        if (given.nbytes, given.kind) != (into.nbytes, into.kind):
            raise ValueError(
                f"{given.nbytes} bytes of {given.kind} cannot be combined with {into.nbytes} bytes of {into.kind}"
            )
        if not self:
            raise mpi_error("ERR_OP", "a null or freed operation combines nothing")
        into.write(combine_all([given.view, into.view], check_op(self, into.kind, into.layout), into.kind))

    def into(self, lower: NDArray[Any], upper: NDArray[Any]) -> NDArray[Any]:
        """Compute `lower op upper` in the memory of one of them, and return that."""
        if self.ufunc is not None:
            self.ufunc(lower, upper, out=lower)
            return lower
        if self._function is not None:
            self._function(
                lower.view(np.uint8).view(buffer),
                upper.view(np.uint8).view(buffer),
                _datatype_of(upper.dtype),
            )
            return upper
        if self.name == "NO_OP":
            return lower
        if self.name == "REPLACE":
            return upper
        if self.name in ("MAXLOC", "MINLOC") and lower.dtype.names is not None:
            (value, place), better = lower.dtype.names, np.greater if self.name == "MAXLOC" else np.less
            take = better(upper[value], lower[value])
            take |= (upper[value] == lower[value]) & (upper[place] < lower[place])
            lower[take] = upper[take]
            return lower
        raise TypeError(f"{self.name or 'a freed operation'} cannot combine these buffers")


def _datatype_of(dtype: np.dtype[Any]) -> Any:
    """Return the datatype that an operation made from a function is told."""
    return CODES.get(dtype.char, DATATYPES["BYTE"])


class _Foreign:
    """An operation of the real mpi4py, if that has been imported."""

    def __init__(self, op: Any) -> None:
        self._op = op
        self.name = "an operation of mpi4py"

    def into(self, lower: NDArray[Any], upper: NDArray[Any]) -> NDArray[Any]:
        self._op.Reduce_local(lower, upper)
        return upper


class _OnElements:
    """An operation made from a function, on a datatype: the function is given elements as they lie in memory."""

    def __init__(self, op: Any, layout: Layout) -> None:
        self.name, self._function, self._layout = op.name, op._function, layout

    def into(self, lower: NDArray[Any], upper: NDArray[Any]) -> NDArray[Any]:
        layout, datatype = self._layout, find_datatype(self._layout)
        packed = upper.view(np.uint8)
        if layout.dense or layout.extent <= 0 or layout.true_bounds[0] < 0:
            self._function(lower.view(np.uint8).view(buffer), packed.view(buffer), datatype)
            return upper
        count = packed.nbytes // layout.size
        nbytes = count * layout.extent  # which the last element may exceed
        first, second = (np.zeros(nbytes + layout.true_bounds[1], np.uint8) for _ in range(2))
        layout.unpack(lower.view(np.uint8), first, 0, count)
        layout.unpack(packed, second, 0, count)
        self._function(first[:nbytes].view(buffer), second[:nbytes].view(buffer), datatype)
        packed[:] = layout.pack(second, 0, count)
        return upper


def check_op(op: Any, kind: str, layout: Layout | None = None, *, one_sided: bool = False) -> Any:
    """Return an operation that can combine elements of this kind and layout, or raise."""
    op = SUM if op is None else op
    if not isinstance(op, Op):
        if hasattr(op, "Reduce_local"):
            return _Foreign(op)
        raise TypeError(f"op must be an MPI.Op; got {type(op).__name__}")
    if not op:
        raise mpi_error("ERR_OP", "op must be an operation; got a null or freed one")
    if layout is not None:
        if not op.Is_predefined():
            return _OnElements(op, layout)
        if layout.combiner != COMBINER_NAMED:
            raise mpi_error("ERR_OP", f"{op.name} cannot combine elements of a derived datatype")
    if op.name in FOR_WINDOWS and not one_sided:
        raise mpi_error("ERR_OP", f"{op.name} is only for one-sided calls")
    if ("," if "," in kind else kind[0]) not in COMBINED.get(op.name, kind):
        raise mpi_error("ERR_OP", f"{op.name} cannot combine elements of type {kind}")
    return op


OPERATIONS = {name: Op(name) for name in OF_OBJECTS} | {"OP_NULL": Op()}
constants.update(OPERATIONS)
SUM = OPERATIONS["SUM"]


def combine_all(rows: Sequence[Any], op: Any, kind: str) -> memoryview:
    """Combine the contributions of all ranks in rank order, and return the bytes.

    >>> combine_all([np.array([1, 2]), np.array([3, 4])], SUM, "i8").cast("q").tolist()
    [4, 6]
    """
    value = None
    for value in prefixes(rows, op, kind):  # noqa: B007 (only the last one is used)
        pass
    assert value is not None
    return memoryview(value.view(np.uint8))  # type: ignore[arg-type]


def prefixes(rows: Sequence[Any], op: Any, kind: str) -> Iterator[NDArray[Any]]:
    """Yield the first contribution, the first two combined, the first three … each overwritten by the next."""
    dtype = np.dtype(kind)
    sofar = np.frombuffer(rows[0], dtype).copy()
    yield sofar
    ufunc = getattr(op, "ufunc", None)
    with np.errstate(all="ignore"):
        for row in rows[1:]:
            upper = np.frombuffer(row, dtype)
            if ufunc is not None:
                ufunc(sofar, upper, out=sofar)
            elif sofar.size:
                sofar = op.into(sofar, upper.copy())
            yield sofar


# ---- collectives

Finish = Callable[[list[Any]], Sequence[Any]]


class CollectiveBase:
    """The common part of a communicator's collective calls."""

    __slots__ = ()
    rank: int
    size: int
    kernel: Any
    me: Any

    def _meet(
        self, name: str, send: BufferMemory | None, finish: Finish, *, into: BufferMemory | None,
        arguments: tuple[Any, ...], nbytes: Any, also: Any = None, take: Callable[[Any], None] | None = None,
    ) -> CollectiveRequest:  # fmt: skip
        """Contribute `send`, and write the result to `into`, with `take` if that is given.

        `also`: contributed together with the bytes.
        """
        memory = send if into is None else into
        if memory is not None and lacks_contents(self.kernel, name, memory):
            return meet(
                self, name, None, lambda given: [None] * self.size, arguments=arguments, nbytes=nbytes
            )
        if take is None and into is not None:
            take = into.write
        given: Any = None if send is None else send.view
        if name[0] == "I":  # a rank that does not wait may change its buffer
            given = None if send is None else send.read()
            if self.kernel.strict and not (into is not None and into.elements is not None):
                take = _guard(send, given, into, take)
        return meet(
            self, name, given if also is None else (given, also), finish,
            arguments=arguments, nbytes=nbytes, take=take,
        )  # fmt: skip

    def _nodes(self) -> list[int]:
        """Return the node of each member."""
        comm: Any = self
        node = self.kernel.wires.node
        return [node[member] for member in comm.state.members]

    def _check_root(self, root: int) -> int:
        if not 0 <= root < self.size:
            raise mpi_error("ERR_ROOT", f"root must be one of the {self.size} ranks, from 0; got {root}")
        return int(root)

    def _check_same(self, name: str, send: BufferMemory, into: BufferMemory) -> None:
        if send.nbytes != into.nbytes or (send.kind != into.kind and send.nbytes):
            raise ValueError(
                f"{name} receives as much as it sends; got {send.nbytes} bytes of {send.kind} to send and "
                f"{into.nbytes} bytes of {into.kind} to receive into"
            )

    def _check_parts(self, name: str, part: BufferMemory, whole: BufferMemory) -> None:
        if part.nbytes * self.size != whole.nbytes or (part.kind != whole.kind and part.nbytes):
            raise ValueError(
                f"{name} of {part.nbytes} bytes of {part.kind} on each of {self.size} ranks needs a buffer of "
                f"{part.nbytes * self.size} bytes; got {whole.nbytes} bytes of {whole.kind}"
            )


# Calls in which every rank has a buffer of the same length, from which each can tell whether contents are transferred.
ALIKE = frozenset({"allreduce", "reduce", "bcast", "scan", "exscan"})


def lacks_contents(kernel: Any, name: str, memory: BufferMemory) -> bool:
    """Return True if a time-only simulation transfers no contents in this call."""
    if kernel.carries is None:
        return False
    alike = name.lower() in ALIKE or (name[0] == "I" and name[1:] in ALIKE)
    return alike and not kernel.carries(memory.kind, memory.nbytes)


def signature(memory: BufferMemory) -> tuple[tuple[str, Any], ...]:
    """Return the length and type on which ranks must agree; an empty buffer matches any type."""
    return ("bytes", memory.nbytes), ("type", memory.kind if memory.nbytes else "any")


def give_root(root: int, result: Any, size: int) -> list[Any]:
    """Return the results of all ranks, of which only the root has one."""
    found: list[Any] = [None] * size
    found[root] = result
    return found


def _guard(
    send: BufferMemory | None,
    data: bytes | None,
    into: BufferMemory | None,
    take: Callable[[Any], None] | None,
) -> Callable[[Any], None]:
    """Check that the send buffer is not written, and the receive buffer not used, until the call completes."""
    if send is not None and into is not None and np.may_share_memory(send.flat(), into.flat()):
        send = None
    kept = b"" if into is None else into.read()
    if into is not None:
        into.write(poison(into.nbytes))

    def check(result: Any) -> None:
        changed = send is not None and send.view.tobytes() != data
        if into is not None:
            changed |= into.view.tobytes() != poison(into.nbytes)
            into.write(kept)
        if changed:
            raise BufferChanged("was changed before the call had completed")
        if take is not None:
            take(result)

    return check


class Reductions(CollectiveBase):
    """Reduce and its relatives. Contributions are combined in the order of the ranks."""

    __slots__ = ()

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Any = None, root: int = 0) -> None:
        self._reduce("Reduce", sendbuf, recvbuf, op, root).Wait()

    def Ireduce(self, sendbuf: Any, recvbuf: Any, op: Any = None, root: int = 0) -> CollectiveRequest:
        return self._reduce("Ireduce", sendbuf, recvbuf, op, root)

    def _reduce(self, name: str, sendbuf: Any, recvbuf: Any, op: Any, root: int) -> CollectiveRequest:
        root = self._check_root(root)
        into = BufferMemory(recvbuf, writing=True) if self.rank == root else None
        return self._combine(
            name, sendbuf, into, op, lambda made, given, kind: give_root(root, combine_all(given, made, kind), self.size),
            (("root", root),),
        )  # fmt: skip

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Any = None) -> None:
        self._allreduce("Allreduce", sendbuf, recvbuf, op).Wait()

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: Any = None) -> CollectiveRequest:
        return self._allreduce("Iallreduce", sendbuf, recvbuf, op)

    def _allreduce(self, name: str, sendbuf: Any, recvbuf: Any, op: Any) -> CollectiveRequest:
        return self._combine(
            name, sendbuf, BufferMemory(recvbuf, writing=True), op,
            lambda made, given, kind: [combine_all(given, made, kind)] * self.size,
        )  # fmt: skip

    def Scan(self, sendbuf: Any, recvbuf: Any, op: Any = None) -> None:
        self._scan("Scan", sendbuf, recvbuf, op).Wait()

    def Iscan(self, sendbuf: Any, recvbuf: Any, op: Any = None) -> CollectiveRequest:
        return self._scan("Iscan", sendbuf, recvbuf, op)

    def _scan(self, name: str, sendbuf: Any, recvbuf: Any, op: Any) -> CollectiveRequest:
        return self._combine(
            name, sendbuf, BufferMemory(recvbuf, writing=True), op,
            lambda made, given, kind: [sofar.tobytes() for sofar in prefixes(given, made, kind)],
        )  # fmt: skip

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: Any = None) -> None:
        self._exscan("Exscan", sendbuf, recvbuf, op).Wait()

    def Iexscan(self, sendbuf: Any, recvbuf: Any, op: Any = None) -> CollectiveRequest:
        return self._exscan("Iexscan", sendbuf, recvbuf, op)

    def _exscan(self, name: str, sendbuf: Any, recvbuf: Any, op: Any) -> CollectiveRequest:
        return self._combine(
            name, sendbuf, BufferMemory(recvbuf, writing=True), op,
            lambda made, given, kind: [None, *(sofar.tobytes() for sofar in prefixes(given[:-1], made, kind))]
            if len(given) > 1 else [None],
        )  # fmt: skip

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Any = None) -> None:
        self._reduce_scatter("Reduce_scatter_block", sendbuf, recvbuf, None, op).Wait()

    def Ireduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: Any = None) -> CollectiveRequest:
        return self._reduce_scatter("Ireduce_scatter_block", sendbuf, recvbuf, None, op)

    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Any = None
    ) -> None:
        self._reduce_scatter("Reduce_scatter", sendbuf, recvbuf, recvcounts, op).Wait()

    def Ireduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: Any = None
    ) -> CollectiveRequest:
        return self._reduce_scatter("Ireduce_scatter", sendbuf, recvbuf, recvcounts, op)

    def _reduce_scatter(
        self, name: str, sendbuf: Any, recvbuf: Any, counts: Sequence[int] | None, op: Any
    ) -> CollectiveRequest:
        in_place = is_in_place(sendbuf)
        blocks = self.size if "block" in name else 1  # a count is that of one of them
        into = BufferMemory(recvbuf, writing=True, blocks=blocks if in_place else 1)
        send = into if in_place else BufferMemory(sendbuf, writing=False, blocks=blocks)
        if send.nbytes and into.nbytes and send.kind != into.kind:
            raise ValueError(f"{name} cannot send {send.kind} and receive {into.kind}")
        if counts is None and "block" in name:
            each = block(send, 0, self.size).nbytes
            ends = [each * (rank + 1) for rank in range(self.size)]
        elif counts is None:
            ends = []  # each rank's own length, known when all have called
        else:
            each = send.itemsize
            ends = np.cumsum([int(count) * each for count in counts]).tolist()
        if ends and (len(ends) != self.size or ends[-1] != send.nbytes):
            raise ValueError(f"{name} of {send.nbytes} bytes cannot be cut into {self.size} parts {counts}")
        if counts is not None and send is not into and int(counts[self.rank]) * each != into.nbytes:
            raise ValueError(f"{name} of {counts[self.rank]} elements to this rank, into {into.nbytes} bytes")

        def finish(given: list[Any]) -> list[Any]:
            whole = combine_all([data for data, _ in given], op, send.kind)
            stops = ends or np.cumsum([length for _, length in given]).tolist()
            for rank, (start, stop) in enumerate(zip([0, *stops], stops, strict=False)):
                if stop - start > given[rank][1]:
                    raise Disagreement(
                        self.rank, f"assigns {stop - start} bytes to rank {rank}",
                        rank, f"receives {given[rank][1]}",
                    )  # fmt: skip
            return [whole[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]

        op = check_op(op, send.kind, send.layout)
        return self._meet(
            name, send, finish, into=into, arguments=(("op", op.name), *signature(send)), nbytes=send.nbytes,
            also=send.nbytes if send is into and not ends else into.nbytes,
        )  # fmt: skip

    def _combine(
        self, name: str, sendbuf: Any, into: BufferMemory | None, op: Any,
        make: Callable[[Any, list[Any], str], Sequence[Any]], arguments: tuple[Any, ...] = (),
    ) -> CollectiveRequest:  # fmt: skip
        if is_in_place(sendbuf):
            if into is None:
                raise ValueError(f"only the root of a {name} may use IN_PLACE")
            send = into
        else:
            send = BufferMemory(sendbuf, writing=False)
            if into is not None:
                if (
                    send.view.obj is into.view.obj
                    and send.nbytes
                    and np.shares_memory(send.flat(), into.flat())
                ):
                    raise mpi_error(
                        "ERR_BUFFER", f"{name} cannot combine what is in its result; pass MPI.IN_PLACE"
                    )
                self._check_same(name, send, into)
        op = check_op(op, send.kind, send.layout)
        return self._meet(
            name, send, lambda given: make(op, given, send.kind), into=into,
            arguments=(*arguments, ("op", op.name), *signature(send)), nbytes=send.nbytes,
        )  # fmt: skip


def _check(sender: int, sent: int, sent_kind: str, receiver: int, wanted: int, kind: str) -> None:
    """Raise if one rank does not send what another expects."""
    if sent != wanted or (sent and sent_kind != kind):
        raise Disagreement(
            sender, f"sends rank {receiver} {sent} bytes of {sent_kind}",
            receiver, f"expects {wanted} bytes of {kind} from rank {sender}",
        )  # fmt: skip


def _return_all(given: list[Any]) -> list[Any]:
    return given


class UnevenCollectives(CollectiveBase):
    """Gatherv, Scatterv, Allgatherv, Alltoallv, Alltoallw: parts of different lengths."""

    __slots__ = ()

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        self._gatherv("Gatherv", sendbuf, recvbuf, root).Wait()

    def Igatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> CollectiveRequest:
        return self._gatherv("Igatherv", sendbuf, recvbuf, root)

    def _gatherv(self, name: str, sendbuf: Any, recvbuf: Any, root: int) -> CollectiveRequest:
        root = self._check_root(root)
        parts = RankParts(recvbuf, self.size, writing=True) if self.rank == root else None
        send = parts.of(root) if parts and is_in_place(sendbuf) else BufferMemory(sendbuf, writing=False)

        def finish(given: list[Any]) -> list[Any]:
            wanted, kind = given[root][1][2:]
            for rank, (_, (sent, sent_kind, *_)) in enumerate(given):
                _check(rank, sent, sent_kind, root, wanted[rank], kind)
            return give_root(root, [data for data, _ in given], self.size)

        return self._meet_parts(
            name, send, finish, parts, (("root", root),),
            lambda sent: equal_part(sent, self._nodes(), root),
            (send.nbytes, send.kind, parts.lengths() if parts else None, parts.kind if parts else None),
        )  # fmt: skip

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        self._scatterv("Scatterv", sendbuf, recvbuf, root).Wait()

    def Iscatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> CollectiveRequest:
        return self._scatterv("Iscatterv", sendbuf, recvbuf, root)

    def _scatterv(self, name: str, sendbuf: Any, recvbuf: Any, root: int) -> CollectiveRequest:
        root = self._check_root(root)
        parts = RankParts(sendbuf, self.size, writing=False) if self.rank == root else None
        into = None if parts and is_in_place(recvbuf) else BufferMemory(recvbuf, writing=True)
        each = parts.of(root) if parts and into is None else into
        assert each is not None

        def finish(given: list[Any]) -> list[Any]:
            data, (*_, slices, kind) = given[root]
            for rank, (_, (wanted, wanted_kind, *_)) in enumerate(given):
                length = slices[rank].stop - slices[rank].start
                _check(root, length, kind, rank, wanted, wanted_kind)
            return [bytes(data[where]) for where in slices]

        return self._meet(
            name, parts.memory if parts else None, finish, into=into, arguments=(("root", root),),
            nbytes=lambda given: equal_part([also[0] for _, also in given], self._nodes(), root) * self.size,
            also=(
                each.nbytes, each.kind,
                parts.slices if parts else None, parts.kind if parts else None,
            ),
        )  # fmt: skip

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        self._allgatherv("Allgatherv", sendbuf, recvbuf).Wait()

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> CollectiveRequest:
        return self._allgatherv("Iallgatherv", sendbuf, recvbuf)

    def _allgatherv(self, name: str, sendbuf: Any, recvbuf: Any) -> CollectiveRequest:
        parts = RankParts(recvbuf, self.size, writing=True)
        send = parts.of(self.rank) if is_in_place(sendbuf) else BufferMemory(sendbuf, writing=False)

        def finish(given: list[Any]) -> list[Any]:
            for receiver, (_, (_, _, wanted, kind)) in enumerate(given):
                for rank, (_, (sent, sent_kind, *_)) in enumerate(given):
                    _check(rank, sent, sent_kind, receiver, wanted[rank], kind)
            rows = [bytes(data) for data, _ in given]
            return [rows] * self.size

        return self._meet_parts(
            name, send, finish, parts, (), lambda sent: equal_part(sent, self._nodes()),
            (send.nbytes, send.kind, parts.lengths(), parts.kind),
        )  # fmt: skip

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        self._alltoallv("Alltoallv", sendbuf, recvbuf).Wait()

    def Ialltoallv(self, sendbuf: Any, recvbuf: Any) -> CollectiveRequest:
        return self._alltoallv("Ialltoallv", sendbuf, recvbuf)

    def Alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        self._alltoallv("Alltoallw", sendbuf, recvbuf).Wait()

    def Ialltoallw(self, sendbuf: Any, recvbuf: Any) -> CollectiveRequest:
        return self._alltoallv("Ialltoallw", sendbuf, recvbuf)

    def _alltoallv(self, name: str, sendbuf: Any, recvbuf: Any) -> CollectiveRequest:
        types = name.endswith("w")
        parts = RankParts(recvbuf, self.size, writing=True, types=types)
        send = parts if is_in_place(sendbuf) else RankParts(sendbuf, self.size, writing=False, types=types)

        def finish(given: list[Any]) -> list[Any]:
            rows: list[list[bytes]] = [[] for _ in given]
            for sender, (data, (_, sent_kinds, slices, *_)) in enumerate(given):
                for receiver, where in enumerate(slices):
                    wanted, kinds = given[receiver][1][3:]
                    length = where.stop - where.start
                    _check(sender, length, sent_kinds[receiver], receiver, wanted[sender], kinds[sender])
                    rows[receiver].append(bytes(data[where]))
            return rows

        return self._meet_parts(
            name, send.memory, finish, parts, (), lambda sent: equal_parts(sent, self._nodes()),
            (send.lengths(), send.kinds, send.slices, parts.lengths(), parts.kinds),
        )  # fmt: skip

    def _meet_parts(
        self, name: str, send: BufferMemory, finish: Callable[[list[Any]], list[Any]], parts: RankParts | None,
        arguments: tuple[Any, ...], weigh: Callable[[list[Any]], int], also: tuple[Any, ...],
    ) -> CollectiveRequest:  # fmt: skip
        """Meet with parts of different lengths. `weigh` is given the first of what each rank adds in `also`."""
        return self._meet(
            name, send, finish, into=parts.memory if parts else None, take=parts.take if parts else None,
            arguments=arguments, nbytes=lambda given: weigh([added[0] for _, added in given]), also=also,
        )  # fmt: skip


class CollectiveCalls(Reductions, UnevenCollectives):
    """The collective calls of a communicator; those that begin with I do not wait."""

    __slots__ = ()

    def Barrier(self) -> None:
        meet(self, "Barrier", None, _return_all).Wait()

    def Ibarrier(self) -> CollectiveRequest:
        return meet(self, "Ibarrier", None, _return_all)

    # ---- one to all, all to one

    def Bcast(self, buf: Any, root: int = 0) -> None:
        self._bcast("Bcast", buf, root).Wait()

    def Ibcast(self, buf: Any, root: int = 0) -> CollectiveRequest:
        return self._bcast("Ibcast", buf, root)

    def _bcast(self, name: str, buf: Any, root: int) -> CollectiveRequest:
        root = self._check_root(root)
        mine = self.rank == root
        memory = BufferMemory(buf, writing=not mine)
        return self._meet(
            name,
            memory if mine else None,
            lambda given: [bytes(given[root])] * self.size,
            into=None if mine else memory,
            arguments=(("root", root), *signature(memory)),
            nbytes=memory.nbytes,
        )

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        self._gather("Gather", sendbuf, recvbuf, root).Wait()

    def Igather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> CollectiveRequest:
        return self._gather("Igather", sendbuf, recvbuf, root)

    def _gather(self, name: str, sendbuf: Any, recvbuf: Any, root: int) -> CollectiveRequest:
        root = self._check_root(root)
        into = None
        if self.rank == root:
            into = equal_blocks(recvbuf, self.size, writing=True)
            send = (
                block(into, root, self.size) if is_in_place(sendbuf) else BufferMemory(sendbuf, writing=False)
            )
            self._check_parts(name, send, into)
        else:
            send = BufferMemory(sendbuf, writing=False)

        def finish(given: list[Any]) -> list[Any]:
            return give_root(root, b"".join(given), self.size)

        return self._meet(
            name, send, finish, into=into, arguments=(("root", root), *signature(send)), nbytes=send.nbytes
        )

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        self._scatter("Scatter", sendbuf, recvbuf, root).Wait()

    def Iscatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> CollectiveRequest:
        return self._scatter("Iscatter", sendbuf, recvbuf, root)

    def _scatter(self, name: str, sendbuf: Any, recvbuf: Any, root: int) -> CollectiveRequest:
        root = self._check_root(root)
        send = into = None
        if self.rank == root:
            send = equal_blocks(sendbuf, self.size, writing=False)
        if send is not None and is_in_place(recvbuf):
            each = block(send, root, self.size)
        else:
            each = into = BufferMemory(recvbuf, writing=True)
            if send is not None:
                self._check_parts(name, into, send)
        nbytes = each.nbytes

        def finish(given: list[Any]) -> list[Any]:
            whole = bytes(given[root])
            return [whole[rank * nbytes : (rank + 1) * nbytes] for rank in range(self.size)]

        return self._meet(
            name,
            send,
            finish,
            into=into,
            arguments=(("root", root), *signature(each)),
            nbytes=nbytes * self.size,
        )

    # ---- all to all

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        self._allgather("Allgather", sendbuf, recvbuf).Wait()

    def Iallgather(self, sendbuf: Any, recvbuf: Any) -> CollectiveRequest:
        return self._allgather("Iallgather", sendbuf, recvbuf)

    def _allgather(self, name: str, sendbuf: Any, recvbuf: Any) -> CollectiveRequest:
        into = equal_blocks(recvbuf, self.size, writing=True)
        send = (
            block(into, self.rank, self.size)
            if is_in_place(sendbuf)
            else BufferMemory(sendbuf, writing=False)
        )
        self._check_parts(name, send, into)

        def finish(given: list[Any]) -> list[Any]:
            return [b"".join(given)] * self.size

        return self._meet(name, send, finish, into=into, arguments=signature(send), nbytes=send.nbytes)

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        self._alltoall("Alltoall", sendbuf, recvbuf).Wait()

    def Ialltoall(self, sendbuf: Any, recvbuf: Any) -> CollectiveRequest:
        return self._alltoall("Ialltoall", sendbuf, recvbuf)

    def _alltoall(self, name: str, sendbuf: Any, recvbuf: Any) -> CollectiveRequest:
        into = equal_blocks(recvbuf, self.size, writing=True)
        send = into if is_in_place(sendbuf) else equal_blocks(sendbuf, self.size, writing=False)
        self._check_same(name, send, into)
        each = into.nbytes // self.size

        def finish(given: list[Any]) -> list[Any]:
            table = np.frombuffer(b"".join(given), np.uint8).reshape(self.size, self.size, each)
            return [table[:, rank].tobytes() for rank in range(self.size)]

        return self._meet(name, send, finish, into=into, arguments=signature(into), nbytes=into.nbytes)
