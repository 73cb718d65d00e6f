"""The pieces of the parameters: which master owns which, a piece at its master, its state, and the record of updates."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from paceline.collectives import cut
from paceline.errors import UsageError
from paceline.record import RowLog, Table
from paceline.strategies.parameter_server.rules import Arrival, Rule
from paceline.updates import start_update
from paceline.worker import AgeCounts

if TYPE_CHECKING:
    from paceline.updates import Update
    from paceline.worker import Worker

Array = NDArray[Any]
# One row for each event at a master, in order; replaying all of them gives the same parameters.
EVENTS = ("event", "piece", "worker", "step", "tau", "gap")
APPLIED, DROPPED, LEFT, RESTORED = range(4)
TYPES = {"event": np.uint8, "piece": np.uint32, "worker": np.int32, "step": np.int64, "tau": np.uint32}
# The gap of a piece with at least this many parameters is estimated from an eighth of them.
LARGE = 4096
# The number of marks kept per piece: the start, and the latest ones.
KEPT = 4
Placement = Literal["layers", "even"]
# The even parts of x begin at multiples of this many numbers: cache lines of float32.
ALIGNED = 16


@dataclass(frozen=True)
class Piece:
    """A part of x that one master owns."""

    number: int
    master: int
    part: slice
    layers: tuple[int, ...]
    """The layers that it contains wholly or partly: its gradient is complete when theirs are."""


def place(layers: Sequence[slice], masters: int, placement: Placement) -> list[Piece]:
    """Divide x, which has these layers, among masters 0 … masters-1.

    `layers`: every layer has one owner; the largest go first, each to the master that has least (Graham, 1969), the
    last of several: master 0, which has other things to do, ends up with little.
    `even`: one contiguous part for each master, equally long.

    >>> net = [slice(0, 100), slice(100, 130), slice(130, 140)]
    >>> [(piece.master, piece.part) for piece in place(net, 2, "layers")]
    [(1, slice(0, 100, None)), (0, slice(100, 130, None)), (0, slice(130, 140, None))]
    >>> [(piece.master, piece.part, piece.layers) for piece in place(net, 2, "even")]
    [(0, slice(0, 80, None), (0,)), (1, slice(80, 140, None), (0, 1, 2))]
    """
    size = layers[-1].stop
    if placement == "even":
        parts = cut(size, masters, align=ALIGNED if size >= 4 * ALIGNED * masters else 1)
        return [
            Piece(m, m, part, tuple(i for i, layer in enumerate(layers) if _overlap(layer, part)))
            for m, part in enumerate(parts)
        ]
    load = [0] * masters
    owner = [0] * len(layers)
    for i in sorted(range(len(layers)), key=lambda i: layers[i].start - layers[i].stop):
        owner[i] = max(range(masters), key=lambda m: (-load[m], m))
        load[owner[i]] += layers[i].stop - layers[i].start
    return [Piece(i, owner[i], layer, (i,)) for i, layer in enumerate(layers)]


def check_placement(layers: Sequence[slice], masters: int, placement: Placement) -> None:
    """Raise a UsageError if there are more masters than pieces."""
    if placement == "layers" and masters > len(layers):
        raise UsageError(
            f"{masters} masters cannot each own a layer of a model that has {len(layers)}; "
            f"choose at most {len(layers)} masters, or placement=even"
        )
    if masters > layers[-1].stop:
        raise UsageError(f"{masters} masters cannot divide {layers[-1].stop} parameters")


def _overlap(one: slice, other: slice) -> bool:
    return bool(one.start < other.stop and other.start < one.stop)


# ---- the state of a piece, from which training can continue


@dataclass
class PieceState:
    """A piece between two gradients: everything that its master needs to continue, except the parameters themselves."""

    start: int
    stop: int
    arrivals: int = 0
    """Gradients that have arrived."""
    version: int = 0
    """Updates that have been made."""
    halved: float = 1.0
    """The factor on the step after divergence."""
    count: int = 0
    """The samples of a round of gradients that is not complete; their sum is the array `total`."""
    factor: float = 1.0
    """The mean factor on the learning rate of the workers in that round, weighted by their samples."""
    good: bool = False
    """True if the array `good` holds the values to restore after divergence; `first` holds those of the start."""
    skip: list[int] = field(default_factory=list)
    """Batches that will arrive once more, because another master lost or never got their gradients."""
    arrays: dict[str, Array] = field(default_factory=dict)
    """Those of rule and update, whose names begin with `rule.` and `update.`, and the ones above."""

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> PieceState:
        """Return a state that was saved, with values of the right types."""
        whole = {name: int(saved[name]) for name in ("start", "stop", "arrivals", "version", "count")}
        return cls(
            **whole, halved=float(saved["halved"]), factor=float(saved["factor"]), good=bool(saved["good"]),
            skip=list(map(int, saved["skip"])), arrays={name: values[...] for name, values in saved["arrays"].items()},
        )  # fmt: skip

    def numbers(self) -> dict[str, Any]:
        """Return everything except the arrays."""
        return {name: value for name, value in vars(self).items() if name != "arrays"}


def recut(saved: Sequence[PieceState], part: slice) -> PieceState:
    """Return the state of another piece, put together from those that it overlaps.

    Arrays as long as their pieces, or whose rows are, are cut and joined. Everything else, such as a count of updates, is
    taken from the piece with the largest overlap.

    >>> one = PieceState(0, 3, arrivals=7, arrays={"rule.s": np.arange(3.0), "rule.t": np.array([7])})
    >>> two = PieceState(3, 5, arrivals=7, arrays={"rule.s": np.arange(3.0, 5.0), "rule.t": np.array([6])})
    >>> cut = recut([one, two], slice(1, 4))
    >>> cut.arrays, cut.arrivals
    ({'rule.s': array([1., 2., 3.]), 'rule.t': array([7])}, 7)
    """
    for one in saved:
        if (one.start, one.stop) == (part.start, part.stop):
            return one
    some = [one for one in saved if _overlap(slice(one.start, one.stop), part)]
    most = max(some, key=lambda one: min(one.stop, part.stop) - max(one.start, part.start))
    arrays = {}
    equally_far = len({one.count for one in some}) == 1
    for name, values in most.arrays.items():
        if name == "total" and not equally_far:  # gradients of rounds that differ: they are lost
            continue
        if all(name in one.arrays and one.arrays[name].shape[-1:] == (one.stop - one.start,) for one in some):
            arrays[name] = np.concatenate(
                [
                    one.arrays[name][..., max(part.start - one.start, 0) : part.stop - one.start]
                    for one in some
                ],
                axis=-1,
            )
        elif values.shape[-1:] != (most.stop - most.start,):
            arrays[name] = values
    skip = sorted({step for one in some for step in one.skip})
    numbers = {
        **most.numbers(),
        "skip": skip,
        "start": part.start,
        "stop": part.stop,
        "good": "good" in arrays,
    }
    numbers["count"] *= "total" in arrays
    return PieceState(**numbers, arrays=arrays)


@dataclass
class Gradient:
    """The header of a gradient that a worker is sending."""

    step: int = -1
    count: int = 0
    factor: float = 1.0
    """The worker's factor on the learning rate."""


