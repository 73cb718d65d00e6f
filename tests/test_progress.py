from __future__ import annotations

import io
import re

from paceline.config import Config
from paceline.record import Epoch
from paceline.text import progress
from paceline.training.progress import EpochBar, EpochLines, Progress, make_display
from paceline.training.rank import Job, train

END = Epoch(epoch=1, step=20, loss=0.5, validation_loss=0.4, validation_accuracy=None, train_seconds=2.0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_an_epoch() -> None:
    stream = io.StringIO()
    shown = make_display(stream)(4, 40, 320)
    assert type(shown) is EpochLines
    shown.step(3, 0.1)
    shown.epoch(END)
    shown.close()
    assert stream.getvalue() == "epoch 2/4  loss 0.5000  validation loss 0.4000  80 samples/s  0:02 left\n"


def test_a_smaller_last_batch_counts_for_what_it_is() -> None:
    given: list[tuple[int, ...]] = []

    def show(*amounts: int) -> Progress:
        given.append(amounts)
        return make_display(io.StringIO())(*amounts)

    for draws in (None, 3):  # iris trains with 120 samples: batches of 119 and of 1
        config = Config(data="iris", model="mlp:2", strategy="serial", epochs=2, batch=119, draws=draws)
        train(Job(config=config, runs=None), None, progress=show)
    assert given == [(2, 4, 240), (2, 6, 714)]  # epochs, steps, samples

    stream = io.StringIO()
    end = Epoch(epoch=0, step=2, loss=0.5, validation_loss=None, validation_accuracy=None, train_seconds=1.0)
    make_display(stream)(2, 4, 240).epoch(end)
    assert "  120 samples/s  " in stream.getvalue()


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_a_terminal_gets_a_bar_that_fits() -> None:
    assert type(make_display(Terminal())(1, 1, 1)) is EpochBar
    for width in (40, 60, 100):
        moment, stream = [0.0], Terminal()
        bar = EpochBar(
            stream, epochs=4, steps=40, samples=320, width=width, clock=lambda moment=moment: moment[0]
        )
        moment[0] = 1.0
        bar.step(9, 0.25)
        drawn = plain(stream.getvalue()).split("\r")[-1]
        assert len(drawn) <= width
        if width == 100:
            assert drawn.startswith("epoch 2/4 \u2501")
            assert drawn.endswith("10/40  loss 0.2500  80 samples/s  0:03 left")


def test_a_bar_is_drawn_at_most_ten_times_a_second() -> None:
    moment = [0.0]
    stream = Terminal()
    bar = EpochBar(stream, epochs=1, steps=1000, samples=1000, width=80, clock=lambda: moment[0])
    for step in range(1000):
        moment[0] += 0.001
        bar.step(step, 1.0)
    assert 9 <= stream.getvalue().count("left") <= 10


def test_a_bar_that_takes_long_is_drawn_less_often() -> None:
    """Each look at the clock takes 10 ms here, and so does every drawing."""
    moment = [0.0]

    def clock() -> float:
        moment[0] += 0.01
        return moment[0]

    stream = Terminal()
    bar = EpochBar(stream, epochs=1, steps=1000, samples=1000, width=80, clock=clock)
    for step in range(1000):
        bar.step(step, 1.0)
    seconds = moment[0]
    assert seconds / 1.2 <= stream.getvalue().count("left") <= seconds  # once a second


def test_lines_are_above_the_bar_and_the_bar_leaves_a_clean_line() -> None:
    stream = Terminal()
    bar = EpochBar(stream, epochs=4, steps=40, samples=320, width=100, clock=lambda: 1.0)
    bar.epoch(END)
    bar.close()
    text = stream.getvalue()
    assert "\r\x1b[2Kepoch 2/4  loss 0.5000  validation loss 0.4000  80 samples/s  0:02 left\n" in text
    assert text.endswith("\n\r\x1b[1A\x1b[2K")
    assert (
        "\x1b[?25l" not in text
    )  # the cursor stays visible: a process that is killed could not show it again


def test_what_is_counted_is_shown_on_a_terminal_only() -> None:
    for stream in (Terminal(), io.StringIO()):
        with progress("decoding", 200, stream=stream) as show:
            show(50)
        if stream.isatty():
            assert "decoding" in stream.getvalue()
            assert "50/200" in plain(stream.getvalue())
            assert stream.getvalue().endswith("\x1b[1A\x1b[2K")
        else:
            assert stream.getvalue() == ""
