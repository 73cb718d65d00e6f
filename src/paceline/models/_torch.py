"""Any `torch.nn.Module` as a model: its parameters and gradients are views of two flat NumPy vectors.

`backward` accumulates directly into `g`, so that an exchange is one message and both vectors can be in shared memory.

In this file: the loss as a sum over samples, evaluation mode, the parameters and buffers of a module and how they
follow the flat vectors, the order in which gradients become final, and `TorchModel`, which puts them together.
"""

from __future__ import annotations

import copy
import random
import zlib
from bisect import bisect_right
from collections import deque
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

from paceline.data import IGNORED, Batch, Inputs, Several
from paceline.errors import UsageError, unknown
from paceline.models._model import Array, Ready, Tally, check_vectors

# Losses that compare entry by entry: labels are converted to the shape and dtype of the outputs.
ENTRYWISE = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss)
ENTRYWISE_FUNCTIONS = frozenset({
    F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits,
})  # fmt: skip
# Losses of one class for each sample, or for each of its positions: words or pixels.
BY_CLASS = (nn.CrossEntropyLoss, nn.NLLLoss)
BY_CLASS_FUNCTIONS = frozenset({F.cross_entropy, F.nll_loss})
# Losses of answers that are yes or no, with the score above which the answer is yes.
YES_OR_NO: dict[Any, float] = {
    nn.BCELoss: 0.5, nn.BCEWithLogitsLoss: 0.0, F.binary_cross_entropy: 0.5,
    F.binary_cross_entropy_with_logits: 0.0,
}  # fmt: skip


