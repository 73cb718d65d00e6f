"""Files are read without being trusted: a wrong one ends with one line that names it, and never makes the reader wait."""

from __future__ import annotations

import io
import json
import os
import socket
import stat
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.errors import UsageError
from paceline.files import (
    check_place,
    read_array_names,
    read_arrays,
    read_json,
    read_json_lines,
    read_text,
    write_arrays,
)

READERS: list[Callable[[Path], Any]] = [read_text, read_json, read_json_lines, read_arrays, read_array_names]


def expect_refusal(read: Callable[[Path], Any], path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        read(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(path))


NO_FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "pipe": (os.mkfifo, "it is a named pipe"),
    "device": (lambda path: path.symlink_to("/dev/null"), "it is a device"),
    "socket": (make_socket, "it is a socket"),
    "loop": (lambda path: path.symlink_to(path.name), "too many levels of symbolic links"),
    "folder": (Path.mkdir, "it is a folder"),
    "nothing": (lambda path: None, "no such file or directory"),
}


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("kind", NO_FILES)
def test_only_files_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, read: Callable[[Path], Any]
) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    make, said = NO_FILES[kind]
    make(tmp_path / "a")
    assert said in expect_refusal(read, tmp_path / "a")


@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "folder"])
def test_only_files_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A file written to /dev/null by root would otherwise take its place."""
    monkeypatch.chdir(tmp_path)
    NO_FILES[kind][0](tmp_path / "a")
    before = (tmp_path / "a").lstat()
    with pytest.raises(OSError, match=NO_FILES[kind][1]):
        write_arrays(tmp_path / "a", {"x": np.zeros(3)})
    with pytest.raises(UsageError, match=f"cannot write .*: {NO_FILES[kind][1]}"):
        check_place(tmp_path / "a")
    assert (tmp_path / "a").lstat() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_new_file_has_the_permissions_that_the_umask_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The umask is that of the whole process: two threads that set it to read it may leave it changed."""
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(os, "umask", lambda mask: pytest.fail("the umask was set"))
            write_arrays(tmp_path / "a", {"x": np.zeros(3)})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


