"""Checkpoints of a worker: what is saved, when, and how a rank goes on from a saved state.

A checkpoint is taken between two batches. A strategy declares how its ranks are saved (`Strategy.saves`):

"together"   at a common step. About every half second the ranks exchange a few numbers: has one of them been asked to
             stop, is a checkpoint due, and at which step do they exchange numbers again?
"alone"      each rank by its own clock, without waiting for others. The strategy calls `Worker.may_stop` where its ranks
             meet anyway, because a rank that has been asked to stop waits there for the others.
"itself"     the strategy calls `Worker.save` when its ranks are in a consistent state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from paceline.config import Interval
from paceline.errors import StoppedError, UsageError
from paceline.record import Epoch, RowLog, Table, truncate_logs
from paceline.record.checkpoint import Saver, State, copy_state, write
from paceline.record.schema import format_value

if TYPE_CHECKING:
    from paceline.worker.worker import Worker

Array = NDArray[Any]
# Completes a rank's state when ranks have died, given the survivors' communicator, their earlier numbers, the state and the
# run's folder; returns what was lost, in words.
Regroup = Callable[[Any, Sequence[int], State, Path | None], str]
Saves = Literal["together", "alone", "itself"]
# Seconds between two exchanges of numbers, and how much longer the next may take than the last one, in steps.
MEET, GROWTH = 0.5, 4
# Signals that ask a run to stop, as places in the numbers that ranks exchange.
SIGNALS = (2, 10, 15)
BUSY, FAILED, DUE, DISTANCE = range(len(SIGNALS), len(SIGNALS) + 4)


class Kept(SimpleNamespace):
    """Values of a strategy that belong to its state: arrays, numbers, texts, random generators, and dicts of them."""


@dataclass(frozen=True)
class Resumption:
    """The states from which a rank goes on: the part of each rank of the earlier run that it needs."""

    states: Sequence[State]
    """Of every earlier rank, if the number of ranks has changed; otherwise of rank 0 and of this rank."""
    own: int
    """The place of this rank's own state; -1 if the number of ranks has changed."""
    ranks: int
    """The number of earlier ranks."""
    turns: tuple[int, ...] = ()
    """The number of turns that each earlier rank has had in its epoch, if what is left of it is divided anew."""

    @property
    def first(self) -> State:
        """The state of rank 0."""
        return self.states[0]

    @property
    def same_ranks(self) -> bool:
        """True if the number of ranks has not changed."""
        return self.own >= 0

    def continue_log(self, table: str, log: RowLog, rank: int, ranks: int) -> None:
        """Continue a table of this rank where it was when its state was saved."""
        rows = [state["rows"].get(table) for state in self.states]
        if self.same_ranks:
            log.truncate(rows[self.own])
        else:
            truncate_logs(log, rank, ranks, rows)

    def find(self, *path: str) -> Any:
        """Return a value of this rank's own state or else of rank 0's; with other ranks, the mean over all of them."""
        if self.same_ranks:
            found = _follow(self.states[self.own], path)
            return _follow(self.first, path) if found is None else found
        return _mean([value for state in self.states if (value := _follow(state, path)) is not None])


def _follow(state: Any, path: Sequence[str]) -> Any:
    for name in path:
        if not isinstance(state, dict) or name not in state:
            return None
        state = state[name]
    return state


def _mean(values: list[Any]) -> Any:
    """Return the mean of arrays of floats, also inside dicts; of anything else, the first value."""
    if not values:
        return None
    first = values[0]
    if isinstance(first, dict):
        return {name: _mean([value[name] for value in values if name in value]) for name in first}
    if isinstance(first, np.ndarray) and first.dtype.kind == "f" and len(values) > 1:
        if all(np.array_equal(first, value) for value in values[1:]):
            return first
        return np.mean(values, axis=0, dtype=np.float64).astype(first.dtype)
    return first


