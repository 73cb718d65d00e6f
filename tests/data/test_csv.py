from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paceline.data import Dataset, chunks, load
from paceline.errors import UsageError


def table(tmp_path: Path, text: str | bytes, options: str = "") -> Dataset:
    file = tmp_path / "mine.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(f"{file}:validation=0,test=0{options}")


def content(data: Dataset) -> tuple[list[list[float]], list[float]]:
    [(inputs, labels)] = list(chunks(data.train, dtype=np.float64))
    return inputs.tolist(), labels.tolist()


FLOWERS = "length,width,species\n1,2.5,setosa\n3,4.5,virginica\n5,6.5,setosa\n"
WANTED = ([[1, 2.5], [3, 4.5], [5, 6.5]], [0, 1, 0])


@pytest.mark.parametrize(
    "text",
    [
        FLOWERS,
        FLOWERS.split("\n", 1)[1],
        FLOWERS.replace(",", ";"),
        FLOWERS.replace(",", "\t"),
        FLOWERS.replace("\n", "\r\n"),
        "\ufeff" + FLOWERS + "\n\n",
        FLOWERS.replace(",", " , ").replace("setosa", '"setosa"').replace(' "', '"'),
        FLOWERS.rstrip("\n"),
    ],
)
def test_the_same_table_in_every_spelling(tmp_path: Path, text: str) -> None:
    data = table(tmp_path, text)
    assert content(data) == WANTED
    assert (data.name, data.shape, data.classes, data.class_names) == (
        "mine",
        (2,),
        2,
        ("setosa", "virginica"),
    )


def test_the_label_may_be_any_column(tmp_path: Path) -> None:
    moved = "species,length,width\nsetosa,1,2.5\nvirginica,3,4.5\nsetosa,5,6.5\n"
    assert content(table(tmp_path, moved, ",label=species")) == WANTED
    assert content(table(tmp_path, moved, ",label=1")) == WANTED
    assert content(table(tmp_path, moved.split("\n", 1)[1], ",label=1")) == WANTED


def test_classes_or_values(tmp_path: Path) -> None:
    grades = "a,grade\n0.5,10\n1.5,9\n2.5,10\n3.5,9\n"
    data = table(tmp_path, grades)
    assert (data.classes, content(data)[1], data.class_names) == (2, [1, 0, 1, 0], ("9", "10"))
    for option in (",target=values", ",labels=numbers"):
        data = table(tmp_path, grades, option)
        assert (data.target, content(data)[1], data.remarks) == ("numbers", [10, 9, 10, 9], ())
    data = table(tmp_path, grades.replace("9", "9.25"))
    assert (data.target, content(data)[1], data.remarks) == ("numbers", [10, 9.25, 10, 9.25], ())
    for option in (",target=classes", ",labels=classes"):
        data = table(tmp_path, grades.replace("9", "9.25"), option)
        assert (data.classes, content(data)[1], data.class_names) == (2, [1, 0, 1, 0], ("9.25", "10"))
        assert data.remarks == ()


@pytest.mark.parametrize(
    ("labels", "taken", "count"),
    [
        ([n % 2 for n in range(10)], "classes", 2),
        ([n % 3 + 1 for n in range(10)], "classes", 3),
        ([100 * (n % 20) for n in range(40)], "classes", 20),
        ([n % 30 for n in range(60)], "classes", 30),
        ([n % 30 + 1 for n in range(60)], "numbers", 30),
        ([n % 20 for n in range(39)], "numbers", 20),
        ([1_000 * n for n in range(50)], "numbers", 50),
        ([-n for n in range(5)], "numbers", 5),
    ],
)
def test_whole_numbers_are_taken_for_one_of_them_and_the_data_say_which(
    tmp_path: Path, labels: list[int], taken: str, count: int
) -> None:
    text = "a,b\n" + "".join(f"{n},{label}\n" for n, label in enumerate(labels))
    other = "numbers" if taken == "classes" else "classes"
    for data in (table(tmp_path, text), table(tmp_path, text)):  # the second time from the cache
        assert (data.target, data.classes) == (taken, count if taken == "classes" else 0)
        assert data.remarks == (
            f"mine.csv: column 'b' holds whole numbers, {count} different ones in {len(labels)} samples: "
            f"taken as {taken}; labels={other} makes them {other}",
        )
    said = table(tmp_path, text, f",labels={other}")
    assert (said.target, said.remarks) == (other, ())


def test_rows_are_divided_evenly(tmp_path: Path) -> None:
    file = tmp_path / "many.csv"
    file.write_text("a,b\n" + "".join(f"{n},{'xy'[n % 2]}\n" for n in range(100)))
    data = load(str(file))
    assert [len(split) for split in (data.train, data.validation, data.test)] == [80, 10, 10]
    assert np.bincount(next(chunks(data.test))[1]).tolist() == [5, 5]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", "", "the file is empty"),
        ("\n\n", "", "the file is empty"),
        ("a,b\n", "", "the file has a header and no rows"),
        ("a\n1\n", "", "a label and at least one feature are needed; the file has one column"),
        (FLOWERS, ",label=colour", "'colour'; choose one of length, width, species, a number from 1 to 3"),
        (
            ",".join(f"c{n}" for n in range(1, 31)) + "\n" + ",".join("1" * 30) + "\n",
            ",label=colour",
            "c19, c20, …, a number from 1 to 30",
        ),
        (
            FLOWERS,
            ",target=classes,labels=numbers",
            "target=classes and labels=numbers contradict each other",
        ),
        (FLOWERS, ",label=4", "'4'; choose one of length, width, species, a number from 1 to 3"),
        (FLOWERS.replace("4.5", "wide"), "", "line 3, column 'width': 'wide' is not a number"),
        (FLOWERS.replace("4.5", ""), "", "line 3, column 'width': '' is not a number"),
        ("a;b\n1,5;x\n", "", "line 2, column 'a': '1,5' is not a number; write decimal points, not commas"),
        ("1,5;2,5;x\n2,5;3;y\n", "", "'2,5' is not a number; write decimal points, not commas"),
        ("1,x\n2,y\nz,x\n", "", "line 3, column '1': 'z' is not a number"),
        (FLOWERS.replace("3,4.5", "3,4.5,6"), "", "every row needs 3 cells; line 3 has 4"),
        (FLOWERS.replace("5,6.5", "5"), "", "every row needs 3 cells; line 4 has 2"),
        (FLOWERS.replace("4.5", "nan"), "", "features must be finite; sample 1 has nan in feature 1"),
        (FLOWERS.replace("4.5", "1e999"), "", "features must be finite; sample 1 has inf in feature 1"),
        (FLOWERS.replace("virginica", ""), "", "sample 1 has no label in column 'species'"),
        (FLOWERS, ",target=values", "labels=numbers needs numbers in column 'species'; got 'setosa'"),
        (b"a,b\n\xff\xfe,1\n", "", "not a table in UTF-8"),
    ],
)
def test_what_can_be_wrong(tmp_path: Path, text: str | bytes, options: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        table(tmp_path, text, options)
    assert message in str(error.value)
    assert "mine.csv" in str(error.value)
    assert "\n" not in str(error.value)
