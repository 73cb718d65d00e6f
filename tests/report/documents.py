"""A document that has something of everything a report may have."""

from __future__ import annotations

from paceline.figures import Axis, Bar, Bars, Curve, Histogram, Lines, Point, Points
from paceline.report.document import Column, Document, Section, Table, Text

RING, NATIVE, MASTERS = (
    "sync:allreduce=ring",
    "sync:allreduce=native",
    "parameter-server:masters=2,rule=gap-aware",
)
RANKS = Axis(label="ranks", log=True, base=2)


def speedup() -> Lines:
    """Measured, simulated, published and fitted points, spread, points that are not to be trusted."""
    ranks = (1.0, 2.0, 4.0, 8.0, 16.0)
    return Lines(
        name="speedup-1", title="Speedup against ranks", caption="Against the fastest serial row.",
        x=RANKS, y=Axis(label="speedup against one process", log=True, base=2),
        curves=(
            Curve(label="ideal", strategy="ideal", x=(1, 16), y=(1, 16), origin="ideal"),
            Curve(label=RING, strategy=RING, x=ranks, y=(0.98, 1.8, 3.1, 4.2, 3.9), low=(0.97, 1.7, 2.9, 3.6, 2.2),
                  high=(0.99, 1.9, 3.3, 4.8, 4.1), oversubscribed=(False,) * 3 + (True,) * 2),
            Curve(label=NATIVE, strategy=NATIVE, x=ranks, y=(0.97, 1.7, 2.8, 3.2, None)),
            Curve(label=MASTERS, strategy=MASTERS, x=(4, 8), y=(1.4, 2.2), notes=("", "1 of 3 diverged")),
            Curve(label=f"{RING} (simulated)", strategy=RING, x=ranks, y=(1, 1.9, 3.6, 6.2, 9.1), origin="simulated"),
            Curve(label=f"{RING}: Amdahl, 12.3 % serial", strategy=RING, x=ranks, y=(1, 1.78, 2.92, 4.29, 5.63),
                  origin="fit"),
            Curve(label="sync (published)", strategy=RING, x=(4, 8, 16), y=(0.23, 0.21, 0.25), origin="published"),
        ),
    )  # fmt: skip


def learning() -> Lines:
    """Many points and a target."""
    count = 60
    times = tuple(0.05 * (k + 1) for k in range(count))
    names = (RING, "psgd", "serial", "hogwild")
    curves = []
    for number, name in enumerate(names):
        values = tuple(0.95 - 0.8 / (1 + (k + 1) * (0.3 + 0.2 * number)) for k in range(count))
        curves.append(
            Curve(label=name, strategy=name, x=times, y=values, low=tuple(v - 0.02 for v in values),
                  high=tuple(v + 0.02 for v in values))
        )  # fmt: skip
    return Lines(
        name="accuracy-time-1", title="Test accuracy against time", caption="Mean over 3 seeds; band: all of them.",
        x=Axis(label="training time (s)"), y=Axis(label="test accuracy", percent=True), curves=tuple(curves),
        level=(0.9, "target: 90 %"),
    )  # fmt: skip


def split() -> Bars:
    """Kinds of time."""
    return Bars(
        name="split-1", title="Where the time went", caption="Mean over ranks.", x=Axis(label="time (s)"),
        kinds=("compute", "exchange", "wait", "update"),
        bars=(
            Bar(label="serial, 1 rank", strategy="serial", parts=(4.1, 0, 0, 0.3), words="4.40 s  1.00x"),
            Bar(label=f"{RING}, 4 ranks", strategy=RING, parts=(1.1, 0.5, 0.2, 0.1), low=1.7, high=2.1,
                words="1.90 s  2.32x"),
            Bar(label=f"{MASTERS}, 8 ranks *", strategy=MASTERS, parts=(0.9, 1.6, 0.01, 0.1), words="2.61 s  diverged",
                oversubscribed=True),
            Bar(label=f"{RING}, 64 ranks (simulated: ethernet-10g)", strategy=RING, parts=(0.1, 0.6, 0.1, 0.02),
                words="0.820 s  5.37x", simulated=True),
        ),
    )  # fmt: skip


def reached() -> Bars:
    """One part each; and one that begins above nothing."""
    return Bars(
        name="target-1", title="Time to 90 %", caption="Lower is better.", x=Axis(label="time to 90 % (s)"),
        kinds=("time",),
        bars=(
            Bar(label="psgd, 4 ranks", strategy="psgd", parts=(0.62,), low=0.5, high=0.8, words="0.620 s"),
            Bar(label=f"{RING}, 4 ranks", strategy=RING, parts=(1.3,), words="1.30 s"),
            Bar(label=f"{NATIVE}, 4 ranks", strategy=NATIVE, parts=(1.4,), words="1.40 s", simulated=True),
            Bar(label="hogwild, 4 ranks", strategy="hogwild", parts=(0.0,), words="never"),
        ),
    )  # fmt: skip


