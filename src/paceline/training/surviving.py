"""Runs that go on when ranks die (`--tolerate-failures`), with MPI's user-level failure mitigation (ULFM).

A call that needs a dead rank fails. The rank that notices it revokes the run's communicators, so that the calls of all
others fail too; the survivors make a communicator of their own, agree on the last state that all of them have, and train
on from there as if the run were resumed on fewer ranks:

strategies in step        from the state after the last exchange that all survivors have completed
parameter-server          from what the surviving masters have; see `paceline.strategies.parameter_server`
others                    each from the state in which it is

What was left of the dead rank's batches in the epoch is divided among the survivors, except where every rank has data
of its own for the whole run (psgd).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline import text
from paceline.comm import is_revoked, mpi_of, revoke
from paceline.record.checkpoint import State, copied
from paceline.record.rows import renumber
from paceline.training.job import Job
from paceline.worker import Resumption, Worker
from paceline.worker.checkpoints import brief_state

if TYPE_CHECKING:
    from paceline.training.rank import Fitted, RankEnvironment

log = logging.getLogger(__name__)
# A rank may be ahead of another by this many states; those of strategies that are saved alone are not compared.
ANY = -1


@dataclass(frozen=True)
class Loss:
    """The death of some ranks, and what the survivors did."""

    ranks: tuple[int, ...]
    """Their numbers at the start of the run."""
    epoch: int
    turn: int
    """The position from which the survivors went on."""
    redone: int
    """The most batches that a survivor computes again."""
    left: int
    """The number of survivors."""
    noticed: float
    """When a survivor noticed it, in seconds since 1970."""
    seconds: float = 0.0
    """How long the survivors took to go on."""
    lost: str = ""
    """What else was lost or done, in words."""

    def __str__(self) -> str:
        who = f"rank{'s' * (len(self.ranks) > 1)} {text.join(self.ranks)} died"
        again = f"; at most {text.count(self.redone, 'batch', 'es')} computed again" if self.redone else ""
        left = text.count(self.left, "rank")
        also = f"; {self.lost}" if self.lost else ""
        return f"{who} in epoch {self.epoch + 1}: {left} went on from batch {self.turn} of it{again}{also}"


def train_surviving(
    place: RankEnvironment, job: Job, attempt: Callable[[RankEnvironment, Job], Fitted]
) -> Fitted:
    """Run one rank's part of a job; when other ranks die, go on with those that are left."""
    numbers = list(range(place.comm.Get_size()))  # of the ranks, at the start of the run
    losses: list[Loss] = []
    me: Worker | None = None
    while True:
        fitted, noticed = None, 0.0
        try:
            fitted = attempt(place, job)
        except Exception as error:
            noticed = time.time()
            if not is_failure(error, place.comm, place.worker) or not _can_go_on(place, me):
                raise
        me = place.worker or me
        assert me is not None
        if fitted is None:
            me.revoke()
            with suppress(Exception):  # another rank may have done so
                revoke(place.comm)
        # Some may have ended before others have noticed a death.
        complete, deaths = agree(place.comm, fitted is not None)
        if complete and fitted is not None:
            if deaths:  # of ranks whose work was done
                place.without(place.comm.Shrink(), ())
            return fitted
        place, numbers = recover(place, me, numbers, losses, noticed or time.time())
        job = replace(job, resume=place.run, data=me.data, survivors=True)


def _can_go_on(place: RankEnvironment, before: Worker | None) -> bool:
    """Return True if this rank has a state to go on from, also before it has begun to go on after an earlier death."""
    if place.worker is not None:
        return True
    return before is not None and place.resumption is not None and before.keeper.saves != "itself"


def agree(comm: Any, flag: bool) -> tuple[bool, int]:
    """Return, on all living ranks, whether it is true on all of them, and how many are dead. Collective."""
    while True:
        try:
            dead = comm.Ack_failed()
            return bool(comm.Agree(int(flag))), int(dead)
        except Exception as error:  # not all knew of a death
            if not is_failure(error, comm):
                raise


def is_failure(error: Exception, comm: Any, me: Worker | None = None) -> bool:
    """Return True if a call failed because a rank has died, or because another rank has noticed that.

    An error of several requests does not say which of them failed, nor why: what this rank knows of `comm`, and of the
    communicators of the worker `me`, does.
    """
    kind = getattr(error, "Get_error_class", None)
    if kind is None:
        return False
    MPI = mpi_of(comm)
    if kind() in (MPI.ERR_IN_STATUS, MPI.ERR_PENDING):
        if me is not None and me.is_revoked():
            return True
        return is_revoked(comm) or comm.Get_failed().Get_size() > 0
    names = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")
    return kind() in {getattr(MPI, name) for name in names if hasattr(MPI, name)}


