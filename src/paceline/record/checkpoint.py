"""Checkpoints: the state of every rank of a run between two steps, from which it can be resumed.

    RUN/checkpoints/rank-3/000012.npz      rank 3's part of checkpoint 12

Each file holds arrays, and a JSON text under the name `state` for everything else. It is written under another name,
flushed to the disk and then renamed, so a file that has its name is complete; the archive's checksums show whether it has
been damaged since. A checkpoint of ranks that work in step is complete when every rank has written its part. Ranks that
work independently save at moments of their own, and are resumed from their latest files.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import UsageError, reason
from paceline.files import check_arrays, parse_json, read_arrays, write_arrays
from paceline.launch import is_first_to_say
from paceline.record.schema import CHECKPOINT_FORMAT, check_checkpoint, format_value

Array = NDArray[Any]
State = dict[str, Any]
FOLDER = "checkpoints"
log = logging.getLogger(__name__)


# ---- states as arrays and JSON


def pack(state: State) -> dict[str, Array]:
    """Return a state (nested dicts and lists of arrays, numbers, texts, generators) as named arrays; one of them is JSON.

    >>> packed = pack({"x": np.arange(3), "w": [0.5, float("inf")]})
    >>> sorted(packed), unpack(packed)["w"]
    (['0', 'state'], [0.5, inf])
    """
    arrays: dict[str, Array] = {}
    text = json.dumps(_to_json(state, arrays), allow_nan=False)
    return {**arrays, "state": np.frombuffer(text.encode(), np.uint8)}


def unpack(arrays: Mapping[str, Array]) -> State:
    """Return the state that `pack` was given; raise a ValueError if the arrays are not such a state."""
    text = arrays.get("state")
    if text is None or text.dtype != np.uint8:
        raise ValueError("it holds no state")
    found = _from_json(parse_json(text.tobytes().decode(), "its state"), arrays)
    if not isinstance(found, dict):
        raise ValueError("it holds no state")
    return found


def _to_json(value: Any, arrays: dict[str, Array]) -> Any:
    if isinstance(value, np.random.Generator):
        return {"$generator": _to_json(value.bit_generator.state, arrays)}
    if isinstance(value, np.ndarray):
        name = str(len(arrays))
        arrays[name] = np.asarray(value)
        return {"$array": name}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if isinstance(value, dict):
        return {str(key): _to_json(inner, arrays) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(inner, arrays) for inner in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"a checkpoint holds arrays, numbers, texts and random generators; got {type(value).__name__}"
    )


def _from_json(value: Any, arrays: Mapping[str, Array]) -> Any:
    if isinstance(value, list):
        return [_from_json(inner, arrays) for inner in value]
    if not isinstance(value, dict):
        return value
    if "$array" in value:
        name = value["$array"]
        if not isinstance(name, str) or (name not in arrays and not isinstance(arrays, _Missing)):
            raise ValueError(f"it has no array {format_value(name)}")
        return arrays[name]
    if "$float" in value:
        if value["$float"] not in ("nan", "inf", "-inf"):
            raise ValueError(f"{format_value(value['$float'])} is not a number")
        return float(value["$float"])
    if "$generator" in value:
        return _from_json(value["$generator"], arrays)
    return {key: _from_json(inner, arrays) for key, inner in value.items()}


class _Missing(dict[str, Array]):
    """Arrays of which only some were read; the others are empty."""

    def __missing__(self, name: str) -> Array:
        return np.empty(0)


def copy_state(state: Any, into: Any = None) -> Any:
    """Return a copy of a state that shares no memory with it, except what cannot change.

    `into`: an earlier copy that is no longer needed, whose memory is used again where the shapes agree: fresh memory
    takes several times as long to fill.

    >>> first = copy_state({"x": np.zeros(2)})
    >>> copy_state({"x": np.ones(2)}, into=first)["x"] is first["x"]
    True
    """
    if isinstance(state, np.random.Generator):
        return state.bit_generator.state
    if isinstance(state, np.ndarray):
        if isinstance(into, np.ndarray) and (into.shape, into.dtype) == (state.shape, state.dtype):
            np.copyto(into, np.asarray(state))
            return into
        return np.array(state)
    if isinstance(state, dict):
        before = into if isinstance(into, dict) else {}
        return {key: copy_state(inner, before.get(key)) for key, inner in state.items()}
    if isinstance(state, list | tuple):
        return [copy_state(inner) for inner in state]
    return state


# ---- files


def part_of(run: Path, rank: int, number: int) -> Path:
    """Return the file of one rank's part of a checkpoint."""
    return run / FOLDER / f"rank-{rank}" / f"{number:06d}.npz"


def write(run: Path, rank: int, number: int, state: State) -> None:
    """Write one rank's part of a checkpoint, completely or not at all."""
    path = part_of(run, rank, number)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_arrays(path, pack({"format": CHECKPOINT_FORMAT, "rank": rank, "number": number, **state}))
    _flush_folder(path.parent)


def read(run: Path, rank: int, number: int, *, arrays: bool = True) -> State:
    """Read one rank's part of a checkpoint; raise a UsageError if it is damaged. `arrays=False`: leave them out."""
    path = part_of(run, rank, number)
    wanted = read_arrays(path, None if arrays else ["state"])
    try:
        state = unpack(wanted if arrays else _Missing(wanted))
    except ValueError as error:
        raise UsageError(f"{path} is damaged: {error}") from None
    return check_checkpoint(str(path), state, rank=rank, number=number, arrays=arrays)


