"""Going on from saved states: from the last checkpoint of a run (`paceline resume`), or in a run whose ranks die.

With `--tolerate-failures` a run goes on when ranks die, by MPI's user-level failure mitigation (ULFM). A call that needs
a dead rank fails. The rank that notices it revokes the run's communicators, so that the calls of all
others fail too; the survivors make a communicator of their own, agree on the last state that all of them have, and train
on from there as if the run were resumed on fewer ranks:

strategies in step        from the state after the last exchange that all survivors have completed
parameter-server          from what the surviving masters have; see `paceline.strategies.parameter_server`
others                    each from the state in which it is

What was left of the dead rank's batches in the epoch is divided among the survivors, except where every rank has data
of its own for the whole run (psgd).
"""

from __future__ import annotations

import logging
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline import text
from paceline.comm import is_revoked, mpi_of, revoke
from paceline.config import Config
from paceline.data import Dataset
from paceline.errors import AgreedError, StoppedError, UsageError
from paceline.launch import requeued_job, world
from paceline.models import BUFFER, Model
from paceline.record import Run
from paceline.record import checkpoint as files
from paceline.record.checkpoint import Saver, State, copy_state
from paceline.record.rows import renumber
from paceline.strategies import Strategy
from paceline.training.job import KINDS, Job, batch_of, check_trust, strategy_of
from paceline.worker import Resumption, Worker
from paceline.worker.checkpoints import brief_state

if TYPE_CHECKING:
    from paceline.training.rank import Fitted, RankEnvironment


log = logging.getLogger(__name__)

# ---- during a run


def protect(me: Worker, job: Job, place: RankEnvironment, strategy: Any, folder: Path | None) -> Saver | None:
    """Prepare a rank to save its state and to stop when it is asked to; return what saves it, if anything does."""
    saves = getattr(strategy, "saves", None)
    asked = job.safety.checkpoint_every != "auto"
    if asked and place.time_only and job.safety.interval.any:
        raise UsageError(
            "--no-compute trains nothing: there is no checkpoint to save; leave out --checkpoint-every"
        )
    survives = job.safety.tolerate_failures and me.size > 1
    if saves is None or place.time_only or (place.simulated and not asked and not survives):
        return None
    saver = None
    # A replay saves nothing: it can be replayed again.
    if folder is not None and job.config.replay is None and (asked or not place.simulated):
        first = 1 + max(
            (n for rank in files.saved_ranks(folder) for n in files.numbers(folder, rank)), default=0
        )
        saver = Saver(
            folder, me.rank, keep=job.safety.checkpoints, first=first, background=not place.simulated
        )
    me.start_saving(
        saves, job.safety.interval, saver,
        replicas=saves != "alone" and not getattr(strategy, "averages", False),
        whole_updates=getattr(strategy, "equals_serial", False),
    )  # fmt: skip
    if survives:
        me.survive(every_step=not isinstance(strategy, Strategy) or strategy.interval() == 1)
    return saver


def kind_of_batches(strategy: Any) -> str:
    """Return how a strategy divides batches among its ranks: "own", "dealt", "pieces" or, by messages, "itself"."""
    if getattr(strategy, "saves", None) == "itself":
        return "itself"
    if getattr(strategy, "own_data", False):
        return "own"
    return "dealt" if getattr(strategy, "whole_batches", False) else "pieces"


def describe_stop(me: Worker, stopped: StoppedError, folder: Path) -> dict[str, Any]:
    """Return the contents of stopped.json."""
    return {
        "signal": signal.Signals(stopped.signal).name,
        "saved": stopped.saved,
        "epoch": me.position[0],
        "turn": me.position[1],
        "train_seconds": me.train_seconds,
        "time": _now(),
        "resume": shlex.join(["paceline", "resume", str(folder)]),
    }


