"""Run mpi4py's own tests on virtual ranks, and print how many pass.

    python tools/conformance.py                         # every test file on 1, 2, 3, 5 and 8 virtual ranks
    python tools/conformance.py p2p_buf rma --ranks 3   # two of them, on 3
    python tools/conformance.py -j 16 --limit 300       # 16 at a time, each for at most 300 s

mpi4py's source archive is downloaded from PyPI into `build/`, which git ignores; nothing of it is part of the project.
Each file runs as `paceline simulate run test_FILE.py -n RANKS --no-strict`. A test passes if it fails on no rank. Tests
that fail, and all tests of a file whose ranks end in a deadlock, are run again one by one, so that a test which leaves
ranks behind does not count against those that follow it. A file that takes longer than the limit is reported as not
finished: none of its tests counts as passed, and the exit status is 1.

Progress goes to stderr. The table goes to stdout in one piece, and ends with one line: passed of all.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

VERSION = "4.1.2"
ARCHIVE = f"mpi4py-{VERSION}.tar.gz"
SHA256 = "56860286dc45f20e8821e93cb06669e30462348bf866f685553fa4b712d58d02"
INDEX = "https://pypi.org/simple/mpi4py/"
FOLDER = Path(__file__).resolve().parent.parent / "build" / "mpi4py"
RANKS = (1, 2, 3, 5, 8)
LIMIT = 1800.0
"""Seconds for one file on one number of ranks."""

# What the simulator must have, and the test files about it.
AREAS = {
    "point-to-point": "p2p_buf p2p_buf_matched p2p_buf_part p2p_obj p2p_obj_matched",
    "collectives": "cco_buf cco_nb_buf cco_pr_buf cco_vec cco_nb_vec cco_pr_vec cco_obj cco_buf_inter cco_vec_inter "
    "cco_obj_inter cco_ngh_buf cco_ngh_obj cco_pr_ngh_buf",
    "communicators": "comm comm_inter attributes session",
    "groups": "group",
    "requests": "request grequest",
    "status": "status",
    "operations": "op",
    "datatypes": "datatype pack",
    "windows": "win",
    "RMA": "rma rma_nb",
    "ULFM": "ulfm",
    "topologies": "comm_topo",
    "errors and hints": "errhandler errorcode exceptions info",
    "buffers and objects": "address buffer mpimem msgspec msgzero handle objmodel pickle subclass environ",
}
# What is left out on purpose.
LEFT_OUT = {
    "file io": "files: the simulator has no file system",
    "spawn dynproc": "processes started by processes, and connections between programs",
    "threads": "threads: a simulated rank is one greenlet",
    "util_pool util_sync util_pkl5 util_dtlib": "mpi4py's own packages on top of MPI, not MPI",
    "cffi ctypes mpiabi mpiapi doc package toplevel": "how mpi4py itself is built, documented and installed",
}


class Unavailable(Exception):  # noqa: N818
    """The archive of mpi4py is not here and cannot be downloaded."""


@dataclass(frozen=True)
class Score:
    """How one file did on one number of ranks."""

    passed: int
    ran: int
    failed: tuple[str, ...] = ()
    seconds: float = 0.0
    finished: bool = True

    def __str__(self) -> str:
        return f"{self.passed}/{self.ran}" if self.finished else "unfinished"


def find_tests(folder: Path = FOLDER) -> Path:
    """Return the folder with mpi4py's tests, downloaded if necessary."""
    tests = folder / f"mpi4py-{VERSION}" / "test"
    if tests.is_dir():
        return tests
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ARCHIVE
    if not file.is_file():
        _download(file)
    if hashlib.sha256(file.read_bytes()).hexdigest() != SHA256:
        file.unlink()
        raise Unavailable(f"{ARCHIVE} is damaged")
    with tarfile.open(file) as archive:
        # Not there before Python 3.11.4; the archive is the one whose digest is known.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
    return tests