class SummedLoss:
    """`loss(outputs, labels)`, summed over the samples, so that the pieces of a batch add up to the whole.

    The default is cross-entropy for classes and mean squared error for numbers. Samples have weights (`weigh`), so that
    the sum divided by their sum is the mean that PyTorch computes over all of them at once: labels of `ignore_index`
    count for nothing, in losses and means, and class weights weight both.
    """

    def __init__(self, loss: Callable[..., Any] | None, reduction: str, ignore_index: int = IGNORED) -> None:
        if loss is not None and not callable(loss):
            raise UsageError(f"a loss must be callable as loss(outputs, labels); got {type(loss).__name__}")
        reduction = getattr(loss, "reduction", None) or reduction
        if reduction not in ("mean", "sum", "none", "batchmean"):
            raise unknown("reduction", reduction, ["mean", "sum", "none"])
        function, options = (loss.func, loss.keywords) if isinstance(loss, partial) else (loss, {})
        reduction = options.get("reduction", reduction)
        self.reduction = reduction
        self.loss = loss
        self.ignore_index = getattr(loss, "ignore_index", options.get("ignore_index"))
        """The label that counts for nothing, if the loss says so itself; otherwise None."""
        self.ignored = ignore_index if self.ignore_index is None else int(self.ignore_index)
        self.entrywise = isinstance(loss, ENTRYWISE) or function in ENTRYWISE_FUNCTIONS
        self.above = next(
            (
                above
                for kind, above in YES_OR_NO.items()
                if function is kind or (isinstance(kind, type) and isinstance(loss, kind))
            ),
            None,
        )
        """The score above which the answer is yes, if the answers are yes or no."""
        self.takes_classes = loss is None or isinstance(loss, BY_CLASS) or function in BY_CLASS_FUNCTIONS
        self.classes_last: bool | None = None
        """Where the scores of the classes are, if shapes do not tell: on the last axis, or on the second."""
        self.by_class = isinstance(loss, BY_CLASS) and reduction == "mean"
        if self.by_class:
            self.loss = copy.copy(loss)
            self.loss.reduction = "sum"  # type: ignore[union-attr]

    def __call__(self, outputs: Any, labels: Tensor) -> Tensor:
        count = len(labels)
        if labels.is_floating_point():
            labels = labels.to(scores_in(outputs).dtype)
        if self.loss is None:
            scores = scores_in(outputs)
            if labels.is_floating_point():
                return F.mse_loss(scores, _match(labels, scores)) * count
            scores = self.in_order(scores, labels)
            summed = F.cross_entropy(scores, labels, reduction="sum", ignore_index=self.ignored)
            return summed / _positions(scores)
        if self.by_class:
            scores = self.in_order(scores_in(outputs), labels)
            return self.loss(scores, labels) / _positions(scores)  # type: ignore[no-any-return]
        weight: float | None = None
        if self.entrywise:
            outputs = scores_in(outputs)
            labels = _match(labels, outputs)
        elif self.reduction == "mean" and not labels.is_floating_point():
            weight = float(self.weigh(labels).sum())
            if not weight:  # the mean of nothing would be NaN
                return torch.zeros(())
        if self.takes_classes:
            outputs = self.in_order(scores_in(outputs), labels)
        loss = self.loss(outputs, labels)
        if self.reduction == "none":
            return loss.sum()  # type: ignore[no-any-return]
        if loss.numel() != 1:
            shape = tuple(loss.shape)
            raise UsageError(f"the loss must be one number, or reduction='none'; got the shape {shape}")
        each = 1 if self.reduction == "sum" else count if weight is None else weight
        return loss.reshape(()) * each  # type: ignore[no-any-return]

    def weigh(self, labels: Tensor) -> Tensor:
        """Return the weight of each sample in a mean: 1, unless some of its labels are ignored or classes have weights."""
        if labels.is_floating_point() or self.entrywise or self.reduction != "mean":
            return torch.ones(len(labels), dtype=torch.float64)
        counted = labels != self.ignored
        weights = counted.to(torch.float64)
        of_classes = getattr(self.loss, "weight", None) if self.by_class else None
        if isinstance(of_classes, Tensor):
            weights = weights * of_classes.detach().to(torch.float64)[torch.where(counted, labels, 0)]
        return weights.reshape(len(labels), -1).mean(1)

    def count(self, outputs: Any, labels: Tensor) -> tuple[int, int]:
        """Return the number of right answers, and of answers: classes of samples or positions, or each yes or no."""
        scores = scores_in(outputs)
        if self.above is not None and scores.numel() == labels.numel():
            scores = scores.reshape(labels.shape)
            clear = (labels == 0) | (labels == 1)
            return int((((scores > self.above) == (labels > 0.5)) & clear).sum()), int(clear.sum())
        if labels.is_floating_point() or scores.ndim != labels.ndim + 1:
            return 0, 0
        if self.is_ambiguous(scores, labels) and self.classes_last is None and not self.takes_classes:
            return 0, 0
        scores = self.in_order(scores, labels)
        if scores.shape[2:] != labels.shape[1:]:
            return 0, 0
        if self.entrywise:
            return int((scores.argmax(1) == labels).sum()), labels.numel()
        counted = labels != self.ignored
        return int(((scores.argmax(1) == labels) & counted).sum()), int(counted.sum())

    def in_order(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return scores in PyTorch's order, (samples, classes, *positions), if their classes are on the last axis."""
        if labels.ndim < 2 or scores.ndim != labels.ndim + 1 or labels.is_floating_point():
            return scores
        first = scores.shape[2:] == labels.shape[1:]
        last = scores.shape[:-1] == labels.shape
        return scores.movedim(-1, 1) if last and (not first or self.classes_last) else scores

    def is_ambiguous(self, scores: Tensor, labels: Tensor) -> bool:
        """Return True if the shapes do not tell whether the scores of the classes are on the second axis or the last."""
        if labels.ndim < 2 or scores.ndim != labels.ndim + 1:
            return False
        return scores.shape[2:] == labels.shape[1:] and scores.shape[:-1] == labels.shape

    def classify(self, scores: Tensor, label_shape: tuple[int, ...]) -> Tensor:
        """Return the predicted class of each sample, or of each of its positions; nothing if there is none."""
        labels = torch.empty((len(scores), *label_shape), dtype=torch.int64)
        if self.above is not None and scores.shape == labels.shape:
            return (scores > self.above).long()
        scores = self.in_order(scores, labels)
        if scores.ndim != labels.ndim + 1 or scores.shape[2:] != labels.shape[1:]:
            return torch.empty(0, dtype=torch.int64)
        return scores.argmax(1)

    def scores(self, outputs: Any) -> Tensor:
        """Return one row per sample, its largest entry the class; a single logit or probability becomes two columns."""
        scores = scores_in(outputs)
        if not isinstance(self.loss, (nn.BCELoss, nn.BCEWithLogitsLoss)) or scores.numel() != len(scores):
            return scores
        column = scores.reshape(-1, 1)
        other = 1 - column if isinstance(self.loss, nn.BCELoss) else torch.zeros_like(column)
        return torch.cat([other, column], dim=1)


def scores_in(outputs: Any) -> Tensor:
    """Return the scores in the output of a module: the tensor, the one called logits, or the first of several."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(logits := getattr(outputs, "logits", None), Tensor):
        return logits
    if isinstance(outputs, Mapping) and outputs:
        return scores_in(outputs["logits"] if "logits" in outputs else next(iter(outputs.values())))
    if isinstance(outputs, (tuple, list)) and outputs:
        return scores_in(outputs[0])
    kind = type(outputs).__name__
    raise UsageError(f"a module must return a tensor, or several with the scores first; got {kind}")


def _positions(scores: Tensor) -> int:
    """Return the number of predictions per sample: 1, or the pixels where each pixel is classified."""
    return max(1, scores.shape[2:].numel())


def _match(labels: Tensor, scores: Tensor) -> Tensor:
    """Return the labels in the shape and dtype of the scores: one-hot where there is a score for each class."""
    if labels.shape == scores.shape:
        return labels.to(scores.dtype)
    if labels.numel() == scores.numel():
        return labels.to(scores.dtype).reshape(scores.shape)
    if not labels.is_floating_point() and labels.ndim == 1 and scores.ndim == 2:
        return F.one_hot(labels, scores.shape[1]).to(scores.dtype)
    raise UsageError(
        f"outputs and labels must have one shape; got {tuple(scores.shape)} and {tuple(labels.shape)}"
    )


@contextmanager
def evaluation_mode(roots: Iterable[nn.Module]) -> Iterator[None]:
    """Put modules into evaluation mode, and each of their parts back into its former mode at the end.

    An evaluation may come in many small pieces between steps, so this must be fast. A part's mode is one entry of its
    dictionary, and setting that is forty times as fast as `eval()` and `train()`, which are called only where a class
    overrides them.

    >>> net = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(3).eval())
    >>> with evaluation_mode([net]):
    ...     [part.training for part in net.modules()]
    [False, False, False]
    >>> [part.training for part in net.modules()]
    [True, True, False]
    """
    roots = list(roots)
    parts = _parts(roots)
    kinds = {type(part) for part in parts}
    plain = all(map(_has_default_modes, kinds)) and all(map(_has_no_own_modes, parts))
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
    """Return the modules that `root.modules()` yields for each root, in a fifth of the time."""
    found, more = dict.fromkeys(roots), list(roots)
    while more:
        for part in more.pop()._modules.values():
            if part is not None and part not in found:
                found[part] = None
                more.append(part)
    return list(found)


def _has_default_modes(kind: type[nn.Module]) -> bool:
    own, general = kind, nn.Module
    return (
        own.train is general.train
        and own.eval is general.eval
        and own.__setattr__ is general.__setattr__
        and not hasattr(own, "training")
    )


def _has_no_own_modes(part: nn.Module) -> bool:
    state = vars(part)
    return "training" in state and "train" not in state and "eval" not in state


WIDE = (torch.float64, torch.complex128)
SHORT = (torch.float16, torch.bfloat16)  # unknown to MPI or NumPy: shown as float32


class ModuleParts(NamedTuple):
    """The trained parameters, their layers in a flat vector of `size` entries, and buffers and frozen parameters."""

    trained: list[Trained]
    layers: list[slice]
    state: dict[str, StateTensor]
    size: int
    wide: bool


def take_apart(roots: Iterable[tuple[str, nn.Module]]) -> ModuleParts:
    """Find the parts of the modules; a layer is a module with trained parameters of its own (its weight and bias).

    A parameter that is used in several places is counted once. Frozen parameters are treated like buffers.
    """
    trained: list[Trained] = []
    layers: list[slice] = []
    state: dict[str, StateTensor] = {}
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
                    setattr(part, name, known)  # two parameters in the same memory become one
                if id(known) in seen:
                    continue
                seen.add(id(known))
                if p.requires_grad:
                    trained.append(Trained(p, size))
                    size = trained[-1].part.stop
                else:
                    state[where + name] = StateTensor(part._parameters, name, where + name)
            if size > start:
                layers.append(slice(start, size))
            for name, buffer in part.named_buffers(recurse=False):
                _check(where + name, buffer)
                if id(buffer) not in seen:
                    seen.add(id(buffer))
                    state[where + name] = StateTensor(part._buffers, name, where + name)
    if not size:
        raise UsageError("a module must have trainable parameters; this one has none")
    return ModuleParts(trained, layers, state, size, any(one.p.dtype in WIDE for one in trained))


class Trained:
    """A parameter and its part of the flat vectors: a view of it, or a copy where the dtypes differ (`mirrored`)."""

    def __init__(self, p: nn.Parameter, start: int) -> None:
        self.p = p
        self.part = slice(start, start + as_real(p.detach()).numel())

    def point(self, x: Array, g: Array) -> None:
        """Make the parameter and its gradient views of the flat vectors; the parameter takes its values from `x`."""
        shape = as_real(self.p.detach()).shape
        self.x = torch.from_numpy(x[self.part]).reshape(shape)
        self.g = torch.from_numpy(g[self.part]).reshape(shape)
        self._show()

    def _show(self) -> None:
        p = self.p
        self.mirrored = p.dtype != self.x.dtype
        if self.mirrored:
            as_real(p.detach()).copy_(self.x)
            p.grad = None
        else:
            p.data = self.x
            p.grad = self.g
        self._mark = p._version if self.mirrored else p.data_ptr()

    def prepare_pass(self) -> None:
        """Prepare a pass: the parameter takes its values from `x`, unless other code has given it new ones."""
        p = self.p
        if not self.mirrored:
            if p.data_ptr() != self._mark:
                self.x.copy_(as_real(p.detach()))
                self._show()
            elif p.grad is not self.g:
                p.grad = self.g
        else:
            if p._version != self._mark:
                self.x.copy_(as_real(p.detach()))
            self._show()

    def finish_pass(self) -> None:
        """Finish a backward pass: copy the gradient to `g`."""
        grad = self.p.grad
        if grad is self.g:
            return
        if grad is not None:
            self.g.copy_(as_real(grad if grad.layout == torch.strided else grad.to_dense()))
        self.p.grad = None if self.mirrored else self.g

    def fetch_gradient(self) -> None:
        """Copy to `g` a gradient that the user's own code has cleared or replaced between passes."""
        grad = self.p.grad
        if grad is self.g or (grad is None and self.mirrored):
            return
        if grad is None:  # zero_grad() sets gradients to None by default
            self.g.zero_()
        self.finish_pass()
        if self.mirrored:
            self.p.grad = grad  # the user's optimizer may need it


