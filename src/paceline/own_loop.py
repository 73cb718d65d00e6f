"""`paceline.session`: the user's own PyTorch loop under any strategy.

A strategy is a loop, and so is the user's program. Each runs in a greenlet of its own, and they take turns:

    strategy                                           the user's program
    me.gradient(batch)         -- batch -->            for inputs, labels in ranks.share(loader):
                                                           loss_of(model(inputs), labels).backward()
                               <-- gradient --             clip_grad_norm_(…), or optimizer.step()
    exchanges it, or does not
    me.step(g, count)          -- mean gradient -->        clips it
                               <-- new parameters --       optimizer.step()
    sends and receives …
    me.gradient(batch)         -- next batch -->           optimizer.step() returns
    me.validate(epoch)         -- epoch is over -->    the loop over share(loader) ends
                               <-- metrics --          ranks.validate(perplexity=…)

So strategies are the same as in `fit`, and so are their records.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
import types
from bisect import bisect_right
from collections import UserDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from greenlet import GreenletExit, getcurrent, greenlet
from numpy.typing import NDArray
from torch import nn
from torch.nn.utils import clip_grad
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from paceline.collectives import Divided, ProgramNeeds
from paceline.comm.control import agree
from paceline.comm.shared import pad_to_lines
from paceline.config import SESSION, Config, Safety
from paceline.data import Batch, Batches, Dataset
from paceline.errors import AgreedError, UsageError
from paceline.launch import abort_on_error, announce_failure, mpi, take_cores, verify, world
from paceline.models import Ready, TorchModel
from paceline.record import script_digest, withdraw
from paceline.simulate.training import SimulatedProgram
from paceline.strategies import Strategy
from paceline.training.job import Job, strategy_name, strategy_of
from paceline.training.progress import EpochLines
from paceline.training.rank import Fitted, train, train_at
from paceline.updates import State, TorchOptimizer, TorchState, describe_optimizer

Array = NDArray[Any]


def session(
    strategy: str | Strategy | Callable[..., None] = "sync",
    *,
    runs: str | Path | None = "runs",
    name: str | None = None,
    seed: int = 0,
    threads: int | None = None,
    trace: bool = False,
    quiet: bool = False,
    stall_timeout: str = "60s",
    on_stall: Literal["warn", "abort"] = "warn",
    comm: Any = None,
) -> Session:
    """Return a block in which the program's own training loop is run by a strategy, on all ranks of its job.

    Start the program with `paceline run -n 4 program.py`, with mpiexec or with srun; every rank runs it. Started by plain
    `python program.py`, it is one process that trains as it would without paceline, and is recorded as `serial`. Settings
    given to `paceline run` have precedence over those given here.

    `runs`: the folder for the record of the run, or None; `name`: the name of its folder. `seed`: of the order of the
    samples. `threads`: of each rank. `trace`: also record every MPI call. `quiet`: print no line per epoch (on
    stderr, by rank 0). `stall_timeout`: report a rank that makes no progress for this long; `on_stall`: only report it, or
    end the job with status 75. `comm`: an mpi4py communicator, by default COMM_WORLD.

    >>> import torch
    >>> inputs, labels = torch.randn(60, 4), torch.arange(60) % 3
    >>> net = torch.nn.Linear(4, 3)
    >>> with session("sync", runs=None, quiet=True) as ranks:
    ...     net, optimizer = ranks.attach(net, torch.optim.AdamW(net.parameters(), lr=0.01))
    ...     for epoch in ranks.epochs(2):
    ...         for some, wanted in ranks.share((inputs, labels), batch=20):
    ...             optimizer.zero_grad()
    ...             torch.nn.functional.cross_entropy(net(some), wanted).backward()
    ...             optimizer.step()
    ...         ranks.validate(accuracy=(net(inputs).argmax(1) == labels).float().mean().item())
    >>> ranks.fitted.steps, len(ranks.fitted.history)
    (6, 2)
    """
    given: dict[str, Any] = {"strategy": strategy, "runs": runs, "name": name}
    given.update(seed=seed, threads=threads, trace=trace, quiet=quiet)
    given.update(stall_timeout=stall_timeout, on_stall=on_stall)
    given.update(settings_from_launcher())
    return Session(comm=comm, **given)


def settings_from_launcher(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the settings that `paceline run` has given to this process.

    >>> settings_from_launcher({"PACELINE_SESSION": '{"seed": 3}'})
    {'seed': 3}
    """
    text = (os.environ if environment is None else environment).get(SESSION)
    if not text:
        return {}
    found = json.loads(text)
    if not isinstance(found, dict):
        raise UsageError(f"{SESSION} must hold a JSON object; got {text!r}")
    return found


def describe_program() -> dict[str, Any]:
    """Describe the program of this process for its record: its file, its arguments and a digest of its code.

    `paceline run` describes those that it starts. What is typed into an interpreter has neither arguments nor a digest.
    """
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    if (
        file is None
        or not sys.argv[0]
        or not (path := Path(sys.argv[0])).is_file()
        or not path.samefile(file)
    ):
        return {"file": "python", "arguments": [], "strategy": None, "code": ""}
    return {
        "file": sys.argv[0], "arguments": sys.argv[1:], "strategy": None, "code": script_digest(path),
    }  # fmt: skip


# ---- turns


@dataclass(frozen=True)
class Turn:
    """What the strategy has reached when it is the turn of the user's program."""

    kind: Literal["batch", "step", "epoch", "end"]
    """A batch to compute, a gradient to look at before the step, the end of an epoch, or the end of training."""
    batch: Batch | None = None
    epoch: int = -1
    step: Callable[[], None] | None = None
    """Changes the parameters by the optimizer."""
    fitted: Fitted | None = None


class Conversation:
    """Two greenlets that take turns: the strategy's, created here, and the user's program."""

    def __init__(self, work: Callable[[], Fitted], comm: Any) -> None:
        self._strategy = greenlet(lambda _=None: Turn("end", fitted=work()))
        self._user: Any = getcurrent()
        self._rank = getattr(comm, "me", None)  # a simulated one is woken up wherever it waits
        for name in ("paceline_world", "paceline_self", "paceline_names", "paceline_session"):
            if hasattr(self._user, name):
                setattr(self._strategy, name, getattr(self._user, name))

    def ask(self, turn: Turn) -> Any:
        """Let the user's program go on, from the strategy's greenlet; return its answer."""
        return self._user.switch(turn)

    def answer(self, value: Any = None) -> Turn:
        """Let the strategy go on, from the user's program, until it is the program's turn again."""
        self._user = self._strategy.parent = getcurrent()
        self._wake(self._strategy)
        try:
            with _use_default_modes():
                turn = self._strategy.switch(value)
        finally:
            self._wake(self._user)
        if not isinstance(turn, Turn):  # the strategy was ended
            raise GreenletExit
        return turn

    def abandon(self) -> None:
        """End the strategy where it is."""
        if self._strategy and not self._strategy.dead:
            self._strategy.parent = getcurrent()
            self._strategy.throw(GreenletExit)

    def _wake(self, running: Any) -> None:
        if self._rank is not None:
            self._rank.greenlet = running


@contextlib.contextmanager
def _use_default_modes() -> Iterator[None]:
    """Let others run with PyTorch's default modes; the program's own (no_grad, autocast) hold when it goes on."""
    graded, cast, kind = (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
    )
    torch.set_grad_enabled(True)
    torch.set_autocast_enabled("cpu", False)
    try:
        yield
    finally:
        torch.set_grad_enabled(graded)
        torch.set_autocast_enabled("cpu", cast)
        torch.set_autocast_dtype("cpu", kind)


