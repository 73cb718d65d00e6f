#!/usr/bin/env python
"""Feed damaged files to every reader: each must end with its contents or with one line that says what is wrong.

    python tools/fuzz.py                         all readers, 10,000 cases each
    python tools/fuzz.py records csv --cases 500
    python tools/fuzz.py --seconds 600           as many cases as fit into this time, for each reader
    python tools/fuzz.py records --only 1234     one case again, with its traceback

A finding is any exception but a UsageError of one line that names the file, a warning, a case that computes for longer
than LIMIT seconds or hangs for HANG seconds, or one that needs more memory than the size of its files explains. Case N of
a reader follows from the seed, the reader and N alone.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gzip
import io
import itertools
import json
import logging
import os
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline import names as registry
from paceline.errors import UsageError

LIMIT, HANG = 10.0, 120.0
# A case may use this many bytes, and as many times the size of its files as deflate can compress.
ROOM, TIMES = 96 << 20, 1032
# Address space beyond what is in use: larger allocations fail.
SPACE = 4 << 30  # threads take some, without using it


class TooLongError(BaseException):
    """A case exceeded its time."""


Random = random.Random


# ---- mutations of bytes


def flip(data: bytes, r: Random) -> bytes:
    """Flip a few bits."""
    out = bytearray(data or b"\0")
    for _ in range(r.choice((1, 1, 1, 2, 4, 16))):
        out[r.randrange(len(out))] ^= 1 << r.randrange(8)
    return bytes(out)


def overwrite(data: bytes, r: Random) -> bytes:
    """Overwrite some bytes with zeros, ones, or anything."""
    out = bytearray(data or b"\0")
    start = r.randrange(len(out))
    length = min(len(out) - start, r.choice((1, 2, 4, 8, 64)))
    out[start : start + length] = r.choice((bytes(length), b"\xff" * length, r.randbytes(length)))
    return bytes(out)


def truncate(data: bytes, r: Random) -> bytes:
    """Cut off the end, or the beginning."""
    place = r.randrange(len(data) + 1)
    return data[:place] if r.random() < 0.8 else data[place:]


def insert(data: bytes, r: Random) -> bytes:
    """Insert a few bytes, or repeat a part."""
    place = r.randrange(len(data) + 1)
    start = r.randrange(len(data) + 1)
    some = r.choice((r.randbytes(r.randrange(1, 20)), data[start : start + r.randrange(200)], b"\0" * 100))
    return data[:place] + some + data[place:]


def delete(data: bytes, r: Random) -> bytes:
    """Leave out a part."""
    start = r.randrange(len(data) + 1)
    return data[:start] + data[start + r.choice((1, 2, 8, 100)) :]


def swap(data: bytes, r: Random) -> bytes:
    """Move a part to another place."""
    a, b, c = sorted(r.randrange(len(data) + 1) for _ in range(3))
    return data[:a] + data[b:c] + data[a:b] + data[c:]


BYTES = (flip, flip, overwrite, truncate, insert, delete, swap)


def mutate_bytes(data: bytes, r: Random) -> bytes:
    """Damage bytes, once or a few times."""
    for _ in range(r.choice((1, 1, 1, 2, 3))):
        data = r.choice(BYTES)(data, r)
    return data


def splice(data: bytes, other: bytes, r: Random) -> bytes:
    """Return the beginning of one file and the end of another."""
    return data[: r.randrange(len(data) + 1)] + other[r.randrange(len(other) + 1) :]


# ---- mutations of structure

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 255, 2**31, 2**53, 2**53 + 1, 2**63, 2**64, 10**18, 10**60, 10**4000, 0.0, -0.0,
    0.5, -0.5, 1.5, 1e-320, 1e30, 1e300, -1e300, 1.7e308, "", "0", "1", "-1", "nan", "x" * 5000, "\x1b[2J", "é" * 30,
    "a\nb", "../..", "/dev/zero", "sync", "serial", "mlp:8", "iris", "float64", [], {}, [[]], [0], [None], [1, 2, 3],
    ["a"], {"a": 1}, {"": {}}, [1e308] * 3, [[1, 2], [3]], list(range(50)),
)  # fmt: skip
RAW = (
    "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000, "[" * 100_000, '{"a":' * 100_000, '"\\ud800"',
    '"\\u0000"', "[" * 90 + "]" * 90, "01", "1.", "'a'", "undefined", '"\x00"', '{"a": 1, "a": 2}',
)  # fmt: skip


def nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every value inside a JSON value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield from nodes(below, (*path, key))


def mutate_value(value: Any, r: Random) -> tuple[Any, bool]:
    """Change one value inside a JSON value; return True if a mark stands for a text that is not JSON."""
    value = json.loads(json.dumps(value))
    places = [path for path in nodes(value) if path]
    if not places:
        return r.choice(VALUES), False
    # Those near the top are chosen as often as the many below them.
    depth = r.choice(sorted({len(path) for path in places}))
    path = r.choice([path for path in places if len(path) == depth])
    inside = value
    for key in path[:-1]:
        inside = inside[key]
    key, what = path[-1], r.random()
    if what < 0.12:
        del inside[key]
    elif what < 0.2 and isinstance(inside, dict):
        inside[r.choice(("a", "", key + "x", key.upper()))] = inside.pop(key)
    elif what < 0.3:
        inside[key] = [inside[key]] * r.choice((1, 2, 100))
    elif what < 0.4 and isinstance(inside[key], int | float) and not isinstance(inside[key], bool):
        inside[key] = r.choice(
            (-inside[key], inside[key] + 1, inside[key] * 1000, inside[key] / 7, str(inside[key]))
        )
    elif what < 0.5:
        inside[key] = "\x01RAW"
        return value, True
    else:
        inside[key] = r.choice(VALUES)
    return value, False


def dump(value: Any, r: Random, raw: bool) -> str:
    sys.set_int_max_str_digits(0)
    text = json.dumps(value)
    sys.set_int_max_str_digits(4300)
    return text.replace('"\\u0001RAW"', r.choice(RAW)) if raw else text


def mutate_json(data: bytes, r: Random) -> bytes:
    """Damage a JSON file: a value, or bytes."""
    if r.random() < 0.25:
        return mutate_bytes(data, r)
    value = json.loads(data)
    raw = False
    for _ in range(r.choice((1, 1, 1, 2))):
        value, more = mutate_value(value, r)
        raw |= more
    return dump(value, r, raw).encode()


def mutate_lines(data: bytes, r: Random) -> bytes:
    """Damage a file with a JSON value in every line."""
    if r.random() < 0.25:
        return mutate_bytes(data, r)
    lines = data.decode().splitlines()
    place = r.randrange(len(lines))
    what = r.random()
    if what < 0.1:
        lines.insert(place, lines[r.randrange(len(lines))])
    elif what < 0.2:
        r.shuffle(lines)
    else:
        lines[place] = mutate_json(lines[place].encode(), r).decode(errors="replace")
    return "\n".join(lines).encode()


DESCRIPTIONS = (
    "<f4", ">f4", "<f8", "<f2", "<f16", "<i8", "<u8", "|u1", "|i1", "|b1", "<c8", "<U1", "<U3", "|S2", "<U0", "|O", "|V8",
    "<M8[s]", "float32", "", "<f3", "<U999999999", "i",
)  # fmt: skip
SHAPES = (
    "()",
    "(0,)",
    "(1,)",
    "(7,)",
    "(10000000000,)",
    "(-1,)",
    "(3, 4)",
    "(0, 9999999999)",
    "(1.5,)",
    "3",
    "None",
)


def mutate_array(array: np.ndarray, r: Random) -> np.ndarray:
    """Change the values, the type or the shape of an array."""
    what = r.random()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if what < 0.35 and array.size and array.dtype.kind in "iuf":
            out = array.copy()
            value: Any = r.choice((0, 1, -1, 2, 1000, 2**31 - 1, 2**32 - 1, 2**62, 1e9, 1e30, np.nan, np.inf))
            spot = r.randrange(array.size) if r.random() < 0.7 else slice(None)
            out.reshape(-1)[spot] = np.array(value, np.float64).astype(array.dtype)
            return out
        if what < 0.55:
            kind = r.choice((">f4", "<f8", ">i8", "u1", "i1", "?", "c8", "U4", "S3", "f2"))
            return array.astype(kind) if array.dtype.kind in "iuf" else array.astype("S2")
        if what < 0.8:
            cut = r.choice((array[:0], array[:-1], array[:1], np.concatenate([array, array]), array[::-1]))
            return cut if array.ndim else array.reshape(1)
        shape = r.choice(((), (1, -1), (-1, 1), (0,), (1, 1, -1)))
        if shape in ((), (0,)):
            return np.zeros(shape, array.dtype)
        return np.asfortranarray(array.reshape(shape))


def npy(array: np.ndarray, r: Random | None = None) -> bytes:
    """Return an array as an .npy file; with `r`, its header says something else."""
    out = io.BytesIO()
    np.lib.format.write_array(out, array, allow_pickle=False)
    data = out.getvalue()
    if r is None:
        return data
    start = 10 + int.from_bytes(data[8:10], "little")
    descr, shape = f"'{array.dtype.str}'", str(array.shape)
    what = r.random()
    if what < 0.4:
        descr = f"'{r.choice(DESCRIPTIONS)}'"
    elif what < 0.8:
        shape = r.choice(SHAPES)
    else:
        descr = r.choice(
            ("[('a', '<f4')]", "['<f4']", "'<f4", "(" * 3000, "__import__('os')", "'" + "x" * 9000 + "'")
        )
    header = (
        f"{{'descr': {descr}, 'fortran_order': {r.choice(('True', 'False', '1'))}, 'shape': {shape}, }}\n"
    )
    version = r.choice((1, 1, 1, 2, 3, 4, 255))
    length = struct.pack("<H" if version == 1 else "<I", r.choice((len(header), len(header), 5, 60_000)))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header.encode() + data[start:]


def mutate_npz(data: bytes, r: Random) -> bytes:
    """Damage an .npz file: bytes, or arrays and their headers, with right checksums."""
    if r.random() < 0.3:
        return mutate_bytes(data, r)
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        arrays = dict(archive)
    members = {name: npy(array) for name, array in arrays.items()}
    name, what = r.choice(list(members)), r.random()
    if what < 0.5:
        members[name] = npy(mutate_array(arrays[name], r))
    elif what < 0.75:
        members[name] = npy(arrays[name], r)
    elif what < 0.82:
        del members[name]
    elif what < 0.9:
        members[name] = mutate_bytes(members[name], r)
    else:
        members[r.choice(("x", "extra", "é", "../a", ""))] = members[r.choice(list(members))]
    out = io.BytesIO()
    method = r.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_BZIP2))
    with zipfile.ZipFile(out, "w", method) as file:
        for member, content in members.items():
            file.writestr(f"{member}.npy", content)
    return out.getvalue()


def mutate_checkpoint(data: bytes, r: Random) -> bytes:
    """Damage a checkpoint: its arrays, or the JSON text in it."""
    if r.random() < 0.5:
        return mutate_npz(data, r)
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        arrays = dict(archive)
    arrays["state"] = np.frombuffer(mutate_json(arrays["state"].tobytes(), r), np.uint8)
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


TOML = (
    "true", "0", "-1", "1", "9" * 30, "1e400", "nan", "inf", '""', '"x"', "[]", "[[]]", "{}", '["sync", "serial"]',
    "[1, 2]", "1979-05-27", "07:32:00", '"\\u0000"', "[" * 50_000, "{a=" * 50_000, '"""', "0x10", '"mlp:8"',
    '"/dev/zero"', "[true]",
    '"' + "x" * 3000 + '"', "99999", "0.5", '"cores, at most ' + "9" * 5000 + '"', '"10gbe"', "[" + "1, " * 200 + "]",
)  # fmt: skip


