"""The process that writes a broker's telemetry: it reads chunks from a socket until that ends, then writes the rest.

Signals do not end it, so that a stopped or killed broker leaves whole files; the end of the socket does.

Brokers share the folder. A file gets its name when it is complete, so readers that list the folder see whole files
only. A name begins with the time: the oldest file comes first. Files that a killed writer has left are hidden. The next
writer of that run removes them, and any writer does after an hour.
"""

import json
import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from partibus.telemetry.chunks import Reader
from partibus.telemetry.layout import LENGTH, REPORT
from partibus.telemetry.table import Tables

SUFFIX: Final = ".parquet"
_UNFINISHED: Final = ".writing"
_ABANDONED: Final = timedelta(hours=1)
_TEXTS: Final = ["op", "namespace", "entity", "broker", "key", "outcome", "partition_id", "store"]
"""Columns with few distinct values."""
_NEIGHBOURLY: Final = ("time", "position", "sequence_number", "size_bytes", "dwell_ms")
_DELTAS: Final = dict.fromkeys(_NEIGHBOURLY, "DELTA_BINARY_PACKED")
"""Columns in which neighbours are similar."""


class Files:
    """The files of one writer, and the bound on all files in the folder."""

    def __init__(self, folder: Path, name: str, max_bytes: int) -> None:
        """Prepare the folder. ``name`` is unique to the writer and part of its files' names. Raises OSError."""
        self._folder = folder
        self._name = name
        self._max_bytes = max_bytes
        self._written = 0
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._clean_up()

    def write(self, table: pa.Table) -> Path:
        """Write a file and make room for it. Raises OSError."""
        now = datetime.now(UTC)
        self._written += 1
        name = f"{now:%Y%m%dT%H%M%S.%f}Z-{self._name}-{self._written:06}{SUFFIX}"
        unfinished = self._folder / f".{name}{_UNFINISHED}"
        path = self._folder / name
        try:
            unfinished.touch(mode=0o600)
            with unfinished.open("wb") as file:
                pq.write_table(
                    table, file, compression="zstd", compression_level=1, use_dictionary=_TEXTS,
                    column_encoding=_DELTAS, store_schema=False, write_statistics=True,
                )  # fmt: skip
                file.flush()
                os.fsync(file.fileno())
            self.make_room(unfinished.stat().st_size)
            unfinished.rename(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        return path

    def make_room(self, size_bytes: int = 0) -> None:
        """Remove the oldest files until ``size_bytes`` more are within the bound."""
        sizes = {}
        for path in sorted(self._folder.glob(f"[!.]*{SUFFIX}")):
            try:
                sizes[path] = path.stat().st_size
            except FileNotFoundError:  # another writer has removed it
                continue
        total = sum(sizes.values()) + size_bytes
        for path, size in sizes.items():
            if total <= self._max_bytes:
                break
            path.unlink(missing_ok=True)
            total -= size

    def _clean_up(self) -> None:
        """Remove the unfinished files of this run's former writers, and old ones of others.

        A young one may belong to a writer that is about to finish it, also of this broker's former run.
        """
        run = self._name.rpartition("-")[0]
        before = datetime.now(UTC) - _ABANDONED
        for path in self._folder.glob(f".*{_UNFINISHED}"):
            writer = path.name.partition("-")[2].rpartition("-")[0]
            try:
                is_ours = writer.rpartition("-")[0] == run
                if is_ours or datetime.fromtimestamp(path.stat().st_mtime, UTC) < before:
                    path.unlink(missing_ok=True)
            except FileNotFoundError:
                continue


ROWS_MAX = 1 << 19
"""Rows of a file: some 20 MB, of which a Spark task reads one or two; 100 MB here while they gather."""
ROWS_MIN = 1 << 12
_ROW_BYTES = 40
"""Bytes of a row in a file, keys of some length included. A file has an eighth of the bound at most."""
_READ_BYTES = 1 << 18
_NICENESS = 10
"""The broker has precedence."""


class Writer:
    """Gathers rows and writes them, file by file."""

    def __init__(self, told: dict[str, Any], run: str, end: socket.socket) -> None:
        """Begin a ``run`` of the writer that reports to ``end``."""
        self._reader = Reader()
        self._tables = Tables(told["broker"], told["weight"])
        self._roll_s = told["roll_s"]
        self._rows_max = max(ROWS_MIN, min(ROWS_MAX, told["max_bytes"] // 8 // _ROW_BYTES))
        self._files = Files(Path(told["folder"]), run, told["max_bytes"])
        self._end = end
        self._since_s: float | None = None
        """When the oldest row came that is not in a file."""
        self._written = self._lost = 0
        self._failure = ""

    @property
    def wait_s(self) -> float | None:
        """Seconds until the next file is due; None: no row waits."""
        return None if self._since_s is None else max(0.0, self._since_s + self._roll_s - monotonic())

    def take(self, chunk: bytes) -> None:
        """Read a chunk, and write a file if one is full."""
        self._reader.read(chunk)
        if self._since_s is None and self._reader.rows.count:
            self._since_s = monotonic()
        if self._reader.rows.count >= self._rows_max:
            self.write()

    def write(self) -> None:
        """Write the rows that are ready, if any, and report."""
        self._since_s = None
        rows = self._reader.take()
        if not rows.count:
            return
        try:
            self._files.write(self._tables.make(rows, self._reader.places))
        except (OSError, pa.ArrowException) as error:
            self._lost += rows.count
            if not self._failure:
                print(f"partibus: telemetry can't be written, rows are lost: {error}", file=sys.stderr, flush=True)
            self._failure = str(error)
        else:
            self._written += rows.count
            self._failure = ""
        with suppress(OSError):  # the broker was killed
            self._end.sendall(REPORT.pack(self._written, self._lost))

    def finish(self) -> None:
        """Write all rows."""
        self._reader.end()
        self.write()


def run(end: socket.socket, told: dict[str, Any], name: str) -> None:
    """Read and write until the socket ends, then write the rest.

    While the broker works, it has precedence. When it stops, it waits for the rest, which a busy machine would not
    write in time at a low priority. Linux has a priority for each thread; elsewhere the rest has the low one, too.
    """
    writer = Writer(told, name, end)
    with ThreadPoolExecutor(1, initializer=os.nice, initargs=(_NICENESS,)) as pool:
        pool.submit(_gather, end, writer).result()
    writer.finish()


def _gather(end: socket.socket, writer: Writer) -> None:
    """Read until the socket ends, and write files when they are due."""
    buffer = bytearray()
    while True:
        end.settimeout(None if (wait_s := writer.wait_s) is None else wait_s or 0.001)
        try:
            said = end.recv(_READ_BYTES)
        except TimeoutError:
            writer.write()
            continue
        except OSError:
            said = b""
        if not said:
            break
        buffer += said
        at = 0
        while len(buffer) - at >= LENGTH.size:
            (length,) = LENGTH.unpack_from(buffer, at)
            if len(buffer) - at - LENGTH.size < length:
                break
            at += LENGTH.size
            writer.take(bytes(buffer[at : at + length]))
            at += length
        del buffer[:at]
        if writer.wait_s == 0:
            writer.write()
    end.settimeout(None)


def main() -> None:
    """Run as a process. Arguments: a file descriptor, the feed's settings as JSON, the number of the start."""
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    pa.set_cpu_count(1)
    number, document, start = sys.argv[1:]
    told = json.loads(document)
    try:
        run(socket.socket(fileno=int(number)), told, f"{told['broker']}-{told['run']}-{start}")
    except OSError as error:
        print(f"partibus: telemetry can't be written: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
