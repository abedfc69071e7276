"""The use of a process from `/proc` (Linux): CPU time of all its threads, and memory."""

import os
import time
from pathlib import Path
from typing import Final

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_QUIET_S: Final = 0.3
_POLL_S: Final = 0.05


def parse_stat(text: str) -> float:
    """Seconds of user and system time in the text of `/proc/PID/stat`. The name in parentheses may hold anything."""
    fields = text[text.rindex(")") + 2 :].split()
    # The fields behind the name begin with the third of proc(5); user and system time are the 14th and 15th.
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def parse_rss(status: str) -> int:
    """Bytes resident, in the text of `/proc/PID/status`."""
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no VmRSS: the process has ended")


def cpu_s(pid: int) -> float:
    """CPU seconds of a process until now. ProcessLookupError or FileNotFoundError when there is none."""
    return parse_stat(Path(f"/proc/{pid}/stat").read_text())


def rss_bytes(pid: int) -> int:
    """Memory that a process has resident now."""
    return parse_rss(Path(f"/proc/{pid}/status").read_text())


def cpu_s_when_quiet(pid: int, most_s: float = 5.0) -> float:
    """Return CPU seconds once the process is idle, or after ``most_s``.

    Work after the load belongs to the load.
    """
    deadline = time.monotonic() + most_s
    last, since = cpu_s(pid), time.monotonic()
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        now = cpu_s(pid)
        if now - last > 1 / _TICKS_PER_S:
            last, since = now, time.monotonic()
        elif time.monotonic() - since >= _QUIET_S:
            break
    return cpu_s(pid)