def mutate_toml(data: bytes, r: Random) -> bytes:
    """Damage a TOML file: a value, a line, or bytes."""
    if r.random() < 0.25:
        return mutate_bytes(data, r)
    lines = data.decode().splitlines()
    for _ in range(r.choice((1, 1, 2))):
        place = r.randrange(len(lines))
        key, equals, _ = lines[place].partition(" = ")
        what = r.random()
        if equals and what < 0.7:
            lines[place] = f"{key} = {r.choice(TOML)}"
        elif what < 0.8:
            del lines[place]
        elif what < 0.9:
            lines.insert(place, lines[r.randrange(len(lines))])
        else:
            lines[place] = mutate_bytes(lines[place].encode(), r).decode(errors="replace")
        lines = lines or [""]
    return "\n".join(lines).encode()


CELLS = (
    "",
    "nan",
    "inf",
    "-1e400",
    "1e39",
    "1_000",
    "x",
    '"',
    '"a,b"',
    "0x1",
    " 1 ",
    "é",
    "\0",
    "9" * 400,
    "1e-320",
    "x" * 200_000,
)


def mutate_csv(data: bytes, r: Random) -> bytes:
    """Damage a table: a cell, a row, the separators, or bytes."""
    if r.random() < 0.3:
        return mutate_bytes(data, r)
    rows = [line.split(",") for line in data.decode().splitlines()]
    for _ in range(r.choice((1, 1, 3))):
        row = r.choice(rows)
        what = r.random()
        if what < 0.5:
            row[r.randrange(len(row))] = r.choice(CELLS)
        elif what < 0.6:
            row.append("1")
        elif what < 0.7 and len(row) > 1:
            row.pop()
        elif what < 0.8:
            rows.insert(r.randrange(len(rows)), r.choice(([""], ["#"], list(row))))
        elif what < 0.9:
            rows[:] = [row[:1] for row in rows]
        else:
            rows[:] = rows[: r.randrange(1, 5)]
    return "\n".join(r.choice((",", ",", ";", "\t")).join(row) for row in rows).encode()


