"""Takes the launchers' own paragraphs out of a job's output, and reads in them how the ranks ended.

When a rank ends with an error, mpiexec adds a paragraph about itself: the line that the rank printed is what
the user needs. Only what is known is taken out; a paragraph about a signal becomes one line, because there
the rank could say nothing. Everything else passes at once and unchanged, unfinished lines too.
"""

from __future__ import annotations

import os
import re
import signal

DASHES = b"-" * 74 + b"\n"  # Open MPI's: above and below
EQUALS = b"=" * 83 + b"\n=   BAD TERMINATION"  # MPICH's, with an empty line above
LONGEST = 16384

DROPPED = re.compile(
    rb"(prterun|mpirun|mpiexec) (detected that one or more processes exited with non-zero status"
    rb"|has exited due to process rank)"
    rb"|MPI_ABORT was invoked on rank"
    rb"|Primary job +terminated normally, but"
    rb"|PMIX ERROR: PMIX_ERR_(UNREACH|LOST_CONNECTION|COMM_FAILURE) "
    rb"|\[warn\] Epoll [A-Z]+\(\d+\) on fd \d+ failed\."
    rb"|BAD TERMINATION"
    # Hydra's processes about each other's end; what they say of a program that cannot be started is not among it.
    rb"|^\[(proxy:|mpiexec@)[^]]*\] \w+ \([^)]*\): (assert \(!\w*closed\) failed|(sock )?(read|write) error"
    rb"|callback returned error|.*error waiting for)",
)
SIGNAL = re.compile(rb"process rank (\d+) with PID \d+ on node (\S+) exited on\s+signal (\d+)")
CODES = re.compile(rb"\] Exit codes: \[(\S+)\] ([\d,]+)\n")


class Banners:
    """One output stream: `feed` it what arrives, pass on what it returns; `flush` when nothing more came.

    >>> stream = Banners()
    >>> stream.feed(b"loss 0.2\\r")
    b'loss 0.2\\r'
    >>> stream.feed(DASHES + b"MPI_ABORT was invoked on rank 1\\n" + DASHES + b"bye")
    b'bye'
    """

    def __init__(self, host: str = "") -> None:
        host = host or os.uname().nodename
        self._ends = {
            DASHES: DASHES,
            EQUALS: b"debugging suggestions\n",
            f"[{host}:".encode(): b"\n",  # Open MPI's single lines
            f"[mpiexec@{host}]".encode(): b"\n",  # MPICH's
            b"[proxy:": b"\n",
            b"[warn] Epoll ": b"\n",  # Open MPI's event loop, when a rank's output closes as the job ends
        }
        self._start = re.compile(rb"\n?(" + b"|".join(re.escape(start) for start in self._ends) + b")")
        self._held = b""
        self._dropped = False
        self._fresh = True  # at the beginning of a line
        self.status: int | None = None  # the exit status that the launcher tells of, 128 + the signal if one

    @property
    def holds(self) -> bool:
        """Whether something waits for its end that must not wait long: an empty line can."""
        return self._held not in (b"", b"\n")

    def feed(self, data: bytes) -> bytes:
        """What can be passed on, now that `data` has come."""
        out = self._sort(data)
        self._fresh = out.endswith(b"\n") if out else self._fresh
        return out

    def flush(self, *, end: bool = False) -> bytes:
        """What was held back: nothing more of it came, so far or at the end of all.

        An empty line waits on: MPICH's paragraph comes a while after the one above it.
        """
        if not end and not self.holds:
            return b""
        held, self._held = self._held, b""
        self._fresh = held.endswith(b"\n") if held else self._fresh
        return held

    def _sort(self, data: bytes) -> bytes:
        held, out = self._held + data, b""
        while found := self._start.search(held):
            start = found[1]
            place = found.start(0 if start == EQUALS else 1)  # the empty line goes with it
            out, held = out + held[:place], held[place:]
            end = held.find(self._ends[start], len(start))
            if end < 0 and len(held) <= LONGEST:
                self._held = held
                return out
            if end < 0:  # too long for a paragraph of theirs
                out, held = out + held[: len(start)], held[len(start) :]
                continue
            end += len(self._ends[start])
            instead = self._judge(held[:end])
            self._dropped |= instead != held[:end]
            out, held = out + instead, held[end:]
        if self._dropped:
            held = held.replace(b"\0", b"")  # Open MPI ends its paragraph with one
        kept = max(_overlap(held, start) for start in self._ends)
        if 0 < kept < len(held) and held[-kept - 1 : -kept] == b"\n":
            kept += 1  # the empty line above goes with it
        if held.endswith(b"\n\n") or (held == b"\n" and self._fresh and not out):
            kept = 1
        self._held = held[len(held) - kept :]
        return out + held[: len(held) - kept]

    def _judge(self, block: bytes) -> bytes:
        """What is printed in the place of a whole paragraph."""
        if match := SIGNAL.search(block):
            return self._ended(f"rank {match[1].decode()} on {match[2].decode()}", int(match[3]))
        if match := CODES.search(block):
            return self._read_codes(match[1].decode(), [int(code) for code in match[2].split(b",")])
        return b"" if DROPPED.search(block) else block

    def _read_codes(self, host: str, codes: list[int]) -> bytes:
        """MPICH's list of wait statuses: who ended by itself, and whom the launcher ended for that."""
        signals = {rank: os.WTERMSIG(code) for rank, code in enumerate(codes) if os.WIFSIGNALED(code)}
        exits = [os.WEXITSTATUS(code) for code in codes if os.WIFEXITED(code) and os.WEXITSTATUS(code)]
        own = [rank for rank, number in signals.items() if number not in (signal.SIGKILL, signal.SIGTERM)]
        if exits and not own:
            self.status = exits[0]
            return b""
        who = own or [rank for rank, number in signals.items() if number == signal.SIGKILL] or list(signals)
        if not who:
            return b""
        name = f"rank {who[0]}" if len(who) == 1 or own else "a rank"
        return self._ended(f"{name} on {host}", signals[who[0]])

    def _ended(self, who: str, number: int) -> bytes:
        self.status = 128 + number
        if number == signal.SIGTERM:  # somebody wished it, and knows
            return b""
        why = "; the kernel does that when memory runs out" if number == signal.SIGKILL else ""
        return f"{who} was ended by signal {number} ({signal.strsignal(number)}){why}\n".encode()


def _overlap(data: bytes, start: bytes) -> int:
    """How many bytes at the end of `data` may be the beginning of `start`."""
    return next((n for n in range(min(len(start) - 1, len(data)), 0, -1) if data.endswith(start[:n])), 0)
