"""Any `torch.nn.Module` as a model: its parameters and gradients are views of two flat NumPy vectors.

`backward` accumulates straight into `g`: an exchange is one message, and both can be in shared memory.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn import functional as F
from torch.nn.parameter import is_lazy

from paceline.data import Batch
from paceline.errors import UsageError, unknown
from paceline.models._model import Array, Ready

# ---- Any loss callable as a sum over samples, and what its outputs say about the class.

# Losses that compare entry by entry: the labels are brought to the outputs' shape and dtype.
ENTRYWISE = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss)
ENTRYWISE_FUNCTIONS = frozenset({
    F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits,
})  # fmt: skip


class SummedLoss:
    """`loss(outputs, labels)`, summed over the samples so that the pieces of a batch add up to the whole.

    Without a loss: cross-entropy for classes, mean squared error for real targets. A mean counts each sample
    once: class weights and `ignore_index` weigh the samples' losses, not the number they are divided by.
    """

    def __init__(self, loss: Callable[..., Any] | None, reduction: str) -> None:
        if loss is not None and not callable(loss):
            raise UsageError(f"a loss must be callable as loss(outputs, labels); got {type(loss).__name__}")
        reduction = getattr(loss, "reduction", None) or reduction
        if reduction not in ("mean", "sum", "none", "batchmean"):
            raise unknown("reduction", reduction, ["mean", "sum", "none"])
        self.reduction = reduction
        self.loss = loss
        self.by_class = isinstance(loss, (nn.CrossEntropyLoss, nn.NLLLoss)) and reduction == "mean"
        if self.by_class:
            self.loss = copy.copy(loss)
            self.loss.reduction = "sum"  # type: ignore[union-attr]

    def __call__(self, outputs: Any, labels: Tensor) -> Tensor:
        count = len(labels)
        if labels.is_floating_point():
            labels = labels.to(first(outputs).dtype)
        if self.loss is None:
            scores = first(outputs)
            if labels.is_floating_point():
                return F.mse_loss(scores, _matched(labels, scores)) * count
            return F.cross_entropy(scores, labels, reduction="sum") / _positions(scores)
        if self.by_class:
            scores = first(outputs)
            return self.loss(scores, labels) / _positions(scores)  # type: ignore[no-any-return]
        if isinstance(self.loss, ENTRYWISE) or self.loss in ENTRYWISE_FUNCTIONS:
            outputs = first(outputs)
            labels = _matched(labels, outputs)
        loss = self.loss(outputs, labels)
        if self.reduction == "none":
            return loss.sum()  # type: ignore[no-any-return]
        if loss.numel() != 1:
            shape = tuple(loss.shape)
            raise UsageError(f"the loss must be one number, or reduction='none'; got the shape {shape}")
        return loss.reshape(()) * (1 if self.reduction == "sum" else count)  # type: ignore[no-any-return]

    def scores(self, outputs: Any) -> Tensor:
        """One row a sample, the largest entry its class; one logit or probability becomes two columns."""
        scores = first(outputs)
        if not isinstance(self.loss, (nn.BCELoss, nn.BCEWithLogitsLoss)) or scores.numel() != len(scores):
            return scores
        column = scores.reshape(-1, 1)
        other = 1 - column if isinstance(self.loss, nn.BCELoss) else torch.zeros_like(column)
        return torch.cat([other, column], dim=1)


def first(outputs: Any) -> Tensor:
    """The scores in what a module returned: the tensor, the one called logits, or the first of several."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(logits := getattr(outputs, "logits", None), Tensor):
        return logits
    if isinstance(outputs, Mapping) and outputs:
        return first(outputs["logits"] if "logits" in outputs else next(iter(outputs.values())))
    if isinstance(outputs, (tuple, list)) and outputs:
        return first(outputs[0])
    kind = type(outputs).__name__
    raise UsageError(f"a module must return a tensor, or several with the scores first; got {kind}")


def _positions(scores: Tensor) -> int:
    """Predictions in one sample: 1, or the pixels of an image that is classified pixel by pixel."""
    return max(1, scores.shape[2:].numel())


