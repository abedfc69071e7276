"""How long a Python process held the GIL, sampled by py-spy where it is installed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

RATE = 200
"""Samples per second: with 2 s of run the share is good to a few percent, and the process is hardly slowed."""


def parse_samples(raw: str) -> int:
    """Samples in py-spy's raw format: `frame;frame;frame count` per line."""
    return sum(int(line.rsplit(" ", 1)[1]) for line in raw.splitlines() if line.strip())


class GilSampler:
    """Samples while it is entered; `held_s` afterwards is None where `trouble` says why."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._process: subprocess.Popen[bytes] | None = None
        self.held_s: float | None = None
        self.trouble = ""

    def __enter__(self) -> Self:
        program = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
        if program is None:
            self.trouble = "py-spy is not installed (pip install py-spy)"
        else:
            self._file = Path(tempfile.mkstemp(prefix="partibus-gil-")[1])
            command = [program, "record", "--gil", "--nonblocking", "--rate", str(RATE), "--duration", "600"]
            command += ["--format", "raw", "--output", str(self._file), "--pid", str(self._pid)]
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(0.5)  # Until it has found its way around in the process; a shorter start loses samples only.
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(20)
            raw = self._file.read_text()
        except subprocess.TimeoutExpired:
            self._process.kill()
            raw = ""
        finally:
            self._file.unlink(missing_ok=True)
        if raw:
            self.held_s = parse_samples(raw) / RATE
        else:
            self.trouble = f"py-spy may not look into process {self._pid} (run as root, or allow ptrace)"