def recover(
    place: RankEnvironment, me: Worker, numbers: list[int], losses: list[Loss], noticed: float
) -> tuple[RankEnvironment, list[int]]:
    """Return the environment of this rank among the survivors, with the state from which it goes on."""
    before, comm = place.comm, place.comm
    for table in me.logs.values():
        table.flush()
    states = _states(place, me)
    known = np.full(7, ANY, np.int64)
    known[0] = before.Get_rank()
    known[1 : 1 + len(states)] = [state["moment"] for state in states]
    position = states[-1]["position"]
    known[3:] = position["epoch"], position["turn"], position["count"], place.worker is not None
    while True:
        after = comm.Shrink()
        try:
            rows = np.empty((after.Get_size(), known.size), np.int64)
            after.Allgather(known, rows)
            alive = rows[:, 0].tolist()
            state, lost = states[-1], ""
            if me.regroup is not None:
                state = {**state, "kept": dict(state["kept"])}
                lost = me.regroup(after, alive, state, place.run)
        except Exception as error:  # another rank has died meanwhile
            if not is_failure(error, after):
                raise
            after.Revoke()
        if _all_have(after):
            dead = [rank for rank in range(before.Get_size()) if rank not in alive]
            order = [*alive, *dead]
            _renumber(place.run, me, order, after)
            if _all_have(after):  # all files have their new names
                break
            _renumber(place.run, me, [order.index(rank) for rank in range(len(order))], after)
        comm = after
    began = bool(rows[:, 6].all())
    if not began:  # another death before all could go on: they go back to where they wanted to go on from
        assert place.resumption is not None
        state = place.resumption.first
    elif me.keeper.saves == "together":
        common = set.intersection(
            *({moment for moment in row if moment != ANY} for row in rows[:, 1:3].tolist())
        )
        if not common:
            raise RuntimeError(f"the ranks {text.join(alive)} have no common state to go on from")
        state = next(state for state in states if state["moment"] == max(common))
    found = place.without(after, [numbers[rank] for rank in dead])
    found.run = place.run
    divided = before.Get_size()
    if began:
        epoch, turns = _left(me, state, rows, divided)
        state = _completed(state, me, epoch)
    else:
        assert place.resumption is not None
        epoch, divided = state["position"]["epoch"], place.resumption.ranks
        turns = None if place.part is not None else place.resumption.turns
    if turns is None:  # every rank keeps its part of the data
        found.part = place.part or (before.Get_rank(), before.Get_size())
    found.resumption = Resumption([state], own=0, ranks=divided, turns=turns or ())
    redone = int((rows[:, 5] - state["position"]["count"]).max()) if me.keeper.saves == "together" else 0
    loss = Loss(
        ranks=tuple(numbers[rank] for rank in dead), epoch=epoch, turn=state["position"]["turn"],
        redone=max(0, redone), left=len(alive), noticed=noticed, lost=lost,
    )  # fmt: skip
    losses.append(loss)
    found.losses = losses
    state["findings"] = {**state["findings"], "failures": [asdict(loss) for loss in losses]}
    # Earlier ones may have been known to a rank that died.
    state["remarks"] += [words for words in map(str, losses) if words not in state["remarks"]]
    if after.Get_rank() == 0:
        log.warning("%s", loss)
    return found, [numbers[rank] for rank in alive]


def _renumber(run: Path | None, me: Worker, order: Sequence[int], comm: Any) -> None:
    """On the first survivor, give the files of ranks the numbers of their places in `order`."""
    if run is not None and comm.Get_rank() == 0:
        for name in me.logs:
            renumber(run, name, order, ())


def _all_have(comm: Any) -> bool:
    """Return True, on every rank or on none, if none has died or been told so since this communicator was made."""
    try:
        return bool(comm.Agree(int(not comm.Is_revoked())))
    except Exception as error:
        if not is_failure(error, comm):
            raise
        return False


def _states(place: RankEnvironment, me: Worker) -> list[State]:
    """Return the states that this rank can go on from, the latest last."""
    if place.worker is None:  # it had not begun to go on after an earlier death
        assert place.resumption is not None
        return [{**place.resumption.first, "moment": 0}]
    keeper = me.keeper
    if keeper.memory:
        return list(keeper.memory)
    for work in keeper.before:
        work()
    return [copied({**brief_state(me), "moment": 0})]


def _left(me: Worker, state: State, rows: Any, ranks: int) -> tuple[int, tuple[int, ...] | None]:
    """Return the epoch to go on with, and the turns that each rank has had in it; None: their batches stay theirs."""
    epoch, turn = state["position"]["epoch"], state["position"]["turn"]
    if me.keeper.saves == "itself":
        return epoch, ()
    if me.keeper.saves == "together":
        return epoch, (turn,) * ranks
    if me.shares.has_own:
        return epoch, None
    epoch = int(rows[:, 3].min())
    done = {int(row[0]): int(row[4]) if row[3] == epoch else 1 << 30 for row in rows}
    least = min(done.values())
    return epoch, tuple(done.get(rank, least) for rank in range(ranks))


def _completed(state: State, me: Worker, epoch: int) -> State:
    """Return a state with the parts that only grow, as they were at its time."""
    ended = min(state["epochs"], epoch) if me.keeper.saves == "alone" else state["epochs"]
    history = [asdict(past) for past in me.history if past.epoch < ended]  # the others are evaluated again
    position = {**state["position"], "epoch": epoch}
    known = {"findings": me.findings, "remarks": list(me.remarks), "tables": me.tables}
    return {**state, **known, "position": position, "history": history}
