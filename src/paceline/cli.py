"""The command line: it finds the command and turns errors into one line and an exit status."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import difflib
import importlib
import io
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import paceline
from paceline.errors import UsageError, reason
from paceline.text import one_line

COMMANDS = {
    "train": ("paceline.commands.train", "train a network on one process or on many ranks"),
    "run": ("paceline.commands.run", "run a program with its own training loop on many ranks"),
    "resume": ("paceline.commands.resume", "continue a run that was stopped or killed"),
    "predict": ("paceline.commands.predict", "predict with a trained network"),
    "tune": ("paceline.commands.tune", "find what reaches a target first, and the command for it"),
    "study": (
        "paceline.commands.study",
        "run all combinations in a study file, and report",
    ),
    "report": ("paceline.commands.report", "compare runs in a report with tables and figures"),
    "watch": ("paceline.commands.watch", "follow runs in progress, in the terminal and on a local page"),
    "trace": ("paceline.commands.trace", "show a run over time, in Perfetto or as a picture"),
    "export": ("paceline.commands.export", "export runs to TensorBoard or MLflow"),
    "bench": ("paceline.commands.bench", "benchmark the collectives on this machine"),
    "simulate": (
        "paceline.commands.simulate",
        "predict scaling, or run an mpi4py program on simulated ranks",
    ),
    "slurm": ("paceline.commands.slurm", "print or submit a batch script for a Slurm job"),
    "doctor": ("paceline.doctor", "check the MPI, cores, threads and memory of this machine or job"),
    "list": (
        "paceline.commands.list",
        "list strategies, models, data sets ... with their options",
    ),
}
EPILOG = """
examples:
  paceline train --data mnist --model mlp:128,64 --strategy sync -n 4
  paceline report runs
  paceline simulate scaling --strategy sync --ranks 1..256 --network 10gbe

`paceline COMMAND --help` describes a command, `paceline list` the names that it takes.
exit status: 0 success, 1 failure, 2 bad input or a file that cannot be read or written, 130 interrupted,
             128 + N ended by signal N
"""


class Parser(argparse.ArgumentParser):
    """An argument parser that reports bad input in one line, with its command, and exits with status 2."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})
        # A value such as -5% or -3s is refused by the rule of its option; argparse would call it missing.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:  # argparse would leave it to the outermost parser, which does not know the command
            self.error(f"unrecognized arguments: {' '.join(unknown)}; {self._hint(unknown)}")
        return found, unknown

    def _hint(self, unknown: Sequence[str]) -> str:
        """Name the option that an unknown one may stand for, or say where the options are listed."""
        options = [
            spelling
            for action in self._actions
            for spelling in action.option_strings
            if action.help != argparse.SUPPRESS and spelling.startswith("--")
        ]
        for word in (word.partition("=")[0] for word in unknown if word.startswith("--")):
            longer = [option for option in options if len(word) > 4 and option.startswith(word)]
            if close := longer or difflib.get_close_matches(word, options, n=1, cutoff=0.75):
                return f"did you mean {close[0]}?"
        return f"`{self.prog} --help` lists what it takes"

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {one_line(message)}\n")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        if action.option_strings and action.nargs is None and arg_strings == ["--"]:
            # As in --name=--; argparse would drop it, and return an empty list instead of a value.
            return self._get_value(action, "--")
        return super()._get_values(action, arg_strings)

    def _print_message(self, message: str, file: Any = None) -> None:
        (file or sys.stderr).write(message)  # argparse's own hides write errors


class Changed:
    """A filter of a log that drops a message if it is the same as the last one."""

    def __init__(self) -> None:
        self._last = ""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if a message differs from the last one."""
        last, self._last = self._last, record.getMessage()
        return self._last != last


def main(arguments: Sequence[str] | None = None, *, on_start: Callable[[], None] | None = None) -> int:
    """Run one command and return its exit status: 2 for bad input, 1 if the system failed, each with one line.

    `on_start` is called when the arguments have been parsed, before the command starts to work.
    """
    _open_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    chosen = next((word for word in words if not word.startswith("-")), None)
    said = f"paceline {chosen}" if chosen in COMMANDS else "paceline"
    try:
        try:
            return _run(words, chosen, on_start)
        finally:
            _flush_errors()
            sys.stdout.flush()
    except UsageError as error:
        print(f"{said}: {one_line(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _drop_output()
        return 141
    except OSError as error:  # usually a full disk
        where = "" if error.filename is None else f"{error.filename}: "
        print(one_line(f"{said}: {where}{reason(error)}"), file=sys.stderr)
        _drop_output()
        return 1
    except MemoryError as error:
        print(one_line(f"{said}: out of memory{str(error) and f': {error}'}"), file=sys.stderr)
        return 1
    except Exception as error:
        if _interrupted(error):  # a library has made another error of Ctrl-C
            return 130
        raise


def _interrupted(error: BaseException | None) -> bool:
    """Return True if an exception was caused by a KeyboardInterrupt, or raised while one was handled."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _run(words: Sequence[str], chosen: str | None, on_start: Callable[[], None] | None) -> int:
    parsed = _parse(words, chosen)
    handler = logging.StreamHandler()
    handler.addFilter(Changed())
    logging.basicConfig(format="paceline: %(message)s", level=logging.WARNING, handlers=[handler])
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns when the home folder cannot be written
    if on_start is not None:
        on_start()
    status: int = importlib.import_module(COMMANDS[parsed.command][0]).main(parsed)
    return status


def _parse(words: Sequence[str], chosen: str | None = None) -> argparse.Namespace:
    """Parse a command line; `chosen` is its command, by default the first word."""
    chosen = words[0] if chosen is None and words else chosen
    layout = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="paceline", description=paceline.__doc__, epilog=EPILOG, formatter_class=layout)
    parser.add_argument("--version", action="version", version=f"paceline {paceline.__version__}")
    commands = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", required=True, parser_class=Parser
    )
    for name, (module, text) in COMMANDS.items():
        command = commands.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + ".",
            formatter_class=layout,
        )  # fmt: skip
        if name == chosen:
            importlib.import_module(module).add_arguments(command)
    parsed = parser.parse_args(words)
    parsed.parse = _parse  # for a command that takes another one
    return parsed


def _open_streams() -> None:
    """Make the standard streams usable: open closed ones to /dev/null, and let any path or name be printed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)  # also if it is the same: child processes inherit it
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115
    for stream, errors in ((sys.stdout, "surrogateescape"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            if codecs.lookup(stream.encoding).name in ("ascii", "utf-8"):
                stream.reconfigure(encoding="utf-8", errors=errors)
            else:
                stream.reconfigure(errors="backslashreplace")


def _flush_errors() -> None:
    """Write what is left for stderr, or drop it if that fails: a log on a full disk is no reason to fail."""
    try:
        sys.stderr.flush()
    except BrokenPipeError:
        raise
    except OSError:
        _drop_output(sys.stderr)


def _drop_output(stream: Any = None) -> None:
    """Drop the unwritten output of stdout, or of another stream, so that Python does not try to write it again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), (stream or sys.stdout).fileno())
