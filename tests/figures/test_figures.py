"""Figures: the same bytes for the same figure, text that is text, nothing cut off, one palette."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from paceline import names as registry
from paceline.figures import (
    PHONE,
    WIDE,
    Axis,
    Bar,
    Bars,
    Curve,
    Figure,
    Histogram,
    Lines,
    Point,
    Points,
    png,
    save,
    svg,
)
from paceline.figures.drawing import draw_page, limits, place_labels, text_width, wrap
from paceline.figures.palette import (
    COLLECTIVES,
    ORIGINS,
    PUBLISHED,
    Style,
    names_in,
    style_of,
    variant_of,
)
from tests.figures.seen import seen_texts
from tests.report import documents

FIGURES = [
    documents.speedup(),
    documents.learning(),
    documents.split(),
    documents.accuracy(),
    documents.ages(),
    documents.front(),
]
AMONG = names_in(documents.document().figures())


def figures(test: object) -> object:
    return pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)(test)


def test_the_same_figure_is_the_same_bytes() -> None:
    for figure in (documents.split(), documents.ages()):  # with hatches and clips, which have names made up
        assert svg(figure, AMONG) == svg(figure, AMONG)


def test_pictures_do_not_depend_on_the_users_settings() -> None:
    import matplotlib

    plain = png(documents.split(), AMONG)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "lines.linewidth": 9}):
        assert png(documents.split(), AMONG) == plain
    with Image.open(io.BytesIO(plain)) as picture:
        assert picture.width == 2 * WIDE


@figures
def test_text_is_text_and_complete(figure: Figure) -> None:
    text, _ = svg(figure, AMONG)
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
    _, hits = svg(figure, AMONG)
    if isinstance(figure, Lines):
        assert len(hits) == sum(y is not None for c in figure.curves for y in c.y)
    elif isinstance(figure, Bars):
        assert len(hits) == sum(1 if figure.dots else len(bar.parts) for bar in figure.bars)
    elif isinstance(figure, Points):
        assert len(hits) == len(figure.points)
    else:
        assert isinstance(figure, Histogram)
        assert len(hits) == len(figure.heights)


def test_points_are_where_their_values_are() -> None:
    curve = Curve(label="a", strategy="sync", x=(0.0, 5.0, 10.0), y=(0.0, 10.0, 5.0))
    x, y = (Axis(label=name, bounds=(0, 10)) for name in "xy")
    figure = Lines(name="n", title="", caption="", x=x, y=y, curves=(curve,))
    _, (first, second, third) = svg(figure)
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
    text, _ = svg(figure)
    assert text.count("<svg") == 1


def test_empty_figures_are_drawn() -> None:
    for empty in (
        replace(documents.speedup(), curves=()),
        replace(documents.split(), bars=()),
        replace(documents.accuracy(), bars=()),
        replace(documents.ages(), labels=(), heights=(), low=None, high=None),
    ):
        assert svg(empty)[1] == []


# ---- colours


def test_every_strategy_has_a_look_of_its_own() -> None:
    names = registry.names("strategies")
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
    assert not set(PUBLISHED) & {style_of(name).marker for name in registry.names("strategies")}


# ---- axes and text


def ticks(page: Any) -> tuple[list[str], list[str]]:
    """The words of the ticks that are seen along both axes."""
    (axes,) = page.axes
    found = []
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        found.append([t.label1.get_text() for t in axis.get_major_ticks() if low <= t.get_loc() <= high])
    return found[0], found[1]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=6), st.booleans(), st.booleans())
@example([712_818_183.0, 713_181_819.0], False, False)
@example([1e8], False, True)
def test_ticks_are_few_and_differ(values: list[float], log: bool, percent: bool) -> None:
    axis = Axis(label="value", log=log, percent=percent)
    low, high = limits(axis, values)
    assert low <= min(values) <= max(values) <= high
    curve = Curve(label="c", strategy="sync", x=tuple(sorted(values)), y=tuple(values))
    page, _ = draw_page([[Lines(name="n", title="", caption="", x=axis, y=axis, curves=(curve,))]], WIDE)
    for words in ticks(page):
        assert 1 <= len(words) <= 25
        assert len(set(words)) == len(words)


@pytest.mark.parametrize("width", [WIDE, PHONE], ids=["wide", "phone"])
@figures
def test_no_text_is_cut_off_or_covered(figure: Figure, width: float) -> None:
    page, _ = draw_page([[figure]], width, among=AMONG, title=figure.title)
    boxes = seen_texts(page)
    assert len(boxes) > 5
    for number, (words, box) in enumerate(boxes):
        assert -1 <= box.x0 < box.x1 <= page.bbox.width + 1, words
        assert -1 <= box.y0 < box.y1 <= page.bbox.height + 1, words
        for others, other in boxes[number + 1 :]:
            wide = min(box.x1, other.x1) - max(box.x0, other.x0)
            high = min(box.y1, other.y1) - max(box.y0, other.y0)
            assert wide <= 1 or high <= 4, (words, others)


@settings(max_examples=60, deadline=None)
@given(st.text("ab:=, /-é1", max_size=60), st.floats(12, 200))
def test_lines_fit_and_lose_nothing(text: str, room: float) -> None:
    lines = wrap(text, 10, room)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(text_width(line, 10) <= room or len(line) == 1 for line in lines)


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
    places = (8.0, 8192.0, 8.0 * 2**20)
    axis = Axis(label="size", log=True, sizes=True, ticks=places)
    curve = Curve(label="c", strategy="ring", x=places, y=(1.0, 2.0, 3.0))
    figure = Lines(name="n", title="", caption="", x=axis, y=Axis(label="s"), curves=(curve,))
    assert ticks(draw_page([[figure]], WIDE)[0])[0] == ["8 B", "8 KiB", "8 MiB"]


def test_ranks_have_a_tick_each_and_the_last_stays() -> None:
    places = tuple(float(ranks) for ranks in (1, 2, 3, 4, 6, 8, 12, 13, 14, 15, 16))
    axis = Axis(label="ranks", log=True, base=2, ticks=places)
    curve = Curve(label="c", strategy="sync", x=places, y=places)
    figure = Lines(name="n", title="", caption="", x=axis, y=Axis(label="s"), curves=(curve,))
    wide, narrow = (ticks(draw_page([[figure]], width)[0])[0] for width in (WIDE, PHONE))
    assert (wide[0], wide[-1], narrow[0], narrow[-1]) == ("1", "16", "1", "16")
    assert {"2", "3", "4", "6", "8"} <= set(wide)
    assert set(narrow) <= set(wide)


# ---- labelled points


def crowd() -> Points:
    """A front of many points close to each other, with long names, and six that are far worse and never arrived."""
    names = [f"sync:allreduce=ring, {ranks} ranks (simulated: infiniband)" for ranks in range(2, 10)]
    near = [
        Point(label=name, strategy="sync", x=1 + 0.01 * k, y=0.93 + 0.001 * k, y_range=(0.91, 0.95))
        for k, name in enumerate(names)
    ]
    far = [
        Point(label=f"gossip, {k} ranks", strategy="gossip", x=None, y=0.1 * k, flag="learned less")
        for k in range(1, 7)
    ]
    return replace(documents.front(), points=(*near, *far), front=tuple(range(8)))


def widths(test: object) -> object:
    return pytest.mark.parametrize("width", [WIDE, PHONE], ids=["wide", "phone"])(test)


@widths
def test_points_far_below_are_arrows_inside_the_axes_that_cover_no_text(width: float) -> None:
    figure = crowd()
    page, hits = draw_page([[figure]], width)
    (axes,) = page.axes
    floor = page.bbox.height - axes.get_window_extent().y0
    arrows = [hit for hit, point in zip(hits, figure.points, strict=True) if point.x is None]
    assert all(floor - 30 < hit.y < floor - 6 for hit in arrows)
    ends = [text.xy[1] for text in axes.texts if getattr(text, "arrow_patch", None) and not text.get_text()]
    assert ends == [axes.get_ylim()[0]] * len(arrows)  # each points out of the axes
    places = sorted(hit.x for hit in arrows)
    assert all(after - before >= 11 for before, after in pairwise(places))
    for words, box in seen_texts(page):
        top, bottom = page.bbox.height - box.y1, page.bbox.height - box.y0
        assert not any(box.x0 - 4 < hit.x < box.x1 + 4 and top - 4 < hit.y < bottom + 4 for hit in arrows), (
            words
        )
    assert ticks(page)[1][-1] == "worse"


@widths
def test_no_label_of_a_point_crosses_the_border_of_those_that_never_arrived(width: float) -> None:
    points = (
        Point(label="sync:allreduce=ring, 4 ranks", strategy="sync", x=1.0, y=0.92),
        Point(label="parameter-server, 4 ranks", strategy="sync", x=2.0, y=0.93),
        Point(label="gossip:degree=2, 16 ranks", strategy="gossip", x=None, y=0.9, flag="learned less"),
    )
    page, _ = draw_page([[replace(documents.front(), points=points, front=())]], width)
    (axes,) = page.axes
    border = next(
        line
        for line in axes.lines
        if line.get_xdata()[0] == line.get_xdata()[-1] and len(line.get_xdata()) == 2
    )
    at = axes.transData.transform((border.get_xdata()[0], 0.9))[0]
    box = axes.get_window_extent()
    inside = [(words, one) for words, one in seen_texts(page) if one.y0 > box.y0 and one.y1 < box.y1]
    assert ("gossip:degree=2, 16 ranks" in dict(inside)) == (width == WIDE)  # otherwise it is a number
    assert not [words for words, one in inside if one.x0 < at < one.x1]


@pytest.mark.parametrize(("least", "shown"), [(0.25, {"0.25", "0.5", "1"}), (0.004, {"0.01", "0.1", "1"})])
def test_ticks_of_speedups_are_powers_of_two_unless_these_are_long_numbers(
    least: float, shown: set[str]
) -> None:
    curve = Curve(label="sync", strategy="sync", x=(2.0, 4.0), y=(least, 1.5))
    x, y = (Axis(label=label, log=True, base=2) for label in ("ranks", "speedup"))
    page, _ = draw_page([[Lines(name="s", title="", caption="", x=x, y=y, curves=(curve,))]], WIDE)
    assert shown <= set(ticks(page)[1])
    assert max(map(len, ticks(page)[1])) <= len("0.005")


def test_the_spread_of_a_bar_is_below_the_shares_in_it() -> None:
    bar = Bar(label="sync", strategy="sync", parts=(5.0, 4.0), low=1.0, high=9.5)
    figure = Bars(
        name="b", title="", caption="", x=Axis(label="seconds"), kinds=("compute", "wait"), bars=(bar,)
    )
    page, _ = draw_page([[figure]], WIDE)
    (axes,) = page.axes
    shares = [box for words, box in seen_texts(page) if words.endswith(" %")]
    (line,) = [line for line in axes.lines if len(line.get_xdata()) == 2]
    assert len(shares) == 2
    at = axes.transData.transform((0, line.get_ydata()[0]))[1]
    assert all(
        at < box.y0 + (box.y1 - box.y0) / 4 for box in shares
    )  # the box has room for letters such as g


@widths
@pytest.mark.parametrize("log", [False, True])
def test_points_that_never_arrived_stay_in_their_column_however_many_are_equally_good(
    width: float, log: bool
) -> None:
    points = (
        Point(label="serial", strategy="serial", x=1.0, y=0.95),
        Point(label="hogwild", strategy="hogwild", x=9.0, y=0.94),
        *(Point(label=f"sync, {k} ranks", strategy="sync", x=None, y=0.9) for k in range(20)),
    )
    figure = documents.front()
    figure = replace(figure, points=points, front=(), x=replace(figure.x, log=log))
    page, hits = draw_page([[figure]], width)
    (axes,) = page.axes
    border = next(line for line in axes.lines if len(line.get_xdata()) == 2)
    at = axes.transData.transform((border.get_xdata()[0], 0.9))[0]
    assert all(at < hit.x < axes.get_window_extent().x1 for hit in hits[2:])
    assert len({round(hit.x, 3) for hit in hits[2:]}) == 20


@widths
def test_the_label_of_the_answer_is_its_name_where_others_are_numbers(width: float) -> None:
    figure = crowd()
    points = list(figure.points)
    points[5] = replace(points[5], label="sync, 7 ranks", chosen=True)
    page, _ = draw_page([[replace(figure, points=(*points, *points[:5]), front=())]], width)
    labels = [words for words, _ in seen_texts(page)]
    assert "sync, 7 ranks" in labels
    assert "1" in labels


def test_a_label_is_beside_the_spread_of_points_if_there_is_room_nearby() -> None:
    beside = place_labels(["a"], [(50, 50)], 10, (100, 100))
    assert beside == [(7.5, 0.0)]
    assert place_labels(["a"], [(50, 50)], 10, (100, 100), rather=[(40, 48, 70, 52)]) == [(0, 7.5)]
    everywhere = [(0.0, 0.0, 100.0, 100.0)]
    assert place_labels(["a"], [(50, 50)], 10, (100, 100), rather=everywhere) == beside
    assert place_labels(["a"], [(50, 50)], 10, (100, 100), avoid=everywhere) is None


def test_a_front_is_a_dashed_line_between_its_points() -> None:
    figure = documents.front()
    page, _ = draw_page([[figure]], WIDE)
    (axes,) = page.axes
    (line,) = [line for line in axes.lines if line.get_drawstyle() == "steps-post"]
    assert line.is_dashed()
    assert list(line.get_xdata()) == [1.0, 1.9, 4.4]
    assert any(
        "front of the measured rows" in words for words, _ in seen_texts(page)
    )  # one of the others is simulated
    page, _ = draw_page([[replace(figure, front=(1,))]], WIDE)
    assert not any(line.get_drawstyle() == "steps-post" for line in page.axes[0].lines)
    assert not any("front" in words for words, _ in seen_texts(page))


def test_many_points_have_a_legend_in_three_columns() -> None:
    page, _ = draw_page([[crowd()]], WIDE)
    (legend,) = page.legends
    page.draw_without_rendering()
    assert len({round(text.get_window_extent().x0) for text in legend.get_texts()}) == 3


def test_very_many_points_are_labelled_with_their_ranks_and_the_legend_names_strategies() -> None:
    points = tuple(
        Point(
            label=f"{name}, {ranks} ranks", strategy=name, x=1 + 0.01 * ranks, y=0.9 + 0.001 * ranks,
            short=(name, str(ranks)), chosen=(name, ranks) == ("sync", 2),
        )
        for name in ("sync", "gossip", "psgd")
        for ranks in range(2, 14)
    )  # fmt: skip
    figure = replace(documents.front(), points=points, front=())
    page, _ = draw_page([[figure]], WIDE)
    (legend,), (axes,) = page.legends, page.axes
    entries = [text.get_text() for text in legend.get_texts()]
    assert entries == ["a number at a point: its ranks", "sync", "gossip", "psgd", "ring: the answer"]
    labels = sorted(text.get_text() for text in axes.texts if text.get_text())
    assert labels == sorted(["sync, 2 ranks", *(p.short[1] for p in points if p.short and not p.chosen)])
    # Points of one look that are of different things are numbered.
    other = replace(points[0], short=("sync (simulated: 10gbe)", "2"), chosen=False)
    page, _ = draw_page([[replace(figure, points=(*points, other))]], WIDE)
    assert "a number at a point: its ranks" not in [text.get_text() for text in page.legends[0].get_texts()]


def test_a_long_legend_does_not_cover_the_axes() -> None:
    points = tuple(
        Point(
            label=f"strategy number {k} with a long name, {k} ranks", strategy="sync", x=1 + 0.001 * k, y=0.9
        )
        for k in range(80)
    )
    page, _ = draw_page([[replace(documents.front(), points=points, front=())]], PHONE)
    page.draw_without_rendering()
    (legend,), (axes,) = page.legends, page.axes
    assert legend.get_window_extent().height > 1000
    assert legend.get_window_extent().y1 < axes.get_window_extent().y0
    assert legend.get_window_extent().y0 >= 0


def test_a_spread_that_goes_on_beyond_the_axis_ends_in_an_arrowhead() -> None:
    wide = Point(label="sync, 2 ranks", strategy="sync", x=1.0, y=0.92, y_range=(0.5, 0.93))
    figure = replace(documents.front(), points=(wide, *documents.front().points), front=())
    heads = [line for line in draw_page([[figure]], WIDE)[0].axes[0].lines if line.get_markersize() == 5]
    assert [(line.get_marker(), float(line.get_ydata()[0])) for line in heads] == [("v", 0.85)]


def test_several_figures_share_one_page_and_one_legend(tmp_path: Any) -> None:
    one = documents.speedup()
    paths = [tmp_path / f"a.{kind}" for kind in ("svg", "png", "pdf")]
    save([[one, replace(one, title="Second")]], paths, title="Both")
    text = paths[0].read_text()
    assert text.count(f">{documents.MASTERS}</text>") == 1
    assert all(f">{title}</text>" in text for title in ("Both", one.title, "Second"))
    assert all(path.stat().st_size > 5000 for path in paths)


def contrast(colour: str) -> float:
    """The contrast of a colour with white, as WCAG defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 1.05 / (0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)


def test_colours_can_be_seen_on_white() -> None:
    looks: list[Style] = [style_of(name) for name in (*registry.names("strategies"), *COLLECTIVES)]
    assert all(contrast(look.colour) >= 2 for look in looks)