def mutate_idx(data: bytes, r: Random) -> bytes:
    """Damage an IDX file, plain or packed: its header, or bytes."""
    packed = data[:2] == b"\x1f\x8b"
    if packed and r.random() < 0.5:
        return mutate_bytes(data, r)
    plain = bytearray(gzip.decompress(data) if packed else data)
    if r.random() < 0.7:
        place = r.randrange(0, 4 + 4 * plain[3])
        if r.random() < 0.5:
            plain[place] = r.choice((0, 1, 2, 8, 0x0D, 255))
        else:
            struct.pack_into(
                ">I", plain, 4 + 4 * r.randrange(max(1, plain[3])), r.choice((0, 1, 2**31, 2**32 - 1, 60000))
            )
    else:
        plain = bytearray(mutate_bytes(bytes(plain), r))
    return gzip.compress(bytes(plain), 1) if packed else bytes(plain)


def mutate_image(data: bytes, r: Random) -> bytes:
    """Damage an image: a part of a PNG with the right checksum, or bytes."""
    if data[:4] != b"\x89PNG" or r.random() < 0.5:
        return mutate_bytes(data, r)
    parts, place = [data[:8]], 8
    while place + 12 <= len(data):
        length = int.from_bytes(data[place : place + 4], "big")
        kind, content = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        if r.random() < 0.5:
            content = r.choice(BYTES)(content, r) if kind != b"IHDR" or r.random() < 0.5 else (
                struct.pack(">II", r.choice((0, 1, 9, 40000, 2**31 - 1)), r.choice((0, 1, 9, 40000))) + content[8:]
            )  # fmt: skip
        sum_ = zlib.crc32(kind + content).to_bytes(4, "big")
        parts.append(len(content).to_bytes(4, "big") + kind + content + sum_)
        place += 12 + length
    return b"".join(parts)


