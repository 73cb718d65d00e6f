"""Labels of any shape, padding, yes or no, whole numbers, and several inputs: from `fit` to prediction."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline import UsageError, fit
from paceline.cli import main
from paceline.data import Batches, Several, load
from paceline.models import as_model, sample_weights
from tests.simulate.costs import COSTS

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

pytestmark = pytest.mark.once

STARTS_RANKS = True
SAMPLES, LENGTH, WORDS = 60, 9, 7
SMALL: dict[str, Any] = {"epochs": 2, "batch": 16, "lr": 0.5, "quiet": True, "runs": None}
DRAW = np.random.default_rng(0)
TOKENS = DRAW.integers(1, WORDS, (SAMPLES, LENGTH))
# From one label to all of them: ranks have very different numbers of labels.
LENGTHS = np.where(np.arange(SAMPLES) % 3 == 0, 1, DRAW.integers(2, LENGTH + 1, SAMPLES))
MASK = np.arange(LENGTH) < LENGTHS[:, None]
PADDED = np.where(MASK, TOKENS * 2 % WORDS, -100)


class Tagger(nn.Module):
    """Scores of classes for each word; on the last axis, as a linear layer leaves them, or on the second."""

    def __init__(self, *, last: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.offset = nn.Parameter(torch.zeros(8))  # so that the first parameter is not the embedding's
        self.embedding, self.linear, self.last = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS), last

    def forward(self, tokens: Any) -> Any:
        if tokens.dtype != torch.int64:
            raise TypeError(f"words are whole numbers; got {tokens.dtype}")
        scores = self.linear(self.embedding(tokens) + self.offset)
        return scores if self.last else scores.movedim(-1, 1)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tagger = Tagger()

    def forward(self, tokens: Any, mask: Any, length: Any = None) -> Any:
        assert mask.dtype == torch.bool
        scores = self.tagger(tokens * mask)
        return scores if length is None else scores * (1 + 0 * length[:, None, None])


def trained_by_torch(loss: Callable[..., Any], labels: np.ndarray) -> np.ndarray:
    """Train on the same global batches in a plain loop of one process, with PyTorch's own mean of each batch."""
    module = Tagger(last=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=SMALL["lr"])
    batches = Batches(load((TOKENS, labels)).train, batch=SMALL["batch"], keeps=lambda stored: True)
    for epoch in range(SMALL["epochs"]):
        for batch in batches.epoch(epoch):
            optimizer.zero_grad()
            loss(module(torch.tensor(batch.inputs)), torch.tensor(batch.labels)).backward()
            optimizer.step()
    return np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])