def _matched(labels: Tensor, scores: Tensor) -> Tensor:
    """The labels in the shape and dtype of the scores: one-hot where there is a score for each class."""
    if labels.shape == scores.shape:
        return labels.to(scores.dtype)
    if labels.numel() == scores.numel():
        return labels.to(scores.dtype).reshape(scores.shape)
    if not labels.is_floating_point() and labels.ndim == 1 and scores.ndim == 2:
        return F.one_hot(labels, scores.shape[1]).to(scores.dtype)
    raise UsageError(
        f"outputs and labels must have one shape; got {tuple(scores.shape)} and {tuple(labels.shape)}"
    )


# ---- Modules in evaluation mode for a while, cheaply: an evaluation may come in many small pieces, between steps.


@contextmanager
def evaluation_mode(roots: Iterable[nn.Module]) -> Iterator[None]:
    """Every part of the modules is in evaluation mode; afterwards each is in the mode that it was in.

    A part's mode is one entry of its dictionary, and writing that is forty times as fast as `eval()` and `train()`.
    Those are called where a class has its own.

    >>> net = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(3).eval())
    >>> with evaluation_mode([net]):
    ...     [part.training for part in net.modules()]
    [False, False, False]
    >>> [part.training for part in net.modules()]
    [True, True, False]
    """
    roots = list(roots)
    parts = _parts(roots)
    plain = all(map(_plain_class, {type(part) for part in parts})) and all(map(_plain, parts))
    before = [(part, part.training) for part in parts]
    for root in () if plain else roots:
        root.eval()
    try:
        if plain:
            for part, _ in before:
                vars(part)["training"] = False
        yield
    finally:
        if plain:
            for part, mode in before:
                vars(part)["training"] = mode
        else:
            modes = dict(before)
            for root in roots:
                root.train(modes[root])
            for part, mode in before:
                part.training = mode


def _parts(roots: list[nn.Module]) -> list[nn.Module]:
    """What `root.modules()` gives for each, in a fifth of its time."""
    found, more = dict.fromkeys(roots), list(roots)
    while more:
        for part in more.pop()._modules.values():
            if part is not None and part not in found:
                found[part] = None
                more.append(part)
    return list(found)


def _plain_class(kind: type[nn.Module]) -> bool:
    own, general = kind, nn.Module
    return (
        own.train is general.train
        and own.eval is general.eval
        and own.__setattr__ is general.__setattr__
        and not hasattr(own, "training")
    )


def _plain(part: nn.Module) -> bool:
    state = vars(part)
    return "training" in state and "train" not in state and "eval" not in state


# ---- What a module is made of: the parameters that are trained, the layers they form, the state that is kept.

WIDE = (torch.float64, torch.complex128)
SHORT = (torch.float16, torch.bfloat16)  # MPI or NumPy do not have them: shown as float32


class Parts(NamedTuple):
    """The trained parameters, the layers that they form in a flat vector of `size` entries, and the state."""

    trained: list[Trained]
    layers: list[slice]
    kept: dict[str, Kept]
    size: int
    wide: bool


def take_apart(roots: Iterable[tuple[str, nn.Module]]) -> Parts:
    """Walk through the modules: a layer is a module with trained parameters of its own (its weight and bias).

    A parameter that stands in several places is counted once. Frozen parameters are kept like buffers.
    """
    trained: list[Trained] = []
    layers: list[slice] = []
    kept: dict[str, Kept] = {}
    memories: dict[Any, nn.Parameter] = {}
    seen: set[int] = set()
    size = 0
    for prefix, root in roots:
        for path, part in root.named_modules():
            where = f"{prefix}{path}." if path else prefix
            start = size
            for name, p in list(part.named_parameters(recurse=False)):
                _check(where + name, p)
                known = memories.setdefault(_memory(p), p)
                if known is not p:
                    setattr(part, name, known)  # two parameters in one memory become one
                if id(known) in seen:
                    continue
                seen.add(id(known))
                if p.requires_grad:
                    trained.append(Trained(p, size))
                    size = trained[-1].part.stop
                else:
                    kept[where + name] = Kept(part._parameters, name, where + name)
            if size > start:
                layers.append(slice(start, size))
            for name, buffer in part.named_buffers(recurse=False):
                _check(where + name, buffer)
                if id(buffer) not in seen:
                    seen.add(id(buffer))
                    kept[where + name] = Kept(part._buffers, name, where + name)
    if not size:
        raise UsageError("a module must have trainable parameters; this one has none")
    return Parts(trained, layers, kept, size, any(one.p.dtype in WIDE for one in trained))