# ---- the model: its gradient is what the user's program computes


class OwnModel(TorchModel):
    """A module whose gradients the user's program computes."""

    weigh = None  # type: ignore[assignment]
    takes_empty = True
    """A piece of a batch without samples is given to the program too, with weight 0: it takes part in the step."""

    def __init__(self, module: nn.Module, loop: Session) -> None:
        if any(nn.parameter.is_lazy(one) for one in (*module.parameters(), *module.buffers())):
            raise UsageError("the module has lazy parameters: call it once before attach")
        self.module, self.seed = module, 0
        self.input_dtype = self.input_shape = None
        self._loop = loop
        frozen = [p for p in module.parameters() if not p.requires_grad and p.is_floating_point()]
        for p in frozen:  # they may be trained later
            p.requires_grad_(True)
        gradients = [(p, p.grad) for p in module.parameters()]
        try:
            self._flatten()
        finally:
            for p in frozen:
                p.requires_grad_(False)
            for p, grad in gradients:
                p.grad = grad
        self.missing: list[int] = []
        """The numbers of the parameters that have no gradient of the last batch on this rank."""
        self._views: dict[int, list[Any]] = {}
        self._ready: Ready | None = None
        self._reported: set[int] = set()
        starts = [layer.start for layer in self.layers]
        self._layer_of = [bisect_right(starts, one.part.start) - 1 for one in self._trained]

    def _roots(self) -> list[tuple[str, nn.Module]]:
        return [("", self.module)]

    @property  # type: ignore[misc]
    def g(self) -> Array:
        """The gradient, flat."""
        return self._g

    @property
    def frozen(self) -> list[bool]:
        """For each parameter, True if it is not trained now."""
        return [not one.p.requires_grad for one in self._trained]

    def place(self, x: Array, g: Array) -> None:
        """Move parameters and gradient into the given memory."""
        had = [one.p.grad is not None for one in self._trained]
        super().place(x, g)
        self._views.clear()
        for one, keeps in zip(self._trained, had, strict=True):
            if not keeps:
                one.p.grad = None

    def gradient(self, batch: Batch, ready: Ready | None = None) -> float:
        """Let the user's program compute the gradient of a batch; return the loss, summed over the samples.

        `ready(i)` is called during the program's last backward pass, when the gradient of layer i is final.
        """
        self.show()
        self._ready, self._reported = ready, set()
        try:
            return float(self._loop.compute(batch))
        finally:
            self._ready = None

    @property
    def reports_layers(self) -> bool:
        """True if the strategy wants to know when the gradient of a layer is final."""
        return self._ready is not None

    def report_layers(self, run: Callable[[], None], weight: float) -> None:
        """Call `run`, the last backward pass of a step, and report the layers whose gradient it makes final."""
        ready = self._ready
        assert ready is not None

        def finish(one: Any) -> None:
            with torch.no_grad():
                torch.mul(_as_real(one.p.grad), weight, out=one.g)

        def report(layer: int) -> None:
            self._loop.end_lap(layer)
            ready(layer)

        self._reported = self._ready_layers.backward(run, report, finish)

    def charge_layer(self, layer: int) -> None:
        """Let a simulated rank's clock advance by what the backward pass of a layer took."""
        self._loop.charge_lap(layer)

    @property
    def is_mirrored(self) -> bool:
        """True if some parameters do not share memory with `x`."""
        return any(one.mirrored for one in self._trained)

    def collect(self, weight: float) -> None:
        """Fill `g` with the gradients that the user's program has computed, times `weight`."""
        self.missing = []
        if self._reported and self._reported & self._ready_layers.find_changed():
            raise UsageError(
                "gradients were changed between backward() and optimizer.step(), when overlap=true had begun to send them: "
                "call ranks.exchange() before, or leave out overlap=true"
            )
        with torch.no_grad():
            for number, one in enumerate(self._trained):
                grad = one.p.grad
                if self._reported and self._layer_of[number] in self._reported:
                    continue  # it may be on its way
                if grad is None:
                    one.g.zero_()
                    self.missing.append(number)
                else:
                    torch.mul(_as_real(grad), weight, out=one.g)
        self._pull_state()

    def find_missing(self) -> frozenset[int]:
        """Return the numbers of the parameters that have no gradient now."""
        return frozenset(number for number, one in enumerate(self._trained) if one.p.grad is None)

    def spread(self, g: Array, absent: frozenset[int] | None = None) -> None:
        """Give the parameters their parts of `g` as gradients; those that no rank has a gradient for have none.

        `absent`: their numbers, if they are known; otherwise those whose gradient is missing here, and 0 in `g`.
        """
        for one, view in zip(self._trained, self._views_of(g), strict=True):
            p = one.p
            p.grad = (
                (torch.view_as_complex(view) if p.is_complex() else view).to(p.dtype)
                if one.mirrored
                else view
            )
        for number in self.missing if absent is None else absent:
            p = self._trained[number].p
            if absent is not None or (p.grad is not None and not (p.requires_grad and p.grad.any())):
                p.grad = None

    def gather(self, g: Array) -> None:
        """Copy to `g` the gradients that the program has replaced since `spread`."""
        for one, view in zip(self._trained, self._views_of(g), strict=True):
            grad = one.p.grad
            if grad is not None and grad is not view:
                view.copy_(_as_real(grad.detach()))

    def _views_of(self, g: Array) -> list[Any]:
        where = g.ctypes.data
        views = self._views.get(where)
        if views is None:
            whole = torch.from_numpy(g)
            views = self._views[where] = [whole[one.part].view(one.g.shape) for one in self._trained]
        return views

    def show(self) -> None:
        """Copy `x` and the buffers to the module where they do not share memory."""
        for one in self._trained:
            if one.mirrored:
                with torch.no_grad():
                    _as_real(one.p).copy_(one.x)
        for tensor in self._state.values():
            tensor.push()

    def fetch(self) -> None:
        """Copy the module's parameters to `x` where they do not share memory, after the optimizer has changed them."""
        for one in self._trained:
            if one.mirrored or one.p.data_ptr() != one.x.data_ptr():
                one.x.copy_(_as_real(one.p.detach()))
                if not one.mirrored:
                    one.p.data = one.x

    def judge(self, epoch: int) -> dict[str, float]:
        """Let the user's program evaluate the model at the end of an epoch; return its metrics."""
        self.show()
        return self._loop.evaluate(epoch)

    @property
    def step_factor(self) -> float:
        """The factor by which the program has changed the learning rates since attach, if others step for it."""
        return self._loop.rate_factor()

    @property
    def wants_stop(self) -> bool:
        """True if the user's program has left its loop over the epochs, or reached the target at which it ends."""
        return self._loop.left

    def look_ahead(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Return the same batches; those of an epoch are known to the program's data loader in advance."""
        found: Iterator[Batch] = self._loop.samples.look_ahead(batches)
        return found


def _as_real(tensor: Any) -> Any:
    tensor = tensor if tensor.layout == torch.strided else tensor.to_dense()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


# ---- the optimizer


class OwnUpdate:
    """The update of a run whose optimizer steps in the user's program, or in its place where no program computes.

    If the ranks of one node share memory and the optimizer works element by element, each of them takes the step of a part
    of the parameters (`join`). Otherwise every rank takes the whole step, with the user's own optimizer.
    """

    def __init__(self, loop: Session, optimizer: torch.optim.Optimizer, model: OwnModel, rate: float) -> None:
        self._loop, self._optimizer, self._model = loop, optimizer, model
        self._flat_update = TorchOptimizer(optimizer, model.places)
        self.elementwise = self._flat_update.elementwise
        self._rate = rate
        self._divided: DividedStep | None = None

    @property
    def wants_whole(self) -> bool:
        """True if the step cannot be divided among the ranks that share memory."""
        return self.needs is None

    @property
    def needs(self) -> ProgramNeeds | None:
        """What ranks that divide the step need of their exchange; None if it cannot be divided."""
        update, model = self._flat_update, self._model
        return DividedStep.needs(update, model.x) if update.elementwise and not model.is_mirrored else None

    def join(self, exchange: Divided) -> None:
        """Take only a part of every step from now on."""
        self._divided = DividedStep(self._loop, self._flat_update, self._model, exchange)
        exchange.before_close = self.leave

    def leave(self) -> None:
        """Give the optimizer what it would remember if it had taken all steps itself."""
        if self._divided is not None:
            self._divided.leave()
            self._divided = None

    def tell(self, *, looks: bool) -> None:
        """Tell the other ranks, with the gradient of this one, whether the program looks at the sum before the step."""
        if self._divided is not None:
            self._divided.tell(looks=looks)

    def start(self, x: Array) -> State:
        """Return the optimizer's state for `x`; that of the model's own parameters is in the optimizer itself."""
        return self.start_at(x, 0)

    def start_at(self, x: Array, first: int) -> State:
        """Return the optimizer's state for a part of the parameters that begins at `first`."""
        if self._divided is not None:
            return self._divided.start(x)
        return {} if self._is_own(x) else self._flat_update.start_at(x, first)

    def apply(self, x: Array, g: Array, eta: float, state: State, scale: float = 1.0) -> None:
        """Let the user's program take the step; if it has computed no gradient, take the step for it."""
        model, loop, factor = self._model, self._loop, eta / self._rate
        scale = scale * loop.divided if loop.reduction == "mean" else 1.0
        if self._divided is not None:
            self._divided.apply(np.asarray(g), factor, scale)
            return
        own = self._is_own(x)
        if not own and not loop.waits:  # for another rank, whose learning rate is in `eta`
            with loop.use_first_rates():
                self._flat_update.apply(x, g, factor, state, scale)
            return
        plain = np.asarray(g)
        if scale != 1:
            np.multiply(plain, scale, plain)
        flat = partial(self._flat_update.apply, x, plain, factor, state)
        step = partial(self._step, factor) if own else flat
        if not loop.waits:  # others have computed the gradient, and none of it is missing
            model.missing = []
        model.spread(plain)
        loop.let_step(step)

    def _is_own(self, x: Array) -> bool:
        own, x = np.asarray(self._model.x), np.asarray(x)
        return x.size == own.size and x.ctypes.data == own.ctypes.data

    def _step(self, factor: float) -> None:
        groups = self._optimizer.param_groups
        rates = [group["lr"] for group in groups]
        if factor != 1:
            for group in groups:
                group["lr"] = group["lr"] * factor
        self._loop.original_step()
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        self._model.fetch()


class DividedStep:
    """This rank's part of the optimizer's steps, and the state of all parts, which is in memory that the ranks share.

    The user's optimizer takes no step itself. Its `state` is complete whenever the program looks at it.
    """

    def __init__(self, loop: Session, update: TorchOptimizer, model: OwnModel, exchange: Divided) -> None:
        self._loop, self._update, self._model, self._exchange = loop, update, model, exchange
        self._vectors: dict[str, Array] = {}
        begin, x = 0, np.asarray(model.x)
        for name, dtype in update.vectors(x.dtype).items():
            end = begin + x.size * dtype.itemsize
            self._vectors[name] = exchange.memory[begin:end].view(dtype)
            begin = pad_to_lines(end)
        self._state: TorchState | None = None
        self._shown = RememberedByAll(self._recall)

    @staticmethod
    def needs(update: TorchOptimizer, x: Array) -> ProgramNeeds:
        """Return what the ranks need: see `tell`, and memory for every vector of the state."""
        sizes = [
            pad_to_lines(np.asarray(x).size * dtype.itemsize) for dtype in update.vectors(x.dtype).values()
        ]
        return ProgramNeeds(notes=1 + len(update.places), room=sum(sizes))

    def start(self, x: Array) -> State:
        """Begin with what the optimizer remembers already; return the state of this rank's part."""
        optimizer, part = self._update.optimizer, self._exchange.part
        mine = {name: values[part] for name, values in self._vectors.items()}
        self._state = self._update.start_at(np.asarray(x), part.start, mine)
        optimizer.state = self._shown  # type: ignore[assignment]
        return self._state

    def _recall(self) -> dict[Any, dict[str, Any]]:
        return {} if self._state is None else self._update.recall(self._state, self._vectors)

    def leave(self) -> None:
        """Give the optimizer a state of its own."""
        remembered: Any = self._update.optimizer.state
        if remembered is self._shown:
            self._update.optimizer.state = defaultdict(dict, remembered)
        self._vectors.clear()

    def tell(self, *, looks: bool) -> None:
        """Note what this rank's program looks at, and which parameters have no gradient here."""
        note, optimizer = self._exchange.note, self._update.optimizer
        note[...] = 0
        if looks or optimizer._optimizer_step_pre_hooks:
            note[0] |= AT_GRADIENT
        if optimizer._optimizer_step_post_hooks:
            note[0] |= AT_STEP
        for number in self._model.missing:
            note[1 + number] = 1

    def apply(self, g: Array, factor: float, scale: float) -> None:
        """Take the step of this rank's part, once the program has seen the gradient if a rank's program wants to."""
        notes, missing = self._exchange.notes, self._model.missing
        absent = frozenset(number for number in missing if notes[:, 1 + number].all())
        looks = int(np.bitwise_or.reduce(notes[:, 0]))
        if not looks & AT_GRADIENT:
            if scale != 1:
                np.multiply(g, scale, g)
            self._loop.let_step(partial(self._step, g, factor, absent, looks))
            return
        every = self._exchange.complete()
        if scale != 1:
            np.multiply(every, scale, every)
        self._model.spread(every, absent)
        self._loop.let_step(
            lambda: self._step(self._collect_gradient(every), factor, self._model.find_missing(), looks)
        )

    def _collect_gradient(self, every: Array) -> Array:
        """Return this rank's part of the gradient as the program has left it."""
        self._model.gather(every)
        return every[self._exchange.part]

    def _step(self, g: Array, factor: float, absent: frozenset[int], looks: int) -> None:
        update, optimizer, state = self._update, self._update.optimizer, self._state
        exchange = self._exchange
        assert state is not None
        self._model.fetch()
        for hook in optimizer._optimizer_step_pre_hooks.values():
            hook(optimizer, (), {})
        if looks & AT_GRADIENT and exchange.is_common:
            exchange.meet()
        exchange.take_changes()
        x = exchange.x
        shown: Any = optimizer.state
        if shown is not self._shown or self._shown.is_seen:
            update.take_over(x, state)  # the program may have changed it
            optimizer.state = self._shown  # type: ignore[assignment]
            self._shown.forget()
        update.absent = absent
        update.apply(x, g, factor, state)
        if looks & AT_STEP:
            exchange.publish()
            for hook in optimizer._optimizer_step_post_hooks.values():
                hook(optimizer, (), {})
            self._model.fetch()
            exchange.meet()
            exchange.take_changes()


# What a program looks at in the middle of a step, so that all ranks wait for each other there.
AT_GRADIENT, AT_STEP = 1, 2


class RememberedByAll(UserDict[Any, Any]):
    """The state of an optimizer whose steps the ranks divide: copies of all parts, made when the program looks at it."""

    def __init__(self, recall: Callable[[], dict[Any, Any]]) -> None:
        self._recall = recall
        self._found: dict[Any, Any] = {}
        self.is_seen = False
        """True if the program has looked at it, and may have changed it, since the last step."""

    @property
    def data(self) -> dict[Any, Any]:  # type: ignore[override]
        """The state of every tensor."""
        if not self.is_seen:
            self._found, self.is_seen = self._recall(), True
        return self._found

    def __missing__(self, tensor: Any) -> dict[str, Any]:
        return self.data.setdefault(tensor, {})  # type: ignore[no-any-return]

    def __reduce__(self) -> Any:
        return defaultdict, (dict, dict(self.data))

    def forget(self) -> None:
        """Drop the copies: a step changes the state."""
        self._found, self.is_seen = {}, False


# ---- the samples: a rank's batches are lists of numbers of samples, which its program's data loader then reads


class Numbers:
    """A split whose samples are their own numbers; `order` is set if they have an order of their own in each epoch."""

    shape: tuple[int, ...] = ()
    label_shape: tuple[int, ...] = ()
    label_dtype: np.dtype[Any] = np.dtype(np.int64)

    def __init__(self, count: int, order: Callable[[int], Array] | None = None) -> None:
        self._count = count
        if order is not None:
            self.order = order

    def __len__(self) -> int:
        return self._count

    def take(self, indices: Array, inputs: Array, labels: Array) -> None:
        """Write the numbers into `labels`."""
        labels[...] = indices


class Source:
    """Where the program's samples come from; this base is one that needs no preparation."""

    def begin(self) -> None:
        """Prepare for a loop of the program over its batches of an epoch."""

    def look_ahead(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Return the same batches; those of an epoch are known in advance."""
        return batches


class Samples(Source):
    """The samples of a map-style data set, read by their numbers as its DataLoader would read them."""

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        if not isinstance(loader.batch_sampler, BatchSampler):
            raise UsageError(
                "share needs a DataLoader with a batch_size: the ranks divide batches of equal size"
            )
        if isinstance(loader.batch_sampler.sampler, DistributedSampler):
            raise UsageError(
                "share divides the samples among the ranks itself: leave out the DistributedSampler"
            )
        self.loader = loader
        batches: Any = loader.batch_sampler
        self.batch: int = batches.batch_size
        sampler, whole = batches.sampler, bool(batches.drop_last)
        count = len(sampler)
        self.count = count - count % self.batch if whole else count
        if self.count == 0:
            raise UsageError(f"the DataLoader has no batch: {count} samples, batches of {self.batch}")
        self._seed, self._sampler = seed, sampler
        dataset: Any = loader.dataset
        plain = isinstance(sampler, RandomSampler) and not sampler.replacement and count == len(dataset)
        shuffled = plain and self.count == count
        self.split = Numbers(self.count, None if shuffled else self._order)
        self._ahead: Iterator[Any] | None = None
        self._known: list[Array] = []
        self.accumulate = 1
        """The parts in which a batch is read."""

    def _order(self, epoch: int) -> Array:
        """Return the numbers of an epoch's samples in the order of the loader's sampler: the same on every rank."""
        if isinstance(self._sampler, SequentialSampler):
            return np.arange(self.count)
        seed = [self._seed, epoch]
        with torch.random.fork_rng(devices=[]):
            number = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1)
            torch.manual_seed(number)
            own = getattr(self._sampler, "generator", None)
            if own is not None:
                own.manual_seed(number)
            if hasattr(self._sampler, "set_epoch"):
                self._sampler.set_epoch(epoch)
            found = np.fromiter(iter(self._sampler), np.int64)
        return found[: self.count]

    def look_ahead(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Let the loader's worker processes read an epoch's batches in advance."""
        if not self.loader.num_workers:
            yield from batches
            return
        known = []
        for batch in batches:
            batch.labels, batch.inputs = batch.labels.copy(), batch.inputs[:0]
            known.append(batch)
        self._known = [
            part for batch in known for part in np.array_split(batch.labels, self.accumulate) if len(part)
        ]
        self._ahead = iter(self._make_loader([labels.tolist() for labels in self._known]))
        yield from known
        self._ahead = None

    def _make_loader(self, lists: list[list[int]]) -> DataLoader[Any]:
        of = self.loader
        return DataLoader(
            of.dataset, batch_sampler=lists, num_workers=of.num_workers, collate_fn=of.collate_fn,
            pin_memory=of.pin_memory, timeout=of.timeout, worker_init_fn=of.worker_init_fn,
            multiprocessing_context=of.multiprocessing_context, prefetch_factor=of.prefetch_factor,
        )  # fmt: skip

    def read(self, numbers: Array) -> Any:
        """Return the batch of these samples, as the loader would."""
        if self._ahead is not None and self._known and np.array_equal(self._known[0], numbers):
            self._known.pop(0)
            return next(self._ahead)
        dataset, wanted = self.loader.dataset, numbers.tolist()
        if hasattr(dataset, "__getitems__"):
            return self.loader.collate_fn(dataset.__getitems__(wanted))
        return self.loader.collate_fn([dataset[number] for number in wanted])


class Stream(Source):
    """The samples of an IterableDataset: every rank reads the whole stream in every epoch, and keeps its own."""

    def __init__(self, loader: DataLoader[Any], steps: int | None) -> None:
        if loader.batch_size is None:
            raise UsageError("share needs a DataLoader with a batch_size")
        samples = None
        if steps is None:
            try:
                steps = len(loader)
            except TypeError:
                raise UsageError(
                    "the length of an IterableDataset is unknown: give share(loader, steps=N), the batches in an epoch"
                ) from None
            if not loader.drop_last:
                samples = len(loader.dataset)  # type: ignore[arg-type]
        self.loader = loader
        self.batch: int = loader.batch_size
        self.count = steps * self.batch if samples is None else samples
        self.split = Numbers(self.count, self._order)
        self._stream: Iterator[Any] = iter(())
        self._position = -1
        self._now: Any = None

    def _order(self, epoch: int) -> Array:
        return np.arange(self.count)

    def begin(self) -> None:
        """Read the stream from its beginning again."""
        self._position = -1

    def read(self, numbers: Array) -> Any:
        """Return the samples at these places of the stream, which are all in one batch; places only increase."""
        wanted, first = divmod(int(numbers[0]), self.batch)
        if self._position < 0:
            self._stream = iter(self.loader)
        while self._position < wanted:
            try:
                self._now = next(self._stream)
            except StopIteration:
                raise UsageError(
                    f"the IterableDataset ended after {self._position + 1} batches; "
                    f"share was told to expect {self.count // self.batch}"
                ) from None
            self._position += 1
        there, expected = _length(self._now), min(self.batch, self.count - wanted * self.batch)
        if there != expected:
            raise UsageError(
                f"batch {wanted} of the IterableDataset has {there} samples, not {expected}: give the DataLoader "
                "drop_last=True"
            )
        return _cut(self._now, slice(first, first + len(numbers)))


class Arrays(Source):
    """Samples in arrays or tensors that are indexed together."""

    def __init__(self, arrays: Sequence[Any], batch: int | None) -> None:
        self._tensors = [torch.as_tensor(array) for array in arrays]
        lengths = {len(tensor) for tensor in self._tensors}
        if len(lengths) != 1 or 0 in lengths:
            raise UsageError(f"share needs arrays of equal length; got {sorted(lengths)} samples")
        if batch is None:
            raise UsageError("give share(arrays, batch=N), the samples in a batch")
        self.batch, self.count = batch, lengths.pop()
        self.split = Numbers(self.count)

    def read(self, numbers: Array) -> Any:
        """Return the samples with these numbers."""
        rows = torch.from_numpy(numbers)
        return tuple(tensor.index_select(0, rows) for tensor in self._tensors)  # faster than tensor[rows]


def _length(batch: Any) -> int:
    """Return the number of samples in a batch: the length of its first tensor or list."""
    while isinstance(batch, (Mapping, tuple)):
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch))
    if isinstance(batch, list) and batch and isinstance(batch[0], (torch.Tensor, np.ndarray, Mapping, tuple)):
        return _length(batch[0])
    return len(batch)


