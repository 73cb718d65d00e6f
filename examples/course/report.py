"""Measures what the course asks about, on this machine, and writes REPORT.md:

    python3 report.py                       # the course's size on 2, 4, 8 and 16 ranks: minutes
    python3 report.py --ranks 2,4,8
    python3 report.py --quick               # a trial: fewer batches, few cases, each once, and smaller arrays
    python3 report.py --again               # the words anew from what was measured

It starts every job itself. What was measured is kept beside the report, in measured.json.
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
from paceline.launch.cores import others_running
from paceline.record.environment import processor

HERE = Path(__file__).parent
MASTERS = (1, 2, 4)
FULL = {"epochs": 5, "batches": 632, "batch": 16}
QUICK = {"epochs": 1, "batches": 30, "batch": 16, "images": 2000}
SIZES, QUICK_SIZES = "12-21", "12-13"
LOOKS = 50  # at what else is running, before each case
REPEATS = 3  # of a parallel case,
AFFORDABLE = 10  # as long as all of them together take no longer: seconds of training


def main():
    parser = Parser(__doc__)
    parser.add_argument("--ranks", type=ranks, default=[2, 4, 8, 16], metavar="2,4,8", help="(2,4,8,16)")
    parser.add_argument("--quick", action="store_true", help="a trial")
    parser.add_argument("--again", action="store_true", help="the words anew from what was measured")
    parser.add_argument(
        "--out", type=Path, default=HERE, metavar="FOLDER", help="where the report goes (beside this program)"
    )
    asked = parser.parse_args()
    data = asked.out / "measured.json"
    most = figures.CROWD * usable_cores()
    if asked.again:
        try:
            measured = json.loads(data.read_text())
        except (OSError, ValueError) as error:
            parser.error(f"--again needs what was measured before, in {data}: {error}")
    elif min(asked.ranks) > most:
        parser.error(
            f"one of --ranks must be at most {most}, {figures.CROWD} for each core; got {min(asked.ranks)}"
        )
    else:
        asked.out.mkdir(parents=True, exist_ok=True)
        measured = (
            measure(asked.ranks, QUICK, QUICK_SIZES, 1)
            if asked.quick
            else measure(asked.ranks, FULL, SIZES, REPEATS)
        )
        replace(data, json.dumps(measured, indent=1) + "\n")
    replace(asked.out / "REPORT.md", answers(measured))
    print(asked.out / "REPORT.md")


def measure(ranks, settings, sizes, repeats):
    """The cases of each number of ranks in turn, serial among them, and again: a busy minute does not fall on one alone."""
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
            others.append(others_running(LOOKS))
            serial.append(one("serial", options))
            for place, (runs, case, words, more) in enumerate(cases):
                if again and (
                    sum(spent[place]) + max(spent[place]) > AFFORDABLE or case.get("rule") == "plain"
                ):
                    continue
                others.append(others_running(LOOKS))
                runs.append(case | job(p, words, more))
                spent[place].append(runs[-1]["seconds"])
        if waiting:
            allreduce[str(p)] = json.loads(said(p, ["allreduce_test.py", "--json", "--sizes", sizes]))
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


def one(how, options):
    """A process alone, with one thread like every rank."""
    print(f"main.py {how}", file=sys.stderr, flush=True)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, "main.py", how, "--json", *options], cwd=HERE, env=os.environ | threads,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"main.py {how} ended with {done.returncode}")
    return json.loads(done.stdout)


def job(p, words, options):
    return json.loads(said(p, ["main.py", *words.split(), "--json", *options]))


def said(p, command):
    """The last line that a job of p ranks says."""
    print(f"mpiexec -n {p} python3 {' '.join(command)}", file=sys.stderr, flush=True)
    lines = []
    program = [sys.executable, str(HERE / command[0]), *command[1:]]
    # bind: where other work runs, ranks give up their core while they wait
    status = run(p, program, threads=1, on_line=lines.append, bind=True)
    if status != 0:
        sys.exit("\n".join([*lines, f"{command[0]} ended with {status}"]))
    return lines[-1]


def replace(path, text):
    """Whole or not at all."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text)
    beside.replace(path)


if __name__ == "__main__":
    main()
