"""A relay between MPICH and Slurm that splits long lines of their protocol (PMI 1).

With UCX, MPICH publishes the address of each node's first rank through Slurm, padded to 4 KB with whatever follows it in
memory. Its lines are longer than 1,024 bytes unless zeros shorten them. Slurm reads 1,024 bytes and takes the rest for
another request: ranks get broken addresses or wait for ever. So each rank talks to a small process that stores a long
value under several keys and joins the pieces again; that process ends with the rank.

This file is also that process's program: it imports nothing from paceline.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys

REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
LINE = 1024  # bytes that Slurm reads at a time
PIECE = 800
MARK = b"~"  # marks a value that is the number of pieces; MPICH's values are hexadecimal or words


def interpose() -> None:
    """Put the relay between this process and Slurm, at the descriptor that MPICH will use, before MPI is started."""
    slurm = int(os.environ["PMI_FD"])
    ours, theirs = socket.socketpair()
    with ours, theirs:
        os.set_inheritable(theirs.fileno(), True)
        os.set_inheritable(slurm, True)
        program = [sys.executable, "-I", "-S", __file__, str(theirs.fileno()), str(slurm)]
        # srun sends signals that ask a rank to stop to this process, too, which must live as long as the rank.
        os.posix_spawn(sys.executable, program, os.environ, setsigmask=REQUESTS)
        os.dup2(ours.fileno(), slurm)


def relay(rank: socket.socket, slurm: socket.socket) -> None:
    """Pass lines on until either side has closed."""
    unread = b""
    while True:
        ready, _, _ = select.select([rank, slurm], [], [])
        if slurm in ready:
            answer = slurm.recv(65536)
            if not answer:
                return
            rank.sendall(answer)
        if rank in ready:
            asked = rank.recv(65536)
            if not asked:
                return
            *lines, unread = (unread + asked).split(b"\n")
            for line in lines:
                _pass(line + b"\n", rank, slurm)


def _pass(line: bytes, rank: socket.socket, slurm: socket.socket) -> None:
    if line.startswith(b"cmd=put ") and len(line) > LINE:
        head, _, value = line[:-1].partition(b" value=")
        pieces = [value[at : at + PIECE] for at in range(0, len(value), PIECE)]
        for number, piece in enumerate(pieces):
            _ask(slurm, head + b"%b%d value=" % (MARK, number) + piece + b"\n")
        line = head + b" value=%b%d\n" % (MARK, len(pieces))
    elif line.startswith(b"cmd=get "):
        answer = _ask(slurm, line)
        head, _, value = answer[:-1].partition(b" value=")
        if value.startswith(MARK):
            answers = [
                _ask(slurm, line[:-1] + b"%b%d\n" % (MARK, number)) for number in range(int(value[1:]))
            ]
            answer = head + b" value=" + b"".join(a[:-1].partition(b" value=")[2] for a in answers) + b"\n"
        rank.sendall(answer)
        return
    slurm.sendall(line)


def _ask(slurm: socket.socket, line: bytes) -> bytes:
    """Send `line` and return the line that answers it."""
    slurm.sendall(line)
    answer = b""
    while not answer.endswith(b"\n"):
        more = slurm.recv(65536)
        if not more:
            raise SystemExit(1)
        answer += more
    return answer


if __name__ == "__main__":
    try:
        relay(*(socket.socket(fileno=int(word)) for word in sys.argv[1:3]))
    except OSError:  # one of the two is gone
        sys.exit(1)
