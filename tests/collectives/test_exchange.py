from __future__ import annotations

import pytest

from paceline.collectives import make_exchange
from paceline.errors import UsageError
from tests.collectives.exchanges import Vectors
from tests.ranks import on_ranks


def test_an_exchange_and_a_sliced_update_equal_one_process_adding_everything() -> None:
    on_ranks("tests.collectives.exchanges:equals_allreduce", 6)


def test_parts_cover_the_parameters_on_every_node() -> None:
    on_ranks("tests.collectives.exchanges:parts", 5)


def test_an_exchange_sends_what_the_formula_says() -> None:
    on_ranks("tests.collectives.exchanges:traffic", 4)


def test_auto_goes_by_the_nodes() -> None:
    refusal = "shared-memory needs all ranks on one node; 4 ranks are on {}; choose hierarchical"
    expected = [
        "Shared",
        "Shared",
        refusal.format(2),
        "Shared",
        refusal.format(2),
        "Replicated",
        refusal.format(4),
    ]
    assert on_ranks("tests.collectives.exchanges:chosen", 4) == [expected] * 4


def test_many_exchanges() -> None:
    on_ranks("tests.collectives.exchanges:many", 3)


def test_alone_every_exchange_is_the_local_gradient() -> None:
    import numpy as np

    model = Vectors(np.zeros(3))
    with make_exchange("shared-memory", model, None) as exchange:
        model.g[...] = 2
        assert (exchange.reduce() == 2).all()
        assert exchange.part == slice(0, 3)


def test_an_unknown_name_is_refused() -> None:
    import numpy as np

    with pytest.raises(UsageError, match="unknown collective 'rng'"):
        make_exchange("rng", Vectors(np.zeros(3)), None)
