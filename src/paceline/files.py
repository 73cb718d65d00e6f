"""Reading files without trusting them, and writing them completely or not at all: text, JSON, arrays.

Whatever a file holds, reading it ends with its contents or with a UsageError of one line that names the file. Nothing but
regular files is opened, so reading never waits for a pipe or a device. No more memory is used than the size of the file
explains: up to 1032 times as much for compressed arrays, which is the most that deflate can compress.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import secrets
import stat
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import UsageError, reason


@contextmanager
def replace_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file that replaces `path` once everything has been written to it.

    >>> folder = Path(tempfile.mkdtemp())
    >>> with replace_file(folder / "a.txt") as file:
    ...     _ = file.write(b"whole")
    >>> [p.name for p in folder.iterdir()]
    ['a.txt']
    """
    if (kind := _kind(path)) not in (None, "a file"):
        raise OSError(errno.EINVAL, f"it is {kind}", str(path))  # renaming would put a file in its place
    # Not made by mkstemp, whose permissions would have to be changed: the umask cannot be read without setting it, and
    # another thread may create files meanwhile.
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def check_place(path: Path) -> None:
    """Raise a UsageError if a file could not be written: it is a folder, or its folder is missing or not writable.

    >>> check_place(Path("/nope/trace.json"))
    Traceback (most recent call last):
    paceline.errors.UsageError: cannot write /nope/trace.json: there is no folder /nope
    """
    try:
        if (kind := _kind(path)) not in (None, "a file"):
            raise UsageError(f"cannot write {path}: it is {kind}")
    except OSError as error:
        raise cannot(path, error) from None
    check_folder(path, path.parent)


def _kind(path: Path) -> str | None:
    """Return what there is at a path, in words; None if there is nothing."""
    try:
        return KINDS.get(stat.S_IFMT(path.stat().st_mode), "not a file")
    except (FileNotFoundError, NotADirectoryError):
        return None


def check_folder(path: Path, folder: Path) -> None:
    """Raise a UsageError about `path` if nothing can be written to `folder`."""
    try:
        if not folder.is_dir():
            raise UsageError(f"cannot write {path}: there is no folder {folder}")
        # Permissions are not enough: file systems can be read-only.
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise cannot(path, error) from None


def cannot(path: Path, error: OSError) -> UsageError:
    """Return the error for a file or folder that could not be written."""
    return UsageError(f"cannot write {path}: {reason(error)}")


