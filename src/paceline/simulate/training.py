"""Training runs on simulated ranks: the objects shared by all ranks, and the environment of each rank."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from paceline.comm.clocks import KINDS
from paceline.data import read_apart
from paceline.errors import StoppedError, UsageError
from paceline.files import read_json, read_text
from paceline.launch import limit_threads, machine_cores, usable_cores
from paceline.machine import Costs, Machine, costs_of, load_network, make_compute
from paceline.models import Model
from paceline.record import STEP_COLUMNS, Run, Table, release
from paceline.record.checkpoint import find_latest
from paceline.record.environment import environment, processor
from paceline.record.rows import WholeTable
from paceline.record.writing import STEP_TYPES
from paceline.simulate.model import PAYS, Costed, Pool, Room, add_costs, copy_model, kind_of, move_into_room
from paceline.simulate.options import Options
from paceline.simulate.together import (
    Engine,
    Forked,
    LateSplit,
    Outstanding,
    Reads,
    SharedVectors,
    Threads,
    find_obstacle,
    scratch_pairs,
)
from paceline.strategies import Strategy
from paceline.training.job import Components, Job, Train, batch_of, strategy_of
from paceline.training.rank import (
    Collected,
    Fitted,
    RankEnvironment,
    Show,
    add_waits,
    common_rows,
    sum_up,
    train_at,
)
from paceline.training.resuming import train_surviving
from paceline.vectors import Meter, carried
from paceline.vmpi import Compute, Network
from paceline.vmpi.alike import GroupTime, NotAlike, run_alike
from paceline.vmpi.compute import Curves
from paceline.vmpi.errors import RankFailed, SimulationError
from paceline.vmpi.faults import load_faults
from paceline.vmpi.program import Outcome, check_faults, check_ranks, compile_script, run
from paceline.worker import Worker

Array = NDArray[Any]
Made = TypeVar("Made")
EXCHANGE = STEP_COLUMNS.index("exchange")
# The most steps, of all ranks together, that are remembered of ranks that are simulated as one: without a record, and with.
MOST_STEPS, MOST_RECORDED = 1 << 26, 1 << 22
log = logging.getLogger(__name__)
# The settings that two jobs must share to have the same computing costs.
SAME_WORK = ("data", "model", "dtype", "update", "strategy")


def simulate(job: Job, ranks: int, options: Options, *, progress: Show | None = None) -> Fitted:
    """Run `job` on `ranks` simulated ranks in this process; the results are those of real ranks, in virtual time.

    A model that was given as an object is trained in place.
    """
    faults = check(job, ranks, options)
    parts = job.prepare(ranks)
    threads = job.config.threads or 1
    with limit_threads(threads):
        network, costs = costs_for(job, options)
        simulation = Simulation(
            job, ranks, options, network, costs, threads, parts, time_only=not options.compute
        )
        with simulation:
            fitted = simulation.run(faults, progress)
    return replace(fitted, model=parts.model)


def check(job: Job, ranks: int, options: Options) -> Any:
    """Raise a UsageError for what cannot be simulated, before anything is measured; return the faults to inject."""
    check_ranks(ranks)
    options.check(ranks)
    for name in job.safety.changed:
        if name in ("stall_timeout", "on_stall", "restarts"):
            never = "are not restarted" if name == "restarts" else "do not stall"
            raise UsageError(f"{name.replace('_', '-')} is for real ranks: simulated ones {never}")
    if job.launcher() == "torch":
        raise UsageError(
            f"{job.name()} starts its own processes, which cannot be simulated; leave out backend=torch"
        )
    network = load_network(options.network)
    nodes = network.nodes(ranks)
    strategy = strategy_of(job.config.strategy if job.strategy is None else job.strategy)
    if isinstance(strategy, Strategy):
        strategy.check_nodes(nodes)
    if not options.compute:
        check_course(job, "leave out --no-compute")
    faults = () if options.faults is None else load_faults(options.faults)
    check_faults(faults, ranks, network)
    return faults


def check_course(job: Job, remedy: str) -> None:
    """Raise a UsageError if what the ranks of a job do depends on values that are not computed."""
    strategy = job.build_strategy()
    if isinstance(strategy, Strategy) and strategy.follows_values():
        raise UsageError(f"what {job.name()} does depends on values that time alone does not give: {remedy}")


def costs_for(job: Job, options: Options) -> tuple[Network, Costs]:
    """Return the network and the job's costs: from the options, or else measured here."""
    network = load_network(options.network)
    machine, costs = _load_machine(job, options)
    if machine is not None:
        network = replace(network, node=machine)
    return network, costs_of(job, again=options.recalibrate) if costs is None else costs