def finish(me: Worker, saver: Saver, job: Job) -> None:
    """Save the state of a run that has ended, if it saved others, so that it can be trained further."""
    saved = bool(saver.wait() and saver.written)
    if me.control.vote(saved or job.safety.checkpoint_every != "auto").ranks and job.safety.interval.any:
        me.position = (me.last_epoch + 1, 0)
        me.keeper.save()
    if saver.wait():
        saver.prune()


# ---- going on


def load_states(place: RankEnvironment, run: Path, kind: str) -> Resumption:
    """Read the states that this rank needs to go on from the last checkpoint of a run. Collective.

    Reading them checks them. Only if one is damaged are all parts checked, to find a checkpoint that is not.

    `kind`: how batches are divided among the ranks; see `kind_of_batches`.
    """
    rank, ranks = place.rank, place.ranks

    def read(numbers: list[int]) -> Resumption:
        before = len(numbers)
        if before == ranks:
            wanted = [0] if rank == 0 else [0, rank]
            states = [files.read(run, old, numbers[old]) for old in wanted]
            return Resumption(states, own=len(states) - 1, ranks=before)
        states = [files.read(run, old, number) for old, number in enumerate(numbers)]
        return _begin_together(
            Resumption(states, own=-1, ranks=before), [_place_of(state) for state in states]
        )

    def find(*, whole: bool) -> Resumption:
        numbers = place.checkpoint(run, whole=whole)
        if numbers is None:
            raise UsageError(f"{run} has no complete checkpoint: it cannot be resumed; train it again")
        resumption: Resumption = place.agree(partial(read, numbers))
        return resumption

    try:
        found = find(whole=False)
    except AgreedError:
        found = find(whole=True)
    if found.same_ranks and ranks > 1 and kind == "dealt" and not found.first["together"]:
        places = np.empty((ranks, 2), np.int64)
        place.comm.Allgather(np.array(_place_of(found.states[found.own]), np.int64), places)
        if len(set(places[:, 0])) > 1:  # ranks meet at the end of every epoch
            return _begin_together(found, places.tolist())
    return found


def _place_of(state: State) -> tuple[int, int]:
    """Return the epoch of a saved rank, and the turns that it has had in it."""
    return int(state["position"]["epoch"]), int(state["position"]["turn"])


def _begin_together(resumption: Resumption, places: Sequence[Sequence[int]]) -> Resumption:
    """Let all ranks go on in the first of the epochs in which they were saved, and divide anew what is left of it.

    What a rank has trained in a later epoch is in its model, and these batches are trained again.

    `places`: the epoch and the turns of every earlier rank.
    """
    epoch = min(one for one, _ in places)
    turns = tuple(turn if one == epoch else 10**9 for one, turn in places)
    states = [
        state if _place_of(state)[0] == epoch else _go_back(state, epoch) for state in resumption.states
    ]
    return replace(resumption, states=states, turns=turns)


def _go_back(state: State, epoch: int) -> State:
    """Return the state of a rank that has had all its batches of an earlier epoch, and waits for others there."""
    return {
        **state,
        "position": {**state["position"], "epoch": epoch},
        "history": [past for past in state["history"] if past["epoch"] < epoch],
        "epoch_sums": [0.0, 0], "epoch_losses": [0.0, 0.0, 0.0],
    }  # fmt: skip


def check_fits(run: Path, resumption: Resumption, model: Model, data: Dataset) -> None:
    """Raise a UsageError if a run cannot go on with this model or these data, before its record is changed."""
    x = resumption.first.get("x")
    if x is not None and np.shape(x) != np.shape(model.x):
        raise UsageError(
            f"{run} has {np.size(x):,} parameters, and the model {model.x.size:,}: resume it with the same model"
        )
    samples = Run(run).config.get("samples")
    if samples is not None and samples != len(data.train):
        raise UsageError(
            f"{run} was trained on {samples:,} samples, and the data now have {len(data.train):,}: resume it with the "
            "same data"
        )