def _download(file: Path) -> None:
    try:
        with urllib.request.urlopen(INDEX, timeout=60) as page:
            found = re.search(rf'href="([^"#]*/{re.escape(ARCHIVE)})', page.read().decode())
        if found is None:
            raise Unavailable(f"{INDEX} does not offer {ARCHIVE}")
        with urllib.request.urlopen(urllib.request.urljoin(INDEX, found[1]), timeout=300) as archive:
            file.write_bytes(archive.read())
    except OSError as error:
        raise Unavailable(f"{ARCHIVE} cannot be downloaded: {error}") from None


def run_file(tests: Path, name: str, ranks: int, limit: float = LIMIT) -> Score:
    """Run a test file on virtual ranks, for at most `limit` seconds in all."""
    start = time.monotonic()
    end = start + limit
    try:
        failed, ran, skipped = _run(tests, name, ranks, [], end)
        again = failed
        if again is None:  # the ranks did not come to the end
            again = tuple(_list_tests(tests, name, end))
            ran, skipped = len(again), 0
        bad = []
        for test in again:
            wrong, _, left_out = _run(tests, name, ranks, [test], end)
            skipped += left_out
            if wrong != ():
                bad.append(test)
    except subprocess.TimeoutExpired:
        return Score(0, 0, seconds=limit, finished=False)
    return Score(ran - skipped - len(bad), ran - skipped, tuple(bad), time.monotonic() - start)


def _program(name: str, ranks: int) -> list[str]:
    """Return the command that runs a test file on virtual ranks, to be followed by the file's own arguments."""
    command = [sys.executable, "-m", "paceline", "simulate", "run", f"test_{name}.py"]
    return [*command, "-n", str(ranks), "--no-strict", "--"]


