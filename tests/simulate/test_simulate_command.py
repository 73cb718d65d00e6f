"""`paceline simulate`, as a user types it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from paceline.cli import main
from paceline.commands.simulate import describe_machine
from paceline.machine import Costs, Machine, calibration
from paceline.simulate import training as _training
from paceline.vmpi import Curves

SMALL = ("--data", "iris", "--model", "mlp:8", "--batch", "16", "--machine", "costs.json", "--epochs", "1")

RING = """
import sys
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI


@dataclass
class Note:
    text: str


comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
mine, theirs = np.full(1000, float(rank)), np.empty(1000)
comm.Sendrecv(mine, (rank + 1) % size, recvbuf=theirs, source=(rank - 1) % size)
note = comm.bcast(Note("from rank 0") if rank == 0 else None)
total = comm.allreduce(theirs[0])
if __name__ == "__main__" and rank == 0:
    print(total, isinstance(note, Note), note.text, sys.argv[1:])


def twice(comm, *words):
    if comm.Get_rank() == 1:
        print("called with", words, __name__)
"""
DEADLOCK = """
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
x = np.zeros(10)
comm.Recv(x, source=1 - comm.Get_rank())
comm.Send(x, dest=1 - comm.Get_rank())
"""
RACE = """
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.Get_rank() > 0:
    comm.Send(np.zeros(1), dest=0)
else:
    status = MPI.Status()
    first = []
    for _ in range(comm.Get_size() - 1):
        comm.Recv(np.zeros(1), source=MPI.ANY_SOURCE, status=status)
        first.append(status.Get_source())
    assert first[0] == 1, first
    print("rank 1 came first")
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    work = {"gradient": Curves.of({1: [[1, 1e-4]]}), "serve": Curves.of({1: [[1, 1e-5]]})}
    Costs(processor="made for a test", cores=8, work=work).save("costs.json")
    for name, text in (("ring.py", RING), ("deadlock.py", DEADLOCK), ("race.py", RACE)):
        Path(name).write_text(text)
    return tmp_path


# ---- scaling


