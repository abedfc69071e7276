"""A server that answers requests after a write and a sync, and does nothing else: what the machine's disk allows.

Run it with `python -m bench.sync_server FILE`.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys

COMMIT_BYTES = 96 << 10
"""About what a commit of one message appends to a store's log: six pages."""
_FILE_BYTES = 16 << 20
_EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def answer_synced(path: str) -> None:
    """Print a port, and answer each request there after one write and sync, until the process is ended."""
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
                os.pwrite(file, commit, at)
                os.fdatasync(file)
                at = (at + COMMIT_BYTES) % (_FILE_BYTES - COMMIT_BYTES)
                key.data.sendall(_EMPTY)
            else:
                selector.unregister(key.data)
                key.data.close()


if __name__ == "__main__":
    answer_synced(sys.argv[1])
