"""`paceline simulate`: what ranks that are not there would do."""

from __future__ import annotations

import argparse

from paceline.commands import _simulate_calibrate, _simulate_run, _simulate_scaling

KINDS = {
    "scaling": (_simulate_scaling, "predict speedup by the number of ranks, where it ends and why"),
    "calibrate": (_simulate_calibrate, "measure what messages and memory cost on this machine"),
    "run": (_simulate_run, "run your own mpi4py program, unchanged, on simulated ranks"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to simulate."""
    parser.epilog = """
examples:
  paceline simulate scaling --strategy sync:allreduce=ring --strategy local-sgd --ranks 1..256 --network 10gbe
  paceline simulate calibrate -o machine.json
  paceline simulate run program.py -n 64 --network infiniband
"""
    kinds = parser.add_subparsers(dest="simulation", metavar="WHAT", required=True)
    for name, (module, about) in KINDS.items():
        module.add_arguments(
            kinds.add_parser(
                name,
                help=about,
                description=about[0].upper() + about[1:] + ".",
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
        )


def main(args: argparse.Namespace) -> int:
    """Simulate."""
    from paceline.errors import UsageError
    from paceline.launch import world

    if (here := world()) is not None:  # each rank of that job would simulate everything
        if here.rank != 0:
            return 2
        raise UsageError(f"simulated ranks are all in one process: leave out {here.launcher}")
    status: int = KINDS[args.simulation][0].main(args)
    return status
