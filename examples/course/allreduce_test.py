"""Compare both of our allreduces with MPI's own: results, times and bytes.

    mpiexec -n 4 python3 allreduce_test.py

For 2^12 to 2^21 elements, several types and operations. Then many calls in a row in which ranks are late in turn, so that
others are a whole call ahead: results must stay correct, and no rank may wait forever.
"""

import json
import sys
import time

import numpy as np
from arguments import Parser, sizes
from mpi4py import MPI
from my_naive_allreduce import allreduce
from my_ring_allreduce import ringallreduce

from paceline.comm import Recorded
from paceline.errors import UsageError
from paceline.launch import abort_on_error, refuse, verify

# A type, our operation, and its name in MPI.
CASES = [
    ("float64", MPI.SUM, "SUM"),
    ("float32", np.maximum, "MAX"),
    ("int64", MPI.MIN, "MIN"),
    ("int64", lambda a, b: a + b, "SUM"),
]
OURS = {"naive": allreduce, "ring": ringallreduce}
CALLS = 24  # in a row, with ranks that are late


def main():
    parser = Parser(__doc__)
    parser.add_argument(
        "--sizes", type=sizes, default=sizes("12-21"), metavar="A-B", help="2^A to 2^B elements (12-21)"
    )
    parser.add_argument("--json", action="store_true", help="print the measurements as one line of JSON")
    args = parser.parse_args()
    comm = MPI.COMM_WORLD  # started when mpi4py.MPI was imported
    try:
        verify(comm.size)
    except UsageError as error:
        refuse(error)
    with abort_on_error(comm):
        rows = [measure(comm, size, *case) for size in args.sizes for case in CASES]
        wrong = total(comm, sum(row["wrong"] for row in rows) + errors_when_late(comm))
        if comm.rank == 0:
            print(json.dumps(rows) if args.json else table(rows, comm.size))
            if wrong:
                print(f"wrong results: {wrong}", file=sys.stderr)
    sys.exit(1 if wrong else 0)


def measure(comm, size, kind, op, name_of_op):
    """Measure one case: seconds of each allreduce, bytes sent by this rank and by all, wrong results."""
    dtype = np.dtype(kind)
    send = np.random.default_rng(comm.rank).integers(-1000, 1000, size).astype(dtype)
    if dtype.kind == "f":
        send /= 7
    expected, row = np.empty_like(send), {"size": size, "kind": kind, "op": name_of_op, "wrong": 0}
    row["MPI"] = {"seconds": time_call(comm, comm.Allreduce, send, expected, getattr(MPI, name_of_op))}
    for name, ours in OURS.items():
        recv = np.empty_like(send)
        seconds = time_call(comm, ours, send, recv, comm, op)
        counting = Recorded(comm)
        ours(send, recv, counting, op)
        sent = counting.counts.point_to_point.bytes
        row[name] = {"seconds": seconds, "bytes": sent, "bytes in all": total(comm, sent)}
        row["wrong"] += not same(recv, expected)
    return row


def same(ours, theirs):
    """Compare results: sums of floats depend on the order, everything else is exact."""
    return (
        np.allclose(ours, theirs, rtol=1e-9, atol=1e-9)
        if ours.dtype == float
        else np.array_equal(ours, theirs)
    )


def time_call(comm, call, *arguments):
    """Return the shortest of three times, each from a common start until the last rank is done."""
    seconds = []
    for _ in range(3):
        comm.Barrier()
        start = time.perf_counter()
        call(*arguments)
        mine, last = np.array([time.perf_counter() - start]), np.empty(1)
        comm.Allreduce(mine, last, MPI.MAX)
        seconds.append(last[0])
    return min(seconds)


def errors_when_late(comm, size=4096):
    """Count wrong results of many calls in a row, ours and MPI's, without a barrier, with another rank late each time."""
    wrong = 0
    for call in range(CALLS):
        if comm.rank == call % comm.size:
            time.sleep(0.01)
        ours = list(OURS.values())[call % 2]
        send = np.full(size, float(comm.rank + call))
        recv = np.empty_like(send)
        ours(send, recv, comm, MPI.SUM)
        ours(recv, recv, comm, MPI.MAX)  # at once, in place
        wrong += not (recv == comm.size * call + comm.size * (comm.size - 1) / 2).all()
        if call % 5 == 4:
            expected = np.empty_like(send)
            comm.Allreduce(send, expected)
            wrong += not (recv == expected).all()
    return wrong


def total(comm, number):
    everything = np.empty(1, np.int64)
    comm.Allreduce(np.array([number], np.int64), everything)
    return int(everything[0])


def table(rows, p):
    """Lay out the times, and the bytes beside the formulas."""
    lines = [
        f"{p} rank{'s' * (p > 1)}; milliseconds, and bytes that all ranks sent together / the formula: naive p(p-1)n, "
        "ring 2(p-1)n",
        f"{'n':>9} {'kind':>8} {'op':>4} {'MPI':>9} {'naive':>9} {'ring':>9}   {'naive bytes':>27}   {'ring bytes':>27}",
    ]
    for row in rows:
        n = row["size"] * np.dtype(row["kind"]).itemsize
        formulas = {"naive": p * (p - 1) * n, "ring": 2 * (p - 1) * n}
        bytes_ = [f"{row[name]['bytes in all']:>13,} / {formulas[name]:<13,}" for name in OURS]
        times = [f"{1000 * row[name]['seconds']:9.3f}" for name in ("MPI", *OURS)]
        lines.append(
            f"{row['size']:>9,} {row['kind']:>8} {row['op']:>4} {' '.join(times)}   {' '.join(bytes_)}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
