"""Ownership of a store (D19): a row in it, with a lease that ends by the database's clock.

A new owner raises the epoch and ends the connections of the previous one, so that none of its commits is still on the
way. A broker that was suspended and wakes up finds its connection closed and the epoch raised. A valid lease excludes
others, unless they know that its holder is dead.
"""

import time
from typing import NamedTuple

from partibus.partition.protocol.generations import Generation
from partibus.partition.protocol.ports import StoreError, StoreFenced
from partibus.store.acknowledged import AcknowledgedCommits
from partibus.store.generations import NoNumbersLeft
from partibus.store.owner import Owner
from partibus.store.postgresql import generations
from partibus.store.postgresql.address import Address
from partibus.store.postgresql.connection import Connection, application_name
from partibus.store.postgresql.creation import install_functions
from partibus.store.postgresql.failure import refused
from partibus.store.postgresql.settings import PostgreSQLSettings
from partibus.store.postgresql.sql import statement

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_ms() -> float:
    """Return real time that continues while the machine sleeps, for measuring leases."""
    return time.clock_gettime(_BOOT_CLOCK) * 1_000


class OwnerRow(NamedTuple):
    """The owner row as stored; see ``ddl/0001.sql``."""

    broker: str
    incarnation: str
    epoch: int
    last_commit: int
    taken_at: int
    left_ms: int
    """What is left of the lease, by the database's clock; 0 or less: it has ended."""


def read_owner(connection: Connection) -> OwnerRow:
    """Read the owner row."""
    row = connection.execute(statement("select_owner")).fetchone()
    assert row is not None, "made with the schema"
    return OwnerRow._make(row)


