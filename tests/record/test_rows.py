"""Tables that grow with every step: constant memory, files of whole rows, and what happens when they cannot be written."""

from __future__ import annotations

import errno
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.comm.control import Control
from paceline.record import STEP_COLUMNS, Outage, RowLog, Spool, Table, gather_rows
from paceline.record.rows import unpack_rows
from paceline.record.writing import write_table
from paceline.training.rank import common_rows, measure_waiting, sum_excess
from paceline.vmpi.program import run

COLUMNS = ("step", "loss", "count")
ROW = 8 * len(COLUMNS)


def fill(log: RowLog, rows: int, start: int = 0) -> None:
    for number in range(start, start + rows):
        log.append((number, number / 2, 3))


def test_rows_move_to_the_file_in_whole_chunks(tmp_path: Path) -> None:
    path = tmp_path / "steps" / "rank-0.rows"
    log = RowLog(COLUMNS, path, chunk=10)
    fill(log, 9)
    assert not path.exists()  # a short run needs no file
    fill(log, 26, start=9)
    assert (path.stat().st_size, len(log.buffer)) == (30 * ROW, 5)
    assert (len(log), log.kept, log.rows_written, log.in_memory) == (35, 35, 30, 5)
    assert log.read()[:, 0].tolist() == list(range(35))
    assert log.read(28, 32)[:, 1].tolist() == [14, 14.5, 15, 15.5]
    assert [len(part) for part in log.chunks(16)] == [16, 16, 3]
    assert log.totals() == {"step": sum(range(35)), "loss": sum(range(35)) / 2, "count": 105}
    assert log.flush() == 35
    log.sync()
    assert np.fromfile(path, "<f8").reshape(-1, 3)[:, 0].tolist() == list(range(35))
    log.remove()
    assert not path.exists()


