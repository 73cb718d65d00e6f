"""The extra duties of master 0: assign batches, watch the loss, evaluate the model while others work."""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from paceline.models import flat_buffers, put_flat_buffers
from paceline.worker import Guard, Score, Worker
from paceline.worker.evaluation import Outputs, iterate_scores, ratio, samples_for, score_together

Array = NDArray[Any]
log = logging.getLogger(__name__)
# Samples to evaluate between two checks for messages from workers.
LITTLE = 64
# The fraction of its time that master 0 spends on evaluation while it serves workers; all ranks do the rest together at
# the end. Models waiting for evaluation may take this many bytes; beyond that, evaluation has priority.
PART, ROOM = 0.02, 256 << 20


class Dealer:
    """The assignment of batches to workers after their first; -1: none is left.

    >>> static = Dealer("static", workers=2, steps_per_epoch=3, steps=6)      # the first ones take what is left over
    >>> [static.next(0) for _ in range(4)], [static.next(1) for _ in range(2)]
    ([2, 3, 5, -1], [4, -1])
    >>> dynamic = Dealer("dynamic", workers=2, steps_per_epoch=3, steps=6)
    >>> [dynamic.next(worker) for worker in (1, 1, 1, 0, 0)]
    [2, 3, 4, 5, -1]
    >>> other = Dealer("static", workers=3, steps_per_epoch=3, steps=6, dealt=np.array([True, False, True, False]))
    >>> [other.next(worker) for worker in (0, 0, 1, 2)]                        # 1 of the first epoch; 3, 4, 5
    [1, 3, 4, 5]
    """

    def __init__(
        self,
        share: Literal["static", "dynamic"],
        workers: int,
        steps_per_epoch: int,
        steps: int,
        dealt: Array | None = None,
    ) -> None:
        """Assign the first batches, which every worker knows without a message; after an interruption there are none.

        `dealt`: the batches of an interrupted run that need not be dealt any more (True), the first ones of all `steps`.
        """
        self.share = share
        self.stopped = False
        self.dealt = np.zeros(steps, bool)
        """The batches that have been dealt."""
        left: Sequence[int] = range(steps)
        if dealt is not None:
            self.dealt[: dealt.size] = dealt
            left = np.flatnonzero(~self.dealt).tolist()
        self.count = steps - len(left)
        """The number of batches that have been dealt."""
        self.idle: set[int] = set()
        """The workers that have no more batches."""
        self._free = iter(left)
        self._own = [_share(worker, workers, steps_per_epoch, left) for worker in range(workers)]
        if dealt is None:
            for worker in range(workers):
                if first_batch(share, worker, steps_per_epoch, steps) < 0:
                    self.idle.add(worker)
                else:
                    self.next(worker)

    def next(self, worker: int) -> int:
        """Return the next batch of a worker; -1: there is none."""
        own = self._free if self.share == "dynamic" else self._own[worker]
        step = -1 if self.stopped else next(own, -1)
        if step < 0:
            self.idle.add(worker)
        else:
            self.dealt[step] = True
            self.count += 1
        return step


def first_batch(share: Literal["static", "dynamic"], worker: int, steps_per_epoch: int, steps: int) -> int:
    """Return the batch that a worker computes first; -1: none.

    >>> [first_batch("static", worker, steps_per_epoch=3, steps=6) for worker in range(4)]
    [0, 1, 2, -1]
    >>> [first_batch("dynamic", worker, steps_per_epoch=3, steps=6) for worker in (2, 3, 6)]
    [2, 3, -1]
    """
    return worker if worker < (min(steps_per_epoch, steps) if share == "static" else steps) else -1


