"""`paceline simulate`: ranks that do not exist, in virtual time; one module per sub-command."""

from __future__ import annotations

import argparse

from paceline.commands.simulate import calibrate, run, scaling

KINDS = {
    "scaling": (scaling, "predict the speedup for each number of ranks, where scaling stops, and why"),
    "calibrate": (calibrate, "measure what messages and memory accesses cost on this machine"),
    "run": (run, "run your own mpi4py program, unchanged, on simulated ranks"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands."""
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
    """Run a sub-command."""
    from paceline.errors import UsageError
    from paceline.launch import world

    if (here := world()) is not None:  # each rank would simulate everything
        if here.rank != 0:
            return 2
        raise UsageError(f"simulated ranks are all in one process: run it without {here.launcher}")
    status: int = KINDS[args.simulation][0].main(args)
    return status
