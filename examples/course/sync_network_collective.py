"""Synchronous training as in sync_network.py, with the gradients summed by MPI's own Allreduce."""

import sync_network


def allreduce(send, recv, comm, op):
    comm.Allreduce(send, recv, op)


class SynchronicNeuralNetwork(sync_network.SynchronicNeuralNetwork):
    """A network that the ranks of an MPI job train together; creating one needs no MPI."""

    allreduce = staticmethod(allreduce)
