"""The state of the whole server, from which it continues on the same or on other ranks.

    after a checkpoint      from a consistent cut of all masters
    when ranks have died    from what the survivors have: every master's pieces as they are

When ranks die, gradients may be on their way, or may have been applied by some masters only. A batch counts as done if
all surviving masters have its gradient. All others are dealt again, and a master that has already applied one skips it:
every master applies the gradient of every batch once. The part of a dead master continues from the values that a worker
received from it last, with the states of rule and update of the last checkpoint, if there is one.
"""

from __future__ import annotations

import io
import math
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline import text
from paceline.comm import mpi_of
from paceline.comm.control import broadcast_bytes
from paceline.errors import UsageError
from paceline.record import Epoch, Run
from paceline.record import checkpoint as files
from paceline.record.checkpoint import State, pack, unpack
from paceline.strategies.parameter_server._pieces import Piece, PieceState
from paceline.worker.checkpoints import understand_state

if TYPE_CHECKING:
    from paceline.strategies.parameter_server._master import Master
    from paceline.worker import Resumption, Worker

Array = NDArray[Any]
# The name of a rank's part of it in a checkpoint.
NAME = "server"
# The batches of a worker whose losses master 0 may not know yet.
RECENT = 3


@dataclass
class Saved:
    """What the ranks of a server know of a cut; the parameters and buffers are in every rank's model."""

    pieces: Sequence[PieceState]
    """Those that this master needs: its own, or all of them."""
    dealt: Array
    """The batches that have been dealt (True), and whose gradients have been applied."""
    chief: dict[str, Any] | None = None
    """The state of master 0's extra duties."""
    ends: bool = True
    """True if no update was made after the cut."""
    epochs: int = 0
    """The number of epochs whose ends have been reported to master 0."""
    losses: Sequence[Sequence[float]] = ()
    """Step, loss and count of batches whose losses master 0 may not know yet."""
    survived: bool = False
    """True if ranks have died; otherwise the run is resumed from a checkpoint."""
    first_loss: float = math.inf
    """The mean loss at the beginning of the run; infinite if it is not known."""

    @classmethod
    def of(cls, me: Worker) -> Saved | None:
        """Return the state from which a run is resumed, as far as this rank needs it; None if it is not resumed."""
        if me.resumption is None:
            return None
        with understand_state():
            return cls._read(me, me.resumption)

    @classmethod
    def _read(cls, me: Worker, resumption: Resumption) -> Saved:
        parts = [state["kept"].get(NAME, {}) for state in resumption.states]
        chief = parts[0].get("chief")
        if chief is None:  # all that is known is a trained model
            epochs = resumption.first["position"]["epoch"]
            count = epochs * me.steps_per_epoch
            return cls(
                [PieceState(0, me.model.x.size, arrivals=count)], np.arange(me.steps) < count, epochs=epochs
            )
        dealt = np.zeros(me.steps, bool)
        bits = np.unpackbits(chief["dealt"])[: me.steps]
        dealt[: bits.size] = bits
        first_loss = float(chief.get("first_loss", math.inf))
        if resumption.same_ranks:
            parts = [parts[resumption.own]]
        pieces = [PieceState.of(piece) for part in parts for piece in part.get("pieces", ())]
        if "losses" in parts[0]:
            losses = [row for row in parts[0]["losses"] if me.rank == 0]
            return cls(pieces, dealt, chief, True, parts[0]["epochs"], losses, True, first_loss)
        known = resumption.same_ranks or me.rank == 0  # by the worker that computed them, or else by master 0
        last = [tuple(map(float, part.get("last", (-1, 0, 0)))) for part in parts if known]
        losses = [(step, loss, count) for step, loss, count in last if step >= 0]
        if any(step not in range(me.steps) or count < 1 for step, _, count in losses):
            raise ValueError(f"the last batch of a worker is {losses}")
        ends, count = bool(resumption.first["kept"][NAME]["ends"]), int(dealt.sum())
        if any(one.arrivals - len(one.skip) != count for one in pieces):
            raise ValueError(f"a master has not had the {count:,} gradients that were dealt")
        return cls(pieces, dealt, chief, ends, count // me.steps_per_epoch, losses, False, first_loss)

    def restore(self, master: Master) -> None:
        """Make a master continue from this state."""
        me, chief = master.me, master.chief
        with understand_state():
            complete = master.resume(self.pieces, self.dealt, self.epochs)
            if chief is None:
                return
            count = int(self.dealt.sum())
            if self.chief is not None:
                chief.resume(self.chief, self.epochs)
            for step, loss, samples in self.losses:
                chief.record_loss(-1, int(step), loss, int(samples), np.empty(0))
            if self.survived:
                chief.count_lost(np.flatnonzero(self.dealt).tolist())
                return
        me.findings.setdefault("resumed", []).append(
            {"gradients": count, "lost_later_updates": not self.ends}
        )
        lost = "" if self.ends else "; updates after that checkpoint were lost"
        anew = "" if complete else "; the state of the masters' rule started anew"
        me.remarks.append(f"resumed after {count:,} of {me.steps:,} gradients{lost}{anew}")


# ---- when ranks have died


@dataclass
class WorkerMemory:
    """What a worker remembers in case that masters die."""

    before: Array | None = None
    """The batches whose gradients had been applied when the run was resumed; None if it was not."""
    first_loss: float = math.inf
    """The mean loss at the beginning of the run; infinite if it is not known."""
    done: array[int] = field(default_factory=lambda: array("q"))
    """This worker's batches whose gradients all masters have applied; batches of all would take too much memory."""
    losses: deque[tuple[float, float, float]] = field(default_factory=lambda: deque(maxlen=RECENT))
    """Step, loss and count of its last batches."""
    acknowledged: int = 0
    """The number of its batches that all masters have answered."""
    received: float = -1.0
    """When it last received values, in seconds since the start of the run."""


@dataclass
class Survival:
    """Rebuilds the state of the server from what the surviving ranks have."""

    me: Worker
    pieces: Sequence[Piece]
    memory: WorkerMemory
    master: Master | None

    def __call__(self, comm: Any, alive: Sequence[int], state: State, run: Path | None) -> str:
        """Complete this rank's `state` for the survivors; return what was lost, in words. Collective on them.

        `alive`: the earlier numbers of the ranks of `comm`; `run`: the folder of the run.
        """
        me, size = self.me, comm.Get_size()
        masters = {piece.master for piece in self.pieces}
        given = {}
        for root, rank in enumerate(alive):
            if rank in masters:
                mine = (
                    self.master.describe_pieces()
                    if self.master is not None and root == comm.Get_rank()
                    else None
                )
                given[rank] = _broadcast(comm, mine, root)
        x = np.array(me.model.x)
        owned = {rank: [piece for piece in self.pieces if piece.master == rank] for rank in given}
        for rank, theirs in given.items():
            for piece, values in zip(owned[rank], theirs["x"], strict=True):
                x[piece.part] = values
        seen = {
            piece.number: np.unpackbits(bits)[: me.steps].astype(bool)
            for rank, theirs in given.items()
            for piece, bits in zip(owned[rank], theirs["seen"], strict=True)
        }
        done = np.logical_and.reduce(list(seen.values())) if seen else self._find_done(comm)
        states = []
        for rank, theirs in given.items():
            for piece, one in zip(owned[rank], theirs["pieces"], strict=True):
                skip = np.flatnonzero(seen[piece.number] & ~done).tolist()
                states.append(PieceState(**{**one, "skip": skip}))
        lost = [piece for piece in self.pieces if piece.master not in given]
        words = self._restore(comm, lost, states, x, int(done.sum()), run) if lost else ""
        recent = np.full((RECENT, 3), -1.0)
        recent[: len(self.memory.losses)] = list(self.memory.losses) or np.empty((0, 3))
        every = np.empty((size * RECENT, 3))
        comm.Allgather(recent, every)
        chief = given[0]["chief"] if 0 in given else self._new_chief(comm, run)
        count, spent = int(done.sum()), int(np.unpackbits(chief["dealt"]).sum())
        epochs = max(one.arrivals for one in states) // me.steps_per_epoch
        state["x"] = x
        state["epochs"] = me.epochs_ended
        state["position"] = {**state["position"], **_position(count, me.steps_per_epoch)}
        state["kept"][NAME] = {
            "pieces": [vars(one) for one in states],
            "chief": {**chief, "dealt": np.packbits(done)},
            "epochs": epochs,
            "losses": [row for row in every.tolist() if row[0] >= 0 and done[int(row[0])]],
        }
        again = f"{text.count(spent - count, 'batch', 'es')} dealt again" if spent > count else ""
        return "; ".join(part for part in (again, words) if part)

    def _find_done(self, comm: Any) -> Array:
        """Return the batches that surviving workers know to be done; there is no master that could know."""
        known, counts = np.zeros((2, self.me.steps), np.uint8)
        if self.memory.before is not None:
            known[:] = self.memory.before
        known[np.array(self.memory.done, np.intp)] = 1
        comm.Allreduce(known, counts, mpi_of(comm).MAX)
        return counts > 0

    def _restore(
        self,
        comm: Any,
        lost: Sequence[Piece],
        states: list[PieceState],
        x: Array,
        count: int,
        run: Path | None,
    ) -> str:
        """Restore the pieces of dead masters; return what was done, in words."""
        times = np.empty(comm.Get_size())
        comm.Allgather(np.array([self.memory.received]), times)
        values = np.array(self.me.model.x)
        comm.Bcast(values, root=int(times.argmax()))
        wanted = [[piece.part.start, piece.part.stop] for piece in lost]
        first = comm.Get_rank() == 0
        found = _broadcast(comm, {"pieces": _saved_pieces(run, wanted)} if first else None, 0)["pieces"]
        known = {(one["start"], one["stop"]): one for one in found}
        halved = min([one.halved for one in states], default=1.0)
        version = max([one.version for one in states], default=count)
        for piece in lost:
            x[piece.part] = values[piece.part]
            before = known.get((piece.part.start, piece.part.stop), {})
            arrays = {name: array for name, array in before.get("arrays", {}).items() if name != "total"}
            restored = PieceState(
                piece.part.start, piece.part.stop, arrivals=count, version=version, arrays=arrays
            )
            restored.halved = min(halved, before.get("halved", 1.0))
            restored.good = before.get("good", False)
            states.append(restored)
        rest = "of the last checkpoint" if len(known) == len(lost) else "started anew"
        return (
            f"the part of {'master' if len({piece.master for piece in lost}) == 1 else 'masters'} "
            f"{text.join(sorted({piece.master for piece in lost}))} restored from the values that a worker had received "
            f"last, the state of its rule {rest}"
        )

    def _new_chief(self, comm: Any, run: Path | None) -> dict[str, Any]:
        """Return the state of a master 0 that takes the place of a dead one. Collective."""
        losses = np.empty(comm.Get_size())
        comm.Allgather(np.array([self.memory.first_loss]), losses)
        known = losses[np.isfinite(losses)]
        if comm.Get_rank() == 0 and run is not None:
            self.me.history[:] = [Epoch(**epoch) for epoch in Run(run).epochs]
        nothing = np.packbits(np.zeros(self.me.steps, bool))
        return {
            "dealt": nothing,
            "known": nothing,
            "done": 0,
            "first_loss": float(known.mean()) if known.size else math.inf,
            "sums": {},
            "waiting": {},
            "scores": {},
            "ended": {},
        }


def _position(count: int, per_epoch: int) -> dict[str, int]:
    epoch, turn = divmod(count, per_epoch)
    return {"epoch": epoch, "turn": turn, "count": count}


def _broadcast(comm: Any, value: State | None, root: int) -> State:
    """Return a state of rank `root` on every rank. Collective."""
    data = b""
    if value is not None:
        room = io.BytesIO()
        np.savez(room, **pack(value))  # type: ignore[arg-type]
        data = room.getvalue()
    with np.load(io.BytesIO(broadcast_bytes(comm, data, root=root)), allow_pickle=False) as arrays:
        return unpack(arrays)


def _saved_pieces(run: Path | None, wanted: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """Return the states of pieces, given by start and stop, in the latest checkpoint that has them."""
    found: dict[tuple[int, int], tuple[int, dict[str, Any]]] = {}
    if run is None:
        return []
    for rank in files.saved_ranks(run):
        for number in files.numbers(run, rank)[:1]:
            try:
                state = files.read(run, rank, number)
            except UsageError:  # it is damaged
                continue
            for piece in state["kept"].get(NAME, {}).get("pieces", ()):
                place = (piece["start"], piece["stop"])
                if list(place) in list(map(list, wanted)) and found.get(place, (-1,))[0] < number:
                    found[place] = (number, piece)
    return [piece for _, piece in found.values()]