class StateTensor:
    """A buffer or a frozen parameter, and the array that represents it."""

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
        """Copy the array to the module before a pass, where they do not share memory."""
        if self.copied:
            self.tensor.detach().copy_(torch.from_numpy(self.array))

    def pull(self) -> bool:
        """Copy to the array what the module wrote to the buffer, or replaced it with, in a pass.

        Returns True if the shape or dtype has changed, and so the array is a new one.
        """
        now = self._home[self._name]
        changed = False
        if now is not self.tensor and now is not None:
            if changed := now.shape != self.tensor.shape or now.dtype != self.tensor.dtype:
                self._show(now)
            else:
                self.tensor.detach().copy_(now.detach())
                self._home[self._name] = self.tensor
        if self.copied:
            self.array[...] = self.tensor.detach().float().numpy()
        return changed


def as_real(tensor: Tensor) -> Tensor:
    """Return a complex tensor as pairs of real numbers, any other tensor as it is."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def mix(*numbers: int) -> int:
    """Mix numbers to a seed that is unrelated to the seeds of other numbers (splitmix64).

    >>> mix(0, 1) != mix(1, 0)
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
        raise UsageError(f"a module must be on the CPU; {name} is on {tensor.device}")


def _memory(p: nn.Parameter) -> Any:
    """Return a key that is equal for two parameters in the same memory."""
    if not p.numel():
        return (id(p),)
    return (p.untyped_storage().data_ptr(), p.storage_offset(), p.shape, p.stride(), p.dtype, p.requires_grad)