def _cut(batch: Any, part: slice) -> Any:
    """Return a slice of every tensor of a batch.

    >>> _cut({"a": torch.arange(4), "b": ["w", "x", "y", "z"]}, slice(1, 3))
    {'a': tensor([1, 2]), 'b': ['x', 'y']}
    """
    if isinstance(batch, Mapping):
        return {name: _cut(value, part) for name, value in batch.items()}
    if isinstance(batch, tuple):
        cut = [_cut(value, part) for value in batch]
        return type(batch)(*cut) if hasattr(batch, "_fields") else tuple(cut)
    if isinstance(batch, list) and batch and isinstance(batch[0], (torch.Tensor, np.ndarray, Mapping, tuple)):
        return [_cut(value, part) for value in batch]
    return batch[part]


def samples_of(thing: Any, *, batch: int | None, steps: int | None, seed: int) -> Source:
    """Return the samples of a DataLoader, a torch Dataset, or a tuple of arrays."""
    if isinstance(thing, DataLoader):
        if batch is not None:
            raise UsageError("the DataLoader has a batch size of its own: leave out batch")
        if isinstance(thing.dataset, IterableDataset):
            return Stream(thing, steps)
        found: Source = Samples(thing, seed)
    elif isinstance(thing, torch.utils.data.Dataset):
        if batch is None:
            raise UsageError("give share(dataset, batch=N), the samples in a batch")
        return samples_of(
            DataLoader(thing, batch_size=batch, shuffle=True), batch=None, steps=steps, seed=seed
        )
    elif isinstance(thing, (tuple, list, np.ndarray, torch.Tensor)):
        found = Arrays([thing] if isinstance(thing, (np.ndarray, torch.Tensor)) else thing, batch)
    else:
        raise UsageError(
            f"share takes a DataLoader, a torch Dataset or a tuple of arrays; got {type(thing).__name__}"
        )
    if steps is not None:
        raise UsageError("steps is for an IterableDataset, whose length is unknown; leave it out")
    return found


