"""The network that is trained, on one process: sigmoid layers, squared error, plain SGD.

The parallel networks of this folder inherit from it. They use only what is described here, so that another network.py
can replace it.
"""

from itertools import pairwise

import numpy as np


class NeuralNetwork:
    """Layers of the given sizes, the first being the input.

    `weights[i]` and `biases[i]` lead into layer i; `weights[0]` and `biases[0]` are placeholders for the input: one
    integer, and a zero for each input. The other arguments become attributes of the same names, except `learning_rate`,
    which becomes `eta`: a step is eta times the SUM of the gradients of a batch.
    """

    def __init__(
        self, sizes, learning_rate=0.1, mini_batch_size=16, number_of_batches=632, epochs=5, matmul=np.matmul
    ):
        self.sizes, self.eta, self.mini_batch_size = list(sizes), learning_rate, mini_batch_size
        self.number_of_batches, self.epochs, self.matmul = number_of_batches, epochs, matmul
        shapes = pairwise(self.sizes)
        self.weights = [np.array([0]), *(np.random.randn(n, m) / np.sqrt(n) for n, m in shapes)]  # noqa: NPY002
        self.biases = [np.zeros(n) for n in self.sizes]

    def fit(self, training_data, validation_data=None):
        """Train on (images, one-hot labels)."""
        for epoch in range(self.epochs):
            for x, y in self.create_batches(*training_data, self.mini_batch_size):
                self.forward_prop(x)
                nabla_b, nabla_w = self.back_prop(y)
                self.weights = [w - self.eta * dw for w, dw in zip(self.weights, nabla_w, strict=True)]
                self.biases = [b - self.eta * db for b, db in zip(self.biases, nabla_b, strict=True)]
            if validation_data is not None:
                self.print_progress(validation_data, epoch)

    def forward_prop(self, x):
        """Return the output for each row of x; keep the output of every layer for `back_prop`."""
        self.activations = [x]
        for w, b in zip(self.weights[1:], self.biases[1:], strict=True):
            self.activations.append(sigmoid(self.matmul(self.activations[-1], w) + b))
        return self.activations[-1]

    def back_prop(self, y):
        """Return the gradients of half the squared error, summed over the last rows given: nabla_b, nabla_w."""
        nabla_b, nabla_w = [np.zeros_like(self.biases[0])], [np.array([0])]
        error = self.activations[-1] - y
        for layer in range(len(self.weights) - 1, 0, -1):
            a = self.activations[layer]
            delta = error * a * (1 - a)
            nabla_b.insert(1, delta.sum(axis=0))
            nabla_w.insert(1, self.matmul(self.activations[layer - 1].T, delta))
            if layer > 1:
                error = self.matmul(delta, self.weights[layer].T)
        return nabla_b, nabla_w

    def create_batches(self, data, labels, batch_size):
        """Return `number_of_batches` random batches; the samples are shuffled again when they are used up."""
        wanted = self.number_of_batches * batch_size
        rounds = [np.random.permutation(len(data)) for _ in range(-(-wanted // len(data)))]  # noqa: NPY002
        places = np.concatenate(rounds or [np.empty(0, int)])[:wanted].reshape(-1, batch_size)
        return [(data[some], labels[some]) for some in places]

    def validate(self, data):
        """Return how many of the images in (images, one-hot labels) are recognised."""
        images, labels = data
        return int((self.forward_prop(images).argmax(axis=1) == labels.argmax(axis=1)).sum())

    def print_progress(self, validation_data, epoch):
        accuracy = 100 * self.validate(validation_data) / len(validation_data[0])
        print(f"epoch {epoch + 1}: {accuracy:.2f} % of the validation images", flush=True)


def sigmoid(z):
    return 0.5 * np.tanh(0.5 * z) + 0.5  # 1 / (1 + exp(-z)), without overflow when training diverges
