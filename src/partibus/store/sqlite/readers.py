"""Connections that read from a store while the writer commits."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from partibus.store.sqlite.connection import connect_reader
from partibus.store.sqlite.failure import BINDING_ERRORS, store_error
from partibus.store.sqlite.settings import StoreSettings


class Readers:
    """A pool that provides a connection per load. Safe to use from any thread."""

    def __init__(self, path: Path, settings: StoreSettings) -> None:
        self._path = path
        self._settings = settings
        self._idle: list[sqlite3.Connection] = []
        self._closed = False

    @contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection for one load; keep it for the next unless the load failed. Raises `StoreError`."""
        try:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = connect_reader(self._path, self._settings)
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
        except BINDING_ERRORS as error:
            raise store_error(error, self._path, "a load", executed=False) from error
        if self._closed or len(self._idle) >= self._settings.readers_idle:
            connection.close()
        else:
            self._idle.append(connection)

    def close(self) -> None:
        """Close the idle connections. Idempotent. A load under way closes its own connection at its end."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
