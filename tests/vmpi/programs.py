"""Random communication programs that end, and whose outcome MPI's rules determine: drawn from a seed, as plain data.

A program is a list of rounds. A round's messages are received in an order in which each receive can take one message only,
whatever the timing: by source and tag in the order of sending, or with wildcards where only one message can be meant.
Receives are posted before anything is sent, so that nobody waits in a circle.
"""

from __future__ import annotations

import random
from typing import Any

KINDS = ["u1", "i2", "i4", "i8", "f4", "f8", "c16", "?"]
NUMBERS = ["i2", "i4", "i8", "f4", "f8"]
WHOLE = ["u1", "i4", "i8"]
LENGTHS = [0, 0, 1, 1, 2, 3, 5, 8, 17, 100, 1500, 5001]
SENDS = ["Isend", "Isend", "Send", "Issend", "Ssend"]
ENDS = ["Waitall", "Waitany", "Waitsome", "Wait backwards", "Test", "Testall", "Testany", "Testsome"]
MOVING = [
    "Bcast",
    "Gather",
    "Scatter",
    "Allgather",
    "Alltoall",
    "Gatherv",
    "Scatterv",
    "Allgatherv",
    "Alltoallv",
]
COMBINING = ["Reduce", "Allreduce", "Scan", "Exscan", "Reduce_scatter", "Reduce_scatter_block"]
OBJECTS = [
    "bcast",
    "gather",
    "allgather",
    "scatter",
    "alltoall",
    "reduce",
    "allreduce",
    "scan",
    "exscan",
    "ring",
]
Round = dict[str, Any]


def program(seed: int, p: int, rounds: int = 8) -> list[Round]:
    """The program of this seed for `p` ranks."""
    draw = random.Random(f"{seed} {p}")
    return [_round(draw, p, depth=0) for _ in range(rounds)]


def _round(draw: random.Random, p: int, depth: int) -> Round:
    makers = [_messages] * 5 + [
        _shift,
        _probed,
        _moved,
        _moved,
        _combined,
        _combined,
        _objects,
        _contexts,
        _repeated,
    ]
    if depth < 2:
        makers += [_split, _dup]
    maker = draw.choice(makers)
    drawn: Round = maker(draw, p, depth) if maker in (_split, _dup) else maker(draw, p)
    return {"seed": draw.randrange(1000), **drawn}


# ---- messages


def _messages(draw: random.Random, p: int) -> Round:
    sent = [
        {
            "source": draw.randrange(p), "dest": draw.randrange(p), "tag": draw.randrange(3), "kind": draw.choice(KINDS),
            "length": draw.choice(LENGTHS), "call": draw.choice(SENDS), "number": number,
        }
        for number in range(draw.randrange(1, 4 * p))
    ]  # fmt: skip
    for message in sent:  # to itself a rank does not wait
        if message["source"] == message["dest"]:
            message["call"] = "Isend"
    receives = [_receives(draw, [each for each in sent if each["dest"] == rank]) for rank in range(p)]
    return {
        "what": "messages",
        "sent": sent,
        "receives": receives,
        "end": [draw.choice(ENDS) for _ in range(p)],
    }


def _receives(draw: random.Random, coming: list[Round]) -> list[Round]:
    """Receives for what comes to one rank: which, in which order, with which wildcards."""
    sources = {each["source"] for each in coming}
    way = draw.choice(["exact", "any tag", "any source"])
    if (
        way == "any tag"
    ):  # each source's messages in its order: a receive takes the next one, whatever its tag
        order = _merged(draw, [[each for each in coming if each["source"] == source] for source in sources])
        wild = [(False, draw.random() < 0.5) for _ in order]
    elif way == "any source" and len(sources) == 1:
        order = coming
        wild = [(draw.random() < 0.5, draw.random() < 0.5) for _ in order]
    elif way == "any source":  # a tag that only one rank uses
        tags = {each["tag"] for each in coming}
        alone = {tag for tag in tags if len({each["source"] for each in coming if each["tag"] == tag}) == 1}
        order = _merged(draw, [[each for each in coming if each["tag"] == tag] for tag in sorted(tags)])
        wild = [(each["tag"] in alone and draw.random() < 0.6, False) for each in order]
    else:
        keys = sorted({(each["source"], each["tag"]) for each in coming})
        order = _merged(
            draw, [[each for each in coming if (each["source"], each["tag"]) == key] for key in keys]
        )
        wild = [(False, False) for _ in order]
    return [
        {"number": each["number"], "any source": source, "any tag": tag, "more": draw.choice([0, 0, 1, 4])}
        for each, (source, tag) in zip(order, wild, strict=True)
    ]


