"""The report's figures, as HTML: text keeps its size on a phone, and nothing has to be drawn or fetched."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.report._rows import KINDS, Row
from paceline.report._words import breakable, label, percent, seconds, times

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
@media (max-width: 45rem) { .bar { grid-template-columns: 1fr; gap: 0.1rem } .figure { gap: 0.7rem } }
"""
# A share of the longest bar from which a part is wide enough to have its percentage written in it.
WIDE = 0.15


def time_split(rows: Sequence[Row]) -> str:
    """Where the time of each row went: one bar a row, the longest as long as there is room."""
    longest = max((sum(row.split.values()) for row in rows), default=0.0) or 1.0
    legend = "".join(
        f'<span><i style="background:{colour}"></i>{kind}</span>' for kind, (colour, _) in COLOURS.items()
    )
    bars = "".join(_bar(row, longest) for row in rows)
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
    end = f"{seconds(row.train_seconds)} s" + ("" if row.speedup is None else f" &nbsp;{times(row.speedup)}")
    return _line(row, f"{parts}<b>{end}</b>")


def accuracy(rows: Sequence[Row]) -> str:
    """Test accuracy of each row with the spread over its runs; one sentence where nothing differs."""
    ranges = {row: row.accuracy_range for row in rows if row.accuracy_range is not None}
    if not ranges:
        return ""
    low, high = min(r[0] for r in ranges.values()), max(r[1] for r in ranges.values())
    if high - low < 0.001:
        same = percent(low) if percent(low) == percent(high) else f"from {percent(low)} to {percent(high)}"
        return f"<p>The same for all, to a tenth of a point: {same}.</p>"
    room = max(0.1 * (high - low), (0.01 - (high - low)) / 2)  # never less than a point wide
    start = max(low - room, 0.0)
    width = min(high + room, 1.0) - start

    def place(value: float) -> str:
        return f"{100 * (value - start) / width:.2f}%"

    lines = ""
    for row, (least, most) in ranges.items():
        assert row.accuracy is not None
        spread = "" if row.runs == 1 else f" ({100 * least:.2f} to {100 * most:.2f})"
        lines += _line(
            row,
            f'<span class="line"><i style="left:{place(least)};width:{100 * (most - least) / width:.2f}%"></i>'
            f'<u style="left:{place(row.accuracy)}"></u></span><b>{percent(row.accuracy)}{spread}</b>',
        )
    several = "; the bar goes from the lowest run to the highest" if any(r.runs > 1 for r in rows) else ""
    scale = f"The scale goes from {100 * start:.1f} to {100 * (start + width):.1f} %{several}."
    return f'<div class="figure">{lines}</div><p class="note">{scale}</p>'


def _line(row: Row, inside: str) -> str:
    return f'<div class="bar"><span>{breakable(label(row))}</span><span class="track">{inside}</span></div>'
