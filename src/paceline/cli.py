"""The command line: names and options; the work is in `paceline.commands` and the modules it calls."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import importlib
import io
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import paceline
from paceline.errors import UsageError

COMMANDS = {
    "train": ("paceline.commands.train", "train a network on this machine's or this job's ranks"),
    "predict": ("paceline.commands.predict", "use a trained network"),
    "study": ("paceline.commands.study", "run every cell of a study that is not done yet, and report"),
    "report": ("paceline.commands.report", "compare runs: a table and a plot"),
    "trace": ("paceline.commands.trace", "a run in time: a trace for Perfetto, a picture of a few steps"),
    "export": ("paceline.commands.export", "runs for TensorBoard and MLflow"),
    "bench": ("paceline.commands.bench", "measure collectives on this machine, against theory and MPI"),
    "simulate": ("paceline.commands.simulate", "predict scaling; run an mpi4py program on simulated ranks"),
    "doctor": ("paceline.doctor", "what is wrong with this machine's or this job's set-up"),
    "list": ("paceline.commands.list", "every strategy, collective, model, data set … with its options"),
}


class Parser(argparse.ArgumentParser):
    """Bad input gets one line and exit status 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        (file or sys.stderr).write(message)  # argparse's own hides that it could not be written


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status: 2 for bad input, 1 where the system failed, both with one line."""
    _open_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    chosen = next((word for word in words if not word.startswith("-")), None)
    said = f"paceline {chosen}" if chosen in COMMANDS else "paceline"
    try:
        try:
            return _run(words, chosen)
        finally:
            sys.stdout.flush()
    except UsageError as error:
        print(f"{said}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _drop_output()
        return 141
    except OSError as error:  # a full disk, as a rule
        where = "" if error.filename is None else f"{error.filename}: "
        print(f"{said}: {where}{(error.strerror or str(error)).lower()}", file=sys.stderr)
        _drop_output()
        return 1


def _run(words: Sequence[str], chosen: str | None) -> int:
    statuses = "exit status: 0 done, 1 failed, 2 bad input or a place that cannot be read or written, 130 interrupted"
    parser = Parser(prog="paceline", description=paceline.__doc__, epilog=statuses)
    parser.add_argument("--version", action="version", version=f"paceline {paceline.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for name, (module, text) in COMMANDS.items():
        command = commands.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        if name == chosen:
            importlib.import_module(module).add_arguments(command)
    parsed = parser.parse_args(words)
    logging.basicConfig(format="paceline: %(message)s", level=logging.WARNING)
    status: int = importlib.import_module(COMMANDS[parsed.command][0]).main(parsed)
    return status


def _open_streams() -> None:
    """Standard streams that can be used: closed ones lead nowhere, and no path or name is too strange to print."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number)  # also where it is the same: whatever is started inherits it
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115
    for stream, errors in ((sys.stdout, "surrogateescape"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            if codecs.lookup(stream.encoding).name in ("ascii", "utf-8"):
                stream.reconfigure(encoding="utf-8", errors=errors)
            else:
                stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """What could not be written is not tried again when the process ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