def _merged(draw: random.Random, queues: list[list[Round]]) -> list[Round]:
    """Several queues in one, each in its order."""
    left = [list(queue) for queue in queues if queue]
    found = []
    while left:
        queue = draw.choice(left)
        found.append(queue.pop(0))
        left = [queue for queue in left if queue]
    return found


def _shift(draw: random.Random, p: int) -> Round:
    return {
        "what": "shift", "by": draw.randrange(p), "around": draw.random() < 0.5, "replace": draw.random() < 0.3,
        "kind": draw.choice(KINDS), "lengths": [draw.choice(LENGTHS) for _ in range(p)],
        "any": draw.random() < 0.3,
    }  # fmt: skip


def _probed(draw: random.Random, p: int) -> Round:
    source = draw.randrange(p)
    dest = (source + draw.randrange(1, p)) % p
    return {
        "what": "probed", "source": source, "dest": dest, "tag": draw.randrange(5), "kind": draw.choice(KINDS),
        "length": draw.choice(LENGTHS), "call": draw.choice(["Probe", "Iprobe", "Mprobe", "Improbe", "nobody"]),
        "any source": draw.random() < 0.5, "any tag": draw.random() < 0.5, "send": draw.choice(SENDS),
    }  # fmt: skip


def _contexts(draw: random.Random, p: int) -> Round:
    """The same source, dest and tag in two communicators: each receive takes its own communicator's message."""
    source = draw.randrange(p)
    return {
        "what": "contexts", "source": source, "dest": (source + draw.randrange(1, p)) % p,
        "length": draw.choice(LENGTHS), "second first": draw.random() < 0.5,
    }  # fmt: skip


def _repeated(draw: random.Random, p: int) -> Round:
    return {
        "what": "repeated", "by": draw.randrange(p), "times": draw.randrange(1, 4), "kind": draw.choice(NUMBERS),
        "length": draw.choice(LENGTHS),
    }  # fmt: skip


# ---- all together


def _moved(draw: random.Random, p: int) -> Round:
    call = draw.choice(MOVING)
    lengths = [[draw.choice(LENGTHS[:9]) for _ in range(p)] for _ in range(p)]
    return {
        "what": "moved", "call": call, "wait": draw.random() < 0.7, "root": draw.randrange(p),
        "kind": draw.choice(KINDS), "length": draw.choice(LENGTHS), "lengths": lengths, "gap": draw.randrange(3),
        "in place": draw.random() < 0.25, "listed": draw.random() < 0.5,
    }  # fmt: skip


def _combined(draw: random.Random, p: int) -> Round:
    op = draw.choice(["SUM", "PROD", "MAX", "MIN", "BAND", "BOR", "BXOR", "LAND", "LOR", "own", "first"])
    return {
        "what": "combined", "call": draw.choice(COMBINING), "wait": draw.random() < 0.7, "root": draw.randrange(p),
        "kind": draw.choice(WHOLE if op[0] in "BL" else NUMBERS), "length": draw.choice(LENGTHS), "op": op,
        "lengths": [draw.choice(LENGTHS[:9]) for _ in range(p)], "in place": draw.random() < 0.25,
    }  # fmt: skip


def _objects(draw: random.Random, p: int) -> Round:
    return {
        "what": "objects", "call": draw.choice(OBJECTS), "root": draw.randrange(p),
        "op": draw.choice(["SUM", "MAX", "MIN", "MAXLOC", "BOR"]), "length": draw.choice([0, 1, 5, 3000]),
    }  # fmt: skip


# ---- communicators


def _split(draw: random.Random, p: int, depth: int) -> Round:
    colors = [draw.choice([0, 0, 1, 1, 2, -1]) for _ in range(p)]
    inner = {
        str(color): [_round(draw, colors.count(color), depth + 1) for _ in range(2)]
        for color in sorted(set(colors))
        if color >= 0 and colors.count(color) > 1
    }
    return {"what": "split", "colors": colors, "keys": [draw.randrange(3) for _ in range(p)], "inner": inner}


def _dup(draw: random.Random, p: int, depth: int) -> Round:
    return {"what": "dup", "inner": [_round(draw, p, depth + 1) for _ in range(2)]}
