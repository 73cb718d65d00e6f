"""Takes the launchers' own paragraphs out of a job's output.

When a rank ends with an error, mpiexec adds a paragraph about itself: the line that the rank printed is what
the user needs. Only what is known is taken out; a paragraph about a signal becomes one line, because there
the rank could say nothing. Everything else passes at once and unchanged, unfinished lines too.
"""

from __future__ import annotations

import os
import re

DASHES = b"-" * 74 + b"\n"  # Open MPI's: above and below
EQUALS = b"=" * 83 + b"\n=   BAD TERMINATION"  # MPICH's
LONGEST = 4096

DROPPED = re.compile(
    rb"(prterun|mpirun|mpiexec) (detected that one or more processes exited with non-zero status"
    rb"|has exited due to process rank)"
    rb"|MPI_ABORT was invoked on rank"
    rb"|Primary job +terminated normally, but"
    rb"|PMIX ERROR: PMIX_ERR_(UNREACH|LOST_CONNECTION|COMM_FAILURE) ",
)
SIGNAL_OPEN_MPI = re.compile(
    rb"process rank (\d+) with PID (\d+) on node (\S+) exited on\s+signal (\d+) \((.*?)\)"
)
SIGNAL_MPICH = re.compile(rb"PID (\d+) RUNNING AT (\S+)\n.*EXIT STRING: (.*?) \(signal (\d+)\)", re.DOTALL)


class Banners:
    """One output stream: `feed` it what arrives, pass on what it returns; `flush` when nothing more came.

    >>> stream = Banners()
    >>> stream.feed(b"loss 0.2\\r")
    b'loss 0.2\\r'
    >>> stream.feed(DASHES + b"MPI_ABORT was invoked on rank 1\\n" + DASHES + b"bye")
    b'bye'
    """

    def __init__(self, host: str = "") -> None:
        line = f"[{host or os.uname().nodename}:".encode()  # Open MPI's single lines
        self._ends = {DASHES: DASHES, EQUALS: b"debugging suggestions\n", line: b"\n"}
        self._start = re.compile(b"|".join(re.escape(start) for start in self._ends))
        self._held = b""
        self._dropped = False
        self.signal: int | None = None  # what ended a rank, if a signal did

    @property
    def holds(self) -> bool:
        """Whether something waits for its end."""
        return bool(self._held)

    def feed(self, data: bytes) -> bytes:
        held, out = self._held + data, b""
        while found := self._start.search(held):
            start = found[0]
            out, held = out + held[: found.start()], held[found.start() :]
            end = held.find(self._ends[start], len(start))
            if end < 0 and len(held) <= LONGEST:
                self._held = held
                return out
            if end < 0:  # too long for a paragraph of theirs
                out, held = out + start, held[len(start) :]
                continue
            end += len(self._ends[start])
            instead = self._judge(held[:end])
            self._dropped |= instead != held[:end]
            if start == EQUALS and self._dropped:  # an empty line stands above it
                out = re.sub(rb"(^|\n)\n$", rb"\1", out)
            out, held = out + instead, held[end:]
        if self._dropped:
            held = held.replace(b"\0", b"")  # Open MPI ends its paragraph with one
        kept = max(_overlap(held, start) for start in self._ends)
        self._held = held[len(held) - kept :]
        return out + held[: len(held) - kept]

    def flush(self) -> bytes:
        held, self._held = self._held, b""
        return held

    def _judge(self, block: bytes) -> bytes:
        """What is printed in the place of a whole paragraph."""
        if match := SIGNAL_OPEN_MPI.search(block):
            rank, process, host, number, name = match.groups()
            return self._ended(b"rank " + rank, process, host, number, name)
        if match := SIGNAL_MPICH.search(block):
            process, host, name, number = match.groups()
            return self._ended(b"a rank", process, host, number, name)
        if DROPPED.search(block):
            return b""
        return block

    def _ended(self, who: bytes, process: bytes, host: bytes, number: bytes, name: bytes) -> bytes:
        self.signal = int(number)
        why = b"; the kernel does that when memory runs out" if self.signal == 9 else b""
        return b"%s (process %s on %s) was ended by signal %s (%s)%s\n" % (
            who,
            process,
            host,
            number,
            name,
            why,
        )


def _overlap(data: bytes, start: bytes) -> int:
    """How many bytes at the end of `data` may be the beginning of `start`."""
    return next((n for n in range(min(len(start) - 1, len(data)), 0, -1) if data.endswith(start[:n])), 0)