class Trained:
    """A parameter and its part of the flat vectors: a view of it or, where the dtypes differ, a mirror."""

    def __init__(self, p: nn.Parameter, start: int) -> None:
        self.p = p
        self.part = slice(start, start + real(p.detach()).numel())

    def point(self, x: Array, g: Array) -> None:
        """Let the parameter and its gradient be views of the flat vectors; it becomes what `x` says."""
        shape = real(self.p.detach()).shape
        self.x = torch.from_numpy(x[self.part]).reshape(shape)
        self.g = torch.from_numpy(g[self.part]).reshape(shape)
        self._show()

    def _show(self) -> None:
        p = self.p
        self.mirrored = p.dtype != self.x.dtype
        if self.mirrored:
            real(p.detach()).copy_(self.x)
            p.grad = None
        else:
            p.data = self.x
            p.grad = self.g
        self._mark = p._version if self.mirrored else p.data_ptr()

    def before(self) -> None:
        """Before a pass: the parameter is what `x` says, unless somebody else has given it other values."""
        p = self.p
        if not self.mirrored:
            if p.data_ptr() != self._mark:
                self.x.copy_(real(p.detach()))
                self._show()
            elif p.grad is not self.g:
                p.grad = self.g
        else:
            if p._version != self._mark:
                self.x.copy_(real(p.detach()))
            self._show()

    def after(self) -> None:
        """After a backward pass: the gradient is in `g`."""
        grad = self.p.grad
        if grad is self.g:
            return
        if grad is not None:
            self.g.copy_(real(grad if grad.layout == torch.strided else grad.to_dense()))
        self.p.grad = None if self.mirrored else self.g

    def fetch_gradient(self) -> None:
        """Between passes: bring a gradient that the user's own code has cleared or replaced to `g`."""
        grad = self.p.grad
        if grad is self.g or (grad is None and self.mirrored):
            return
        if grad is None:  # zero_grad() sets gradients to None by default
            self.g.zero_()
        self.after()
        if self.mirrored:
            self.p.grad = grad  # the user's optimizer may need it


class Kept:
    """A buffer or a frozen parameter, and the array that shows it."""

    def __init__(self, home: Any, name: str, full_name: str) -> None:
        self._home, self._name, self._full_name = home, name, full_name
        self._show(home[name])

    def _show(self, tensor: Tensor) -> None:
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise UsageError(f"buffers must be dense; {self._full_name} is {tensor.layout}, {tensor.dtype}")
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            plain = tensor.detach().resolve_conj().resolve_neg()
            tensor.data = plain.clone(memory_format=torch.contiguous_format)
        self.tensor = tensor
        self.copied = tensor.dtype in SHORT
        self.array: Array = (tensor.detach().float() if self.copied else tensor.detach()).numpy()

    def push(self) -> None:
        """Before a pass: bring the array to the module, where it is a copy."""
        if self.copied:
            self.tensor.detach().copy_(torch.from_numpy(self.array))

    def pull(self) -> bool:
        """After a pass: bring to the array what the module put into the buffer, or into its place.

        True where it has another shape or dtype: then the array is a new one.
        """
        now = self._home[self._name]
        anew = False
        if now is not self.tensor and now is not None:
            if anew := now.shape != self.tensor.shape or now.dtype != self.tensor.dtype:
                self._show(now)
            else:
                self.tensor.detach().copy_(now.detach())
                self._home[self._name] = self.tensor
        if self.copied:
            self.array[...] = self.tensor.detach().float().numpy()
        return anew


