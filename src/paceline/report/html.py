"""A report as self-contained HTML: no network requests, no fonts; one short script, for the copy button and for print.

A page begins with the answer, the command to copy and one figure. What is long is folded. Without JavaScript a reader
selects the command; colours follow the system's light or dark mode, and print shows everything.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from urllib.parse import quote

from paceline.figures import PHONE, WIDE, Figure, dark_colours, inline_svg
from paceline.figures.drawing import Hit
from paceline.figures.palette import names_in
from paceline.report.document import (
    NO_SUCCESS,
    SIGNS,
    Block,
    Document,
    Opening,
    Section,
    Table,
    Text,
    data_of,
    is_speedup,
)

# A longer text is folded.
LONG = 240
# An index of more problems has no figures.
DRAWN = 12
Drawings = Mapping[str, tuple[str, list[Hit]]]


@dataclass(frozen=True, kw_only=True)
class Links:
    """Where a page finds the files that belong to it, relative to the page."""

    files: str | None = None
    """The folder of each figure as SVG and of all data as CSV; None: there are no such files."""
    pages: tuple[str, ...] = ()
    """The page of each problem, if this one is their index."""
    home: str = ""
    """The index, if this is the page of one problem of several."""
    drawings: Drawings = field(default_factory=dict)
    """Figures that are drawn already, as `paceline.figures.svg` returns them, by name."""


def html_page(document: Document, links: Links | None = None) -> str:
    """Return the whole page as a string that needs nothing else.

    `links`: the files that are beside it, if there are any.

    >>> page = html_page(Document(title="a & b", summary=(Text(lines=("fast",), kind="verdict"),), sections=()))
    >>> "<h1>a &amp; b</h1>" in page, '<div class="verdict"><p>fast</p></div>' in page
    (True, True)
    """
    page = _Page(document, links or Links())
    body = "\n".join(filter(None, page.parts()))
    dark = dark_colours(body)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(document.title)}</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<link rel="icon" href="data:,"><style>{STYLE.replace("/* drawings */", dark)}</style></head>\n<body><main>\n'
        f"{body}\n</main><script>{SCRIPT}</script></body></html>\n"
    )


class _Page:
    """One page: its document, and the files that it may link to."""

    def __init__(self, document: Document, links: Links) -> None:
        self.document, self.links = document, links
        self.among = names_in(document.figures())

    def parts(self) -> list[str]:
        """Return the parts of the page: what was asked, the answer, then everything else."""
        document, links = self.document, self.links
        problems = document.problems
        home = f'<p class="note"><a href="{_address(links.home)}">All problems</a></p>' if links.home else ""
        parts = [home, f"<h1>{breakable(document.title)}</h1>"]
        answered = {section.title for section in problems}
        parts += [_summary(text, answered) for text in document.questions]
        if len(problems) == 1:
            parts.append(self.opening(problems[0].opening))
        elif problems:
            parts.append(self.index(problems))
        parts += [_summary(text, answered) for text in document.findings]
        shown = [section for section in document.sections if not links.pages or section not in problems]
        if not problems:
            parts.append(_contents(shown))
        return [*parts, *self.sections(shown, 2, "s", alone=len(problems) == 1)]

    def opening(self, opening: Opening | None) -> str:
        """Return the answer, the command, the figure and what is doubtful."""
        if opening is None:
            return ""
        parts = [f'<p class="answer">{breakable(opening.sentence)}</p>']
        if opening.sure:
            parts.append(f'<p class="note">{breakable(opening.sure)}</p>')
        parts.append(_command(opening.command))
        if opening.figure is not None:
            parts.append(self.figure(opening.figure))
        if opening.notices:
            items = "".join(f"<li>{breakable(line)}</li>" for line in opening.notices)
            inside = f'<ul class="notices">{items}</ul>'
            many = len(opening.notices) > 2 or sum(map(len, opening.notices)) > LONG
            words = f"Caveats ({len(opening.notices)})"
            parts.append(f"<details><summary>{words}</summary>{inside}</details>" if many else inside)
        return "".join(parts)

    def index(self, problems: Sequence[Section]) -> str:
        """Return the answer to each of several problems, with a link to its page and, of a few, a small figure."""
        items = ""
        for number, section in enumerate(problems):
            place = (
                _address(self.links.pages[number])
                if self.links.pages
                else f"#s{self.document.sections.index(section) + 1}"
            )
            opening = section.opening
            if opening is not None:
                sure = f'<p class="note">{breakable(opening.sure)}</p>' if opening.sure else ""
                items += (
                    f'<li><div><p class="title"><a href="{place}">{breakable(section.title)}</a></p>'
                    f'<p class="answer">{breakable(opening.sentence)}</p>{sure}{_command(opening.command)}</div>'
                    f"{self.thumbnail(opening.figure, place) if len(problems) <= DRAWN else ''}</li>"
                )
        return f'<ol class="index">{items}</ol>'

    def thumbnail(self, figure: Figure | None, place: str) -> str:
        """Return a small drawing of a figure that is on another page, as a link to it."""
        if figure is None or not self.links.pages:
            return ""
        name = _anchor(figure.name)
        drawing = inline_svg(figure, self.among, width=PHONE, css="small", prefix=f"{name}-small")
        label = escape(f"{figure.title}: {place}")
        return (
            f'<figure><p class="title">{breakable(figure.title)}</p>'
            f'<a href="{place}#{name}" aria-label="{label}">{drawing}</a></figure>'
        )

    def sections(
        self, sections: Sequence[Section], level: int, place: str, *, alone: bool = False
    ) -> list[str]:
        """Return sections; `alone`: that of a single problem, whose answer is at the top already."""
        parts = []
        for number, section in enumerate(sections, 1):
            name = f"{place}{number}"
            heading = f"h{min(level, 4)}"
            inside = [f'<p class="note">{breakable(section.note)}</p>'] if section.note else []
            inside += [] if alone else [self.opening(section.opening)]
            inside += [self.block(block) for block in section.blocks]
            inside += self.sections(section.sections, level + 1, f"{name}-")
            title = f"<{heading}>{breakable(section.title)}</{heading}>"
            if section.folded:
                parts.append(
                    f'<details class="section" id="{name}"><summary>{title}</summary>{"".join(inside)}</details>'
                )
            else:
                parts += [title.replace(">", f' id="{name}">', 1), *inside]
        return parts

    def block(self, block: Block) -> str:
        """Return text, a table or a figure."""
        if isinstance(block, Text):
            return _text(block)
        return self.table(block) if isinstance(block, Table) else self.figure(block)

    def figure(self, figure: Figure) -> str:
        """Return a figure, drawn for a desktop and for a phone, with its values and its files."""
        name = _anchor(figure.name)
        drawings = "".join(
            inline_svg(
                figure, self.among, width=width, css=css, prefix=f"{name}-{css}",
                drawn=self.links.drawings.get(figure.name) if css == "wide" else None,
            )
            for css, width in (("wide", WIDE), ("phone", PHONE))
        )  # fmt: skip
        caption = f"<figcaption>{breakable(figure.caption)}</figcaption>" if figure.caption else ""
        data = data_of(figure)
        return (
            f'<figure id="{name}"><p class="title">{breakable(figure.title)}</p>{drawings}{caption}'
            f'<details class="values"><summary>Values of this figure ({len(data.rows)})</summary>'
            f"{_rows(data, figure.title)}{self.files(figure.name, 'svg', 'csv')}</details></figure>"
        )

    def table(self, table: Table) -> str:
        """Return a table with its key, its caption and its file."""
        shown = _rows(table, table.title or table.name)
        marks = "".join(f"<span>{SIGNS[mark]} {mark}</span>" for mark in table.used_marks())
        below = f'<p class="key">{marks}</p>' if marks else ""
        if len(table.caption) > LONG:
            note = f'<p class="note">{breakable(table.caption)}</p>{self.files(table.name, "csv")}'
            below += f"<details><summary>How to read this table</summary>{note}</details>"
        else:
            below += f'<p class="note">{breakable(table.caption)}</p>' if table.caption else ""
            below += self.files(table.name, "csv")
        if table.folded:
            name = breakable(table.title or table.name)
            return f'<details id="{_anchor(table.name)}"><summary>{name}</summary>{shown}{below}</details>'
        title = f'<p class="title">{breakable(table.title)}</p>' if table.title else ""
        return f'<div id="{_anchor(table.name)}">{title}{shown}{below}</div>'

    def files(self, name: str, *kinds: str) -> str:
        """Return links to a table or figure as files."""
        folder = self.links.files
        if folder is None:
            return ""
        start = f"{folder}/" if folder else ""
        places = [(kind, _address(f"{start}{name}.{kind}")) for kind in kinds]
        return (
            '<p class="files">'
            + " ".join(f'<a href="{at}">{kind.upper()}</a>' for kind, at in places)
            + "</p>"
        )


# A piece of a formula: a number, a letter or an operator, perhaps in brackets.
PIECE = r"\(*(?:\d+(?:[.,]\d+)*|log2\(p\)|[pnsSH]|[-+/=x])\)*"
FORMULA = rf"(?<![\w.,-]){PIECE}(?:\s{PIECE})+(?!\w)"
# A command with a placeholder.
COMMAND = re.compile(r"\bpaceline [a-z]+(?: [A-Z]+)+\b")
# A formula, or the name of an option.
UNBROKEN = re.compile(rf"({FORMULA}|(?<!\S)--?[a-z][a-z-]*)")


def breakable(text: str) -> str:
    """Return text as HTML with good places for line breaks: never inside an option's name, a formula or a quantity.

    >>> breakable("try --batch 32 or sync:allreduce=ring")
    'try <span class="o">--batch</span> 32 or sync:<wbr>allreduce=<wbr>ring'
    >>> breakable("continue it with paceline resume RUN.")
    'continue it with <code>paceline resume RUN</code>.'
    >>> breakable("15 x (p - 1) (2 n + 1): at every batch")
    '<span class="o">15\xa0x (p - 1) (2 n + 1)</span>: at every batch'
    """
    text = re.sub(
        r"(?<=\d) (?=(?:%|s|ms|us|MB|x)(?!\w))|(?<=[ ,]batch) (?=\d)|(?<=[ ,]lr) (?=\d)", "\u00a0", text
    )
    # After the punctuation of a long option, but not between thousands.
    broken = re.sub(r"(?!(?<=\d),\d{3}(?!\d))([:=,])(?=\S)", r"\1<wbr>", escape(text, quote=False))
    return UNBROKEN.sub(r'<span class="o">\1</span>', COMMAND.sub(r"<code>\g<0></code>", broken))


def _contents(sections: Sequence[Section]) -> str:
    """Return links to the sections of a page without an answer, and to those in them."""
    if len(sections) + sum(len(section.sections) for section in sections) < 2:
        return ""
    items = ""
    for number, section in enumerate(sections, 1):
        inner = "".join(
            f'<li><a href="#s{number}-{k}">{breakable(one.title)}</a></li>'
            for k, one in enumerate(section.sections, 1)
        )
        items += f'<li><a href="#s{number}">{breakable(section.title)}</a>{f"<ul>{inner}</ul>" if inner else ""}</li>'
    return f'<nav aria-label="contents"><strong>On this page</strong><ul>{items}</ul></nav>'


def _command(command: str) -> str:
    """Return a command with a button that copies it; a reader without JavaScript selects it."""
    if not command:
        return ""
    button = '<button type="button" class="copy" hidden>Copy</button>'
    # A line may be broken before an option, not inside of one.
    words = re.sub(r" (?=-)", "</span> <span>", escape(command, quote=False))
    return f'<div class="command"><code><span>{words}</span></code>{button}</div>'


def _summary(text: Text, answered: Collection[str]) -> str:
    """Return a text of the top; `answered`: problems whose answer says in short what is folded here."""
    if text.kind == "verdict" and text.title in answered:
        of = f": {text.title}" if len(answered) > 1 else ""
        return _text(replace(text, folded=True, title=f"In more words{of}"))
    if text.kind == "question" and answered and sum(map(len, text.lines)) > LONG:
        return _text(replace(text, folded=True, title="The question"))
    return _text(text)


def _text(text: Text) -> str:
    if text.folded:
        kind = "paragraphs" if text.kind == "verdict" else text.kind
        inside = _text(replace(text, folded=False, title="", kind=kind))
        return f"<details><summary>{breakable(text.title)}</summary>{inside}</details>"
    if text.kind == "command":
        return "".join(map(_command, text.lines))
    if text.kind == "list":
        return "<ul>" + "".join(f"<li>{breakable(line)}</li>" for line in text.lines) + "</ul>"
    note = f' class="{text.kind}"' if text.kind in ("note", "question") else ""
    lines = f"<p><strong>{breakable(text.title)}</strong></p>" if text.title else ""
    lines += "".join(f"<p{note}>{breakable(line)}</p>" for line in text.lines)
    return f'<div class="verdict">{lines}</div>' if text.kind == "verdict" else lines


def _rows(table: Table, label: str) -> str:
    """Return the table in a box of its own, which scrolls if there is no room; the page never does."""
    table = table.drop_unseen()
    css = ["t" if column.kind == "text" else "n" for column in table.columns]
    head = "".join(
        f'<th scope="col" class="{kind}">{breakable(column.name)}</th>'
        for kind, column in zip(css, table.columns, strict=True)
    )
    marked = bool(table.used_marks())
    body = ""
    for number, row in enumerate(table.cells()):
        mark = table.mark(number)
        sign = f'<span class="mark" title="{mark}">{SIGNS.get(mark, "")}</span>' if marked else ""
        wrong = f' <span class="wrong">{mark}</span>' if mark in NO_SUCCESS else ""
        struck = [bool(wrong) and column.kind == "times" for column in table.columns]
        inside = [
            _cell(words, kind, struck=strike) for words, kind, strike in zip(row, css, struck, strict=True)
        ]
        cells = f'<th scope="row" class="{css[0]}">{sign}{inside[0]}{wrong}</th>' + "".join(
            f'<td class="{kind}">{words}</td>' for kind, words in zip(css[1:], inside[1:], strict=True)
        )
        look = f' class="{mark.replace(" ", "-")}"' if mark else ""
        body += f"<tr{look}>{cells}</tr>"
    # With a tabindex the box can be scrolled from the keyboard.
    return (
        f'<div class="box" tabindex="0" role="region" aria-label="{escape(label)}"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(words: str, kind: str, *, struck: bool = False) -> str:
    """Return the content of a cell; numbers are never broken, but their spread may be on a line of its own.

    >>> _cell("1.50 (1.00 to 2.00)", "n"), _cell("22.0x", "n", struck=True)
    ('1.50 <small>1.00 to 2.00</small>', '<s>22.0x</s>')
    """
    if kind == "t":
        return breakable(words)
    value, _, spread = words.removesuffix(")").partition(" (")
    value, spread = (breakable(part).replace("<wbr>", "") for part in (value, spread))
    value += f" <small>{spread}</small>" if spread else ""
    return f"<s>{value}</s>" if struck and is_speedup(words) else value


def _address(path: str) -> str:
    """Return a path as a link spells it; in the C locale it may hold bytes that are no text.

    >>> _address("my runs/é.html")
    'my%20runs/%C3%A9.html'
    """
    return quote(path, errors="surrogateescape")


def _anchor(name: str) -> str:
    """Return a name that can be linked to; names of sections begin with s and a number.

    >>> _anchor("speedup 1/é")
    'f-speedup-1--'
    """
    return "f-" + re.sub(r"[^A-Za-z0-9-]", "-", name)


SCRIPT = """
document.querySelectorAll('.copy').forEach(function (button) {
  var code = button.previousElementSibling;
  button.hidden = false;
  button.onclick = function () {
    var done = function () { button.textContent = 'Copied'; setTimeout(function () { button.textContent = 'Copy' }, 2000) };
    var select = function () {
      getSelection().selectAllChildren(code);
      if (document.execCommand('copy')) done();
    };
    if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(done, select); else select();
  };
});
document.querySelectorAll('.box').forEach(function (box) {
  var hint = document.createElement('p');
  hint.className = 'hint';
  hint.textContent = 'more columns: scroll sideways \u2192';
  box.after(hint);
  var update = function () {
    var wide = box.scrollWidth > box.clientWidth + 1;
    hint.classList.toggle('on', wide);
    box.classList.toggle('more', wide && box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  };
  box.addEventListener('scroll', update);
  addEventListener('resize', update);
  if (window.ResizeObserver) new ResizeObserver(update).observe(box);
  update();
});
var folded = [];
addEventListener('beforeprint', function () {
  folded = [].slice.call(document.querySelectorAll('details:not([open]):not(.values)'));
  folded.forEach(function (one) { one.open = true });
});
addEventListener('afterprint', function () { folded.forEach(function (one) { one.open = false }) });
addEventListener('hashchange', open_target);
function open_target() {
  var at = location.hash && document.getElementById(location.hash.slice(1));
  for (; at; at = at.parentElement) if (at.tagName == 'DETAILS') at.open = true;
}
open_target();
"""

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --soft: #565656; --rule: #ddd; --line: #888; --accent: #0b5a8c;
  --paper: #fff; --tint: #eef5fa; --best: #e5f3ec; --bad: #fbeee6; --bad-ink: #7a330d; --sim: #f2f2f7; --pub: #f6f3e6 }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --soft: #a8adb3; --rule: #3a3f45; --line: #6f757c; --accent: #7cc0ee; --paper: #16191d;
    --tint: #1d2a35; --best: #1b3327; --bad: #3a2418; --bad-ink: #f0b795; --sim: #23252f; --pub: #2e2a1b; /* drawings */ } }
* { box-sizing: border-box }
html { -webkit-text-size-adjust: 100% }
body { font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; max-width: 60rem; margin: 0 auto;
  padding: 1.25rem 1rem 4rem; color: var(--ink); background: var(--paper); overflow-wrap: anywhere }
h1 { font-size: 1.1rem; line-height: 1.3; margin: 0 0 0.6rem; color: var(--soft); font-weight: 600 }
h2 { font-size: 1.2rem; line-height: 1.25; margin: 2rem 0 0.3rem; padding-top: 1rem; border-top: 1px solid var(--line) }
h3 { font-size: 1.05rem; margin: 1.6rem 0 0.5rem }
h4 { font-size: 1rem; margin: 1.4rem 0 0.3rem }
a { color: var(--accent) }
p { margin: 0.5rem 0; max-width: 46rem } ul { margin: 0.5rem 0; padding-left: 1.2rem; max-width: 46rem }
.note { color: var(--soft); font-size: 0.9rem } .o { white-space: nowrap }
.question { font-size: 1.05rem; margin: 0 0 0.5rem }
.answer { font-size: 1.4rem; line-height: 1.35; font-weight: 600; margin: 0 0 0.4rem; max-width: none }
p code { font: 0.9em ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: nowrap }
.command { display: flex; align-items: flex-start; gap: 0.6rem; margin: 0.7rem 0; padding: 0.55rem 0.7rem;
  background: var(--tint); border-radius: 6px }
.command code { flex: 1; font: 0.9rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; -webkit-user-select: all; user-select: all }
.command span { display: inline-block; max-width: 100% }
.copy { font: inherit; font-size: 0.85rem; padding: 0.15rem 0.7rem; color: var(--accent); background: var(--paper);
  border: 1px solid var(--accent); border-radius: 4px; cursor: pointer }
.notices { color: var(--soft); font-size: 0.9rem }
.index { padding: 0; list-style: none; max-width: none } .index .answer { font-size: 1.1rem }
.index > li { display: grid; grid-template-columns: minmax(0, 1fr) auto; gap: 0 2rem; padding: 1.1rem 0;
  border-top: 1px solid var(--rule) }
.index figure { width: 22rem; margin: 0 } .index svg { display: block; max-width: 100%; height: auto }
.verdict { border-left: 4px solid var(--accent); background: var(--tint); padding: 0.6rem 0.9rem; margin: 0.7rem 0 }
.verdict p { margin: 0.25rem 0 }
nav { margin: 1.5rem 0; font-size: 0.95rem } nav ul { list-style: none; padding: 0; margin: 0.2rem 0; max-width: none }
nav > ul > li { margin: 0.35rem 0 } nav ul ul { display: flex; flex-wrap: wrap; gap: 0 1.1rem; padding-left: 1rem }
nav strong { font-size: 0.85rem; color: var(--soft); font-weight: 600 }
figure { margin: 1rem 0 1.4rem }
figure > svg { display: block; max-width: 100%; height: auto }
figure > svg.phone { display: none }
figure text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif !important }
.hit { fill: transparent; stroke: none; pointer-events: all } .hit:hover { stroke: var(--ink); stroke-width: 1.5 }
figcaption { color: var(--soft); font-size: 0.9rem; max-width: 46rem; margin-top: 0.3rem }
.title { font-weight: 600; margin: 0 0 0.5rem } figure > .title { font-size: 0.95rem; margin-bottom: 0.3rem }
/* A table wider than the text uses the width of the window. */
.box { overflow-x: auto; width: max-content; min-width: 100%; max-width: calc(100vw - 3rem); position: relative; left: 50%;
  transform: translateX(-50%); -webkit-overflow-scrolling: touch }
.more { -webkit-mask-image: linear-gradient(to left, transparent, #000 1.5rem);
  mask-image: linear-gradient(to left, transparent, #000 1.5rem) }
.hint { display: none; color: var(--soft); font-size: 0.85rem; margin: 0.2rem 0 0; text-align: right }
.hint.on { display: block }
.box:focus-visible, summary:focus-visible, .copy:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px }
table { border-collapse: collapse; font-size: 0.88rem; line-height: 1.4; overflow-wrap: normal;
  font-variant-numeric: tabular-nums }
th, td { padding: 0.28rem 0.6rem; text-align: left; border-bottom: 1px solid var(--rule); vertical-align: top }
tbody th { font-weight: inherit } tbody th.t { min-width: 11rem }
thead th { vertical-align: bottom; border-bottom-color: var(--line); font-weight: 600 }
.n { text-align: right; white-space: nowrap }
th.n { white-space: normal } .n small { display: block; color: var(--soft); font-size: 0.8rem }
.t { max-width: 24rem } td.t, tbody th.t { overflow-wrap: break-word }
th:first-child { padding-left: 0.4rem }
.mark { display: inline-block; width: 1.1em }
.wrong { font-size: 0.78rem; font-weight: 600; color: var(--bad-ink); border: 1px solid currentColor; border-radius: 4px;
  padding: 0 0.3rem; white-space: nowrap; font-style: normal }
tr.best { background: var(--best) } tr.best th { font-weight: 600 }
tr.diverged, tr.failed { background: var(--bad); color: var(--bad-ink) }
tr.learned-less, tr.learned-nothing, tr.missed-the-target, tr.stopped-early, tr.oversubscribed { color: var(--soft) }
tr.simulated { background: var(--sim) } tr.simulated th { font-style: italic }
tr.published { background: var(--pub) } tr.published th { font-style: italic }
.key { color: var(--soft); font-size: 0.85rem; margin: 0.35rem 0 } .key span { margin-right: 1.1rem; white-space: nowrap }
.files { font-size: 0.85rem; margin: 0.35rem 0 } .files a { margin-right: 0.7rem }
details { margin: 0.4rem 0 } summary { cursor: pointer; color: var(--accent); font-size: 0.88rem; padding: 0.2rem 0 }
details.section { border-top: 1px solid var(--rule); margin: 0; padding: 0.15rem 0 }
details.section > summary { font-size: 1rem } details.section > summary > * { display: inline; font-size: 1rem; margin: 0 }
details.section > summary > h2 { border: 0; padding: 0 }
details .box { max-height: 26rem; overflow-y: auto; margin-top: 0.3rem }
@media screen and (max-width: 56rem) {
  .index > li { display: block } .index figure { width: auto; max-width: 30rem; margin-top: 1rem }
  .answer { font-size: 1.2rem }
  th, td { padding: 0.25rem 0.4rem } tbody th.t { min-width: 8rem; max-width: 11rem }
  td.t { max-width: 15rem } table { width: max-content } thead th.n { max-width: 6.5rem }
  .box { width: auto; max-width: 100%; position: static; transform: none }
  figure > svg.wide { display: none } figure > svg.phone { display: block; width: 100%; max-width: 30rem } }
@media print {
  body { font-size: 11pt; max-width: none; padding: 0 } nav, .copy, .files { display: none !important }
  details.values { display: none } h2, h3, .title, summary { break-after: avoid } figure, tr { break-inside: avoid }
  details::details-content { content-visibility: visible; display: block; height: auto }
  summary { list-style: none; color: var(--ink) }
  .box, details .box { overflow: visible; max-height: none; width: auto; max-width: 100%; position: static;
    transform: none }
  .more { -webkit-mask-image: none; mask-image: none } .hint.on { display: none }
  table { font-size: 8.5pt } th, td { padding: 0.2rem 0.3rem } tbody th.t { min-width: 5rem } .t { overflow-wrap: anywhere }
  .wrong, .n small { font-size: 0.85em }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact } }
"""
