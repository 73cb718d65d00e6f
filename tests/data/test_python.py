from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.data import Batches, Dataset, chunks, load
from paceline.errors import UsageError

INPUTS = np.arange(60, dtype=np.float32).reshape(30, 2)
LABELS = np.arange(30) % 3


class Mapped:
    """A map-style data set, as PyTorch's are: no arrays to be seen."""

    def __init__(self, inputs: Any = INPUTS, labels: Any = LABELS) -> None:
        self.inputs = inputs
        self.labels = labels
        self.fetched = 0

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        assert type(index) is int
        self.fetched += 1
        return self.inputs[index], self.labels[index]


def sizes(data: Dataset) -> list[int]:
    return [len(data.train), len(data.validation), len(data.test)]


def test_a_dataset_is_itself() -> None:
    data = load("iris")
    assert load(data) is data


@pytest.mark.parametrize("make", [lambda *pair: pair, Mapped, lambda a, b: (a.tolist(), b.tolist())])
def test_one_two_or_three_parts(make: Any) -> None:
    whole, few = make(INPUTS, LABELS), make(INPUTS[:6], LABELS[:6])
    assert sizes(load(whole)) == [24, 3, 3]
    assert sizes(load(whole, validation=0, test=5)) == [25, 0, 5]
    assert sizes(load((whole, few))) == [27, 3, 6]
    assert sizes(load((whole, few, few))) == [30, 6, 6]
    assert sizes(load({"train": whole, "validation": few}, test=0)) == [30, 6, 0]
    data = load((whole, few))
    assert (data.shape, data.classes, data.label_shape) == ((2,), 3, ())
    batch = Batches(data.test, batch=6, dtype=np.float64).at(0, 0)
    assert sorted(batch.inputs[:, 0].tolist()) == INPUTS[:6, 0].tolist()
    assert (batch.inputs[:, 0] // 2 % 3).tolist() == batch.labels.tolist()


def test_mapped_samples_are_fetched_when_needed() -> None:
    mapped = Mapped((INPUTS * 4).astype(np.uint8))
    data = load(mapped, classes=3, validation=0, test=0)
    before = mapped.fetched
    batch = Batches(data.train, batch=4).at(0, 0)
    assert mapped.fetched == before + 4
    assert batch.inputs.max() <= 1
    np.testing.assert_allclose(np.rint(batch.inputs[:, 0] * 255) // 8 % 3, batch.labels)


def test_mapped_labels_are_not_read_when_the_object_tells() -> None:
    class Told(Mapped):
        classes = ("a", "b", "c")

    told = Told()
    data = load(told)
    assert told.fetched == 1
    assert (data.classes, data.class_names, sizes(data)) == (3, ("a", "b", "c"), [24, 3, 3])
    listed = Mapped()
    listed.targets = LABELS.tolist()  # type: ignore[attr-defined]
    assert load(listed).classes == 3
    assert listed.fetched == 1


def test_pytorch_data_sets() -> None:
    import torch
    from torch.utils.data import Subset, TensorDataset

    tensors = TensorDataset(torch.from_numpy(INPUTS), torch.from_numpy(LABELS))
    for thing in (tensors, Subset(tensors, range(30)), (tensors, Subset(tensors, [3, 4]))):
        data = load(thing, validation=0)
        assert (data.shape, data.classes) == ((2,), 3)
    [(inputs, labels)] = list(chunks(data.test))
    assert inputs.tolist() == [[6, 7], [8, 9]]
    assert labels.tolist() == [0, 1]
    real = load(TensorDataset(torch.ones(20, 4), torch.ones(20, 2)))
    assert (real.shape, real.classes, real.label_shape) == ((4,), 0, (2,))


def test_real_targets_and_names() -> None:
    assert load((INPUTS, LABELS / 2)).classes == 0
    assert load(Mapped(labels=LABELS / 2)).classes == 0
    named = load((INPUTS, np.array(["b", "a", "c"] * 10)), validation=0, test=0)
    assert (named.classes, named.class_names) == (3, ("a", "b", "c"))
    assert next(chunks(named.train))[1][:3].tolist() == [1, 0, 2]


def test_whole_numbers_may_be_values_and_values_may_be_classes() -> None:
    for thing in ((INPUTS, LABELS), Mapped()):
        data = load(thing, target="values", validation=0, test=0)
        assert (data.classes, data.target) == (0, "numbers")
        [(_, labels)] = list(chunks(data.train))
        assert labels.dtype == np.float32
        assert labels.tolist() == LABELS.tolist()
    for thing in ((INPUTS, LABELS * 1.0), Mapped(labels=LABELS * 1.0)):
        data = load(thing, target="classes", validation=0, test=0)
        assert (data.classes, data.target) == (3, "classes")
        [(_, labels)] = list(chunks(data.train))
        assert labels.dtype == np.int64
        assert labels.tolist() == LABELS.tolist()
    numbered = load((INPUTS, LABELS * 5 + 10), target="classes", validation=0, test=0)
    assert (numbered.classes, numbered.class_names) == (3, ("10", "15", "20"))
    assert next(chunks(numbered.train))[1].tolist() == LABELS.tolist()
    several = load((INPUTS, INPUTS.astype(int)), target="values")
    assert (several.classes, several.label_shape) == (0, (2,))


def test_an_assumption_is_said() -> None:
    assert load((INPUTS, LABELS)).remarks == (
        "arrays: the labels are whole numbers: taken as 3 classes; labels=numbers makes them numbers",
    )
    assert load((INPUTS, LABELS), labels="classes").remarks == load((INPUTS, LABELS), classes=3).remarks == ()
    assert load((INPUTS, INPUTS[:, 0] / 7)).remarks == load((INPUTS, LABELS.astype(str))).remarks == ()
    assert load((INPUTS, LABELS * 1.0)).remarks == (
        "arrays: the labels are whole numbers stored as float64, 3 different ones in 30 samples: "
        "taken as numbers; labels=classes makes them classes",
    )
    assert load((INPUTS, LABELS * 1.0), target="values").remarks == ()


@pytest.mark.parametrize(
    ("thing", "options", "message"),
    [
        (
            (INPUTS, LABELS + 1),
            {},
            "has none; labels=numbers takes whole numbers as numbers, labels=classes as",
        ),
        (
            (INPUTS, LABELS),
            {"target": "class"},
            "unknown target of arrays 'class'; choose one of classes, values",
        ),
        (
            (INPUTS, LABELS),
            {"target": "values", "classes": 3},
            "labels=numbers has no classes; got classes=3",
        ),
        (
            (INPUTS, LABELS.astype(str)),
            {"target": "values"},
            "labels=numbers needs numbers; the labels are <U21",
        ),
        (Mapped(), {"target": "values", "classes": 3}, "labels=numbers has no classes; got classes=3"),
        (Mapped(labels=LABELS + 1), {}, "has none; labels=numbers takes whole numbers as numbers"),
        ((INPUTS, np.full(30, np.nan)), {"target": "classes"}, "labels must be finite; sample 0 has nan"),
        (
            Mapped(labels=LABELS / 2),
            {"target": "classes"},
            "labels=classes needs whole numbers; sample 1 has 0.5",
        ),
    ],
)
def test_what_can_be_wrong_with_the_target(thing: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        load(thing, **options)
    assert message in str(error.value)


def test_options_of_arrays() -> None:
    data = load((INPUTS.astype(np.uint8), LABELS), scale=0.5, name="mine", validation=0, test=0)
    assert data.name == "mine"
    assert next(chunks(data.train))[0].max() == 29.5
    first, other = (next(chunks(load((INPUTS, LABELS), seed=seed).test))[0].tolist() for seed in (0, 1))
    assert first != other


NAN = INPUTS.copy()
NAN[4, 0] = np.nan


@pytest.mark.parametrize(
    ("thing", "options", "message"),
    [
        (
            (INPUTS, LABELS[:-1]),
            {},
            "arrays: as many labels as samples are needed; got 30 samples, 29 labels",
        ),
        ((INPUTS[:0], LABELS[:0]), {}, "arrays: there are no samples; the inputs have shape (0, 2)"),
        ((NAN, LABELS), {}, "arrays: features must be finite; sample 4 has nan in feature 0"),
        ((INPUTS, LABELS - 1), {}, "arrays: labels must be from 0 to 1; sample 0 has -1"),
        ((INPUTS, LABELS), {"classes": 2}, "arrays: labels must be from 0 to 1; sample 2 has 2"),
        (
            (INPUTS, LABELS),
            {"classes": 4},
            "every class needs a sample; class 3 of the classes 0 to 3 has none",
        ),
        ((INPUTS, LABELS / 2), {"classes": 4}, "labels of 4 classes must be whole numbers; got float64"),
        ((INPUTS.astype(str), LABELS), {}, "arrays: features must be real numbers; got <U32"),
        (
            (INPUTS, LABELS.astype(complex)),
            {},
            "labels must be whole numbers or real numbers; got complex128",
        ),
        (
            ((INPUTS, LABELS), (INPUTS[:, :1], LABELS)),
            {},
            "samples must have one shape; train has (2,), test (1,)",
        ),
        (((INPUTS, LABELS), (INPUTS, LABELS + 1)), {}, "labels must be from 0 to 2; sample 2 has 3"),
        (Mapped(INPUTS[:0]), {}, "there are no samples"),
        (Mapped(labels=LABELS + 1), {}, "every class needs a sample; class 0 of the classes 0 to 3 has none"),
        (
            [1, 2, 3],
            {},
            "data must be (inputs, labels), an object with __len__ and __getitem__, or two or three",
        ),
        (7, {}, "or two or three of them; got int"),
        ({"training": (INPUTS, LABELS)}, {}, "parts are train, validation, test; got training"),
        ({"train": (INPUTS, LABELS)}, {"seed": -1}, "seed must be at least 0; got -1"),
        (
            (INPUTS, LABELS),
            {"sead": 1},
            "unknown option of arrays 'sead'; choose one of name, classes, labels, scale",
        ),
    ],
)
def test_what_can_be_wrong(thing: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        load(thing, **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("value", "rule"),
    [(np.nan, "finite"), (-np.inf, "finite"), (1e300, "within float32's range, 3.4e+38 either way")],
)
def test_values_that_would_spoil_a_run(value: float, rule: str) -> None:
    inputs, targets = INPUTS.astype(np.float64), LABELS.astype(np.float64)
    inputs[7, 1] = targets[9] = value
    for thing, message in (
        ((inputs, LABELS), f"arrays: features must be {rule}; sample 7 has {value} in feature 1"),
        ((INPUTS, targets), f"arrays: labels must be {rule}; sample 9 has {value}"),
        (Mapped(inputs), f"arrays (train): features must be {rule}; sample 7 has {value} in feature 1"),
        (Mapped(INPUTS, targets), f"arrays (train): labels must be {rule}; sample 9 has {value}"),
    ):
        with pytest.raises(UsageError) as error:
            list(chunks(load(thing, validation=0, test=0).train))
        assert str(error.value) == message


def test_scale_is_a_number() -> None:
    for thing in ((INPUTS, LABELS), Mapped()):
        with pytest.raises(UsageError, match="scale must be a finite number; got nan"):
            load(thing, scale=np.nan)


def test_what_can_be_wrong_with_one_sample() -> None:
    uneven = Mapped([np.zeros(2)] * 5 + [np.zeros(3)], [0, 1] * 3)
    data = load(uneven, classes=2, validation=0, test=0)
    with pytest.raises(UsageError, match=r"sample 0 has \(2,\), sample 5 \(3,\)"):
        list(chunks(data.train))

    class Single(Mapped):
        def __getitem__(self, index: int) -> Any:
            return self.inputs[index]

    with pytest.raises(UsageError, match=r"sample 0 must be \(input, label\); got ndarray"):
        load(Single())
