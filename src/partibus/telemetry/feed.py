"""Transport from a broker to the process that writes its telemetry. The broker never waits for it.

Packed bytes go into a socket every `FLUSH_S`, or when a chunk is full. Bytes that the socket does not take wait here
within a bound; beyond it the feed drops chunks and counts them. A writer that has ended is started again, with a longer
pause each time that it does not last. Its reports say how many rows are in files, so rows lost with it are counted too.
"""

import asyncio
import json
import logging
import socket
import subprocess
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from time import monotonic

from partibus.telemetry.layout import REPORT
from partibus.telemetry.recorder import PackedRecorder
from partibus.telemetry.settings import CLOSE_S, FOLDER, SAMPLED, TelemetrySettings

log = logging.getLogger(__name__)

FLUSH_S = 0.25
WAITING_BYTES_MAX = 8 << 20
"""Two hundred thousand rows: some seconds of full telemetry under load, in which a disk may stall."""
SOCKET_BYTES = 1 << 20
RESTART_S = 1.0
RESTART_MAX_S = 30.0
STABLE_S = 60.0
"""The lifetime after which a writer counts as stable; the next start then has no pause."""


class Feed:
    """The feed of one broker's writer."""

    def __init__(
        self, settings: TelemetrySettings, data: Path, broker: str, run: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Prepare a feed. ``run`` identifies the broker's run; the names of the files have both."""
        sample = settings.sample if settings.mode == SAMPLED else None
        self.recorder = PackedRecorder(sample)
        self.folder = settings.folder or data / FOLDER
        self._arguments = json.dumps(
            {
                "folder": str(self.folder),
                "broker": broker,
                "run": run,
                "max_bytes": settings.max_bytes,
                "roll_s": settings.roll_s,
                "weight": self.recorder.weight,
            }
        )
        self._loop = loop
        self._waiting: deque[tuple[bytes, int]] = deque()
        """Waiting chunks, with the number of their rows."""
        self._waiting_bytes = 0
        self._sent_bytes = 0
        """Bytes of the first chunk that are sent."""
        self._child: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._is_blocked = False
        self._names_dropped = False
        """Whether a dropped chunk may have had names that the writer was not told."""
        self._sent_rows = 0
        """Rows sent to the current writer."""
        self._reported = (0, 0)
        self._report = b""
        self._started_s = 0.0
        self._delay_s = RESTART_S
        self._starts = 0
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: asyncio.TimerHandle | None = None
        self._closed = False
        self.recorder.on_begun = self._begin
        self.recorder.on_full = self.flush

    @property
    def pid(self) -> int | None:
        """The process id of the writer while it runs."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Start the writer."""
        self._timer = None
        self._starts += 1
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:  # too many open files
            self._try_again(f"can't be started: {error}")
            return
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        ours.setblocking(False)
        command = [sys.executable, "-m", "partibus.telemetry.writer", str(theirs.fileno()), self._arguments]
        try:
            self._child = subprocess.Popen(
                [*command, str(self._starts)], stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),)
            )
        except OSError as error:
            ours.close()
            self._try_again(f"can't be started: {error}")
            return
        finally:
            theirs.close()
        self._started_s = self._loop.time()
        self._socket = ours
        self._sent_rows, self._reported, self._report = 0, (0, 0), b""
        names = self.recorder.names()
        self._names_dropped = False
        self._waiting.appendleft((names, 0))
        self._waiting_bytes += len(names)
        self._loop.add_reader(ours, self._hear)
        self._send()

    def flush(self) -> None:
        """Hand over the packed bytes, or drop them when too much waits."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        chunk, rows = self.recorder.take()
        if self._waiting_bytes > WAITING_BYTES_MAX or self._closed:
            self.recorder.dropped += rows
            self._names_dropped = True
            return
        if self._names_dropped:
            self._names_dropped = False
            names = self.recorder.names()
            self._waiting.append((names, 0))
            self._waiting_bytes += len(names)
        self._waiting.append((chunk, rows))
        self._waiting_bytes += len(chunk)
        if not self._is_blocked:
            self._send()

    def close(self) -> None:
        """Hand over the rest and wait until the writer has written it, for `CLOSE_S` at most. Blocks.

        A writer that needs longer goes on without the broker and ends by itself.
        """
        if self._closed:
            return
        self.flush()
        self._closed = True
        for timer in (self._timer, self._flushing):
            if timer is not None:
                timer.cancel()
        end, child = self._socket, self._child
        if end is None or child is None:
            return
        self._loop.remove_reader(end)
        self._loop.remove_writer(end)
        self._socket = None
        until_s = monotonic() + CLOSE_S
        try:
            for chunk, rows in self._waiting:
                end.settimeout(_seconds_until(until_s))
                end.sendall(memoryview(chunk)[self._sent_bytes :])
                self._sent_bytes = 0
                self._sent_rows += rows
            end.shutdown(socket.SHUT_WR)
            end.settimeout(_seconds_until(until_s))
            while more := end.recv(REPORT.size):
                self._take_report(more)
                end.settimeout(_seconds_until(until_s))
            child.wait(_seconds_until(until_s))
        except (OSError, subprocess.TimeoutExpired) as error:
            log.warning("the telemetry writer (process %s) has not finished, and goes on alone: %s", child.pid, error)
        self._waiting.clear()
        end.close()

    def _begin(self) -> None:
        """Schedule a flush."""
        if self._flushing is None and not self._closed:
            self._flushing = self._loop.call_later(FLUSH_S, self._flush_on_time)

    def _flush_on_time(self) -> None:
        self._flushing = None
        self.flush()

    def _send(self) -> None:
        end = self._socket
        if end is None:
            return
        try:
            while self._waiting:
                chunk, rows = self._waiting[0]
                self._sent_bytes += end.send(memoryview(chunk)[self._sent_bytes :])
                if self._sent_bytes == len(chunk):
                    self._waiting.popleft()
                    self._waiting_bytes -= len(chunk)
                    self._sent_bytes = 0
                    self._sent_rows += rows
        except BlockingIOError:
            if not self._is_blocked:
                self._is_blocked = True
                self._loop.add_writer(end, self._send)
            return
        except OSError:
            self._gone()
            return
        if self._is_blocked:
            self._is_blocked = False
            self._loop.remove_writer(end)

    def _hear(self) -> None:
        assert self._socket is not None, "it is read"
        try:
            said = self._socket.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if said:
            self._take_report(said)
        else:
            self._gone()

    def _take_report(self, said: bytes) -> None:
        self._report += said
        while len(self._report) >= REPORT.size:
            written, lost = REPORT.unpack_from(self._report)
            self._report = self._report[REPORT.size :]
            self.recorder.dropped += lost - self._reported[1]
            self._reported = (written, lost)

    def _gone(self) -> None:
        """Start over after the writer has ended.

        The next writer is told the names again. So it can use the waiting chunks, except one that this writer has had a
        part of.
        """
        end, child = self._socket, self._child
        assert end is not None, "it was there"
        assert child is not None, "it was there"
        self._loop.remove_reader(end)
        self._loop.remove_writer(end)
        end.close()
        self._socket, self._child = None, None
        self._is_blocked = False
        with suppress(OSError):
            child.kill()
        code = child.wait()
        if self._sent_bytes:
            chunk, rows = self._waiting.popleft()
            self._waiting_bytes -= len(chunk)
            self._sent_bytes = 0
            self.recorder.dropped += rows
        self.recorder.dropped += max(0, self._sent_rows - sum(self._reported))
        if self._loop.time() - self._started_s > STABLE_S:
            self._delay_s = RESTART_S
        self._try_again(f"has ended with exit code {code}")

    def _try_again(self, why: str) -> None:
        log.warning("the telemetry writer %s; it is started again in %g s", why, self._delay_s)
        self._timer = self._loop.call_later(self._delay_s, self.start)
        self._delay_s = min(self._delay_s * 2, RESTART_MAX_S)


def _seconds_until(until_s: float) -> float:
    """Return the seconds until a time; a thousandth at least, since a socket with a timeout of 0 never waits."""
    return max(0.001, until_s - monotonic())