def changes_for_record(job: Job, place: RankEnvironment, resumption: Resumption) -> dict[str, Any]:
    """Return what changes in the record's settings when a run is resumed."""
    assert job.resume is not None
    before = Run(job.resume).config
    position = resumption.first["position"]
    complete = (job.resume / "summary.json").exists()  # its model may be saved as the state of one rank
    entry = {
        "time": _now(), "ranks": place.ranks, "ranks_before": before["ranks"] if complete else resumption.ranks,
        "epoch": position["epoch"], "turn": position["turn"],
    }  # fmt: skip
    if job.because:
        entry["because"] = job.because
    return {"ranks": place.ranks, "epochs": job.config.epochs, "resumed": [*before.get("resumed", []), entry]}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# ---- a Slurm job that was started again


def resume_requeued(job: Job, *, ranks: int | None) -> Job:
    """Return the job with which to go on if Slurm has requeued this one; otherwise the same job.

    The run to go on with is the one that this Slurm job has recorded under the same name or, if it was given none, with the
    same settings. One that has no checkpoint is removed, to begin again.
    """
    number, here = requeued_job(), world()
    if number is None or job.runs is None or not job.runs.is_dir():
        return job
    named = job.run_name is not None
    folders = [job.runs / str(job.run_name)] if named else sorted(job.runs.iterdir(), reverse=True)
    for folder in folders:
        try:
            run = Run(folder)
            if run.environment.get("slurm_job") != number:
                continue
            complete = (folder / "summary.json").exists()
            if complete and named:
                return replace(job, resume=folder)
            if complete or (not named and _config_in(run) != job.config):
                continue
        except (UsageError, OSError, KeyError):
            continue
        if files.find_latest(folder) is None:
            if here is None or here.rank == 0:
                shutil.rmtree(folder, ignore_errors=True)
            return job
        config, _ = settings_of(folder, ranks=ranks, trust=True)
        why = f"Slurm requeued job {number}"
        return replace(job, config=config, run_name=folder.name, resume=folder, because=why)
    return job


# ---- `paceline resume` and fit(resume=...)


def settings_of(
    folder: Path,
    *,
    more_epochs: int = 0,
    ranks: int | None = None,
    trust: bool = False,
    objects: Collection[str] = (),
) -> tuple[Config, int]:
    """Return the settings with which to go on with a run, and the number of ranks: by default as many as before.

    Code that only the record names (`module:attribute`) is refused unless `trust`, or unless the user gives an object in
    its place (`objects`).
    """
    run = Run(folder)
    config = _config_in(run)
    if run.config.get("program"):
        raise UsageError(
            f"{folder} is a run of a program with its own loop ({run.config['program']['file']}), of which paceline saves "
            "no checkpoints: run the program again"
        )
    missing = [name for name in run.config.get("objects") or () if name not in objects]
    if missing:
        raise UsageError(
            f"{folder} was trained with objects of a program ({', '.join(missing)}): resume it there, with fit(resume=...)"
        )
    for name in KINDS.keys() - objects:
        check_trust(name, getattr(config, name), run, trust)
    if config.replay is not None:
        raise UsageError(f"{folder} is a replay, which cannot be resumed; replay it again")
    before = int(run.config["ranks"])
    ranks = before if ranks is None else ranks
    if ranks != before and config.batch_per_rank is not None:
        strategy = strategy_of(config.strategy)
        if not getattr(strategy, "whole_batches", False):  # the batch stays what it was
            batch = batch_of(config, strategy, before)
            config = replace(config, batch=batch, batch_per_rank=None, lr_scaling="none")
    if (folder / "summary.json").exists():
        if more_epochs == 0:
            raise UsageError(f"{folder} is complete; --epochs N trains it for N more")
        _save_complete(run)
    return replace(config, epochs=config.epochs + more_epochs), ranks


def is_traced(folder: Path) -> bool:
    """Return True if a run was asked for a trace, which is written only at its end."""
    return bool((Run(folder).config.get("asked") or {}).get("trace")) or (folder / "trace.npz").exists()


