"""Synchronous training: each rank takes a part of every batch, our ring sums the gradients, and all take the same step.

w <- rank 0's weights
rank r draws from the samples r, r + p, r + 2 p …
each rank, with its m // p samples:  g_r <- sum of the gradients
g <- sum over r of g_r               one allreduce for all layers
w <- w - eta g                       the same on every rank, and as in serial training with all these samples
"""

from itertools import islice

import mpi4py

mpi4py.rc(initialize=False, finalize=False)  # before MPI is imported: fit starts and ends it

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402
from my_ring_allreduce import ringallreduce  # noqa: E402
from network import NeuralNetwork  # noqa: E402

from paceline.errors import AgreedError  # noqa: E402
from paceline.launch import by_hand  # noqa: E402


class SynchronicNeuralNetwork(NeuralNetwork):
    """A network that the ranks of an MPI job train together; creating one needs no MPI."""

    allreduce = staticmethod(ringallreduce)

    def fit(self, training_data, validation_data=None):
        """Train on (images, one-hot labels); afterwards every rank has the trained network, and MPI has ended."""
        with by_hand(MPI) as comm:  # MPI.Init() … MPI.Finalize(); a failing rank ends all
            share = self.mini_batch_size // comm.size
            if share == 0:
                raise AgreedError(
                    f"each rank takes mini_batch_size // ranks samples of a batch, and {self.mini_batch_size} // "
                    f"{comm.size} is 0; use at most {self.mini_batch_size} ranks, or a larger batch"
                )
            images, labels = training_data
            if len(images) < self.mini_batch_size:
                raise AgreedError(
                    f"a batch of {self.mini_batch_size} needs as many samples to train with; got {len(images)}"
                )
            own = images[comm.rank :: comm.size], labels[comm.rank :: comm.size]
            self._broadcast(comm)
            for epoch in range(self.epochs):
                for x, y in self._batches(own, share, comm):
                    self.forward_prop(x)
                    nabla_b, nabla_w = self._sum(*self.back_prop(y), comm)
                    self.weights = [w - self.eta * dw for w, dw in zip(self.weights, nabla_w, strict=True)]
                    self.biases = [b - self.eta * db for b, db in zip(self.biases, nabla_b, strict=True)]
                if comm.rank == 0 and validation_data is not None:
                    self.print_progress(validation_data, epoch)

    def _broadcast(self, comm):
        """Replace the weights that every rank has drawn for itself by those of rank 0."""
        parameters = [*self.weights, *self.biases]
        flat = self._pack(parameters)
        comm.Bcast(flat, root=0)
        both = unpack(flat, parameters)
        self.weights, self.biases = both[: len(self.weights)], both[len(self.weights) :]

    def _batches(self, own, share, comm):
        """Return this rank's batches of an epoch, from its own part of the samples: the same number on every rank.

        So no two ranks take the same sample, whether batches come in order or are drawn with one seed for all.
        """
        some = islice(self.create_batches(*own, share), self.number_of_batches)
        batches = [(x, y) for x, y in some if len(x)]
        fewest = np.empty(1, np.int64)
        self.allreduce(np.array([len(batches)]), fewest, comm, MPI.MIN)
        return batches[: fewest[0]]

    def _sum(self, nabla_b, nabla_w, comm):
        """Sum the gradients of all layers over all ranks, in one exchange per step instead of one per array."""
        gradients = [*nabla_b, *nabla_w]
        mine = self._pack(gradients)
        total = np.empty_like(mine)
        self.allreduce(mine, total, comm, MPI.SUM)
        both = unpack(total, gradients)
        return both[: len(nabla_b)], both[len(nabla_b) :]

    def _pack(self, arrays):
        """Pack arrays into one flat array of the network's precision, whatever the type of the input's placeholders."""
        kinds = [array.dtype for array in (*self.weights[1:], *self.biases[1:])]
        flat = [np.ravel(array) for array in arrays]
        return np.concatenate(flat, dtype=np.result_type(*kinds or [float]), casting="unsafe")


def unpack(flat, like):
    """Cut a flat array into parts of the shapes of `like`."""
    parts = np.split(flat, np.cumsum([np.size(array) for array in like])[:-1])
    return [part.reshape(np.shape(array)) for part, array in zip(parts, like, strict=True)]
