"""Any `torch.nn.Module` as a model: its parameters and gradients are views of two flat NumPy vectors.

`backward` accumulates straight into `g`: an exchange is one message, and both vectors can live in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from paceline.data import Batch
from paceline.errors import UsageError
from paceline.models import Array
from paceline.models._torch_loss import SummedLoss, first

# Samples that are evaluated at once: enough to fill the arithmetic units, few enough to stay in the cache.
CHUNK = 256


class TorchModel:
    """A module, its loss, and the flat vectors `x` and `g` that its parameters and gradients live in.

    >>> import torch
    >>> model = TorchModel(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)))
    >>> model.x.size, model.layers
    (67, [slice(0, 40, None), slice(40, 67, None)])
    >>> model.x[:] = 0  # the module's weights and biases are now 0
    >>> float(model.module[0].weight.abs().sum())
    0.0

    Args:
        module: on the cpu; its parameters become views of `x`; those of another dtype than `x`'s (bfloat16, say) are
            copied from it before each forward pass: `x` is their master copy.
        loss: `loss(outputs, labels)`; by default cross-entropy for classes, squared error for real targets.
        reduction: what the loss does over the samples: "mean", "sum", or "none" (one loss each). A loss that
            has a `reduction` of its own is asked.
        seed: of the random numbers drawn in the forward pass, dropout's for instance.
        sample: inputs of a few samples, `(n, *shape)`; lazy modules need them.
        input_dtype: what the inputs are cast to; by default the dtype of the module's first parameters, or
            int64 when those are an embedding's.
        input_shape: of one sample as the module wants it; by default as the data has it.
    """

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
        self.input_dtype = input_dtype
        self.input_shape = input_shape
        self._loss = SummedLoss(loss, reduction)
        _initialise(self, sample)
        if self.input_dtype is None:
            self.input_dtype = _input_dtype(module)
        if not module.training:
            module.train()
        self._flatten()

    # --- the flat vectors ---

    def _roots(self) -> list[tuple[str, nn.Module]]:
        loss = self._loss.loss
        return [("", self.module)] + ([("loss:", loss)] if isinstance(loss, nn.Module) else [])

    def _flatten(self) -> None:
        """Gather the parameters, allocate `x` and `g`, and move the parameters there."""
        self.layers: Sequence[slice] = []
        self.buffers: dict[str, Array] = {}
        self._parameters: list[tuple[nn.Parameter, slice]] = []
        self._state: list[_State] = []
        seen: dict[Any, nn.Parameter] = {}
        size = 0
        for prefix, root in self._roots():
            for path, part in root.named_modules(prefix=prefix.rstrip(":")):
                start = size
                for name, p in list(part.named_parameters(recurse=False)):
                    full = f"{path}.{name}" if path else name
                    _check_device(full, p)
                    if (known := seen.setdefault(_identity(p), p)) is not p:
                        setattr(part, name, known)  # two parameters of one memory: one parameter
                    elif not p.requires_grad:
                        self._keep(part._parameters, name, full)
                    elif id(p) not in seen:
                        seen[id(p)] = p
                        numbers = p.numel() * (2 if p.is_complex() else 1)
                        self._parameters.append((p, slice(size, size + numbers)))
                        size += numbers
                if size > start:
                    self.layers = [*self.layers, slice(start, size)]
                for name, b in part.named_buffers(recurse=False):
                    full = f"{path}.{name}" if path else name
                    _check_device(full, b)
                    self._keep(part._buffers, name, full)
        if not size:
            raise UsageError("a module must have trainable parameters; this one has none")
        wide = any(p.dtype in (torch.float64, torch.complex128) for p, _ in self._parameters)
        self.x = np.empty(size, np.float64 if wide else np.float32)
        self.g = np.zeros_like(self.x)
        for p, part_of in self._parameters:
            torch.from_numpy(self.x[part_of]).copy_(_real(p.detach()).reshape(-1))
        self._begins = [m for _, root in self._roots() for m in root.modules() if hasattr(m, "begin")]
        self._point()

    def _keep(self, home: Any, name: str, full: str) -> None:
        if full not in self.buffers:
            state = _State(home, name, full)
            self.buffers[full] = state.array
            self._state.append(state)

    def _point(self) -> None:
        """Let the parameters and their gradients be views of `x` and `g`."""
        self._direct: list[tuple[nn.Parameter, Tensor]] = []
        self._mirrored: list[tuple[nn.Parameter, Tensor, Tensor]] = []
        for p, part in self._parameters:
            shape = _real(p.detach()).shape
            x = torch.from_numpy(self.x[part]).reshape(shape)
            g = torch.from_numpy(self.g[part]).reshape(shape)
            if p.dtype == x.dtype:
                p.data = x
                p.grad = g
                self._direct.append((p, g))
            else:
                self._mirrored.append((p, x, g))
        self._refresh()

    def place(self, x: Array, g: Array) -> None:
        """Move parameters and gradient into memory given from outside (a shared window), keeping x's values."""
        for name, array in (("x", x), ("g", g)):
            if array.shape != self.x.shape or array.dtype != self.x.dtype or not array.flags.c_contiguous:
                raise ValueError(
                    f"{name} must be contiguous, {self.x.dtype}, of {self.x.size} entries; "
                    f"got {array.dtype}, shape {array.shape}, strides {array.strides}"
                )
            if not array.flags.writeable:
                raise ValueError(f"{name} must be writeable")
        x[...] = self.x
        g[...] = self.g
        self.x, self.g = x, g
        self._point()

    def _refresh(self) -> None:
        """Copy to the module what cannot be a view of ours: parameters and buffers of other dtypes."""
        for p, x, _ in self._mirrored:
            _real(p.detach()).copy_(x)
        for state in self._state:
            state.push()

    # --- the Model protocol ---

    def gradient(self, batch: Batch) -> float:
        """Fill `g` for this batch; return the loss summed over its samples."""
        if not self.module.training:
            self.module.train()
        self.g.fill(0)
        for p, g in self._direct:
            if p.grad is not g:
                p.grad = g
        for p, _, _ in self._mirrored:
            p.grad = None
        self._refresh()
        torch.default_generator.manual_seed(mixed(self.seed, batch.step, batch.offset))
        for number, part in enumerate(self._begins):
            part.begin(batch, mixed(self.seed, number))  # type: ignore[operator]
        with torch.enable_grad():
            loss = self._loss(self.module(self._inputs(batch.inputs)), _labels(batch.labels))
            if loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]
        self._collect()
        return loss.item()

    def predict(self, inputs: Array) -> Array:
        """The module's outputs in evaluation mode, one row a sample; the predicted class is the largest."""
        with self._evaluating():
            parts = _chunks(np.asarray(inputs))
            rows = [_numpy(self._loss.scores(self.module(self._inputs(part)))) for part in parts]
        return np.concatenate(rows)

    def evaluate(self, inputs: Array, labels: Array) -> tuple[float, int]:
        """The loss summed over the samples, and how many were classified right (0 for regression)."""
        loss, right = 0.0, 0
        with self._evaluating():
            for part, wanted in zip(_chunks(inputs), _chunks(labels), strict=True):
                if not len(part):
                    break
                outputs, target = self.module(self._inputs(part)), _labels(wanted)
                loss += float(self._loss(outputs, target))
                scores = self._loss.scores(outputs)
                if target.ndim == 1 and scores.ndim == 2 and not target.is_floating_point():
                    right += int((scores.argmax(1) == target).sum())
        return loss, right

    # --- around a pass ---

    def _inputs(self, inputs: Array) -> Tensor:
        tensor = torch.from_numpy(_writeable(inputs))
        if self.input_shape is not None:
            tensor = tensor.reshape(len(inputs), *self.input_shape)
        if self.input_dtype is not None and tensor.dtype != self.input_dtype:
            tensor = tensor.to(self.input_dtype)
        return tensor

    def _collect(self) -> None:
        """Bring into `g` the gradients, and into `buffers` the state, that were not written there."""
        for p, g in self._direct:
            if (grad := p.grad) is not g:
                if grad is not None:
                    g.copy_(grad.to_dense() if grad.layout != torch.strided else grad)
                p.grad = g
        for p, _, g in self._mirrored:
            if p.grad is not None:
                g.copy_(_real(p.grad.to_dense() if p.grad.layout != torch.strided else p.grad))
        self._settle()

    def _settle(self) -> None:
        for state in self._state:
            if state.pull():
                self.buffers[state.full] = state.array

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Evaluation mode, no gradients; afterwards every part is in the mode that it was in."""
        modes = [(part, part.training) for _, root in self._roots() for part in root.modules()]
        was = self.module.training
        self._refresh()
        self.module.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.module.train(was)
            for part, mode in modes:
                part.training = mode
            self._settle()

    # --- to other processes ---

    def __getstate__(self) -> dict[str, Any]:
        ours = ("x", "g", "layers", "buffers", "_parameters", "_state", "_direct", "_mirrored", "_begins")
        state = {name: value for name, value in vars(self).items() if name not in ours}
        if self._mirrored:
            state["master"] = self.x.copy()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        master = state.pop("master", None)
        vars(self).update(state)
        self._flatten()
        if master is not None:
            self.x[...] = master


class _State:
    """A buffer or a frozen parameter, and the array that shows it."""

    def __init__(self, home: Any, name: str, full: str) -> None:
        self.home, self.name, self.full = home, name, full
        self._adopt(home[name])

    def _adopt(self, tensor: Tensor) -> None:
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise UsageError(f"buffers must be dense; {self.full} is {tensor.layout}, {tensor.dtype}")
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            plain = tensor.detach().resolve_conj().resolve_neg()
            tensor.data = plain.clone(memory_format=torch.contiguous_format)
        self.tensor = tensor
        try:
            self.array = tensor.detach().numpy()
            self.mirrored = False
        except TypeError:  # bfloat16 and other dtypes that NumPy does not have
            self.array = tensor.detach().float().numpy()
            self.mirrored = True

    def push(self) -> None:
        if self.mirrored:
            self.tensor.detach().copy_(torch.from_numpy(self.array))

    def pull(self) -> bool:
        """Copy what the module put in the buffer's place, or beside our array; True if the array is a new one."""
        now = self.home[self.name]
        if now is not self.tensor:
            if now is None or now.shape != self.tensor.shape or now.dtype != self.tensor.dtype:
                if now is not None:
                    self._adopt(now)
                return now is not None
            self.tensor.detach().copy_(now.detach())
            self.home[self.name] = self.tensor
        if self.mirrored:
            self.array[...] = self.tensor.detach().float().numpy()
        return False


