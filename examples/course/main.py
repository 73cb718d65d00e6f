"""Train MNIST serially, synchronously or asynchronously:

    python3 main.py serial
    mpiexec -n 4 python3 main.py sync                   # gradients summed round our ring
    mpiexec -n 4 python3 main.py sync --collective      # by MPI's own Allreduce
    mpiexec -n 8 python3 main.py async 2                # 2 masters, 6 workers

and the same with `srun -n 4 --mpi=pmi2` in the place of `mpiexec -n 4`.
"""

import argparse
import json
import sys
import time

import numpy as np
from async_network import AsynchronicNeuralNetwork
from network import NeuralNetwork
from sync_network import SynchronicNeuralNetwork
from sync_network_collective import SynchronicNeuralNetwork as CollectiveNeuralNetwork
from utils import load_mnist

from paceline import launch, registry

LAYERS = [784, 128, 64, 10]


class Parser(argparse.ArgumentParser):
    """What is wrong with the command is said once, by rank 0."""

    def error(self, message):
        if rank() == 0:
            print(f"{self.prog}: {message}", file=sys.stderr, flush=True)
        time.sleep(
            0 if launch.world() is None else 0.5
        )  # the first rank that leaves ends all: not before it is said
        sys.exit(2)


def rank():
    """This process's place in the job, as its launcher says it: MPI runs inside fit only."""
    here = launch.world()
    return 0 if here is None else here.rank


def parse(words):
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("how", choices=["serial", "sync", "async"])
    parser.add_argument(
        "masters", nargs="?", type=count, metavar="M", help="async: so many ranks are masters"
    )
    parser.add_argument("--collective", action="store_true", help="sync: MPI's Allreduce")
    parser.add_argument(
        "--rule", choices=registry.names("rules"), help="async: what masters do about staleness (adaptive)"
    )
    parser.add_argument("--epochs", type=count, default=5, metavar="N", help="(%(default)s)")
    parser.add_argument("--batches", type=count, default=632, metavar="N", help="in an epoch (%(default)s)")
    parser.add_argument("--batch", type=count, default=16, metavar="N", help="samples (%(default)s)")
    parser.add_argument("--images", type=count, metavar="N", help="the first of each set only, for a trial")
    parser.add_argument("--rate", type=float, default=0.1, metavar="ETA", help="learning rate (%(default)s)")
    parser.add_argument("--seed", type=int, help="of the weights and batches; each rank makes its own of it")
    parser.add_argument("--json", action="store_true", help="the result as one line of JSON")
    asked = parser.parse_args(words)
    if (asked.how == "async") != (asked.masters is not None):
        parser.error("async, and nothing else, takes the number of masters: main.py async M")
    if asked.how != "sync" and asked.collective:
        parser.error(f"--collective is for sync; got {asked.how}")
    if asked.how != "async" and asked.rule:
        parser.error(f"--rule is for async; got {asked.how}")
    here = launch.world()
    if asked.how == "serial" and here is not None and here.size > 1:
        parser.error(f"serial is one process; the job has {here.size} ranks")
    return asked


def count(word):
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on; got {word}")
    return int(word)


def make(asked):
    """The network that was asked for, not trained yet; MPI is not started."""
    settings = [LAYERS, asked.rate, asked.batch, asked.batches, asked.epochs]
    if asked.how == "async":
        network = AsynchronicNeuralNetwork(*settings, number_of_masters=asked.masters)
        network.rule = asked.rule or network.rule
        return network
    if asked.how == "sync":
        return (CollectiveNeuralNetwork if asked.collective else SynchronicNeuralNetwork)(*settings)
    return NeuralNetwork(*settings)


def main():
    asked = parse(sys.argv[1:])
    if asked.seed is not None:
        np.random.seed(asked.seed + rank())  # noqa: NPY002
    training_data, validation_data, test_data = load_mnist(asked.images)
    network = make(asked)
    start = time.perf_counter()
    network.fit(training_data, None if asked.json else validation_data)
    seconds = time.perf_counter() - start
    if rank() != 0:
        return
    accuracy = network.validate(test_data) / len(test_data[0])  # MPI has ended
    here = launch.world()
    result = {
        "how": asked.how,
        "layers": LAYERS,
        "ranks": 1 if here is None else here.size,
        "masters": asked.masters,
        "seconds": seconds,
        "accuracy": accuracy,
    }
    if asked.how == "async" and network.staleness:
        result |= {"staleness": float(np.mean(network.staleness)), "most stale": int(max(network.staleness))}
    if asked.json:
        print(json.dumps(result))
        return
    print(f"{asked.how}: {seconds:.2f} s, {100 * accuracy:.2f} % of the test images")
    if "staleness" in result:
        print(f"staleness: {result['staleness']:.1f} updates on average, at most {result['most stale']}")


if __name__ == "__main__":
    main()
