"""`python -m paceline`, and the command `paceline`.

Ctrl-C ends a command with status 130, at any time and without a traceback. While Python imports modules, parses arguments
and exits, there is nothing to clean up, and an exception could be raised anywhere: then Ctrl-C ends the process at once.
While the command works, it raises KeyboardInterrupt.
"""

import _signal as signal  # type: ignore[import-not-found] # signal takes 5 ms, in which Ctrl-C would end in a traceback
import os
import sys


def main() -> int:
    """Run the command in `sys.argv` and return its exit status."""
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not in a shell's background job
    if heard:
        signal.signal(signal.SIGINT, _leave)
        sys.unraisablehook = _report
    from paceline import cli

    try:
        return cli.main(on_start=_interrupt if heard else None)
    finally:
        if heard:
            signal.signal(signal.SIGINT, _leave)
        # After a KeyboardInterrupt inside exec or eval of a text, as in the making of a dataclass, `python -m` ends itself
        # with SIGINT when it exits, even if the exception was handled. The next such call makes it forget.
        eval("0")


def _leave(number: int, frame: object) -> None:
    os._exit(128 + number)


def _interrupt() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _report(ignored: "sys.UnraisableHookArgs") -> None:
    """Report an exception that Python cannot raise, as usual; but a second Ctrl-C is no news."""
    if ignored.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(ignored)


if __name__ == "__main__":
    sys.exit(main())
