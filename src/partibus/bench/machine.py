"""The machine of a measurement, without which numbers mean nothing."""

import os
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from partibus.bench.statistics import median

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