LOSSES: dict[str, tuple[Callable[..., Any] | None, Callable[..., Any]]] = {
    "default": (None, nn.CrossEntropyLoss()),
    "module": (nn.CrossEntropyLoss(), nn.CrossEntropyLoss()),
    "function": (F.cross_entropy, nn.CrossEntropyLoss()),
    "own function": (lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten()), nn.CrossEntropyLoss()),
    "padding 0": (nn.CrossEntropyLoss(ignore_index=0), nn.CrossEntropyLoss(ignore_index=0)),
    "partial": (functools.partial(F.cross_entropy, ignore_index=0), nn.CrossEntropyLoss(ignore_index=0)),
    "class weights": (
        nn.CrossEntropyLoss(weight=torch.arange(1.0, 8), label_smoothing=0.1),
        nn.CrossEntropyLoss(weight=torch.arange(1.0, 8), label_smoothing=0.1),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_mean_over_padded_words_is_torchs_over_the_whole_batch(name: str) -> None:
    loss, of_torch = LOSSES[name]
    labels = np.where(PADDED == -100, 0, PADDED) if of_torch.ignore_index == 0 else PADDED  # type: ignore[attr-defined]
    wanted = trained_by_torch(of_torch, labels)
    for last in (True, False) if name != "own function" else (True,):
        module = Tagger(last=last)
        alone = fit((module, loss), (TOKENS, labels), strategy="serial", **SMALL)
        np.testing.assert_allclose(np.asarray(alone.model.x), wanted, atol=1e-6)
        with torch.no_grad():
            test = load((TOKENS, labels)).test
            inputs, some = np.empty((len(test), LENGTH), np.int64), np.empty((len(test), LENGTH), np.int64)
            test.take(np.arange(len(test)), inputs, some)
            scores = module(torch.from_numpy(inputs))
            scores = scores.movedim(-1, 1) if last else scores
            assert alone.test_loss == pytest.approx(of_torch(scores, torch.from_numpy(some)).item(), rel=1e-5)
            counted = some != of_torch.ignore_index  # type: ignore[attr-defined]
            right = (scores.argmax(1).numpy() == some)[counted].mean()
            assert alone.test_accuracy == pytest.approx(right)


@pytest.fixture
def sim(tmp_path: Path) -> dict[str, Any]:
    """Settings of simulated ranks whose work has known costs."""
    COSTS.save(tmp_path / "costs.json")
    return {**SMALL, "on": "sim", "machine": str(tmp_path / "costs.json")}


@pytest.mark.parametrize("loss", ["default", "own function", "class weights"])
@pytest.mark.parametrize("strategy", ["sync", "sync:allreduce=ring", "main-worker"])
def test_ranks_with_different_numbers_of_labels_train_as_one_process(
    loss: str, strategy: str, sim: dict[str, Any]
) -> None:
    alone = fit((Tagger(), LOSSES[loss][0]), (TOKENS, PADDED), strategy="serial", **SMALL)
    for ranks in (3, 5):
        found = fit((Tagger(), LOSSES[loss][0]), (TOKENS, PADDED), strategy=strategy, ranks=ranks, **sim)
        np.testing.assert_allclose(np.asarray(found.model.x), np.asarray(alone.model.x), atol=2e-6)
        assert found.test_loss == pytest.approx(alone.test_loss, rel=1e-5)
        assert found.test_accuracy == alone.test_accuracy
        assert found.loss == pytest.approx(alone.loss, rel=1e-5)


@pytest.mark.parametrize(
    "strategy", ["weight-average", "local-sgd:every=2", "parameter-server", "gossip", "elastic"]
)
def test_ranks_with_whole_batches_learn_padded_words(strategy: str, sim: dict[str, Any]) -> None:
    found = fit(Tagger(), (TOKENS, PADDED), strategy=strategy, ranks=2, **{**sim, "epochs": 8})
    assert found.history[-1].loss < 0.7 * found.history[0].loss  # type: ignore[operator]
    assert found.test_accuracy is not None
    only_time = fit(Tagger(), (TOKENS, PADDED), strategy=strategy, ranks=2, compute=False, **sim)
    assert only_time.test_loss is None


def test_one_rank_takes_a_batch_of_its_own_data_by_its_own_labels() -> None:
    """With whole batches, the mean is over the rank's batch, whichever samples the rank has."""
    data = load((TOKENS, PADDED))
    model = as_model(Tagger(), data)
    weights = sample_weights(model, data)
    assert weights is not None
    for batch in paceline.data.Shares(Batches(data.train, batch=8, rank=1, ranks=3, weights=weights)).own(0):
        counted = (batch.labels != -100).mean(1)
        assert batch.weight == pytest.approx(batch.count / counted.sum())


def test_reproducible_pieces_of_padded_words(sim: dict[str, Any]) -> None:
    settings = {"reproducible": 4, "threads": 1}
    alone = fit(Tagger(), (TOKENS, PADDED), strategy="serial", **SMALL, **settings)
    found = fit(Tagger(), (TOKENS, PADDED), strategy="sync", ranks=2, **sim, **settings)
    np.testing.assert_array_equal(np.asarray(found.model.x), np.asarray(alone.model.x))


def test_a_batch_without_any_counted_label_changes_nothing() -> None:
    labels = np.full((20, LENGTH), -100)
    labels[0] = 1
    for loss in (None, LOSSES["own function"][0]):
        found = fit((Tagger(), loss), (TOKENS[:20], labels), strategy="serial", **{**SMALL, "batch": 1})
        assert np.isfinite(np.asarray(found.model.x)).all()
        assert found.diverged is None


def test_a_dictionary_of_inputs_on_ranks_of_their_own(tmp_path: Path) -> None:
    inputs = {"tokens": TOKENS, "mask": MASK}
    alone = fit(Masked(), (inputs, PADDED), strategy="serial", **SMALL)
    found = fit(Masked(), (inputs, PADDED), ranks=2, **{**SMALL, "runs": tmp_path})
    np.testing.assert_allclose(np.asarray(found.model.x), np.asarray(alone.model.x), atol=2e-6)
    assert found.test_accuracy == alone.test_accuracy
    assert found.run is not None
    config = paceline.Run(found.run).config
    assert config["inputs"] == [
        {"name": "tokens", "shape": [LENGTH], "dtype": "int64"},
        {"name": "mask", "shape": [LENGTH], "dtype": "bool"},
    ]
    assert (config["ignored"], config["label_shape"], config["classes"]) == (-100, [LENGTH], WORDS)

    predicted = paceline.predict(found.run, model=Masked(), data=(inputs, PADDED))
    assert predicted.classes.shape == PADDED.shape
    assert predicted.scores.shape == (*PADDED.shape, WORDS)
    assert predicted.accuracy == pytest.approx((predicted.classes == PADDED)[MASK].mean())
    np.testing.assert_array_equal(found.model.predict(inputs), predicted.scores)
    for other, message in (
        ((TOKENS, PADDED), "arrays has the inputs 9; .* was trained on tokens of 9, mask of 9"),
        (((TOKENS, MASK), PADDED), "arrays has the inputs 9, 9; .* was trained on tokens of 9, mask of 9"),
        ((inputs, PADDED[:, :5]), "arrays has labels of 5; .* was trained on 9"),
        (((), PADDED), "there are no inputs"),
    ):
        with pytest.raises(UsageError, match=message):
            paceline.predict(found.run, model=Masked(), data=other)
    again = fit(Masked(), (inputs, PADDED), resume=found.run, ranks=1, epochs=1, quiet=True)
    assert len(again.history) == 3


class Items:
    """A map-style data set whose samples have one of several forms."""

    def __init__(self, form: str) -> None:
        self.form = form

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        tokens, mask, labels = (torch.from_numpy(array[index]) for array in (TOKENS, MASK, PADDED))
        return {
            "dictionary": ({"tokens": tokens, "mask": mask}, labels),
            "tuple": ((tokens, mask), labels),
            "flat": (tokens, mask, labels),
            "labels inside": {"tokens": tokens, "mask": mask, "labels": labels},
        }[self.form]


def test_several_inputs_come_in_many_forms() -> None:
    wanted = fit(Masked(), ((TOKENS, MASK), PADDED), strategy="serial", **SMALL)
    tensors = [torch.from_numpy(array) for array in (TOKENS, MASK, PADDED)]
    forms = {form: Items(form) for form in ("dictionary", "tuple", "flat", "labels inside")}
    others = [torch.utils.data.TensorDataset(*tensors), (tuple(tensors[:2]), tensors[2])]
    for data in (*forms.values(), *others, {"train": ((TOKENS, MASK), PADDED)}):
        found = fit(Masked(), data, strategy="serial", **SMALL)
        np.testing.assert_array_equal(np.asarray(found.model.x), np.asarray(wanted.model.x))
        assert found.test_accuracy == wanted.test_accuracy
    three = fit(Masked(), ((TOKENS, MASK, LENGTHS / LENGTH), PADDED), strategy="serial", **SMALL)
    np.testing.assert_allclose(np.asarray(three.model.x), np.asarray(wanted.model.x), atol=1e-6)


def test_every_pixel_has_a_class(sim: dict[str, Any]) -> None:
    images = DRAW.random((50, 6, 8), dtype=np.float32)
    labels = (images > 0.4).astype(int) + (images > 0.7)

    def network() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Conv2d(1, 8, 1), nn.ReLU(), nn.Conv2d(8, 3, 1))

    settings = {"epochs": 8, "batch": 5, "lr": 1.0}
    alone = fit(network(), (images, labels), strategy="serial", **{**SMALL, **settings})
    found = fit(network(), (images, labels), strategy="sync", ranks=3, **{**sim, **settings})
    np.testing.assert_allclose(np.asarray(found.model.x), np.asarray(alone.model.x), atol=1e-5)
    assert found.test_accuracy == alone.test_accuracy
    assert alone.test_accuracy is not None
    assert alone.test_accuracy > 0.6
    assert alone.remarks == (
        "arrays: the labels are whole numbers, 6x8 for each sample: taken as 3 classes; labels=numbers makes them numbers",
    )


