"""The page as readers have it: in a real browser, on a desk and on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.report.document import Column, Document, Opening, Section, Table
from paceline.report.html import html_page
from paceline.report.writing import write
from tests.browser import DESKTOP, PHONE, Browser
from tests.report.documents import document, front

pytestmark = pytest.mark.requires("chromium")
SCREENS = pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["desktop", "phone"])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = Browser()
    yield found
    found.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html_page(document()))
    return path


def test_the_browser_notices_what_is_wrong(browser: Browser, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<title>bad</title><div style='width:2000px'>wide</div><img src='gone.png'>"
        "<script>console.error('said'); nothing.there</script>"
    )
    browser.open(bad, PHONE)
    assert any("said" in message for message in browser.messages)
    assert any("exception" in message for message in browser.messages)
    assert any(url.endswith("gone.png") for url in browser.requests)
    assert browser.value("document.documentElement.scrollWidth") > 390


@SCREENS
def test_the_page_asks_for_nothing_and_complains_of_nothing(
    browser: Browser, page: Path, screen: tuple[int, int, bool]
) -> None:
    browser.open(page, screen)
    assert browser.messages == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [page.as_uri()]
    assert browser.value("document.title") == "paceline report"


@SCREENS
def test_the_page_never_scrolls_sideways(browser: Browser, page: Path, screen: tuple[int, int, bool]) -> None:
    browser.open(page, screen)
    width = "document.documentElement.scrollWidth"
    assert browser.value(width) <= browser.value("window.innerWidth") == screen[0]
    browser.value("document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert browser.value(width) <= screen[0]
    wide = "[...document.querySelectorAll('.box')].filter(b => b.scrollWidth > b.clientWidth + 1).length"
    assert (browser.value(wide) > 0) == (screen is PHONE)  # there the widest table does, in its own box


@SCREENS
def test_a_wide_table_uses_the_window_and_says_if_it_scrolls(
    browser: Browser, tmp_path: Path, screen: tuple[int, int, bool]
) -> None:
    names = ("strategy", *(f"a column {k}" for k in range(8)))
    columns = tuple(Column(name=name, kind="count" if k else "text") for k, name in enumerate(names))
    table = Table(name="t", title="", columns=columns, rows=(("sync:allreduce=ring", *[1_234_567_890] * 8),))
    path = tmp_path / "page.html"
    path.write_text(
        html_page(Document(title="t", summary=(), sections=(Section(title="s", blocks=(table,)),)))
    )
    browser.open(path, screen)
    box = "document.querySelector('.box')"
    wide = browser.value("document.querySelector('main').clientWidth")
    assert browser.value("document.querySelector('table').offsetWidth") > wide  # wider than the text
    scrolls = browser.value(f"{box}.scrollWidth > {box}.clientWidth + 1")
    assert scrolls == (screen is PHONE)
    hint = "getComputedStyle(document.querySelector('.hint')).display"
    assert browser.value(hint) == ("block" if scrolls else "none")
    faded = f"{box}.classList.contains('more')"
    assert browser.value(faded) == scrolls
    assert browser.value("document.documentElement.scrollWidth") <= screen[0]
    browser.value(f"{box}.scrollLeft = 9999; {box}.dispatchEvent(new Event('scroll'))")
    assert not browser.value(faded)  # nothing more to the right


@SCREENS
def test_numbers_and_formulas_are_not_broken(
    browser: Browser, tmp_path: Path, screen: tuple[int, int, bool]
) -> None:
    columns = (
        Column(name="row"),
        *(Column(name=f"count {k}", kind="count") for k in range(9)),
        Column(name="formula"),
    )
    formulas = (
        "1,500 x (p - 1) (2 n + 1): at every batch of all the ranks",
        "ring: 2 (p - 1) n, as handed to MPI",
    )
    rows = tuple(
        ("weight-average:allreduce=native", *[12_345_678] * 8, "4 of 5 diverged", text) for text in formulas
    )
    table = Table(name="t", title="", columns=columns, rows=rows)
    path = tmp_path / "page.html"
    path.write_text(
        html_page(Document(title="t", summary=(), sections=(Section(title="s", blocks=(table,)),)))
    )
    browser.open(path, screen)
    # How many lines each piece of text is on.
    lines = """(cell, words) => {
        const text = cell.textContent.replaceAll('\\u00a0', ' '), from = text.indexOf(words);
        const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), tops = new Set();
        for (let at = 0, node; node = walker.nextNode(); at += node.length)
            for (let k = 0; k < node.length; k++) if (at + k >= from && at + k < from + words.length) {
                const range = document.createRange();
                range.setStart(node, k); range.setEnd(node, k + 1);
                for (const box of range.getClientRects()) tops.add(Math.round(box.top));
            }
        return tops.size;
    }"""
    numbers = f"[...document.querySelectorAll('td.n')].map(cell => ({lines})(cell, cell.textContent))"
    assert browser.value(numbers) == [1] * 18
    for number, words in enumerate(("1,500 x (p - 1) (2 n + 1)", "2 (p - 1) n"), 1):
        cell = f"document.querySelector('tr:nth-child({number}) td:last-child')"
        assert browser.value(f"({lines})({cell}, {words!r})") == 1
        assert browser.value(f"({lines})({cell}, {cell}.textContent)") > 1
    assert browser.value("document.documentElement.scrollWidth") <= screen[0]


@SCREENS
def test_every_figure_is_seen_once(browser: Browser, page: Path, screen: tuple[int, int, bool]) -> None:
    browser.open(page, screen)
    shown = browser.value("""[...document.querySelectorAll('figure')].map(figure =>
        [...figure.querySelectorAll(':scope > svg')].filter(svg => {
            const box = svg.getBoundingClientRect();
            return getComputedStyle(svg).display !== 'none' && box.width > 200 && box.height > 80;
        }).map(svg => [svg.getAttribute('class'), svg.getAttribute('aria-label').length > 0]))""")
    assert len(shown) == 6
    assert shown == [[["phone" if screen is PHONE else "wide", True]]] * 6
    smallest = browser.value("""Math.min(...[...document.querySelectorAll('figure > svg')]
        .filter(svg => getComputedStyle(svg).display !== 'none').flatMap(svg => [...svg.querySelectorAll('text')]
        .map(text => parseFloat(getComputedStyle(text).fontSize) * svg.getBoundingClientRect().width
            / svg.viewBox.baseVal.width)))""")
    assert smallest >= 9.5  # pixels: text keeps its size on a phone


@SCREENS
def test_no_text_of_a_figure_is_cut_off_or_on_top_of_another(
    browser: Browser, page: Path, screen: tuple[int, int, bool]
) -> None:
    browser.open(page, screen)
    found = browser.value("""[...document.querySelectorAll('figure > svg')]
        .filter(svg => getComputedStyle(svg).display !== 'none').flatMap(svg => {
            const box = svg.getBoundingClientRect();
            const texts = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()])
                .filter(([words]) => words.trim());
            const out = texts.filter(([_, r]) => r.left < box.left - 1 || r.right > box.right + 1
                || r.top < box.top - 1 || r.bottom > box.bottom + 1).map(([words]) => 'cut: ' + words);
            texts.forEach(([words, a], k) => texts.slice(k + 1).forEach(([others, b]) => {
                const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
                const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
                if (wide > 1 && high > 4) out.push(`${words} on ${others}`);
            }));
            return out;
        })""")
    assert found == []


def test_values_are_read_by_pointing(browser: Browser, page: Path) -> None:
    browser.open(page)
    # Scroll each kind of thing into view and ask what is under the pointer there.
    words = browser.value("""['speedup-1', 'split-1', 'accuracy-1', 'ages-1'].map(name => {
        const hits = [...document.querySelectorAll(`#f-${name} > svg.wide .hit`)];
        const hit = hits[hits.length - 1];
        hit.scrollIntoView({block: 'center'});
        const r = hit.getBoundingClientRect();
        const under = document.elementFromPoint(r.left + r.width / 2, r.top + r.height / 2);
        return under === hit ? hit.querySelector('title').textContent : 'covered';
    })""")
    assert words[0] == "sync (published)\nranks: 16\nspeedup against one process: 0.25"
    assert words[1].endswith("\nupdate: 0.02")
    assert words[2] == "psgd, 8 ranks *\ntest accuracy: 92.10 %\nmore ranks than cores"
    assert words[3].startswith("updates by others meanwhile: 14 to 31\nshare of updates: 0.05 %")


def test_tables_of_figures_open_from_the_keyboard(browser: Browser, page: Path) -> None:
    browser.open(page)
    table = "document.querySelector('#f-target-1 details')"
    assert browser.value(f"{table}.querySelector('table').checkVisibility()") is False
    browser.value(f"{table}.querySelector('summary').focus()")
    browser.key("Enter", 13, "\r")
    assert browser.value(f"{table}.querySelector('table').checkVisibility()") is True
    cells = browser.value(
        f"[...{table}.querySelectorAll('tbody tr:first-child > *')].map(c => c.textContent)"
    )
    assert cells == ["psgd, 4 ranks", "0.62", "0.5", "0.8", "", "0.620\xa0s"]


def test_links_of_the_contents_lead_somewhere(browser: Browser, page: Path) -> None:
    browser.open(page)
    links = browser.value(
        "[...document.querySelectorAll('nav a')].map(a => !!document.querySelector(a.hash))"
    )
    assert links == [True] * 5


def test_a_screenshot_has_the_whole_page(browser: Browser, page: Path, tmp_path: Path) -> None:
    from PIL import Image

    browser.open(page, PHONE)
    browser.screenshot(tmp_path / "phone.png")
    with Image.open(tmp_path / "phone.png") as picture:
        assert picture.width == 2 * 390
        assert picture.height == 2 * browser.value("document.documentElement.scrollHeight")


# ---- the first screen


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page that begins with an answer."""
    path = tmp_path_factory.mktemp("first") / "report.html"
    opening = Opening(
        sentence="Use sync, 4 ranks: it reaches 90.00 % first, after 1.9 s, 2.3 times as fast as serial, 1 rank (4.4 s).",
        sure="One run each.",
        command="paceline train --data 'my file.csv' --model mlp:128,64 --strategy sync:allreduce=ring -n 4 --lr 0.5",
        figure=front(),
        notices=("Other programs were running.",),
    )
    whole = document()
    section, environment = whole.sections
    inner = tuple(replace(one, folded=True) for one in section.sections)
    problem = replace(section, opening=opening, sections=inner)
    write(replace(whole, summary=(), sections=(problem, replace(environment, folded=True))), path)
    return path