def accuracy() -> Bars:
    """Points on an axis that does not begin at nothing."""
    bars = (
        Bar(
            label="serial, 1 rank", strategy="serial", parts=(0.915,), low=0.911, high=0.917, words="91.50 %"
        ),
        Bar(label=f"{RING}, 4 ranks", strategy=RING, parts=(0.914,), words="91.40 %", simulated=True),
        Bar(
            label=f"{MASTERS}, 8 ranks *",
            strategy=MASTERS,
            parts=(0.1,),
            words="10.00 %",
            oversubscribed=True,
        ),
        Bar(label="psgd, 8 ranks *", strategy="psgd", parts=(0.921,), words="92.10 %", oversubscribed=True),
    )
    return Bars(
        name="accuracy-1", title="Test accuracy", caption="",
        x=Axis(label="test accuracy", percent=True, bounds=(0.9, 0.93)),
        kinds=("accuracy",), bars=bars, dots=True, level=(0.915, "serial, 91.50 %"),
    )  # fmt: skip


def ages() -> Histogram:
    """A histogram with all that is above in its last column."""
    heights = tuple(0.6**k for k in range(1, 16))
    return Histogram(
        name="ages-1", title=f"Staleness: {MASTERS}, 8 ranks", caption="Share of all updates.",
        x=Axis(label="updates by others meanwhile"), y=Axis(label="share of updates", percent=True), strategy=MASTERS,
        labels=(*(str(k) for k in range(14)), "14 to 31"), heights=heights, tail=True,
        low=tuple(0.9 * h for h in heights), high=tuple(1.1 * h for h in heights),
    )  # fmt: skip


def front() -> Points:
    """Points close to each other, one far below, one that never arrived, spread, and a front of two."""
    return Points(
        name="front-1", title="Time to 90 % against quality", caption="Upper left is best.",
        x=Axis(label="time to 90 %", seconds=True, log=True),
        y=Axis(label="test accuracy (%)", percent=True, bounds=(0.85, None)),
        points=(
            Point(label="serial, 1 rank", strategy="serial", x=4.4, y=0.92, x_range=(4.1, 4.8), y_range=(0.915, 0.925)),
            Point(label=f"{RING}, 4 ranks", strategy=RING, x=1.9, y=0.915),
            Point(label=f"{NATIVE}, 4 ranks", strategy=NATIVE, x=1.95, y=0.9145, simulated=True),
            Point(label=f"{MASTERS}, 8 ranks", strategy=MASTERS, x=2.0, y=0.914, oversubscribed=True),
            Point(label="psgd, 4 ranks", strategy="psgd", x=1.0, y=0.905, flag="learned less"),
            Point(label="hogwild, 4 ranks", strategy="hogwild", x=None, y=0.16, flag="diverged"),
        ),
        front=(4, 1, 0), outside="not reached",
    )  # fmt: skip


def runs_table() -> Table:
    """Every mark, and a value of every kind."""
    columns = (
        Column(name="strategy"), Column(name="ranks", kind="count"), Column(name="time (s)", kind="seconds"),
        Column(name="speedup", kind="times"), Column(name="test accuracy", kind="percent"),
        Column(name="samples/s", kind="number"), Column(name="MB sent", kind="megabytes"), Column(name="remarks"),
    )  # fmt: skip
    rows = (
        ("serial", 1, 4.4, 1.0, 0.915, 11363.6, 0, ""),
        (RING, 4, 1.9, 2.32, 0.914, 26315.8, 29_850_000, "fast | and <good>"),
        (MASTERS, 8, 2.61, "diverged", 0.1, 19157.1, 2_765_300_000, "loss became nan"),
        ("hogwild", 8, None, None, None, None, None, "cannot be started: needs one node"),
        (f"{RING} (simulated: ethernet-10g)", 64, 0.82, 5.37, 0.913, 60975.6, 1e9, ""),
        ("sync (published)", 4, 34.1, 0.23, 0.904, None, None, "an epoch on 50,000 images"),
    )
    marks = ("", "best", "diverged", "failed", "simulated", "published")
    return Table(
        name="runs-1", title="All runs", columns=columns, rows=rows, marks=marks, caption="Means over runs."
    )


def document(title: str = "paceline report") -> Document:
    """All of it."""
    verdict = (
        "mnist, mlp:128,64: sync:allreduce=ring on 4 ranks is the fastest that keeps serial's accuracy: 1.90 s against "
        "4.40 s, 2.32 times as fast, at 91.40 %."
    )
    pieces = Table(
        name="pieces-1", title="Pieces of masters", columns=(Column(name="master", kind="count"), Column(name="layers")),
        rows=((0, "0-2"), (1, "3, 5")), folded=True,
    )  # fmt: skip
    return Document(
        title=title,
        summary=(Text(lines=(verdict,), kind="verdict"), Text(lines=("One thing.", "Another & more."), kind="list")),
        sections=(
            Section(
                title="mnist, mlp:128,64",
                note="109,386 parameters (float32), batch 16, 1 epoch, sgd lr 0.1, on a processor",
                blocks=(runs_table(), Text(lines=("* more ranks than cores.",), kind="note")),
                sections=(
                    Section(title="Scaling", blocks=(speedup(), split(), reached())),
                    Section(title="Learning", blocks=(learning(), accuracy(), ages(), pieces)),
                    Section(title="Why", blocks=(Text(lines=("First.", "Second, with a_b * c."), kind="paragraphs"),)),
                ),
            ),
            Section(title="Environment", blocks=(Text(lines=("a processor, 16 cores; Python 3.11",), kind="note"),)),
        ),
    )  # fmt: skip