def put(name: str, target: Any, saved: Any) -> Any:
    """Return a saved value in the form of `target`: arrays and generators are restored in place."""
    if isinstance(target, np.random.Generator):
        try:
            target.bit_generator.state = saved
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            raise UsageError(
                f"the checkpoint does not fit: {name} is no state of a random generator: {error}"
            ) from None
        return target
    if isinstance(target, np.ndarray):
        if not isinstance(saved, np.ndarray) or saved.shape != target.shape:
            raise UsageError(
                f"the checkpoint does not fit: {name} has {getattr(saved, 'shape', saved)}, not {target.shape}"
            )
        if not np.can_cast(saved.dtype, target.dtype, "same_kind"):
            raise UsageError(
                f"the checkpoint does not fit: {name} is of type {saved.dtype}, not {target.dtype}"
            )
        target[...] = saved
        return target
    for kinds in (bool, (int, float), str, dict):
        if isinstance(target, kinds):
            if not isinstance(saved, kinds) or isinstance(saved, bool) != isinstance(target, bool):
                raise UsageError(
                    f"the checkpoint does not fit: {name} is {format_value(saved)}, "
                    f"and should be like {format_value(target)}"
                )
            break
    if isinstance(target, dict):
        return {
            key: put(f"{name}.{key}", value, saved[key]) if key in saved else value
            for key, value in target.items()
        }
    return saved


@contextmanager
def understand_state() -> Iterator[None]:
    """Turn errors about saved values that are missing, or not of the expected kind, into a UsageError."""
    try:
        yield
    except UsageError:  # it says what does not fit
        raise
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise UsageError(f"the checkpoint does not fit: {type(error).__name__}: {error}") from error


