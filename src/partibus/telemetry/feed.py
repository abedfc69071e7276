"""From a broker to the process that writes its telemetry. The broker never waits for it.

What was packed goes into a socket every `FLUSH_S`, or when there is a chunk. What the socket does not take waits here,
within a bound; beyond that, chunks are dropped and counted. A writer that has ended is started again, later each time
that it does not last. Its reports say how many rows have got into files, so what is lost with it is counted, too.
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
"""A writer that has lasted so long is started again as if it were the first."""


class Feed:
    """One broker's writer."""

    def __init__(
        self, settings: TelemetrySettings, data: Path, broker: str, run: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        """``run``: of the broker; its files have both in their names."""
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
        """Chunks, and how many rows they have."""
        self._waiting_bytes = 0
        self._sent_bytes = 0
        """Of the first of them."""
        self._child: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._is_blocked = False
        self._sent_rows = 0
        """To the present writer."""
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
        """Of the writer, while there is one."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Start the writer."""
        self._timer = None
        self._starts += 1
        ours, theirs = socket.socketpair()
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
        self._waiting.appendleft((names, 0))
        self._waiting_bytes += len(names)
        self._loop.add_reader(ours, self._hear)
        self._send()

    def flush(self) -> None:
        """Hand over what was packed, or drop it when too much waits already."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        chunk, rows = self.recorder.take()
        if self._waiting_bytes > WAITING_BYTES_MAX or self._closed:
            self.recorder.dropped += rows
            return
        self._waiting.append((chunk, rows))
        self._waiting_bytes += len(chunk)
        if not self._is_blocked:
            self._send()

    def close(self) -> None:
        """Hand over what is left and wait until the writer has written it, for some seconds at most. Blocks."""
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
        end.settimeout(CLOSE_S)
        try:
            for chunk, rows in self._waiting:
                end.sendall(memoryview(chunk)[self._sent_bytes :])
                self._sent_bytes = 0
                self._sent_rows += rows
            end.shutdown(socket.SHUT_WR)
            while more := end.recv(REPORT.size):
                self._take_report(more)
            child.wait(CLOSE_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            log.warning("the telemetry writer (process %s) has not finished: %s", child.pid, error)
            child.kill()
            child.wait()
        self._waiting.clear()
        end.close()

    def _begin(self) -> None:
        """There is something to be flushed, soon."""
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
        """The writer has ended. The next one is told the names anew, so chunks that wait are of use to it, but for one
        that this one has had a part of."""
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
