"""The process behind a shared port that a connection has reached: the kernel chooses it (Linux)."""

from contextlib import suppress
from pathlib import Path

_ESTABLISHED = "01"


def connections_of(pid: int, port: int) -> set[str]:
    """The other ends of the connections that a process has accepted on a port."""
    sockets = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            sockets.add(descriptor.readlink().name.removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return {
        theirs
        for _, ours, theirs, state, *rest in rows
        if state == _ESTABLISHED and rest[5] in sockets and ours.endswith(f":{port:04X}")
    }