class Ownership:
    """The owner row as this process last wrote it, and how long its lease lasts."""

    def __init__(
        self,
        address: Address,
        owner: Owner,
        settings: PostgreSQLSettings,
        record: AcknowledgedCommits | None = None,
    ) -> None:
        """Prepare for `take`.

        ``record`` is this machine's record of acknowledged commits; None: there is none.
        """
        self._record = record
        self._address = address
        self._owner = owner
        self._settings = settings
        self.epoch = 0
        self.last_commit = 0
        self.highest_ms = 0
        self.generations: tuple[Generation, ...] = ()
        """The generations of the store; set by `take`."""
        self.held_until_ms = 0.0
        """The time on `boot_ms` until which no other broker owns the store, unless it knew that this one was dead."""

    @property
    def key(self) -> dict[str, int | str]:
        """The parameters that each statement of the owner passes."""
        return {
            "epoch": self.epoch,
            "incarnation": self._owner.incarnation,
            "lease_ms": self._settings.lease_ms,
        }

    def take(self, connection: Connection, *, evict: bool) -> None:
        """Take the store over: raise the epoch and cut off the previous owner. Raises `psycopg.Error`, `StoreError`.

        ``evict``: also take it while the previous owner's lease is valid, since that owner is known to be dead or to
        have given up.
        """
        before = read_owner(connection)
        is_ours = before.incarnation == self._owner.incarnation
        if before.left_ms > 0 and not (evict or is_ours):
            raise refused(
                self._address.name,
                f"in use by broker {before.broker!r}, incarnation {before.incarnation!r}, whose lease ends in "
                f"{before.left_ms} ms unless it is renewed; stop that broker or choose another store",
            )
        if before.incarnation:
            self.evict(connection, before.incarnation)
        asked_ms = boot_ms()
        with connection.transaction():
            row = connection.execute(
                statement("take_ownership"), self.key | {"broker": self._owner.broker, "epoch": before.epoch}
            ).fetchone()
            if row is None:
                raise self.fenced(read_owner(connection))
            install_functions(connection)
            try:
                found = generations.go_by_home(connection, row[2])
            except NoNumbersLeft as error:
                raise refused(self._address.name, str(error)) from error
        self.generations = found
        self.epoch, last_commit, self.highest_ms = row
        self.held_until_ms = asked_ms + self._settings.lease_ms
        self._check_not_behind(connection, last_commit)
        self.last_commit = last_commit
        self._note(last_commit)
        self.sync()

    def _check_not_behind(self, connection: Connection, last_commit: int) -> None:
        """Compare the store with what was acknowledged. Raises `StoreError` unless an operator accepts the loss."""
        known = max(self.last_commit, 0 if self._record is None else self._record.last_commit)
        if last_commit >= known:
            self._withdraw()
            return
        if self._record is None or not self._record.is_accepted(last_commit):
            command = "restart the broker" if self._record is None else self._record.command
            raise StoreError(
                f"{self._address.name}: its last commit is {last_commit}, while {known} was acknowledged: the server "
                "lost commits (a standby that was behind was made primary, or a backup restored); bring the server "
                f"back that has them, or accept the loss of {known - last_commit} commits: {command} "
                f"--last-commit {last_commit}",
                executed=False,
            )
        self.begin_generation(connection, 0)
        self._record.go_on_from(last_commit, self.epoch)

    def _withdraw(self) -> None:
        """Remove an operator's acceptance: the store has every acknowledged commit. Raises `StoreError`."""
        if self._record is not None:
            try:
                self._record.withdraw()
            except OSError as error:
                raise StoreError(
                    f"{self._address.name}: the acceptance of an earlier loss can't be removed: {error}", executed=False
                ) from error

    def _note(self, last_commit: int) -> None:
        if self._record is not None and last_commit > self._record.last_commit:
            try:
                self._record.note(last_commit, self.epoch)
            except OSError as error:
                raise StoreError(
                    f"{self._address.name}: commit {last_commit} can't be recorded in the data directory: {error}",
                    executed=None,
                ) from error

    def sync(self) -> None:
        """Make the record of acknowledged commits survive a loss of power. Raises `StoreError`."""
        if self._record is not None:
            try:
                self._record.sync()
            except OSError as error:
                raise StoreError(
                    f"{self._address.name}: the record of its commits in the data directory can't be synced: {error}",
                    executed=False,
                ) from error

    def evict(self, connection: Connection, incarnation: str) -> None:
        """End the connections of a run of a broker, this run's own leftovers included, and wait for their end."""
        connection.execute(
            statement("evict"),
            {
                "limit_ms": self._settings.statement_limit_ms,
                "application": application_name(incarnation, self._address),
            },
        )

    def renew(self, connection: Connection) -> int:
        """Move the end of the lease; return the number of the last commit, which is durable by then.

        Raises `psycopg.Error`, `StoreFenced`.
        """
        asked_ms = boot_ms()
        row = connection.execute(statement("renew_ownership"), self.key, prepare=True).fetchone()
        if row is None:
            raise self.fenced(read_owner(connection))
        self.held_until_ms = asked_ms + self._settings.lease_ms
        last_commit: int = row[0]
        return last_commit

    def committed(self, number: int, asked_ms: float) -> None:
        """Note a durable commit and the lease renewed with it. ``asked_ms``, on `boot_ms`, is its start."""
        self.last_commit = number
        self.held_until_ms = asked_ms + self._settings.lease_ms
        self._note(number)

    def learned(self, number: int) -> None:
        """Note that a commit whose answer was lost is durable."""
        self.last_commit = number
        self._note(number)

    def begin_generation(self, connection: Connection, above: int) -> Generation:
        """Begin a generation (`Store.begin_generation`). Raises `psycopg.Error`, `StoreError`."""
        with connection.transaction():
            if connection.execute(statement("renew_ownership"), self.key).fetchone() is None:
                raise self.fenced(read_owner(connection))
            try:
                generation = generations.begin_generation(connection, above, self.highest_ms)
            except NoNumbersLeft as error:
                raise refused(self._address.name, str(error)) from error
        self.generations += (generation,)
        return generation

    def release(self, connection: Connection) -> None:
        """Give the lease back, so that the next broker need not wait for its end."""
        connection.execute(statement("release_ownership"), self.key)

    def fenced(self, now: OwnerRow) -> StoreFenced:
        """Return the error for a broker that has lost the ownership."""
        return StoreFenced(
            f"{self._address.name}: taken over by broker {now.broker!r}, incarnation {now.incarnation!r}, epoch "
            f"{now.epoch} (ours was {self.epoch}); this broker must give up the store and send its clients elsewhere"
        )