def open_lock_file(path: Path, *, create: bool = True) -> int:
    """Open a file to lock it, for reading and writing; raise an OSError for anything but a regular file, also for a link.

    Processes write their number to such files, so a link could lead to a file that they must not change.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | (os.O_CREAT if create else 0)
    handle = os.open(path, flags, 0o644)
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise OSError(errno.EINVAL, f"it is {KINDS.get(stat.S_IFMT(mode), 'not a file')}", str(path))
    return handle


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return `value` as JSON; NaN and infinity, which JSON does not have, become null.

    >>> json_text({"loss": float("nan"), "steps": 3})
    '{"loss": null, "steps": 3}'
    >>> json_text({"tau": np.arange(2), "mean": np.float32(0.5)})
    '{"tau": [0, 1], "mean": 0.5}'
    """
    return json.dumps(_replace_nonfinite(value), indent=indent, allow_nan=False)


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` as JSON, completely or not at all."""
    with replace_file(path) as file:
        file.write(json_text(value, indent=2).encode() + b"\n")


def write_arrays(path: Path, arrays: dict[str, NDArray[Any]], *, compress: bool = False) -> None:
    """Write named arrays to one .npz file, completely or not at all, without pickle."""
    # savez has allow_pickle only since NumPy 2.2; older versions would store an array of that name.
    if objects := [name for name, array in arrays.items() if np.asarray(array).dtype.hasobject]:
        raise ValueError(f"cannot write Python objects to {path}: {', '.join(objects)}")
    save: Callable[..., None] = np.savez_compressed if compress else np.savez
    with replace_file(path) as file:
        save(file, **arrays)


def write_columns(
    path: Path, columns: Iterable[tuple[str, np.dtype[Any], Iterable[NDArray[Any]]]], rows: int
) -> None:
    """Write columns of `rows` values to one compressed .npz file, completely or not at all, with constant memory.

    `columns`: the name and the type of each, and its values in chunks.

    >>> folder = Path(tempfile.mkdtemp())
    >>> write_columns(folder / "a.npz", [("step", np.dtype(np.uint32), [np.arange(2), np.arange(2, 5)])], rows=5)
    >>> np.load(folder / "a.npz")["step"].tolist()
    [0, 1, 2, 3, 4]
    """
    with replace_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, dtype, chunks in columns:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                header = {
                    "descr": np.lib.format.dtype_to_descr(dtype),
                    "fortran_order": False,
                    "shape": (rows,),
                }
                np.lib.format.write_array_header_1_0(member, header)
                for chunk in chunks:
                    member.write(np.ascontiguousarray(chunk, dtype).tobytes())


def _replace_nonfinite(value: Any) -> Any:
    """Return the value with None instead of floats that JSON cannot represent."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _replace_nonfinite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nonfinite(inner) for inner in value]
    return value


# ---- reading

# The most that deflate compresses: 258 bytes into 2 bits.
MOST_COMPRESSED = 1032
# Sizes and depths that no file of ours comes near.
LARGEST_TEXT = 1 << 28
LONGEST_NUMBER = 64
DEEPEST = 100
LARGEST_HEADER = 1 << 16
MAGIC = b"\x93NUMPY"

KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
}


def open_file(path: str | Path) -> IO[bytes]:
    """Open a regular file for reading; raise a UsageError if it is anything else, without waiting for a pipe's writer.

    >>> open_file("/dev/null")
    Traceback (most recent call last):
    paceline.errors.UsageError: cannot read /dev/null: it is a device
    """
    try:
        _check_regular(path, Path(path).stat().st_mode)  # some devices act when they are opened
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _check_regular(path, os.fstat(handle).st_mode)
        except UsageError:
            os.close(handle)
            raise
        return os.fdopen(handle, "rb")
    except OSError as error:
        raise unreadable(path, error) from None
    except UsageError:
        raise
    except ValueError:  # a path with a null character
        raise UsageError(f"cannot read {str(path)!r}: it is not a path") from None


def _check_regular(path: str | Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise UsageError(f"cannot read {path}: it is {KINDS.get(stat.S_IFMT(mode), 'not a file')}")


def unreadable(path: str | Path, error: OSError) -> UsageError:
    """Return the error for a file or folder that could not be read."""
    return UsageError(f"cannot read {path}: {reason(error)}")


def exists(path: Path) -> bool:
    """Return True if there is anything at the path, also a link that leads nowhere or something that cannot be read.

    >>> exists(Path("/dev/null")), exists(Path("/nope/at/all"))
    (True, False)
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:  # no permission: reading it says so
        return True
    return True


def read_text(path: str | Path) -> str:
    """Read a text file in UTF-8."""
    with open_file(path) as file:
        try:
            if (size := os.fstat(file.fileno()).st_size) > LARGEST_TEXT:
                raise UsageError(f"cannot read {path}: it has {size:,} bytes, more than {LARGEST_TEXT:,}")
            return file.read(LARGEST_TEXT).decode()
        except UnicodeDecodeError as error:
            raise UsageError(
                f"cannot read {path}: it is not text in UTF-8 ({error.reason}, byte {error.start})"
            ) from None
        except OSError as error:
            raise unreadable(path, error) from None


def read_json(path: str | Path) -> Any:
    """Read a JSON file; see `parse_json` for what is refused."""
    return parse_json(read_text(path), str(path))


def read_json_lines(path: str | Path) -> list[Any]:
    """Read a file with one JSON value in each line."""
    lines = read_text(path).split("\n")
    return [
        parse_json(line, f"line {number} of {path}") for number, line in enumerate(lines, 1) if line.strip()
    ]


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file; as in JSON, a value may be nested at most 100 deep."""
    try:
        value = tomllib.loads(read_text(path))
        _check_inside(value)
    except RecursionError:
        raise UsageError(f"{path} is not TOML: it is nested more than {DEEPEST} deep") from None
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"{path} is not TOML: {str(error)[:1].lower()}{str(error)[1:]}") from None
    return value


def parse_json(text: str, what: str) -> Any:
    """Parse JSON; raise a UsageError that begins with `what` if it is anything that other readers would trip over.

    Apart from mistakes of syntax, these are: NaN and infinity, also as 1e999; whole numbers of more than 64 digits; a key
    that appears twice in an object; values nested more than 100 deep; text with null characters or half characters.

    >>> parse_json('{"ranks": 4, "ranks": 8}', "config.json")
    Traceback (most recent call last):
    paceline.errors.UsageError: config.json is not JSON: the key 'ranks' appears twice
    """
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_whole_number,
            parse_float=_finite_number,
            parse_constant=_finite_number,
        )
        _check_inside(value)
        if "\\udc" in text.lower() and sys.getfilesystemencoding() == "utf-8":
            value = _decode_text(value)
    except RecursionError:
        raise UsageError(f"{what} is not JSON: it is nested more than {DEEPEST} deep") from None
    except ValueError as error:
        why = str(error)
        raise UsageError(f"{what} is not JSON: {why[:1].lower()}{why[1:]}") from None
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:40]!r} appears twice")
    return found


def _whole_number(word: str) -> int:
    if len(word) > LONGEST_NUMBER:
        raise ValueError(f"a number of {len(word)} digits")
    return int(word)


def _finite_number(word: str) -> float:
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(f"the number {word[:40]} is not finite")
    return number


def _decode_text(value: Any) -> Any:
    """Return the value with whole characters in its text; raise a ValueError if there are halves.

    Where Python takes the names of files for ASCII, it stores each byte of other characters as half a character.

    >>> _decode_text(["d\\udcc3\\udca9j\\udcc3\\udca0"])
    ['d\u00e9j\u00e0']
    """
    if isinstance(value, str):
        return value.encode(errors="surrogateescape").decode()
    if isinstance(value, dict):
        return _object([(_decode_text(key), _decode_text(inner)) for key, inner in value.items()])
    return [_decode_text(inner) for inner in value] if isinstance(value, list) else value


def _check_inside(value: Any) -> None:
    """Raise a ValueError if the value is nested too deeply, or has text that is no valid path or cannot be printed."""
    level = [value]
    for _ in range(DEEPEST):
        deeper: list[Any] = []
        for inner in level:
            if isinstance(inner, str):
                if not inner.isascii():
                    _decode_text(inner)
                if "\0" in inner:
                    raise ValueError(f"the text {inner[:40]!r} has a null character")
            elif isinstance(inner, dict):
                deeper += inner.keys()
                deeper += inner.values()
            elif isinstance(inner, list):
                deeper += inner
        if not deeper:
            return
        level = deeper
    raise ValueError(f"it is nested more than {DEEPEST} deep")


def read_arrays(path: str | Path, names: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
    """Read the arrays of an .npz file, or those with the given names; raise a UsageError if anything is wrong with it.

    Only numbers and text are read: no pickle. Arrays are in the byte order of this machine. Before any memory is
    allocated, the size that an array's header promises is compared with that of its data.

    >>> folder = Path(tempfile.mkdtemp())
    >>> write_arrays(folder / "a.npz", {"x": np.arange(3), "y": np.ones(2)})
    >>> read_arrays(folder / "a.npz", ["x"])
    {'x': array([0, 1, 2])}
    >>> read_arrays(folder / "a.npz", ["z"])
    Traceback (most recent call last):
    paceline.errors.UsageError: .../a.npz cannot be read: it has no array 'z'; it has x, y
    """
    with _open_archive(path) as (archive, entries):
        if missing := next((name for name in names or () if name not in entries), None):
            raise ValueError(f"it has no array {missing!r}; it has {', '.join(list(entries)[:20]) or 'none'}")
        chosen = [_Member(archive, entries[name]) for name in (entries if names is None else names)]
        total = sum(member.nbytes for member in chosen)
        if total > (memory := os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")):
            raise ValueError(f"its arrays need {total:,} bytes, and this machine has {memory:,} bytes")
        return {name: member.read() for name, member in zip(names or entries, chosen, strict=True)}


def check_arrays(path: str | Path) -> None:
    """Raise a UsageError if an .npz file is damaged; read it a little at a time, and keep nothing."""
    with _open_archive(path) as (archive, entries):
        for info in entries.values():
            _Member(archive, info).check()


def read_array_names(path: str | Path) -> list[str]:
    """Read the names of the arrays of an .npz file.

    >>> folder = Path(tempfile.mkdtemp())
    >>> write_arrays(folder / "a.npz", {"x": np.zeros((2, 3))})
    >>> read_array_names(folder / "a.npz")
    ['x']
    """
    with _open_archive(path) as (_, entries):
        return list(entries)


@contextmanager
def _open_archive(path: str | Path) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo]]]:
    """Open an .npz file; yield it and the entries of its arrays."""
    with open_file(path) as file:
        try:
            if file.read(6) == MAGIC:
                raise ValueError("it is a single .npy array, not an .npz file")
            with zipfile.ZipFile(file) as archive:
                yield archive, _entries(archive, os.fstat(file.fileno()).st_size)
        except Exception as error:  # zipfile and zlib raise exceptions of many kinds for damaged files
            raise UsageError(f"{path} cannot be read: {_explain(error)}") from None


def _explain(error: Exception) -> str:
    if isinstance(error, zipfile.BadZipFile) and "not a zip file" in str(error):
        return "it is not an .npz file, or truncated"
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    why = " ".join(str(error).split()) or type(error).__name__
    return f"{why[:1].lower()}{why[1:200]}"


def _entries(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    found: dict[str, zipfile.ZipInfo] = {}
    packed = 0
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name in found or name == info.filename:
            raise ValueError(f"it has {'two arrays' if name in found else 'a file'} named {name[:40]!r}")
        if info.comment:  # a damaged length makes one of the following entries
            raise ValueError(f"its directory is damaged at {name[:40]!r}")
        packed += info.compress_size
        if packed > size:  # parts that overlap could be unpacked any number of times
            raise ValueError("its parts are larger than the file")
        found[name] = info
    found.pop("allow_pickle", None)  # older versions of NumPy stored the option of savez as an array
    return found


class _Member:
    """One array of an .npz file."""

    ITEM = re.compile(
        r"""\s*(['"])(\w+)\1\s*:\s*('[^']*'|"[^"]*"|True|False|\([\dL,\s]*\))\s*(?:,\s*|(?=\}))"""
    )
    DTYPE = re.compile(r"[<>|=]?[?biufcSU][0-9]{0,9}")

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        self._archive, self._info, self._name = archive, info, info.filename[:40]
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{self._name} is compressed with an unknown method, {info.compress_type}")
        with archive.open(info) as file:
            self.dtype, self.shape, self._columns_first, header = self._read_header(file)
        promised = self.nbytes
        if header + promised != info.file_size:
            raise ValueError(
                f"{self._name} promises {promised:,} bytes of data and has {max(0, info.file_size - header):,}"
            )
        most = info.compress_size * (1 if info.compress_type == zipfile.ZIP_STORED else MOST_COMPRESSED)
        if info.file_size > most:
            raise ValueError(f"{self._name} promises {info.file_size:,} bytes in {info.compress_size:,}")

    @property
    def nbytes(self) -> int:
        """The size of the array in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def _read_header(self, file: IO[bytes]) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
        """Return the type, the shape, whether columns come first, and the length of the header."""
        start = file.read(8)
        wide = 2 if start[6:7] == b"\x01" else 4
        if start[:6] != MAGIC or start[6] not in (1, 2, 3):
            raise ValueError(f"{self._name} is not an array")
        length = int.from_bytes(file.read(wide), "little")
        if length > LARGEST_HEADER:
            raise ValueError(f"{self._name} has a header of {length:,} bytes")
        text = file.read(length).decode("latin1").strip()
        if re.search(r"'descr': *'\|?O", text):
            raise ValueError(f"{self._name} holds Python objects, which are not read")
        values: dict[str, str] = {}
        place = 1
        while (item := self.ITEM.match(text, place)) is not None:
            values[item[2]] = item[3]
            place = item.end()
        if (
            text[:1] != "{"
            or text[place:].strip() != "}"
            or values.keys() != {"descr", "fortran_order", "shape"}
        ):
            raise ValueError(f"the header of {self._name} is damaged, or its elements are not plain numbers")
        kind, shape = values["descr"][1:-1], values["shape"].strip("()").replace("L", "")
        try:
            if not self.DTYPE.fullmatch(kind):
                raise ValueError
            dtype = np.dtype(kind)
            sizes = tuple(int(word) for word in shape.split(",") if word.strip())
        except (ValueError, TypeError):
            raise ValueError(f"the header of {self._name} is damaged: {kind[:40]}, {shape[:40]}") from None
        if dtype.itemsize == 0 or len(sizes) > 32 or max(sizes, default=0) >= 1 << 62:
            raise ValueError(f"the header of {self._name} is damaged: {kind[:40]}, {shape[:40]}")
        return dtype, sizes, values["fortran_order"] == "True", 8 + wide + length

    def check(self) -> None:
        """Compare the array with its checksum."""
        with self._archive.open(self._info) as file:
            while file.read(1 << 22):
                pass

    def read(self) -> NDArray[Any]:
        """Read the array, and compare it with its checksum."""
        array: NDArray[Any] = np.empty(math.prod(self.shape), self.dtype)
        with self._archive.open(self._info) as file:
            self._read_header(file)
            rest = array.view(np.uint8).data
            while rest and (count := file.readinto(rest[: 1 << 22])):  # type: ignore[attr-defined]
                rest = rest[count:]
            if rest or file.read(1):  # at the end, the checksum is compared
                raise ValueError(f"{self._name} is truncated")
        array = array.astype(self.dtype.newbyteorder("="), copy=False)
        if self.dtype.kind == "U" and array.size:
            codes = array.view(np.uint32)
            if ((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes < 0xE000))).any():
                raise ValueError(f"{self._name} has text with impossible characters")
        if self.dtype.kind == "b" and (array.view(np.uint8) > 1).any():
            raise ValueError(f"{self._name} has truth values other than 0 and 1")
        return array.reshape(self.shape[::-1]).T if self._columns_first else array.reshape(self.shape)