# ---- the readers


@dataclass
class Reader:
    """Files that are valid, how each of them is damaged, and what is done with them."""

    folder: Path
    """The place of the files; `read` is called after one of them has been replaced."""
    mutations: dict[str, Callable[[bytes, Random], bytes]]
    """By path in the folder."""
    read: Callable[[str], object]
    """Called with the path of the file that has been damaged."""
    weights: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        self.whole = {name: (self.folder / name).read_bytes() for name in self.mutations}

    def damage(self, r: Random) -> str:
        """Damage one of the files; return its name."""
        (name,) = r.choices(list(self.mutations), self.weights)
        data = self.whole[name]
        if r.random() < 0.03:
            data = splice(data, self.whole[r.choice(list(self.whole))], r)
        else:
            data = self.mutations[name](data, r)
        (self.folder / name).write_bytes(data)
        return name

    def mend(self, name: str) -> None:
        """Put the valid file back."""
        (self.folder / name).write_bytes(self.whole[name])


def _costs() -> Any:
    from paceline.machine import Costs
    from paceline.vmpi import Curves

    kinds = ("gradient", "factors", "part", "update", "rule", "serve", "evaluate")
    work = {kind: Curves.of({1: [[1, 5e-5], [64, 4e-4]], 4: [[1, 6e-5], [64, 5e-4]]}) for kind in kinds}
    return Costs(work=work, processor="a processor", cores=8)


