"""The state of the whole server, from which it continues on the same or on another number of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.strategies.parameter_server._pieces import PieceState

if TYPE_CHECKING:
    from paceline.strategies.parameter_server._master import Master
    from paceline.worker import Worker

Array = NDArray[Any]
# The name of a rank's part of it in a checkpoint.
NAME = "server"


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
    losses: Sequence[Sequence[float]] = ()
    """Step, loss and count of batches whose losses master 0 does not know yet."""

    @classmethod
    def of(cls, me: Worker) -> Saved | None:
        """Return the state from which a run is resumed, as far as this rank needs it; None if it is not resumed."""
        resumption = me.resumption
        if resumption is None:
            return None
        parts = [state["kept"].get(NAME, {}) for state in resumption.states]
        chief = parts[0].get("chief")
        if chief is None:  # all that is known is a trained model
            count = resumption.first["position"]["epoch"] * me.steps_per_epoch
            return cls([PieceState(0, me.model.x.size, arrivals=count)], np.arange(me.steps) < count)
        dealt = np.unpackbits(chief["dealt"]).astype(bool)[: me.steps]
        if resumption.same_ranks:
            parts = [parts[resumption.own]]
        pieces = [PieceState(**piece) for part in parts for piece in part.get("pieces", ())]
        known = resumption.same_ranks or me.rank == 0  # by the worker that computed them, or else by master 0
        losses = [part["last"] for part in parts if known and part.get("last", (-1,))[0] >= 0]
        ends = resumption.first["kept"][NAME]["ends"]
        return cls(pieces, dealt, chief, ends, losses)

    def give(self, master: Master) -> None:
        """Let a master continue from here."""
        me, chief = master.me, master.chief
        complete = master.resume(self.pieces)
        if chief is None:
            return
        count = int(self.dealt.sum())
        if self.chief is not None:
            chief.resume(self.chief)
        for step, loss, samples in self.losses:
            chief.loss(-1, int(step), loss, int(samples), np.empty(0))
        me.findings.setdefault("resumed", []).append(
            {"gradients": count, "lost_later_updates": not self.ends}
        )
        lost = "" if self.ends else "; updates after that checkpoint were lost"
        anew = "" if complete else "; the state of the masters' rule started anew"
        me.remarks.append(f"resumed after {count:,} of {me.steps:,} gradients{lost}{anew}")
