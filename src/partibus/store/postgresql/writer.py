"""The one connection that commits to a store, and the state of its last commit.

A commit is one statement, so either the server answers it or the connection is lost on the way. Then only the owner row
can tell whether it happened: it has the number of the last commit. So the writer reconnects, ends what is left of the
old connection, and reads the row (D19).
"""

import time
from typing import Any

import psycopg

from partibus.partition.protocol.generations import Generation
from partibus.partition.protocol.ports import LOCK_MS_MAX, StoreError, StoreFenced, Writes
from partibus.store.acknowledged import AcknowledgedCommits
from partibus.store.generations import Owner
from partibus.store.postgresql.connection import Address, Connection, PostgreSQLSettings, application_name, connect, end
from partibus.store.postgresql.creation import Identity, check_and_migrate, make_if_missing
from partibus.store.postgresql.ownership import Ownership, OwnerWatch, boot_ms, read_owner
from partibus.store.postgresql.rows import commit_parameters
from partibus.store.postgresql.sql import BINDING_ERRORS, FENCED, refused, statement, store_error

_RECONNECT_S = 0.05
"""The time between two attempts to connect while a commit is in doubt."""


class Writer:
    """The writing connection, used by one thread at a time: the holder of the commit lock."""

    def __init__(
        self,
        address: Address,
        owner: Owner,
        settings: PostgreSQLSettings,
        record: AcknowledgedCommits | None = None,
        watch: OwnerWatch | None = None,
    ) -> None:
        """Prepare for `open`."""
        self._address = address
        self._owner = owner
        self._settings = settings
        self._application = application_name(owner.incarnation, address)
        self._warnings: list[str] = []
        self.ownership = Ownership(address, owner, settings, record, watch)
        self.connection: Connection
        self.dropped_partitions: list[int] = []
        """The dropped partitions at the take-over, which the sweep has still to remove."""
        self.durability: tuple[Any, ...] = ()
        self.refusal: str | None = None
        """Why commits are refused: fenced off, or a commit in doubt. None: they are not."""
        self.reconnected = 0
        """The number of reconnections."""

    def open(self, identity: Identity, created_ms: int | None, *, evict: bool) -> None:
        """Connect, make the store if it is missing (unless ``created_ms`` is None), and take it over.

        Raises `psycopg.Error`, `StoreError`.
        """
        self.connection = connect(self._address, self._application, self._settings)
        try:
            if created_ms is not None:
                make_if_missing(self.connection, self._address, identity, created_ms)
            check_and_migrate(self.connection, self._address, identity)
            self.look_at_durability()
            self.ownership.take(self.connection, evict=evict)
            rows = self.connection.execute(statement("dropped_partitions")).fetchall()
            self.dropped_partitions = [row for (row,) in rows]
            self.connection.add_notice_handler(self._noticed)
        except BaseException:
            end(self.connection)
            raise

    def look_at_durability(self) -> None:
        """Read the server's durability settings. Raises `psycopg.Error`, and `StoreError` if they promise none."""
        row = self.connection.execute(statement("durability")).fetchone()
        assert row is not None, "settings are always there"
        if row[0] != "on":
            raise refused(
                self._address.name,
                "the server runs with fsync off: what it acknowledges does not survive a crash; set fsync = on",
            )
        self.durability = row

    def commit(self, writes: Writes) -> None:
        """Commit the rows. Raises `StoreError`; if its ``executed`` is None, the writer can't be used further."""
        name = self._address.name
        number = self.ownership.last_commit + 1
        try:
            parameters = commit_parameters(writes)
        except BINDING_ERRORS as error:
            raise store_error(error, name, "a commit", executed=False) from error
        for attempt in (1, 2):
            try:
                self._apply(number, parameters)
            except BINDING_ERRORS as error:
                if getattr(error, "sqlstate", None) == FENCED:
                    raise self._fenced(self.ownership.fenced(read_owner(self.connection))) from error
                if not self.connection.closed:
                    # The server has refused the statement: nothing of it is stored.
                    raise store_error(error, name, "a commit", executed=False) from error
                if self._happened(number, error):
                    return
                if attempt == 2:
                    raise store_error(error, name, "a commit", executed=False) from error
            else:
                return

    def set_time(self, now_ms: int) -> None:
        """Turn `highest_ms` back to ``now_ms``, durably, and cut locks and leases accordingly.

        Raises `StoreError`.
        """
        parameters = {"now_ms": now_ms, "end_ms": now_ms + LOCK_MS_MAX}
        if self.transact(statement("set_time"), parameters) is None:
            raise self._fenced(self.ownership.fenced(read_owner(self.connection)))
        self.ownership.highest_ms = now_ms

    def begin_generation(self, above: int) -> Generation:
        """Begin a generation (`Store.begin_generation`). Raises `StoreError`.

        After a lost connection the store has to be reopened.
        """
        try:
            return self.ownership.begin_generation(self.connection, above)
        except StoreFenced as error:
            raise self._fenced(error) from error
        except psycopg.Error as error:
            failed = store_error(error, self._address.name, "beginning a generation", executed=None)
            if self.connection.closed:
                self.refusal = str(failed)
            raise failed from error

    def transact(self, query: bytes, parameters: dict[str, Any]) -> Any:
        """Run a repeatable statement of the owner; return the first column of its row. Raises `StoreError`."""
        try:
            row = self.connection.execute(query, self.ownership.key | parameters, prepare=True).fetchone()
        except psycopg.Error as error:
            if getattr(error, "sqlstate", None) == FENCED:
                raise self._fenced(self.ownership.fenced(read_owner(self.connection))) from error
            raise store_error(error, self._address.name, "a change", executed=None) from error
        return None if row is None else row[0]

    def renew(self) -> None:
        """Move the end of the lease, through a new connection if needed. Raises `StoreError`."""
        try:
            try:
                if self.connection.closed:
                    self._connect_again()
                last_commit = self.ownership.renew(self.connection)
            except psycopg.OperationalError:
                if not self.connection.closed:
                    raise
                self._connect_again()
                last_commit = self.ownership.renew(self.connection)
            self._check_not_behind(last_commit, self.ownership.last_commit)
        except StoreFenced as error:
            raise self._fenced(error) from error
        except psycopg.Error as error:
            raise store_error(error, self._address.name, "renewing the lease", executed=False) from error

    def _apply(self, number: int, parameters: dict[str, Any]) -> None:
        if self.connection.closed:
            raise psycopg.OperationalError("the connection is closed")
        asked_ms = boot_ms()
        self._warnings.clear()
        self.connection.execute(
            statement("apply_writes"), self.ownership.key | {"number": number} | parameters, prepare=True
        )
        if self._warnings:
            # The wait for the standbys was cancelled: the commit is on this server's disk alone.
            self.refusal = f"a commit was not copied to the standbys: {'; '.join(self._warnings)}"
            raise StoreError(f"{self._address.name}: {self.refusal}", executed=None)
        self.ownership.committed(number, asked_ms)

    def _happened(self, number: int, lost: Exception) -> bool:
        """Tell whether the commit with that number is durable, after the connection was lost.

        Raises `StoreError` if that can't be determined or the store has another owner.
        """
        give_up_ms = boot_ms() + self._settings.doubt_ms
        last_commit = None
        while last_commit is None:
            try:
                self._connect_again()
                last_commit = self.ownership.renew(self.connection)
            except StoreFenced as error:
                now = read_owner(self.connection)
                if now.taken_at < number:
                    raise self._fenced(error) from error
                self.refusal = str(error)
                if now.epoch > self.ownership.epoch + 1:
                    # The last owner took the store after a commit of that number: ours, or the one of an owner between.
                    raise store_error(lost, self._address.name, "a commit", executed=None) from error
                # The commit happened before the store was taken over, so acknowledging it is right; the next commit is
                # refused.
                self.ownership.learned(number)
                return True
            except (psycopg.Error, StoreError) as error:
                if boot_ms() >= give_up_ms or not isinstance(error, psycopg.OperationalError):
                    failed = store_error(lost, self._address.name, "a commit", executed=None)
                    self.refusal = str(failed)
                    raise failed from error
                time.sleep(_RECONNECT_S)
        self._check_not_behind(last_commit, number - 1)
        self.ownership.learned(last_commit)
        return last_commit == number

    def _check_not_behind(self, last_commit: int, acknowledged: int) -> None:
        """Check the server of a new connection, which may be another one.

        Raises `StoreError` if it lacks acknowledged commits; then the writer can't be used further.
        """
        if last_commit < acknowledged:
            self.refusal = (
                f"its last commit is {last_commit}, while {acknowledged} was acknowledged: the server lost commits (a "
                "standby that was behind was made primary); bring the server back that has them"
            )
            raise StoreError(f"{self._address.name}: {self.refusal}", executed=False)

    def _connect_again(self) -> None:
        """Replace a lost connection, and end what is left of it on the server."""
        end(self.connection)
        self.connection = connect(self._address, self._application, self._settings)
        self.connection.add_notice_handler(self._noticed)
        self.reconnected += 1
        self.ownership.evict(self.connection, self._owner.incarnation)

    def _noticed(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._warnings.append(notice.message_primary or "a warning")

    def _fenced(self, error: StoreFenced) -> StoreFenced:
        self.refusal = str(error)
        return error
