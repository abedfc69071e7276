"""Read-only access to a copy of a store that no broker serves; it takes no lock."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from partibus.partition.protocol.keys import POSITION_MAX, subqueue_key
from partibus.partition.protocol.ports import EntryRow
from partibus.store.sqlite.failure import refused, store_error
from partibus.store.sqlite.reader import browse
from partibus.store.sqlite.sql import FORMAT_VERSION, statement

PAGE_ENTRIES = 500
PAGE_BYTES_MAX = 4 << 20


class StoreCopy:
    """A file that `partibus.store.sqlite.backup` has made. Close it, or use it as a context."""

    def __init__(self, path: Path) -> None:
        """Open the copy. Raises `StoreError` if it can't be read or has another format than this version writes."""
        self._path = path
        try:
            uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
            self._connection = sqlite3.connect(uri, uri=True, isolation_level=None)
            try:
                rows = self._connection.execute(statement("select_meta")).fetchall()
            except BaseException:
                self._connection.close()
                raise
        except sqlite3.Error as error:
            raise store_error(error, path, "reading the copy", executed=False) from error
        ((version, _),) = rows
        if version != FORMAT_VERSION:
            self._connection.close()
            raise refused(
                path,
                f"has format version {version}, and only {FORMAT_VERSION} is read from copies; serve a copy of the "
                "backup once, which brings it to that, and make a backup of it",
            )

    def pages(self, partition_row: int, kind: int, from_pos: int) -> Iterator[list[EntryRow]]:
        """Yield the entries of one sub-queue in any state, in pages, from a position on. Raises `StoreError`."""
        subqueue = subqueue_key(partition_row, kind)
        while True:
            try:
                rows = browse(self._connection, subqueue, from_pos, POSITION_MAX + 1, PAGE_ENTRIES, PAGE_BYTES_MAX)
            except sqlite3.Error as error:
                raise store_error(error, self._path, "reading the copy", executed=False) from error
            if not rows:
                return
            yield rows
            from_pos = rows[-1].pos + 1

    def close(self) -> None:
        """Close the copy. Idempotent."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