def real(tensor: Tensor) -> Tensor:
    """A complex tensor as pairs of real numbers; another as it is."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def mixed(*numbers: int) -> int:
    """Numbers that differ anywhere give seeds that differ everywhere (splitmix64).

    >>> mixed(0, 1) != mixed(1, 0)
    True
    """
    state = 0
    for number in numbers:
        state = ((state ^ number) + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state


def _check(name: str, tensor: Tensor) -> None:
    if tensor.device.type != "cpu":
        raise UsageError(f"a module must be on the cpu; {name} is on {tensor.device}")


def _memory(p: nn.Parameter) -> Any:
    """Equal for two parameters that are the same numbers in memory."""
    if not p.numel():
        return (id(p),)
    return (p.untyped_storage().data_ptr(), p.storage_offset(), p.shape, p.stride(), p.dtype, p.requires_grad)


# ---- When a layer's gradient is final: as soon as every parameter of it has its own, while the backward pass goes on.
#
# PyTorch adds up what all uses of a parameter give before it accumulates the sum, once, into the gradient: then
# that is final. But a backward pass inside the backward pass (a reentrant checkpoint) accumulates for itself, so
# what looked final may change. The first pass finds out: it watches, and names all layers at its end. Layers whose
# gradient changed after it looked final are named at the end of every later pass, too.
#
# The hooks are the graph's, and go with it. Those on a parameter would cost time ever after, even when removed.


class ReadyLayers:
    """The parameters of each layer, and which layers' gradients are final as soon as they look it."""

    def __init__(self, trained: Sequence[Trained], layers: Sequence[slice]) -> None:
        self._members: list[list[Trained]] = [[] for _ in layers]
        starts = [layer.start for layer in layers]
        for one in trained:
            if one.part.start < one.part.stop:
                self._members[bisect_right(starts, one.part.start) - 1].append(one)
        self._early: set[int] | None = None

    def backward(self, loss: Tensor, ready: Ready) -> set[int]:
        """`loss.backward()`, with `ready(i)` for the layers that are known to be final; which ones these were."""
        early, thread = self._early, get_ident()
        watched = range(len(self._members)) if early is None else early
        before = {i: [Mark(one) for one in self._members[i] if one.p.requires_grad] for i in watched}
        after: dict[int, list[Mark]] = {}
        said: set[int] = set()

        def accumulated(layer: int, *_: Any) -> None:
            if layer in after or not all(mark.outdated() for mark in before[layer]):
                return
            if early is not None:
                for member in self._members[layer]:
                    member.after()
            after[layer] = [Mark(member) for member in self._members[layer]]
            if early is not None and get_ident() == thread:  # deep inside checkpoints PyTorch takes another
                said.add(layer)
                ready(layer)

        hooks = []
        try:
            for layer in watched:
                for one in self._members[layer]:
                    if one.p.requires_grad:
                        node = _accumulator(one.p)  # kept: the passes inside this one will use it, too
                        hooks.append((node, node.register_hook(partial(accumulated, layer))))
            loss.backward()  # type: ignore[no-untyped-call]
        finally:
            for _, hook in hooks:
                hook.remove()

        changed = {layer for layer, marks in after.items() if any(mark.outdated() for mark in marks)}
        if early is None:
            self._early = set(range(len(self._members))) - changed
        elif changed:
            raise RuntimeError(
                "a layer's gradient must stay as it is once it is ready; in this pass, unlike in the first, "
                f"it changed afterwards in layers {sorted(changed)}: is there a backward pass, or a hook "
                "that changes gradients, inside the backward pass? gradient(batch) without ready allows it"
            )
        return said


def _accumulator(p: Tensor) -> Node:
    """The node that accumulates the parameter's gradient: the end of any graph that it is in."""
    graph: Any = p.view_as(p).grad_fn
    node: Node = graph.next_functions[0][0]
    return node


class Mark:
    """A parameter's gradient as it is now."""

    __slots__ = ("_grad", "_p", "_version")

    def __init__(self, one: Trained) -> None:
        self._p, self._grad = one.p, one.p.grad
        self._version = None if self._grad is None else self._grad._version

    def outdated(self) -> bool:
        """Whether the gradient has been changed, or replaced, since."""
        grad = self._p.grad
        return grad is not self._grad or (grad is not None and grad._version != self._version)


# Samples that are evaluated at once: enough to fill the arithmetic units, few enough to stay in the cache.
CHUNK = 256


