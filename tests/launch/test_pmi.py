"""What passes between MPICH and Slurm arrives whole, however long it is."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from paceline.launch import prepare as _prepare
from paceline.launch.pmi import relay
from paceline.launch.prepare import apply_settings
from paceline.launch.world import World


def slurm(connection: socket.socket, asked: list[bytes]) -> None:
    """Answers as Slurm does: a request is what one read of 1,024 bytes brings."""
    kept: dict[bytes, bytes] = {}
    while line := connection.recv(1024):
        asked.append(line)
        assert line.endswith(b"\n")
        words = dict(word.split(b"=", 1) for word in line[:-1].split(b" "))
        if words[b"cmd"] == b"put":
            kept[words[b"key"]] = words[b"value"]
            connection.sendall(b"cmd=put_result rc=0\n")
        elif words[b"cmd"] == b"get":
            found = kept.get(words[b"key"])
            connection.sendall(
                b"cmd=get_result rc=1\n" if found is None else b"cmd=get_result rc=0 value=%b\n" % found
            )
        else:
            connection.sendall(b"cmd=barrier_out rc=0\n")


@pytest.fixture
def talk() -> Iterator[tuple[socket.socket, list[bytes]]]:
    """A rank's end of the line, and what Slurm was asked."""
    asked: list[bytes] = []
    (mpich, rank), (out, server) = socket.socketpair(), socket.socketpair()
    threads = [
        threading.Thread(target=relay, args=(rank, out)),
        threading.Thread(target=slurm, args=(server, asked)),
    ]
    for thread in threads:
        thread.start()
    mpich.settimeout(20)
    yield mpich, asked
    mpich.close()
    threads[0].join()
    out.close()  # as the process's end does
    threads[1].join()
    for end in (rank, server):
        end.close()


def ask(mpich: socket.socket, line: bytes) -> bytes:
    mpich.sendall(line)
    answer = b""
    while not answer.endswith(b"\n"):
        answer += mpich.recv(4096)
    return answer


@pytest.mark.parametrize("size", [1, 985, 986, 987, 988, 1022, 1600, 1601, 5000])
def test_a_value_of_any_length_comes_back(talk: tuple[socket.socket, list[bytes]], size: int) -> None:
    mpich, asked = talk
    value = (b"0123456789ABCDEF" * 400)[:size]
    put = b"cmd=put kvsname=1.0 key=-bc-1-seg-3/9 value=%b\n" % value
    assert ask(mpich, put) == b"cmd=put_result rc=0\n"
    assert ask(mpich, b"cmd=barrier_in\n") == b"cmd=barrier_out rc=0\n"
    got = ask(mpich, b"cmd=get kvsname=1.0 key=-bc-1-seg-3/9\n")
    assert got == b"cmd=get_result rc=0 value=%b\n" % value
    assert ask(mpich, b"cmd=get kvsname=1.0 key=other\n") == b"cmd=get_result rc=1\n"
    assert (put in asked) == (len(put) <= 1024)


@pytest.mark.parametrize(
    ("launcher", "local_size", "wheel", "interposed"),
    [
        ("srun", 2, True, True),
        ("srun", 4, True, False),  # one node: no address is given to Slurm
        ("srun", 2, False, False),  # the cluster's own may speak another protocol
        ("mpiexec of MPICH", 2, True, False),
    ],
)
def test_it_is_there_for_the_wheel_under_srun_on_several_nodes(
    monkeypatch: pytest.MonkeyPatch, launcher: str, local_size: int, wheel: bool, interposed: bool
) -> None:
    here = World(rank=0, size=4, local_rank=0, local_size=local_size, launcher=launcher)
    called: list[str] = []
    monkeypatch.setattr(_prepare, "world", lambda: here)
    monkeypatch.setattr(_prepare, "installed_wheels", lambda: {"mpich": None} if wheel else {})
    monkeypatch.setattr(_prepare, "interpose", lambda: called.append(os.environ["PMI_FD"]))
    monkeypatch.setenv("PMI_FD", "4")
    with apply_settings("MPICH", (5, 0, 2)):
        assert called == (["4"] if interposed else [])
