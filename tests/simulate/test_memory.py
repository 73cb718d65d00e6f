"""Parameters that are one for all ranks as long as they are equal."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from paceline.models.mlp import MLP
from paceline.simulate import model as _memory
from paceline.simulate.model import LONGEST_WAIT, Pool, copy_model, move_into_room

SIZE = 50_000  # 200,000 bytes: no whole number of pages


def private_bytes(x: np.ndarray) -> int:
    """What of an array's memory is this mapping's own, by the kernel's account."""
    wanted, found = f"{x.ctypes.data:x}-", None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.startswith(wanted):
            found = 0
        elif found is not None and line.startswith("Private_Dirty:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no such mapping")


def open_files() -> set[tuple[str, str]]:
    """Return the descriptors of this process and their files."""
    gc.collect()  # files that earlier tests left to the garbage collector are closed now, not between two counts
    found = set()
    for descriptor in list(Path("/proc/self/fd").iterdir()):
        with suppress(FileNotFoundError):  # the list's own is closed already
            found.add((descriptor.name, str(descriptor.readlink())))
    return found


def test_equal_parameters_are_in_memory_once() -> None:
    pool = Pool(np.arange(SIZE, dtype=np.float32))
    rooms = [pool.room() for _ in range(8)]
    for step in range(1, 4):
        for room in rooms:
            np.add(room.x, 1, room.x)
            assert private_bytes(room.x) >= SIZE * 4
            room.settle()
            assert private_bytes(room.x) == 0
        assert all((room.x == np.arange(SIZE) + step).all() for room in rooms)
    assert pool.shared == 3 * 7
    pool.close()
    rooms[0].x[0] = 5  # the file is gone, the mappings are not
    assert rooms[1].x[0] == 3


def test_what_one_rank_writes_no_other_sees() -> None:
    pool = Pool(np.zeros(SIZE, np.float32))
    one, other = pool.room(), pool.room()
    one.x[:] = 1
    one.settle()
    one.x[7] = 2
    assert (other.x == 0).all()
    other.x[:] = 1
    assert other.settle()
    assert (other.x == 1).all()
    assert one.x[7] == 2
    pool.close()


def test_equal_means_bit_by_bit() -> None:
    pool = Pool(np.zeros(SIZE, np.float32))
    room = pool.room()
    room.x[3] = -0.0
    assert not room.settle()
    assert np.signbit(room.x[3])
    room.x[3] = np.nan
    room.settle()
    assert np.isnan(room.x[3])
    assert room.settle()  # a diverged x is shared, too
    pool.close()


def test_ranks_that_always_differ_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(np.zeros(SIZE, np.float32))
    written: list[float] = []
    write = Pool._write
    monkeypatch.setattr(Pool, "_write", lambda self, x: (written.append(float(x[0])), write(self, x))[1])
    rooms = [pool.room() for _ in range(4)]
    for turn in range(300):
        rooms[turn % 4].x[:] = turn + 1
        rooms[turn % 4].settle()
    assert len(written) < 12 < LONGEST_WAIT
    for room in rooms:  # and as soon as they do not, they share again, at the latest after that many attempts
        room.x[:] = -1
    for _ in range(LONGEST_WAIT):
        settled = [room.settle() for room in rooms]
        if all(settled):
            break
    assert pool.shared >= 4
    assert sum(private_bytes(room.x) for room in rooms) == 0
    pool.close()


def test_nothing_is_left_open() -> None:
    before = open_files()
    pool = Pool(np.zeros(SIZE, np.float32))
    rooms = [pool.room() for _ in range(300)]
    for room in rooms[:10]:
        room.x += 1
        room.settle()
    assert len(open_files() - before) <= 2  # the latest file and its view, however many ranks there are
    mapped = Path("/proc/self/maps").read_text().count("paceline-parameters")
    assert mapped >= 2
    pool.close()
    del rooms, room
    assert not open_files() - before
    assert Path("/proc/self/maps").read_text().count("paceline-parameters") == 0


def test_a_model_moves_in_and_trains_there() -> None:
    net = MLP([40, 30, 10])
    pool = Pool(net.x)
    other = copy_model(net)
    room = move_into_room(other, pool)
    assert room is not None
    assert other.x is room.x
    assert private_bytes(other.x) == 0
    assert (other.x == net.x).all()
    other.weights[0][:] = 7  # views look into the same memory, also after it was mapped anew
    room.settle()
    assert (other.weights[0] == 7).all()
    assert (other.x[: other.weights[0].size] == 7).all()
    assert not (net.x == other.x).all()
    pool.close()


def test_no_more_mappings_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    net = MLP([4, 3, 2])
    pool = Pool(net.x)

    class Full:
        @staticmethod
        def mmap(*_: object) -> int:
            return 2**64 - 1

    monkeypatch.setattr(_memory, "_libc", lambda: Full)
    assert move_into_room(copy_model(net), pool) is None
    pool.close()