def records(folder: Path) -> Reader:
    """Records: everything that report, diagnosis, trace, export, predict and --machine RUN do with them."""
    from paceline import fit, predict
    from paceline.export import points, settings, staleness
    from paceline.machine import Costs, Machine
    from paceline.record import Run, find_runs
    from paceline.report import document_of
    from paceline.trace import timeline_of

    _costs().save(folder / "costs.json")
    some: dict[str, Any] = {"epochs": 2, "batch": 40, "runs": folder / "runs", "quiet": True, "seed": 1}
    simulated = {
        **some,
        "on": "sim",
        "machine": str(folder / "costs.json"),
        "network": "10gbe:ranks-per-node=2",
    }
    for name, strategy, how in (
        ("serial", "serial", some),
        ("server", "parameter-server:masters=1", {**simulated, "ranks": 3}),
    ):
        fitted = fit("mlp:4", "iris", strategy=strategy, trace=True, **how)
        assert fitted.run is not None
        fitted.run.rename(folder / "runs" / name)
    one: dict[str, Callable[[bytes, Random], bytes]] = {
        "config.json": mutate_json, "environment.json": mutate_json, "summary.json": mutate_json,
        "epochs.jsonl": mutate_lines, "steps.npz": mutate_npz, "trace.npz": mutate_npz, "model.npz": mutate_npz,
    }  # fmt: skip
    files = {f"runs/{run}/{name}": change for run in ("serial", "server") for name, change in one.items()}
    files["runs/server/updates.npz"] = mutate_npz

    def read(damaged: str) -> None:
        left_out: list[str] = []
        runs = find_runs([folder / "runs"], left_out)
        assert len(runs) + len(left_out) == 2, "a record is missing"
        assert runs, "a sound record was left out"
        if not left_out:
            document_of(runs)  # the diagnosis is part of it
        refused: list[UsageError] = []
        run = Run(folder / Path(damaged).parent)
        for work in (
            timeline_of,
            lambda run: (list(points(run)), settings(run), staleness(run)),
            lambda run: predict(run.folder),
            lambda run: run.updates if run.folder.name == "server" else None,
            lambda run: run.simulated and Machine.of(run.simulated.get("machine")),
            lambda run: run.simulated and Costs.of(run.simulated.get("costs")),
        ):
            try:
                work(run)
            except UsageError as error:
                refused.append(error)
        for error in refused:
            raise error

    return Reader(folder, files, read)


def studies(folder: Path) -> Reader:
    """Study files: as `paceline study FILE --dry-run` reads them."""
    from paceline.data import load
    from paceline.names import refuse_user_code
    from paceline.study.file import mistakes, read

    load("mnist")  # the default: unpacking it takes memory
    file = folder / "study.toml"
    file.write_text("""\
title = "which is faster"
question = "sync or serial"
target_accuracy = 0.9
timeout = 100

[settings]
data = "iris"
model = "mlp:8"
epochs = 2
batch = [10, 20]
lr = 0.5
seed = [0, 1]

[simulation]
network = ["10gbe", "1gbe:ranks-per-node=2"]
jitter = 0.1

[[matrix]]
name = "a part"
strategy = ["serial"]

[[matrix]]
strategy = ["sync", "local-sgd:every=2"]
ranks = [2, 3]
update = "momentum"

[[published]]
strategy = "sync"
ranks = [1, 2]
seconds = [10.5, 6.25]
source = "a paper"
""")

    def check(_: str) -> None:
        with refuse_user_code(str(file), trust=False):
            study = read(file)
            for on in ("mpi", "sim"):
                cells = study.cells(on)
                if len(cells) < 40:
                    mistakes(cells)
        json.dumps(study.as_json())

    return Reader(folder, {"study.toml": mutate_toml}, check)


