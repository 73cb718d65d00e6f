"""What can go wrong in a simulation: ranks that die, stop or are slow, links that are cut or slow, messages that are late.

    run(program, ranks=8, faults=[fail_at(rank=3, step=100), slow(rank=5, by=4)])

or from a script, a Python file with such calls and nothing to import:

    fail_at(rank=3, step=100)
    for r in range(4):
        delay(dest=r, by=0.001, at=2, until=3)

Times are virtual seconds from the start; `until=None` is for ever. Ends of a link are ranks, `node(k)` for all ranks of a
node, or None for anybody. What the others see of a rank that died is what ULFM has them see (`paceline.sim._survival`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from paceline.errors import UsageError
from paceline.sim._fault_kinds import CutLink, Delay, End, FailAt, Fault, Pause, Shuffle, Slow, SlowLink, node

__all__ = [
    "Fault",
    "cut_link",
    "delay",
    "fail_at",
    "load_faults",
    "node",
    "pause",
    "shuffle",
    "slow",
    "slow_link",
]


def fail_at(
    *, rank: int, step: int | None = None, time: float | None = None, detected: float = 1e-3
) -> FailAt:
    """Kill a rank when it begins a step (counted from 0), or at a time; the others know `detected` seconds later.

    >>> from paceline.sim import run
    >>> def program(comm):
    ...     for step in range(3):
    ...         comm.Step()
    ...         comm.Compute(1.0)
    ...     return step
    >>> run(program, ranks=2, faults=[fail_at(rank=1, step=2)]).values
    [2, None]
    """
    return FailAt(rank=rank, step=step, time=time, detected=detected)


def cut_link(a: End, b: End, *, at: float = 0.0, until: float | None = None) -> CutLink:
    """Hold messages between `a` and `b` until the link is back; they are lost where it never is."""
    return CutLink(a=a, b=b, at=at, until=until)


def delay(
    *, source: End = None, dest: End = None, by: float, at: float = 0.0, until: float | None = None
) -> Delay:
    """Let messages from `source` to `dest` come `by` seconds later."""
    return Delay(source=source, dest=dest, by=by, at=at, until=until)


def slow(*, rank: int, by: float, at: float = 0.0, until: float | None = None) -> Slow:
    """Let a rank take `by` times as long for what it computes."""
    return Slow(rank=rank, by=by, at=at, until=until)


def slow_link(a: End, b: End, *, by: float, at: float = 0.0, until: float | None = None) -> SlowLink:
    """Let messages between `a` and `b` be on their way `by` times as long."""
    return SlowLink(a=a, b=b, by=by, at=at, until=until)


def pause(*, rank: int, at: float, seconds: float) -> Pause:
    """Let a rank do nothing at all for so long, as a stopped process does."""
    return Pause(rank=rank, at=at, seconds=seconds)


def shuffle(*, most: float, work: float = 1.0) -> Shuffle:
    """Let every message come up to `most` seconds later, and all computing take up to 1 + `work` times as long, at random.

    What is drawn follows from the run's seed: each seed is another schedule of the same program.
    """
    return Shuffle(most=most, work=work)


def load_faults(path: str | Path) -> list[Fault]:
    """What a script says goes wrong: a Python file in which `fail_at` and the others, and `node`, need no import."""
    found: list[Fault] = []

    def kept(make: Callable[..., Fault]) -> Callable[..., None]:
        return lambda *given, **named: found.append(make(*given, **named))

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"cannot read the faults of {path}: {why}") from None
    names = {make.__name__: kept(make) for make in WORDS}
    try:
        exec(compile(text, str(path), "exec"), {**names, "node": node, "__name__": "faults"})
    except Exception as error:
        raise UsageError(f"{path}, line {_line(error, str(path))}: {_why(error, names)}") from None
    return found


WORDS: tuple[Callable[..., Fault], ...] = (fail_at, cut_link, delay, slow, slow_link, pause, shuffle)


def _line(error: BaseException, path: str) -> int:
    """The line of the script at which it failed."""
    line = error.lineno if isinstance(error, SyntaxError) and error.lineno else 0
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _why(error: Exception, names: Collection[str]) -> str:
    if isinstance(error, SyntaxError):
        return error.msg
    if isinstance(error, NameError):
        return f"{error}; choose one of {', '.join(names)}, node"
    return " ".join(str(error).split()) or type(error).__name__
