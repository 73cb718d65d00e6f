"""The command line: names and options; the work is in `paceline.commands` and the modules it calls."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence
from typing import NoReturn

import paceline
from paceline.errors import UsageError

COMMANDS = {
    "train": ("paceline.commands.train", "train a network on this machine's or this job's ranks"),
    "predict": ("paceline.commands.predict", "use a trained network"),
    "report": ("paceline.commands.report", "compare runs: a table and a plot"),
    "bench": ("paceline.commands.bench", "measure collectives on this machine, against theory and MPI"),
    "doctor": ("paceline.doctor", "what is wrong with this machine's or this job's set-up"),
    "list": ("paceline.commands.list", "every strategy, collective, model, data set … with its options"),
}


class Parser(argparse.ArgumentParser):
    """Bad input gets one line and exit status 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = Parser(prog="paceline", description=paceline.__doc__)
    parser.add_argument("--version", action="version", version=f"paceline {paceline.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    chosen = next((word for word in words if not word.startswith("-")), None)
    for name, (module, text) in COMMANDS.items():
        command = commands.add_parser(
            name, help=text, description=text[0].upper() + text[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        if name == chosen:
            importlib.import_module(module).add_arguments(command)
    parsed = parser.parse_args(words)
    logging.basicConfig(format="paceline: %(message)s", level=logging.WARNING)
    try:
        status: int = importlib.import_module(COMMANDS[parsed.command][0]).main(parsed)
    except UsageError as error:
        print(f"paceline {parsed.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 141
    return status
