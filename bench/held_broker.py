"""A broker that knows how long each call on its loop has held it: `python -m bench.held_broker REPORT serve ...`.

The loop is asyncio's own, whose handles can be timed; uvloop calls the same protocols with reads of the same size. The
bench measures processor time of the loop's thread, without other work of the machine. At SIGUSR2 the broker writes the
longest call since the last time to REPORT.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvloop


class Longest:
    """The call that held the loop longest."""

    def __init__(self, report: Path) -> None:
        self.ms = 0.0
        self.what = ""
        self._report = report

    def note(self, ms: float, handle: Any) -> None:
        if ms > self.ms:
            self.ms, self.what = ms, repr(getattr(handle, "_callback", handle))[:200]

    def write(self, *_: object) -> None:
        """Write what was found, and begin anew."""
        found, self.ms, self.what = {"ms": self.ms, "what": self.what}, 0.0, ""
        tell(self._report, found)


def tell(report: Path, found: Mapping[str, object]) -> None:
    """Write a report that is whole as soon as its file is there."""
    new = report.with_suffix(".new")
    new.write_text(json.dumps(found))
    new.rename(report)


def main(arguments: list[str]) -> None:
    longest = Longest(Path(arguments[0]))
    handles: Any = asyncio.Handle
    original = handles._run
    now = time.thread_time_ns

    def timed(handle: asyncio.Handle) -> None:
        began_ns = now()
        try:
            original(handle)
        finally:
            longest.note((now() - began_ns) / 1e6, handle)

    handles._run = timed
    uvloop.new_event_loop = asyncio.SelectorEventLoop  # type: ignore[assignment]
    signal.signal(signal.SIGUSR2, longest.write)
    from partibus.cli.main import main as run

    sys.argv[1:] = arguments[1:]
    run()


if __name__ == "__main__":
    main(sys.argv[1:])
