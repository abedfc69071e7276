"""The machine of a measurement, the use of a process from `/proc` (Linux), and summaries of measured values."""

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NamedTuple


class Percentiles(NamedTuple):
    """Percentiles in the unit of the values."""

    p50: float
    p90: float
    p99: float
    p999: float
    most: float


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` (0..1) of the values do not exceed.

    ``ordered`` is ascending and not empty.
    """
    if not ordered:
        raise ValueError("no values, no percentile")
    # The rank is ceil(share * n), kept exact for shares with up to six decimals.
    rank = -(-round(share * 1_000_000) * len(ordered) // 1_000_000)
    return ordered[min(max(rank, 1), len(ordered)) - 1]


def percentiles(values: Sequence[float]) -> Percentiles:
    """ValueError if there are no values."""
    if not values:
        raise ValueError("no values, no percentiles")
    ordered = sorted(values)
    return Percentiles(
        p50=percentile(ordered, 0.5),
        p90=percentile(ordered, 0.9),
        p99=percentile(ordered, 0.99),
        p999=percentile(ordered, 0.999),
        most=ordered[-1],
    )


def median(values: Sequence[float]) -> float:
    """Return the middle value, or the mean of the two in the middle. Raises ValueError without values."""
    if not values:
        raise ValueError("no values, no median")
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_QUIET_S: Final = 0.3
_POLL_S: Final = 0.05


def parse_stat(text: str) -> float:
    """Return the seconds of user and system time in the text of `/proc/PID/stat`.

    The name in parentheses may hold anything.
    """
    fields = text[text.rindex(")") + 2 :].split()
    # The fields behind the name begin with the third of proc(5); user and system time are the 14th and 15th.
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def parse_rss(status: str) -> int:
    """Return the resident bytes in the text of `/proc/PID/status`."""
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


_SYNCS = 100
_BLOCK = bytes(16384)


@dataclass(frozen=True, slots=True)
class Machine:
    """The properties of a machine that decide most of the results."""

    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    sync_ms: float
    """Median time of writing 16 KiB and fdatasync, in the directory that holds the data."""
    python_ms: float
    """Median time of a loop of a million steps: the speed of a virtual machine differs from day to day."""

    def as_dict(self) -> dict[str, object]:
        """Return the fields by name."""
        return asdict(self)


def this_machine(directory: Path) -> Machine:
    """Return the properties of this machine; ``directory`` is on the measured disk."""
    return Machine(
        cpu=parse_cpu_model(_text(Path("/proc/cpuinfo"))) or platform.machine(),
        cores=os.cpu_count() or 1,
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        kernel=f"{platform.system()} {platform.release()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        sync_ms=round(sync_ms(directory), 3),
        python_ms=round(python_ms(), 1),
    )


def sync_ms(directory: Path, syncs: int = _SYNCS) -> float:
    """Median milliseconds of one write with fdatasync, as every commit does it."""
    path = directory / f".sync-{os.getpid()}"
    file = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        times: list[float] = []
        for number in range(syncs):
            start = time.perf_counter()
            os.pwrite(file, _BLOCK, number * len(_BLOCK))
            os.fdatasync(file)
            times.append((time.perf_counter() - start) * 1000)
        return median(times)
    finally:
        os.close(file)
        path.unlink()


def python_ms(rounds: int = 9) -> float:
    """Median milliseconds of a loop of a million steps in this interpreter."""
    times: list[float] = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(1_000_000):
            pass
        times.append((time.perf_counter() - start) * 1000)
    return median(times)


def parse_cpu_model(cpuinfo: str) -> str:
    """Return the first `model name` in the text of `/proc/cpuinfo`; "" where there is none (ARM)."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return " ".join(value.split())
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