FEATURES = DRAW.standard_normal((200, 6), dtype=np.float32)
ANSWERS = FEATURES @ DRAW.standard_normal((6, 4)) > 0


@pytest.mark.parametrize("dtype", [np.float32, np.int64, bool])
def test_accuracy_of_yes_or_no_is_that_of_each_answer(dtype: Any, tmp_path: Path) -> None:
    for loss in (nn.BCEWithLogitsLoss(), F.binary_cross_entropy_with_logits, nn.BCELoss()):
        torch.manual_seed(1)
        parts = [nn.Linear(6, 4), nn.Sigmoid()][: 2 if isinstance(loss, nn.BCELoss) else 1]
        module = nn.Sequential(*parts)
        settings = {**SMALL, "epochs": 5, "runs": tmp_path}
        found = fit((module, loss), (FEATURES, ANSWERS.astype(dtype)), strategy="serial", **settings)
        assert found.test_accuracy is not None
        assert found.test_accuracy > 0.85
        assert found.run is not None
        predicted = paceline.predict(found.run, model=(module, loss), data=(FEATURES, ANSWERS.astype(dtype)))
        with torch.no_grad():
            yes = module(torch.from_numpy(FEATURES)).numpy() > (0.5 if len(parts) > 1 else 0)
        np.testing.assert_array_equal(predicted.classes, yes)
        assert predicted.accuracy == pytest.approx((yes == ANSWERS).mean())


