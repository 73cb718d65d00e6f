"""`fit(…, ranks=4)` from a plain script or notebook: the job goes to ranks started for it, the results come back.

The parent hands rank 0 the job over a private socket, with large arrays of the data in files that all ranks map; rank 0
hands it on to the others. Back come the figures and, in a file, the trained parameters.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from paceline.comm.control import shared_bytes
from paceline.errors import AgreedError, UsageError
from paceline.models import put_state, state_of
from paceline.training.job import Job
from paceline.training.rank import Fitted, train

LARGE = 1 << 16  # bytes from which an array of the data travels as a file


def fit_on_ranks(job: Job, ranks: int, *, quiet: bool) -> Fitted:
    """Run `job` on `ranks` new ranks of this machine; a model given as an object is trained in place."""
    from paceline.launch import run, serve

    data, _ = job.check(ranks)
    model: Any = None
    if job.model is not None:  # what cannot be a model is refused here, and what is one gets the result
        model = job.build(data)
    answers: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        payload = _packed(replace(job, data=data, model=model), Path(folder), _width(quiet), quiet)
        with serve(payload, answers.append) as variables:
            command = [sys.executable, "-m", "paceline.launch.remote"]
            status = run(
                ranks, command, threads=job.config.threads, environment=variables, bind=True,
                launcher=job.launcher(),
            )  # fmt: skip
        if not answers:
            if status == 130:
                raise KeyboardInterrupt
            raise RuntimeError(
                f"the {ranks} ranks ended with exit status {status}; what went wrong is said above"
            )
        answer = answers[-1]
        if "refused" in answer:
            raise UsageError(answer["refused"])
        if model is None:
            model = job.build(data)
        with np.load(Path(folder) / "model.npz", allow_pickle=False) as state:
            put_state(model, state)
    fitted: Fitted = answer["fitted"]
    return replace(fitted, model=model, strategy=job.name())


def _width(quiet: bool) -> int | None:
    return shutil.get_terminal_size().columns if not quiet and sys.stderr.isatty() else None


def _packed(job: Job, folder: Path, width: int | None, quiet: bool) -> bytes:
    """The job as bytes, large arrays of its data as files in `folder`."""

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, thing: Any) -> Any:
            if type(thing) is np.ndarray and thing.nbytes >= LARGE and not thing.dtype.hasobject:
                path = folder / f"{len(list(folder.iterdir()))}.npy"
                np.save(path, thing, allow_pickle=False)
                return _mapped, (str(path),)
            return super().reducer_override(thing)

    data = io.BytesIO()
    try:
        Pickler(data).dump(job.data)
        # As bytes within bytes: what lies in modules beside the script can be read only after sys.path is set.
        rest = cloudpickle.dumps(replace(job, data=None))
        return cloudpickle.dumps((sys.path, data.getvalue(), rest, str(folder), width, quiet))  # type: ignore[no-any-return]
    except (TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise UsageError(f"the model, data or strategy cannot be sent to other processes: {error}") from error


def _mapped(path: str) -> NDArray[Any]:
    array: NDArray[Any] = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    return array


def main() -> int:
    """One rank of such a job."""
    from paceline import launch
    from paceline.comm.world import communicator

    launch.take_cores()
    comm = communicator()
    with launch.abort_on_error(comm):
        up = None
        payload = b""
        if comm.Get_rank() == 0:
            payload, up = launch.receive()
        path, data, rest, folder, width, quiet = cloudpickle.loads(shared_bytes(comm, payload))
        sys.path[:] = path
        job = replace(cloudpickle.loads(rest), data=cloudpickle.loads(data))
        try:
            fitted = train(job, comm, progress=None if quiet else _progress(width))
        except AgreedError as refused:
            if up is not None:
                up.send({"refused": str(refused)})
            return 0
        if up is not None:
            from paceline.files import write_arrays

            write_arrays(Path(folder) / "model.npz", state_of(fitted.model))
            up.send({"fitted": replace(fitted, model=None)})  # type: ignore[arg-type]
            up.close()
    return 0


def _progress(width: int | None) -> Any:
    from paceline.training.progress import on

    return on(sys.stderr, width=width)


if __name__ == "__main__":
    sys.exit(main())
