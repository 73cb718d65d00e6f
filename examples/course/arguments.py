"""Command lines of this folder's programs: a mistake is reported in one line, by one rank, with exit status 2."""

import argparse
import math
import sys

from paceline.launch import refuse


class Parser(argparse.ArgumentParser):
    """A parser whose description is the program's docstring; in a job, only rank 0 reports errors."""

    def __init__(self, words):
        super().__init__(description=words, formatter_class=argparse.RawDescriptionHelpFormatter)

    def error(self, message):
        MPI = sys.modules.get("mpi4py.MPI")
        if MPI is None or not MPI.Is_initialized():
            refuse(message)
        if MPI.COMM_WORLD.rank == 0:  # the others wait for it in MPI_Finalize
            print(f"{self.prog}: {message}", file=sys.stderr, flush=True)
        sys.exit(2)


def count(word):
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1; got {word}")
    return int(word)


def seed(word):
    if not word.isdecimal() or int(word) >= 2**31:  # each rank adds its number
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to {2**31 - 1}; got {word}")
    return int(word)


def rate(word):
    try:
        eta = float(word)
    except ValueError:
        eta = math.nan
    if not 0 < eta < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0; got {word}")
    return eta


def ranks(words):
    """Read several rank counts: 2,4,8."""
    if not all(word.isdecimal() and int(word) > 1 for word in words.split(",")):
        raise argparse.ArgumentTypeError(f"ranks must be at least 2; got {words}")
    return sorted({int(word) for word in words.split(",")})


def sizes(words):
    """Read powers of 2: 12-21, or 12."""
    first, _, last = words.partition("-")
    last = last or first
    if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) <= 30):
        raise argparse.ArgumentTypeError(f"must be A-B with A <= B <= 30; got {words}")
    return [2**k for k in range(int(first), int(last) + 1)]
