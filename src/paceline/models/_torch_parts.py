"""What a module is made of: the parameters that are trained, the layers they form, the state that is kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from paceline.errors import UsageError
from paceline.models import Array

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