def _share(worker: int, workers: int, steps_per_epoch: int, left: Sequence[int]) -> Iterator[int]:
    """Iterate over a worker's own batches of those that are left: every `workers`-th batch of each epoch."""
    start = 0
    while start < len(left):
        stop = bisect_left(left, (left[start] // steps_per_epoch + 1) * steps_per_epoch, start)
        yield from left[start:stop][worker::workers]
        start = stop


class Chief:
    """Master 0's side work; everything here depends only on the order in which messages arrive."""

    def __init__(self, me: Worker, dealer: Dealer, workers: int, pieces: int) -> None:
        self.me, self.dealer = me, dealer
        self.go_back: str | None = None
        """The mark that the masters must restore after divergence, if any."""
        self._pieces = pieces
        # The first gradient of each worker belongs to the initial parameters, but a few samples are a poor estimate.
        first = max(workers, -(-32 // me.shares.batches.batch))
        self._guard = Guard(horizon=max(32, 2 * workers), first=first)
        self._sums: dict[int, list[float]] = {}
        self._done = 0
        self._buffers = np.zeros((workers, flat_buffers(me.model).size))
        self._heard = np.zeros(workers, bool)
        self._parts: dict[int, list[tuple[slice, Array]]] = {}
        self._queue: deque[int] = deque()
        self._going: Iterator[Score] | None = None
        self._so_far = Score()
        self._scores: dict[int, Score] = {}
        self._metrics: dict[int, dict[str, float]] = {}
        self._ended: dict[int, float] = {}  # training time at the end of each epoch
        self._all_known = False
        self._known = np.zeros(me.steps, bool)  # the batches whose losses are known

    # ---- the state at a cut, when the ends of all epochs so far have been reported

    def state(self) -> dict[str, Any]:
        """Return everything that is needed to continue."""
        waiting = {
            str(epoch): [[part.start, part.stop, np.asarray(values)] for part, values in parts]
            for epoch, parts in self._parts.items()
        }
        return {
            "dealt": np.packbits(self.dealer.dealt),
            "known": np.packbits(self._known),
            "done": self._done,
            "guard": self._guard.state(),
            "first_loss": self._guard.first,
            "sums": {str(epoch): sums for epoch, sums in self._sums.items()},
            "waiting": waiting,
            "scores": {str(epoch): score.sums for epoch, score in self._scores.items()},
            "metrics": {str(epoch): dict(score.metrics) for epoch, score in self._scores.items()},
            "ended": {str(epoch): seconds for epoch, seconds in self._ended.items()},
        }

    def _read_score(self, saved: Sequence[float]) -> Score:
        """Return a score as it was saved, by this version or by one that counted samples instead of weights and answers."""
        loss, correct, weight, *rest = saved
        answers = rest[0] if rest else weight if self.me.data.classes else 0
        return Score(float(loss), int(correct), float(weight), int(answers))

    def resume(self, saved: dict[str, Any], ends: int) -> None:
        """Continue from a state, with a dealer that does so; `ends`: the number of epochs that have ended."""
        self._done = int(saved["done"])
        known = np.unpackbits(saved["known"])[: self.me.steps]
        self._known[: known.size] = known
        if "guard" in saved:
            self._guard.resume(saved["guard"])
        elif math.isfinite(saved.get("first_loss", math.inf)):
            self._guard.start_at(float(saved["first_loss"]))
        self._sums = {
            int(epoch): [float(loss), int(count), int(batches)]
            for epoch, (loss, count, batches) in saved["sums"].items()
        }
        metrics = saved.get("metrics") or {}
        self._scores = {
            int(epoch): replace(self._read_score(score), metrics=metrics.get(epoch) or {})
            for epoch, score in saved["scores"].items()
        }
        for epoch in range(self.me.epochs_ended, ends):
            whole = np.array(self.me.model.x)  # of parts that were lost with a master, the current values
            for start, stop, values in saved["waiting"].get(str(epoch), ()):
                whole[start:stop] = values
            self._parts[epoch] = [(slice(0, whole.size), whole)]
            self._ended[epoch] = float(saved["ended"].get(str(epoch), self.me.train_seconds))
            if epoch not in self._scores:
                self._queue.append(epoch)

    def count_lost(self, steps: Sequence[int]) -> None:
        """Count batches whose losses were lost with the ranks that computed them."""
        for step in steps:
            if not self._known[step]:
                self._known[step] = True
                self._sums.setdefault(step // self.me.steps_per_epoch, [0.0, 0, 0])[2] += 1

    def put(self, parts: Sequence[tuple[slice, Array]]) -> None:
        """Copy the model at a cut, and the workers' buffers, into `me.model`; an evaluation in progress begins again."""
        self._going = None
        for part, values in parts:
            self.me.model.x[part] = values
        self.put_buffers()

    # ---- losses

    def loss(self, worker: int, step: int, loss: float, count: int, buffers: Array) -> None:
        """Record a worker's loss on the batch of an earlier step, and its buffers after it.

        `worker`: -1 if the worker that computed it is none of this run's any more.
        """
        if self._known[step]:  # told again after ranks died
            return
        self._known[step] = True
        sums = self._sums.setdefault(step // self.me.steps_per_epoch, [0.0, 0, 0])
        sums[0], sums[1], sums[2] = sums[0] + loss, sums[1] + count, sums[2] + 1
        if buffers.size and worker >= 0:
            self._buffers[worker], self._heard[worker] = buffers, True
        self._done += 1
        self.me.tell(self._done - 1, loss / count)

    def guard(self, loss: float, lately: Callable[[], str]) -> None:
        """React to a batch's mean loss that indicates divergence; `lately` describes recent staleness."""
        if self.me.on_divergence == "ignore" or self.dealer.stopped:
            return
        wrong = self._guard.see(loss)
        if wrong is None:
            return
        words = f"{wrong} after {self._done:,} gradients, with a recent staleness of {lately()}"
        if self.me.on_divergence == "stop":
            self.dealer.stopped = True
            self.me.stop(f"{words}; try fewer workers or rule=adaptive")
        else:
            self.go_back = "to the start" if self._guard.still else "to the last good parameters"
            self._guard.forget()
            self.me.divergences.append(f"{words}; back {self.go_back} with half the step")
            log.warning("training has diverged: %s", self.me.divergences[-1])

    # ---- evaluation, a little at a time

    def snapshot(self, epoch: int, part: slice, values: Array) -> None:
        """Store one piece of the model as it was at the end of an epoch."""
        parts = self._parts.setdefault(epoch, [])
        parts.append((part, values))
        if len(parts) == self._pieces:
            self._queue.append(epoch)
            self._ended[epoch] = self.me.train_seconds

    @property
    def pressed(self) -> bool:
        """Return True if too many complete models wait to be evaluated."""
        return len(self._queue) > 2 and len(self._queue) * self.me.model.x.nbytes > ROOM

    @property
    def may_work(self) -> bool:
        """Return True if there is something to evaluate and time to do so."""
        if not self._queue:
            return False
        return self.me.seconds["evaluation"] <= PART * self.me.train_seconds or self.pressed

    def work(self) -> None:
        """Evaluate a few samples of the oldest complete model that is waiting for it."""
        epoch = self._queue[0]
        with self.me.evaluation():
            if self._going is None:
                self.assemble(epoch)
                self._judge(epoch)
                model, self._so_far = self.me.model, Score()
                samples = samples_for(model, self.me.data.validation, size=LITTLE)
                self._outputs = Outputs(model, self.me.metrics)
                self._going = iterate_scores(model, samples, self._outputs)
            found = next(self._going, None)
            if found is not None:
                self._so_far = found
            else:
                self._going = None
                self._queue.popleft()
                self._scores[epoch] = replace(self._so_far, metrics=self._outputs.compute())
                self._report()

    def _judge(self, epoch: int) -> None:
        """Let the user's program evaluate the model, if it does that itself."""
        self._metrics[epoch] = self.me.judge(epoch)
        if getattr(self.me.model, "wants_stop", False):
            self.me.end_after(epoch)
            self.dealer.stopped = True

    def assemble(self, epoch: int) -> None:
        """Copy the model at the end of an epoch, and the workers' buffers, into `me.model`."""
        self.put(self._parts[epoch])

    def put_buffers(self) -> None:
        """Average the workers' buffers (BatchNorm's statistics) into `me.model`."""
        if self._buffers.size and self._heard.any():
            put_flat_buffers(self.me.model, self._buffers[self._heard].mean(axis=0))

    def _report(self) -> None:
        """Report the epochs whose model has been evaluated and whose losses are all known."""
        epoch = self.me.epochs_ended
        while epoch in self._scores:
            sums = self._sums.get(epoch, [0.0, 0, 0])
            if sums[2] < self.me.steps_per_epoch and not self._all_known:
                return
            loss = ratio(sums[0], sums[1]) or 0.0
            self.me.ended(
                epoch, loss, self._scores.pop(epoch), self._ended.pop(epoch), self._metrics.pop(epoch, {})
            )
            del self._parts[epoch]
            self._sums.pop(epoch, None)
            epoch += 1

    def finish(self) -> None:
        """Evaluate the remaining models on all ranks together, after all workers have finished. Collective."""
        self._all_known = True
        self._going = None
        self._report()
        self.me.control.broadcast(np.array([len(self._queue)]))
        while self._queue:
            epoch = self._queue.popleft()
            self.assemble(epoch)
            self._judge(epoch)
            self._scores[epoch] = evaluate_together(self.me)
            self._report()


def evaluate_together(me: Worker) -> Score:
    """Evaluate rank 0's model on the validation samples, dividing them among all ranks. Collective."""
    me.broadcast()
    return score_together(me.model, me.data.validation, me.control, metrics=me.metrics)


def help_to_finish(me: Worker) -> None:
    """Take part in rank 0's `Chief.finish`. Collective."""
    for _ in range(int(me.control.broadcast(np.zeros(1, np.int64))[0])):
        evaluate_together(me)