@SCREENS
def test_the_first_screen_has_the_answer_the_command_and_the_figure(
    browser: Browser, first: Path, screen: tuple[int, int, bool]
) -> None:
    browser.open(first, screen)
    assert browser.messages == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [first.as_uri()]
    bottom = "document.querySelector('{}').getBoundingClientRect().bottom"
    assert browser.value(bottom.format(".answer")) < screen[1] / 2
    assert browser.value(bottom.format(".command")) < screen[1] / 2
    css = "phone" if screen is PHONE else "wide"
    # Its axes, if not the whole list of its points.
    assert browser.value(f"document.querySelector('svg.{css}').getBoundingClientRect().top") < screen[1] / 2
    assert browser.value("document.documentElement.scrollHeight") < 3000  # what is long is folded
    assert browser.value("document.documentElement.scrollWidth") <= screen[0]


def test_the_button_copies_the_command_without_a_network(browser: Browser, first: Path) -> None:
    browser.open(first)
    command = browser.value("document.querySelector('.command code').textContent")
    assert command.startswith(
        "paceline train --data 'my file.csv' --model mlp:128,64 --strategy sync:allreduce=ring -n 4"
    )
    assert browser.value("document.querySelector('.copy').hidden") is False
    clicked = """(async () => {
        Object.defineProperty(navigator, 'clipboard', {value: HOW, configurable: true});
        document.querySelector('.copy').click();
        await new Promise(done => setTimeout(done, 50));
        return [window.copied, getSelection().toString(), document.querySelector('.copy').textContent];
    })()"""
    writer = "{writeText: async text => { window.copied = text }}"
    assert browser.value(clicked.replace("HOW", writer)) == [command, "", "Copied"]
    browser.open(first)
    refusing = "{writeText: async text => { throw new Error('no') }}"
    assert (
        browser.value(clicked.replace("HOW", refusing))[1] == command
    )  # it is selected, to be copied by hand


