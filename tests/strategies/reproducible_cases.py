"""Cases on real ranks for `test_reproducible`."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from paceline.config import Config
from paceline.training.job import Job
from paceline.training.rank import train
from tests.ranks import first


def digests(comm: Any, *, model: str, data: str, **settings: Any) -> dict[str, str]:
    """Return a digest of the trained parameters on 1, 2, 4 ... of the ranks."""
    found = {}
    job = Job(config=Config(model=model, data=data, reproducible=8, **settings), runs=None)
    ranks = 1
    while ranks <= comm.Get_size():
        with first(comm, ranks) as some:
            if some is not None:
                fitted = train(job, some)
                found[str(ranks)] = hashlib.sha256(np.asarray(fitted.model.x).tobytes()).hexdigest()
        ranks *= 2
    return found