def _config_in(run: Run) -> Config:
    """Return the settings that a run was given."""
    names = [setting.name for setting in fields(Config)]
    values = {name: run.config[name] for name in names if name in run.config}
    asked = run.config.get("asked") or {}
    return Config(**{**values, "lr": asked.get("lr", values.get("lr"))})


def _save_complete(run: Run) -> None:
    """Turn the trained model of a complete run into a checkpoint, if the run left none."""
    if files.find_latest(run.folder, whole=False) is not None:
        return
    arrays = run.model
    state: State = {
        "ranks": 1, "together": True, "x": arrays["x"],
        "buffers": {name.removeprefix(BUFFER): value for name, value in arrays.items() if name.startswith(BUFFER)},
        "position": {"epoch": int(run.config["epochs"]), "turn": 0, "count": 0},
        "updates": [], "rate": float(run.config["lr"]), "recovery": None, "epoch_sums": [0.0, 0],
        "epoch_losses": [0.0, 0.0, 0.0], "seconds": {}, "elapsed": 0.0, "counts": [0, 0, 0, 0], "rows": {},
        "weights": None, "kept": {}, "history": run.epochs, "findings": {}, "remarks": [], "tables": {},
    }  # fmt: skip
    files.write(run.folder, 0, 1, state)


# ---- when ranks die

# What a survivor tells the others about itself: its earlier number, where it is, whether it had begun to train since an
# earlier death, whether it can regroup, and the moments of the states that it can go on from, one or two.
RANK, EPOCH, TURN, COUNT, BEGUN, REGROUPS = range(6)
MOMENTS = slice(6, 8)
NONE = -1
# Seconds within which a rank is told that another one has died, after a message to it has failed.
TOLD_WITHIN = 5.0


@dataclass(frozen=True)
class SurvivedDeath:
    """The death of some ranks, and what the survivors did."""

    ranks: tuple[int, ...]
    """Their numbers at the start of the run."""
    epoch: int
    turn: int
    """The position from which the survivors went on."""
    redone: int
    """The most batches that a survivor computes again."""
    left: int
    """The number of survivors."""
    noticed: float
    """When a survivor noticed it, in seconds since 1970."""
    seconds: float = 0.0
    """How long the survivors took to go on."""
    lost: str = ""
    """What else was lost or done, in words."""

    def __str__(self) -> str:
        who = f"rank{'s' * (len(self.ranks) > 1)} {text.join(self.ranks)} died"
        again = f"; at most {text.count(self.redone, 'batch', 'es')} computed again" if self.redone else ""
        left = text.count(self.left, "rank")
        also = f"; {self.lost}" if self.lost else ""
        return f"{who} in epoch {self.epoch + 1}: {left} continued from batch {self.turn} of it{again}{also}"


def train_surviving(
    place: RankEnvironment, job: Job, attempt: Callable[[RankEnvironment, Job], Fitted]
) -> Fitted:
    """Run one rank's part of a job; when other ranks die, go on with those that are left."""
    numbers = list(range(place.ranks))  # of the ranks, at the start of the run
    deaths: list[SurvivedDeath] = []
    me: Worker | None = None
    while True:
        fitted, noticed = None, 0.0
        try:
            fitted = attempt(place, job)
        except Exception as error:
            noticed = time.time()
            if not is_failure(error, place.comm, place.worker) or not _can_go_on(place, me):
                raise
        me = place.worker or me
        assert me is not None
        if fitted is None:
            me.revoke()
            with suppress(Exception):  # another rank may have done so
                revoke(place.comm)
        # Some may have ended before others have noticed a death.
        complete, dead = agree(place.comm, fitted is not None)
        if complete and fitted is not None:
            if dead:  # of ranks whose work was done
                place.without(place.comm.Shrink(), ())
            return fitted
        place, numbers = recover(place, me, numbers, deaths, noticed or time.time())
        job = replace(job, resume=place.run, data=me.data, survivors=True)


def _can_go_on(place: RankEnvironment, before: Worker | None) -> bool:
    """Return True if this rank has a state to go on from, also before it has begun to go on after an earlier death."""
    if place.worker is not None:
        return True
    return before is not None and place.resumption is not None and before.keeper.saves != "itself"


