"""Measure what the course asks about on this machine, and write REPORT.md:

    python3 report.py                       # the course's settings on 2, 4, 8 and 16 ranks; takes minutes
    python3 report.py --ranks 2,4,8
    python3 report.py --quick               # a trial: fewer batches and cases, each once, and smaller arrays
    python3 report.py --again               # write the report again from the last measurements

It starts every job itself. The measurements are kept beside the report, in measured.json.
"""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
from answers import answers
from arguments import Parser, ranks

import figures
from paceline.launch import find, run, usable_cores
from paceline.launch.resources import count_other_threads
from paceline.record.environment import processor

HERE = Path(__file__).parent
MASTERS = (1, 2, 4)
FULL = {"epochs": 5, "batches": 632, "batch": 16}
QUICK = {"epochs": 1, "batches": 30, "batch": 16, "images": 2000}
SIZES, QUICK_SIZES = "12-21", "12-13"
LOOKS = 50  # how often to look at what else is running, before each case
REPEATS = 3  # runs of a parallel case,
AFFORDABLE = 10  # as long as they take no longer together, in seconds of training


def main():
    parser = Parser(__doc__)
    parser.add_argument("--ranks", type=ranks, default=[2, 4, 8, 16], metavar="2,4,8", help="(2,4,8,16)")
    parser.add_argument("--quick", action="store_true", help="a trial")
    parser.add_argument(
        "--again", action="store_true", help="write the report again from the last measurements"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=HERE,
        metavar="FOLDER",
        help="where to write the report (default: beside this program)",
    )
    args = parser.parse_args()
    data = args.out / "measured.json"
    most = figures.CROWD * usable_cores()
    if args.again:
        try:
            measured = json.loads(data.read_text())
        except (OSError, ValueError) as error:
            parser.error(f"--again needs earlier measurements in {data}: {error}")
    elif min(args.ranks) > most:
        parser.error(
            f"one of --ranks must be at most {most}, {figures.CROWD} for each core; got {min(args.ranks)}"
        )
    else:
        args.out.mkdir(parents=True, exist_ok=True)
        measured = (
            measure(args.ranks, QUICK, QUICK_SIZES, 1)
            if args.quick
            else measure(args.ranks, FULL, SIZES, REPEATS)
        )
        replace(data, json.dumps(measured, indent=1) + "\n")
    replace(args.out / "REPORT.md", answers(measured))
    print(args.out / "REPORT.md")


def measure(ranks, settings, sizes, repeats):
    """Run all cases of each number of ranks in turn, serial among them, repeatedly, so that a busy minute affects all."""
    options = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    others = []  # threads of others that were running before each case
    serial, together, servers, allreduce = [], [], [], {}
    for p in ranks:
        waiting = p <= figures.CROWD * usable_cores()
        larger = ["--batch", str(p * settings["batch"]), "--rate", str(0.1 / p)]
        cases = [
            (together, {"way": way}, words, [*options, *more])
            for way, words, more in (("sync", "sync", []), ("sync --collective", "sync --collective", []),
                                     (figures.GROWN, "sync", larger))
            if waiting
        ]  # fmt: skip
        cases += [
            (servers, {"rule": rule}, f"async {masters} --rule {rule}", options)
            for masters in MASTERS
            if masters < p
            for rule in ("adaptive", "plain")
        ]
        spent = [[] for _ in cases]  # seconds of each run
        for again in range(repeats):
            others.append(count_other_threads(LOOKS))
            serial.append(run_serial("serial", options))
            for place, (runs, case, words, more) in enumerate(cases):
                if again and (
                    sum(spent[place]) + max(spent[place]) > AFFORDABLE or case.get("rule") == "plain"
                ):
                    continue
                others.append(count_other_threads(LOOKS))
                runs.append(case | train_on(p, words, more))
                spent[place].append(runs[-1]["seconds"])
        if waiting:
            allreduce[str(p)] = json.loads(run_job(p, ["allreduce_test.py", "--json", "--sizes", sizes]))
    return {
        "machine": {
            "cores": usable_cores(),
            "others": sum(others) / len(others),
            "looks": LOOKS,
            "processor": processor(),
            "mpi": find().title,
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
        "settings": settings,
        "serial": serial,
        "sync": together,
        "async": servers,
        "allreduce": allreduce,
    }


def run_serial(how, options):
    """Run one process alone, with one thread like every rank."""
    print(f"main.py {how}", file=sys.stderr, flush=True)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, "main.py", how, "--json", *options], cwd=HERE, env=os.environ | threads,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"main.py {how} ended with {done.returncode}")
    return json.loads(done.stdout)


def train_on(p, words, options):
    return json.loads(run_job(p, ["main.py", *words.split(), "--json", *options]))


def run_job(p, command):
    """Run a job of p ranks; return the last line that it prints."""
    print(f"mpiexec -n {p} python3 {' '.join(command)}", file=sys.stderr, flush=True)
    lines = []
    program = [sys.executable, str(HERE / command[0]), *command[1:]]
    # bind: ranks give up their core while they wait if other work is running
    status = run(p, program, threads=1, on_line=lines.append, bind=True)
    if status != 0:
        sys.exit("\n".join([*lines, f"{command[0]} ended with {status}"]))
    return lines[-1]


def replace(path, text):
    """Write a file completely or not at all."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text)
    beside.replace(path)


if __name__ == "__main__":
    main()
