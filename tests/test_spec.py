from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from paceline import names as registry
from paceline import names as spec
from paceline.errors import UsageError
from paceline.strategies.sync import Sync
from paceline.training.job import strategy_of


@dataclass(frozen=True, kw_only=True)
class Options:
    whole: int = 1
    real: float | None = None
    flag: bool = False
    choice: Literal["one", "two"] = "one"


def needs(data: object, *, width: int) -> int:
    return width


def trains(worker: object, seed: int = 1, *, every: int) -> tuple[object, int, int]:
    return worker, seed, every


def trains_nobody(*, me: object) -> None:
    pass


HERE = "tests.test_spec"


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("", Options()),
        (":whole=3,real=0.5", Options(whole=3, real=0.5)),
        (":real=none,flag=yes,choice=two", Options(flag=True, choice="two")),
    ],
)
def test_options_are_converted_by_their_types(text: str, made: Options) -> None:
    assert spec.parse("strategies", f"{HERE}:Options{text}").make() == made


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("strategies", "snyc", "unknown strategy 'snyc'; choose one of elastic, gossip, hogwild"),
        ("strategies", "sync:allreduce=rng", "unknown collective 'rng'; choose one of auto, "),
        ("strategies", "sync:alreduce=ring", "unknown option of sync 'alreduce'; choose one of allreduce"),
        ("models", "mlp:128,,64", "mlp:128,,64 has a comma with nothing before or after it"),
        ("strategies", "sync:ring", "sync takes option=value; got 'ring'"),
        ("strategies", "no_such_module:Thing", "nor a module 'no_such_module'"),
        ("strategies", f"{HERE}:Nothing", f"module '{HERE}' has no attribute 'Nothing'"),
        (
            "strategies",
            f"{HERE}:Options:whole=x",
            "whole of tests.test_spec:Options must be a whole number; got 'x'",
        ),
        ("strategies", f"{HERE}:Options:real=x", "must be a number; got 'x'"),
        ("strategies", f"{HERE}:Options:flag=maybe", "must be true or false; got 'maybe'"),
        ("strategies", f"{HERE}:Options:choice=three", "unknown choice of tests.test_spec:Options 'three'"),
        ("strategies", f"{HERE}:trains", "needs every; write tests.test_spec:trains:every=…"),
        ("strategies", f"{HERE}:trains:worker=1", "unknown option of tests.test_spec:trains 'worker'"),
        (
            "strategies",
            f"{HERE}:trains_nobody",
            "trains_nobody is not a strategy: a function must take a worker",
        ),
        ("models", f"{HERE}:needs", "needs width; write tests.test_spec:needs:width=…"),
        ("models", "mlp:64,activation=relu,32", "'32' must come before the options"),
        ("models", "mlp:64,x", "must be a whole number; got 'x'"),
    ],
)
def test_bad_specs_are_refused_in_one_line(kind: str, text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        spec.parse(kind, text).make()
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_supplied_arguments_go_only_where_they_are_taken() -> None:
    assert spec.parse("models", f"{HERE}:needs:width=3").make(data=None, seed=1, dtype=None) == 3


def test_the_first_parameter_of_a_strategys_function_is_the_worker() -> None:
    train: Any = strategy_of(f"{HERE}:trains:every=2,seed=5")
    assert train("me") == ("me", 5, 2)


def test_a_spec_is_spelled_as_it_was_read() -> None:
    assert str(spec.parse("models", "mlp:128,64,activation=tanh")) == "mlp:128,64,activation=tanh"
    assert spec.describe(Sync(allreduce="ring"), "sync") == "sync:allreduce=ring"
    assert spec.describe(Sync(), "sync") == "sync"


@pytest.mark.parametrize("kind", registry.OFFERS)
def test_every_name_of_every_kind_is_found(kind: str) -> None:
    names = registry.names(kind)
    assert names
    for name in names:
        assert callable(registry.find(kind, name))
