"""What a study's file may say, and what is said of one that may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.cli import main
from paceline.config import Config
from paceline.errors import UsageError
from paceline.launch import usable_cores
from paceline.simulate.options import Options
from paceline.study.cells import Cell, add_baselines, find_varying, read_request
from paceline.study.file import BadStudyError, mistakes, ranks_of, read
from paceline.study.run import command
from paceline.training.job import Job
from tests.study.studies import PART, SETTINGS, write

BOTH = "batch = 2\nbatch_per_rank = 2\n"
RANKS = 'part {}: ranks must be a whole number of at least 1, "cores", or "cores, at most 4"; got '
BAD = {
    "": ["the file has no [[matrix]], which lists what to run: strategy = … and ranks = …"],
    "title = 3\nquestion = []\n" + PART: ["title must be a string; got 3", "question must be a string; got []"],
    "tilte = 'x'\n" + PART: ["the file: unknown key 'tilte'; choose one of title, question, target, target_accuracy"],
    "target = 'loss<=-1'\n" + PART: ["target: a target loss must be above 0: no run can reach loss <= -1"],
    "target_accuracy = 90\n" + PART: [
        "target_accuracy must be a fraction above 0 and at most 1, such as 0.9 for 90 %; got 90"
    ],
    "timeout = 0\n" + PART: ["timeout must be a number of seconds above 0; got 0"],
    "settings = 1\n" + PART: ["settings must be a table, [settings]; got 1"],
    "[settings]\nepocs = 1\n" + PART: ["[settings]: unknown key 'epocs'; choose one of data, model"],
    "[simulation]\nbatch = 1\n" + PART: ["[simulation]: unknown key 'batch'; choose one of network, machine"],
    "[[matrix]]\n": ["part 1: strategy is missing", "part 1: ranks is missing"],
    PART + "replay = 'x'": ["part 1: unknown key 'replay'"],
    PART + "lr_scaling = 'none'\nlr-scaling = 'none'": ["part 1: lr_scaling is given twice"],
    PART + "seed = []\nname = 'a'": ["part 1 (a): seed is an empty list"],
    PART + "seed = [[1]]": ["part 1: seed must be a string, a number or a list of them; got [1]"],
    PART + "data = {}": ["part 1: data must be a string, a number or a list of them; got {}"],
    PART + "threads = ['all', 0]": [
        "part 1: threads must be a whole number of at least 1, or cores / ranks; got 'all'",
        "part 1: threads must be a whole number",
    ],
    "all_threads = 1\n" + PART: ["all_threads must be true or false; got 1"],
    PART + "name = 3": ["part 1: name must be a string; got 3"],
    PART + "name = 'a'\n" + PART + "name = 'a'": ["two parts are named a"],
    PART + "epochs = 'one'\n" + PART + "lr = [-1, 'x']": [
        "part 1: epochs must be a whole number of at least 0; got 'one'",
        "part 2: lr must be a number above 0; got -1",
        "part 2: lr must be a number above 0; got 'x'",
    ],
    PART.replace("ranks = 1", "ranks = 'cores, at most 0'"): [f"{RANKS.format(1)}'cores, at most 0'"],
    PART.replace("ranks = 1", "ranks = [0, 1.5, 'kernels']"): [
        f"{RANKS.format(1)}0",
        f"{RANKS.format(1)}1.5",
        f"{RANKS.format(1)}'kernels'",
    ],
    "[simulation]\njitter = 9\n" + PART: [
        "[simulation]: jitter must be a number from 0 to 2, such as 0.2 for a fifth; got 9",
    ],
    PART + "simulation = 3\n" + PART + "simulation = { network = 'zzz', batch = 1 }": [
        "part 1: simulation must be a table, { network = … }; got 3",
        "part 2: simulation: unknown key 'batch'; choose one of network",
        "part 2: simulation: unknown network 'zzz'; choose one of",
    ],
    PART + "jitter = 0.1\nsimulation = { jitter = 0.2 }": [
        "part 1: jitter is given twice, in simulation and beside it",
    ],
    PART + "[[published]]\n": ["published 1: strategy is missing", "published 1: it has neither seconds nor accuracy"],
    "published = 1\n" + PART: ["published must be tables, [[published]]"],
    PART + "[[published]]\nstrategy = 'sync'\nranks = [2, 4]\nseconds = [1]": [
        "published 1: lists must all have the same length, one value per figure"
    ],
    PART + "[[published]]\nstrategy = 'sync'\nranks = [2, 0]\nseconds = 1": [
        "published 1: ranks must be a whole number of at least 1; got 0"
    ],
    PART + "[[published]]\nstrategy = 'snyc'\nranks = 1.5\nseconds = 'x'\naccuracy = 90\nof = 'all'\npart = 'b'\nwho = 1": [
        "published 1: unknown key 'who'; choose one of strategy, of, what, source, setting, part, ranks, seconds, accuracy",
        "published 1: the study has no strategy 'snyc'; choose one of serial, sync",
        "published 1: of must be test or training; got 'all'",
        "published 1: the study has no part named 'b'; none of its parts has a name",
        "published 1: ranks must be a whole number of at least 1; got 1.5",
        "published 1: seconds must be a number from 0; got 'x'",
        "published 1: accuracy must be a fraction, such as 0.9 for 90 %; got 90",
    ],
    PART + "name = 'a'\n[[published]]\nstrategy = 3\nranks = -3\nseconds = nan\nof = 3\npart = 3": [
        "published 1: strategy must be a string; got 3",
        "published 1: of must be a string; got 3",
        "published 1: part must be a string; got 3",
        "published 1: ranks must be a whole number of at least 1; got -3",
        "published 1: seconds must be a number from 0; got nan",
    ],
    PART + "lr = 'fast'\nbatch = -3\nlr_scaling = 'steep'": [
        "part 1: lr must be a number above 0; got 'fast'",
        "part 1: batch must be a whole number of at least 1; got -3",
        "part 1: unknown lr-scaling 'steep'",
    ],
    # Nothing hides anything else: unknown keys, published figures, settings of all parts (said once), values of one list.
    "[settings]\nlr = -1\nnone = 1\n" + PART.replace("1", "[1, true]") + PART + BOTH + "[[published]]\n": [
        "[settings]: unknown key 'none'",
        "[settings]: lr must be a number above 0; got -1",
        f"{RANKS.format(1)}True",
        "published 1: strategy is missing",
        "published 1: it has neither seconds nor accuracy",
        "part 2: batch and batch-per-rank exclude each other",
    ],
    # A wrong name is reported beside wrong values, from all parts and from the settings of all parts.
    "[settings]\nbatch = 0\nupdate = 'sdg'\n" + PART + "lr = -1\n" + PART.replace("sync", "nope") + "model = 'mpl:3'\n"
    "schedule = ['constant', 'cosin']\n[[matrix]]\nstrategy = ['sync:allreduce=rng', 'own:train']\nranks = 2\n"
    "data = 'mnits'\n": [
        "[settings]: batch must be a whole number of at least 1; got 0",
        "part 1: lr must be a number above 0; got -1",
        "[settings]: unknown update 'sdg'",
        "part 2: unknown model 'mpl:3'",
        "part 2: unknown strategy 'nope'",
        "part 2: unknown schedule 'cosin'",
        "part 3: unknown data set 'mnits'",
        "part 3: unknown collective 'rng'",
    ],
    # What is simulated is checked also where nothing is.
    "[simulation]\nnetwork = ['zzz', 'loopback']\nmachine = 'none.json'\n" + PART + "network = 'yyy'": [
        "[simulation]: unknown network 'zzz'; choose one of",
        "[simulation]: machine must be an existing file; got 'none.json'",
        "part 1: unknown network 'yyy'; choose one of",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), BAD.items(), ids=[f"bad {number}" for number in range(len(BAD))])
def test_all_that_is_wrong_is_said_at_once(tmp_path: Path, text: str, said: list[str]) -> None:
    with pytest.raises(BadStudyError) as refused:
        read(write(tmp_path, text))
    assert len(refused.value.lines) == len(said), refused.value.lines
    assert all(line.startswith(start) for line, start in zip(refused.value.lines, said, strict=True)), (
        refused.value.lines
    )


def test_what_is_no_study(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*none.toml: no such file or directory"):
        read(tmp_path / "none.toml")
    with pytest.raises(UsageError, match=r"s.toml is not TOML: expected '=' after a key"):
        read(write(tmp_path, "title"))
    (tmp_path / "s.toml").write_bytes(b"title = '\xff'")
    with pytest.raises(UsageError, match=r"cannot read .*s.toml: it is not text in UTF-8"):
        read(tmp_path / "s.toml")
    with pytest.raises(UsageError, match=r"s.toml is not TOML: it is nested more than 100 deep"):
        read(write(tmp_path, f"title = {'[' * 50_000}"))


def test_data_that_do_not_suit_the_network_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = 'settings = {data = "digits", model = "cnn"}\n[[matrix]]\nstrategy = "sync"\nranks = 2'
    assert main(["study", str(write(tmp_path, text))]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("cnn needs images of at least 20x20; digits has 8x8")
    assert not (tmp_path / "runs").exists()


def test_cells_that_cannot_work_are_refused_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    parts = """
    [[matrix]]
    name = "server"
    strategy = "parameter-server:masters=2"
    ranks = [2, 4]
    seed = [0, 1]
    [[matrix]]
    strategy = ["sync", "snyc"]
    ranks = [2, 3]
    batch = 500
    [[matrix]]
    strategy = "snyc"
    ranks = 0
    """
    assert main(["study", str(write(tmp_path, SETTINGS + parts))]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    lines = [line.removeprefix(f"paceline study: {tmp_path / 's.toml'}: ") for line in said.err.splitlines()]
    assert sorted(line.partition("; choose")[0] for line in lines) == [
        "part 1 (server), parameter-server:masters=2 on 2 ranks: "
        "2 masters need at least 3 ranks (2 + 1 worker); the job has 2",
        "part 2, snyc on 2 ranks (and 1 more cell): unknown strategy 'snyc'",
        "part 2, sync on 2 ranks (and 2 more cells): a batch of 500 is more than the 120 training samples of iris",
        f"{RANKS.format(3)}0",
        "part 3: unknown strategy 'snyc'",
    ]
    assert list(tmp_path.iterdir()) == [tmp_path / "s.toml"]


def test_every_unknown_name_of_a_cell_is_reported() -> None:
    config = Config(data="irsi", model="mpl", strategy="snyc", update="sdg", schedule="cosin")
    lines = mistakes([Cell(config=config, ranks=2, part="part 1")])
    assert sorted(line.partition("; choose")[0] for line in lines) == [
        "part 1, snyc on 2 ranks: unknown data set 'irsi'",
        "part 1, snyc on 2 ranks: unknown model 'mpl'",
        "part 1, snyc on 2 ranks: unknown schedule 'cosin'",
        "part 1, snyc on 2 ranks: unknown strategy 'snyc'",
        "part 1, snyc on 2 ranks: unknown update 'sdg'",
    ]


def test_ranks_that_the_nodes_cannot_hold_are_reported() -> None:
    cell = Cell(config=Config(data="iris", strategy="local-sgd"), ranks=10**9, part="part 1")
    [line] = mistakes([cell])
    assert "1000000000 ranks are too many for this machine" in line
    assert not any("for this machine" in line for line in mistakes([cell], nodes=10**9))


def test_simulated_cells_are_checked_as_such() -> None:
    cell = Cell(config=Config(strategy="hogwild:backend=torch", data="iris"), ranks=2, part="part 1")
    assert mistakes([cell]) == []
    [line] = mistakes([Cell(**{**vars(cell), "options": Options()})])
    assert "cannot be simulated" in line
    [line] = mistakes(
        [Cell(config=Config(data="iris"), ranks=2, options=Options(slow="2:4x"), part="part 1")]
    )
    assert (
        line
        == "part 1, sync on 2 ranks simulated on loopback: slow: there is no rank 2; the ranks are 0 to 1"
    )


def test_every_list_is_an_axis(tmp_path: Path) -> None:
    text = (
        SETTINGS
        + """
    [[matrix]]
    strategy = ["sync", "psgd"]
    ranks = [2, "cores"]
    seed = [3, 1]
    batch = [10, 20]
    network = ["loopback", "10gbe"]
    [simulation]
    jitter = 0.5
    """
    )
    study = read(write(tmp_path, text))
    real, simulated = study.cells("mpi"), study.cells("sim")
    ranks = len({2, max(2, usable_cores())})
    assert len(real) == 2 * ranks * 2 * 2 + 4  # a serial one for each batch and seed
    assert len(simulated) == 2 * ranks * 2 * 2 * 2 + 4
    assert {cell.options.jitter for cell in simulated if cell.options} == {0.5}
    assert all(cell.options is None and cell.config.epochs == 1 for cell in real)
    assert len({cell.key for cell in (*real, *simulated)}) == len(real) + len(simulated)


def test_a_part_may_have_its_own_simulation(tmp_path: Path) -> None:
    own = PART + 'simulation = { network = ["10gbe", "loopback"], compute = false }\n'
    study = read(write(tmp_path, SETTINGS + PART + own + "[simulation]\njitter = 0.5\nnetwork = '100gbe'\n"))
    cells = [cell for cell in study.cells("sim") if not cell.serial]
    assert [cell.options for cell in cells] == [
        Options(network="100gbe", jitter=0.5),
        Options(network="10gbe", jitter=0.5, compute=False),
        Options(network="loopback", jitter=0.5, compute=False),
    ]
    assert len([cell for cell in study.cells("mpi") if not cell.serial]) == 1


def test_a_cell_that_two_parts_name_is_one(tmp_path: Path) -> None:
    study = read(write(tmp_path, SETTINGS + PART + PART.replace("ranks = 1", "ranks = [2, 1]")))
    assert [str(cell) for cell in study.cells("mpi")] == [
        "serial, seed 0", "sync on 1 rank, seed 0", "sync on 2 ranks, seed 0",
    ]  # fmt: skip


SAME = {
    "the learning rate of the model": ("lr = 2", ""),
    "the batch": ("batch = 64", ""),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME)
def test_a_setting_that_equals_its_default_makes_no_other_cell(tmp_path: Path, one: str, other: str) -> None:
    settings = SETTINGS.replace("batch = 60", "seed = [0, 1]")
    parts = "".join(f"{PART}{more}\n".replace("ranks = 1", "ranks = 2") for more in (one, other))
    cells = read(write(tmp_path, settings + parts)).cells("mpi")
    assert sorted(map(str, cells)) == [
        "serial, seed 0", "serial, seed 1", "sync on 2 ranks, seed 0", "sync on 2 ranks, seed 1",
    ]  # fmt: skip
    others = parts.replace("sync", "gossip", 1)
    assert find_varying(read(write(tmp_path, settings + others)).cells("mpi")) == ()


def test_simulated_ranks_have_one_thread_unless_given() -> None:
    cells = [Cell(config=Config(threads=threads), ranks=2, options=Options()) for threads in (None, 1, 2)]
    assert cells[0].key == cells[1].key != cells[2].key


def test_the_rate_of_a_model_is_known_before_it_is_built(tmp_path: Path) -> None:
    table = write(tmp_path, "a,b\n" + "".join(f"{n},{n / 7}\n" for n in range(50)), "numbers.csv")
    activations = ("tanh", "relu", "sigmoid")
    pairs = [
        (data, f"mlp:4,activation={one}") for data in ("iris", f"{table}:label=b") for one in activations
    ]
    for data, model in (*pairs, ("iris", "mlp:4,loss=cross-entropy"), ("mnist", "cnn")):
        job = Job(config=Config(data=data, model=model), runs=None)
        expected = getattr(job.build(job.load()), "default_rate", 0.1)
        assert Cell(config=job.config, ranks=1).settings["lr"] == expected, model
    assert Cell(config=Config(data="iris", model="nowhere_to_be_found:net"), ranks=1).settings["lr"] is None


def test_the_order_goes_round(tmp_path: Path) -> None:
    part = '[[matrix]]\nstrategy = ["sync", "psgd", "hogwild"]\nranks = [2, 4]\nseed = [1, 0]\n'
    cells = read(write(tmp_path, SETTINGS + part)).cells("mpi")
    turn = ["sync", "psgd", "hogwild"]
    assert [cell.config.seed for cell in cells] == [1] * 7 + [0] * 7
    assert [cell.config.strategy for cell in cells] == ["serial", *turn, *turn] * 2
    assert [cell.ranks for cell in cells] == [1, 2, 2, 2, 4, 4, 4] * 2


def test_baselines() -> None:
    def baselines(*cells: Cell) -> list[Cell]:
        return [cell for cell in add_baselines(cells) if cell.config.strategy == "serial"]

    both = [Cell(config=Config(batch=batch, seed=7), ranks=2) for batch in (10, 20)]
    assert [(cell.config.batch, cell.config.threads, cell.config.seed, cell.ranks) for cell in baselines(*both)] == [
        (10, 1, 7, 1), (20, 1, 7, 1),
    ]  # fmt: skip
    [given] = baselines(
        Cell(config=Config(threads=2), ranks=2), Cell(config=Config(strategy="serial"), ranks=1)
    )
    assert given.config.threads is None  # it is the study's own
    [threads] = baselines(Cell(config=Config(threads=2), ranks=2))
    assert threads.config.threads == 2
    [simulated] = baselines(Cell(config=Config(), ranks=4, options=Options(network="10gbe", slow="3:2x")))
    assert simulated.options == Options(network="10gbe")


def test_every_optimizer_has_a_baseline() -> None:
    strategies = [
        "sync", "parameter-server", "parameter-server:masters=2", "parameter-server:rule=gap-aware",
        "parameter-server:rule=clip:norm=2",
    ]  # fmt: skip
    cells = [Cell(config=Config(strategy=strategy), ranks=4) for strategy in strategies]
    added = add_baselines(cells)[: -len(cells)]
    names = ["serial", "serial:rule=adaptive", "serial:rule=clip:norm=2"]
    assert [(cell.config.strategy, cell.config.threads, cell.ranks) for cell in added] == [
        (n, 1, 1) for n in names
    ]
    assert not any("-n" in command(cell, Path("runs"), "x") for cell in added)
    adam = Cell(config=Config(strategy="parameter-server", update="adam"), ranks=4)
    assert [cell.config.strategy for cell in add_baselines([adam])] == ["serial", "parameter-server"]
    own = Cell(config=Config(strategy="serial:rule=adaptive", threads=3), ranks=1)
    assert [str(cell) for cell in add_baselines([cells[1], own])] == [
        "serial, seed 0", "parameter-server on 4 ranks, seed 0", "serial:rule=adaptive on 3 threads, seed 0",
    ]  # fmt: skip


def test_one_process_with_all_threads_is_a_baseline_too() -> None:
    both = [Cell(config=Config(batch=batch), ranks=ranks) for batch in (10, 20) for ranks in (2, 4)]
    found = [(cell.config.batch, cell.config.threads) for cell in add_baselines(both, cores=8) if cell.serial]
    assert found == [(10, 1), (20, 1), (10, 8), (20, 8)]
    alone = Cell(config=Config(strategy="serial"), ranks=1)  # has all of them, unless told otherwise
    assert add_baselines([alone, Cell(config=Config(), ranks=2)], cores=8)[0] is alone
    simulated = Cell(config=Config(), ranks=4, options=Options())
    assert [cell.config.threads for cell in add_baselines([simulated], cores=8)] == [1, None]


def test_threads_divide_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.study.file.allocated_cores", lambda: 16)
    axes = '[[matrix]]\nstrategy = "sync"\nranks = [4, 16]\nthreads = [1, "cores / ranks"]\n'
    cells = read(write(tmp_path, SETTINGS.replace("false", "true") + axes)).cells("mpi")
    assert sorted((cell.config.strategy, cell.ranks, cell.config.threads) for cell in cells) == [
        ("serial", 1, 1), ("serial", 1, 16), ("sync", 4, 1), ("sync", 4, 4), ("sync", 16, 1),
    ]  # fmt: skip
    assert len(read(write(tmp_path, SETTINGS + axes)).cells("mpi")) == 4  # all_threads = false


def test_ranks_by_cores() -> None:
    assert ranks_of("cores") == max(2, usable_cores())
    assert ranks_of("cores, at most 3") == max(2, min(3, usable_cores()))
    assert ranks_of("cores at most 1") == 2


def test_published_figures_know_their_problem(tmp_path: Path) -> None:
    figure = '[[published]]\nstrategy = "sync"\nranks = 4\nseconds = 2\n'
    text = SETTINGS + PART + 'name = "a"\n' + figure + figure + 'part = "a"\n'
    [anywhere, here] = read(write(tmp_path, text)).as_json()["published"]
    assert anywhere == {"strategy": "sync", "ranks": 4, "seconds": 2}
    problem = here.pop("problem")
    assert here == {**anywhere, "part": "a"}
    settings = read(write(tmp_path, text)).cells("mpi")[0].settings
    assert problem == {name: settings[name] for name in problem}
    assert (
        problem.items() >= {"data": "iris", "model": "mlp:2", "draws": None, "schedule": "constant"}.items()
    )
    several = text.replace('name = "a"', 'name = "a"\ndraws = [7, 8]')
    [_, here] = read(write(tmp_path, several)).as_json()["published"]
    assert "draws" not in here["problem"]


def test_what_was_given_as_an_object_is_nobody_elses() -> None:
    cell = Cell(config=Config(), ranks=2)
    assert read_request(cell.settings) == cell.key
    assert read_request({**cell.settings, "objects": ["data"]}) is None
    simulated = Cell(config=Config(), ranks=2, options=Options(recalibrate=True))
    assert simulated.key == Cell(config=Config(), ranks=2, options=Options()).key != cell.key
    old = {key: value for key, value in simulated.settings.items() if key != "asked"}
    assert read_request(old) is None  # what was asked for is no longer known


MIXED = (
    "all_threads = false\n"
    '[settings]\ndata = "iris"\nmodel = "mlp:2"\nepochs = 1\nbatch = 60\nthreads = 1\n'
    '[[matrix]]\nstrategy = "sync"\nranks = 2\non = ["mpi", "sim"]\n'
    '[[matrix]]\nstrategy = "sync"\nranks = 64\non = "sim"\nnetwork = "10gbe"\n'
    '[[matrix]]\nstrategy = "gossip"\nranks = 2\n'
)


def test_a_file_may_mix_real_and_simulated_cells(tmp_path: Path) -> None:
    study = read(write(tmp_path, MIXED))
    shared = {
        "serial, seed 0", "serial simulated on loopback, seed 0", "sync on 2 ranks, seed 0",
        "sync on 2 ranks simulated on loopback, seed 0", "sync on 64 ranks simulated on 10gbe, seed 0",
    }  # fmt: skip
    real, virtual = "gossip on 2 ranks, seed 0", "gossip on 2 ranks simulated on loopback, seed 0"
    assert {str(cell) for cell in study.cells("mpi")} == shared | {real}
    assert {str(cell) for cell in study.cells("sim")} == shared | {virtual}
    assert sorted(map(str, study.list_all_cells())) == sorted(shared | {real, virtual})
    with pytest.raises(BadStudyError, match="unknown place to run on 'cloud'; choose one of mpi, sim"):
        read(write(tmp_path, PART + "on = 'cloud'"))
