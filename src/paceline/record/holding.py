"""Who writes a run's folder: one process at a time.

While a run is under way, rank 0 holds a lock on the file `running` in its folder. The system gives it back when the process
ends, however that happens, so a run that was killed can be resumed at once, and one that is alive is not resumed twice.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from paceline.errors import UsageError
from paceline.files import cannot

NAME = "running"
# Of file systems without locks: runs in them are not protected.
WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}

_held: dict[Path, int] = {}


def hold(folder: Path, *, anyway: bool = False) -> None:
    """Hold a run's folder for this process; raise a UsageError if another one does.

    `anyway`: the process that held it is known to be gone, but its host was lost and cannot tell the file server.
    """
    path = folder.resolve() / NAME
    if path in _held:
        return
    if anyway:
        path.unlink(missing_ok=True)
    file = _locked(path, os.O_CREAT)
    assert file is not None
    _held[path] = file
    os.ftruncate(file, 0)
    os.write(file, f"process {os.getpid()} on {os.uname().nodename} since {_now()}\n".encode())


def release(folder: Path) -> None:
    """Let others have a run's folder, if this process holds it."""
    path = folder.resolve() / NAME
    if (file := _held.pop(path, None)) is not None:
        with suppress(OSError):  # the folder may be gone, or something else may be in its place
            if _is(path, file):
                path.unlink(missing_ok=True)
        os.close(file)


def check_idle(folder: Path) -> None:
    """Raise a UsageError if another process trains the run in a folder."""
    path = folder.resolve() / NAME
    if path not in _held and (file := _locked(path, 0)) is not None:
        os.close(file)


def is_held(folder: Path) -> bool:
    """Return True if a process seems to train the run in a folder; the lock itself is not touched.

    A process on another host counts as alive.
    """
    try:
        words = (folder / NAME).read_text(errors="replace").split()
        if words[0::2][:2] != ["process", "on"] or words[3] != os.uname().nodename:
            return len(words) > 3
        os.kill(int(words[1]), 0)
    except PermissionError:
        return True  # somebody else's process
    except (OSError, ValueError, IndexError, OverflowError):
        return False
    return True


def _locked(path: Path, flags: int) -> int | None:
    """Open and lock a file; return None if there is none and none is to be created."""
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags, 0o644)
        except FileNotFoundError:
            if flags:
                raise
            return None
        except OSError as error:
            if flags:
                raise
            raise cannot(path, error) from None
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError(errno.EINVAL, "it is not a file", str(path))
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    who = " ".join(os.read(file, 200).decode(errors="replace").split())
                    raise UsageError(
                        f"{path.parent} is being trained ({who or 'by another process'}): wait for its end, or stop it; "
                        f"if its host was lost, remove {path}"
                    ) from None
                if error.errno not in WITHOUT_LOCKS:
                    raise
            if _is(path, file):
                return file
            os.close(file)  # removed by the process that held it
        except BaseException:
            os.close(file)
            raise


def _is(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
