"""The launchers' paragraphs go, everything else passes unchanged."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from paceline.launch.job import DASHES, EQUALS, LONGEST, Banners

EXITED = (
    DASHES
    + b"""prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-host-8499@1,0]
   Exit code:    2
"""
    + DASHES
)
ABORTED = (
    DASHES
    + b"""MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD
  Proc: [[63434,1],1]
  Errorcode: 1

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
"""
    + DASHES
    + DASHES
    + b"""prterun has exited due to process rank 1 with PID 0 on node host calling
"abort". This may have caused other processes in the application to be
terminated by signals sent by prterun (as reported here).
"""
    + DASHES
    + b"\0"
)
KILLED = (
    DASHES
    + b"""prterun noticed that process rank 1 with PID 8589 on node host exited on
signal 9 (Killed).
"""
    + DASHES
)
OLD_EXITED = (
    DASHES
    + b"""Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
"""
    + DASHES
)
SEGFAULT_MPICH = b"\n" + b"=" * 83 + b"""
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 8724 RUNNING AT host
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
=   YOU CAN IGNORE THE BELOW CLEANUP MESSAGES
""" + b"=" * 83 + b"""
[mpiexec@here] Exit codes: [host] 9,11,0
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)
This typically refers to a problem with your application.
Please see the FAQ page for debugging suggestions
"""  # fmt: skip
UNREACHABLE = b"[here:19085] PMIX ERROR: PMIX_ERR_UNREACH in file /src/pmix_server.c at line 3146\n"
NO_PROGRAM_MPICH = (
    b"[proxy:0@here] HYDU_create_process (lib/launch.c:73): execvp error on file none (No such file)\n"
)
NO_PROGRAM = (
    DASHES + b"prterun was unable to find the specified executable file, and therefore did\n" + DASHES
)
BACKTRACE = b"[here:08600] *** Process received signal ***\n[here:08600] Signal: Segmentation fault (11)\n"


def codes(*numbers: int) -> bytes:
    return f"[mpiexec@here] Exit codes: [host] {','.join(map(str, numbers))}\n".encode()


OOM = b"; the kernel does this when memory runs out\n"
# What a launcher says, what is shown of it, and the exit status that it tells of.
PARAGRAPHS = [
    (EXITED, b"", None),
    (ABORTED, b"", None),
    (OLD_EXITED, b"", None),
    (UNREACHABLE, b"", None),
    (KILLED, b"rank 1 on host was ended by signal 9 (Killed)" + OOM, 137),
    (SEGFAULT_MPICH, b"rank 1 on host was ended by signal 11 (Segmentation fault)\n", 139),
    (b"[proxy:0@here] HYD_pmcd_pmip_control_cmd_cb (pm/pmip_cb.c:891): assert (!closed) failed\n", b"", None),
    (b"[proxy:0@here] HYDU_sock_write (lib/sock.c:256): write error (Broken pipe)\n", b"", None),
    (
        b"[mpiexec@here] main (mpiexec/mpiexec.c:210): process manager error waiting for completion\n",
        b"",
        None,
    ),
    (NO_PROGRAM_MPICH, NO_PROGRAM_MPICH, None),
    (codes(0, 0, 0), b"", None),
    (codes(9, 3 << 8, 0), b"", 3),  # rank 1 exited with 3, the launcher killed rank 0 for it
    (codes(2 << 8, 2 << 8), b"", 2),
    (codes(0, 9, 0), b"rank 1 on host was ended by signal 9 (Killed)" + OOM, 137),
    (codes(9, 9, 0), b"a rank on host was ended by signal 9 (Killed)" + OOM, 137),
    (codes(15, 15, 0), b"a rank on host was ended by signal 15 (Terminated)\n", 143),
    (codes(9, 11, 1 << 8), b"rank 1 on host was ended by signal 11 (Segmentation fault)\n", 139),
    (NO_PROGRAM, NO_PROGRAM, None),
    (BACKTRACE, BACKTRACE, None),
]


def through(pieces: list[bytes]) -> tuple[bytes, int | None]:
    stream = Banners("here")
    return b"".join([*(stream.feed(piece) for piece in pieces), stream.flush(end=True)]), stream.status


@pytest.mark.parametrize(("said", "shown", "number"), PARAGRAPHS)
def test_each_paragraph(said: bytes, shown: bytes, number: int | None) -> None:
    assert through([b"before\n" + said + b"after\n"]) == (b"before\n" + shown + b"after\n", number)


def test_the_end_of_a_job_that_was_asked_to_stop_is_no_news() -> None:
    stream = Banners("here")
    stream.asked = True
    assert stream.feed(codes(15, 15, 0)) + stream.flush(end=True) == b""
    assert stream.status == 143


def test_the_ranks_that_signals_ended_are_known() -> None:
    stream = Banners("here")
    stream.feed(KILLED)
    stream.feed(codes(0, 0, 11))
    assert stream.dead == [1, 2]


@given(st.sampled_from(PARAGRAPHS[:-1]), st.lists(st.integers(0, 900), max_size=8))
def test_it_does_not_matter_in_which_pieces_it_comes(
    paragraph: tuple[bytes, bytes, int | None], cuts: list[int]
) -> None:
    said, shown, number = paragraph
    places = sorted({min(cut, len(said)) for cut in cuts} | {0, len(said)})
    pieces = [said[a:b] for a, b in itertools.pairwise(places)]
    assert through(pieces) == (shown, number)


@given(
    st.lists(
        st.one_of(st.binary(max_size=20), st.sampled_from([DASHES, b"-" * 73, b"[here", b"=" * 83, b"\n"]))
    )
)
@example([DASHES, b"BAD TERMINATION", DASHES])
def test_what_is_no_paragraph_passes_unchanged(pieces: list[bytes]) -> None:
    assume(EQUALS not in b"".join(pieces))
    assert through(pieces) == (b"".join(pieces), None)


def test_nothing_waits_that_cannot_be_a_paragraph() -> None:
    stream = Banners("here")
    for piece in (b"loss 0.3\r", b"a prompt without an end: ", b"--- a rule\n", b"[####    ]", b"\n"):
        assert stream.feed(piece) == piece
        assert not stream.holds
    assert stream.feed(DASHES + b"a table of the user's\n") == b""
    assert stream.holds
    assert stream.flush() == DASHES + b"a table of the user's\n"


def test_the_launcher_s_event_loop_is_not_heard() -> None:
    said = b"[warn] Epoll MOD(1) on fd 20 failed. Old events were 6; read change was 0 (none): Bad file descriptor\n"
    assert through([b"the rank's line\n", said[:20], said[20:], b"bye"]) == (b"the rank's line\nbye", None)
    own = b"[warn] Epoll is what my script talks about\n"
    assert through([own]) == (own, None)


def test_an_empty_line_waits_for_what_may_stand_below_it() -> None:
    stream = Banners("here")
    assert stream.feed(b"words\n") == b"words\n"
    assert stream.feed(b"\n") == b""
    assert stream.feed(SEGFAULT_MPICH[1:]).startswith(b"rank 1")
    assert stream.feed(b"\n") == b""
    assert stream.feed(b"more") == b"\nmore"


def test_a_paragraph_without_an_end_is_let_go() -> None:
    stream = Banners("here")
    said = DASHES + b"x" * LONGEST
    assert stream.feed(said) == said


def test_the_empty_line_above_a_paragraph_waits_for_it() -> None:
    stream = Banners("here")
    assert stream.feed(b"said\n") == b"said\n"
    assert stream.feed(b"\n") == b""
    assert not stream.holds
    assert stream.flush() == b""
    assert (
        stream.feed(SEGFAULT_MPICH.lstrip(b"\n"))
        == b"rank 1 on host was ended by signal 11 (Segmentation fault)\n"
    )
    assert stream.feed(b"\n") == b""
    assert stream.flush(end=True) == b"\n"


LOST = DASHES + (
    b"PRTE has lost communication with a remote daemon.\n\n"
    b"  HNP daemon   : [prterun-h1-14@0,0] on node here\n  Remote daemon: [prterun-h1-14@0,2] on node there\n\n"
    b"therefore will terminate the job.\n"
) + DASHES  # fmt: skip


@pytest.mark.parametrize("said", [LOST, b"[paceline] lost host there\n"], ids=["Open MPI's", "our own"])
def test_a_lost_host_is_noticed(said: bytes) -> None:
    stream = Banners("here", "there")
    assert stream.feed(b"before\n" + said + b"after\n") == b"before\nafter\n"
    assert stream.lost == ["there"]


def test_a_paragraph_that_ends_with_its_launcher_is_dropped() -> None:
    cut = SEGFAULT_MPICH.partition(b"=   EXIT CODE")[0]
    assert through([b"words\n", cut]) == (b"words\n", None)
