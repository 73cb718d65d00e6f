from __future__ import annotations

import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from paceline.data import ArraySplit, chunks, load
from paceline.data.idx import read
from paceline.errors import UsageError

CODES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}


def idx(array: np.ndarray) -> bytes:
    kind = array.dtype.str[1:]
    head = bytes([0, 0, CODES[kind], array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(f">{kind}").tobytes()


def write(folder: Path, parts: dict[str, int], zipped: bool = False) -> Path:
    """Images of 2 x 3 whose every pixel is the number of the sample; labels 0, 1, 2, 0 …"""
    folder.mkdir(exist_ok=True)
    for part, count in parts.items():
        images = np.broadcast_to(np.arange(count, dtype=np.uint8)[:, None, None], (count, 2, 3))
        labels = (np.arange(count) % 3).astype(np.uint8)
        for name, array in (("images-idx3-ubyte", images), ("labels-idx1-ubyte", labels)):
            if zipped:
                (folder / f"{part}-{name}.gz").write_bytes(gzip.compress(idx(array)))
            else:
                (folder / f"{part}-{name}").write_bytes(idx(array))
    return folder


@pytest.mark.parametrize("zipped", [False, True])
def test_a_folder_with_train_and_test(tmp_path: Path, zipped: bool) -> None:
    folder = write(tmp_path / "mine", {"train": 60, "t10k": 9}, zipped)
    data = load(str(folder))
    assert (data.name, data.shape, data.classes) == ("mine", (2, 3), 3)
    assert [len(split) for split in (data.train, data.validation, data.test)] == [50, 10, 9]
    [(inputs, labels)] = list(chunks(data.validation))
    np.testing.assert_allclose(inputs[:, 1, 2] * 255, np.arange(50, 60), rtol=1e-6)
    assert labels.tolist() == [n % 3 for n in range(50, 60)]
    assert isinstance(data.train, ArraySplit)
    assert data.train.inputs.dtype == np.uint8


def test_plain_files_are_mapped_where_they_lie(tmp_path: Path, cache: Path) -> None:
    folder = write(tmp_path / "mine", {"train": 60, "t10k": 9})
    data = load(folder)
    assert not cache.exists()
    assert isinstance(data.train, ArraySplit)
    assert str(folder / "train-images-idx3-ubyte") in Path("/proc/self/maps").read_text()


def test_other_parts_and_amounts(tmp_path: Path) -> None:
    alone = write(tmp_path / "alone", {"train": 60})
    counts = [
        [len(split) for split in (data.train, data.validation, data.test)]
        for data in (load(alone), load(f"{alone}:validation=7,test=0.5"), load(alone, validation=0, test=0))
    ]
    assert counts == [[44, 10, 6], [23, 7, 30], [60, 0, 0]]
    three = write(tmp_path / "three", {"train": 60, "validation": 6, "test": 3})
    data = load(three)
    assert [len(split) for split in (data.train, data.validation, data.test)] == [60, 6, 3]


@pytest.mark.parametrize("kind", sorted(CODES))
@pytest.mark.parametrize("end", ["", ".gz"])
def test_every_type_of_the_format(tmp_path: Path, kind: str, end: str) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(kind)
    file = tmp_path / f"array{end}"
    file.write_bytes(gzip.compress(idx(array)) if end else idx(array))
    found = read(file)
    assert found.dtype == array.dtype
    assert found.tolist() == array.tolist()


def test_fashion_mnist_is_a_folder(tmp_path: Path) -> None:
    folder = write(tmp_path / "mine", {"train": 60, "t10k": 9}, zipped=True)
    with pytest.raises(UsageError, match="holds 3 classes of"):
        load(f"fashion-mnist:path={folder},validation=0")
    with pytest.raises(
        UsageError, match="fashion-mnist: no folder /nowhere; apt install dataset-fashion-mnist"
    ):
        load("fashion-mnist:path=/nowhere")
    rng = np.random.default_rng(0)
    for part, count in (("train", 40), ("t10k", 20)):
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(
            gzip.compress(idx(rng.integers(0, 255, (count, 28, 28)).astype(np.uint8)))
        )
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(
            gzip.compress(idx((np.arange(count) % 10).astype(np.uint8)))
        )
    data = load(f"fashion-mnist:path={folder},validation=10")
    assert (data.name, data.shape, len(data.train), len(data.test)) == ("fashion-mnist", (28, 28), 30, 20)
    assert data.class_names[9] == "ankle boot"


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def cut_image(folder: Path) -> None:
    os.truncate(folder / IMAGES, 300)


def longer_image(folder: Path) -> None:
    with (folder / IMAGES).open("ab") as file:
        file.write(b"more")


def cut_header(folder: Path) -> None:
    os.truncate(folder / IMAGES, 9)


def empty(folder: Path) -> None:
    os.truncate(folder / LABELS, 0)


def wrong_magic(folder: Path) -> None:
    (folder / IMAGES).write_bytes(b"\x89PNG" + bytes(100))


def no_images(folder: Path) -> None:
    (folder / IMAGES).unlink()


def no_labels(folder: Path) -> None:
    (folder / "t10k-labels-idx1-ubyte").unlink()


def fewer_labels(folder: Path) -> None:
    (folder / LABELS).write_bytes(idx(np.zeros(59, np.uint8)))


def label_too_large(folder: Path) -> None:
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(np.array([0, 1, 2, 3, 0, 1, 2, 0, 1], np.uint8)))


def empty_class(folder: Path) -> None:
    (folder / LABELS).write_bytes(idx(np.array([0, 2] * 30, np.uint8)))


def other_size(folder: Path) -> None:
    (folder / "t10k-images-idx3-ubyte").write_bytes(idx(np.zeros((9, 3, 3), np.uint8)))


def nothing_inside(folder: Path) -> None:
    (folder / IMAGES).write_bytes(idx(np.zeros((0, 2, 3), np.uint8)))


def not_a_number(folder: Path) -> None:
    images = np.zeros((60, 2, 3), np.float32)
    images[17, 1, 0] = np.nan
    (folder / IMAGES).write_bytes(idx(images))


def two_of_them(folder: Path) -> None:
    (folder / "other-train-images-idx3-ubyte").write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_image, r"ubyte: truncated: its header promises 360 bytes of data, the file has 284 bytes"),
        (longer_image, r"ubyte: damaged: its header promises 360 bytes of data, the file has 364 bytes"),
        (cut_header, r"ubyte: truncated: the file ends inside its header"),
        (empty, r"train-labels-idx1-ubyte: the file is empty"),
        (
            wrong_magic,
            r"ubyte: not an IDX file: its magic number is 0x89504e47, not 0x00000801 or 0x00000803",
        ),
        (no_images, r"no training images; expected a file like train-images-idx3-ubyte or .gz"),
        (no_labels, r"t10k-images-idx3-ubyte has no labels beside it"),
        (fewer_labels, r"as many labels as samples are needed; got 60 samples, 59 labels"),
        (label_too_large, r"t10k-labels-idx1-ubyte: labels must be from 0 to 2; sample 3 has 3"),
        (empty_class, r"every class needs a sample; class 1 of the classes 0 to 2 has none"),
        (other_size, r"images must have one size; train has \(2, 3\), test \(3, 3\)"),
        (nothing_inside, r"there are no samples"),
        (not_a_number, r"features must be finite; sample 17 has nan in feature 1, 0"),
        (two_of_them, r"one file of train images is needed; got other-train-images-idx3-ubyte, train-images"),
    ],
)
def test_what_can_be_wrong(tmp_path: Path, damage: Callable[[Path], None], message: str) -> None:
    folder = write(tmp_path / "mine", {"train": 60, "t10k": 9})
    damage(folder)
    with pytest.raises(UsageError, match=message) as error:
        load(folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(idx(np.zeros((60, 2, 3), np.uint8)))[:-12], "truncated or damaged .gz file"),
        (b"plain text, not gzip", "truncated or damaged .gz file"),
        (
            gzip.compress(idx(np.zeros((60, 2, 3), np.uint8))[:-7]),
            "promises 360 bytes of data, the file has 353 bytes",
        ),
        (
            gzip.compress(idx(np.zeros((60, 2, 3), np.uint8)) + b"more"),
            "damaged: its header promises 360 bytes",
        ),
        (gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12), "the file has another amount"),
        (gzip.compress(b""), "the file is empty"),
    ],
    ids=["cut off", "no gzip", "too few", "too many", "other amount", "empty"],
)
def test_what_can_be_wrong_with_a_packed_file(tmp_path: Path, content: bytes, message: str) -> None:
    folder = write(tmp_path / "mine", {"train": 60, "t10k": 9}, zipped=True)
    (folder / f"{IMAGES}.gz").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        load(folder)