class ReadyLayers:
    """Detection, during a backward pass, of final gradients: a layer's is final when those of all its parameters are.

    PyTorch sums the contributions of all uses of a parameter and then accumulates the sum into the gradient, once; that
    makes it final. But a backward pass inside the backward pass (a reentrant checkpoint) accumulates on its own, so that
    a gradient may change after it seemed final. The first pass only watches for that, and reports all layers at its
    end. Layers whose gradient changed are reported at the end of later passes, too.

    The hooks are set on the graph and disappear with it. Hooks on a parameter would cost time forever, even when removed.
    """

    def __init__(self, trained: Sequence[Trained], layers: Sequence[slice]) -> None:
        self._members: list[list[Trained]] = [[] for _ in layers]
        starts = [layer.start for layer in layers]
        for one in trained:
            if one.part.start < one.part.stop:
                self._members[bisect_right(starts, one.part.start) - 1].append(one)
        self._early: set[int] | None = None
        self._after: dict[int, list[Mark]] = {}

    def backward(
        self, run: Callable[[], object], ready: Ready, finish: Callable[[Trained], None] | None = None
    ) -> set[int]:
        """Call `run`, a backward pass, and `ready(i)` for layers that become final during it; return these layers.

        `finish`: copies a final gradient to `g`; by default `Trained.finish_pass`.
        """
        finish = Trained.finish_pass if finish is None else finish
        early, thread = self._early, get_ident()
        watched = range(len(self._members)) if early is None else early
        before = {i: [Mark(one) for one in self._members[i] if one.p.requires_grad] for i in watched}
        after = self._after = {}
        reported: set[int] = set()

        def note_gradient(layer: int, *_: Any) -> None:
            if layer in after or not all(mark.outdated() for mark in before[layer]):
                return
            if early is not None:
                for member in self._members[layer]:
                    finish(member)
            after[layer] = [Mark(member) for member in self._members[layer]]
            # PyTorch uses another thread deep inside checkpoints.
            if early is not None and get_ident() == thread:
                reported.add(layer)
                ready(layer)

        hooks = []
        try:
            for layer in watched:
                for one in self._members[layer]:
                    if one.p.requires_grad:
                        node = _accumulator(one.p)  # kept alive: passes inside this one use it, too
                        hooks.append((node, node.register_hook(partial(note_gradient, layer))))
            run()
        finally:
            for _, hook in hooks:
                hook.remove()

        changed = self.find_changed()
        if early is None:
            self._early = set(range(len(self._members))) - changed
        elif changed:
            raise RuntimeError(
                "a layer's gradient must not change once it is ready; in this pass, unlike in the first, "
                f"it changed afterwards in layers {sorted(changed)}: is there a backward pass, or a hook "
                "that changes gradients, inside the backward pass? gradient(batch) without ready allows it"
            )
        return reported

    def find_changed(self) -> set[int]:
        """Return the layers whose gradient has changed since it became final in the last pass."""
        return {layer for layer, marks in self._after.items() if any(mark.outdated() for mark in marks)}


def _accumulator(p: Tensor) -> Node:
    """Return the node that accumulates the parameter's gradient, in every graph that contains the parameter."""
    graph: Any = p.view_as(p).grad_fn
    node: Node = graph.next_functions[0][0]
    return node


class Mark:
    """The state of a parameter's gradient at one moment."""

    __slots__ = ("_grad", "_p", "_version")

    def __init__(self, one: Trained) -> None:
        self._p, self._grad = one.p, one.p.grad
        self._version = None if self._grad is None else self._grad._version

    def outdated(self) -> bool:
        """Return True if the gradient has since been changed or replaced."""
        grad = self._p.grad
        return grad is not self._grad or (grad is not None and grad._version != self._version)


class Draws:
    """Whether the passes of a model draw random numbers; None until the first pass. All copies of a model share it."""

    known: bool | None = None

    def __deepcopy__(self, _: Any) -> Draws:
        return self


def _random_states() -> tuple[Any, ...]:
    """Return the states of the generators that all threads have in common."""
    of_numpy: Any = np.random.get_state()  # noqa: NPY002
    mine = [part.tobytes() if isinstance(part, np.ndarray) else part for part in of_numpy]
    return torch.default_generator.get_state().numpy().tobytes(), random.getstate(), mine


