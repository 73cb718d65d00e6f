"""Tables that grow with every step: ranks move their rows to files in chunks; rank 0 makes columns of them at the end.

    RUN/TABLE/rank-R.rows      the rows of rank R: float64, little-endian, whole rows only; removed when the run is complete

A rank's memory for a table is constant: a buffer of `chunk` rows. Where rows cannot be written (no record was requested,
the disk is full, the folder is gone), they are kept in memory, and beyond `most` rows thinned out: every second one is
dropped, as often as necessary, so that those that remain are evenly spaced.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from paceline.comm.control import Control
from paceline.errors import reason
from paceline.files import read_arrays

Array = NDArray[Any]
# Rows of one rank in memory before they are written, and if they cannot be written; fewer if many (simulated) ranks
# share a process, which then has SHARED rows.
CHUNK, MOST, SHARED = 1024, 65_536, 1 << 19
# Rows of all ranks together in memory while a table is assembled.
PIECE = 65_536
ITEM = 8


class EvenRows(NamedTuple):
    """Kept rows that are evenly spaced: the number of the first, the distance to the next, and how many there are."""

    first: int
    stride: int
    rows: int


class RowLog:
    """A table of one rank, to which rows are appended with constant memory.

    The fastest way to append is that of `append`, with `buffer`, `pack` and `full` in local variables.

    >>> log = RowLog(("step", "loss"), chunk=2, most=4)     # without a file: memory only
    >>> for step in range(12):
    ...     log.append((step, 0.5))
    >>> len(log), log.kept, log.read()[:, 0].tolist(), log.totals()
    (12, 3, [0.0, 4.0, 8.0], {'step': 66.0, 'loss': 6.0})
    """

    def __init__(
        self,
        columns: Sequence[str],
        path: Path | None = None,
        *,
        temporary: bool = False,
        ranks: int = 1,
        chunk: int | None = None,
        most: int | None = None,
        observe: Callable[[Array], None] | None = None,
        outage: Outage | None = None,
    ) -> None:
        """`path`: the file to which rows are moved; `temporary`: move them to a nameless file instead.

        `ranks`: the ranks that share this process's memory; `observe`: a function called once with every row, in chunks;
        `outage`: is told whether writing fails.
        """
        self.columns = tuple(columns)
        self.path = path
        self.width = len(self.columns)
        self._row = ITEM * self.width
        self.buffer: list[bytes] = []
        self.pack = struct.Struct(f"<{self.width}d").pack
        """Turns the numbers of a row into an item of `buffer`."""
        chunk = max(16, min(CHUNK, SHARED // ranks)) if chunk is None else chunk
        self.full = chunk
        """The length of `buffer` at which `spill` must be called."""
        self.rows_written = 0
        """Rows in the file."""
        self._most = max(CHUNK, min(MOST, SHARED // ranks)) if most is None else most
        self._temporary = temporary
        self._file: IO[bytes] | None = None
        self._observe, self._outage = observe, outage
        self._passed = 0  # rows that have left the buffer
        self._sums = np.zeros(self.width)
        self._spans: list[EvenRows] = []  # of the rows in the file
        self._held: list[bytes] = []  # rows that could not be written
        self._held_span = EvenRows(0, 1, 0)
        self._closed = False

    def __len__(self) -> int:
        """Return the number of rows appended so far."""
        return self._passed + len(self.buffer)

    def append(self, row: Iterable[float]) -> None:
        """Append a row."""
        self.buffer.append(self.pack(*row))
        if len(self.buffer) >= self.full:
            self.spill()

    def extend(self, rows: Array) -> None:
        """Append some rows."""
        for row in np.ascontiguousarray(rows, "<f8"):
            self.buffer.append(row.tobytes())
            if len(self.buffer) >= self.full:
                self.spill()

    def spill(self) -> None:
        """Move all rows from the buffer to the file or, if that fails, to other memory."""
        data, first = b"".join(self.buffer), self._passed
        if not data and not self._held:
            return
        self.buffer.clear()
        rows = self._matrix(data)
        if len(rows):
            self._sums += rows.sum(axis=0)
            if self._observe is not None:
                self._observe(rows)
            self._passed += len(rows)
        if self._held and self._write(b"".join(self._held)):
            self._add(self._held_span)
            self._clear_held()
        if not self._held and data and self._write(data):
            self._add(EvenRows(first, 1, len(rows)))
        elif data:
            self._hold(rows, first)

    def observe_rest(self) -> None:
        """Pass the rows that are still in the buffer to `observe`; none may be appended afterwards."""
        if self._observe is not None and self.buffer:
            self._observe(self._matrix(b"".join(self.buffer)))
        self._observe = None

    def flush(self) -> int:
        """Write all rows so far; return the number of rows in the file. `sync` then makes them survive a power failure."""
        if self._closed:
            return len(self)
        self.spill()
        return self.rows_written

    def sync(self) -> None:
        """Wait until the operating system has written the file to the disk. Any thread may call this."""
        if self.path is None or not self.rows_written or self._closed:
            return
        handle = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def truncate(self, rows: int | None) -> None:
        """Continue a file of an earlier process after its first `rows` rows and cut off later ones; None: keep them all."""
        self.buffer.clear()
        self._clear_held()
        self._passed, self.rows_written, self._spans = rows or 0, 0, []
        self._sums[:] = 0
        if self.path is not None and self.path.exists():
            with self.path.open("r+b") as file:
                there = os.fstat(file.fileno()).st_size // (ITEM * self.width)
                there = there if rows is None else min(rows, there)
                file.truncate(there * ITEM * self.width)
            self._adopt(there)
        for part in self.chunks():
            self._sums += part.sum(axis=0)
            if self._observe is not None:
                self._observe(part)

    def _adopt(self, rows: int) -> None:
        """Take the first rows of the file, which another process wrote, for this log's."""
        self.rows_written = rows
        self._passed = max(self._passed, rows)
        if rows:
            self._spans = [EvenRows(0, 1, rows)]

    # ---- what there is

    @property
    def kept(self) -> int:
        """The number of rows that can be read."""
        return self.rows_written + self._held_span.rows + len(self.buffer)

    @property
    def in_memory(self) -> int:
        """The number of rows that are not in the file."""
        return self.kept - self.rows_written

    @property
    def first_span(self) -> EvenRows:
        """The first kept rows that are evenly spaced: all of them, unless some had to be thinned out."""
        rest = len(self.buffer)
        spans = list(self._spans)
        for span in (self._held_span, EvenRows(self._passed, 1, rest)):
            _add_span(spans, span)
        return spans[0] if spans else EvenRows(0, 1, 0)

    def totals(self) -> dict[str, float]:
        """Return the sum of each column over all rows, also of those that were not kept."""
        sums = self._sums + self._matrix(b"".join(self.buffer)).sum(axis=0)
        return dict(zip(self.columns, sums.tolist(), strict=True))

    def read(self, start: int = 0, stop: int | None = None) -> Array:
        """Return a copy of some of the kept rows."""
        start, stop, _ = slice(start, stop).indices(self.kept)
        parts = []
        if start < min(stop, self.rows_written):
            parts.append(self._read_file(start, min(stop, self.rows_written)))
        offset = self.rows_written
        for data in (b"".join(self._held), b"".join(self.buffer)):
            rows = self._matrix(data)
            parts.append(rows[max(0, start - offset) : max(0, stop - offset)])
            offset += len(rows)
        return np.concatenate(parts)

    def chunks(self, rows: int = PIECE) -> Iterator[Array]:
        """Iterate over all kept rows, at most `rows` at a time."""
        for start in range(0, self.kept, rows):
            yield self.read(start, start + rows)

    def close(self) -> None:
        """Write no more rows: the table is complete."""
        self._closed = True

    def remove(self) -> None:
        """Remove the file, if that is possible."""
        self.close()
        if self._file is not None:
            self._file.close()
            self._file = None
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink()

    def check(self) -> None:
        """Notice if the file, or a part of it, was removed: its rows are lost."""
        if self._file is None and self.rows_written:
            self._lose_after(_rows_in(self))

    # ---- the file and the memory

    def _matrix(self, data: bytes) -> Array:
        return np.frombuffer(data, "<f8").reshape(-1, self.width)

    @contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        if not self._temporary:
            assert self.path is not None
            self.path.parent.mkdir(exist_ok=True)
            with self.path.open("ab", buffering=0) as file:
                yield file
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self._file.seek(0, os.SEEK_END)
        yield self._file

    def _write(self, data: bytes) -> bool:
        """Append rows to the file, all or none; return False if that fails."""
        if self.path is None and not self._temporary:
            return False
        try:
            with self._open() as file:
                size, row = os.fstat(file.fileno()).st_size, self._row
                self._lose_after(size // row)
                good = self.rows_written * row
                try:
                    if size > good:  # the rest of an attempt that failed
                        file.truncate(good)
                    left = memoryview(data)
                    while left:
                        left = left[file.write(left) :]
                except OSError:
                    file.truncate(good)
                    raise
        except OSError as error:
            if self._outage is not None:
                self._outage.note_failure(error, self)
            return False
        if self._outage is not None:
            self._outage.note_success(self)
        self.rows_written += len(data) // self._row
        return True

    def _read_file(self, start: int, stop: int) -> Array:
        """Return rows of the file; what can no longer be read is NaN."""
        row, data = self._row, b""
        with suppress(OSError):
            if self._file is not None:
                data = os.pread(self._file.fileno(), (stop - start) * row, start * row)
            elif self.path is not None:
                with self.path.open("rb", buffering=0) as file:
                    data = os.pread(file.fileno(), (stop - start) * row, start * row)
        rows = np.full((stop - start, self.width), np.nan)
        found = np.frombuffer(data[: len(data) // row * row], "<f8").reshape(-1, self.width)
        rows[: len(found)] = found
        return rows

    def _add(self, span: EvenRows) -> None:
        _add_span(self._spans, span)

    def _lose_after(self, rows: int) -> None:
        """Forget the rows of the file beyond its first ones: somebody removed them."""
        if rows >= self.rows_written:
            return
        self.rows_written, spans, self._spans = rows, self._spans, []
        for span in spans:
            _add_span(self._spans, span._replace(rows=min(rows, span.rows)))
            rows -= min(rows, span.rows)

    def _hold(self, rows: Array, first: int) -> None:
        """Keep rows in memory, in place of the file."""
        start, stride, count = self._held_span if self._held else EvenRows(first, 1, 0)
        fitting = rows[(start - first) % stride :: stride]
        self._held.append(fitting.tobytes())
        count += len(fitting)
        while count > self._most:
            kept = self._matrix(b"".join(self._held))[::2]
            self._held, stride, count = [kept.tobytes()], 2 * stride, len(kept)
        self._held_span = EvenRows(start, stride, count)

    def _clear_held(self) -> None:
        self._held, self._held_span = [], EvenRows(0, 1, 0)


def _add_span(spans: list[EvenRows], span: EvenRows) -> None:
    """Append a span, or extend the last one if the rows continue it."""
    if not span.rows:
        return
    if spans and spans[-1].stride == span.stride:
        last = spans[-1]
        if last.first + last.stride * last.rows == span.first:
            spans[-1] = last._replace(rows=last.rows + span.rows)
            return
    spans.append(span)


class Outage:
    """A time in which a run's folder cannot be written: says so once, and once that it is over.

    >>> outage = Outage(Path("runs/a"), print)
    >>> for writer in ("a", "b"):
    ...     outage.note_failure(OSError(28, "No space left on device"), writer)
    cannot write the run to runs/a: no space left on device; training continues, and writing is tried again
    >>> outage.note_success("a"), outage.note_success("b")
    the run can be written to runs/a again
    (None, None)
    """

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder, self.say = folder, say
        self._said: set[str] = set()
        self._failing: set[int] = set()

    def note_failure(self, error: OSError, writer: object) -> None:
        """Note that something could not be written."""
        why = reason(error)
        self._failing.add(id(writer))
        if why not in self._said:
            self._said.add(why)
            self.say(
                f"cannot write the run to {self._folder}: {why}; training continues, and writing is tried again"
            )

    def note_success(self, writer: object) -> None:
        """Note that something was written."""
        if id(writer) not in self._failing:
            return
        self._failing.remove(id(writer))
        if not self._failing and "" not in self._said:
            self._said.add("")
            self.say(f"the run can be written to {self._folder} again")


class Table(Mapping[str, Array]):
    """The rows of all ranks as columns, one rank after the other; read when they are asked for.

    `chunks(name)` iterates over a column with constant memory; `table[name]` is the whole column.

    >>> logs = [RowLog(("step",)), RowLog(("step",))]
    >>> logs[0].append([7]), logs[1].append([8])
    (None, None)
    >>> table = Table(logs, ("rank", "step"), types={"rank": np.uint32, "step": np.uint32})
    >>> table["rank"].tolist(), table["step"].tolist(), table.rows
    ([0, 1], [7, 8], 2)
    """

    def __init__(
        self,
        logs: Sequence[RowLog],
        columns: Sequence[str],
        *,
        types: Mapping[str, DTypeLike],
        default: DTypeLike = np.float32,
    ) -> None:
        """`columns`: in the order of the file; the one that is not in the logs gets the number of the rank."""
        self.logs = logs
        self._columns = tuple(columns)
        self._types, self._default = types, default

    @property
    def rows(self) -> int:
        """The rows of all ranks."""
        return sum(log.kept for log in self.logs)

    @property
    def missing(self) -> int:
        """Rows that could not be kept."""
        return sum(len(log) - log.kept for log in self.logs)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the type of a column."""
        return np.dtype(self._types.get(name, self._default))

    def chunks(self, name: str) -> Iterator[Array]:
        """Iterate over a column, a bounded number of values at a time."""
        for rank, log in enumerate(self.logs):
            place = log.columns.index(name) if name in log.columns else None
            for rows in log.chunks():
                values = np.full(len(rows), rank) if place is None else rows[:, place]
                with np.errstate(over="ignore", invalid="ignore"):  # the figures of a run that diverged
                    columns = values.astype(self.dtype(name))
                yield columns

    def __getitem__(self, name: str) -> Array:
        if name not in self._columns:
            raise KeyError(name)
        return np.concatenate([np.empty(0, self.dtype(name)), *self.chunks(name)])

    def remove(self) -> None:
        """Remove the files."""
        for log in self.logs:
            log.remove()
        for folder in {log.path.parent for log in self.logs if log.path is not None}:
            shutil.rmtree(folder, ignore_errors=True)


class WholeTable(Table):
    """A table whose columns are in memory, already in the types of the file.

    >>> WholeTable({"rank": np.array([0, 1], np.uint32), "step": np.array([7, 8])})["step"].tolist()
    [7, 8]
    """

    def __init__(self, columns: Mapping[str, Array]) -> None:
        super().__init__([], tuple(columns), types={name: column.dtype for name, column in columns.items()})
        self._values = columns

    @property
    def rows(self) -> int:
        return max(map(len, self._values.values()), default=0)

    def chunks(self, name: str) -> Iterator[Array]:
        """Iterate over the column, in one piece."""
        return iter([self._values[name]])


@dataclass(frozen=True, kw_only=True)
class Spool:
    """The place where one rank's tables grow: a run's folder, a nameless file, or memory if there is no record.

    >>> Spool().log("steps", ("step", "loss")).path is None
    True
    """

    folder: Path | None = None
    """The run's folder."""
    rank: int = 0
    ranks: int = 1
    """The ranks that share this process's memory."""
    visible: bool = True
    """False if this rank is on another node, which does not have the folder."""
    outage: Outage | None = None
    """Is told whether writing fails."""

    def log(
        self, table: str, columns: Sequence[str], *, observe: Callable[[Array], None] | None = None
    ) -> RowLog:
        """Create a table of this rank; `observe` is called once with every row, in chunks."""
        named = self.folder is not None and self.visible
        return RowLog(
            columns,
            rows_path(self.folder, table, self.rank) if named else None,
            temporary=self.folder is not None and not self.visible,
            ranks=self.ranks,
            observe=observe,
            outage=self.outage,
        )


def rows_path(folder: Path | None, table: str, rank: int) -> Path | None:
    """Return the file for the rows of a rank, if there is a folder.

    >>> rows_path(Path("runs/a"), "steps", 3).as_posix()
    'runs/a/steps/rank-3.rows'
    """
    return None if folder is None else folder / table / rows_name(rank)


def rows_name(rank: int) -> str:
    """Return the name of the file for the rows of a rank."""
    return f"rank-{rank}.rows"


def unpack_rows(folder: Path, table: str) -> None:
    """Write the files of rows from which TABLE.npz was made, to append to them.

    They get their names together, so that an attempt that is cut short is repeated and not taken for the whole table.
    """
    if not (folder / f"{table}.npz").exists():
        return
    if (folder / table).exists():
        if not (folder / "summary.json").exists():
            return
        shutil.rmtree(folder / table)  # the run is complete: what was left when its rows were removed
    unfinished = folder / f"{table}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    found = read_arrays(folder / f"{table}.npz")
    ranks = found["rank" if "rank" in found else "master"]
    values = [column for name, column in found.items() if name not in ("rank", "master")]
    try:
        for rank in np.unique(ranks).tolist():
            first, last = np.searchsorted(ranks, [rank, rank + 1]).tolist()
            with (unfinished / rows_name(rank)).open("wb") as file:
                for start in range(first, last, CHUNK):
                    part = slice(start, min(start + CHUNK, last))
                    rows = np.stack([column[part] for column in values], axis=1)
                    file.write(rows.astype("<f8").tobytes())
                file.flush()
                os.fsync(file.fileno())
        unfinished.rename(folder / table)
    except OSError:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def saved_logs(folder: Path, table: str, columns: Sequence[str], rows: Sequence[int | None]) -> list[RowLog]:
    """Return the logs of a run that was cut; `rows`: those of each rank that its checkpoint has saved (None: all)."""
    logs = []
    for rank, count in enumerate(rows):
        log = RowLog(columns, rows_path(folder, table, rank))
        there = _rows_in(log)
        log._adopt(there if count is None else min(count, there))
        logs.append(log)
    return logs


def truncate_logs(log: RowLog, rank: int, ranks: int, rows: Sequence[int | None]) -> None:
    """Continue the files of a run that had another number of ranks; `rows`: those of each of them."""
    log.truncate(rows[rank] if rank < len(rows) else None)
    if rank == 0 and log.path is not None:
        for gone in range(ranks, len(rows)):
            path = log.path.with_name(rows_name(gone))
            RowLog(log.columns, path).truncate(rows[gone])


def remove_rows(folder: Path, table: str, ranks: int) -> None:
    """Remove the files of all ranks but the first `ranks`."""
    for path in (folder / table).glob("rank-*.rows"):
        number = path.stem.removeprefix("rank-")
        if number.isdecimal() and int(number) >= ranks:
            path.unlink()


def renumber(folder: Path, table: str, alive: Sequence[int], dead: Sequence[int]) -> None:
    """Give the files of ranks that are left the numbers 0, 1 ...; those of dead ranks come after them."""
    files = [rows_path(folder, table, rank) for rank in (*alive, *dead)]
    aside = [path.with_suffix(".moved") for path in files if path is not None]
    for path, away in zip(files, aside, strict=True):
        if path is not None and path.exists():
            path.rename(away)
    for number, away in enumerate(aside):
        path = rows_path(folder, table, number)
        if path is not None and away.exists():
            away.rename(path)


def gather_rows(log: RowLog, control: Control, folder: Path | None, table: str) -> list[RowLog]:
    """Return the logs of all ranks on rank 0, and an empty list elsewhere. Collective.

    `folder`: rank 0's folder for the rows, if any. Files of other ranks that it can see there are used as they are; other
    rows are sent to it in pieces, and a nameless file is then closed.
    """
    log.check()
    if control.size > 1 and int(control.total(np.array([log.in_memory]))[0]) > PIECE:
        log.spill()
    counts = control.gather(np.array([[log.rows_written, log.kept, len(log)]]))
    logs: list[RowLog] = []
    rest: list[int] = []
    # For each rank, its first row to send; the most rows of any rank, and how many at once.
    plan = np.zeros((control.size if control.rank == 0 else 0, 3), np.int64)
    if control.rank == 0:
        for rank, (written, kept, length) in enumerate(np.concatenate(counts).tolist()):
            if rank == 0:
                logs.append(log)
                plan[0, 0] = kept
                continue
            theirs = RowLog(log.columns, rows_path(folder, table, rank), chunk=max(16, PIECE // control.size))
            if _rows_in(theirs) >= written:
                theirs._adopt(written)
                plan[rank, 0] = written
            rest.append(kept - int(plan[rank, 0]))
            theirs._passed = length - rest[-1]
            logs.append(theirs)
        plan[:, 1] = max(rest, default=0)
        plan[:, 2] = plan[0, 1] if sum(rest) <= PIECE else max(1, PIECE // control.size)
    first, most, each = control.scatter(plan, np.empty(3, np.int64)).tolist()
    for start in range(0, most, max(1, each)):
        parts = control.gather(log.read(first + start, first + start + each))
        for theirs, part in zip(logs[1:], parts[1:], strict=True):
            theirs.extend(part)
    if control.rank == 0:
        logs.extend(earlier_ranks(folder, table, log.columns, control.size))
    elif log.path is None:
        log.remove()
    log.close()
    return logs


def _rows_in(log: RowLog) -> int:
    """Return the number of whole rows in a log's file."""
    with suppress(OSError):
        if log.path is not None and log.path.is_file():
            return log.path.stat().st_size // (ITEM * log.width)
    return 0


def earlier_ranks(folder: Path | None, table: str, columns: Sequence[str], ranks: int) -> Iterator[RowLog]:
    """Iterate over the rows of ranks that the run had before it was resumed with fewer."""
    if folder is None:
        return
    named = re.compile(r"rank-(\d+)\.rows")
    try:
        names = [path.name for path in (folder / table).iterdir()]
    except OSError:
        return
    last = max((int(match[1]) for name in names if (match := named.fullmatch(name))), default=0)
    for rank in range(ranks, last + 1):
        log = RowLog(columns, rows_path(folder, table, rank))
        log._adopt(_rows_in(log))
        yield log
