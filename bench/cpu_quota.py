"""A share of a core for each of several processes: control groups with a CPU quota.

The kernel lets a group run for ``share * period`` of every period and then stops all its threads until the next; what a
group overdraws (the kernel looks at its ticks) is taken off the next periods. So the shares are exact over a second,
which `CpuQuotas.spent_s` proves of each run. Needs root, or a delegated group.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from partibus.bench.load import BenchError
from partibus.bench.measures import cpu_s

PERIOD_US = 10_000
_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_ENDED_S = 5.0


class CpuQuotas:
    """Each of these processes, with all its threads, gets ``share`` of a core until this is left."""

    def __init__(self, pids: Sequence[int], share: float, control_groups: Path = _CONTROL_GROUPS) -> None:
        """Raises `BenchError` where the machine does not let us."""
        self._pids = list(pids)
        self._groups: list[Path] = []
        try:
            parent, files = _quota_files(control_groups, int(share * PERIOD_US))
            for number, pid in enumerate(self._pids):
                group = parent / f"partibus-bench-{os.getpid()}-{number}"
                group.mkdir()
                self._groups.append(group)
                for name, text in files.items():
                    (group / name).write_text(text)
                (group / "cgroup.procs").write_text(str(pid))
        except OSError as error:
            self.close()
            raise BenchError(f"no CPU quota for a process ({error}): run as root, with the cpu controller") from error

    def spent_s(self) -> list[float]:
        """CPU seconds of each process until now."""
        return [cpu_s(pid) for pid in self._pids]

    def close(self) -> None:
        """Free the processes that are left."""
        for group in self._groups:
            deadline = time.monotonic() + _ENDED_S
            while group.exists() and time.monotonic() < deadline:
                for pid in (group / "cgroup.procs").read_text().split():
                    with suppress(OSError):  # it has ended
                        (group.parent / "cgroup.procs").write_text(pid)
                with suppress(OSError):  # somebody is still ending in it
                    group.rmdir()
        self._groups = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _quota_files(control_groups: Path, quota_us: int) -> tuple[Path, dict[str, str]]:
    """The group under which ours go, and what to write into which file: version 1 where it has the controller, else
    version 2."""
    first = control_groups / "cpu"
    if (first / "cpu.cfs_quota_us").exists() or (first / "cgroup.procs").exists():
        return first, {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(quota_us)}
    (control_groups / "cgroup.subtree_control").write_text("+cpu")
    return control_groups, {"cpu.max": f"{quota_us} {PERIOD_US}"}