class TorchModel:
    """A module, its loss, and the flat vectors `x` and `g` that its parameters and gradients live in.

    >>> import torch
    >>> model = TorchModel(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)))
    >>> model.x.size, model.layers
    (67, [slice(0, 40, None), slice(40, 67, None)])
    >>> model.x[:] = 0  # the module's weights and biases are now 0
    >>> model.module[2].bias.tolist()
    [0.0, 0.0, 0.0]

    Args:
        module: on the cpu; its parameters become views of `x`: float32, or float64 where any of them is.
            Those of another dtype (bfloat16, say) are copied from `x`, their master copy, before each pass.
        loss: `loss(outputs, labels)`; by default cross-entropy for classes, squared error for real targets.
        reduction: what the loss does over the samples: "mean", "sum", or "none" (one for each). A loss that
            has a `reduction` of its own is asked.
        seed: of the random numbers drawn in the forward pass, dropout's for instance.
        sample: inputs of a few samples, `(n, *shape)`; lazy modules need them.
        input_dtype: what the inputs are cast to; by default the dtype of the module's first parameters, or
            int64 when those are an embedding's.
        input_shape: of one sample as the module wants it; by default as the data has it.
    """

    x: Array
    layers: Sequence[slice]
    buffers: dict[str, Array]

    def __init__(
        self,
        module: nn.Module,
        *,
        loss: Callable[..., Any] | None = None,
        reduction: str = "mean",
        seed: int = 0,
        sample: Array | None = None,
        input_dtype: torch.dtype | None = None,
        input_shape: tuple[int, ...] | None = None,
    ) -> None:
        self.module = module
        self.seed = seed
        self.input_dtype = _input_dtype(module) if input_dtype is None else input_dtype
        self.input_shape = input_shape
        self._loss = SummedLoss(loss, reduction)
        if any(is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers())):
            self._initialise(sample)
        if not module.training:
            module.train()
        self._flatten()

    # ---- the flat vectors

    @property
    def g(self) -> Array:
        """The gradient, flat: of the last `gradient`, or of a backward pass of the user's own.

        `zero_grad()` takes the views of `g` away from the parameters; they get them back when `g` is next read, or in
        the next `gradient`.
        """
        if not self._in_pass:
            for one in self._trained:
                one.fetch_gradient()
        return self._g

    @g.setter
    def g(self, value: Array) -> None:
        raise AttributeError("g cannot be replaced; move it with place(x, g), or write g[...] = values")

    def _roots(self) -> list[tuple[str, nn.Module]]:
        loss = self._loss.loss
        return [("", self.module), ("loss:", loss)] if isinstance(loss, nn.Module) else [("", self.module)]

    def _initialise(self, sample: Array | None) -> None:
        """Give lazy parameters their shapes, with a pass over a sample."""
        if sample is None:
            raise UsageError("a module with lazy parameters needs a sample of its inputs; give sample=…")
        was = self.module.training
        self.module.eval()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.default_generator.manual_seed(self.seed)
            self.module(self._inputs(np.asarray(sample)))
        self.module.train(was)

    def _flatten(self) -> None:
        """Find the parameters, make `x` and `g`, and move the parameters there."""
        parts = take_apart(self._roots())
        self.layers = parts.layers
        self.buffers = {name: kept.array for name, kept in parts.kept.items()}
        self._trained, self._kept = parts.trained, parts.kept
        self._ready_layers = ReadyLayers(parts.trained, parts.layers)
        self._begins = [
            part for _, root in self._roots() for part in root.modules() if hasattr(part, "begin")
        ]
        self.x = np.empty(parts.size, np.float64 if parts.wide else np.float32)
        self._g = np.zeros_like(self.x)
        self._in_pass = False
        for one in self._trained:
            torch.from_numpy(self.x[one.part]).copy_(real(one.p.detach()).reshape(-1))
            one.point(self.x, self._g)

    def place(self, x: Array, g: Array) -> None:
        """Move parameters and gradient into memory given from outside (a shared window), keeping x."""
        for name, array in (("x", x), ("g", g)):
            if array.shape != self.x.shape or array.dtype != self.x.dtype or not array.flags.c_contiguous:
                raise ValueError(
                    f"{name} must be contiguous, {self.x.dtype}, of {self.x.size} entries; "
                    f"got {array.dtype}, shape {array.shape}, strides {array.strides}"
                )
            if not array.flags.writeable:
                raise ValueError(f"{name} must be writeable")
        gradient = self.g
        self._before()
        x[...] = self.x
        g[...] = gradient
        self.x, self._g = x, g
        for one in self._trained:
            one.point(x, g)

    # ---- the model

    def gradient(self, batch: Batch, ready: Ready | None = None) -> float:
        """Fill `g` for this batch; return the loss summed over its samples.

        The first pass with `ready` names all layers at its end. Later ones name a layer as soon as its parameters
        have their gradients; at the end those that got none, and those whose gradient is accumulated in several
        passes (reentrant checkpoints).
        """
        self._in_pass = True
        try:
            return self._gradient(batch, ready)
        finally:
            self._in_pass = False

    def _gradient(self, batch: Batch, ready: Ready | None) -> float:
        if not self.module.training:
            self.module.train()
        self._before()
        self._g.fill(0)
        torch.default_generator.manual_seed(mixed(self.seed, batch.step, batch.offset))
        for number, part in enumerate(self._begins):
            part.begin(batch, mixed(self.seed, number))  # type: ignore[operator]
        with torch.enable_grad():
            loss = self._loss(self.module(self._inputs(batch.inputs)), _labels(batch.labels))
            said: set[int] = set()
            if loss.requires_grad:
                if ready is None:
                    loss.backward()  # type: ignore[no-untyped-call]
                else:
                    said = self._ready_layers.backward(loss, ready)
        for one in self._trained:
            one.after()
        self._settle()
        if ready is not None:
            for layer in range(len(self.layers)):
                if layer not in said:
                    ready(layer)
        return loss.item()

    def predict(self, inputs: Array) -> Array:
        """The module's outputs in evaluation mode, one row a sample; the predicted class is the largest."""
        with self._evaluating():
            rows = [self._loss.scores(self.module(self._inputs(part))) for part in _chunks(inputs)]
            scores = torch.cat(rows)
        return (scores if scores.dtype == torch.float64 else scores.float()).numpy()

    def evaluate(self, inputs: Array, labels: Array) -> tuple[float, int]:
        """The loss summed over the samples, and how many were classified right (0 for regression)."""
        loss, right = 0.0, 0
        with self._evaluating():
            for part, wanted in zip(_chunks(inputs), _chunks(labels), strict=True):
                outputs, target = self.module(self._inputs(part)), _labels(wanted)
                loss += float(self._loss(outputs, target)) if len(part) else 0.0
                scores = self._loss.scores(outputs)
                if target.ndim == 1 and scores.ndim == 2 and not target.is_floating_point():
                    right += int((scores.argmax(1) == target).sum())
        return loss, right

    # ---- around a pass

    def _inputs(self, inputs: Array) -> Tensor:
        tensor = torch.from_numpy(_writeable(inputs))
        if self.input_shape is not None:
            tensor = tensor.reshape(len(inputs), *self.input_shape)
        return tensor if self.input_dtype is None else tensor.to(self.input_dtype)

    def _before(self) -> None:
        """Bring `x` and the buffers to the module, where they are not its memory."""
        for one in self._trained:
            one.before()
        for kept in self._kept.values():
            kept.push()

    def _settle(self) -> None:
        """Bring the module's state to the buffers, where they are not its memory."""
        for name, kept in self._kept.items():
            if kept.pull():
                self.buffers[name] = kept.array

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Evaluation mode, no gradients; afterwards every part is in the mode that it was in."""
        self._before()
        try:
            with evaluation_mode(root for _, root in self._roots()), torch.no_grad():
                yield
        finally:
            self._settle()

    # ---- to other processes

    def __getstate__(self) -> dict[str, Any]:
        self._before()
        rebuilt = (
            "x",
            "_g",
            "_in_pass",
            "layers",
            "buffers",
            "_trained",
            "_kept",
            "_begins",
            "_ready_layers",
        )
        state = {name: value for name, value in vars(self).items() if name not in rebuilt}
        return {**state, "x": self.x} if any(one.mirrored for one in self._trained) else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        master = state.pop("x", None)
        vars(self).update(state)
        self._flatten()
        if master is not None:
            self.x[...] = master


def _input_dtype(module: nn.Module) -> torch.dtype | None:
    for part in module.modules():
        for p in part.parameters(recurse=False):
            return torch.int64 if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) else p.dtype
    return None


def _writeable(array: Array) -> Array:
    """The array, or a copy of it where torch could not share its memory."""
    array = np.asarray(array)
    return array if array.flags.writeable and min(array.strides, default=0) >= 0 else array.copy()


def _labels(labels: Array) -> Tensor:
    tensor = torch.from_numpy(_writeable(labels))
    return tensor if tensor.is_floating_point() else tensor.long()


def _chunks(array: Array) -> Iterator[Array]:
    for start in range(0, max(1, len(array)), CHUNK):
        yield array[start : start + CHUNK]