def machines(folder: Path) -> Reader:
    """Machine and cost files: read, and used for a simulation."""
    from paceline import fit
    from paceline.machine import Machine

    Machine.typical().save(folder / "machine.json")
    _costs().save(folder / "costs.json")

    def read(_: str) -> None:
        for machine, network in ((str(folder / "costs.json"), str(folder / "machine.json")),):
            fit(
                "mlp:4", "iris", strategy="sync:allreduce=native", ranks=2, on="sim", machine=machine, network=network,
                compute=False, epochs=1, batch=75, runs=None, quiet=True,
            )  # fmt: skip

    return Reader(folder, {"machine.json": mutate_json, "costs.json": mutate_json}, read)


def checkpoints(folder: Path) -> Reader:
    """Checkpoints: read, resumed from, and the models in them."""
    from paceline import fit, predict
    from paceline.record import checkpoint

    some: dict[str, Any] = {
        "epochs": 3, "batch": 40, "runs": folder / "runs", "quiet": True, "checkpoint_every": "epoch", "checkpoints": 3,
    }  # fmt: skip
    _costs().save(folder / "costs.json")
    simulated = {"on": "sim", "machine": str(folder / "costs.json"), "ranks": 2}
    objects = ("mlp:4,standardise=true", "iris")
    names = []
    for name, strategy, how in (
        ("serial", "serial", {"update": "momentum"}),
        ("halve", "serial", {"update": "adam", "on_divergence": "halve"}),
        ("server", "parameter-server", simulated),
        ("elastic", "elastic:every=2", simulated),
        ("psgd", "psgd:tolerance=0.001", simulated),
        ("gossip", "gossip", simulated),
        ("hogwild", "hogwild", simulated),
    ):
        fitted = fit(*objects, strategy=strategy, **some, **how)
        assert fitted.run is not None
        run = fitted.run.rename(folder / name)
        (run / "summary.json").unlink()
        (run / "model.npz").unlink()
        for path in sorted((run / "checkpoints").rglob("*.npz")):
            if path.stem == "000002":
                names.append(str(path.relative_to(folder)))
            else:  # of the end: nothing would be left to train
                path.unlink()

    def read(damaged: str) -> None:
        run, copy = folder / Path(damaged).parts[0], folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy)
        for rank in checkpoint.saved_ranks(run):
            for number in checkpoint.numbers(run, rank):
                with contextlib.suppress(UsageError):
                    checkpoint.read(run, rank, number)
        fit(*objects, resume=copy, quiet=True)
        predict(copy)

    return Reader(folder, dict.fromkeys(names, mutate_checkpoint), read)


def tables(folder: Path) -> Reader:
    """Tables (.csv)."""
    from paceline.data import load

    r = Random(0)
    rows = [f"{r.random():.3f},{r.gauss(0, 9):.2f},{r.randrange(3)},{r.choice('abc')}" for _ in range(60)]
    (folder / "a.csv").write_text("\n".join(["width,height,count,kind", *rows]) + "\n")
    (folder / "b.csv").write_text("\n".join(row.rpartition(",")[0] for row in rows))
    return Reader(
        folder,
        {"a.csv": mutate_csv, "b.csv": mutate_csv},
        lambda _: [load(folder / name) for name in ("a.csv", "b.csv")],
    )


def idx_files(folder: Path) -> Reader:
    """Folders of IDX files, plain and packed."""
    from paceline.data import load

    r = np.random.default_rng(0)
    images, labels = r.integers(0, 256, (60, 5, 4)).astype(">u1"), (np.arange(60) % 3).astype(">u1")
    wide = r.normal(size=(20, 6)).astype(">f4")
    names = {
        "a/train-images-idx3-ubyte": images, "a/train-labels-idx1-ubyte": labels,
        "b/train-images-idx2-ubyte.gz": wide, "b/train-labels-idx1-ubyte.gz": labels[:20],
    }  # fmt: skip
    kinds = {"u1": 0x08, "f4": 0x0D}
    for name, array in names.items():
        (folder / name).parent.mkdir(exist_ok=True)
        data = (
            struct.pack(f">BBBB{array.ndim}I", 0, 0, kinds[array.dtype.str[1:]], array.ndim, *array.shape)
            + array.tobytes()
        )
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return Reader(
        folder, dict.fromkeys(names, mutate_idx), lambda _: [load(folder / name) for name in ("a", "b")]
    )