class Keeper:
    """Decides between two batches whether this rank saves its state, or stops; `saver` None: nothing can be saved."""

    def __init__(self, me: Worker, saves: Saves | None, interval: Interval, saver: Saver | None) -> None:
        self.me, self.saves, self.interval, self.saver = me, saves, interval, saver
        self.before: list[Callable[[], object]] = []
        """Functions to call before a state is saved."""
        self.before_stop: list[Callable[[], object]] = []
        """Functions to call on every rank, once all have agreed to stop, before their states are saved."""
        self.asked = False
        """True if a rank that is saved alone must save its state when its batch has ended, whether that is due or not."""
        self.count = 0
        """The number of batches of this rank, in all epochs."""
        self.seconds = 0.0
        """Seconds for which training has stopped to save."""
        self._meet_at, self._distance = 1, 1
        self._clock = me.watch.clock
        self._met = self._saved = self._clock()
        self._met_count = 0
        self._copy: State | None = None
        self.memory: deque[State] | None = None
        """The states after the last two exchanges, to go back to when another rank dies; None: not kept."""
        self.every_step = False
        """True if ranks exchange something at every step."""
        self._spare: State | None = None
        self._exchanges, self._moments = -1, 0

    # ---- called by the worker

    def begin(self) -> None:
        """Handle the start of training."""
        if self.memory is not None:
            self._remember()

    def end_batch(self) -> None:
        """Handle the end of a batch."""
        self.count += 1
        if self.memory is not None:
            self._remember()
        if self.saves == "together":
            if self.count >= self._meet_at:
                self._meet(epoch_end=False)
        elif self.saves == "alone":
            if self.me.stop_asked:
                self.may_stop()
            elif (self.asked or self._is_due(epoch_end=False)) and not self._busy:
                self.asked = False
                self.save()

    def end_epoch(self) -> None:
        """Handle the end of an epoch that is not the last, after its evaluation."""
        if self.memory is not None:
            self._exchanges = -1
            self._remember()
        if self.saves == "together":
            self._meet(epoch_end=True)
        elif self.saves == "alone":
            if self.me.stop_asked:
                self.may_stop()
            elif self._is_due(epoch_end=True) and not self._busy:
                self.save()

    def may_stop(self) -> None:
        """Stop if a rank has been asked to: save on every rank and raise a StoppedError. Collective."""
        mine = np.zeros(len(SIGNALS))
        if self.me.stop_asked:
            mine[_place(self.me.stop_asked)] = 1
        votes = self.me.control.total(mine)
        if votes.any():
            self.stop(SIGNALS[int(votes.argmax())])

    def stop(self, signal: int) -> None:
        """Save and raise a StoppedError, on every rank. Collective."""
        for work in self.before_stop:
            work()
        self.save()
        self.end(signal)

    def end(self, signal: int) -> NoReturn:
        """Raise a StoppedError on every rank, after all have written what they saved last. Collective."""
        saved = False
        if self.saver is not None:
            with self.me.evaluation():
                lost = self.me.control.total(np.array([float(not self.saver.wait())]))
            saved = not lost[0]
        raise StoppedError(signal, saved=saved)

    def is_due(self, done: int) -> bool:
        """Return True if a strategy that saves itself should do so, or stop, after `done` batches of all ranks.

        It sets `count` to this number when it has.
        """
        if self.me.stop_asked:
            return True
        if self.saver is None or self.saver.busy or done == self.me.steps:
            return False
        every = self.interval
        if every.seconds is not None:
            return self._clock() - self._saved >= every.seconds
        per = every.steps or (every.epochs or 0) * self.me.steps_per_epoch
        return per > 0 and done // per > self.count // per

    def save(self, *, keep_all: bool = False) -> None:
        """Copy this rank's state and write it in the background."""
        saver = self.saver
        if saver is None:
            return
        with self._pause():
            start = self._clock()
            for work in self.before:
                work()
            saver.wait()
            self._copy = copy_state(self.me.state(), into=self._copy)
            saver.save(self._copy, first=self._sync_logs, keep_all=keep_all)
            self._saved = self._clock()
            self.seconds += self._saved - start

    def _remember(self) -> None:
        """Copy this rank's state, if it has exchanged anything with others since the last copy."""
        assert self.memory is not None
        if self.me.exchanges == self._exchanges and not self.every_step:
            return
        self._exchanges = self.me.exchanges
        with self._pause():
            if len(self.memory) == 2:
                self._spare = self.memory.popleft()
            now = {**brief_state(self.me), "moment": self._moments}  # the same number on all ranks
            self.memory.append(copy_state(now, into=self._spare))
            self._moments += 1
            self._spare = None

    @contextmanager
    def _pause(self) -> Iterator[None]:
        """Count this block as evaluation, with what has been done since a batch ended: neither is part of a step."""
        watch = self.me.watch
        if watch.kind == "compute":  # between two batches: the last one has been logged
            watch.lap("evaluation")
        with self.me.evaluation():
            yield

    def _sync_logs(self) -> None:
        for log in list(self.me.logs.values()):
            log.sync()

    # ---- called by the watchdog's thread, when a stall ends the run

    @property
    def standing(self) -> int:
        """The number of batches of this rank if its state could be saved now, while it waits; -1 if it could not.

        -2: it can be saved when its batch has ended, because ranks are saved alone.
        """
        if self.saver is None or self.saves == "itself":
            return -1
        if self.saves == "alone":
            return -2
        # A model's buffers (BatchNorm's statistics) change with the first pass of a batch.
        return -1 if self.me.changed or self.me.model.buffers or self.before else self.count

    def save_standing(self, absent: Sequence[int] = ()) -> bool:
        """Save the state of a rank that stands still, and the parts of `absent` ranks; return False if that failed."""
        saver, before = self.saver, self.standing
        if saver is None or before < 0:
            return False
        saver.wait()
        number = saver.number
        states = {rank: copy_state(self.me.state(rank)) for rank in (self.me.rank, *absent)}
        if self.standing != before or self.me.changed:  # it has gone on meanwhile
            return False
        try:
            for rank in absent:
                write(saver.run, rank, number, states[rank])
        except OSError:
            return False
        saver.save(states[self.me.rank], first=self._sync_logs, keep_all=True)
        return saver.wait()

    # ---- ranks in step

    def _meet(self, *, epoch_end: bool) -> None:
        """Exchange a few numbers with the other ranks, and do what follows from them. Collective."""
        with self._pause():
            votes = self._vote(epoch_end=epoch_end)
            self._distance = int(votes[DISTANCE])
            self._meet_at = self.count + self._distance
            if votes[: len(SIGNALS)].any():
                self.stop(SIGNALS[int(votes[: len(SIGNALS)].argmax())])
            if votes[DUE] and not votes[BUSY]:
                self.save(keep_all=bool(votes[FAILED]))

    def _vote(self, *, epoch_end: bool) -> Array:
        """Return the sums of the numbers that the ranks exchange. Collective."""
        me, mine = self.me, np.zeros(len(SIGNALS) + 4)
        if me.stop_asked:
            mine[_place(me.stop_asked)] = 1
        mine[BUSY] = self._busy
        mine[FAILED] = self.saver is not None and not self._busy and not self.saver.wait()
        if me.rank == 0:
            mine[DUE], mine[DISTANCE] = self._is_due(epoch_end=epoch_end), self._next_distance()
        return me.control.total(mine)

    def _next_distance(self) -> int:
        """Return the number of steps until the ranks should exchange numbers again."""
        now, steps = self._clock(), self.count - self._met_count
        often = MEET if self.interval.seconds is None else min(MEET, self.interval.seconds / 4)
        wanted = GROWTH * self._distance
        if now > self._met and steps:
            wanted = min(wanted, int(often * steps / (now - self._met)))
        self._met, self._met_count = now, self.count
        if self.interval.steps is not None:
            wanted = min(wanted, self.interval.steps - self.count % self.interval.steps)
        return max(wanted, 1)

    # ---- when

    @property
    def _busy(self) -> bool:
        return self.saver is not None and self.saver.busy

    def _is_due(self, *, epoch_end: bool) -> bool:
        every = self.interval
        if self.saver is None:
            return False
        if every.seconds is not None:
            return self._clock() - self._saved >= every.seconds
        if every.steps is not None:
            return not epoch_end and self.count % every.steps == 0
        return epoch_end and every.epochs is not None and self.me.epochs_ended % every.epochs == 0


