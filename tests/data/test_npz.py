from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from paceline.data import ArraySplit, chunks, load, load_labels
from paceline.errors import UsageError

INPUTS = np.arange(80, dtype=np.float64).reshape(40, 2)
LABELS = np.arange(40) % 4
HINT = "; labels=numbers takes whole numbers as numbers, labels=classes as names of classes"


def sizes(data: object) -> list[int]:
    return [len(getattr(data, part)) for part in ("train", "validation", "test")]


@pytest.mark.parametrize(
    "names", [("inputs", "labels"), ("X", "y"), ("images", "labels"), ("data", "target")]
)
def test_one_pair_is_divided(tmp_path: Path, names: tuple[str, str]) -> None:
    file = tmp_path / "mine.npz"
    np.savez(file, **dict(zip(names, (INPUTS, LABELS), strict=True)))
    data = load(str(file))
    assert (data.name, data.shape, data.classes, sizes(data)) == ("mine", (2,), 4, [32, 4, 4])
    seen = [
        inputs[:, 0].copy() for part in (data.train, data.validation, data.test) for inputs, _ in chunks(part)
    ]
    assert sorted(np.concatenate(seen).tolist()) == INPUTS[:, 0].tolist()
    for part in (data.train, data.validation, data.test):
        [(inputs, labels)] = list(chunks(part))
        assert (inputs[:, 0] // 2 % 4).tolist() == labels.tolist()
        assert set(np.bincount(labels)) == {len(part) // 4}


def test_parts_of_the_file_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "keras.npz"
    images = INPUTS.astype(np.uint8)
    np.savez_compressed(file, x_train=images, y_train=LABELS, x_test=images[:9], y_test=LABELS[:9])
    data = load(f"{file}:validation=8")
    assert sizes(data) == [32, 8, 9]
    assert isinstance(data.test, ArraySplit)
    assert data.test.inputs.dtype == np.uint8
    np.savez(file, train_inputs=INPUTS, train_labels=LABELS, val_inputs=INPUTS[:5], val_labels=LABELS[:5])
    assert sizes(load(f"{file}:test=0")) == [40, 5, 0]


def test_names_of_arrays_names_of_classes_and_real_targets(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    np.savez(
        file, pixels=INPUTS.astype(np.int16), kind=np.array(["dog", "cat"] * 20), weight=INPUTS[:, :1] / 7
    )
    data = load(f"{file}:inputs=pixels,labels=kind,test=0,validation=0")
    assert (data.classes, data.class_names) == (2, ("cat", "dog"))
    assert next(chunks(data.train))[1][:4].tolist() == [1, 0, 1, 0]
    real = load(f"{file}:inputs=pixels,labels=weight")
    assert (real.classes, real.label_shape, sizes(real)) == (0, (1,), [32, 4, 4])


def test_classes_or_values(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    np.savez(file, x=INPUTS, y=LABELS * 3 + 1, rounded=LABELS * 1.0)
    values = load(f"{file}:target=values,test=0,validation=0")
    assert (values.target, next(chunks(values.train))[1].tolist()) == ("numbers", (LABELS * 3.0 + 1).tolist())
    classes = load(f"{file}:target=classes,test=0,validation=0")
    assert (classes.classes, classes.class_names) == (4, ("1", "4", "7", "10"))
    assert next(chunks(classes.train))[1].tolist() == LABELS.tolist()
    for name, other in (("numbers", values), ("classes", classes)):
        assert load(f"{file}:labels={name},test=0,validation=0").target == other.target
    with pytest.raises(UsageError, match=r"target=values and labels=classes contradict each other"):
        load(f"{file}:labels=classes,target=values")
    with pytest.raises(UsageError, match=r"unknown labels of .* 'reals'; choose one of classes, numbers"):
        load(f"{file}:label=y,labels=reals")
    for former in (f"{file}:labels=rounded", f"npz:{file},labels=rounded"):
        asked = load_labels(
            former, labels="classes"
        )  # the array's name in its former place, and the kind of labels
        assert (asked.target, asked.classes, asked.remarks) == ("classes", 4, ())
    assumed = load(f"{file}:inputs=x,labels=rounded")
    assert (
        assumed.remarks == load(f"{file}:inputs=x,labels=rounded").remarks
    )  # the second one is from the cache
    assert assumed.remarks[0].endswith("taken as numbers; labels=classes makes them classes")
    assert load(f"{file}:inputs=x,label=rounded,labels=classes").remarks == ()


def test_it_is_read_again_when_it_changes(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "mine.npz"
    np.savez(file, x=INPUTS, y=LABELS)
    first = load(file)
    assert isinstance(load(file).train.split.inputs, np.ndarray)  # type: ignore[attr-defined]
    np.savez(file, x=INPUTS + 1, y=LABELS)
    os.utime(file, ns=(1, 1))
    second = load(file)
    assert next(chunks(second.train))[0][0, 0] == next(chunks(first.train))[0][0, 0] + 1
    assert len([entry for entry in cache.iterdir() if entry.is_dir()]) == 1


def wrong(tmp_path: Path, **arrays: object) -> str:
    file = tmp_path / "mine.npz"
    np.savez(file, **arrays)  # type: ignore[arg-type]
    with pytest.raises(UsageError) as error:
        load(file)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_can_be_wrong_inside(tmp_path: Path) -> None:
    nan = INPUTS.copy()
    nan[3, 1] = np.inf
    assert wrong(tmp_path, a=INPUTS, b=LABELS).endswith("(nor x and y, x_train and y_train …); it has a, b")
    assert wrong(tmp_path, x=INPUTS, y=LABELS[1:]).endswith("got 40 samples, 39 labels")
    assert wrong(tmp_path, x=nan, y=LABELS).endswith("features must be finite; sample 3 has inf in feature 1")
    assert wrong(tmp_path, x=INPUTS, y=LABELS - 1).endswith(
        f"labels must be from 0 to 2; sample 0 has -1{HINT}"
    )
    assert wrong(tmp_path, x=INPUTS, y=LABELS * 2).endswith(f"class 1 of the classes 0 to 6 has none{HINT}")
    assert wrong(tmp_path, x=INPUTS[:0], y=LABELS[:0]).endswith("no samples; the inputs have shape (0, 2)")
    assert wrong(tmp_path, x=INPUTS + 1j, y=LABELS).endswith("features must be real numbers; got complex128")
    assert wrong(tmp_path, x=INPUTS, y=np.eye(40, dtype=int) - 1).endswith(
        f"labels must be from 0 to 0; sample 0 has -1 at 1{HINT}"
    )
    assert wrong(tmp_path, x=INPUTS, y=np.full(40, np.nan)).endswith(
        "labels must be finite; sample 0 has nan"
    )
    assert "holds Python objects, which are not read" in wrong(
        tmp_path, x=INPUTS, y=np.array([{}] * 40, object)
    )
    more = {"x_test": INPUTS, "y_test": LABELS + 1}
    assert wrong(tmp_path, x_train=INPUTS, y_train=LABELS, **more).endswith(
        f"from 0 to 3; sample 3 has 4{HINT}"
    )
    more = {"x_test": INPUTS[:, :1], "y_test": LABELS}
    assert wrong(tmp_path, x_train=INPUTS, y_train=LABELS, **more).endswith("train has (2,), test (1,)")


@pytest.mark.parametrize("single", [np.array(0.5), np.array(np.nan), np.array(1), np.array("a")])
@pytest.mark.parametrize("kind", ["", ":labels=classes", ":labels=numbers"])
def test_single_values_are_no_samples(tmp_path: Path, single: np.ndarray, kind: str) -> None:
    good = {"x_train": INPUTS, "y_train": LABELS, "x_test": INPUTS, "y_test": LABELS}
    for name in good:
        file = tmp_path / f"{name}.npz"
        np.savez(file, **{**good, name: single})
        what, part = {"x": "inputs", "y": "labels"}[name[0]], name[2:]
        with pytest.raises(
            UsageError, match=rf"^{name}.npz: the {what} of {part} must be an array .* single value$"
        ):
            load(f"{file}{kind}")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"some text", b"\x93NUMPY"])
def test_what_is_no_npz(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "mine.npz"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=r"not an .npz file"):
        load(file)


def test_a_truncated_npz(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    np.savez_compressed(file, x=INPUTS, y=LABELS)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match=r"not an .npz file, or truncated"):
        load(file)


def test_a_single_array(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    with file.open("wb") as out:
        np.save(out, INPUTS)
    with pytest.raises(
        UsageError, match=r"mine.npz cannot be read: it is a single .npy array, not an .npz file"
    ):
        load(file)


def test_it_needs_room_for_both(tmp_path: Path) -> None:
    file = tmp_path / "mine.npz"
    np.savez(file, x=INPUTS, y=LABELS)
    for options in ("validation=0.5,test=0.5", "validation=-1", "test=40"):
        with pytest.raises(UsageError, match="must leave samples to train"):
            load(f"{file}:{options}")
    with pytest.raises(UsageError, match="seed must be at least 0; got -1"):
        load(f"{file}:seed=-1")