def archives(folder: Path) -> Reader:
    """Data in .npz files."""
    from paceline.data import load

    r = np.random.default_rng(0)
    np.savez(folder / "a.npz", x=r.normal(size=(40, 3)), y=np.arange(40) % 4)
    np.savez_compressed(
        folder / "b.npz",
        train_images=r.integers(0, 256, (30, 4, 4), np.uint8), train_labels=np.array(["a", "b", "c"] * 10),
        test_images=r.integers(0, 256, (6, 4, 4), np.uint8), test_labels=np.array(["a", "b", "c"] * 2),
    )  # fmt: skip
    names = ("a.npz", "b.npz")
    return Reader(folder, dict.fromkeys(names, mutate_npz), lambda _: [load(folder / name) for name in names])


def images(folder: Path) -> Reader:
    """Folders of images in several formats."""
    from PIL import Image

    from paceline.data import load

    r = np.random.default_rng(0)
    suffixes = (".png", ".jpg", ".gif", ".bmp", ".tif", ".webp", ".ppm")
    names = []
    for (place, suffix), kind in itertools.product(enumerate(suffixes), ("cat", "dog")):
        names.append(f"photos/{kind}/{place}{suffix}")
        (folder / names[-1]).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(r.integers(0, 256, (9, 8, 3)).astype(np.uint8)).save(folder / names[-1])

    def read(_: str) -> None:
        load(folder / "photos")
        load(str(folder / "photos") + ":size=6x5,color=false")

    return Reader(folder, dict.fromkeys(names, mutate_image), read)


READERS: dict[str, Callable[[Path], Reader]] = {
    "records": records, "studies": studies, "machines": machines, "checkpoints": checkpoints,
    "csv": tables, "idx": idx_files, "npz": archives,
    "images": images,
}  # fmt: skip


# ---- running the cases


@dataclass(frozen=True)
class Finding:
    """A case that did not end as it should."""

    reader: str
    number: int
    file: str
    what: str
    trace: str = ""

    def __str__(self) -> str:
        return f"{self.reader} case {self.number} ({self.file}): {self.what}"


def memory() -> int:
    """Return the most memory that this process has used since `forget_memory`, in bytes."""
    with Path("/proc/self/status").open() as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) << 10


def forget_memory() -> None:
    """Begin to measure the most memory in use from now on."""
    Path("/proc/self/clear_refs").write_text("5")


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@contextlib.contextmanager
def limited_time(seconds: float, hang: float) -> Iterator[None]:
    """Raise a TooLongError after `seconds` of computing, or after `hang` seconds: a busy machine is no finding."""

    def stop(*_: object) -> None:
        raise TooLongError

    timers = {
        signal.SIGPROF: (signal.ITIMER_PROF, seconds),
        signal.SIGALRM: (signal.ITIMER_REAL, max(hang, seconds)),
    }
    before = {number: signal.signal(number, stop) for number in timers}
    for timer, limit in timers.values():
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


