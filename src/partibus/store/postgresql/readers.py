"""Connections that read from a store while the writer commits."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import psycopg

from partibus.store.postgresql.connection import Address, Connection, PostgreSQLSettings, connect, end
from partibus.store.postgresql.ownership import read_owner
from partibus.store.postgresql.sql import BINDING_ERRORS, refused, store_error

T = TypeVar("T")


class Readers:
    """A pool that keeps a connection or two between loads. Safe to use from any thread."""

    def __init__(
        self, address: Address, application: str, settings: PostgreSQLSettings, acknowledged: Callable[[], int]
    ) -> None:
        """Prepare the pool. ``acknowledged`` returns the number of the last commit that is surely durable."""
        self._acknowledged = acknowledged
        self._address = address
        self._application = application
        self._settings = settings
        self._idle: list[Connection] = []
        self._generation = 0
        self._closed = False

    def read(self, load: Callable[[Connection], T]) -> T:
        """Return the result of ``load``, retried on a new connection if an idle one was lost. Raises `StoreError`."""
        generation = self._generation
        try:
            try:
                connection = self._idle.pop()
            except IndexError:
                return self._load(self._connect(), load, generation)
            try:
                return self._load(connection, load, generation)
            except psycopg.OperationalError:
                if not connection.closed:
                    raise
                self.renew()
                return self._load(self._connect(), load, self._generation)
        except BINDING_ERRORS as error:
            raise store_error(error, self._address.name, "a load", executed=False) from error

    def renew(self) -> None:
        """Drop the idle connections: they may lead to a server that is no longer the primary."""
        self._generation += 1
        self._drop_idle()

    def _drop_idle(self) -> None:
        with suppress(IndexError):  # a load may take the last one between a look and a pop
            while True:
                end(self._idle.pop())

    def close(self) -> None:
        """Close the idle connections. Idempotent. A load under way closes its own connection at its end."""
        self._closed = True
        self.renew()

    def _connect(self) -> Connection:
        """Connect. Raises `psycopg.Error`; `StoreError` if the server lacks acknowledged commits.

        A load from a standby that was behind would bring back completed messages.
        """
        acknowledged = self._acknowledged()
        connection = connect(self._address, self._application, self._settings)
        try:
            last_commit = read_owner(connection).last_commit
            if last_commit < acknowledged:
                raise refused(
                    self._address.name,
                    f"its last commit is {last_commit}, while {acknowledged} was acknowledged: the server lost commits",
                )
        except BaseException:
            end(connection)
            raise
        return connection

    def _load(self, connection: Connection, load: Callable[[Connection], T], generation: int) -> T:
        try:
            found = load(connection)
        except BaseException:
            end(connection)
            raise
        if self._closed or generation != self._generation or len(self._idle) >= self._settings.readers_idle:
            end(connection)
        else:
            self._idle.append(connection)
            if self._closed or generation != self._generation:  # since the look above
                self._drop_idle()
        return found
