"""Asynchronous training: masters own the layers, and serve workers in the order in which they come.

    worker:  compute the gradient of a batch; send each layer's part to its master; receive its new values, and go on
    master:  wait for any worker's gradient of a layer; apply it; send that worker the new values

Ranks r < M are masters, and own the layers r, r + M, r + 2 M …; the others are workers. With W workers, a gradient is W - 1
updates old on average. If it is applied like a fresh one, training diverges from about 6 workers on (see REPORT.md). `rule`
says what the masters do about that: any of paceline's rules, see docs/rules.md there.

Worker k draws its batches from the samples k, k + W, k + 2 W …

An empty message for each layer ends a worker's epoch. All communication during training is non-blocking.
"""

from itertools import islice

import mpi4py

mpi4py.rc(initialize=False, finalize=False)  # before MPI is imported: fit starts and ends it

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402
from network import NeuralNetwork  # noqa: E402

from paceline import names as spec  # noqa: E402
from paceline.errors import AgreedError  # noqa: E402
from paceline.launch import by_hand  # noqa: E402
from paceline.strategies.parameter_server.rules import Arrival  # noqa: E402

NOTHING = np.empty(0)


class AsynchronicNeuralNetwork(NeuralNetwork):
    """A network that the ranks of an MPI job train through masters; creating one needs no MPI."""

    rule = "adaptive"

    def __init__(
        self,
        sizes,
        learning_rate,
        mini_batch_size,
        number_of_batches,
        epochs,
        number_of_masters=1,
        matmul=np.matmul,
    ):
        super().__init__(sizes, learning_rate, mini_batch_size, number_of_batches, epochs, matmul)
        self.number_of_masters = number_of_masters
        self.comm = None  # inside fit: all ranks
        self.staleness = []  # updates that each gradient was late, as applied by this master (on rank 0: by all masters)

    def fit(self, training_data, validation_data=None):
        """Train on (images, one-hot labels); afterwards every rank has the trained network, and MPI has ended."""
        with by_hand(MPI) as self.comm:  # MPI.Init() … MPI.Finalize(); a failing rank ends all
            self._check(len(training_data[0]))
            self._broadcast()  # every rank has drawn its own weights
            if self.comm.rank < self.number_of_masters:
                self.do_master(validation_data)
            else:
                self.do_worker(training_data)
            self._broadcast()  # rank 0 has the complete network
            everyone = self.comm.gather(self.staleness)
            self.staleness = (
                self.staleness if everyone is None else [tau for each in everyone for tau in each]
            )
            self.comm = None

    def do_worker(self, training_data):
        """Compute gradients of this worker's batches; send each layer's to its master, and receive its new values."""
        comm, masters, layers = self.comm, self.number_of_masters, range(len(self.weights))
        values = [self._pack(layer, self.weights, self.biases) for layer in layers]
        for _ in range(self.epochs):
            for x, y in self._batches(training_data):
                self.forward_prop(x)
                nabla_b, nabla_w = self.back_prop(y)
                gradients = [self._pack(layer, nabla_w, nabla_b) for layer in layers]
                requests = [comm.Irecv(values[layer], layer % masters, tag=layer) for layer in layers]
                requests += [comm.Isend(gradients[layer], layer % masters, tag=layer) for layer in layers]
                MPI.Request.Waitall(requests)
                for layer in layers:
                    self._take(layer, values[layer])
            MPI.Request.Waitall([comm.Isend(NOTHING, layer % masters, tag=layer) for layer in layers])

    def do_master(self, validation_data):
        """Apply every gradient of this master's layers as it arrives, until all workers have ended their last epoch."""
        comm, masters, layers = self.comm, self.number_of_masters, len(self.weights)
        workers = comm.size - masters
        owned = {
            layer: OwnedLayer(
                self._pack(layer, self.weights, self.biases), self, workers, placeholder=layer == 0
            )
            for layer in range(comm.rank, layers, masters)
        }
        expected = [(layer, worker) for layer in owned for worker in range(workers)] if self.epochs else []

        def receive(layer, worker):
            return comm.Irecv(owned[layer].g[worker], masters + worker, tag=layer)

        receiving, sending = [receive(*which) for which in expected], {}
        statuses = [MPI.Status() for _ in expected]
        epoch = 0
        while (arrived := MPI.Request.Waitsome(receiving, statuses)) is not None:  # None: no receive is left
            for place, status in zip(arrived, statuses, strict=False):
                layer, worker = which = expected[place]
                if status.Get_count(MPI.BYTE) == 0:
                    owned[layer].ended[worker] += 1
                else:
                    if which in sending:  # its worker has sent again, so the answer has arrived
                        sending[which].Wait()
                    answer = owned[layer].apply(worker)
                    sending[which] = comm.Isend(answer, masters + worker, tag=layer)
                if owned[layer].ended[worker] < self.epochs:
                    receiving[place] = receive(*which)
            while epoch < self.epochs and all(piece.ended.min() > epoch for piece in owned.values()):
                self._complete(epoch, owned, sending)
                if comm.rank == 0 and validation_data is not None:
                    self.print_progress(validation_data, epoch)
                epoch += 1
        MPI.Request.Waitall(list(sending.values()))

    def _complete(self, epoch, owned, sending):
        """End an epoch: rank 0 receives the layers of all masters, so that it validates a complete network."""
        comm, masters, layers = self.comm, self.number_of_masters, len(self.weights)
        now = {layer: piece.x.copy() for layer, piece in owned.items()}
        if comm.rank != 0:
            for layer, values in now.items():
                sending[layer, f"epoch {epoch}"] = comm.Isend(values, 0, tag=layers + layer)
            return
        requests = []
        for layer in set(range(layers)) - set(owned):
            now[layer] = self._pack(layer, self.weights, self.biases)
            requests.append(comm.Irecv(now[layer], layer % masters, tag=layers + layer))
        MPI.Request.Waitall(requests)
        for layer, values in now.items():
            self._take(layer, values)

    def _check(self, samples):
        masters, layers, ranks = self.number_of_masters, len(self.weights), self.comm.size
        if not 1 <= masters <= layers:
            raise AgreedError(
                f"masters must be from 1 to {layers}, the layers of the network (each owns at least one); got {masters}"
            )
        if ranks <= masters:
            raise AgreedError(
                f"{masters} master{'s' * (masters > 1)} and 0 workers cannot train: use at least {masters + 1} ranks, "
                f"not {ranks}"
            )
        if samples < (ranks - masters) * self.mini_batch_size:
            raise AgreedError(
                f"every worker draws batches of {self.mini_batch_size} from samples of its own; {ranks - masters} of them "
                f"need {(ranks - masters) * self.mini_batch_size} samples to train with; got {samples}"
            )

    def _broadcast(self):
        """Send rank 0's network to all ranks."""
        for layer in range(len(self.weights)):
            values = self._pack(layer, self.weights, self.biases)
            self.comm.Ibcast(values, root=0).Wait()
            self._take(layer, values)

    def _batches(self, training_data):
        """Return this worker's share of an epoch's batches, from its own part of the samples.

        So no two workers take the same sample, whether batches come in order or are drawn with one seed for all.
        """
        workers, worker = self.comm.size - self.number_of_masters, self.comm.rank - self.number_of_masters
        whole = self.number_of_batches
        self.number_of_batches = whole // workers + (worker < whole % workers)
        try:
            if not self.number_of_batches:
                return []
            own = [part[worker::workers] for part in training_data]
            some = islice(self.create_batches(*own, self.mini_batch_size), self.number_of_batches)
            return [(x, y) for x, y in some if len(x)]
        finally:
            self.number_of_batches = whole

    def _pack(self, layer, weights, biases):
        """Pack one layer's weights and biases, or their gradients, into one flat array of the network's precision."""
        kinds = [array.dtype for array in (*self.weights[1:], *self.biases[1:])]
        parts = [
            like(part, own).ravel()
            for part, own in ((weights[layer], self.weights[layer]), (biases[layer], self.biases[layer]))
        ]
        return np.concatenate(parts, dtype=np.result_type(*kinds or [float]), casting="unsafe")

    def _take(self, layer, values):
        w, b = self.weights[layer], self.biases[layer]
        self.weights[layer], self.biases[layer] = (
            values[: w.size].reshape(w.shape),
            values[w.size :].reshape(b.shape),
        )