def threaded_costs_for(job: Job, options: Options, ranks: int) -> Costs | None:
    """Return the job's costs, measured here with `ranks` processes at a time, each with the job's threads.

    None if costs come from a file: what they would be with other threads is unknown.
    """
    _, costs = _load_machine(job, options)
    return costs_of(job, [ranks], again=options.recalibrate) if costs is None else None


@dataclass
class Simulation:
    """The common part of all simulated ranks of a run and, inside `with`, their models."""

    job: Job
    ranks: int
    options: Options
    network: Network
    costs: Costs
    threads: int
    parts: Components
    time_only: bool

    def __enter__(self) -> None:
        self._folder: Path | None = None
        self._checkpoint: list[int] | None = None
        self._pool: Pool | None = None
        self._kind: type[Costed] | None = None
        self._outstanding: Outstanding | None = None
        model = self.parts.model
        self.models: list[Model] = [model]
        self.rooms: list[Room | None] = [None]
        if self.time_only:
            return
        most = min(self.options.compute_threads or max(1, usable_cores() // self.threads), self.ranks)
        processes = most
        if most > 1 and (why := find_obstacle(model, self.threads)):
            log.info("gradients are computed by threads of one process: %s", why)
            processes = 0
        if self.ranks * model.x.nbytes > PAYS:
            self._pool = Pool(model.x)
        homes = 0 if self._pool is not None else 2 * (self.ranks - 1)
        vectors = None
        if processes > 1:
            vectors = SharedVectors(model.x, homes + 2 * scratch_pairs(processes, model.x.nbytes))
        for rank in range(1, self.ranks):
            another = copy_model(model)
            room = None if self._pool is None else move_into_room(another, self._pool)
            if room is None and vectors is not None and self._pool is None:
                another.place(vectors[2 * rank - 2], vectors[2 * rank - 1])
            elif room is None:
                another.place(model.x.copy(), np.zeros(model.x.size, model.x.dtype))
            self.models.append(another)
            self.rooms.append(room)
        threads = Threads(most, self.threads)
        engine: Engine = threads
        if vectors is not None:
            engine = Forked(
                threads, processes, self.models, self.parts.data, vectors, homes, self.parts.update,
                self._count_passes(),
            )  # fmt: skip
        self._outstanding = Outstanding(engine, self._seconds, ours=is_ours(self.parts.strategy))

    def _count_passes(self) -> int:
        """Return the number of gradients that all ranks compute, about."""
        config, strategy = self.job.config, self.parts.strategy
        steps = config.draws or -(-len(self.parts.data.train) // batch_of(config, strategy, self.ranks))
        return config.epochs * steps * (1 if getattr(strategy, "whole_batches", False) else self.ranks)

    def __exit__(self, *_: object) -> None:
        if self._outstanding is not None:
            self._outstanding.close()
        if self._pool is not None:
            self._pool.close()
        if self._folder is not None:
            release(self._folder)

    def run(self, faults: Any, progress: Show | None) -> Fitted:
        """Train on all ranks; return the results of rank 0."""
        job, compute = self.job, self._compute()
        if not faults and (groups := self._find_groups()):
            try:
                return self._run_alike(groups, compute, progress)
            except NotAlike as why:
                log.debug("ranks are simulated one by one: %s", why)

        def rank(comm: Any) -> Fitted | StoppedError | None:
            try:
                if job.safety.tolerate_failures and self.ranks > 1:
                    return train_surviving(
                        SimulatedRank(comm, self), job, lambda place, job: train_at(place, job, progress)
                    )
                fitted = train_at(SimulatedRank(comm, self), job, progress)
            except StoppedError as stopped:  # on every rank
                return stopped
            return fitted if comm.Get_rank() == 0 else None

        try:
            outcome = run(
                rank,
                ranks=self.ranks,
                network=self.network,
                compute=compute,
                seed=job.config.seed,
                faults=faults,
                strict=not is_ours(self.parts.strategy),
                rendezvous=self.options.rendezvous,
                carries=carried if self.time_only else None,
                collectives_only=self._sends_no_messages(),
            )
        except RankFailed as failed:
            if isinstance(failed.error, UsageError) or not isinstance(failed.error, Exception):
                raise failed.error from None
            raise
        fitted: Fitted | StoppedError | None = next(
            (value for value in outcome.values if value is not None), None
        )
        if isinstance(fitted, StoppedError):
            raise fitted
        if fitted is None:
            raise SimulationError("no rank that has the results lived to the end")
        return fitted

    def _sends_no_messages(self) -> bool:
        """Return True if the ranks are known to send no messages except in collectives that all of them call."""
        strategy = self.parts.strategy
        return is_ours(strategy) and isinstance(strategy, Strategy) and not strategy.sends_messages()

    def _run_alike(self, groups: list[range], compute: Compute, progress: Show | None) -> Fitted:
        """Train on ranks that do the same, as one; raise NotAlike, with nothing written or shown, if they do not."""

        def run(job: Job, progress: Show | None) -> Fitted:
            return run_alike(
                lambda comm: train_at(SimulatedGroup(comm, self), job, progress), groups,
                network=self.network, compute=compute, seed=job.config.seed, carries=carried,
            )[0]  # fmt: skip

        if self.job.runs is None and progress is None:
            return run(self.job, None)
        run(replace(self.job, runs=None), None)  # which takes little time, and shows whether they do
        return run(self.job, progress)

    def _find_groups(self) -> list[range]:
        """Return groups of ranks that do the same at every step; none if ranks may differ in more than their samples."""
        job, config, strategy, data = self.job, self.job.config, self.parts.strategy, self.parts.data
        if not self.time_only or self.ranks < 2 or self.options.rendezvous or not self._sends_no_messages():
            return []
        if job.trace or job.safety.tolerate_failures or job.resume is not None or config.replay is not None:
            return []
        assert isinstance(strategy, Strategy)
        if not strategy.even_pieces() or config.reproducible is not None or hasattr(data.train, "order"):
            return []
        batch, samples = batch_of(config, strategy, self.ranks), len(data.train)
        steps = config.draws or -(-samples // batch)
        if self._count_passes() > (MOST_STEPS if job.runs is None else MOST_RECORDED):
            return []
        # All of these are cut into pieces that differ by 1 at most, the larger ones first.
        cut = (batch, samples, samples % batch, steps, len(data.validation), len(data.test))
        ends = sorted({0, self.ranks, *(total % self.ranks for total in cut)})
        return [range(start, end) for start, end in pairwise(ends)]

    def folder(self) -> Path | None:
        """Return the run's folder, created when the first rank asks: by then nothing can be refused any more."""
        if self._folder is None:
            self._folder = self.job.new_folder(self.ranks)
        return self._folder

    def checkpoint(self, run: Path) -> list[int] | None:
        """Return the latest checkpoint, looked for and checked once for all ranks."""
        if self._checkpoint is None:
            self._checkpoint = find_latest(run)
        return self._checkpoint

    def components(self, comm: Any) -> Components:
        """Return the components of a rank: its model, on its clock, and data that it reads with its gradients."""
        parts, reads = self.parts, Reads()
        data = parts.data
        outstanding = self._outstanding
        if outstanding is None or not is_ours(parts.strategy):  # which may look at the samples of a batch
            return parts._replace(model=self.model(comm, reads))
        kinds = {"train": "gradient"}
        if not self.job.metrics:  # they look at samples, too
            kinds |= {"validation": "evaluate", "test": "evaluate"}
        for name, kind in kinds.items():
            if (split := read_apart(getattr(data, name))) is not None:
                late: Any = LateSplit(name, split, reads, partial(outstanding.defers, kind))
                data = replace(data, **{name: late})
        return parts._replace(model=self.model(comm, reads), data=data)

    def model(self, comm: Any, reads: Reads) -> Model:
        """Return the model of a rank, on its clock; what is in `reads` is read with its passes."""
        rank = 0 if self.time_only else comm.Get_rank()
        model, room = self.models[rank], self.rooms[rank]

        def settle() -> None:
            if room is not None and model.x is room.x:
                room.settle()

        if self._kind is None:
            self._kind = kind_of(model, time_only=self.time_only)
        before = None if room is None else settle
        return add_costs(model, comm, self._kind, before=before, outstanding=self._outstanding, reads=reads)

    def _seconds(self, kind: str, amount: int) -> float:
        """Return what a pass costs on a rank that has a node for itself."""
        curves = self.costs.work.get(kind)
        return 0.0 if curves is None or amount <= 0 else curves.at(amount, 1)

    def _compute(self) -> Compute:
        options = self.options
        return make_compute(
            self.network.node, self.costs, slow=options.slowness, jitter=options.jitter,
            cores=self.network.node_cores(self.costs.cores),
        )  # fmt: skip

    def describe(self) -> dict[str, Any]:
        """Return everything that the times depend on, so that the run can be repeated on another machine."""
        options, network = self.options, self.network
        return {
            "network": str(network),
            "slow": options.slow,
            "jitter": self._compute().jitter,
            "compute": options.compute,
            "rendezvous": options.rendezvous,
            "faults": None if options.faults is None else read_text(options.faults),
            "ranks_per_node": network.ranks_per_node
            if network.cyclic is None
            else network.ranks_on_node(self.ranks),
            "node_cores": network.node_cores(self.costs.cores),
            "machine": Machine.of_network(network).values(),
            "costs": self.costs.values(),
        }

    def environment(self) -> dict[str, Any]:
        """Return where the simulation ran; processor and cores are those whose costs were simulated."""
        found = environment(threads=self.threads)
        node, costs = Machine.of_network(self.network), self.costs
        known = {"processor": costs.processor or found["processor"], "cores": costs.cores}
        machine = f"messages in a node as on {_where(node)}; computing as on {_where(costs)}"
        return {**found, **known, "simulated": {"machine": machine}}


class SimulatedRank(RankEnvironment):
    """The environment of one simulated rank: common objects were prepared once and need no agreement."""

    simulated = True

    def __init__(self, comm: Any, simulation: Simulation) -> None:
        meter = Meter(comm.Work, simulation.time_only)
        super().__init__(comm, simulation.threads, comm.Wtime, time_only=simulation.time_only, meter=meter)
        self._simulation = simulation

    def origin(self) -> float:
        return 0.0

    def prepare(self, job: Job) -> Components:
        return self._simulation.components(self.comm)

    def folder(self, job: Job) -> Path | None:
        return self._simulation.folder()

    def agree(self, work: Callable[[], Made]) -> Made:
        return work()

    def checkpoint(self, run: Path, *, whole: bool) -> list[int] | None:
        return self._simulation.checkpoint(run)

    def describe_request(self) -> dict[str, Any]:
        return {"on": "sim", **asdict(self._simulation.options)}

    def describe(self) -> dict[str, Any]:
        return {"simulated": self._simulation.describe()}

    def without(self, comm: Any, dead: Collection[int]) -> SimulatedRank:
        return SimulatedRank(comm, self._simulation)

    def environment(self) -> dict[str, Any]:
        return self._simulation.environment()


class SimulatedGroup(SimulatedRank):
    """The environment of simulated ranks that do the same: see `paceline.vmpi.alike`."""

    def folder(self, job: Job) -> Path | None:
        return None if job.runs is None else super().folder(job)

    def follow(self, me: Worker, strategy: Strategy | Train, folder: Path | None) -> None:
        super().follow(me, strategy, folder)
        pack, wanted = me.log.pack, range(len(STEP_COLUMNS))
        self._rows: list[dict[int, Array]] = []  # of each step, what every rank has in these columns
        if folder is None:
            wanted = range(EXCHANGE, EXCHANGE + 1)
        else:
            me.log.full = sys.maxsize  # whose rows are those of the first rank alone

        def keep(*row: Any) -> bytes:
            self._rows.append({column: self._spread(row[column]) for column in wanted})
            return pack(*row)

        me.log.pack = keep

    def gather_steps(self, me: Worker, folder: Path) -> Table:
        groups = self.comm.share(self._rows)
        if me.rank > 0:
            return WholeTable({})
        found = {"rank": np.repeat(np.arange(me.size), len(self._rows))}
        for column, name in enumerate(STEP_COLUMNS):
            of_groups = [np.column_stack([row[column] for row in rows]).ravel() for rows in groups if rows]
            found[name] = np.concatenate([np.empty(0), *of_groups])
        return WholeTable({name: found[name].astype(kind) for name, kind in STEP_TYPES.items()})

    def _spread(self, value: Any) -> Array:
        """Return a value of each rank, which may be the same for all of them."""
        return np.broadcast_to(value.of if isinstance(value, GroupTime) else value, len(self.comm.ranks))

    def collect(self, me: Worker, traffic: Any, *, in_step: bool, without_core: float) -> Collected:
        log, seconds = me.log, me.watch.seconds
        values = (*(seconds[kind] for kind in KINDS), log.totals()["count"], *traffic, without_core)
        mine = np.column_stack([self._spread(value) for value in values]).astype(np.float64)
        groups = self.comm.share((mine, (len(log), *log.first_span), self._rows))
        by_rank = summary = np.empty((0, len(KINDS)))
        if me.rank == 0:
            rows = common_rows(np.array([span for _, span, _ in groups])) if in_step else 0
            first, stride, _ = log.first_span

            def gather(start: int, stop: int) -> Array:
                which = [first + stride * row for row in range(start, stop)]
                return np.concatenate(
                    [np.column_stack([steps[step][EXCHANGE] for step in which]) for *_, steps in groups]
                )

            waited = add_waits(me.size, len(log), rows, gather)
            by_rank, summary = sum_up(np.concatenate([every for every, *_ in groups]), waited)
        return Collected.of(self.comm.share(summary)[0], by_rank)


# ---- programs with their own training loop


def simulate_program(
    program: Callable[[Any], Any], ranks: int, options: Options, *, seed: int = 0, threads: int = 1
) -> ProgramOutcome:
    """Run a program that trains with `paceline.session` on simulated ranks, in virtual time.

    The program's own computing takes the virtual time that it really takes here, on one core.
    """
    network, faults = _check_program_options(ranks, options)
    costs = Costs(
        processor=processor(), cores=machine_cores(), work={"program": Curves.of({1: [[1, 1.0]]})},
        about="a program, as measured while it ran",
    )  # fmt: skip
    common = ProgramSimulation(options, ranks, network, costs, threads)

    def rank(comm: Any) -> Any:
        comm.kernel.shared["program"] = common
        return program(comm)

    with limit_threads(threads):
        try:
            outcome = run(
                rank, ranks=ranks, network=network, compute=common._compute(), seed=seed, faults=faults, strict=False,
                rendezvous=options.rendezvous,
            )  # fmt: skip
        finally:
            if common._folder is not None:
                release(common._folder)
    return ProgramOutcome(outcome, common._folder)


def check_program(file: Path, ranks: int, strategy: str | None, options: Options | None) -> None:
    """Raise a UsageError for a program that cannot be run as asked, on real ranks or (`options`) simulated ones.

    The program is compiled, not run.
    """
    if options is not None:
        _check_program_options(ranks, options)
    compile_script(file)
    chosen = None if strategy is None else strategy_of(strategy)
    if isinstance(chosen, Strategy):
        chosen.check(ranks)
        if chosen.launcher() != "mpi":
            raise UsageError(f"{strategy} starts its own processes and cannot run a program's own loop")


def _check_program_options(ranks: int, options: Options) -> tuple[Network, Any]:
    """Raise a UsageError for what cannot be simulated; return the network and the faults to inject."""
    check_ranks(ranks)
    options.check(ranks)
    if not options.compute or options.recalibrate:
        raise UsageError(
            "a program computes what it trains, and its costs are measured while it runs: leave out "
            f"{'recalibrate' if options.compute else 'compute=false'}"
        )
    network = load_network(options.network)
    if options.machine is not None:
        network = replace(network, node=Machine.load(Path(options.machine)))
    faults = () if options.faults is None else load_faults(options.faults)
    check_faults(faults, ranks, network)
    return network, faults


class ProgramOutcome(NamedTuple):
    """The outcome of a program on simulated ranks, and the folder of the run that it recorded, if any."""

    outcome: Outcome
    folder: Path | None


class ProgramSimulation(Simulation):
    """The common part of all simulated ranks of a program, each of which has a model of its own."""

    def __init__(self, options: Options, ranks: int, network: Network, costs: Costs, threads: int) -> None:
        self.options, self.ranks = options, ranks
        self.network, self.costs, self.threads = network, costs, threads
        self.time_only = False
        self._folder: Path | None = None
        self._checkpoint: list[int] | None = None
        self._taken: dict[Any, list[float]] = {}

    def open_folder(self, job: Job) -> Path | None:
        """Return the run's folder, created when the first rank asks."""
        self.job = job
        return self.folder()

    def typical(self, kind: Any, seconds: float) -> float:
        """Return the median of the times that this kind of work has taken so far: single ones vary with the machine."""
        taken = self._taken.setdefault(kind, [])
        if len(taken) < TYPICAL:
            taken.append(seconds)
        return float(np.median(taken))


# The number of measurements after which the time of a kind of work is known.
TYPICAL = 25


class SimulatedProgram(SimulatedRank):
    """The environment of one simulated rank of a program."""

    def __init__(self, comm: Any) -> None:
        common = comm.kernel.shared.get("program")
        if common is None:
            raise UsageError(
                "start a program with its own loop on simulated ranks with: paceline run --on sim"
            )
        super().__init__(comm, common)
        self._common: ProgramSimulation = common

    def prepare(self, job: Job) -> Components:
        made = job.prepare(self.ranks)
        return made._replace(model=add_costs(made.model, self.comm))

    def folder(self, job: Job) -> Path | None:
        return self._common.open_folder(job)

    def charge(self, kind: Any, seconds: float) -> None:
        """Let the rank's clock advance by the time that a kind of the program's own work takes."""
        self.comm.Work("program", self._common.typical(kind, seconds))


def _where(measured: Machine | Costs) -> str:
    when = f", measured {measured.date}" if measured.date else ""
    named = "a typical machine" if measured.processor == Machine.typical().processor else measured.processor
    return f"{named or 'an unknown processor'}{when}"


def is_ours(strategy: Any) -> bool:
    """Return True if it is part of paceline: it is known to follow MPI's rules, and says whether it follows values."""
    function = getattr(strategy, "func", strategy)
    kind = function if hasattr(function, "__qualname__") else type(function)
    return str(kind.__module__).startswith("paceline.strategies.")


def _kind(path: Path) -> str | None:
    """Return the kind that a file declares; None if it declares none, so that loading it reports the problem."""
    try:
        values = read_json(path)
    except UsageError:
        return None
    return values.get("kind") if isinstance(values, dict) else None


def _load_machine(job: Job, options: Options) -> tuple[Machine | None, Costs | None]:
    """Load the argument of `--machine`: a machine, costs, or a simulated run that has both."""
    if options.machine is None:
        return None, None
    path = Path(options.machine)
    if not path.is_dir():
        return (None, Costs.load(path)) if _kind(path) == "costs" else (Machine.load(path), None)
    run_before = Run(path)
    if run_before.simulated is None:
        raise UsageError(
            f"{path} was not simulated: it holds no machine; calibrate one, or take a simulated run"
        )
    what = f"{path / 'config.json'}"
    machine = Machine.of(run_before.simulated.get("machine"), f"the machine in {what}")
    costs = Costs.of(run_before.simulated.get("costs"), f"the costs in {what}")
    mine = {**vars(job.config), "strategy": job.name()}
    other = next((name for name in SAME_WORK if run_before.config[name] != mine[name]), None)
    if other is not None:
        log.warning(
            "%s has %s %s, not %s: what computing costs is measured here",
            path, other, run_before.config[other], mine[other],
        )  # fmt: skip
        return machine, None
    return machine, costs
