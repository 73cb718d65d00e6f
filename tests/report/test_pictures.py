"""Pictures of figures: the same bytes for the same figure, text that is text, nothing that hides something else."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from paceline import names as registry
from paceline.report import pictures
from paceline.report._measure import width_of, wrap
from paceline.report._ticks import limits, spelled, ticks
from paceline.report.document import Axis, Bars, Columns, Curve, Figure, Lines
from paceline.report.palette import ORIGINS, PUBLISHED, STRATEGIES, strategies_of, style_of, variant_of
from tests.report import documents

FIGURES = [
    documents.speedup(),
    documents.learning(),
    documents.split(),
    documents.accuracy(),
    documents.ages(),
]
AMONG = strategies_of(documents.document())


def figures(test: object) -> object:
    return pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)(test)


def test_the_same_figure_is_the_same_bytes() -> None:
    for figure in (documents.split(), documents.ages()):  # with hatches and clips, which have names made up
        assert pictures.svg(figure, AMONG) == pictures.svg(figure, AMONG)


def test_pictures_do_not_depend_on_the_users_settings() -> None:
    import matplotlib

    plain = pictures.png(documents.split(), AMONG)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "lines.linewidth": 9}):
        assert pictures.png(documents.split(), AMONG) == plain
    with Image.open(io.BytesIO(plain)) as picture:
        assert picture.width == 2 * pictures.WIDE


@figures
def test_text_is_text_and_complete(figure: Figure) -> None:
    text, _ = pictures.svg(figure, AMONG)
    words = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", text))
    together = words.replace(" ", "")
    said = [figure.title, figure.x.label]
    if isinstance(figure, Lines):
        said += [figure.y.label, *(curve.label for curve in figure.curves)]
    elif isinstance(figure, Bars):
        said += [bar.label for bar in figure.bars] + [bar.words for bar in figure.bars]
    for each in said:
        assert each.replace(" ", "") in together
    assert "dc:date" not in text


@figures
def test_every_value_can_be_pointed_at(figure: Figure) -> None:
    _, hits = pictures.svg(figure, AMONG)
    if isinstance(figure, Lines):
        assert len(hits) == sum(y is not None for c in figure.curves for y in c.y)
    elif isinstance(figure, Bars):
        assert len(hits) == sum(1 if figure.dots else len(bar.parts) for bar in figure.bars)
    else:
        assert isinstance(figure, Columns)
        assert len(hits) == len(figure.heights)


def test_points_are_where_their_values_are() -> None:
    curve = Curve(label="a", strategy="sync", x=(0.0, 5.0, 10.0), y=(0.0, 10.0, 5.0))
    x, y = (Axis(label=name, bounds=(0, 10)) for name in "xy")
    figure = Lines(name="n", title="", caption="", x=x, y=y, curves=(curve,))
    _, (first, second, third) = pictures.svg(figure)
    assert second.x == pytest.approx((first.x + third.x) / 2)
    assert first.y > third.y > second.y
    assert third.y == pytest.approx((first.y + second.y) / 2)


@pytest.mark.parametrize(
    "curve",
    [
        Curve(label="none", strategy="sync", x=(), y=()),
        Curve(label="gaps", strategy="sync", x=(1, 2), y=(None, None)),
        Curve(label="one", strategy="sync", x=(4,), y=(2.0,)),
        Curve(label="not numbers", strategy="sync", x=(1, 2, 4), y=(float("nan"), float("inf"), 2.0)),
        Curve(label="nothing", strategy="sync", x=(0, 2), y=(0.0, -1.0)),
        Curve(label="$math_{ $ & <b>", strategy="own:Kind:a=1", x=(1, 2), y=(1e-9, 1e9)),
    ],
    ids=lambda curve: curve.label,
)
@pytest.mark.parametrize("log", [False, True])
def test_odd_curves_are_drawn(curve: Curve, log: bool) -> None:
    axis = Axis(label="ranks", log=log)
    figure = Lines(
        name="odd", title="Odd", caption="", x=axis, y=replace(axis, label="value"), curves=(curve,)
    )
    text, _ = pictures.svg(figure)
    assert text.count("<svg") == 1


def test_empty_figures_are_drawn() -> None:
    for empty in (
        replace(documents.speedup(), curves=()),
        replace(documents.split(), bars=()),
        replace(documents.accuracy(), bars=()),
        replace(documents.ages(), labels=(), heights=(), low=None, high=None),
    ):
        assert pictures.svg(empty)[1] == []


# ---- colours


def test_every_strategy_has_a_look_of_its_own() -> None:
    names = registry.names("strategies")
    assert set(names) <= set(STRATEGIES)
    styles = [style_of(name, names) for name in names]
    assert len({style.colour for style in styles}) == len({style.marker for style in styles}) == len(names)


def test_a_strategy_looks_the_same_whoever_is_beside_it() -> None:
    alone = style_of("psgd", ["psgd"])
    assert style_of("psgd", ["hogwild", "psgd", "sync:allreduce=ring", "sync:allreduce=naive"]) == alone
    assert style_of("my_module:Own", []) == style_of("my_module:Own", ["sync"])


def test_variants_are_told_apart_without_colour() -> None:
    names = ["serial", *(f"sync:allreduce={name}" for name in ("auto", "naive", "native", "ring")), "psgd"]
    styles = [style_of(name, names) for name in names]
    assert len({style.marker for style in styles}) == len(names)
    assert len({style.colour for style in styles}) == len(names)
    assert len({style.dash for style in styles[1:5]}) == 4


def test_origins_are_told_apart_without_colour() -> None:
    looks = {(look.dash, look.marked, look.half) for look in ORIGINS.values()}
    assert len(looks) == len(ORIGINS)
    assert not set(PUBLISHED) & {marker for _, marker in STRATEGIES.values()}


# ---- axes and text


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=6), st.booleans(), st.booleans(), st.integers(2, 12)
)
@example([712_818_183.0, 713_181_819.0], False, False, 2)
def test_ticks_are_inside_and_differ(values: list[float], log: bool, percent: bool, most: int) -> None:
    axis = Axis(label="value", log=log, percent=percent)
    low, high = limits(axis, values)
    assert low <= min(values) <= max(values) <= high
    places = ticks(axis, low, high, values, most)
    assert places == sorted(places)
    assert all(low - 1e-9 * high <= place <= high * (1 + 1e-9) for place in places)
    assert len(places) <= most + 2
    assert len(set(spelled(axis, places))) == len(places)


@settings(max_examples=60, deadline=None)
@given(st.text("ab:=, /-é", max_size=60), st.floats(12, 200))
def test_lines_fit_and_lose_nothing(text: str, room: float) -> None:
    lines = wrap(text, 10, room)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(width_of(line, 10) <= room or len(line) == 1 for line in lines)


def test_curves_of_one_strategy_are_told_apart() -> None:
    names = ["parameter-server", "sync:allreduce=naive", "sync:allreduce=ring"]
    for name in names:
        own = style_of(name, names)
        looks = [variant_of(own, name, names, k) for k in range(4)]
        assert looks[0] == own
        for field in ("colour", "marker", "dash"):
            assert len({getattr(look, field) for look in looks}) == len(looks), field
        assert not {look.marker for look in looks[1:]} & {style_of(one, names).marker for one in names}


def test_sizes_are_spelled_as_people_do() -> None:
    axis = Axis(label="size", log=True, sizes=True, ticks=(8.0, 8192.0, 8.0 * 2**20))
    assert spelled(axis, ticks(axis, 4, 2e7, [], 8)) == ["8 B", "8 KiB", "8 MiB"]