def test_scaling_prints_a_table_and_leaves_a_figure(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ways = ("--strategy", "sync:allreduce=ring", "--strategy", "parameter-server:masters=2")
    assert (
        main(["simulate", "scaling", *ways, *SMALL, "--ranks", "1..4", "--network", "10gbe", "-o", "out"])
        == 0
    )
    printed = capsys.readouterr()
    assert printed.err == ""
    found = json.loads((here / "out/scaling.json").read_text())
    assert [curve["strategy"] for curve in found["strategies"]] == list(ways[1::2])
    for curve in found["strategies"]:
        for point in curve["points"]:
            assert f"{1e3 * point['step_seconds']:.3f}" in printed.out
            assert f"{point['speedup']:.2f}x" in printed.out
        assert re.sub(r"\s+", " ", curve["told"].partition(". ")[2]) in re.sub(r"\s+", " ", printed.out)
    assert "not on 1, 2: 2 masters need at least 3 ranks (2 + 1 worker)" in printed.out
    assert (found["network"], found["config"]["model"]) == ("10gbe", "mlp:8")
    assert "parameter-server:masters=2" in (here / "out/scaling.svg").read_text()
    assert (here / "out/scaling.png").stat().st_size > 10_000

    assert (
        main(["simulate", "scaling", *ways, *SMALL, "--ranks", "1..4", "--network", "10gbe", "--json"]) == 0
    )
    again = json.loads(capsys.readouterr().out)
    assert again["strategies"] == found["strategies"]  # the same to the bit


REFUSED = [
    (("scaling", "--ranks", "4..1"), "numbers of ranks must rise from at least 1; got '4..1'"),
    (("scaling", "--ranks", "some"), "--ranks must be numbers such as 1..1024 or 2,4,6; got 'some'"),
    (("scaling", "--ranks", "0"), "at least 1"),
    (("scaling", "--strategy", "snyc"), "unknown strategy 'snyc'; choose one of"),
    (("scaling", "--strategy", "parameter-server:masters=9", "--ranks", "1..8"), "9 masters need at least 10 ranks"),
    (("scaling", "--strategy", "hogwild:backend=torch"), "cannot be simulated"),
    (("scaling", "--strategy", "sync:allreduce=shared-memory", "--network", "10gbe", "--ranks", "2,4"),
     "nothing could be simulated: sync:allreduce=shared-memory on 2 ranks: shared-memory needs all ranks on one node"),
    (("scaling", "--network", "11gbe"), "unknown network '11gbe'"),
    (("scaling", "--network", "10gbe:latency=4"), "must have a unit"),
    (("scaling", "--slow", "1"), "slow must be RANK:FACTORx"),
    (("scaling", "--jitter", "-1"), "jitter must be a number from 0 to 2, such as 0.2 for a fifth; got -1.0"),
    (("scaling", "--measured", "nowhere"), "no such run or folder of runs: nowhere"),
    (("scaling", "--messages", "0"), "messages must be at least 1; got 0"),
    (("scaling", "--epochs", "0"), "epochs must be at least 1; got 0"),
    (("scaling", "--jobs", "0"), "jobs must be at least 1; got 0"),
    (("scaling", "--out", "costs.json"), "--out must be a folder; got costs.json"),
    (("scaling", "--data", "irsi"), "irsi"),
    (("scaling", "--machine", "none.json"), "cannot read none.json"),
    (("scaling", "--batch", "1000"), "120"),
    (("calibrate", "--seconds", "0"), "seconds must be a finite number above 0"),
    (("calibrate", "-n", "3"), "powers of two, from 2; got 3"),
    (("calibrate", "-o", "no/folder/machine.json"), "cannot write no/folder/machine.json: there is no folder no/folder"),
    (("calibrate", "--hosts", "localhost:2"), "a network needs at least two hosts, such as a:8,b:8; got localhost:2"),
    (("calibrate", "--hosts", "nowhere:1,localhost:1"), "this machine must be the first of the hosts; got nowhere"),
    (("run", "none.py", "-n", "2"), "cannot read none.py: no such file or directory"),
    (("run", "ring.py"), "-n must give the number of ranks, at least 1; got none"),
    (("run", "ring.py", "-n", "0"), "-n must give the number of ranks, at least 1; got 0"),
    (("run", "ring.py", "-n", "two"), "invalid int value: 'two'"),
    (("run", "-n", "2"), "a program is needed"),
    (("run", "", "-n", "2"), "the program must be a file; got an empty name"),
    (("run", "ring.py", "-n", "2", "--faults", ""), "must be a name; got an empty one"),
    (("run", "ring.py", "-n", "2", "--faults", "self.txt"), "line 1: cut_link needs two ranks or nodes; got rank 0 twice"),
    (("run", "ring.py", "-n", "2", "--rendevous"), "unknown option --rendevous; did you mean --rendezvous?"),
    (("run", "ring.py", "-n", "2", "--no_strict"), "unknown option --no_strict; did you mean --no-strict?"),
    (("run", "ring.py", "-n", "2", "--rend"), "unknown option --rend; did you mean --rendezvous?"),
    (("run", "ring.py", "-N", "2"), "unknown option -N; did you mean -n?"),
    (("run", "ring.py", "--rank=2"), "unknown option --rank; did you mean --ranks?"),
    (("run", "costs.txt", "-n", "2"), "costs.txt, line 1: "),
    (("run", "ring.py", "-n", "2", "--function", "thrice"), "ring.py has no function thrice"),
    (("run", "ring.py", "-n", "2", "--network", "11gbe"), "unknown network '11gbe'"),
    (("run", "ring.py", "-n", "2", "--seeds", "0"), "seeds at least 1; got 0 and 0"),
    (("run", "ring.py", "-n", "2", "--faults", "none.txt"), "none.txt"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "said"), REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
def test_bad_input_gets_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    (here / "costs.txt").write_text("this is no program\n")
    (here / "self.txt").write_text("cut_link(0, 0, at=0)\n")
    before = sorted(here.iterdir())
    if words[0] == "scaling":
        words = (
            "scaling",
            *(SMALL if "--data" not in words and "--batch" not in words else SMALL[6:]),
            *words[1:],
        )
        if "--batch" in words:
            words = (*words, "--data", "iris")
    assert main(["simulate", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    [line] = printed.err.splitlines()
    assert line.startswith("paceline simulate: ")
    assert said in line
    assert sorted(here.iterdir()) == before


@pytest.mark.parametrize("words", [("scaling", "-o"), ("scaling", "--work"), ("calibrate", "-o")])
def test_an_empty_name_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    before = sorted(here.iterdir())
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *words, ""])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(": must be a name; got an empty one\n")
    assert sorted(here.iterdir()) == before


# ---- calibrate


def test_calibrate_writes_the_file_and_says_what_it_found(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {}

    def measured(ranks: list[int], *, seconds: float) -> Machine:
        asked.update(ranks=ranks, seconds=seconds)
        return Machine.typical()

    monkeypatch.setattr(calibration, "calibrate", measured)
    assert main(["simulate", "calibrate", "-o", "mine.json", "--seconds", "0.5", "-n", "2,4"]) == 0
    assert asked == {"ranks": [2, 4], "seconds": 0.5}
    assert Machine.load(here / "mine.json") == Machine.typical()
    printed = capsys.readouterr().out
    assert printed.startswith(describe_machine(Machine.typical()))
    assert printed.endswith("machine: mine.json\n")
    assert re.search(r"^ranks at once +2 +16$", printed, re.M)
    # 0.5 us to post, 0.8 to send, 0.3 on its way, 0.8 to take
    assert re.search(r"^8-byte message, us +2\.4 +2\.4$", printed, re.M)
    assert re.search(r"^copying, GB/s per rank +8\.87 +4\.99$", printed, re.M)


@pytest.mark.parametrize("words", [("calibrate",), ("scaling", "--data", "iris", "--ranks", "1")])
def test_ranks_that_could_not_measure_are_one_line(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(*arguments: object, **named: object) -> None:
        raise RuntimeError("the 2 ranks ended with exit status 9")

    monkeypatch.setattr(calibration, "calibrate", failed)
    monkeypatch.setattr(_training, "costs_for", failed)
    assert main(["simulate", *words]) == 1
    assert capsys.readouterr().err == "paceline simulate: the 2 ranks ended with exit status 9\n"


# ---- run


def test_run_an_unchanged_program(capsys: pytest.CaptureFixture[str]) -> None:
    before, path = dict(sys.modules), sys.path[:]
    assert main(["simulate", "run", "ring.py", "-n", "5", "--network", "10gbe", "--", "--epochs", "3"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "10.0 True from rank 0 ['--epochs', '3']\n"
    assert re.fullmatch(r"5 ranks: [\d.]+ us, simulated; 5 messages, 40 kB; 2 collectives\n", printed.err)
    assert sys.modules["__main__"] is before["__main__"]
    assert sys.modules.get("mpi4py.MPI") is before.get("mpi4py.MPI")
    assert sys.path == path


def test_options_may_stand_on_either_side_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "run", "-n", "2", "ring.py", "word", "--flag"]) == 0
    assert "['word', '--flag']" in capsys.readouterr().out
    assert (
        main(["simulate", "run", "ring.py", "--epochs", "3", "-n", "2", "--", "--rendevous", "--seed", "4"])
        == 0
    )
    assert "['--epochs', '3', '--rendevous', '--seed', '4']" in capsys.readouterr().out


def test_a_polling_deadlock_is_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    Path("polls.py").write_text(
        "from mpi4py.MPI import COMM_WORLD as comm\nwhile not comm.Iprobe(source=0, tag=1):\n    pass\n"
    )
    assert main(["simulate", "run", "polls.py", "-n", "2"]) == 1
    assert capsys.readouterr().err.startswith(
        "deadlock: 2 of 2 ranks keep polling for messages that no rank sends\n"
    )


def test_ctrl_c_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    Path("stops.py").write_text("raise KeyboardInterrupt\n")
    assert main(["simulate", "run", "stops.py", "-n", "2"]) == 130
    assert capsys.readouterr().err == "paceline simulate: interrupted\n"


def test_run_a_function_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "run", "ring.py", "--function", "twice", "-n", "3", "7"]) == 0
    assert capsys.readouterr().out == "called with ('7',) ring\n"


def test_a_deadlock_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "run", "deadlock.py", "-n", "2"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("deadlock: 2 of 2 ranks are waiting")
    assert re.search(r"rank 1 is waiting in Recv from rank 0 with any tag at .*deadlock\.py:7", said)


def test_buffering_is_not_to_be_relied_on(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    swapped = DEADLOCK.splitlines()
    swapped[-1], swapped[-2] = swapped[-2], swapped[-1]
    (here / "buffered.py").write_text("\n".join(swapped))
    assert main(["simulate", "run", "buffered.py", "-n", "2"]) == 0
    capsys.readouterr()
    assert main(["simulate", "run", "buffered.py", "-n", "2", "--rendezvous"]) == 1
    assert "is waiting in Send to rank 1 with tag 0 at" in capsys.readouterr().err


def test_a_schedule_that_fails_is_one_seed_that_replays_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "run", "race.py", "-n", "4", "--seeds", "50"]) == 1
    printed = capsys.readouterr()
    assert "AssertionError" in printed.err
    assert "rank 0 of 4 failed" in printed.err
    assert printed.out.count("rank 1 came first") <= 1  # of many schedules only the first is heard
    match = re.search(r"seed (\d+) of 0 to 49; --seed \1 repeats it", printed.err)
    assert match is not None
    assert main(["simulate", "run", "race.py", "-n", "4", "--seed", match[1]]) == 1
    assert "AssertionError" in capsys.readouterr().err
    assert main(["simulate", "run", "ring.py", "-n", "4", "--seeds", "5"]) == 0
    assert " in 5 orders of events" in capsys.readouterr().err


def test_exceptions_and_exit_statuses_are_the_programs(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = "import sys\nfrom mpi4py import MPI\nrank = MPI.COMM_WORLD.rank\n"
    for end, status, said in (
        ("if rank == 2: raise ValueError('enough')", 1, "rank 2 of 3 failed"),
        ("sys.exit(0)", 0, "simulated"),
        ("if rank == 1: sys.exit(7)", 7, ""),
        ("if rank == 1: sys.exit('no more')", 1, "no more"),
    ):
        (here / "ends.py").write_text(f"{head}{end}\n")
        assert main(["simulate", "run", "ends.py", "-n", "3"]) == status, end
        printed = capsys.readouterr().err
        assert said in printed
    (here / "ends.py").write_text(f"{head}def f():\n    raise ValueError('enough')\nif rank == 2: f()\n")
    main(["simulate", "run", "ends.py", "-n", "3"])
    trace = capsys.readouterr().err
    assert re.findall(r'File "(.*?)"', trace) == ["ends.py", "ends.py"]  # the program's lines and no others


@pytest.mark.parametrize("end", ["sys.exit(5)", "raise ValueError('enough')", "comm.Abort(5)"])
def test_a_rank_that_fails_ends_what_others_do_later_and_nothing_before(
    end: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = "import sys, time\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\n"
    (here / "all.py").write_text(f"{head}comm.Barrier()\nprint('rank', comm.rank)\n{end}\n")
    assert main(["simulate", "run", "all.py", "-n", "4"]) in (1, 5)
    assert sorted(capsys.readouterr().out.split()) == ["0", "1", "2", "3", *["rank"] * 4]
    wakes = "time.sleep(4 - comm.rank)\nprint('at', 4 - comm.rank)\n"
    (here / "some.py").write_text(f"{head}{wakes}if comm.rank in (0, 1, 2): {end}\n")
    assert main(["simulate", "run", "some.py", "-n", "4"]) in (1, 5)
    printed = capsys.readouterr()
    assert "at 1\n" in printed.out
    assert "at 2\n" in printed.out
    assert "rank 2 " in printed.err
    assert "rank 0 " not in printed.err


def test_what_strictness_finds_may_be_let_pass(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left = "from mpi4py import MPI\nimport numpy as np\nc = MPI.COMM_WORLD\nif c.rank == 0: c.Send(np.zeros(1), 1)\n"
    (here / "left.py").write_text(left)
    assert main(["simulate", "run", "left.py", "-n", "2"]) == 1
    assert "unmatched messages, sent but never received:" in capsys.readouterr().err
    assert main(["simulate", "run", "left.py", "-n", "2", "--no-strict"]) == 0


def test_faults_come_from_a_script(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "faults.txt").write_text("fail_at(rank=1, time=0.5)\n")
    (here / "long.py").write_text("from mpi4py import MPI\nfor _ in range(3): MPI.COMM_WORLD.Compute(1.0)\n")
    assert main(["simulate", "run", "long.py", "-n", "2", "--faults", "faults.txt"]) == 0
    assert "2 ranks, 1 killed: 3 s, simulated" in capsys.readouterr().err


def test_every_rank_has_names_of_its_own(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "names.py").write_text(
        "from mpi4py import MPI\nseen = []\nc = MPI.COMM_WORLD\nseen.append(c.rank)\nc.Barrier()\n"
        "every = c.gather(seen)\nif every: print(every)\n"
    )
    assert main(["simulate", "run", "names.py", "-n", "3"]) == 0
    assert capsys.readouterr().out == "[[0], [1], [2]]\n"


def test_inside_a_job_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("SIZE", "2"), ("RANK", "0"), ("LOCAL_SIZE", "2"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    status = main(["simulate", "run", "ring.py", "-n", "2"])
    assert status == 2
    assert "simulated ranks are all in one process: run it without" in capsys.readouterr().err