# What every module has: parameters, buffers and modules are known otherwise.
_OF_MODULES = frozenset(vars(nn.Module()))
# Levels of objects inside a module that are looked into.
_DEPTH = 4


def _values(thing: Any, marks: list[Any], depth: int = _DEPTH) -> Any:
    """Return the numbers and texts that a thing holds, for comparison; append to `marks` what tells changes of tensors."""
    if thing is None or isinstance(thing, (bool, int, float, complex, str, bytes)):
        return repr(thing)  # NaN equals NaN
    if isinstance(thing, Tensor):
        marks.append((id(thing), thing._version))
        return type(thing).__name__, tuple(thing.shape)
    if isinstance(thing, np.ndarray):
        return thing.shape, "" if thing.dtype == object else zlib.crc32(thing.tobytes())
    if isinstance(thing, nn.Module) or callable(thing) or depth == 0:
        return type(thing).__name__
    if isinstance(thing, Mapping):
        return [(repr(key), _values(value, marks, depth - 1)) for key, value in thing.items()]
    if isinstance(thing, (list, tuple, set, frozenset, deque)):
        return [_values(value, marks, depth - 1) for value in thing]
    return type(thing).__name__, _values(getattr(thing, "__dict__", None), marks, depth - 1)


def _is_foreign(part: Any) -> bool:
    """Return True for a module or loss that may keep something of its own, or that has hooks."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    known = str(getattr(part, "__module__", "")).startswith(("torch.nn.", "paceline.models."))
    return part is not None and (not known or any(getattr(part, name, None) for name in hooks))


# Samples evaluated at once: enough to keep the cores busy, few enough to stay in the cache.
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
        module: on the CPU; its parameters become views of `x`, which is float32, or float64 if any of them is.
            Parameters of another dtype (bfloat16, say) are copied from `x`, their master copy, before each pass.
        loss: `loss(outputs, labels)`; by default cross-entropy for classes, squared error for values.
        reduction: how the loss combines the samples: "mean", "sum", or "none" (one loss per sample). A `reduction`
            attribute of the loss takes precedence.
        seed: the seed of random numbers drawn in the forward pass, by dropout for instance.
        sample: inputs of a few samples, `(n, *shape)`; needed by lazy modules.
        input_dtype: the dtype that inputs are cast to; by default that of the module's first parameters, or int64
            when those are an embedding's.
        input_shape: the shape of one sample as the module expects it; by default that of the data.
        ignore_index: the label that counts for nothing, unless the loss has an `ignore_index` of its own.

    Inputs that are a tuple or a dictionary of arrays (`paceline.data.Several`) are the module's arguments, in order or by
    name: whole numbers as int64, truth values as bool, floats in the dtype of the module's parameters.
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
        ignore_index: int = IGNORED,
    ) -> None:
        self.module = module
        self.seed = seed
        self.input_dtype = _input_dtype(module) if input_dtype is None else input_dtype
        self.input_shape = input_shape
        self._loss = SummedLoss(loss, reduction, ignore_index)
        self._seeds, self._draws = True, Draws()
        if any(is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers())):
            self._initialise(sample)
        if not module.training:
            module.train()
        self._flatten()

    @property
    def g(self) -> Array:
        """The gradient, flat: that of the last `gradient`, or of the user's own backward pass.

        `zero_grad()` detaches the parameters' gradients from `g`; they are attached again when `g` is read, and by the
        next `gradient`.
        """
        if not self._in_pass:
            for one in self._trained:
                one.fetch_gradient()
        return self._g

    @g.setter
    def g(self, value: Array) -> None:
        raise AttributeError("g cannot be replaced; move it with place(x, g), or write g[...] = values")

    @property
    def runs_at_once(self) -> bool:
        """True if copies may compute at the same time: their first pass has shown that they draw no random numbers.

        PyTorch has one generator for all threads. `GlobalDropout` has its own, and does not count.
        """
        return self._draws.known is False

    @staticmethod
    @contextmanager
    def at_once(models: Sequence[TorchModel]) -> Iterator[None]:
        """Let copies of a model compute at the same time in this block; raise UsageError if they draw random numbers."""
        before = _random_states()
        for model in models:
            model._seeds = False
        try:
            yield
        finally:
            for model in models:
                model._seeds = True
        if _random_states() != before:
            raise UsageError(
                "the model draws random numbers, but did not in its first pass, so that its passes cannot be "
                "computed at the same time; compute them one by one with --compute-threads 1"
            )

    def trace(self, *, seeded: bool = True) -> tuple[Any, Any]:
        """Return what passes could change besides `x`, `g` and `buffers`: see `paceline.models.leave_trace`."""
        values: list[Any] = []
        marks: list[Any] = []
        if not self._foreign and not _is_foreign(self._loss.loss):
            return values, marks
        for part in self._foreign:
            mine = {name: value for name, value in vars(part).items() if name not in _OF_MODULES}
            values.append(_values(mine, marks))
        drawn = _random_states()
        return (values, drawn[1:]), (marks, None if seeded else drawn[0])

    @property
    def matrices(self) -> list[tuple[int, tuple[int, int]]]:
        """Where each parameter with at least two axes begins in `x`, and its shape with all axes but the first in one."""
        shapes = [(one.part, one.p.shape[0]) for one in self._trained if one.p.ndim > 1 and one.p.numel()]
        return [(part.start, (rows, (part.stop - part.start) // rows)) for part, rows in shapes]

    @property
    def places(self) -> list[tuple[nn.Parameter, slice]]:
        """The trained parameters and their parts of the flat vectors."""
        return [(one.p, one.part) for one in self._trained]

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
            self._forward(Several.of(sample))
        self.module.train(was)

    def _flatten(self) -> None:
        """Find the parameters, make `x` and `g`, and move the parameters there."""
        parts = take_apart(self._roots())
        self.layers = parts.layers
        self.buffers = {name: tensor.array for name, tensor in parts.state.items()}
        self._trained, self._state = parts.trained, parts.state
        self._ready_layers = ReadyLayers(parts.trained, parts.layers)
        self._foreign = [part for _, root in self._roots() for part in root.modules() if _is_foreign(part)]
        self._begins = [
            part for _, root in self._roots() for part in root.modules() if hasattr(part, "begin")
        ]
        self.x = np.empty(parts.size, np.float64 if parts.wide else np.float32)
        self._g = np.zeros_like(self.x)
        self._in_pass = False
        for one in self._trained:
            torch.from_numpy(self.x[one.part]).copy_(as_real(one.p.detach()).reshape(-1))
            one.point(self.x, self._g)

    def place(self, x: Array, g: Array) -> None:
        """Move parameters and gradient into the given memory (a shared window, for instance), keeping their values."""
        check_vectors(self.x, x, g)
        gradient = self.g
        self._prepare_pass()
        words = f"u{x.itemsize}"
        # Memory that is copied on write stays as it is.
        if not np.array_equal(x.view(words), self.x.view(words)):
            x[...] = self.x
        g[...] = gradient
        self.x, self._g = x, g
        for one in self._trained:
            one.point(x, g)

    def gradient(self, batch: Batch, ready: Ready | None = None) -> float:
        """Fill `g` for this batch; return the loss summed over its samples.

        The first pass with `ready` reports all layers at its end. Later passes report a layer as soon as its parameters
        have their gradients, and at the end layers without a gradient, and those whose gradient is accumulated in
        several passes (reentrant checkpoints).
        """
        self._in_pass = True
        try:
            return self._gradient(batch, ready)
        finally:
            self._in_pass = False

    def _gradient(self, batch: Batch, ready: Ready | None) -> float:
        if not self.module.training:
            self.module.train()
        self._prepare_pass()
        self._g.fill(0)
        if self._seeds:
            torch.default_generator.manual_seed(mix(self.seed, batch.step, batch.offset))
        before = _random_states() if self._draws.known is None else None
        for number, part in enumerate(self._begins):
            part.begin(batch, mix(self.seed, number))  # type: ignore[operator]
        with torch.enable_grad():
            loss = self._loss(self._forward(batch.inputs), _labels(batch.labels))
            if batch.weight != 1:
                loss = loss * batch.weight
            reported: set[int] = set()
            if loss.requires_grad:
                if ready is None:
                    loss.backward()  # type: ignore[no-untyped-call]
                else:
                    reported = self._ready_layers.backward(loss.backward, ready)
        if before is not None:
            self._draws.known = _random_states() != before
        for one in self._trained:
            one.finish_pass()
        self._pull_state()
        if ready is not None:
            for layer in range(len(self.layers)):
                if layer not in reported:
                    ready(layer)
        return loss.item()

    def predict(self, inputs: Array) -> Array:
        """Return the module's outputs in evaluation mode, one row per sample; the largest is the predicted class."""
        with self._enter_evaluation():
            inputs = Several.of(inputs)
            rows = [self._loss.scores(self._forward(part)) for part in _chunks(inputs)]
            scores = torch.cat(rows)
        return (scores if scores.dtype == torch.float64 else scores.float()).numpy()

    def outputs(self, inputs: Inputs) -> Array:
        """Return the module's own outputs in evaluation mode, for metrics: one row per sample."""
        inputs = Several.of(inputs)
        with self._enter_evaluation():
            rows = torch.cat([scores_in(self._forward(part)) for part in _chunks(inputs)])
        return (rows.float() if rows.dtype in SHORT else rows).numpy()

    def classify(self, scores: Array, label_shape: tuple[int, ...] = ()) -> Array:
        """Return the classes that scores of `predict` mean, for labels of this shape; an empty array if they mean none.

        >>> tagger = TorchModel(torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 3)))
        >>> tagger.classify(tagger.predict(np.array([[1, 2, 3, 4, 5]])), label_shape=(5,)).shape
        (1, 5)
        """
        return self._loss.classify(torch.from_numpy(_make_writeable(scores)), label_shape).numpy()

    def evaluate(self, inputs: Inputs, labels: Array) -> tuple[float, int]:
        """Return the loss summed over the samples, and how many answers were right (0 for regression)."""
        found = self.tally(inputs, labels)
        return found.loss, found.right

    def tally(self, inputs: Inputs, labels: Array) -> Tally:
        """Return the loss and the right answers, and what their means are divided by."""
        loss, weight, right, answers = 0.0, 0.0, 0, 0
        inputs = Several.of(inputs)
        with self._enter_evaluation():
            for part, wanted in zip(_chunks(inputs), _chunks(labels), strict=True):
                outputs, target = self._forward(part), _labels(wanted)
                if len(target):
                    loss += float(self._loss(outputs, target))
                    weight += float(self._loss.weigh(target).sum())
                    some_right, some = self._loss.count(outputs, target)
                    right, answers = right + some_right, answers + some
        return Tally(loss, weight, right, answers)

    def weigh(self, labels: Array) -> Array:
        """Return the weight of each sample in the mean over a batch: 1, unless labels are ignored or classes weighted."""
        return self._loss.weigh(_labels(labels)).numpy()

    @property
    def ignore_index(self) -> int | None:
        """The label that counts for nothing, if the loss says so itself."""
        return self._loss.ignore_index

    @property
    def weighs_samples(self) -> bool:
        """True if the weight of a sample with one label may differ from 1 although its label is a class."""
        return self._loss.ignore_index not in (None, IGNORED) or (
            self._loss.by_class and getattr(self._loss.loss, "weight", None) is not None
        )

    def keeps(self, stored: np.dtype[Any]) -> bool:
        """Return True if the module takes an input that is stored as this type as whole numbers, not as floats."""
        return stored.kind in "iu" and self.input_dtype is not None and not self.input_dtype.is_floating_point

    def _forward(self, inputs: Inputs) -> Any:
        """Call the module."""
        if not isinstance(inputs, Several):
            return self.module(self._inputs(inputs))
        tensors = [torch.from_numpy(_make_writeable(array)) for array in inputs.arrays]
        dtype = next((p.dtype for p in self.module.parameters() if p.is_floating_point()), torch.float32)
        tensors = [tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in tensors]
        if inputs.names:
            return self.module(**dict(zip(inputs.names, tensors, strict=True)))
        return self.module(*tensors)

    def find_problem(
        self, sample: Inputs, label_shape: tuple[int, ...], classes: int, name: str, shape: str
    ) -> str:
        """Describe what is wrong with the outputs for a sample, given the labels of data of this name; "" if nothing is."""
        with self._enter_evaluation():
            outputs = self._forward(sample)
            scores = self._loss.scores(outputs)
        if len(scores) != len(sample):
            return (
                f"the module must return one row per sample; for {len(sample)} samples of {shape} it returned "
                f"{tuple(scores.shape)}"
            )
        labels = torch.zeros((len(sample), *label_shape), dtype=torch.int64 if classes else scores.dtype)
        loss, got = self._loss, "x".join(map(str, scores.shape[1:])) or "one"
        if not classes or (loss.entrywise and label_shape):
            if not (loss.entrywise or loss.loss is None):
                return ""
            try:
                _match(labels, scores_in(outputs))
            except UsageError:
                wanted = "x".join(map(str, label_shape)) or "one"
                return f"the module returns {got} numbers for each sample; the labels of {name} are {wanted}"
            return ""
        if loss.is_ambiguous(scores, labels):
            loss.classes_last = self._has_classes_last(sample, labels)
            if loss.classes_last is None and loss.loss is None:
                return (
                    f"the module returns {got} scores for each sample, of which the classes of {name} may be on the "
                    "first axis or the last: give a loss, or a network with another number of scores"
                )
        scores = loss.in_order(scores, labels)
        if loss.takes_classes and labels.ndim > 1 and scores.shape[2:] != labels.shape[1:]:
            wanted = "x".join(map(str, label_shape))
            return (
                f"the module returns {got} scores for each sample; labels of {wanted} classes in {name} need "
                f"classes x {wanted} of them, or {wanted} x classes"
            )
        if scores.ndim == labels.ndim + 1 and scores.shape[2:] == labels.shape[1:]:
            count = scores.shape[1]
            if count < classes:
                return f"the module returns {count} scores per sample; {name} has {classes} classes"
        return ""

    def _has_classes_last(self, sample: Inputs, labels: Tensor) -> bool | None:
        """Find out with shorter samples on which axis the scores of the classes are; None if that cannot be told."""

        def cut(array: Array) -> Array:
            return np.ascontiguousarray(array[..., :-1]) if array.shape == labels.shape else array

        if isinstance(sample, Several):
            shorter: Inputs = Several([cut(array) for array in sample.arrays], sample.names)
        else:
            shorter = cut(sample)
        try:
            with self._enter_evaluation():
                scores = scores_in(self._forward(shorter))
        except (RuntimeError, ValueError, IndexError, TypeError):  # a module for one length only
            return None
        fewer = labels[..., :-1]
        first, last = scores.shape[2:] == fewer.shape[1:], scores.shape[:-1] == fewer.shape
        return None if first == last else last

    def find_ignored_problem(self, ignored: int) -> str:
        """Describe the problem if the loss does not ignore this label; "" if it does, or if that is unknown."""
        loss = self._loss
        if loss.entrywise:
            return f"the labels have {ignored}, and {type(loss.loss).__name__} ignores none: give numbers from 0 on"
        if loss.ignore_index is not None and loss.ignore_index != ignored:
            return f"the labels have {ignored}, and the loss ignores {loss.ignore_index}: give it ignore_index={ignored}"
        return ""

    def _inputs(self, inputs: Array) -> Tensor:
        tensor = torch.from_numpy(_make_writeable(inputs))
        if self.input_shape is not None:
            tensor = tensor.reshape(len(inputs), *self.input_shape)
        return tensor if self.input_dtype is None else tensor.to(self.input_dtype)

    def _prepare_pass(self) -> None:
        """Copy `x` and the buffers to the module where they do not share memory."""
        for one in self._trained:
            one.prepare_pass()
        for tensor in self._state.values():
            tensor.push()

    def _pull_state(self) -> None:
        """Copy the module's state to the buffers where they do not share memory."""
        for name, tensor in self._state.items():
            if tensor.pull():
                self.buffers[name] = tensor.array

    @contextmanager
    def _enter_evaluation(self) -> Iterator[None]:
        """Switch to evaluation mode without gradients; restore every part's mode at the end."""
        self._prepare_pass()
        try:
            with evaluation_mode(root for _, root in self._roots()), torch.no_grad():
                yield
        finally:
            self._pull_state()

    def __getstate__(self) -> dict[str, Any]:
        self._prepare_pass()
        rebuilt = (
            "x", "_g", "_in_pass", "layers", "buffers", "_trained", "_state", "_begins", "_ready_layers",
            "_foreign",
        )  # fmt: skip
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


