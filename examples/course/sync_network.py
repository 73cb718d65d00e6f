"""Synchronous training: every rank a part of each batch, the gradients summed round our ring, one common step.

w <- rank 0's
rank r draws from the samples r, r + p, r + 2 p …
each rank, with its m // p samples:  g_r <- sum of the gradients
g <- sum over r of g_r               one allreduce for all layers
w <- w - eta g                       the same everywhere, and the same as serially with all these samples
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
    """A network that the ranks of an MPI job train together; making one needs no MPI."""

    allreduce = staticmethod(ringallreduce)

    def fit(self, training_data, validation_data=None):
        """Train on (images, one-hot labels); afterwards every rank has the trained network, and MPI has ended."""
        with by_hand(MPI) as comm:  # MPI.Init() … MPI.Finalize(); a rank that fails ends all
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
                    nabla_b, nabla_w = self._summed(*self.back_prop(y), comm)
                    self.weights = [w - self.eta * dw for w, dw in zip(self.weights, nabla_w, strict=True)]
                    self.biases = [b - self.eta * db for b, db in zip(self.biases, nabla_b, strict=True)]
                if comm.rank == 0 and validation_data is not None:
                    self.print_progress(validation_data, epoch)

    def _broadcast(self, comm):
        """Every rank has drawn weights of its own: all begin with rank 0's."""
        parameters = [*self.weights, *self.biases]
        flat = self._packed(parameters)
        comm.Bcast(flat, root=0)
        both = unpacked(flat, parameters)
        self.weights, self.biases = both[: len(self.weights)], both[len(self.weights) :]

    def _batches(self, own, share, comm):
        """This rank's batches of an epoch, out of its own part of the samples: on every rank as many.

        However they are drawn, in order or with one seed for all, no two ranks take the same sample.
        """
        some = islice(self.create_batches(*own, share), self.number_of_batches)
        batches = [(x, y) for x, y in some if len(x)]
        fewest = np.empty(1, np.int64)
        self.allreduce(np.array([len(batches)]), fewest, comm, MPI.MIN)
        return batches[: fewest[0]]

    def _summed(self, nabla_b, nabla_w, comm):
        """The sums over all ranks, of all layers at once: one exchange a step, not one an array."""
        gradients = [*nabla_b, *nabla_w]
        mine = self._packed(gradients)
        total = np.empty_like(mine)
        self.allreduce(mine, total, comm, MPI.SUM)
        both = unpacked(total, gradients)
        return both[: len(nabla_b)], both[len(nabla_b) :]

    def _packed(self, arrays):
        """All in one flat array of the network's precision, whatever the input's placeholders are made of."""
        kinds = [array.dtype for array in (*self.weights[1:], *self.biases[1:])]
        flat = [np.ravel(array) for array in arrays]
        return np.concatenate(flat, dtype=np.result_type(*kinds or [float]), casting="unsafe")


def unpacked(flat, like):
    """The parts of a flat array in the shapes of `like`."""
    parts = np.split(flat, np.cumsum([np.size(array) for array in like])[:-1])
    return [part.reshape(np.shape(array)) for part, array in zip(parts, like, strict=True)]
