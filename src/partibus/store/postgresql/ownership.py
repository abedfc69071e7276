"""Ownership of a store (D19): a row in it that its owner keeps writing.

A new owner raises the epoch and ends the connections of the previous one, so that none of its commits is still on the
way. A broker that was suspended and wakes up finds its connection closed and the epoch raised.

An owner counts its lease on its own clock, from before it wrote the row. Another broker counts it on its own clock,
too, from after it first read that version of the row. So it never takes the store over while the owner's lease counts,
and the database's clock, which an operator can set, has no part in it (ADR 0025).
"""

import logging
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

import psycopg

from partibus.partition.protocol.generations import Generation
from partibus.partition.protocol.ports import StoreError, StoreFenced
from partibus.store.acknowledged import (
    Acknowledged,
    AcknowledgedCommits,
    History,
    lacks,
    run_of,
    went_another_way,
)
from partibus.store.generations import NoNumbersLeft, Owner
from partibus.store.postgresql import generations
from partibus.store.postgresql.connection import (
    DEFAULTS,
    Address,
    Connection,
    PostgreSQLSettings,
    application_name,
    connect,
    end,
)
from partibus.store.postgresql.creation import install_functions
from partibus.store.postgresql.sql import refused, statement, store_error

log = logging.getLogger(__name__)

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_ms() -> float:
    """Return real time that continues while the machine sleeps, for measuring leases."""
    return time.clock_gettime(_BOOT_CLOCK) * 1_000


_CLOCK_RATES = 1.01
"""How much faster one machine's clock may run than another's. Real ones differ by 0.05 % at most."""


class OwnerRow(NamedTuple):
    """The owner row as stored; see ``ddl/0001.sql``."""

    broker: str
    incarnation: str
    epoch: int
    last_commit: int
    taken_at: int
    version: str
    """The version of the row: each write makes another, and so does another server."""
    is_released: bool
    """Whether the owner has given the store back, or there was none."""


class OwnerWatch:
    """A broker's observations of a store's owner row. They outlive the attempts to take the store over."""

    def __init__(self, ended: Collection[str] = (), now_ms: Callable[[], float] = boot_ms) -> None:
        """Begin without having seen the row. ``ended``: earlier runs of this broker, which have surely ended."""
        self._ended = ended
        self.now_ms = now_ms
        self._version = ""
        self._since_ms = 0.0

    def see(self, row: OwnerRow, lease_ms: float, asked_ms: float) -> float:
        """Note a row that was read after ``asked_ms``; return how long its owner's lease may still last, in ms.

        A process that stood still while it read has an old row: the time since then does not count.
        """
        if row.version != self._version:
            self._version, self._since_ms = row.version, self.now_ms()
        if row.is_released or row.incarnation in self._ended:
            return 0.0
        return max(0.0, self._since_ms + lease_ms * _CLOCK_RATES - asked_ms)


class _Comparison(NamedTuple):
    """The database compared with the acknowledged commits."""

    last_commit: int
    """The number after which commits go on."""
    epoch: int
    """The number after which epochs go on."""
    is_proven: bool
    """Whether the database surely has every acknowledged commit."""
    is_accepted: bool = False
    """Whether an operator has accepted that it has not."""
    is_unknown: bool = False
    """Whether the record is missing."""


class _Problem(NamedTuple):
    """A reason not to take a store over, and the next step of the operator."""

    text: str
    step: str
    is_other_history: bool = False


def _problem_of(found: History, known: Acknowledged, record: AcknowledgedCommits | None) -> _Problem | None:
    """Return what is wrong with the commits of a database; None: it has every acknowledged one, as far as is known."""
    if record is not None and record.damage is not None and not (record.is_empty and not found.last_commit):
        return _Problem(
            f"{record.damage}, so the last acknowledged commit is unknown",
            "see that the server has all commits, then let the store go on with new numbers",
        )
    if lacks(found, known):
        return _Problem(
            f"its last commit is {found.last_commit}, while {known.last_commit} was acknowledged: the server lost "
            "commits (a standby that was behind was made primary, or a backup restored)",
            "bring the server back that has them, or accept the loss of "
            f"{known.last_commit - found.last_commit} commits",
        )
    if went_another_way(found, known):
        return _Problem(
            f"its last commit is {found.last_commit} of epoch {found.epoch}, which began after commit "
            f"{found.taken_at}, while commit {known.last_commit} of epoch {known.epoch} was acknowledged: the "
            "server went another way (a standby that was behind was made primary, and used)",
            "bring the server back that has the acknowledged commits, or accept that they are lost",
            is_other_history=True,
        )
    return None


def watch_owner(address: Address, watch: OwnerWatch, settings: PostgreSQLSettings = DEFAULTS) -> None:
    """Note the owner row without taking the store over. Raises `StoreError`."""
    try:
        connection = connect(address, "partibus looks at an owner", settings)
        try:
            asked_ms = watch.now_ms()
            watch.see(read_owner(connection), settings.lease_ms, asked_ms)
        finally:
            end(connection)
    except psycopg.Error as error:
        raise store_error(error, address.name, "looking at the owner", executed=False) from error