def _make_writeable(array: Array) -> Array:
    """Return the array, or a copy where torch cannot share its memory."""
    array = np.asarray(array)
    return array if array.flags.writeable and min(array.strides, default=0) >= 0 else array.copy()


def _labels(labels: Array) -> Tensor:
    tensor = torch.from_numpy(_make_writeable(labels))
    return tensor if tensor.is_floating_point() else tensor.long()


def _chunks(array: Inputs) -> Iterator[Any]:
    for start in range(0, max(1, len(array)), CHUNK):
        yield array[start : start + CHUNK]


# ---- layers


class GlobalDropout(nn.Module):
    """Dropout whose mask depends only on the seed, the step and a sample's position in the global batch.

    So p ranks that each take a slice of a batch drop exactly what one process drops. The generator is Philox, which can
    start anywhere in its sequence, so that no rank draws the numbers of another. The first axis of the inputs counts
    the samples. Outside a `TorchModel`, where `begin` is not called, it behaves like `nn.Dropout`.

    >>> piece = Batch(np.empty((2, 3)), np.empty(2), count=2, total=8, offset=4, step=0, epoch=0)
    >>> dropout = GlobalDropout(0.5)
    >>> dropout.begin(piece, seed=5)
    >>> dropout(torch.ones(2, 3))
    tensor([[0., 2., 0.],
            [2., 0., 2.]])
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise UsageError(f"the probability of dropout must be at least 0 and below 1; got {p}")
        self.p = p
        self._count = 0
        self._seed = self._step = self._offset = self._uses = 0

    def begin(self, batch: Batch, seed: int) -> None:
        """Note the position of the batch; called before each forward pass in training."""
        self._seed, self._step, self._offset, self._uses = seed, batch.step, batch.offset, 0
        self._count = batch.count

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return inputs
        if not self._count:
            return F.dropout(inputs, self.p)
        features, rest = divmod(inputs.numel(), self._count)
        if rest:
            shape = tuple(inputs.shape)
            raise UsageError(f"dropout needs {self._count} samples on the first axis; got the shape {shape}")
        return inputs * torch.from_numpy(self._mask(features)).to(inputs.dtype).reshape(inputs.shape)

    def _mask(self, features: int) -> Array:
        """Return 0 or 1 / (1 - p) for each feature of each sample of the batch."""
        count = self._count
        blocks = -(-features // 8)  # one Philox counter gives 8 numbers of 32 bits; a sample starts a new one
        start = [self._offset * blocks, self._uses, self._step, 0]
        self._uses += 1
        philox = np.random.Philox(key=self._seed, counter=np.array(start, np.uint64))
        bits = philox.random_raw(count * blocks * 4)
        draws = bits.view(np.uint32).reshape(count, blocks * 8)[:, :features]
        keep = draws >= np.uint32(min(round(self.p * 2**32), 2**32 - 1))
        return np.multiply(keep, np.float32(1 / (1 - self.p)), dtype=np.float32)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Cnn(nn.Module):
    """Convolution to 8, pool, ReLU, convolution to 16, pool, ReLU, dropout, pool, linear to 120, ReLU, linear, log-softmax.

    Takes (b, height, width), (b, height, width, channels) or (b, channels, height, width).
    """

    def __init__(
        self, channels: int, height: int, width: int, classes: int, *, dropout: float, channels_last: bool
    ) -> None:
        super().__init__()
        self.image = (channels, height, width)
        self.channels_last = channels_last
        self.conv1 = nn.Conv2d(channels, 8, 5)
        self.conv2 = nn.Conv2d(8, 16, 5)
        self.dropout = GlobalDropout(dropout)
        high, wide = (((side - 4) // 2 - 4) // 2 // 2 for side in (height, width))
        self.linear1 = nn.Linear(16 * high * wide, 120)
        self.linear2 = nn.Linear(120, classes)

    def forward(self, images: Tensor) -> Tensor:
        if self.channels_last:
            images = images.permute(0, 3, 1, 2)
        h = images.reshape(len(images), *self.image)
        h = F.relu(F.max_pool2d(self.conv1(h), 2))
        h = F.relu(F.max_pool2d(self.conv2(h), 2))
        h = F.max_pool2d(self.dropout(h), 2)
        h = F.relu(self.linear1(h.flatten(1)))
        return F.log_softmax(self.linear2(h), dim=1)