def test_colours_can_be_read_in_the_dark(browser: Browser, first: Path) -> None:
    ratio = """(() => {
        const light = colour => { const [r, g, b] = colour.match(/[0-9.]+/g).map(v => v / 255)
            .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b };
        const paper = light(getComputedStyle(document.body).backgroundColor);
        const seen = (one, property) => { const own = light(getComputedStyle(one)[property]);
            return (Math.max(own, paper) + 0.05) / (Math.min(own, paper) + 0.05) };
        document.querySelectorAll('details').forEach(one => { one.open = true });
        return [Math.min(...[...document.querySelectorAll('p, th, a, summary')].map(one => seen(one, 'color'))),
            Math.min(...[...document.querySelectorAll('#f-front-1 svg.wide text')].map(one => seen(one, 'fill'))), paper];
    })()"""
    for scheme, dark in (("dark", True), ("light", False)):
        browser.call(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
        )
        browser.open(first)
        page, figure, paper = browser.value(ratio)
        assert (paper < 0.1) == dark
        assert min(page, figure) >= 4.5


def test_print_shows_what_is_folded_and_no_buttons(browser: Browser, first: Path) -> None:
    browser.call("Emulation.setEmulatedMedia", media="print", features=[])
    try:
        browser.open(first)
        assert browser.value("getComputedStyle(document.querySelector('.copy')).display") == "none"
        browser.value("dispatchEvent(new Event('beforeprint'))")
        assert (
            browser.value(
                "[...document.querySelectorAll('table')].every(one => one.checkVisibility() == !one.closest('.values'))"
            )
            is True
        )
        assert browser.value("document.querySelectorAll('.values').length") > 0
        browser.value("dispatchEvent(new Event('afterprint'))")
        assert browser.value("document.querySelectorAll('details[open]').length") == 0
    finally:
        browser.call("Emulation.setEmulatedMedia", media="", features=[])


def test_tables_fit_on_a_printed_page(browser: Browser, first: Path) -> None:
    browser.call("Emulation.setEmulatedMedia", media="print", features=[])
    try:
        browser.open(first, (700, 1000, False))  # A4, less its margins
        browser.value("dispatchEvent(new Event('beforeprint'))")
        assert (
            browser.value("Math.max(...[...document.querySelectorAll('table')].map(one => one.offsetWidth))")
            <= 700
        )
        assert browser.value("document.documentElement.scrollWidth") <= 700
        shown = "getComputedStyle(document.querySelector('figure > svg.wide')).display"
        assert browser.value(shown) == "block"
    finally:
        browser.call("Emulation.setEmulatedMedia", media="", features=[])


def test_a_link_into_a_folded_section_opens_it(browser: Browser, first: Path) -> None:
    browser.open(first)
    browser.value("location.hash = '#f-speedup-1'")
    browser.value("new Promise(done => setTimeout(done, 50))")
    assert browser.value("document.querySelector('#f-speedup-1').checkVisibility()") is True


def test_every_link_of_the_page_leads_to_a_file(browser: Browser, first: Path) -> None:
    browser.open(first)
    places = browser.value("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
    assert len(places) > 10
    assert all((first.parent / place).is_file() for place in places)
