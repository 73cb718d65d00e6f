from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from paceline.data import _cache
from paceline.data._cache import New, load_or_build
from paceline.errors import UsageError


class Squares:
    """Builds one array and counts how often."""

    def __init__(self) -> None:
        self.built = 0

    def __call__(self, new: New) -> None:
        self.built += 1
        new("squares", (1000,), np.int64)[:] = np.arange(1000) ** 2


def entries(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir())


def test_an_entry_is_built_once_and_mapped_read_only(cache: Path) -> None:
    build = Squares()
    first, second = (
        load_or_build("squares", "a", build)["squares"],
        load_or_build("squares", "a", build)["squares"],
    )
    assert build.built == 1
    assert first[31] == second[31] == 961
    assert type(first) is np.ndarray
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1


def test_a_changed_source_replaces_the_entry(cache: Path) -> None:
    build = Squares()
    old = load_or_build("squares", "a", build)["squares"]
    load_or_build("squares-of", "a", build)
    load_or_build("squares", "b", build)
    assert build.built == 3
    assert [entry.name.rsplit("-", 1)[0] for entry in entries(cache)] == ["squares", "squares-of"]
    assert old[31] == 961  # whoever has the old one keeps it


def damage_cut(entry: Path) -> None:
    os.truncate(entry / "squares.npy", 4000)


def damage_header(entry: Path) -> None:
    with (entry / "squares.npy").open("r+b") as file:
        file.write(b"garbage")


def damage_header_s_words(entry: Path) -> None:
    path = entry / "squares.npy"
    path.write_bytes(path.read_bytes().replace(b"'descr': '<i8'", b"'descr': '<i8\0"))


def damage_header_s_shape(entry: Path) -> None:
    path = entry / "squares.npy"
    path.write_bytes(path.read_bytes().replace(b"(1000,)", b"((000,)"))


def damage_no_arrays(entry: Path) -> None:
    (entry / "entry.json").write_text("{}")


def damage_half_written(entry: Path) -> None:
    (entry / "entry.json").unlink()


def damage_json(entry: Path) -> None:
    (entry / "entry.json").write_text('["squares"')


def damage_missing_array(entry: Path) -> None:
    (entry / "squares.npy").unlink()


def damage_not_a_folder(entry: Path) -> None:
    shutil.rmtree(entry)
    entry.write_text("")


@pytest.mark.parametrize(
    "damage",
    [
        damage_cut, damage_header, damage_header_s_words, damage_header_s_shape, damage_no_arrays,
        damage_half_written, damage_json, damage_missing_array, damage_not_a_folder,
    ],
)  # fmt: skip
def test_a_damaged_entry_is_built_again(cache: Path, damage: object) -> None:
    build = Squares()
    load_or_build("squares", "a", build)
    damage(entries(cache)[0])  # type: ignore[operator]
    assert load_or_build("squares", "a", build)["squares"][31] == 961
    assert build.built == 2
    load_or_build("squares", "a", build)
    assert build.built == 2


def test_a_failed_build_leaves_nothing(cache: Path) -> None:
    def fail(new: New) -> None:
        new("squares", (10,), np.int64)
        raise UsageError("no such thing")

    with pytest.raises(UsageError, match="no such thing"):
        load_or_build("squares", "a", fail)
    assert entries(cache) == []


KILLED = """
import os, sys
import numpy as np
from paceline.data._cache import load_or_build

def build(new):
    new("squares", (10,), np.int64)
    os.kill(os.getpid(), 9)
load_or_build(sys.argv[1], "a", build)
"""


def test_what_a_killed_build_left_is_swept(cache: Path) -> None:
    for name in ("squares", "squares-of"):
        assert subprocess.run([sys.executable, "-c", KILLED, name]).returncode == -9
    assert len(entries(cache)) == 2
    load_or_build("squares", "a", Squares())
    left, made = entries(cache)
    assert left.name.startswith(".squares-of-")  # another entry's, which somebody may be building
    assert made.name.startswith("squares-")


def test_a_full_disk_is_one_line(cache: Path) -> None:
    with pytest.raises(
        UsageError, match=r"cannot write to the cache .*; set PACELINE_CACHE to another folder"
    ):
        load_or_build("huge", "a", lambda new: new("huge", (1 << 58,), np.uint8)[:1].fill(0))
    assert entries(cache) == []


def test_an_unusable_folder_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(UsageError, match="cannot write to the cache"):
        load_or_build("squares", "a", Squares())


def test_the_order_of_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PACELINE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(_cache.tempfile, "gettempdir", lambda: str(tmp_path))
    spare = tmp_path / f"paceline-{os.getuid()}"
    assert _cache.cache_folders() == [tmp_path / "home/.cache/paceline", spare]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert _cache.cache_folders() == [tmp_path / "xdg/paceline", spare]
    # A home that cannot be written: the temporary directory.
    (tmp_path / "xdg").write_text("no folder")
    build = Squares()
    assert load_or_build("squares", "a", build)["squares"][31] == 961
    assert [entry.parent for entry in entries(spare)] == [spare]
    load_or_build("squares", "a", build)
    assert build.built == 1
    # … unless somebody else has put a folder of that name there.
    monkeypatch.setattr(_cache.os, "getuid", lambda: 987_654)
    (tmp_path / "paceline-987654").mkdir()
    assert _cache.cache_folders() == [tmp_path / "xdg/paceline"]


RACER = """
import pathlib, sys, time
import numpy as np
from paceline.data._cache import load_or_build

log = pathlib.Path(sys.argv[1])
def build(new):
    with log.open("a") as file:
        file.write("built\\n")
    array = new("squares", (500_000,), np.int64)
    for start in range(0, 500_000, 50_000):
        array[start : start + 50_000] = np.arange(start, start + 50_000) ** 2
        time.sleep(0.02)
print("ready", flush=True)
sys.stdin.readline()
array = load_or_build("squares", "a", build)["squares"]
assert (array == np.arange(500_000) ** 2).all()
places = [line.split() for line in open("/proc/self/maps") if "squares.npy" in line]
print(*{(place[3], place[4]) for place in places}, flush=True)
"""


def test_many_processes_at_once_build_one_entry_and_map_the_same_file(cache: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(log)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    answers = set()
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    for racer in racers:
        answers.add(racer.communicate(timeout=280)[0])
        assert racer.returncode == 0
    assert log.read_text() == "built\n"
    assert len(answers) == 1  # one device and inode: one copy in memory
    assert answers.pop().startswith("(")
    assert len(entries(cache)) == 1


def test_without_locks_the_first_to_finish_wins(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(new: New) -> None:
        new("squares", (1000,), np.int64)[:] = np.arange(1000) ** 2
        load_or_build("squares", "a", Squares())  # another process, meanwhile

    monkeypatch.setattr("fcntl.flock", lambda *_: (_ for _ in ()).throw(OSError("no locks here")))
    assert load_or_build("squares", "a", late)["squares"][31] == 961
    assert len(entries(cache)) == 1
