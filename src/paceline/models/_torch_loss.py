"""Any loss callable as a sum over samples, and what its outputs say about the class."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from paceline.errors import UsageError, unknown

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