def _run(
    tests: Path, name: str, ranks: int, wanted: list[str], end: float
) -> tuple[tuple[str, ...] | None, int, int]:
    """Return the tests that failed on any rank, or None if not all could be run; how many ran, and were skipped."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MPI4PY_TEST_SPAWN": "no"}
    ended = subprocess.run(
        [*_program(name, ranks), "-q", *wanted],
        cwd=tests, env=environment, capture_output=True, text=True, timeout=max(0.0, end - time.monotonic()),
    )  # fmt: skip
    text = ended.stdout + ended.stderr
    counts = {int(number) for number in re.findall(r"^Ran (\d+) tests?", text, re.MULTILINE)}
    endings = len(re.findall(r"^Ran \d+ tests?", text, re.MULTILINE))
    if ended.returncode or endings != ranks or len(counts) != 1:
        return None, 0, 0
    failed = set(re.findall(r"^(?:ERROR|FAIL): .*?\((?:__main__\.)?([\w.]+)\)", text, re.MULTILINE))
    skipped = [int(number) for number in re.findall(r"^(?:OK|FAILED) .*?skipped=(\d+)", text, re.MULTILINE)]
    return tuple(sorted(failed)), counts.pop(), min(skipped) if len(skipped) == ranks else 0


def _list_tests(tests: Path, name: str, end: float) -> list[str]:
    """Return the names of all tests of a file."""
    ended = subprocess.run(
        [*_program(name, 1), "-v"],
        cwd=tests, capture_output=True, text=True, timeout=max(0.0, end - time.monotonic()),
    )  # fmt: skip
    found = re.findall(r"^test\w* \((?:__main__\.)?([\w.]+)\)", ended.stderr, re.MULTILINE)
    return list(dict.fromkeys(found))


def main(argv: list[str] | None = None) -> int:
    """Run the tests and print the table. Return 1 if an area passes less than 95 %."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", help="test files, such as p2p_buf; default: all")
    parser.add_argument(
        "--ranks", type=_positive, nargs="+", default=RANKS, metavar="N", help="numbers of virtual ranks"
    )
    parser.add_argument(
        "-j", "--jobs", type=_positive, default=os.cpu_count() or 1, metavar="N", help="files run at a time"
    )
    parser.add_argument(
        "--limit",
        type=_positive,
        default=LIMIT,
        metavar="S",
        help="seconds for one file on one number of ranks",
    )
    args = parser.parse_args(argv)
    area_of = {name: area for area, names in AREAS.items() for name in names.split()}
    unknown = [name for name in args.files if name not in area_of]
    if unknown:
        parser.error(f"unknown test file {unknown[0]!r}; choose from {', '.join(area_of)}")
    try:
        tests = find_tests()
    except Unavailable as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    start = time.monotonic()
    names = list(dict.fromkeys(args.files)) or list(area_of)
    scores = run_files(tests, names, sorted(set(args.ranks)), args.jobs, args.limit)
    print_table(scores, area_of, whole=not args.files)
    unfinished = sum(not each.finished for each in scores.values())
    passed, ran = sum(each.passed for each in scores.values()), sum(each.ran for each in scores.values())
    print(
        f"\ntotal: {passed:,} of {ran:,} passed ({passed / max(ran, 1):.2%}), "
        f"{unfinished} files not finished, {(time.monotonic() - start) / 60:.0f} min"
    )
    return int(
        unfinished > 0 or any(good < 0.95 * all_ for good, all_, _ in sum_areas(scores, area_of).values())
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1; got {number}")
    return number


def run_files(
    tests: Path, names: list[str], counts: list[int], jobs: int, limit: float
) -> dict[tuple[str, int], Score]:
    """Run test files on numbers of ranks, `jobs` at a time; those on many ranks, which take longest, come first."""
    scores = {}
    with ThreadPoolExecutor(jobs) as pool:
        waiting = {
            pool.submit(run_file, tests, name, ranks, limit): (name, ranks)
            for ranks in sorted(counts, reverse=True)
            for name in names
        }
        for done in as_completed(waiting):
            name, ranks = waiting[done]
            score = scores[name, ranks] = done.result()
            print(
                f"{len(scores)} of {len(waiting)}: {name} on {ranks}: {score}, {score.seconds:.0f} s",
                file=sys.stderr, flush=True,
            )  # fmt: skip
    return {(name, ranks): scores[name, ranks] for name in names for ranks in counts}


def sum_areas(scores: dict[tuple[str, int], Score], area_of: dict[str, str]) -> dict[str, list[int]]:
    """Return, for each area, the tests that passed, the tests that ran, and the files that were not finished."""
    totals: dict[str, list[int]] = {}
    for (name, _), score in scores.items():
        total = totals.setdefault(area_of[name], [0, 0, 0])
        total[0] += score.passed
        total[1] += score.ran
        total[2] += not score.finished
    return totals


def print_table(scores: dict[tuple[str, int], Score], area_of: dict[str, str], *, whole: bool) -> None:
    """Print the scores by file and number of ranks, the areas, the tests that failed, and what is left out."""
    counts = list(dict.fromkeys(ranks for _, ranks in scores))
    print(f"mpi4py {VERSION}'s own tests, passed of all, on virtual ranks")
    print(f"{'file':18}" + "".join(f"{ranks:>11}" for ranks in counts))
    for name in dict.fromkeys(name for name, _ in scores):
        print(f"{name:18}" + "".join(f"{scores[name, ranks]!s:>11}" for ranks in counts))
    print()
    for area, (passed, ran, unfinished) in sum_areas(scores, area_of).items():
        rest = f"  {unfinished} files not finished" if unfinished else ""
        print(f"{area:22}{passed:>7} of {ran:<6}{passed / max(ran, 1):>8.1%}{rest}")
    if any(score.failed for score in scores.values()):
        print("\nfailed:")
    for (name, ranks), score in scores.items():
        for test in score.failed:
            print(f"  {name} on {ranks}: {test}")
    if whole:
        print("\nleft out:")
        for names, why in LEFT_OUT.items():
            print(f"  {names}: {why}")


if __name__ == "__main__":
    raise SystemExit(main())