def agree(comm: Any, flag: bool) -> tuple[bool, int]:
    """Return, on all living ranks, whether it is true on all of them, and how many are dead. Collective."""
    while True:
        try:
            dead = comm.Ack_failed()
            return bool(comm.Agree(int(flag))), int(dead)
        except Exception as error:  # not all knew of a death
            if not is_failure(error, comm):
                raise


def is_failure(error: Exception, comm: Any, me: Worker | None = None) -> bool:
    """Return True if a call failed because a rank has died, or because another rank has noticed that.

    An error of several requests does not say which of them failed, nor why: what this rank knows of `comm`, and of the
    communicators of the worker `me`, does. A message to a rank that has just died may fail with an unknown error
    (ERR_OTHER) before this rank is told of the death.
    """
    kind = getattr(error, "Get_error_class", None)
    if kind is None:
        return False
    MPI = mpi_of(comm)
    if kind() in (MPI.ERR_IN_STATUS, MPI.ERR_PENDING, MPI.ERR_OTHER):
        until = time.monotonic() + (TOLD_WITHIN if kind() == MPI.ERR_OTHER else 0)
        while True:
            if (me is not None and me.is_revoked()) or is_revoked(comm) or comm.Get_failed().Get_size() > 0:
                return True
            if time.monotonic() >= until:
                return False
            time.sleep(0.001)
    names = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")
    return kind() in {getattr(MPI, name) for name in names if hasattr(MPI, name)}


def recover(
    place: RankEnvironment, me: Worker, numbers: list[int], deaths: list[SurvivedDeath], noticed: float
) -> tuple[RankEnvironment, list[int]]:
    """Return the environment of this rank among the survivors, with the state from which it goes on."""
    for table in me.logs.values():
        table.flush()
    states = _states(place, me)
    after, rows, state, lost = _gather_survivors(place, me, states)
    alive = rows[:, RANK].tolist()
    dead = [rank for rank in range(place.ranks) if rank not in alive]
    began = bool(rows[:, BEGUN].all())
    if not began:  # another death before all could go on: they go back to where they wanted to go on from
        assert place.resumption is not None
        state = place.resumption.first
    elif me.keeper.saves == "together":
        common = set.intersection(
            *({moment for moment in row if moment != NONE} for row in rows[:, MOMENTS].tolist())
        )
        if not common:
            raise RuntimeError(f"the ranks {text.join(alive)} have no common state to go on from")
        state = next(state for state in states if state["moment"] == max(common))
    found = place.without(after, [numbers[rank] for rank in dead])
    found.run = place.run
    divided = place.ranks
    if began:
        epoch, turns = _find_turns(me, state, rows, divided)
        state = _complete(state, me, epoch)
    else:
        assert place.resumption is not None
        epoch, divided = state["position"]["epoch"], place.resumption.ranks
        turns = None if place.part is not None else place.resumption.turns
    if turns is None:  # every rank keeps its part of the data
        found.part = place.part or (place.rank, place.ranks)
    found.resumption = Resumption([state], own=0, ranks=divided, turns=turns or ())
    redone = int((rows[:, COUNT] - state["position"]["count"]).max()) if me.keeper.saves == "together" else 0
    death = SurvivedDeath(
        ranks=tuple(numbers[rank] for rank in dead), epoch=epoch, turn=state["position"]["turn"],
        redone=max(0, redone), left=len(alive), noticed=noticed, lost=lost,
    )  # fmt: skip
    deaths.append(death)
    found.deaths = deaths
    state["findings"] = {**state["findings"], "failures": [asdict(death) for death in deaths]}
    # Earlier ones may have been known to a rank that died.
    state["remarks"] += [words for words in map(str, deaths) if words not in state["remarks"]]
    if after.Get_rank() == 0:
        log.warning("%s", death)
    return found, [numbers[rank] for rank in alive]


