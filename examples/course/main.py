"""Train MNIST serially, synchronously or asynchronously:

    python3 main.py serial
    mpiexec -n 4 python3 main.py sync                   # gradients summed around our ring
    mpiexec -n 4 python3 main.py sync --collective      # by MPI's own Allreduce
    mpiexec -n 8 python3 main.py async 2                # 2 masters, 6 workers

and the same with `srun -n 4 --mpi=pmi2` instead of `mpiexec -n 4`.
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
    """Return the rank of this process as its launcher says it, since MPI runs only inside fit."""
    here = launch.world()
    return 0 if here is None else here.rank


def parse(words):
    parser = Parser(__doc__)
    parser.add_argument("how", choices=["serial", "sync", "async"], help="how to train")
    parser.add_argument("masters", nargs="?", type=count, metavar="M", help="async: the number of masters")
    parser.add_argument(
        "--collective", action="store_true", help="sync: sum the gradients by MPI's Allreduce"
    )
    parser.add_argument(
        "--rule",
        choices=registry.names("rules"),
        help="async: what masters do about stale gradients (default: adaptive)",
    )
    parser.add_argument(
        "--epochs", type=count, default=5, metavar="N", help="number of epochs (default: %(default)s)"
    )
    parser.add_argument(
        "--batches", type=count, default=632, metavar="N", help="batches in an epoch (default: %(default)s)"
    )
    parser.add_argument(
        "--batch", type=count, default=16, metavar="N", help="samples in a batch (default: %(default)s)"
    )
    parser.add_argument(
        "--images", type=count, metavar="N", help="use only the first N of each set, for a trial"
    )
    parser.add_argument(
        "--rate",
        type=rate,
        default=0.1,
        metavar="ETA",
        help="learning rate (default: %(default)s); has hardly any effect in async with the rule adaptive",
    )
    parser.add_argument(
        "--seed", type=seed, help="seed of weights and batches; each rank adds its number to it"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    args = parser.parse_args(words)
    if (args.how == "async") != (args.masters is not None):
        parser.error("async needs the number of masters, and only async takes it: main.py async M")
    if args.how != "sync" and args.collective:
        parser.error(f"--collective is for sync; got {args.how}")
    if args.how != "async" and args.rule:
        parser.error(f"--rule is for async; got {args.how}")
    here = launch.world()
    if args.how == "serial" and here is not None and here.size > 1:
        parser.error(f"serial runs on one process; the job has {here.size} ranks")
    return args


def make(args):
    """Make the requested network, not trained yet; MPI is not started."""
    settings = [LAYERS, args.rate, args.batch, args.batches, args.epochs]
    if args.how == "async":
        network = AsynchronicNeuralNetwork(*settings, number_of_masters=args.masters)
        network.rule = args.rule or network.rule
        return network
    if args.how == "sync":
        return (CollectiveNeuralNetwork if args.collective else SynchronicNeuralNetwork)(*settings)
    return NeuralNetwork(*settings)


def add_clocks(network):
    """Return the seconds that this rank spends computing and exchanging (including waiting); they grow during training."""
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
    args = parse(sys.argv[1:])
    if args.seed is not None:
        np.random.seed(args.seed + rank())  # noqa: NPY002
    training_data, validation_data, test_data = load_mnist(args.images)
    network = make(args)
    # Not for async, where rank 0 computes no gradients.
    spent = add_clocks(network) if args.json and args.how != "async" else {}
    start = time.perf_counter()
    network.fit(training_data, None if args.json else validation_data)
    seconds = time.perf_counter() - start
    if rank() != 0:
        return
    spent = dict(spent)  # before validation adds to it
    accuracy = network.validate(test_data) / len(test_data[0])  # MPI has ended
    here = launch.world()
    result = {
        "how": args.how,
        "layers": LAYERS,
        "ranks": 1 if here is None else here.size,
        "masters": args.masters,
        "seconds": seconds,
        "accuracy": accuracy,
        **spent,
    }
    if args.how == "async" and network.staleness:
        result |= {"staleness": float(np.mean(network.staleness)), "most stale": int(max(network.staleness))}
    if args.json:
        print(json.dumps(result))
        return
    print(f"{args.how}: {seconds:.2f} s, {100 * accuracy:.2f} % of the test images")
    if "staleness" in result:
        print(f"staleness: {result['staleness']:.1f} updates on average, at most {result['most stale']}")


if __name__ == "__main__":
    main()