def _place(signal: int) -> int:
    return SIGNALS.index(signal) if signal in SIGNALS else SIGNALS.index(15)


# ---- the state of a worker


def state_of_worker(me: Worker, rank: int | None = None, *, replicas: bool, whole_updates: bool) -> State:
    """Return the state of a rank, as references to what it is now.

    `rank`: another rank that cannot save its own state; the loss of its samples in this epoch is not known here.
    `replicas`: all ranks have the same parameters, so those of rank 0 are enough; `whole_updates`: the same holds for
    the state of an update of the whole vector.
    """
    state = {**brief_state(me), "history": [asdict(epoch) for epoch in me.history]}
    state["rows"] = {name: log.flush() for name, log in me.logs.items()}
    if rank is None or rank == me.rank:
        rank = me.rank
    else:
        state |= {"epoch_sums": [0.0, 0], "epoch_losses": [0.0, 0.0, 0.0], "counts": [0, 0, 0, 0]}
        state["rows"] = {}  # all that are there
    if rank != 0 and replicas:
        del state["x"]
    if rank != 0 and whole_updates:
        state["updates"] = [of for of in state["updates"] if (of["start"], of["stop"]) != (None, None)]
    if rank == 0:
        state["findings"], state["remarks"] = me.findings, me.remarks
        state["tables"] = {name: table for name, table in me.tables.items() if not isinstance(table, Table)}
    return state


def brief_state(me: Worker) -> State:
    """Return the part of a rank's state that changes with every step; of what only grows, return how much there is."""
    keeper, watch = me.keeper, me.watch
    assert keeper is not None
    updates = [
        {"start": start, "stop": stop, "state": {k: v for k, v in of.items() if not k.startswith("_")}}
        for (start, stop), of in me.update_states.items()
    ]
    if not updates and me.saved_updates is not None:  # resumed, but no step has been made since
        whole = me.saved_updates(0, me.model.x.size)
        updates = [{"start": None, "stop": None, "state": whole}] if whole else []
    return {
        "ranks": me.size,
        "together": keeper.saves != "alone",
        "position": {"epoch": me.position[0], "turn": me.position[1], "count": keeper.count},
        "buffers": dict(me.model.buffers),
        "updates": updates,
        "rate": me.rate,
        "recovery": me.recovery_state(),
        "epoch_sums": list(me.epoch_sums),
        "epoch_losses": list(me.epoch_losses),
        "seconds": dict(watch.seconds),
        "elapsed": watch.clock() - me.origin,
        "counts": me.traffic,
        "rows": {name: len(log) for name, log in me.logs.items()},
        "epochs": me.epochs_ended,
        "weights": me.shares.weights,
        "kept": {name: vars(kept) for name, kept in me.kept_values.items()},
        "x": np.asarray(me.model.x),
    }