@contextlib.contextmanager
def limited_space(more: int) -> Iterator[None]:
    """Let allocations fail beyond this much more address space."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def try_case(name: str, reader: Reader, number: int, seed: int) -> tuple[str, Finding | None]:
    """Run one case; return its outcome ("read", "refused" or "finding")."""
    r = Random(f"{seed}/{name}/{number}")
    file = reader.damage(r)

    def found(what: str, trace: str = "") -> tuple[str, Finding]:
        return "finding", Finding(name, number, file, what, trace)

    outcome: tuple[str, Finding | None] = ("read", None)
    forget_memory()
    before = memory()
    try:
        with warnings.catch_warnings(), limited_time(LIMIT, HANG):
            warnings.simplefilter("error")
            reader.read(file)
    except UsageError as error:
        message = str(error)
        outcome = ("refused", None)
        lines = getattr(error, "lines", [message])  # a study lists all its mistakes, one in each line
        if any("\n" in line for line in lines):
            outcome = found(f"a message of several lines: {message!r:.300}")
        elif "not enough memory" in message:
            outcome = found(f"it needed too much memory: {message:.300}")
    except TooLongError:
        words = f"it computed for more than {LIMIT:g} s, or hung for {HANG:g} s"
        outcome = found(words, traceback.format_exc())
    except BaseException as error:
        outcome = found(f"{type(error).__name__}: {error!s:.300}", traceback.format_exc())
    used = memory() - before
    if outcome[0] != "finding" and used > ROOM + TIMES * size_of(reader.folder / file):
        outcome = found(f"it needed {used >> 20} MB")
    reader.mend(file)
    return outcome


def fuzz(
    name: str,
    cases: Collection[int],
    *,
    seed: int = 0,
    show: Callable[[Finding], None] | None = None,
    seconds: float = float("inf"),
) -> Counter[str]:
    """Run some cases of a reader, and start none after `seconds`; return how often each outcome occurred."""
    late = time.monotonic() + seconds
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place, silence():
        os.environ["PACELINE_CACHE"] = str(Path(place) / "cache")
        (Path(place) / name).mkdir()
        registry._entry_points = functools.cache(registry._entry_points)  # they do not change meanwhile
        reader = READERS[name](Path(place) / name)
        reader.read(next(iter(reader.mutations)))  # whole files can be read; and everything is imported
        with limited_space(SPACE):
            for number in itertools.takewhile(lambda _: time.monotonic() < late, cases):
                outcome, finding = try_case(name, reader, number, seed)
                outcomes[outcome] += 1
                if finding is not None and show is not None:
                    show(finding)
    return outcomes


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Drop what readers log; put the environment back."""
    cache = os.environ.get("PACELINE_CACHE")
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        os.environ.pop("PACELINE_CACHE", None)
        if cache is not None:
            os.environ["PACELINE_CACHE"] = cache


def main() -> int:
    """Run the cases; print the figures, and every kind of finding once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "readers", nargs="*", metavar="READER", help=f"which: {', '.join(READERS)} (default: all)"
    )
    parser.add_argument(
        "--cases", type=int, default=10_000, metavar="N", help="cases of each reader (default: 10000)"
    )
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other cases (default: 0)")
    parser.add_argument(
        "--only", type=int, metavar="NUMBER", help="run only this case, and print its traceback"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=float("inf"),
        help="start no case of a reader after this many seconds",
    )
    args = parser.parse_args()
    if unknown := [name for name in args.readers if name not in READERS]:
        parser.error(f"unknown reader {unknown[0]!r}; choose one of {', '.join(READERS)}")
    total: Counter[str] = Counter()
    for name in args.readers or READERS:
        seen: Counter[str] = Counter()

        def show(finding: Finding, seen: Counter[str] = seen) -> None:
            lines = [line for line in finding.trace.splitlines() if line.startswith('  File "')]
            key = f"{finding.what[:30]} {lines[-1] if lines else ''}"
            seen[key] += 1
            if args.only is not None:
                print(finding, finding.trace, sep="\n", flush=True)
            elif seen[key] == 1:
                where = f" at {lines[-1].strip()}" if lines else ""
                print(f"  {finding}{where}", flush=True)

        start = time.monotonic()
        cases = range(args.cases) if args.only is None else range(args.only, args.only + 1)
        outcomes = fuzz(name, cases, seed=args.seed, show=show, seconds=args.seconds)
        total += outcomes
        print(
            f"{name}: {outcomes.total():,} cases, {outcomes['read']:,} read, {outcomes['refused']:,} refused, "
            f"{outcomes['finding']:,} findings ({len(seen)} kinds), seed {args.seed}, {time.monotonic() - start:.0f} s",
            flush=True,
        )
    print(f"all: {total.total():,} cases, {total['finding']:,} findings")
    return int(total["finding"] > 0)


if __name__ == "__main__":
    sys.exit(main())