def test_answers_between_no_and_yes_have_no_accuracy() -> None:
    loss = nn.BCEWithLogitsLoss()
    found = fit((nn.Linear(6, 4), loss), (FEATURES, 0.1 + 0.8 * ANSWERS), strategy="serial", **SMALL)
    assert found.test_accuracy is None
    assert found.test_loss is not None


def test_whole_numbers_are_what_they_are_said_to_be() -> None:
    numbers = np.round(3 * FEATURES[:, 0]).astype(np.float32)
    found = {}
    for labels, given in (("numbers", numbers), ("numbers", numbers.astype(int)), (None, numbers)):
        torch.manual_seed(1)
        settings = {**SMALL, "lr": 0.05, "labels": labels}
        one = fit(nn.Linear(6, 1), (FEATURES, given), strategy="serial", **settings)
        assert one.test_accuracy is None
        found[labels, given.dtype.kind] = np.asarray(one.model.x)
        remark = "taken as numbers; labels=classes makes them classes"
        assert [words.endswith(remark) for words in one.remarks] == [True] * (labels is None)
    np.testing.assert_array_equal(found["numbers", "f"], found[None, "f"])
    np.testing.assert_array_equal(found["numbers", "f"], found["numbers", "i"])
    classes = len(np.unique(numbers))
    one = fit(nn.Linear(6, classes), (FEATURES, numbers), strategy="serial", labels="classes", **SMALL)
    assert one.test_accuracy is not None


def test_the_command_line_asks_for_numbers_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ages.npz"
    np.savez(file, x=FEATURES, y=np.arange(200) % 30)
    arguments = [
        "train",
        "--data",
        str(file),
        "--model=mlp:4",
        "--strategy=serial",
        "--epochs=1",
        "--lr=1e-6",
    ]
    arguments += ["--batch=20", f"--runs={tmp_path}", "--quiet"]
    assert main([*arguments, "--name=asked", "--labels=numbers"]) == 0
    assert "taken as" not in capsys.readouterr().out
    config = paceline.Run(tmp_path / "asked").config
    assert (config["labels"], config["target"], config["classes"]) == ("numbers", "numbers", 0)
    assert main([*arguments, "--name=guessed"]) == 0
    assert (
        "ages.npz: the labels are whole numbers: taken as 30 classes; labels=numbers makes"
        in capsys.readouterr().out
    )
    assert paceline.Run(tmp_path / "guessed").config["classes"] == 30
    assert main(["train", "--data=iris", "--labels=numbers", "--strategy=serial"]) == 2
    assert (
        "iris has classes as labels; labels=numbers is for arrays, tables and archives"
        in capsys.readouterr().err
    )


def tagger() -> nn.Module:
    return Tagger()


def test_words_of_an_archive_are_predicted_one_line_per_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "words.npz"
    np.savez(file, x=TOKENS.astype(np.int32), y=PADDED)
    arguments = ["--data", str(file), "--model", "tests.test_fit_labels:tagger", "--strategy=serial"]
    arguments += ["--epochs=1", f"--runs={tmp_path}", "--name=run", "--quiet", "--batch=16"]
    assert main(["train", *arguments]) == 0
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "run"), "--data", str(file), "--trust"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert (len(lines), {len(line.split()) for line in lines}) == (SAMPLES, {LENGTH})
    assert "60 samples, mean loss" in printed.err