def like(part, own):
    """Return a gradient in the shape of its parameters; a row may stand for a column, one number for all of them."""
    if np.squeeze(part).shape == np.squeeze(own).shape:
        return np.reshape(part, own.shape)
    return np.broadcast_to(part, own.shape)


class OwnedLayer:
    """A layer at its master: its values x and, for each worker, the gradient and the values that it was last sent."""

    def __init__(self, x, network, workers, *, placeholder):
        self.x, self.eta, self.batch = x, network.eta, network.mini_batch_size
        self.g = np.empty((workers, x.size), x.dtype)
        self.ended = np.zeros(workers, int)  # epochs
        self.staleness = [] if placeholder else network.staleness  # nothing is learned there
        self.rule = spec.parse("rules", network.rule).make()
        self.state = self.rule.start(x, workers)
        self.shown, self.nowhere = np.tile(x, (workers, 1)), np.zeros(1)
        self.updates, self.seen = 0, [0] * workers

    def apply(self, worker):
        """Apply x <- x - eta g under the rule; return the values to send, constant until the worker sends again."""
        x, g, shown, rule = self.x, self.g[worker], self.shown[worker], self.rule
        drift = x - shown if getattr(rule, "needs_drift", True) else self.nowhere
        tau = self.updates - self.seen[worker]
        gap, eta = float(np.sqrt(np.mean(drift**2))), self.eta * self.batch  # rules work with mean gradients
        arrival = Arrival(worker=worker, tau=tau, drift=drift, gap=gap, scale=1 / self.batch, eta=eta)
        factor = rule.correct(g, x, arrival, self.state)
        if factor:  # 0: the rule has made the whole step itself
            x -= self.eta * factor * g
        self.staleness.append(tau)
        self.updates += 1
        self.seen[worker] = self.updates
        rule.show(x, shown, worker, self.state)
        return shown