def test_a_file_is_continued_after_a_given_row(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.rows"
    log = RowLog(COLUMNS, path, chunk=10)
    fill(log, 57)
    log.flush()
    with path.open("ab") as file:
        file.write(b"half a row")
    seen: list[float] = []
    again = RowLog(COLUMNS, path, chunk=10, observe=lambda rows: seen.extend(rows[:, 0]))
    again.truncate(42)
    assert path.stat().st_size == 42 * ROW
    fill(again, 20, start=42)
    again.flush()
    assert again.read()[:, 0].tolist() == seen == list(range(62))
    assert again.totals()["count"] == 3 * 62
    assert (len(again), again.rows_written) == (62, 62)


def test_a_complete_run_can_be_continued(tmp_path: Path) -> None:
    def longer(comm: Any) -> None:
        rank, control = comm.Get_rank(), Control(comm)
        log = Spool(folder=tmp_path, rank=rank).log("steps", COLUMNS)
        log.truncate(None)
        fill(log, 30, start=len(log))
        logs = gather_rows(log, control, tmp_path, "steps")
        assert log.flush() == len(log)  # writes no file: the table is complete
        if rank == 0:
            table = Table(logs, ("rank", *COLUMNS), types={"rank": np.uint32})
            write_table(tmp_path / "steps.npz", table)
            table.remove()
        control.close()

    run(longer, ranks=3)
    unpack_rows(tmp_path, "steps")
    run(longer, ranks=2)
    with np.load(tmp_path / "steps.npz") as columns:
        assert columns["rank"].tolist() == [0] * 60 + [1] * 60 + [2] * 30
        assert columns["step"].tolist() == [*range(60), *range(60), *range(30)]


def write_steps(folder: Path, ranks: int, rows: int) -> Path:
    """Write steps.npz as the run of these ranks leaves it; return the folder for files of rows."""
    columns = {"rank": np.repeat(np.arange(ranks, dtype=np.uint32), rows)}
    columns |= {name: np.tile(np.arange(rows), ranks) for name in COLUMNS}
    np.savez(folder / "steps.npz", **columns)  # type: ignore[arg-type]
    return folder / "steps"


def test_rows_that_were_unpacked_in_part_are_unpacked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = write_steps(tmp_path, ranks=2, rows=50)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space left"):
            unpack_rows(tmp_path, "steps")
    assert [path.name for path in tmp_path.iterdir()] == ["steps.npz"]
    unpack_rows(tmp_path, "steps")
    assert [path.stat().st_size for path in sorted(folder.iterdir())] == [50 * ROW] * 2


def test_rows_that_a_complete_run_has_left_are_replaced(tmp_path: Path) -> None:
    """They are removed one after the other when it is complete, and it may be killed then."""
    folder = write_steps(tmp_path, ranks=2, rows=50)
    (tmp_path / "summary.json").touch()
    folder.mkdir()
    (folder / "rank-1.rows").touch()
    unpack_rows(tmp_path, "steps")
    assert [path.stat().st_size for path in sorted(folder.iterdir())] == [50 * ROW] * 2


@pytest.mark.parametrize("rows", [1, 100, 1001, 5000])
def test_without_a_file_evenly_spaced_rows_are_kept(rows: int) -> None:
    log = RowLog(COLUMNS, chunk=16, most=100)
    fill(log, rows)
    assert (len(log), log.totals()["count"]) == (rows, 3 * rows)
    assert log.kept <= 100 + 16
    span = log.first_span
    kept = log.read(0, span.rows)[:, 0]
    assert kept.tolist() == list(range(0, span.rows * span.stride, span.stride))
    assert span.rows * span.stride > rows - 16 - span.stride


def test_when_the_disk_is_full_rows_wait_in_memory_and_are_written_later(tmp_path: Path) -> None:
    said: list[str] = []
    folder, away = tmp_path / "steps", tmp_path / "away"
    log = RowLog(COLUMNS, folder / "rank-0.rows", chunk=10, most=1000, outage=Outage(tmp_path, said.append))
    fill(log, 25)
    folder.rename(away)
    folder.write_text("in the way")  # neither a folder nor a new one can be opened here, not even by root
    fill(log, 100, start=25)
    assert (log.rows_written, log.kept) == (20, 125)
    assert len(said) == 1
    assert f"cannot write the run to {tmp_path}: " in said[0]
    folder.unlink()
    away.rename(folder)
    fill(log, 15, start=125)
    assert log.read()[:, 0].tolist() == list(range(140))
    assert log.rows_written == 140
    assert said[1:] == [f"the run can be written to {tmp_path} again"]


def test_rows_of_a_removed_folder_are_lost_but_counted(tmp_path: Path) -> None:
    folder = tmp_path / "steps"
    log = RowLog(COLUMNS, folder / "rank-0.rows", chunk=10)
    fill(log, 25)
    shutil.rmtree(folder)
    log.check()
    assert (len(log), log.kept) == (25, 5)
    fill(log, 10, start=25)
    assert log.read()[:, 0].tolist() == list(range(20, 35))
    assert log.totals()["count"] == 3 * 35
    assert Table([log], ("rank", *COLUMNS), types={}).missing == 20


def test_a_failed_write_leaves_whole_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes a part of the rows and then no more."""
    path = tmp_path / "rank-0.rows"
    log = RowLog(COLUMNS, path, chunk=10)
    fill(log, 10)
    room = 100

    class Full:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def write(self, data: memoryview) -> int:
            nonlocal room
            if not room:
                raise OSError(28, "No space left on device")
            count, room = room, 0
            return int(self.file.write(data[:count]))

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

    opened = Path.open
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda self, *given, **named: Full(opened(self, *given, **named)))
        fill(log, 10, start=10)
    assert path.stat().st_size == 10 * ROW
    fill(log, 10, start=20)
    assert np.fromfile(path).reshape(-1, 3)[:, 0].tolist() == list(range(30))


def test_a_rank_without_the_folder_uses_a_nameless_file(tmp_path: Path) -> None:
    log = Spool(folder=tmp_path / "not-here", visible=False).log("steps", COLUMNS)
    fill(log, 5000)
    assert (log.rows_written, log.kept) == (4096, 5000)
    assert log.read(4090, 4100)[:, 0].tolist() == list(range(4090, 4100))
    assert not any(tmp_path.iterdir())
    log.remove()


def gathered(comm: Any, *, folder: Path, rows: int, remote: int) -> dict[str, Any]:
    rank = comm.Get_rank()
    control = Control(comm)
    log = Spool(folder=folder, rank=rank, ranks=comm.Get_size(), visible=rank != remote).log("steps", COLUMNS)
    fill(log, rows + rank, start=1000 * rank)
    logs = gather_rows(log, control, folder, "steps")
    found: dict[str, Any] = {"logs": len(logs)}
    if rank == 0:
        table = Table(logs, ("rank", *COLUMNS), types={"rank": np.uint32, "step": np.uint32})
        write_table(folder / "steps.npz", table)
        found["missing"] = table.missing
        table.remove()
    control.close()
    return found


@pytest.mark.parametrize(
    ("ranks", "rows", "remote"), [(1, 50, -1), (3, 40, -1), (3, 3000, 2), (5, 30_000, 1)]
)
def test_rank_zero_makes_columns_of_all_rows(ranks: int, rows: int, remote: int, tmp_path: Path) -> None:
    found = run(partial(gathered, folder=tmp_path, rows=rows, remote=remote), ranks=ranks).values
    assert [of["logs"] for of in found] == [ranks, *[0] * (ranks - 1)]
    assert found[0]["missing"] == 0
    with np.load(tmp_path / "steps.npz") as columns:
        assert columns["rank"].tolist() == np.repeat(np.arange(ranks), rows + np.arange(ranks)).tolist()
        expected = [1000 * rank + n for rank in range(ranks) for n in range(rows + rank)]
        assert columns["step"].tolist() == expected
        assert columns["loss"].dtype == np.float32
        assert columns["rank"].dtype == np.uint32
    assert [path.name for path in tmp_path.iterdir()] == ["steps.npz"]


def waited(comm: Any, *, rows: int, most: int | None) -> list[float]:
    rank, place = comm.Get_rank(), STEP_COLUMNS.index("exchange")
    control, log = Control(comm), RowLog(STEP_COLUMNS, chunk=16, most=most)
    row = [0.0] * len(STEP_COLUMNS)
    for number in range(rows):
        row[place] = 1.0 + (rank + number) % comm.Get_size()
        log.append(row)
    rows = common_rows(control.allgather(np.array([len(log), *log.first_span])))
    found = measure_waiting(log, control, rows).tolist()
    control.close()
    return found


@pytest.mark.parametrize("most", [None, 100])
def test_waiting_is_the_excess_over_the_last_to_arrive(most: int | None) -> None:
    rows, ranks = 3000, 3
    found, *others = run(partial(waited, rows=rows, most=most), ranks=ranks).values
    assert others == [[], []]  # only rank 0 has memory for every rank
    spent = np.array([[1.0 + (rank + number) % ranks for number in range(rows)] for rank in range(ranks)])
    assert found == pytest.approx(sum_excess(spent).tolist(), rel=0.05 if most else 1e-12)
