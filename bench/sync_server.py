"""A server that computes for some time, writes and syncs before each answer: what the machine allows.

Run it with `python -m bench.sync_server FILE WORK_US`.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import time

COMMIT_BYTES = 96 << 10
"""About what a commit of one message appends to a store's log: six pages."""
_FILE_BYTES = 16 << 20
_EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def answer_synced(path: str, work_us: float) -> None:
    """Print a port, and answer each request there after one write and sync, until the process is ended.

    Each also takes ``work_us`` of a processor that is not slowed down.
    """
    steps = _steps_of(work_us)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.pwrite(file, bytes(_FILE_BYTES), 0)
    os.fsync(file)
    at, commit = 0, b"x" * COMMIT_BYTES
    selector = selectors.DefaultSelector()
    listener = socket.create_server(("127.0.0.1", 0))
    selector.register(listener, selectors.EVENT_READ)
    print(listener.getsockname()[1], flush=True)
    while True:
        for key, _ in selector.select():
            if key.fd == listener.fileno():
                stream, _ = listener.accept()
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(stream, selectors.EVENT_READ, stream)
            elif key.data.recv(1 << 20):
                _compute(steps)
                os.pwrite(file, commit, at)
                os.fdatasync(file)
                at = (at + COMMIT_BYTES) % (_FILE_BYTES - COMMIT_BYTES)
                key.data.sendall(_EMPTY)
            else:
                selector.unregister(key.data)
                key.data.close()


def _compute(steps: int) -> None:
    total = 0
    for step in range(steps):
        total += step * step


def _steps_of(work_us: float) -> int:
    """Return the steps that take so long at best."""
    tried, best_us = 2_000, float("inf")
    for _ in range(200):
        begun_ns = time.perf_counter_ns()
        _compute(tried)
        best_us = min(best_us, (time.perf_counter_ns() - begun_ns) / 1_000)
    return round(tried * work_us / best_us)


if __name__ == "__main__":
    answer_synced(sys.argv[1], float(sys.argv[2]))