def mixed(*numbers: int) -> int:
    """Numbers that differ anywhere give seeds that differ everywhere (splitmix64).

    >>> mixed(0, 1) != mixed(1, 0)
    True
    """
    state = 0
    for number in numbers:
        state = (state ^ number) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ state >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state


def _initialise(model: TorchModel, sample: Array | None) -> None:
    """Give lazy parameters their shapes, with a pass over a sample."""
    module = model.module
    if not any(is_lazy(t) for t in (*module.parameters(), *module.buffers())):
        return
    if sample is None:
        raise UsageError("a module with lazy parameters needs a sample of its inputs; give sample=…")
    if model.input_dtype is None:
        model.input_dtype = _input_dtype(module)
    was = module.training
    module.eval()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(model.seed)
        first(module(model._inputs(np.asarray(sample))))
    module.train(was)


def _input_dtype(module: nn.Module) -> torch.dtype | None:
    for part in module.modules():
        for p in part.parameters(recurse=False):
            return torch.int64 if isinstance(part, (nn.Embedding, nn.EmbeddingBag)) else p.dtype
    return None


def _check_device(name: str, tensor: Tensor) -> None:
    if tensor.device.type != "cpu":
        raise UsageError(f"a module must be on the cpu; {name} is on {tensor.device}")


def _identity(p: nn.Parameter) -> Any:
    if not p.numel():
        return id(p)
    return (p.untyped_storage().data_ptr(), p.storage_offset(), p.shape, p.stride(), p.dtype, p.requires_grad)


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _writeable(array: Array) -> Array:
    array = np.asarray(array)
    return array if array.flags.writeable and min(array.strides, default=0) >= 0 else array.copy()


def _labels(labels: Array) -> Tensor:
    tensor = torch.from_numpy(_writeable(labels))
    return tensor if tensor.is_floating_point() or tensor.dtype == torch.int64 else tensor.long()


def _numpy(tensor: Tensor) -> Array:
    return (tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()).numpy()


def _chunks(array: Array) -> Iterator[Array]:
    for start in range(0, max(1, len(array)), CHUNK):
        yield array[start : start + CHUNK]