def read_owner(connection: Connection, query: str = "select_owner") -> OwnerRow:
    """Read the owner row."""
    row = connection.execute(statement(query)).fetchone()
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
        watch: OwnerWatch | None = None,
    ) -> None:
        """Prepare for `take`.

        ``record`` is this machine's record of acknowledged commits; None: there is none. ``watch``: what it has seen of
        the owner row; None: nothing.
        """
        self._watch = watch or OwnerWatch()
        self._record = record
        self._address = address
        self._owner = owner
        self._run = run_of(owner.incarnation)
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

        ``evict``: also take it while the previous owner's lease may be valid, since that owner is known to be dead or
        to have given up.
        """
        asked_ms = self._watch.now_ms()
        before = read_owner(connection)
        is_ours = before.incarnation == self._owner.incarnation
        left_ms = self._watch.see(before, self._settings.lease_ms, asked_ms)
        if left_ms > 0 and not (evict or is_ours):
            raise self._in_use(before, left_ms)
        if before.incarnation:
            self.evict(connection, before.incarnation)
        timeline = generations.timeline_of(connection)
        asked_ms = boot_ms()
        with connection.transaction():
            now = read_owner(connection, "lock_owner")
            if now.epoch != before.epoch:
                raise self.fenced(now)
            if now.version != before.version and not (evict or is_ours):
                raise self._in_use(now, self._watch.see(now, self._settings.lease_ms, asked_ms))
            compared = self._compare(now, is_ours=is_ours)
            epoch, highest_ms = self._write_owner(connection, now, compared)
            begun = len(generations.read_generations(connection))
            found = self._go_by_home(connection, highest_ms, timeline, compared)
        self.generations = found
        self.epoch, self.highest_ms = epoch, highest_ms
        self.held_until_ms = asked_ms + self._settings.lease_ms
        self.last_commit = compared.last_commit
        if not compared.is_proven and not compared.is_accepted and len(found) > begun > 0:
            log.warning(
                "%s: no record tells whether the server has every acknowledged commit; the store goes on from commit "
                "%d, with new numbers from %d",
                self._address.name,
                self.last_commit,
                found[-1].first,
            )
        self._follow(now, compared)
        self.sync()

    def _write_owner(self, connection: Connection, now: OwnerRow, compared: _Comparison) -> tuple[int, int]:
        """Make this broker the owner; return the new epoch and the highest time of the store."""
        parameters = {
            "broker": self._owner.broker,
            "epoch": now.epoch,
            "next_epoch": compared.epoch + 1,
            "last_commit": compared.last_commit,
        }
        row = connection.execute(statement("take_ownership"), self.key | parameters).fetchone()
        assert row is not None, "locked"
        install_functions(connection)
        return row[0], row[1]

    def _go_by_home(
        self, connection: Connection, highest_ms: int, timeline: str, compared: _Comparison
    ) -> tuple[Generation, ...]:
        """Return the generations, with a new one if the store is not surely what it was. Raises `StoreError`."""
        try:
            return generations.go_by_home(
                connection,
                highest_ms,
                timeline,
                is_proven=compared.is_proven,
                begin=compared.is_accepted or (compared.is_unknown and not self._is_shared),
            )
        except NoNumbersLeft as error:
            raise refused(self._address.name, str(error)) from error

    def _in_use(self, row: OwnerRow, left_ms: float) -> StoreError:
        return refused(
            self._address.name,
            f"in use by broker {row.broker!r}, incarnation {row.incarnation!r}, whose lease ends in {left_ms:.0f} ms "
            "unless it is renewed; stop that broker or choose another store",
        )

    @property
    def _is_shared(self) -> bool:
        return self._record is not None and self._record.is_shared

    def _compare(self, now: OwnerRow, *, is_ours: bool) -> _Comparison:
        """Compare the database with the acknowledged commits, before it is taken over.

        Raises `StoreError` if it lacks some, or if the record is damaged, unless an operator accepts the loss.
        """
        record = self._record
        found = History(now.last_commit, now.epoch, run_of(now.incarnation), now.taken_at)
        remembered = Acknowledged(self.last_commit, 0, 0)
        known = None if record is None else record.last
        if known is None or known.last_commit < remembered.last_commit:
            known = remembered
        problem = _problem_of(found, known, record)
        if problem is None:
            has_record = record is not None and record.last is not None
            is_unknown = record is not None and record.last is None and found.last_commit > 0
            is_last_owner = is_ours or (has_record and known[1:] == found[1:3])
            is_proven = not is_unknown and (is_last_owner or (has_record and not self._is_shared))
            return _Comparison(found.last_commit, found.epoch, is_proven, is_unknown=is_unknown)
        if record is None or not record.is_accepted(found.last_commit):
            command = "restart the broker" if record is None else record.command
            other = " --other-history" if problem.is_other_history else ""
            raise StoreError(
                f"{self._address.name}: {problem.text}; {problem.step}: {command}{other} "
                f"--last-commit {found.last_commit}",
                executed=False,
            )
        return _Comparison(
            max(found.last_commit, known.last_commit),
            max(found.epoch, known.epoch),
            is_proven=False,
            is_accepted=True,
        )

    def _follow(self, before: OwnerRow, compared: _Comparison) -> None:
        """Record the last commit of the store that was taken over. Raises `StoreError`."""
        record = self._record
        if record is None:
            return
        try:
            if compared.is_accepted:
                record.go_on_from(Acknowledged(self.last_commit, self.epoch, self._run))
                return
            record.withdraw()
            if record.last is None or record.last.last_commit < self.last_commit:
                record.note(Acknowledged(self.last_commit, before.epoch, run_of(before.incarnation)))
        except OSError as error:
            raise StoreError(
                f"{self._address.name}: commit {self.last_commit} can't be recorded in the data directory: {error}",
                executed=False,
            ) from error

    def _note(self, last_commit: int) -> None:
        if self._record is not None:
            try:
                self._record.note(Acknowledged(last_commit, self.epoch, self._run))
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
