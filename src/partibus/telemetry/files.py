"""Rolling Parquet files in a folder that brokers share.

A file gets its name when it is complete, so readers that list the folder see whole files only. A name begins with the
time: the oldest file comes first. Files that a killed writer has left are hidden, and the next writer removes them.
"""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

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
        """Remove hidden files; young ones may belong to a writer that is about to finish them."""
        broker = self._name.rpartition("-")[0].rpartition("-")[0]
        before = datetime.now(UTC) - _ABANDONED
        for path in self._folder.glob(f".*{_UNFINISHED}"):
            try:
                if broker in path.name or datetime.fromtimestamp(path.stat().st_mtime, UTC) < before:
                    path.unlink(missing_ok=True)
            except FileNotFoundError:
                continue
