"""A job started by a parent of its own, so that a test can end either of them in any way, and look what is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.ranks import ROOT


class Started:
    """A parent with a job, in a temporary folder of its own."""

    def __init__(self, what: str, folder: Path, ranks: int = 3) -> None:
        self.folder = folder
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.launch.job", "parent", what, str(ranks)], env=environment, cwd=ROOT,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        line = self._first_line()
        if not line.startswith("[{"):
            raise AssertionError("\n".join(["the job did not start", line, *self.process.communicate()]))
        self.ranks: list[dict[str, Any]] = sorted(json.loads(line), key=lambda one: one["rank"])

    def _first_line(self) -> str:
        """Read one line and nothing behind it: `communicate` would miss what is left in a buffer."""
        assert self.process.stdout is not None
        line = b""
        while not line.endswith(b"\n") and (byte := os.read(self.process.stdout.fileno(), 1)):
            line += byte
        return line.decode()

    def end(self) -> tuple[int, str, str]:
        """The parent's exit status, and the rest of what was said."""
        out, err = self.process.communicate(timeout=280)
        return self.process.returncode, out, err

    def left(self) -> list[str]:
        """What is still there of the job: processes, segments, files."""
        pids = {one[who] for one in self.ranks for who in ("pid", "mpiexec", "supervisor")}
        names = {name for one in self.ranks for name in one["segments"]} | {self.ranks[0]["folder"]}
        alive = [f"process {pid}" for pid in pids if lives(pid)]
        return (
            alive + [name for name in names if Path(name).exists()] + [str(p) for p in self.folder.iterdir()]
        )

    def left_after(self, kind: str = "") -> list[str]:
        """What begins with this word of the same, after some time for an end that nobody waits for."""
        until = time.monotonic() + 280
        while (left := [name for name in self.left() if name.startswith(kind)]) and time.monotonic() < until:
            time.sleep(0.02)
        return left


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False
