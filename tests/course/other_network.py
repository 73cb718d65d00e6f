"""Somebody else's network.py: the course's interface, and nothing else is as in ours.

Single precision, samples in columns, a softmax, biases as columns, batches from a generator, gradients of the
placeholders of one element, weights drawn from a seed. It notes which batches it was trained with.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

Arrays = list[Any]


class NeuralNetwork:
    seed = 0
    in_order = False  # batches one after the other to the end of the data, however many are wanted

    def __init__(
        self, sizes: list[int], learning_rate: float, mini_batch_size: int, number_of_batches: int, epochs: int, matmul: Any
    ) -> None:  # fmt: skip
        self.rng = np.random.default_rng(self.seed)
        self.weights: Arrays = [np.array([0])]
        self.biases: Arrays = [np.zeros(sizes[0])]
        for before, here in pairwise(sizes):
            self.weights.append(self.rng.normal(0, 0.5, (here, before)).astype("f"))
            self.biases.append(np.zeros((here, 1), "f"))
        self.eta, self.epochs, self.product = learning_rate, epochs, matmul
        self.mini_batch_size, self.number_of_batches = mini_batch_size, number_of_batches
        self.given: list[tuple[Any, Any]] = []

    def forward_prop(self, x: Any) -> Any:
        self.outputs = [np.asarray(x, "f").T]
        for i in range(1, len(self.weights)):
            z = self.product(self.weights[i], self.outputs[-1]) + self.biases[i]
            self.outputs.append(np.tanh(z) if i + 1 < len(self.weights) else np.exp(z - z.max(0)))
        self.outputs[-1] /= self.outputs[-1].sum(0)
        return self.outputs[-1].T

    def back_prop(self, y: Any) -> tuple[Arrays, Arrays]:
        self.given.append((self.outputs[0].T.copy(), y.copy()))
        nabla_b: Arrays = [np.array([0])]
        nabla_w: Arrays = [np.array([0])]
        delta = self.outputs[-1] - y.T.astype("f")
        for i in reversed(range(1, len(self.weights))):
            nabla_b.insert(1, delta.sum(1, keepdims=True))
            nabla_w.insert(1, self.product(delta, self.outputs[i - 1].T))
            delta = self.product(self.weights[i].T, delta) * (1 - self.outputs[i - 1] ** 2)
        return nabla_b, nabla_w

    def step(self, nabla_b: Arrays, nabla_w: Arrays) -> None:
        """What serial training does with a gradient."""
        self.weights = [w - self.eta * dw for w, dw in zip(self.weights, nabla_w, strict=True)]
        self.biases = [b - self.eta * db for b, db in zip(self.biases, nabla_b, strict=True)]

    def create_batches(self, data: Any, labels: Any, batch_size: int) -> Iterator[tuple[Any, Any]]:
        if self.in_order:
            for first in range(0, len(data), batch_size):
                yield data[first : first + batch_size], labels[first : first + batch_size]
            return
        for _ in range(self.number_of_batches):
            some = self.rng.choice(len(data), batch_size, replace=False)
            yield data[some], labels[some]

    def validate(self, data: Any) -> int:
        return int((self.forward_prop(data[0]).argmax(1) == data[1].argmax(1)).sum())

    def print_progress(self, validation_data: Any, epoch: int) -> None:
        print(f"epoch {epoch}: {self.validate(validation_data)}", flush=True)
