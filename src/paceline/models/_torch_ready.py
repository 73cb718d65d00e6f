"""When a layer's gradient is final: as soon as every parameter of it has its own, while the backward pass goes on.

PyTorch adds up what all uses of a parameter give before it accumulates the sum, once, into the gradient: then
that is final. But a backward pass inside the backward pass (a reentrant checkpoint) accumulates for itself, so
what looked final may change. The first pass finds out: it watches, and names all layers at its end. Layers whose
gradient changed after it looked final are named at the end of every later pass, too.

The hooks are the graph's, and go with it. Those on a parameter would cost time ever after, even when removed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from threading import get_ident
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node

from paceline.models import Ready
from paceline.models._torch_parts import Trained


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
