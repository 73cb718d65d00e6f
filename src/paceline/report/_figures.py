"""The report's figures, as HTML: text keeps its size on a phone, and nothing has to be drawn or fetched."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.report._rows import KINDS, Row
from paceline.report._staleness import Bar, Staleness
from paceline.report._verdict import divergence
from paceline.report._words import breakable, label, percent, ranges, seconds, times

# Okabe and Ito's colours, which colour-blind readers can tell apart; with each the ink that can be read on it.
COLOURS = {
    "compute": ("#009E73", "#000"),
    "exchange": ("#D55E00", "#000"),
    "wait": ("#E69F00", "#000"),
    "update": ("#0072B2", "#fff"),
}
STYLE = """
.figure { display: grid; gap: 0.35rem; font-size: 0.9rem; line-height: 1.3 }
.bar { display: grid; grid-template-columns: 20.5rem 1fr; gap: 0.8rem; align-items: center; overflow-wrap: anywhere }
.track { display: flex; align-items: center; position: relative; min-height: 1.4rem }
.track > * { flex: none }
.track i { height: 1.4rem; font: 0.75rem/1.4rem system-ui, sans-serif; text-align: center; overflow: hidden }
.track b { font-weight: normal; white-space: nowrap; padding-left: 0.4rem }
.legend span { margin-right: 1.2rem; white-space: nowrap }
.legend i { display: inline-block; width: 0.9rem; height: 0.9rem; margin-right: 0.35rem; vertical-align: -0.1rem }
.line { position: relative; width: calc(100% - 13rem); height: 1.4rem; background: #f3f3f3 }
.line i { position: absolute; top: 0.55rem; height: 0.3rem; background: #999; border-radius: 0.15rem }
.line u { position: absolute; top: 0.35rem; width: 0.7rem; height: 0.7rem; margin-left: -0.35rem; background: #0072B2;
  border-radius: 50% }
.line b { position: absolute; left: 0.1rem; padding: 0; color: #0072B2 }
.simulated .track > i { background-image: repeating-linear-gradient(135deg, #fff6 0 3px, transparent 3px 9px) }
.simulated .line u { background: #fff; box-shadow: inset 0 0 0 2px #0072B2 }
.ages { display: flex; margin-top: 0.4rem; align-items: flex-end; gap: 2px; font-size: 0.7rem; line-height: 1.2 }
.ages span { flex: 1 1 0; max-width: 3.5rem; min-width: 0; white-space: nowrap }
.ages i { display: block; background: #56B4E9; min-height: 1px } .ages .tail i { background: #bbb }
.ages b, .ages u { display: flex; justify-content: center; font-weight: normal; text-decoration: none; height: 1.2em }
small { display: block; color: #555 } .bar > div { min-width: 0 }
.bar:has(.ages) { align-items: start }
details { margin: 0.2rem 0 0.8rem } summary { cursor: pointer; color: #555; font-size: 0.8rem }
.ages .tail u { justify-content: flex-end }
@media (max-width: 45rem) {
  details table { font-size: 0.8rem } details td:first-child { min-width: 0 }
  .bar { grid-template-columns: 1fr; gap: 0.1rem } .figure { gap: 0.7rem } }
"""
# A share of the longest bar from which a part is wide enough to have its percentage written in it.
WIDE = 0.15
# What is further below the best accuracy than this is not drawn to scale: the others could not be told apart.
NEAR = 0.1
# A histogram of so few bars has a percentage above each; a table of so few pieces is open.
FEW, OPEN = 12, 4
PIECES = ("master", "layers", "parameters", "mean", "largest", "mean gap")
STALENESS = (
    "How many updates others had made to the parameters between when they were sent for a gradient to be computed and when "
    "that gradient was applied: the share of all updates for each number."
)
TAIL = " The grey bar is all that is above."
GAP = " mean gap: the root mean square distance that the parameters had moved meanwhile."


def time_split(rows: Sequence[Row]) -> str:
    """Where the time of each row went: one bar a row, the longest as long as there is room."""
    longest = max((sum(row.split.values()) for row in rows), default=0.0) or 1.0
    legend = "".join(
        f'<span><i style="background:{colour}"></i>{kind}</span>' for kind, (colour, _) in COLOURS.items()
    )
    bars = "".join(_bar(row, longest) for row in rows)
    if any(row.simulated for row in rows):
        legend += "<span>hatched: simulated</span>"
    return f'<div class="figure"><div class="legend">{legend}</div>{bars}</div>'


def _bar(row: Row, longest: float) -> str:
    whole = sum(row.split.values()) or 1.0
    parts = ""
    for kind in KINDS:
        spent, (colour, ink) = row.split[kind], COLOURS[kind]
        words = f"{100 * spent / whole:.0f} %" if spent / longest >= WIDE else ""
        parts += (
            f'<i style="width:calc((100% - 8.5rem) * {spent / longest:.4f});background:{colour};color:{ink}" '
            f'title="{kind} {seconds(spent)} s">{words}</i>'
        )
    bought = divergence(row) or ("" if row.speedup is None else times(row.speedup))
    end = f"{seconds(row.train_seconds)} s &nbsp;{bought}"
    return _line(row, f"{parts}<b>{end}</b>")


def accuracy(rows: Sequence[Row]) -> str:
    """Test accuracy of each row with the spread over its runs; one sentence where nothing differs."""
    spans = {row: row.accuracy_range for row in rows if row.accuracy_range is not None}
    if not spans:
        return ""
    means = {row: row.accuracy or 0.0 for row in spans}
    least_shown = max(means.values()) - NEAR
    near = [spans[row] for row in spans if means[row] >= least_shown]
    low, high = max(min(span[0] for span in near), least_shown), max(span[1] for span in near)
    if high - low < 0.001 and len(near) == len(spans):
        same = percent(low) if percent(low) == percent(high) else f"from {percent(low)} to {percent(high)}"
        return f"<p>The same for all, to a tenth of a point: {same}.</p>"
    room = max(0.1 * (high - low), (0.01 - (high - low)) / 2)  # never less than a point wide
    start = max(low - room, 0.0)
    width = min(high + room, 1.0) - start

    def place(value: float) -> float:
        return 100 * max(value - start, 0.0) / width

    lines = ""
    for row, (least, most) in spans.items():
        spread = "" if percent(least) == percent(most) else f" ({100 * least:.2f} to {100 * most:.2f})"
        drawn = "<b>◂</b>"
        if means[row] >= least_shown:
            drawn = (
                f'<i style="left:{place(least):.2f}%;width:{place(most) - place(least):.2f}%"></i>'
                f'<u style="left:{place(means[row]):.2f}%"></u>'
            )
        lines += _line(row, f'<span class="line">{drawn}</span><b>{percent(means[row])}{spread}</b>')
    several = "; the bar goes from the lowest run to the highest" if any(r.runs > 1 for r in rows) else ""
    several += "; rings: simulated" if any(row.simulated for row in spans) else ""
    far = "; ◂: far below" if len(near) < len(spans) else ""
    scale = f"The scale goes from {100 * start:.1f} to {100 * (start + width):.1f} %{several}{far}."
    return f'<div class="figure">{lines}</div><p class="note">{scale}</p>'


def staleness(rows: Sequence[Row]) -> str:
    """How old gradients were when they were applied, and by piece where a row has several; "" where nobody knows."""
    lines = "".join(_ages(row, row.staleness) for row in rows if row.staleness is not None)
    said = STALENESS + TAIL * ("class=tail" in lines) + GAP * ("<table>" in lines)
    return f'<div class="figure">{lines}</div><p class="note">{said}</p>' if lines else ""


def _ages(row: Row, found: Staleness) -> str:
    bars = found.bars()
    highest = max(bar.share for bar in bars)
    every = 1 if len(bars) <= FEW else -(-len(bars) // 6)
    named = range(0, len(bars) - (every - 1) * bars[-1].tail, every)
    columns = "".join(
        _column(bar, highest, few=len(bars) <= FEW, named=bar.tail or number in named)
        for number, bar in enumerate(bars)
    )
    dropped = f"; {found.dropped:,.0f} gradients dropped" if found.dropped else ""
    words = f"mean {found.mean:.1f}, largest {found.largest:,}; {found.updates:,} updates{dropped}"
    return (
        f'<div class="bar"><span>{breakable(label(row))}<small>{words}</small></span>'
        f'<div><div class="ages">{columns}</div>{_pieces(found)}</div></div>'
    )


def _column(bar: Bar, highest: float, *, few: bool, named: bool) -> str:
    span = f"{bar.first}" if bar.first == bar.last else f"{bar.first} to {bar.last}"
    share = f"{100 * bar.share:.1f} %"
    told = bar.share == highest or (few and round(100 * bar.share))
    above = f"<b>{100 * bar.share:.0f} %</b>" if told else ""
    below = f"<u>{'≥ ' if bar.tail else ''}{bar.first}</u>" if named else "<u></u>"
    return (
        f'<span{" class=tail" if bar.tail else ""} title="{span} updates old: {share}">{above}'
        f'<i style="height:{5 * bar.share / highest:.2f}rem"></i>{below}</span>'
    )


def _pieces(found: Staleness) -> str:
    if not found.pieces:
        return ""
    heads = "".join(f"<th>{name}</th>" for name in PIECES)
    body = "".join(
        f"<tr><td>{piece.master}</td><td>{ranges(piece.layers)}</td><td>{piece.parameters:,}</td>"
        f"<td>{piece.mean:.2f}</td><td>{piece.largest:,}</td><td>{piece.mean_gap:.2g}</td></tr>"
        for piece in found.pieces
    )
    return (
        f"<details{' open' if len(found.pieces) <= OPEN else ''}><summary>by master and layer</summary>"
        f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div></details>'
    )


def _line(row: Row, inside: str) -> str:
    kind = "bar simulated" if row.simulated else "bar"
    return (
        f'<div class="{kind}"><span>{breakable(label(row))}</span><span class="track">{inside}</span></div>'
    )