def test_bytes_are_numbers_of_words_to_an_embedding_and_brightness_to_others() -> None:
    text = np.frombuffer(b"the quick brown fox jumps over the lazy dog " * 10, np.uint8).reshape(-1, 8)
    seen = []

    class Letters(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.linear = nn.Embedding(256, 4), nn.Linear(4, 256)

        def forward(self, letters: Any) -> Any:
            seen.append(letters)
            return self.linear(self.embedding(letters))

    fit(Letters(), (text[:, :-1], text[:, 1:].astype(int)), strategy="serial", **SMALL)
    assert all(letters.dtype == torch.int64 for letters in seen)
    assert max(int(letters.max()) for letters in seen) == ord("z")


def test_numbers_of_words_beyond_float32_arrive_as_they_are() -> None:
    big = 2**24 + 1
    data = load((np.full((20, 2), big), np.arange(20) % 2))
    batch = Batches(data.train, batch=4, keeps=lambda stored: True).at(0, 0)
    assert batch.inputs.tolist() == [[big, big]] * 4
    assert Batches(data.train, batch=4).at(0, 0).inputs.dtype == np.float32


def test_as_many_classes_as_words_in_a_sample() -> None:
    """Shapes do not tell where the scores of the classes are; shorter samples do."""
    tokens = np.repeat(np.arange(WORDS), WORDS).reshape(-1, WORDS).repeat(4, 0)
    tokens = np.random.default_rng(1).permuted(tokens, axis=None)
    for last in (True, False):
        settings = {**SMALL, "epochs": 10, "batch": 4, "lr": 1.0}
        found = fit(Tagger(last=last), (tokens, (tokens + 1) % WORDS), strategy="serial", **settings)
        assert found.test_accuracy == 1.0


class Fixed(Tagger):
    def forward(self, tokens: Any) -> Any:
        return super().forward(tokens.reshape(-1, WORDS))


BAD: list[tuple[Any, Any, dict[str, Any], str]] = [
    ("mlp:8", (TOKENS, PADDED), {}, "mlp predicts one class for each sample; arrays has labels of 9 classes"),
    ("mlp:8", (FEATURES, np.where(np.arange(200) % 9, ANSWERS[:, 0], -100)), {}, "arrays has labels of -100, to be"),
    ("mlp:8", ((TOKENS, MASK), np.arange(SAMPLES) % 2), {}, "mlp takes one array of features; arrays has 2 inputs"),
    (lambda: nn.Embedding(WORDS, 4), (TOKENS, PADDED), {}, "returns 4 scores per sample; arrays has 7 classes"),
    (
        lambda: nn.Linear(6, 4), (FEATURES, ANSWERS.astype(int)), {},
        "returns 4 scores for each sample; labels of 4 classes in arrays need classes x 4 of them, or 4 x classes",
    ),
    (lambda: (nn.Linear(6, 3), nn.BCEWithLogitsLoss()), (FEATURES, ANSWERS * 1.0), {}, "the labels of arrays are 4"),
    (
        lambda: (Tagger(), nn.CrossEntropyLoss(ignore_index=-1)), (TOKENS, PADDED), {},
        "labels must be from 0 to 6; sample 0 has -100 at 1",
    ),
    (
        lambda: (Tagger(), nn.CrossEntropyLoss(ignore_index=-1)), load((TOKENS, PADDED)), {},
        "the labels have -100, and the loss ignores -1: give it ignore_index=-100",
    ),
    (lambda: Masked(), ({"tokens": TOKENS, "musk": MASK}, PADDED), {}, "unexpected keyword argument 'musk'"),
    (lambda: Masked(), ((TOKENS, MASK[:50]), PADDED), {}, "the same number of samples; got input 0 60, input 1 50"),
    (lambda: Fixed(), (TOKENS[:, :WORDS], PADDED[:, :WORDS]), {}, "may be on the first axis or the last: give a loss"),
    (lambda: Tagger(), (TOKENS, np.full_like(TOKENS, -100)), {}, "every label is -100, which counts for nothing"),
    (lambda: Tagger(), (TOKENS, PADDED), {"labels": "words"}, "unknown labels 'words'; choose one of classes, numbers"),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(BAD)))
def test_what_does_not_fit_is_said_in_one_line(case: int) -> None:
    model, data, settings, message = BAD[case]
    with pytest.raises(UsageError) as error:
        fit(model() if callable(model) else model, data, strategy="serial", **SMALL, **settings)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_wrapped_module_says_what_it_ignores() -> None:
    labels = np.where(PADDED < 0, -1, PADDED)
    wanted = fit(Tagger(), (TOKENS, PADDED), strategy="serial", **SMALL)
    model = paceline.TorchModel(Tagger(), loss=nn.CrossEntropyLoss(ignore_index=-1), input_dtype=torch.int64)
    found = fit(model, (TOKENS, labels), strategy="serial", **SMALL)
    np.testing.assert_allclose(np.asarray(found.model.x), np.asarray(wanted.model.x), atol=1e-6)


def test_several_inputs_are_cut_like_one() -> None:
    inputs = Several.of({"a": np.arange(6).reshape(3, 2), "b": np.arange(3)})
    assert [array.tolist() for array in inputs[1:].arrays] == [[[2, 3], [4, 5]], [1, 2]]
