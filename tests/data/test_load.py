from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paceline import names as registry
from paceline.data import chunks, load
from paceline.errors import UsageError
from paceline.names import options_of, parse


def test_a_function_of_the_users() -> None:
    data = load("tests.data.own_data:pair:samples=30,shift=1.5")
    assert (data.name, data.shape, len(data.train)) == (
        "tests.data.own_data:pair:samples=30,shift=1.5",
        (3,),
        24,
    )
    assert next(chunks(data.train))[0][0].tolist() == [1.5] * 3
    assert load("tests.data.own_data:ready").name == "arrays"
    assert load("tests.data.own_data:Mapped:samples=50").shape == (4,)
    assert len(load("tests.data.own_data:Mapped:samples=50").train) == 40


def test_options_in_the_text_or_as_arguments() -> None:
    assert len(load("mnist", validation=100).train) == len(load("mnist:validation=100").train) == 59_900
    assert len(load("iris:seed=1", test=0.5).test) == 75


def test_a_name_is_taken_before_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "iris").mkdir()
    assert load("iris").name == "iris"
    with pytest.raises(UsageError, match="iris: neither IDX files nor sub-folders of images"):
        load("./iris")


def test_paths_with_colons_commas_and_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "a:b,c=d.csv"
    file.write_text("1,2,x\n" * 10 + "3,4,y\n" * 10)
    for text in (str(file), f"{file}:seed=1", "~/a:b,c=d.csv", "~/a:b,c=d.csv:label=3"):
        assert load(text).shape == (2,)
    assert load(
        f"csv:path={tmp_path / 'plain.csv'}" if file.rename(tmp_path / "plain.csv") else ""
    ).shape == (2,)


def test_a_loader_takes_a_path_before_its_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("houses.csv", "a,b=c.csv"):
        (tmp_path / name).write_text("price,rooms\n" + "".join(f"{n / 8},{n % 5}\n" for n in range(20)))
        spellings = (f"csv:{name},label=price,test=0", f"csv:{tmp_path / name},label=price,test=0")
        for text in (*spellings, f"csv:~/{name},label=price,test=0", f"{name}:label=price,test=0"):
            data = load(text)
            assert (data.target, data.shape, len(data.train)) == ("numbers", (1,), 18)
    assert load("csv:path=houses.csv,label=price,test=0").target == "numbers"
    assert load("csv:houses.csv").shape == (1,)
    np.savez(tmp_path / "arrays.npz", x=np.zeros((20, 3)), y=np.arange(20) % 2)
    assert len(load("npz:arrays.npz,validation=0,test=5").train) == 15


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("houses.csv,label=price", "options follow a colon; write houses.csv:label=price"),
        ("csv:houses.csv,price", "csv takes option=value; got 'price'"),
        ("csv:house.csv,label=price", "no such file: house.csv"),
        ("csv:houses.csv,lable=price", "unknown option of csv 'lable'; choose one of path, label, labels"),
        ("csv:label=price", "csv needs path; write csv:path="),
    ],
)
def test_paths_and_options_that_are_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "houses.csv").write_text("price,rooms\n1.5,2\n2.5,3\n")
    with pytest.raises(UsageError) as error:
        load(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "mnst",
            "unknown data set 'mnst'; choose one of csv, digits, fashion-mnist, idx, images, iris, mnist",
        ),
        ("mnist:valid=1", "unknown option of mnist 'valid'; choose one of validation"),
        ("iris:test=much", "test of iris must be a number; got 'much'"),
        ("nowhere.csv", "no such file or folder: nowhere.csv"),
        ("data/nowhere", "no such file or folder: data/nowhere"),
        ("data/nowhere:size=3", "no such file or folder: data/nowhere"),
        ("~/nowhere", "no such file or folder: ~/nowhere"),
        ("csv:path=nowhere.csv", "no such file: nowhere.csv"),
        ("npz:path=nowhere.npz", "no such file: nowhere.npz"),
        ("idx:path=nowhere", "no such folder: nowhere"),
        ("images:path=nowhere", "no such folder: nowhere"),
        ("csv", "csv needs path; write csv:path=…"),
        (
            "no_module:function",
            "unknown data set 'no_module:function': neither a name that paceline knows nor a module",
        ),
        ("tests.data.own_data:nothing", "module 'tests.data.own_data' has no attribute 'nothing'"),
        ("tests.data.own_data:NUMBER", "'tests.data.own_data:NUMBER' is not a class or a function"),
        (
            "tests.data.own_data:pair:size=3",
            "unknown option of tests.data.own_data:pair 'size'; choose one of",
        ),
    ],
)
def test_what_can_be_wrong(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        load(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_other_mistakes(tmp_path: Path) -> None:
    file = tmp_path / "table.xlsx"
    file.write_text("")
    with pytest.raises(
        UsageError, match=r"unknown kind of data file 'table.xlsx'; choose one of .npz, .csv, .tsv, a"
    ):
        load(file)
    with pytest.raises(UsageError, match=r"no such file or folder: .*gone.npz"):
        load(tmp_path / "gone.npz")
    with pytest.raises(
        UsageError, match="unknown option of iris 'shuffle'; choose one of validation, test, seed"
    ):
        load("iris", shuffle=True)
    (tmp_path / "a.csv").write_text("1,x\n2,y\n")
    with pytest.raises(UsageError, match="unknown option of csv 'lable'; choose one of path, label, labels"):
        load(f"{tmp_path / 'a.csv'}:lable=1")


def test_every_data_set_lists_its_options() -> None:
    for name in registry.names("data"):
        assert options_of(parse_target(name), "data"), name


def parse_target(name: str) -> object:
    return registry.find("data", name)


def test_synthetic_is_made_from_its_seed() -> None:
    text = "synthetic:samples=300,features=2x3,classes=5,noise=0.1"
    first, again, other = load(text), load(text), load(f"{text},seed=1")
    assert (first.shape, first.classes) == ((2, 3), 5)
    assert [len(split) for split in (first.train, first.validation, first.test)] == [240, 30, 30]
    samples = [next(chunks(data.train))[0].copy() for data in (first, again, other)]
    assert samples[0].tolist() == samples[1].tolist() != samples[2].tolist()
    # little noise: every test sample is nearest to its own class's mean
    [(inputs, labels)] = list(chunks(first.train))
    centres = np.stack([inputs[labels == c].mean(axis=0) for c in range(5)])
    [(inputs, labels)] = list(chunks(first.test))
    distance = ((inputs[:, None] - centres) ** 2).sum(axis=(2, 3))
    assert distance.argmin(axis=1).tolist() == labels.tolist()


def test_synthetic_targets() -> None:
    data = load("synthetic:classes=0,features=3,noise=0,validation=0,test=0")
    [(inputs, targets)] = list(chunks(data.train, size=10_000, dtype=np.float64))
    assert data.classes == 0
    residual = np.linalg.lstsq(inputs, targets, rcond=None)[1]
    assert residual[0] < 1e-6


@pytest.mark.parametrize(
    "options",
    [
        *("features=0", "features=3x", "features=-1", "classes=-1", "samples=3"),
        *("noise=-1", "noise=nan", "noise=inf", "noise=1e300", "validation=nan", "test=inf"),
    ],
)
def test_synthetic_mistakes(options: str) -> None:
    with pytest.raises(UsageError, match="synthetic"):
        load(f"synthetic:{options}")


def test_specs_are_what_load_reads() -> None:
    assert str(parse("data", "synthetic:seed=3,samples=20")) == "synthetic:seed=3,samples=20"
