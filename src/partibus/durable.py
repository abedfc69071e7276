"""Files that survive the loss of power, and the state of a file after a failed sync.

A failed sync means that the kernel could not write some pages. Linux reports that once, then counts those pages as
clean: the cache keeps them, the disk does not have them, and a second sync succeeds without writing them (PostgreSQL
calls this "fsyncgate"). So after a failed sync a process can rely only on two kinds of bytes: those that an earlier
sync has covered, and those that it has written again and then synced.
"""

import os
from pathlib import Path
from typing import Final

LOG_SUFFIX: Final = "-wal"
"""The suffix of the write-ahead log that SQLite keeps beside a database."""

_HEADER_BYTES: Final = 32
_FRAME_HEADER_BYTES: Final = 24
_CHUNK_BYTES: Final = 1 << 20


def sync_directory(directory: Path) -> None:
    """Make new names in a directory durable. Raises `OSError`."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Give a file new content, durably.

    Readers, also those after a crash, see the old content or the new one. Raises `OSError`; in that case the old
    content may return after a crash.
    """
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_directory(path.parent)


def rewrite(database: Path, file: int) -> None:
    """Write the frames of a SQLite log, and the database pages that they name, again and sync them.

    SQLite trusts each frame whose checksum is right. After a failed sync the cache may hold such a frame while the disk
    does not. A power loss would then lose a commit written behind it. A checkpoint that continues after a failed sync
    assumes that the pages it copied before are written. The process that saw the sync fail may have ended, so each
    opening calls this. A store that was closed properly has no log.

    The caller has a write transaction open and excludes checkpoints, so that there is no other writer. ``file`` is a
    descriptor of the database. The caller keeps it open for as long as the process uses the database: SQLite's locks
    belong to the process, and end when the process closes any descriptor of the file. Raises `OSError`.
    """
    try:
        log = os.open(database.with_name(database.name + LOG_SUFFIX), os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        header = os.pread(log, _HEADER_BYTES, 0)
        if len(header) < _HEADER_BYTES:
            return
        page_bytes = int.from_bytes(header[8:12])
        end, pages = _frames(log, header[16:24], page_bytes)
        for at in range(0, end, _CHUNK_BYTES):
            _rewrite(log, at, min(_CHUNK_BYTES, end - at))
        os.fsync(log)
    finally:
        os.close(log)
    for page in sorted(pages):
        _rewrite(file, (page - 1) * page_bytes, page_bytes)
    if pages:
        os.fsync(file)


def _frames(log: int, salts: bytes, page_bytes: int) -> tuple[int, set[int]]:
    """Find the end of the frames that the header covers, and the pages that they name.

    Frames behind that end were written before the log restarted.
    """
    size = os.fstat(log).st_size
    end, pages = _HEADER_BYTES, set[int]()
    while end + _FRAME_HEADER_BYTES + page_bytes <= size:
        frame = os.pread(log, _FRAME_HEADER_BYTES, end)
        if frame[8:16] != salts:
            break
        pages.add(int.from_bytes(frame[:4]))
        end += _FRAME_HEADER_BYTES + page_bytes
    return end, pages


def _rewrite(file: int, at: int, size: int) -> None:
    content = os.pread(file, size, at)
    written = 0
    while written < len(content):
        written += os.pwrite(file, content[written:], at + written)