BAD_JSON = {
    "deep": ("[" * 200_000, "nested more than 100 deep"),
    "rather deep": ("[" * 101 + "]" * 101, "nested more than 100 deep"),
    "deep objects": ('{"a":' * 200_000, "nested more than 100 deep"),
    "long number": ("9" * 5000, "a number of 5000 digits"),
    "large number": ("1e999", "the number 1e999 is not finite"),
    "nan": ("[NaN]", "the number NaN is not finite"),
    "infinity": ("[-Infinity]", "the number -Infinity is not finite"),
    "twice": ('{"a": {"b": 1, "b": 1}}', "the key 'b' appears twice"),
    "half a character": ('["\\ud800"]', "surrogates not allowed"),
    "a byte of a character": ('["\\udcc3"]', "can't decode byte 0xc3"),
    "half a key": ('{"\\udc00": 1}', "surrogates not allowed"),
    "null character": ('{"data": "a\\u0000b"}', "the text 'a\\x00b' has a null character"),
    "cut": ('{"a": ', "expecting value"),
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_json_is_refused(tmp_path: Path, name: str) -> None:
    text, said = BAD_JSON[name]
    (tmp_path / "a.json").write_text(text)
    for read in (read_json, read_json_lines):
        assert said in expect_refusal(read, tmp_path / "a.json")


def test_json_is_read(tmp_path: Path) -> None:
    value = {"state": 2**128, "small": 1e-320, "é": [None, True, "\x1b"], "deep": [[[[[]]]]]}
    (tmp_path / "a.json").write_text(json.dumps(value))
    assert read_json(tmp_path / "a.json") == value
    (tmp_path / "a.json").write_text('{"path": ["d\\udcc3\\udca9"]}')  # as Python writes it in the C locale
    assert read_json(tmp_path / "a.json") == {"path": ["dé"]}
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    assert read_json_lines(tmp_path / "a.jsonl") == [{"a": 1}, {"a": 2}]


def test_text_that_is_too_large_or_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc\xff")
    assert "not text in UTF-8 (invalid start byte, byte 3)" in expect_refusal(read_text, tmp_path / "a")
    with (tmp_path / "b").open("wb") as file:
        file.truncate(40 << 30)  # takes no space on the disk
    assert "it has 42,949,672,960 bytes" in expect_refusal(read_text, tmp_path / "b")


ARRAYS = [
    np.arange(6, dtype=np.uint32),
    np.arange(6, dtype=">i8"),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array(2.5, np.float32),
    np.empty((0, 3), np.float16),
    np.array([True, False]),
    np.array(["é", "ab"]),
    np.array([b"ab", b"c"]),
    np.array([1 + 2j]),
]


@pytest.mark.parametrize("compress", [False, True])
def test_arrays_are_read_as_they_are(tmp_path: Path, compress: bool) -> None:
    path = tmp_path / "a.npz"
    write_arrays(path, {str(number): array for number, array in enumerate(ARRAYS)}, compress=compress)
    found = read_arrays(path)
    assert list(found) == [str(number) for number in range(len(ARRAYS))]
    for array, again in zip(ARRAYS, found.values(), strict=True):
        assert again.dtype == array.dtype.newbyteorder("=")
        assert again.shape == array.shape
        assert (again == array).all()
    assert read_array_names(path) == list(found)


def npy(header: str, data: bytes = b"", *, version: int = 1) -> bytes:
    text = header.encode("latin1")
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


def archive(path: Path, *members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> None:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in members:
            file.writestr(name, data)


def head(descr: str, shape: str, order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


BAD_ARRAYS = {
    "40 GB": (npy(head("'<f4'", "(10000000000,)"), bytes(40)), "promises 40,000,000,000 bytes of data and has 40"),
    "too little": (npy(head("'<f4'", "(3,)"), bytes(8)), "promises 12 bytes of data and has 8"),
    "too much": (npy(head("'<f4'", "(3,)"), bytes(16)), "promises 12 bytes of data and has 16"),
    "objects": (npy(head("'|O'", "(1,)"), bytes(8)), "a.npy holds Python objects, which are not read"),
    "records": (npy(head("[('a', '<f4')]", "(1,)"), bytes(4)), "its elements are not plain numbers"),
    "no size": (npy(head("'<U0'", "(1000000000000,)")), "header of a.npy is damaged: <U0"),
    "negative": (npy(head("'<f4'", "(-1,)")), "its elements are not plain numbers"),
    "call": (npy(head("'<f4'", "(__import__('os').getpid(),)")), "its elements are not plain numbers"),
    "long": (npy(head("'<f4'", f"({'9' * 5000},)")), "header of a.npy is damaged"),
    "product": (npy(head("'<f4'", f"({4 << 60}, {4 << 60}, 0)")), "header of a.npy is damaged"),
    "dimensions": (npy(head("'<f4'", f"({'1, ' * 40})"), bytes(4)), "header of a.npy is damaged"),
    "key": (npy("{'descr': '<f4', 'shape': (1,)}", bytes(4)), "its elements are not plain numbers"),
    "long header": (npy("{" * 70_000, version=2), "a.npy has a header of 70,000 bytes"),
    "version": (b"\x93NUMPY\x09\x00" + bytes(8), "a.npy is not an array"),
    "empty": (b"", "a.npy is not an array"),
    "characters": (npy(head("'<U1'", "(1,)"), b"\xff\xff\xff\xff"), "text with impossible characters"),
    "truth": (npy(head("'|b1'", "(1,)"), b"\x07"), "truth values other than 0 and 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_arrays_are_refused(tmp_path: Path, name: str) -> None:
    content, said = BAD_ARRAYS[name]
    archive(tmp_path / "a.npz", ("a.npy", content))
    tracemalloc.start()
    message = expect_refusal(read_arrays, tmp_path / "a.npz")
    assert tracemalloc.get_traced_memory()[1] < 2 << 20
    tracemalloc.stop()
    assert "a.npz cannot be read: " in message
    assert said in message


def test_other_archives_are_refused(tmp_path: Path) -> None:
    path, one = tmp_path / "a.npz", npy(head("'<f4'", "(1,)"), bytes(4))
    archive(path, ("a.npy", one), method=zipfile.ZIP_LZMA)
    assert "compressed with an unknown method, 14" in expect_refusal(read_arrays, path)
    archive(path, ("a.npy", one), ("objects.npy", npy(head("'|O'", "(1,)"), bytes(8))))
    assert read_arrays(path, ["a"])["a"].tolist() == [0]
    assert "objects.npy holds Python objects" in expect_refusal(read_arrays, path)
    archive(path, ("a.txt", one))
    assert "it has a file named 'a.txt'" in expect_refusal(read_arrays, path)
    with pytest.warns(UserWarning, match="Duplicate name"):
        archive(path, ("a.npy", one), ("a.npy", one))
    assert "it has two arrays named 'a'" in expect_refusal(read_arrays, path)
    path.write_bytes(b"no archive")
    assert "it is not an .npz file" in expect_refusal(read_arrays, path)
    write_arrays(path, {"x": np.zeros(3)})
    assert "it has no array 'y'; it has x" in expect_refusal(lambda path: read_arrays(path, ["y"]), path)


def test_parts_that_overlap_are_refused(tmp_path: Path) -> None:
    """Many entries for the same bytes: unpacked, they would be far larger than the file."""
    path = tmp_path / "a.npz"
    write_arrays(path, {"a": np.zeros(100_000)}, compress=True)
    content = path.read_bytes()
    start = content.index(b"PK\x01\x02")
    end = content.rindex(b"PK\x05\x06")
    entry, last = content[start:end], bytearray(content[end:])
    copies = b"".join(entry.replace(b"a.npy", b"%c.npy" % letter) for letter in b"abcdefgh")
    struct.pack_into("<HHI", last, 8, 8, 8, len(copies))
    path.write_bytes(content[:start] + copies + last)
    with zipfile.ZipFile(path) as file:
        assert len(file.infolist()) == 8
    assert "cannot be read: " in expect_refusal(read_arrays, path)


@pytest.mark.parametrize("compress", [False, True])
def test_every_flipped_bit_is_noticed_or_harmless(tmp_path: Path, compress: bool) -> None:
    path = tmp_path / "a.npz"
    arrays = {"x": np.arange(20, dtype=np.float32), "name": np.array(["sync"])}
    write_arrays(path, arrays, compress=compress)
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in (0, 3, 7):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            with suppress(UsageError):
                found = read_arrays(path)
                assert found.keys() == arrays.keys()
                assert all(np.array_equal(found[name], array) for name, array in arrays.items())
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        assert "cannot be read: " in expect_refusal(read_arrays, path)


def test_zeros_compress_well(tmp_path: Path) -> None:
    zeros = np.zeros(4_000_000)
    write_arrays(tmp_path / "a.npz", {"x": zeros}, compress=True)
    assert (tmp_path / "a.npz").stat().st_size * 900 < zeros.nbytes
    assert (read_arrays(tmp_path / "a.npz")["x"] == zeros).all()


def test_what_other_programs_write_is_read(tmp_path: Path) -> None:
    one = io.BytesIO()
    np.lib.format.write_array(one, np.arange(3), version=(2, 0))
    spaced = npy(
        '{"shape": (3L,), "fortran_order": False, "descr": "<i8"}', np.arange(3).tobytes(), version=3
    )
    archive(tmp_path / "a.npz", ("x.npy", one.getvalue()), ("y.npy", spaced))
    found = read_arrays(tmp_path / "a.npz")
    assert found["x"].tolist() == found["y"].tolist() == [0, 1, 2]