def restore_worker(me: Worker, resumption: Resumption, kind: str) -> tuple[int, int]:
    """Restore a rank's state; return the epoch and the turn in it with which to go on.

    `kind`: how batches are divided among the ranks ("pieces", "dealt" or "own").
    """
    find, first = resumption.find, resumption.first
    x = find("x")
    put("x", np.asarray(me.model.x), x)
    buffers = find("buffers") or {}
    for name, buffer in me.model.buffers.items():
        put(name, buffer, buffers.get(name))
    me.model.place(me.model.x, me.model.g)  # parameters that are not views of x are updated
    me.saved_updates = _whole_updates(resumption, me.model.x.size)
    me.rate = float(first["rate"])
    recovery = find("recovery")
    # Unless ranks train alone, all agree on whether training has diverged.
    if recovery is not None and (first["together"] or kind != "own"):
        recovery = {**recovery, "stopped": (first["recovery"] or {}).get("stopped")}
    me.restore_recovery(recovery)
    me.history[:] = [Epoch(**epoch) for epoch in first["history"]]
    if me.rank == 0:
        me.findings.update(first.get("findings") or {})
        me.remarks += first.get("remarks") or []
        me.tables.update(first.get("tables") or {})
    resumption.continue_log("steps", me.log, me.rank, me.size)
    me.origin -= float(first["elapsed"])
    me.watch.seconds.update(find("seconds"))
    position = first["position"]
    epoch, turn = int(position["epoch"]), int(position["turn"])
    if resumption.same_ranks:
        own = resumption.states[resumption.own]
        epoch, turn = int(own["position"]["epoch"]), int(own["position"]["turn"])
        me.traffic = own["counts"]
        me.epoch_sums[:] = own["epoch_sums"]
        me.epoch_losses[:] = own["epoch_losses"]
        if own["weights"] is not None and not resumption.turns:
            me.shares.weights = own["weights"]
    else:
        # The sums of all ranks go on at rank 0.
        if me.rank == 0:
            me.epoch_sums[:] = np.sum([state["epoch_sums"] for state in resumption.states], axis=0)
            me.epoch_losses[:] = np.sum([state["epoch_losses"] for state in resumption.states], axis=0)
            me.traffic = np.sum([state["counts"] for state in resumption.states], axis=0).tolist()
    if resumption.turns and kind == "own":
        turn = me.shares.resume_own(epoch, resumption.turns)
    elif resumption.turns and kind == "dealt":
        turn = me.shares.resume_dealt(epoch, resumption.turns)
    if me.keeper is not None:
        me.keeper.count = int(position["count"])
    return epoch, turn


def _whole_updates(resumption: Resumption, size: int) -> Callable[[int, int], State | None]:
    """Return a function that gives the saved state of the update for a part of the parameters; None if there is none.

    Parts of the vector are put together from the ranks that updated them, so that another number of ranks may cut it
    in other places.
    """
    states = [resumption.states[resumption.own]] if resumption.same_ranks else resumption.states
    wholes = [
        of["state"]
        for state in states
        for of in state["updates"]
        if (of["start"], of["stop"]) == (None, None)
    ]
    if not wholes:
        wholes = [
            of["state"] for of in resumption.first["updates"] if of["start"] is None and of["stop"] is None
        ]
    parts = [
        of
        for state in resumption.states
        for of in state["updates"]
        if (of["start"], of["stop"]) != (None, None)
    ]

    def find(start: int, stop: int) -> State | None:
        if wholes:
            whole = _mean(wholes)
        elif parts:
            whole = _put_together(parts, size)
        else:
            return None
        return {name: value[start:stop] if value.shape == (size,) else value for name, value in whole.items()}

    return find


def _put_together(parts: list[dict[str, Any]], size: int) -> State:
    whole: State = {}
    for part in parts:
        start, stop, _ = slice(part["start"], part["stop"]).indices(size)
        for name, value in part["state"].items():
            if value.shape == (stop - start,):
                whole.setdefault(name, np.zeros(size, value.dtype))[start:stop] = value
            else:
                whole.setdefault(name, value)
    return whole