def _gather_survivors(
    place: RankEnvironment, me: Worker, states: list[State]
) -> tuple[Any, NDArray[np.int64], State, str]:
    """Return the communicator of the survivors, their rows, this rank's last state, and what was lost, in words.

    Collective on the survivors. The files of ranks then have the numbers of the ranks in that communicator.
    """
    comm, position = place.comm, states[-1]["position"]
    known = np.full(MOMENTS.stop, NONE, np.int64)
    known[: MOMENTS.start] = (
        place.rank, position["epoch"], position["turn"], position["count"], place.worker is not None,
        me.regroup is not None,
    )  # fmt: skip
    known[MOMENTS.start :][: len(states)] = [state["moment"] for state in states]
    while True:
        after = comm.Shrink()
        try:
            rows = np.empty((after.Get_size(), known.size), np.int64)
            after.Allgather(known, rows)
            alive = rows[:, RANK].tolist()
            state, lost = states[-1], ""
            # Unless all ranks can regroup, none has begun to train: they start again.
            if me.regroup is not None and rows[:, REGROUPS].all():
                state = {**state, "kept": dict(state["kept"])}
                lost = me.regroup(after, alive, state, place.run)
        except Exception as error:  # another rank has died meanwhile
            if not is_failure(error, after):
                raise
            after.Revoke()
        if _all_are_alive(after):
            order = [*alive, *(rank for rank in range(place.ranks) if rank not in alive)]
            _renumber(place.run, me, order, after)
            if _all_are_alive(after):  # all files have their new names
                return after, rows, state, lost
            _renumber(place.run, me, [order.index(rank) for rank in range(len(order))], after)
        comm = after


def _renumber(run: Path | None, me: Worker, order: Sequence[int], comm: Any) -> None:
    """On the first survivor, give the files of ranks the numbers of their places in `order`."""
    if run is not None and comm.Get_rank() == 0:
        for name in me.logs:
            renumber(run, name, order, ())


def _all_are_alive(comm: Any) -> bool:
    """Return True, on every rank or on none, if none has died or been told so since this communicator was made."""
    try:
        return bool(comm.Agree(int(not comm.Is_revoked())))
    except Exception as error:
        if not is_failure(error, comm):
            raise
        return False


def _states(place: RankEnvironment, me: Worker) -> list[State]:
    """Return the states that this rank can go on from, the latest last."""
    if place.worker is None:  # it had not begun to go on after an earlier death
        assert place.resumption is not None
        return [{**place.resumption.first, "moment": 0}]
    keeper = me.keeper
    if keeper.memory:
        return list(keeper.memory)
    for work in keeper.before:
        work()
    return [copy_state({**brief_state(me), "moment": 0})]


def _find_turns(me: Worker, state: State, rows: Any, ranks: int) -> tuple[int, tuple[int, ...] | None]:
    """Return the epoch to go on with, and the turns that each rank has had in it; None: their batches stay theirs."""
    epoch, turn = state["position"]["epoch"], state["position"]["turn"]
    if me.keeper.saves == "itself":
        return epoch, ()
    if me.keeper.saves == "together":
        return epoch, (turn,) * ranks
    if me.shares.has_own:
        return epoch, None
    epoch = int(rows[:, EPOCH].min())
    done = {int(row[RANK]): int(row[TURN]) if row[EPOCH] == epoch else 1 << 30 for row in rows}
    least = min(done.values())
    return epoch, tuple(done.get(rank, least) for rank in range(ranks))


def _complete(state: State, me: Worker, epoch: int) -> State:
    """Return a state with the parts that only grow, as they were at its time."""
    ended = min(state["epochs"], epoch) if me.keeper.saves == "alone" else state["epochs"]
    history = [asdict(past) for past in me.history if past.epoch < ended]  # the others are evaluated again
    position = {**state["position"], "epoch": epoch}
    known = {"findings": me.findings, "remarks": list(me.remarks), "tables": me.tables}
    return {**state, **known, "position": position, "history": history}