def group(samples: Any, accumulate: int, ranks: int, seed: int) -> Numbers:
    """Return samples in groups of `accumulate` batches; batches that fill no group are left out.

    `ranks`: the number of ranks that divide every batch. The group is ordered so that a rank's slice of it consists of its
    pieces of each batch.
    """
    batch, split = samples.batch, samples.split
    if batch % ranks:
        raise UsageError(
            f"accumulate needs batches that the {ranks} ranks divide evenly; the batch size is {batch}"
        )
    whole = accumulate * batch
    count = len(split) - len(split) % whole
    if not count:
        raise UsageError(f"{len(split)} samples do not fill {accumulate} batches of {batch}")

    def order(epoch: int) -> Array:
        own = getattr(split, "order", None)
        draw = np.random.default_rng([seed, epoch]).permutation
        numbers = np.asarray(draw(len(split)) if own is None else own(epoch))[:count]
        return numbers.reshape(-1, accumulate, ranks, batch // ranks).swapaxes(1, 2).reshape(-1)

    return Numbers(count, order)


class Share:
    """This rank's batches of an epoch; its length is their number."""

    def __init__(self, loop: Session, samples: Any, accumulate: int) -> None:
        self._loop, self._samples, self._accumulate = loop, samples, accumulate

    def __len__(self) -> int:
        """Return the number of batches that a rank gets in an epoch: the largest, if some get fewer."""
        count, group = self._samples.count, self._samples.batch * self._accumulate
        count -= count % group if self._accumulate > 1 else 0
        return self._loop.batches_per_epoch(count, group) * self._accumulate

    def __iter__(self) -> Iterator[Any]:
        return self._loop.batches(self._samples, self._accumulate)


# ---- the session


class Session:
    """A program's own training loop on the ranks of its job; created by `paceline.session`."""

    def __init__(
        self, *, comm: Any, strategy: Any, runs: Any, name: str | None, seed: int, threads: int | None,
        trace: bool, quiet: bool, stall_timeout: str, on_stall: Any, program: Mapping[str, Any] | None = None,
        until: Sequence[Any] | None = None,
    ) -> None:  # fmt: skip
        self._given = comm
        self._strategy = strategy
        self._runs = None if runs is None else Path(runs)
        self._name, self._seed, self._threads, self._trace, self._quiet = name, seed, threads, trace, quiet
        self._safety = Safety.of_program(stall_timeout, on_stall)
        self._program = describe_program() if program is None else program
        self._until = until
        """A metric, whether higher values of it are better, and the value at which training ends."""
        self._stack = contextlib.ExitStack()
        self._model: OwnModel | None = None
        self._update: OwnUpdate | None = None
        self._talk: Conversation | None = None
        self._turn: Turn | None = None
        self._epochs: int | None = None
        self._epoch = self._shared = -1
        """The program's epoch, and the last one whose batches it has begun to iterate over."""
        self._loss = 0.0
        self._handed = False
        self._metrics: dict[str, float] = {}
        self._entered = False
        self._looks = False
        self._in_pass = False
        """True during a backward pass."""
        self._more_to_come = False
        """True if the gradients of other batches will be added before the step."""
        self._passes = 0
        """The backward passes of the current batch."""
        self._passes_in_step: int | None = None
        """The number of them, once a step was taken."""
        self._laps: dict[int, float] = {}
        """The seconds that simulated ranks take for layers in a backward pass."""
        self._lap = 0.0
        self._lap_count = 0
        self.waits = False
        """True if the program has computed a gradient and not taken a step with it."""
        self.divided = 1
        """The number of samples by which the gradients of the ranks have been divided already."""
        self.left = False
        """True if the program has left its loop over the epochs, or reached the target at which it ends."""
        self._left_between = False
        """True if the program has left that loop when the strategy had begun the next epoch."""
        self.reduction = "mean"
        self.rank, self.size = 0, 1
        self.fitted: Fitted | None = None
        """The results, as those of `paceline.fit`, when training is over."""
        self.samples: Any = None

    # ---- the block

    def __enter__(self) -> Session:
        if self._entered:
            raise UsageError("a session can be entered only once")
        self._entered = True
        self.comm = _world() if self._given is None else self._given
        try:
            with contextlib.ExitStack() as stack:
                self._enter(stack)
                self._stack = stack.pop_all()
        except AgreedError as error:
            self._refuse(error)
            raise
        return self

    def _enter(self, stack: contextlib.ExitStack) -> None:
        if self.comm is None:
            self.strategy: Any = strategy_of("serial")
        else:
            self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
            if self._is_simulated:
                self.strategy = self._choose_strategy()
            else:
                verify(self.size)
                take_cores()
                stack.enter_context(abort_on_error(self.comm))
                self.strategy = agree(self.comm, self._choose_strategy)
        stack.callback(self._end)
        getcurrent().paceline_session = self
        stack.enter_context(Hooks())

    def _choose_strategy(self) -> Any:
        strategy = strategy_of(self._strategy)
        if isinstance(strategy, Strategy):
            strategy.check(self.size)
        return strategy

    def _refuse(self, error: AgreedError) -> None:
        """Print an error that all ranks have found, on rank 0, and end them with status 2; do nothing on one process."""
        if self.size == 1 or self._is_simulated:
            return
        if self.rank == 0:
            sys.stderr.write(f"paceline: {error}\n")
            sys.stderr.flush()
        raise SystemExit(2)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        if kind is None and self._turn is not None and self.fitted is None:
            error = UsageError(
                f"with {strategy_name(self.strategy)}, the loop over ranks.epochs(…) cannot be left early, because ranks "
                "have begun the next epoch by then: give epochs the number of epochs to train"
                if self._left_between
                else "the loop over ranks.epochs(…) ended before training did"
            )
            self._stack.__exit__(UsageError, error, None)
            raise error
        if kind is not None and not (isinstance(error, SystemExit) and not error.code):
            # A loop that an exception leaves ends like one that `break` leaves: training has ended, and was recorded.
            announce_failure()
            if self.rank == 0 and self.fitted is not None and self.fitted.run is not None:
                withdraw(self.fitted.run)
        handled = self._stack.__exit__(kind, error, trace)
        if isinstance(error, AgreedError):
            self._refuse(error)
        return handled

    def _end(self) -> None:
        if self._talk is not None:
            self._talk.abandon()
        if self._update is not None:
            self._update.leave()
        if self.original_step is not None:
            self._optimizer.step = self.original_step  # type: ignore[method-assign]
        getcurrent().paceline_session = None

    # ---- what the program says

    _optimizer: torch.optim.Optimizer
    original_step: Any = None
    """The optimizer's own `step`, once it is attached."""

    def attach(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        reduction: Literal["mean", "sum"] = "mean",
    ) -> tuple[Any, Any]:
        """Let the strategy act in `optimizer.step()`; return the same model and optimizer.

        Parameters become views of one flat vector. The loss of a batch must be a mean over its samples or, with
        `reduction="sum"`, a sum, so that the pieces of a batch that several ranks compute can be put together.
        """
        if self._model is not None:
            raise UsageError(
                "attach can be called only once in a session: put several modules into a torch.nn.ModuleList"
            )
        if not isinstance(model, nn.Module) or not isinstance(optimizer, torch.optim.Optimizer):
            raise UsageError(
                "attach takes a torch.nn.Module and a torch optimizer; got "
                f"{type(model).__name__}, {type(optimizer).__name__}"
            )
        if reduction not in ("mean", "sum"):
            raise UsageError(f"reduction must be mean or sum; got {reduction!r}")
        self.reduction = reduction
        mine = {id(p) for p in model.parameters()}
        strange = sum(id(p) not in mine for group in optimizer.param_groups for p in group["params"])
        if strange:
            raise UsageError(f"{strange} parameters of the optimizer are not in the model given to attach")
        if any(p.device.type != "cpu" for p in model.parameters()):
            raise UsageError("the model must be on the CPU")
        self._model = OwnModel(model, self)
        self._frozen = self._model.frozen
        # A scheduler that warms up and was created before has set the rates to 0, and remembers the others here.
        self._rates = [float(group["lr"] or group.get("initial_lr", 0.0)) for group in optimizer.param_groups]
        self._rate = self._rates[0] or 1.0
        self._options = [
            {name: group[name] for name in optimizer.defaults if name != "lr"}
            for group in optimizer.param_groups
        ]
        self._update = OwnUpdate(self, optimizer, self._model, self._rate)
        self._optimizer, self.original_step = optimizer, optimizer.step
        loop = self

        def step(self: Any, closure: Any = None) -> None:
            """Exchange gradients as the strategy says, and take a step."""
            if closure is not None:
                raise UsageError(
                    "optimizer.step(closure) evaluates the loss several times; strategies need one gradient"
                )
            loop._step()

        # Schedulers look for these, and warn where a step was not taken by the optimizer itself, or by a master instead.
        step.__dict__.update(getattr(optimizer.step, "__dict__", {}))
        optimizer._opt_called = True  # type: ignore[attr-defined]
        optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
        return model, optimizer

    def epochs(self, count: int) -> Iterator[int]:
        """Iterate over the numbers of `count` epochs; fewer if training ends early."""
        if self._epochs is not None:
            raise UsageError("epochs can be called only once in a session")
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise UsageError(f"epochs must be a whole number of at least 1; got {count!r}")
        self._epochs = count
        return self._iterate(count)

    def _iterate(self, count: int) -> Iterator[int]:
        try:
            for epoch in range(count):
                self._epoch = epoch
                yield epoch
                if self._turn is None:
                    raise UsageError("an epoch must iterate over ranks.share(loader)")
                self._end_epoch()
                if self._turn.kind == "end":
                    return
            while self._turn is not None and self._turn.kind != "end":
                self._end_epoch(last=True)
        except GeneratorExit:  # the program has left the loop
            if self._turn is not None:
                self.left = self.left or self._turn.kind == "epoch"
                with contextlib.suppress(GreenletExit):  # an exception has ended the session
                    while self._turn.kind == "epoch":
                        self._end_epoch()
                self._left_between = self._turn.kind == "batch" and self._turn.epoch > self._epoch
            raise

    def _end_epoch(self, *, last: bool = False) -> None:
        assert self._turn is not None
        if self._turn.kind == "epoch":
            metrics, self._metrics = self._metrics, {}
            self.left = self.left or self._is_reached(metrics)
            self._answer(metrics)
        elif self._turn.kind == "batch" and (last or self._turn.epoch <= self._epoch):
            raise UsageError(
                "the loop over share(loader) ended before its last batch, for which the other ranks wait; to shorten "
                "an epoch, give share an IterableDataset with steps=N"
            )

    def _is_reached(self, metrics: Mapping[str, float]) -> bool:
        """Return True if training ends because of these metrics: those of rank 0, which are recorded."""
        if self._until is None or self.rank != 0:
            return False
        name, higher, value = self._until
        found = metrics.get(name, math.nan)
        return bool(found >= value if higher else found <= value)

    def share(
        self, loader: Any, *, batch: int | None = None, steps: int | None = None, accumulate: int = 1
    ) -> Share:
        """Return this rank's batches of an epoch, divided among the ranks by the strategy's own rule.

        `loader` is a DataLoader, a torch Dataset or a tuple of arrays; `batch` (for the last two) and the loader's
        `batch_size` are the samples of a batch: of all ranks together if the strategy divides batches among ranks, of each
        if it deals out whole ones. `steps`: the batches in an epoch of an IterableDataset whose length is unknown.
        `accumulate`: the number of batches of which the program adds up the gradients before each `optimizer.step()`.
        """
        if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
            raise UsageError(f"accumulate must be a whole number of at least 1; got {accumulate!r}")
        if self.samples is None or self._loader is not loader:
            before, self._loader = self.samples, loader
            self.samples = samples_of(loader, batch=batch, steps=steps, seed=self._seed)
            size = (self.samples.count, self.samples.batch)
            if before is not None and size != (before.count, before.batch):
                raise UsageError(
                    f"share needs as many samples and the same batch size in every epoch: {before.count} in batches of "
                    f"{before.batch} at first, now {size[0]} in batches of {size[1]}"
                )
        return Share(self, self.samples, accumulate)

    _loader: Any = None
    _whole_batch: Callable[[int], Array]
    """Returns all samples of the batch of a step."""
    _place: SimulatedProgram | None = None
    _began = 0.0

    @property
    def _is_simulated(self) -> bool:
        return getattr(self.comm, "kernel", None) is not None

    @property
    def _others_step(self) -> bool:
        """True if other ranks, the masters, take the steps. A strategy that is a function does not say so."""
        return getattr(self.strategy, "remote_update", False)

    @property
    def _deals_batches(self) -> bool:
        """True if a rank gets whole batches; False if all ranks divide each."""
        return getattr(self.strategy, "whole_batches", False)

    def validate(self, *evaluations: Callable[[], Mapping[str, float]], **metrics: Any) -> None:
        """Record metrics of this epoch: numbers, or functions that return one.

        A function is called only where its result is used. `accuracy` and `loss` are the ones that reports show by default.
        """
        if self._turn is not None and self._turn.kind == "batch":
            return  # another rank evaluates the model of this epoch
        for evaluate in evaluations:
            metrics = {**evaluate(), **metrics}
        for name, value in metrics.items():
            value = value() if callable(value) else value
            value = value.item() if hasattr(value, "item") else value
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise UsageError(f"metric {name} must be a number; got {type(value).__name__}")
            self._metrics[name] = float(value)

    def exchange(self) -> None:
        """Exchange gradients now, before `optimizer.step()`: afterwards they are those that the optimizer will use.

        PyTorch's `clip_grad_norm_` and `clip_grad_value_` call this. Call it before your own code that reads or changes
        gradients. For strategies whose ranks step with their own gradients it changes nothing.
        """
        if self._turn is None or self._turn.kind != "batch" or not self._handed:
            return
        if self._others_step:
            return  # the gradient is sent when the program is done with it
        self._finish_gradient(looks=True)
        if not self.waits:
            raise UsageError(
                f"{strategy_name(self.strategy)} uses gradients before the program can clip them"
            )

    def rate_factor(self) -> float:
        """Return the factor by which learning rates have changed since attach; it must be the same for all groups."""
        if not self._others_step:
            return 1.0
        groups, strategy = self._optimizer.param_groups, strategy_name(self.strategy)
        for number, (group, options) in enumerate(zip(groups, self._options, strict=True), 1):
            for name, value in options.items():
                if group[name] != value:
                    raise UsageError(
                        f"with {strategy}, only learning rates may change after attach, because masters know of no other "
                        f"option: {name} of group {number} was {value} and is now {group[name]} (OneCycleLR and CyclicLR "
                        "change it unless they get cycle_momentum=False)"
                    )
        factors = [
            float(group["lr"]) / rate if rate else math.inf
            for group, rate in zip(groups, self._rates, strict=True)
            if rate or group["lr"]
        ] or [1.0]
        if math.isinf(max(factors)) or max(factors) - min(factors) > 1e-6 * max(factors):
            raise UsageError(
                f"{strategy} steps with one learning rate schedule for all parameter groups; "
                f"theirs have changed by factors of {min(factors):.4g} to {max(factors):.4g} since attach"
            )
        return factors[0]

    @contextlib.contextmanager
    def use_first_rates(self) -> Iterator[None]:
        """Give the optimizer the learning rates that it had at attach."""
        groups = self._optimizer.param_groups
        now = [group["lr"] for group in groups]
        for group, rate in zip(groups, self._rates, strict=True):
            group["lr"] = rate
        try:
            yield
        finally:
            for group, rate in zip(groups, now, strict=True):
                group["lr"] = rate

    def exchange_before(self, lists: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Exchange gradients before PyTorch clips them; return the lists of gradients with the exchanged ones."""
        if self._model is None:
            return [list(tensors) for tensors in lists]
        owners = {id(p.grad): p for p, _ in self._model.places if p.grad is not None}
        if any(id(tensor) in owners for tensors in lists for tensor in tensors):
            self.exchange()
        found = [[owners[id(one)].grad if id(one) in owners else one for one in tensors] for tensors in lists]
        return [[one for one in tensors if one is not None] for tensors in found]

    # ---- turns of the program

    def batches_per_epoch(self, samples: int, batch: int) -> int:
        """Return the number of batches of this rank in an epoch."""
        steps = -(-samples // batch)
        if not self._deals_batches:
            return steps
        workers = self.strategy.workers(self.size) if isinstance(self.strategy, Strategy) else self.size
        return -(-steps // workers)

    def batches(self, samples: Any, accumulate: int) -> Iterator[Any]:
        """Yield this rank's batches of the program's current epoch."""
        if self._turn is None:
            self._begin(samples, accumulate)
        if self._shared == self._epoch and self._find_batch() is None:
            raise UsageError(
                "all batches of this epoch have been used: iterate over ranks.share(loader) once in an epoch"
            )
        self._shared = self._epoch
        samples.begin()
        while (batch := self._find_batch()) is not None:
            turn = self._turn
            numbers = batch.labels if batch.count else self._whole_batch(batch.step)
            self._handed, self._loss = True, 0.0
            pieces = np.array_split(numbers, accumulate) if accumulate > 1 else [numbers]
            for number, piece in enumerate(pieces, 1):
                if len(piece):
                    self._passes = 0  # those of the last piece count
                    self._more_to_come = number < accumulate
                    yield samples.read(piece)
            if self._turn is turn and self._handed:
                raise UsageError(
                    "optimizer.step() was not called for a batch, which the other ranks wait for (a GradScaler may skip it"
                    "); to add up the gradients of several batches, give share(loader, accumulate=N)"
                )

    def _find_batch(self) -> Batch | None:
        """Return the batch of the program's current epoch that it is this rank's turn to compute; None: there is none."""
        turn = self._turn
        return turn.batch if turn is not None and turn.kind == "batch" and turn.epoch == self._epoch else None

    def _begin(self, samples: Any, accumulate: int) -> None:
        """Start the strategy."""
        if self._model is None or self._update is None:
            raise UsageError("call attach(model, optimizer) before share")
        if self._epochs is None:
            raise UsageError("iterate over share inside the loop: for epoch in ranks.epochs(N)")
        model, update, split = self._model, self._update, samples.split
        samples.accumulate = accumulate
        if accumulate > 1:
            split = group(samples, accumulate, 1 if self._deals_batches else self.size, self._seed)
        empty = Numbers(0)
        data = Dataset(
            name=_describe_data(samples), shape=(), classes=0, train=split, validation=empty, test=empty
        )
        config = Config(
            data=_describe_data(samples), model=_describe(model.module), strategy=strategy_name(self.strategy),
            update=describe_optimizer(self._optimizer), lr=self._rate, batch=min(samples.batch * accumulate, len(split)),
            epochs=self._epochs, seed=self._seed, threads=self._threads, on_divergence="ignore",
        )  # fmt: skip
        job = Job(
            config=config, data=data, model=model, strategy=self.strategy, update=update, runs=self._runs,
            run_name=self._name, trace=self._trace, program=self._program, safety=self._safety,
            objects=("data", "model", "update", *(() if isinstance(self._strategy, str) else ("strategy",))),
        )  # fmt: skip
        batches = Batches(split, batch=config.own_batch(), seed=config.seed)
        self._whole_batch = lambda step: np.array(batches.indices(*divmod(step, batches.steps_per_epoch)))
        if self._is_simulated:
            self._place = SimulatedProgram(self.comm)
        self._talk = Conversation(lambda: self._train(job), self.comm)
        self._answer()

    def _train(self, job: Job) -> Fitted:
        def show(epochs: int, steps: int, samples: int) -> EpochLines:
            return EpochLines(
                sys.stderr, epochs=epochs, steps=steps, samples=samples, simulated=self._is_simulated
            )

        shown = None if self._quiet else show
        return (
            train(job, self.comm, progress=shown)
            if self._place is None
            else train_at(self._place, job, shown)
        )

    def _answer(self, value: Any = None) -> None:
        """Let the strategy go on; note where it is when it is the program's turn again."""
        assert self._talk is not None
        if self._place is not None and self._turn is not None:
            self._lap_count = count = 0 if self._turn.batch is None else self._turn.batch.count
            seconds = time.thread_time() - self._began - sum(self._laps.values())
            self._place.charge((self._turn.kind, count), seconds)
        self._turn = self._talk.answer(value)
        if self._place is not None:
            self._began = time.thread_time()
        if self._turn.kind == "end":
            self.fitted = self._turn.fitted
            assert self._model is not None
            self._model.show()

    def run_backward(self, run: Callable[[], None]) -> None:
        """Run a backward pass; if it is the last of a step, layers whose gradient is final may be exchanged meanwhile.

        The last pass is known by its number, which is that of the first step.
        """
        model = self._model
        if (
            model is None
            or not model.reports_layers
            or not self._handed
            or self._more_to_come
            or self._in_pass
            or self._others_step  # the program may clip what is sent
        ):
            run()
            return
        self._passes += 1
        if self._passes_in_step is not None and self._passes > self._passes_in_step:
            raise UsageError(
                "overlap=true needs the same number of backward passes in every step: the first had "
                f"{self._passes_in_step}, this one has more; leave it out"
            )
        self._in_pass = True
        try:
            if self._passes == self._passes_in_step:
                self._lap = time.thread_time()
                model.report_layers(run, self._weight())
            else:
                run()
        finally:
            self._in_pass = False

    def end_lap(self, layer: int) -> None:
        """Note how long a simulated rank has computed since the last layer whose gradient became final."""
        if self._place is not None:
            now = time.thread_time()
            self._laps[layer], self._lap = now - self._lap, now

    def charge_lap(self, layer: int) -> None:
        """Let a simulated rank's clock advance by the time that was noted for a layer."""
        if self._place is not None and layer in self._laps:
            self._place.charge(("layer", layer, self._lap_count), self._laps.pop(layer))

    def note_loss(self, loss: float) -> None:
        """Note the loss of a backward pass."""
        self._loss += loss

    def _weight(self) -> float:
        """Return the factor on this rank's gradient of the current batch, so that those of all ranks can be summed."""
        assert self._turn is not None
        batch = self._turn.batch
        assert batch is not None
        # Pieces of a batch are divided by its samples here, where that costs nothing, and not when they have been summed.
        self.divided = 1 if self._deals_batches else max(batch.total, 1)
        return batch.count / self.divided if self.reduction == "mean" or not batch.count else 1.0

    def _finish_gradient(self, *, looks: bool) -> None:
        """Hand the gradient to the strategy; if the program `looks` at the exchanged one, it takes the step itself."""
        assert self._turn is not None
        assert self._update is not None
        assert self._turn.batch is not None
        assert self._model is not None
        batch = self._turn.batch
        if self._others_step and self._frozen != self._model.frozen:
            raise UsageError(
                f"with {strategy_name(self.strategy)}, parts of the model cannot be frozen or unfrozen after attach: the "
                "masters would not know"
            )
        self._model.collect(self._weight())
        self._passes_in_step = self._passes_in_step or self._passes or None
        self._passes = 0
        self._update.tell(looks=looks)
        self._handed, self.waits, self._looks = False, True, looks
        self._answer(self._loss * (batch.count if self.reduction == "mean" else 1))
        if self._turn.kind != "step":
            self.waits = False

    def _step(self) -> None:
        if (
            self._turn is None
            or self._turn.kind in ("epoch", "end")
            or (self._turn.kind == "batch" and not self._handed)
        ):
            raise UsageError(
                "optimizer.step() must be called once for each batch of ranks.share(loader), inside of its loop"
            )
        if self._turn.kind == "batch":
            self._finish_gradient(looks=False)
        elif self._turn.kind == "step":
            assert self._turn.step is not None
            self._turn.step()
            self.waits = False
            self._answer()

    # ---- turns of the strategy

    def compute(self, batch: Batch) -> float:
        """Let the program compute the gradient of a batch; return the loss."""
        assert self._talk is not None
        loss: float = self._talk.ask(Turn("batch", batch, epoch=batch.epoch))
        return loss

    def let_step(self, step: Callable[[], None]) -> None:
        """Take a step with the gradients of the parameters; if the program looks at them first, let it do so."""
        if self.waits and self._looks:
            assert self._talk is not None
            self._talk.ask(Turn("step", step=step))
        else:
            step()
        self.waits = False

    def evaluate(self, epoch: int) -> dict[str, float]:
        """Let the program evaluate the model."""
        assert self._talk is not None
        metrics: dict[str, float] = self._talk.ask(Turn("epoch", epoch=epoch))
        return metrics or {}


def _world() -> Any:
    """Return the communicator of the job that this process, or this simulated rank, belongs to; None if it is alone."""
    loaded = sys.modules.get("mpi4py.MPI")
    if loaded is not None and getattr(loaded, "simulated", False):
        from paceline.vmpi.communicator import current_world

        return current_world()
    return None if world() is None else mpi().COMM_WORLD


def _describe(thing: Any) -> str:
    """Return the record's description of an object of the program."""
    thing = getattr(thing, "_orig_mod", thing)  # of a compiled module
    return f"{Path(sys.argv[0]).name or 'python'}:{type(thing).__qualname__}"


def _describe_data(samples: Any) -> str:
    loader = getattr(samples, "loader", None)
    return _describe(samples if loader is None else loader.dataset)


# ---- what the program calls in PyTorch


class Hooks:
    """The functions of PyTorch that a session replaces while it lasts; simulated ranks of one process share them."""

    users = 0
    originals: tuple[Any, Any] = (None, None)

    def __enter__(self) -> None:
        Hooks.users += 1
        if Hooks.users == 1:
            Hooks.originals = torch.autograd.backward, getattr(clip_grad, GROUP)
            torch.autograd.backward = partial(_backward, Hooks.originals[0])
            setattr(clip_grad, GROUP, partial(_group, Hooks.originals[1]))

    def __exit__(self, *_: object) -> None:
        Hooks.users -= 1
        if Hooks.users == 0:
            torch.autograd.backward = Hooks.originals[0]
            setattr(clip_grad, GROUP, Hooks.originals[1])


# All functions of PyTorch that clip gradients call this one first, with the gradients.
GROUP = "_group_tensors_by_device_and_dtype"


def _session_here() -> Session | None:
    return getattr(getcurrent(), "paceline_session", None)


def _backward(original: Callable[..., None], tensors: Any, *arguments: Any, **options: Any) -> None:
    """Compute gradients, and note the loss."""
    run, loop = partial(original, tensors, *arguments, **options), _session_here()
    if loop is None:
        run()
    else:
        loop.run_backward(run)
        losses = tensors if isinstance(tensors, (tuple, list)) else [tensors]
        loop.note_loss(sum(float(one.detach()) for one in losses if one.numel() == 1))


def _group(original: Callable[..., Any], tensors: Any, *arguments: Any, **options: Any) -> Any:
    """Exchange gradients before they are clipped."""
    loop = _session_here()
    if loop is not None:
        tensors = loop.exchange_before(tensors)
    return original(tensors, *arguments, **options)