def numbers(run: Path, rank: int) -> list[int]:
    """Return the numbers of the checkpoints of which a rank has written its part, latest first."""
    try:
        names = [path.stem for path in (run / FOLDER / f"rank-{rank}").iterdir() if path.suffix == ".npz"]
    except OSError:
        return []
    return sorted((int(name) for name in names if re.fullmatch(r"[0-9]{6,12}", name)), reverse=True)


def saved_ranks(run: Path) -> list[int]:
    """Return the ranks that have written parts of checkpoints."""
    try:
        names = [path.name for path in (run / FOLDER).iterdir()]
    except OSError:
        return []
    return sorted(int(name[5:]) for name in names if re.fullmatch(r"rank-[0-9]{1,9}", name))


def find_latest(run: Path, *, whole: bool = True) -> list[int] | None:
    """Return, for every rank, the number of its part of the latest complete and undamaged checkpoint; None: there is none.

    The numbers differ only where ranks saved independently. Damaged parts are named in a warning, and an earlier
    checkpoint is chosen. Every part is read once, a little at a time, to check it; with `whole=False` only its JSON is, so
    that arrays may be damaged.
    """
    check = partial(_read_if_intact, whole=whole)
    for number in numbers(run, 0):
        state = check(run, 0, number)
        if state is None:
            continue
        ranks = range(1, state["ranks"])
        if len(saved_ranks(run)) < state["ranks"]:
            continue
        if state["together"]:
            if all(part_of(run, rank, number).exists() and check(run, rank, number) for rank in ranks):
                return [number] * state["ranks"]
            continue
        # Parts of a session with another number of ranks are not of this checkpoint.
        own = [
            next(
                (n for n in numbers(run, rank) if (check(run, rank, n) or {}).get("ranks") == state["ranks"]),
                None,
            )
            for rank in ranks
        ]
        if None not in own:
            return [number, *(n for n in own if n is not None)]
    return None


def _read_if_intact(run: Path, rank: int, number: int, *, whole: bool) -> State | None:
    """Return a part of a checkpoint without its arrays; None if it is damaged."""
    try:
        if whole:
            check_arrays(part_of(run, rank, number))
        return read(run, rank, number, arrays=False)
    except UsageError as error:
        log.warning("%s", error)
        return None


def discard(run: Path, rank: int, *, keep: Callable[[int], bool]) -> None:
    """Remove a rank's parts of the checkpoints that are not to be kept."""
    for number in numbers(run, rank):
        if not keep(number):
            part_of(run, rank, number).unlink(missing_ok=True)


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Saver:
    """Writes one rank's parts of checkpoints, one at a time, in its own thread or (`background=False`) in the caller's.

    A part that cannot be written is reported once, and the next is tried as usual. Any other error, such as a value that a
    checkpoint cannot hold, is raised in the caller's thread, by the next call of `wait` or `save`.
    """

    def __init__(self, run: Path, rank: int, *, keep: int, first: int, background: bool = True) -> None:
        """`keep`: the number of checkpoints to keep; `first`: the number of the next one."""
        self.run, self.rank = run, rank
        self.number = first
        """The number of the next checkpoint."""
        self.written = 0
        """The number of parts written."""
        self._keep, self._background = keep, background
        self._ranks = 0  # in the last state that was saved
        self._thread: threading.Thread | None = None
        self._failure: str | None = None
        self._error: BaseException | None = None
        self._reported = False
        # Half-written when an earlier process was killed.
        for left in part_of(run, rank, 0).parent.glob(".*.npz.*"):
            with suppress(OSError):
                left.unlink()

    @property
    def busy(self) -> bool:
        """True while a part is being written."""
        return self._thread is not None and self._thread.is_alive()

    def save(
        self, state: State, *, first: Callable[[], object] | None = None, keep_all: bool = False
    ) -> None:
        """Write a state that nothing else changes meanwhile.

        `first`: a function to call before, in the same thread, to flush other files; `keep_all`: remove no earlier part,
        because other ranks may lack later ones.
        """
        self.wait()
        number = self.number
        self.number += 1
        self._ranks = int(state.get("ranks", 0))

        def work() -> None:
            try:
                if first is not None:
                    first()
                write(self.run, self.rank, number, state)
                self.written += 1
                if not keep_all:  # one more than asked for: others may still be writing theirs
                    self._discard(lambda other: number - self._keep <= other <= number)
            except OSError as error:
                self._failure = reason(error)
            except BaseException as error:
                self._error = error

        if self._background:
            self._thread = threading.Thread(target=work, name="checkpoint")
            self._thread.start()
        else:
            work()
            self.wait()

    def wait(self) -> bool:
        """Wait until the last part has been written; return False if that failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self._report()

    def _report(self) -> bool:
        """Log a failure, the first time; return False if the last part could not be written."""
        failure, self._failure = self._failure, None
        if failure is not None and not self._reported:
            self._reported = True
            if not is_first_to_say("checkpoint"):
                return False
            log.warning(
                "cannot write a checkpoint to %s: %s; training continues, and the next one is tried",
                self.run / FOLDER, failure,
            )  # fmt: skip
        return failure is None

    def prune(self) -> None:
        """Keep only as many of the latest parts as were asked for."""
        latest_ones = numbers(self.run, self.rank)[: self._keep]
        self._discard(latest_ones.__contains__)

    def _discard(self, keep: Callable[[int], bool]) -> None:
        """Remove this rank's parts that are not to be kept; rank 0 also those of ranks that the run no longer has."""
        discard(self.run, self.rank, keep=keep)
        gone = saved_ranks(self.run) if self.rank == 0 and self._ranks else ()
        for rank in (rank for rank in gone if rank >= self._ranks):
            discard(self.run, rank, keep=keep)
            with suppress(OSError):  # it is not empty
                part_of(self.run, rank, 0).parent.rmdir()
