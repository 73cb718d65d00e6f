"""Train MNIST serially, synchronously or asynchronously:

    python3 main.py serial
    mpiexec -n 4 python3 main.py sync                   # gradients summed round our ring
    mpiexec -n 4 python3 main.py sync --collective      # by MPI's own Allreduce
    mpiexec -n 8 python3 main.py async 2                # 2 masters, 6 workers

and the same with `srun -n 4 --mpi=pmi2` in the place of `mpiexec -n 4`.
"""

import json
import sys
import time

import numpy as np
from arguments import Parser, count, rate, seed
from async_network import AsynchronicNeuralNetwork
from network import NeuralNetwork
from sync_network import SynchronicNeuralNetwork
from sync_network_collective import SynchronicNeuralNetwork as CollectiveNeuralNetwork
from utils import load_mnist

from paceline import launch
from paceline import names as registry

LAYERS = [784, 128, 64, 10]


def rank():
    """This process's place in the job, as its launcher says it: MPI runs inside fit only."""
    here = launch.world()
    return 0 if here is None else here.rank


def parse(words):
    parser = Parser(__doc__)
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
    parser.add_argument(
        "--rate",
        type=rate,
        default=0.1,
        metavar="ETA",
        help="learning rate (%(default)s); plays nearly no part in async with the rule adaptive",
    )
    parser.add_argument("--seed", type=seed, help="of the weights and batches; each rank makes its own of it")
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


def clocked(network):
    """Seconds that this rank spends in computing and, waiting included, in exchange; they grow as it is trained."""
    spent = {}

    def clock(call, what):
        def called(*arguments):
            start = time.perf_counter()
            result = call(*arguments)
            spent[what] += time.perf_counter() - start
            return result

        return called

    for name, what in (("forward_prop", "computing"), ("back_prop", "computing"), ("allreduce", "exchange")):
        if hasattr(network, name):
            spent.setdefault(what, 0.0)
            setattr(network, name, clock(getattr(network, name), what))
    return spent


def main():
    asked = parse(sys.argv[1:])
    if asked.seed is not None:
        np.random.seed(asked.seed + rank())  # noqa: NPY002
    training_data, validation_data, test_data = load_mnist(asked.images)
    network = make(asked)
    spent = (
        clocked(network) if asked.json and asked.how != "async" else {}
    )  # asynchronously rank 0 computes nothing
    start = time.perf_counter()
    network.fit(training_data, None if asked.json else validation_data)
    seconds = time.perf_counter() - start
    if rank() != 0:
        return
    spent = dict(spent)  # in fit alone
    accuracy = network.validate(test_data) / len(test_data[0])  # MPI has ended
    here = launch.world()
    result = {
        "how": asked.how,
        "layers": LAYERS,
        "ranks": 1 if here is None else here.size,
        "masters": asked.masters,
        "seconds": seconds,
        "accuracy": accuracy,
        **spent,
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