def sample_blocks(values: Array) -> Array:
    """Return a view of some of many values, enough to estimate their mean square: every eighth block of 16.

    Reading all of them would take a tenth of a master's time; the blocks are cache lines of float32.

    >>> sample_blocks(np.arange(5.0)).size, sample_blocks(np.arange(27_344.0)).shape
    (5, (214, 16))
    """
    if values.size < LARGE:
        return values
    return values[: values.size // 16 * 16].reshape(-1, 16)[::8]


class Owned:
    """One piece at its master, with memory for every worker's gradient and for the values last sent to it."""

    def __init__(self, me: Worker, piece: Piece, rule: Rule, workers: int, said: list[Gradient], log: RowLog):
        self.piece = piece
        self.x = me.model.x[piece.part].copy()
        self.g = np.empty_like(self.x, shape=(workers, self.x.size))
        self.sent = np.empty_like(self.g)
        me.perform("copy", 0, np.copyto, self.sent, self.x)
        self.arrivals = 0
        self.halved = 1.0
        self.seen = np.zeros(me.steps, bool) if me.survives else None
        """The batches whose gradients have arrived; None if nobody needs to know."""
        self.skip: set[int] = set()
        """Batches that have arrived before and will arrive once more."""
        self._me, self._rule, self._said, self._log = me, rule, said, log
        self._update: Update = me.update
        self._drift = np.asarray(np.zeros_like(self.x))
        self._needs_drift = getattr(rule, "needs_drift", True)
        self._sample = sample_blocks(np.asarray(self.x))
        self._shown = np.asarray(self.sent)
        self._shown_sample = [sample_blocks(row) for row in self._shown]
        self._apart = np.empty_like(self._sample)
        self._total = np.empty_like(self.x)
        self._count = 0
        self._factors = 0.0  # of the samples of the round, added
        self._version = self._era = 0
        self._sent_version = [0] * workers
        self._sent_era = [0] * workers
        self._arrival = Arrival(worker=0, tau=0, drift=self._drift, gap=0.0, scale=1.0, eta=0.0)
        me.perform("start", 0, self._begin, self.x)

    def _begin(self, x: Array) -> None:
        self._rule_state = self._rule.start(x, len(self.sent))
        self._update_state = start_update(self._update, x, self.piece.part.start)

    def state(self) -> PieceState:
        """Return everything that is needed to continue, as references to what it is now."""
        part, arrays = self.piece.part, {}
        if self._count:
            arrays["total"] = np.asarray(self._total)
        for kind, state in (("rule", self._rule_state), ("update", self._update_state)):
            arrays |= {f"{kind}.{name}": values for name, values in state.items() if name[0] != "_"}
        return PieceState(
            part.start, part.stop, self.arrivals, self._version, self.halved, self._count,
            factor=self._factors / self._count if self._count else 1.0,
            skip=sorted(self.skip), arrays=arrays,
        )  # fmt: skip

    def resume(self, saved: PieceState) -> bool:
        """Continue from a state with the current values.

        Return False if the rule's state is lost, because it belongs to another number of workers.
        """
        arrays = saved.arrays
        self.arrivals, self._version, self.halved = saved.arrivals, saved.version, saved.halved
        self.skip = set(saved.skip)
        self._sent_version = [self._version] * len(self._sent_version)
        self._count = saved.count
        self._factors = saved.factor * saved.count
        if self._count:
            self._total[:] = arrays["total"]
        _fill(self._update_state, _name_arrays("update", arrays))
        rule = _name_arrays("rule", arrays)
        if rule and hasattr(self._rule, "share_out"):
            rule = self._rule.share_out(rule, len(self.sent))
        if _fill(self._rule_state, rule):
            return True
        self._rule_state = self._rule.start(np.asarray(self.x), len(self.sent))
        return False

    # ---- called by the discipline

    def is_fresh(self, worker: int) -> bool:
        return self._sent_version[worker] == self._version and not self.is_outdated(worker)

    def apply(self, worker: int) -> None:
        """Apply a gradient, which may be stale: x <- update(x, rule(g)), unless its parameters were discarded."""
        if self.is_outdated(worker):
            self.drop(worker)
            return
        tau = self._version - self._sent_version[worker]
        said = self._said[worker]
        self._change(worker, self.g[worker], said.count, tau, said.factor)
        self._note(APPLIED, worker, tau, self._arrival.gap)

    def add(self, worker: int) -> None:
        if self._count:
            self._total += self.g[worker]
        else:
            self._total[:] = self.g[worker]
            self._factors = 0.0
        self._count += self._said[worker].count
        self._factors += self._said[worker].count * self._said[worker].factor
        self._note(APPLIED, worker, 0, 0.0)

    def apply_round(self) -> None:
        self._change(0, self._total, self._count, 0, self._factors / self._count)
        self._count = 0

    def drop(self, worker: int) -> None:
        self._note(DROPPED, worker, self._version - self._sent_version[worker], 0.0)

    # ---- called by the master

    def is_outdated(self, worker: int) -> bool:
        """Return True if the worker computed with values from before the last restoration."""
        return self._sent_era[worker] != self._era

    def answer(self, worker: int) -> Array:
        """Return the current values as the rule shows them to this worker, in memory that is valid until it answers."""
        sent = self.sent[worker]
        self._me.perform("show", 0, self._show, self.x, sent, worker)  # timed as part of the rule
        self._sent_version[worker], self._sent_era[worker] = self._version, self._era
        return sent  # type: ignore[no-any-return]

    def _show(self, x: Array, sent: Array, worker: int) -> None:
        self._rule.show(x, sent, worker, self._rule_state)

    def restore(self, x: Array) -> None:
        """Restore earlier values, halve the learning rate and reset the states of rule and update."""
        self.x[:] = x
        self.halved /= 2
        self._era += 1
        self._count = 0
        self._me.perform("start", 0, self._begin, self.x)

    def _change(self, worker: int, g: Array, count: int, tau: int, factor: float) -> None:
        self._me.perform("rule", self.x.size, self._apply_rule, self.x, g, worker, count, tau, factor)
        self._version += 1

    def _apply_rule(
        self, x: Array, g: Array, worker: int, count: int, tau: int, workers_factor: float
    ) -> None:
        arrival = self._arrival
        arrival.worker, arrival.tau, arrival.scale, arrival.gap = worker, tau, 1.0 / count, 0.0
        schedule = self._me.shape(min(self.arrivals - 1, self._me.steps - 1))
        arrival.shape = self.halved * schedule * workers_factor
        arrival.eta = self._me.rate * arrival.shape
        if self._needs_drift:
            np.subtract(x, self._shown[worker], self._drift)  #             x - x_then
        if tau:
            some = np.subtract(self._sample, self._shown_sample[worker], self._apart)
            arrival.gap = math.sqrt(float(np.vdot(some, some)) / some.size)
        factor = self._rule.correct(g, x, arrival, self._rule_state)
        if factor is None:
            raise TypeError(
                f"correct of {type(self._rule).__name__} must return a factor on eta (1.0: none); got None"
            )
        if factor:  # 0: the rule has already made the whole step
            self._update.apply(x, g, arrival.eta * factor, self._update_state, arrival.scale)

    def _note(self, event: int, worker: int, tau: int, gap: float) -> None:
        self._log.append((event, self.piece.number, worker, self._said[worker].step, tau, gap))


def _name_arrays(kind: str, arrays: dict[str, Array]) -> dict[str, Array]:
    """Return the arrays of a rule or an update."""
    return {name[len(kind) + 1 :]: values for name, values in arrays.items() if name.startswith(f"{kind}.")}


def _fill(state: dict[str, Array], saved: dict[str, Array]) -> bool:
    """Copy saved arrays into the state of a rule or update; return False if one is missing or has another shape."""
    wanted = {name: values for name, values in state.items() if name[0] != "_"}
    if any(name not in saved or saved[name].shape != values.shape for name, values in wanted.items()):
        return False
    for name, values in wanted.items():
        values[...] = saved[name]
    return True


class Marks:
    """Snapshots of the parameters at intervals, which a master restores after divergence.

    A mark is made of each piece every `every` of its gradients. By its number it is nearly the same moment on every master:
    mark 0 is the start. After ranks have died, pieces may have marks of neighbouring numbers only.
    """

    def __init__(self, pieces: Sequence[Owned], every: int) -> None:
        self._pieces, self._every = pieces, every
        self._marks: list[dict[int, Array]] = [{0: owned.x.copy()} for owned in pieces]
        self._good = 0

    def count(self, owned: Owned) -> None:
        """Count a gradient of a piece, and make a mark when one is due."""
        number, rest = divmod(owned.arrivals, self._every)
        if rest:
            return
        place = self._pieces.index(owned)
        marks = self._marks[place]
        marks[number] = owned.x.copy()
        if len(marks) > KEPT:
            del marks[min(marks.keys() - {0})]  # the start is kept
        if place == 0:  # the previous mark is good: training has not diverged since
            self._good = max(self._good, number - 1)

    def choose(self, *, from_start: bool) -> int:
        """Return the mark to restore."""
        if from_start:
            self._good = 0
        return self._good

    def add_to(self, saved: Sequence[PieceState]) -> None:
        """Add the start and the mark to restore to the states of the pieces."""
        for one, marks in zip(saved, self._marks, strict=True):
            one.arrays["first"], one.good = np.asarray(marks[0]), self._good > 0
            if self._good:
                one.arrays["good"] = np.asarray(_nearest(marks, self._good))

    def resume(self, saved: Sequence[PieceState]) -> None:
        """Continue with the marks of saved pieces; the numbers of later ones follow from the gradients so far."""
        for owned, one, marks in zip(self._pieces, saved, self._marks, strict=True):
            if "first" in one.arrays:
                marks[0][:] = one.arrays["first"]
            number = max(owned.arrivals // self._every, int(one.good))
            if number > 0:
                marks[number] = owned.x.copy()
                marks[number][:] = one.arrays["good"] if one.good else marks[0]
            self._good = max(self._good, number) if one.good else 0

    def restore(self, mark: int) -> None:
        """Restore a mark; later marks then hold the same values."""
        for owned, marks in zip(self._pieces, self._marks, strict=True):
            owned.restore(_nearest(marks, mark))
            for later in [m for m in marks if m > mark]:
                marks[later] = owned.x.copy()


def _nearest(marks: Mapping[int, Array], mark: int) -> Array:
    """Return the mark with the nearest number; the start, which is 0, only if it is wanted or there is no other."""
    return marks[min(marks, key=lambda number: (number == 0 < mark, abs(number - mark)))]


# ---- the record of all masters


class EventCounts:
    """The events of a master, counted: for each piece the staleness of its updates, their gaps, and gradients dropped."""

    def __init__(self) -> None:
        self.of_piece: dict[int, _Counted] = {}

    def add(self, rows: Array) -> None:
        """Count some rows of a table of EVENTS."""
        event, piece, tau, gap = (rows[:, EVENTS.index(name)] for name in ("event", "piece", "tau", "gap"))
        for number in np.unique(piece[(event == APPLIED) | (event == DROPPED)]).astype(int).tolist():
            found = self.of_piece.setdefault(number, _Counted())
            applied = (event == APPLIED) & (piece == number)
            found.ages.add(tau[applied])
            finite = gap[applied & np.isfinite(gap)]  # infinite in a run that diverged
            found.gaps += np.array([finite.sum(), finite.size])
            found.dropped += int(((event == DROPPED) & (piece == number)).sum())

    def gather(self, me: Worker) -> None:
        """Add the events of all other masters, on rank 0. Collective."""
        ages = [
            [n, t, count]
            for n, of in self.of_piece.items()
            for t, count in enumerate(of.ages.counts.tolist())
        ]
        rest = [[n, of.dropped, *of.gaps.tolist()] for n, of in self.of_piece.items()]
        everyone = [
            me.control.gather(np.array(rows, float).reshape(-1, n)) for rows, n in ((ages, 3), (rest, 4))
        ]
        for theirs in everyone[0][1:]:
            for number in np.unique(theirs[:, 0]).astype(int).tolist():
                counts = theirs[theirs[:, 0] == number, 2].astype(np.int64)
                self.of_piece.setdefault(number, _Counted()).ages.add_counts(counts)
        for theirs in everyone[1][1:]:
            for number, dropped, total, count in theirs.tolist():
                found = self.of_piece.setdefault(int(number), _Counted())
                found.dropped += int(dropped)
                found.gaps += np.array([total, count])


class _Counted:
    """The events of one piece; `gaps` is their sum and their number."""

    def __init__(self) -> None:
        self.ages, self.dropped, self.gaps = AgeCounts(), 0, np.zeros(2)

    def add(self, other: _Counted) -> None:
        """Add the events of another piece."""
        self.ages.add_counts(other.ages.counts)
        self.dropped += other.dropped
        self.gaps += other.gaps

    def staleness(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {**self.ages.summary(), "mean_gap": float(self.gaps[0] / (self.gaps[1] or 1))}


def record_events(
    me: Worker, pieces: list[Piece], events: EventCounts, *, arrived: int, acknowledged: int, before: int
) -> None:
    """Gather the events of every master, record them, and summarize staleness in words. Collective.

    `arrived`: the gradients that have arrived at the pieces of this rank, in sum; `acknowledged`: the batches of this rank
    for which all masters have answered; `before`: those of all ranks before the run was resumed, or before ranks died.
    """
    me.logs["updates"].observe_rest()
    logs = me.gather_table("updates")
    events.gather(me)
    arrivals, answers = map(int, me.control.total(np.array([arrived, acknowledged])))
    if me.rank != 0:
        return
    table = Table(logs, (*EVENTS, "master"), types={**TYPES, "master": np.uint32})
    me.tables["updates"] = table
    every = _Counted()
    for of in events.of_piece.values():
        every.add(of)
    me.findings["gradients_applied"] = round(every.ages.total / len(pieces))
    me.findings["gradients_dropped"] = round(every.dropped / len(pieces))
    if "failures" in me.findings:  # a dead master took its table of events with it
        me.findings["gradients_applied"] = round(arrivals / len(pieces)) - me.findings["gradients_dropped"]
    me.findings["gradients_acknowledged"] = before + answers
    if me.resumption is None and not table.missing:  # only the whole order of one run can be repeated
        me.findings["order"] = digest(table)
    me.findings["staleness"] = {
        **every.staleness(),
        "pieces": [
            {
                "master": piece.master,
                "layers": list(piece.layers),
                "parameters": piece.part.stop - piece.part.start,
                **events.of_piece.get(piece.number, _Counted()).staleness(),
            }
            for piece in pieces
        ],
    }
    if every.ages.total:
        count = me.findings["gradients_dropped"]
        lost = f"; {count:,} gradient{'s' * (count != 1)} not applied" if every.dropped else ""
        me.remarks.append(
            f"staleness: {every.ages.mean:.1f} updates on average, at most {every.ages.largest}{lost}"
        )


def digest(columns: Mapping[str, Array]) -> str:
    """Return a digest of an order of events, because replaying a damaged one would never end."""
    found = hashlib.sha256()
    for name in ("master", *EVENTS[:4]):
        for part in columns.chunks(name) if isinstance(columns, Table) else [columns[name]]:
            found.update(np.ascontiguousarray(part, np.int64).tobytes())
    return found.hexdigest()
