"""One schema of a PostgreSQL database as a messaging store.

Layout: ``ddl/0004.sql``, keys as in `partition.protocol.keys`. The tables are those of SQLite's stores, adapted to the
database.

Sync points: a commit is one statement and one transaction (``ddl/apply_writes.sql``). When `commit` returns, the commit
is on the disk of the server and of its synchronous standbys. If the connection is lost on the way, the writer looks the
commit up by its number before it reports an outcome (`writer`).

Threads: commits exclude each other; reads use connections of their own and see the last commit. A thread renews the
lease while no commit does.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack, suppress
from threading import Event, Lock, Thread
from typing import Self, TypeVar

import psycopg
from msgspec.structs import astuple

from partibus.partition.protocol.generations import Generation
from partibus.partition.protocol.ports import Query, StoreError, StoreFull, Writes
from partibus.store.acknowledged import AcknowledgedCommits
from partibus.store.dropped_partitions import SLICE_ROWS, PartitionRemover, without_hidden
from partibus.store.generations import Owner
from partibus.store.postgresql import reader
from partibus.store.postgresql.connection import DEFAULTS, Address, PostgreSQLSettings, application_name, end
from partibus.store.postgresql.creation import Identity
from partibus.store.postgresql.ownership import OwnerWatch, boot_ms
from partibus.store.postgresql.readers import Readers
from partibus.store.postgresql.sql import refused, statement, store_error
from partibus.store.postgresql.writer import Writer

log = logging.getLogger(__name__)


class LeaseKeeper:
    """A thread that calls ``renew`` at intervals until it is stopped."""

    def __init__(self, renew: Callable[[], None], interval_ms: float, name: str) -> None:
        """Start the thread. It logs what ``renew`` raises, and renews again at the next interval.

        Of an outage's errors it logs the first.
        """
        self._renew = renew
        self._name = name
        self._interval_s = interval_ms / 1_000
        self._stopping = Event()
        self._thread = Thread(target=self._run, name=f"lease of {name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop after the renewal under way. Idempotent."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        failing = False
        while not self._stopping.wait(self._interval_s):
            try:
                self._renew()
                failing = False
            except (StoreError, psycopg.Error) as error:
                if not failing:
                    log.warning(
                        "the lease of %s was not renewed: %s; the broker tries again every %.3g s",
                        self._name, error, self._interval_s,
                    )  # fmt: skip
                failing = True
            except Exception:  # a bug of ours: without the thread the lease would end
                log.exception("internal error: the lease of %s was not renewed", self._name)


T = TypeVar("T")

_SWEPT_STATES = 8
"""The most session states that one slice of a sweep removes: each may have 256 KiB."""


class PostgreSQLStore:
    """A `partition.protocol.ports.Store` in one schema. Made by `open`."""

    def __init__(
        self,
        address: Address,
        identity: Identity,
        owner: Owner,
        created_ms: int | None,
        settings: PostgreSQLSettings,
        *,
        evict: bool,
        last_commit: int = 0,
        full_until_ms: float = 0.0,
        record: AcknowledgedCommits | None = None,
        watch: OwnerWatch | None = None,
    ) -> None:
        """Connect and take the store over; see `open`.

        ``last_commit`` and ``full_until_ms`` come from the previous instance when the store is reopened.
        """
        self._address = address
        self._identity = identity
        self._owner = owner
        self._settings = settings
        self._commit_lock = Lock()
        self._closed = False
        self._full_until_ms = full_until_ms
        self._record = record
        self._watch = watch
        self._writer = Writer(address, owner, settings, record, watch)
        self._writer.ownership.last_commit = last_commit
        self._readers = Readers(
            address, application_name(owner.incarnation, address), settings, lambda: self._writer.ownership.last_commit
        )
        self._readers_of = 0
        try:
            self._writer.open(identity, created_ms, evict=evict)
        except psycopg.Error as error:
            raise store_error(error, address.name, "opening the store", executed=False) from error
        self._remover = PartitionRemover(self.name, self._remove_slice, self._writer.dropped_partitions)
        try:
            self._keeper = LeaseKeeper(self._keep_lease, settings.renewal_ms, address.name)
        except RuntimeError as error:
            with ExitStack() as closing:
                closing.callback(self._close_writer)
                closing.callback(self._remover.stop)
            raise refused(
                address.name, f"can't start the thread that renews the lease: {error}; raise the limit of threads"
            ) from error

    @classmethod
    def open(
        cls,
        address: Address,
        *,
        store_id: str,
        owner: Owner,
        cluster: str = "",
        created_ms: int | None = 0,
        settings: PostgreSQLSettings = DEFAULTS,
        evict: bool = False,
        record: AcknowledgedCommits | None = None,
        watch: OwnerWatch | None = None,
    ) -> Self:
        """Open the store and take it over, after making an empty one if its schema holds none.

        With None for ``created_ms`` a missing store counts as lost. ``evict``: also take it from an owner whose lease
        may still be valid, since the caller knows that it is dead or has given up. ``watch`` remembers the owner row
        from attempt to attempt; without it an owner that has not given the store back counts as alive.

        Raises `StoreError` (not reachable, wrong password, in use by another broker, of a newer format, another store's
        or another cluster's schema, a server without fsync), leaving the store as it was.
        """
        return cls(
            address, Identity(store_id, cluster), owner, created_ms, settings, evict=evict, record=record, watch=watch
        )

    def reopen(self) -> Self:
        """Close and reopen the store, as its owner does after a failed commit.

        Raises as `open`, and also if the database lacks commits that were acknowledged, including those of this
        instance.
        """
        self.close()
        return type(self)(
            self._address,
            self._identity,
            self._owner,
            None,
            self._settings,
            evict=False,
            last_commit=self.last_commit,
            full_until_ms=self._full_until_ms,
            record=self._record,
            watch=self._watch,
        )

    @property
    def name(self) -> str:
        """The URL without its password."""
        return self._address.name

    @property
    def epoch(self) -> int:
        """The number of take-overs of the store, this one included (D19)."""
        return self._writer.ownership.epoch

    @property
    def last_commit(self) -> int:
        """The number of the last commit that is surely durable."""
        return self._writer.ownership.last_commit

    @property
    def generations(self) -> tuple[Generation, ...]:
        """The generations of the store in order, at least one."""
        return self._writer.ownership.generations

    def set_time(self, now_ms: int) -> None:
        """Turn `highest_ms` back to ``now_ms``, durably, and cut locks and leases accordingly."""
        with self._commit_lock:
            self._check_usable()
            self._writer.set_time(now_ms)

    def begin_generation(self, above: int = 0) -> Generation:
        """Begin a generation, durably, with numbers above all that were given out and above ``above``."""
        with self._commit_lock:
            self._check_usable()
            return self._writer.begin_generation(above)

    @property
    def lease_left_ms(self) -> float:
        """The time for which no other broker can own the store, measured here on the safe side (D20).

        If it is not positive, another broker may own the store. It is zero once another broker is known to own it.
        """
        if self._closed or self._writer.refusal is not None:
            return 0.0
        return self._writer.ownership.held_until_ms - boot_ms()

    @property
    def highest_ms(self) -> int:
        """The latest owner time of all commits before the store was opened (D26)."""
        return self._writer.ownership.highest_ms

    @property
    def is_held(self) -> bool:
        """Whether the lease is surely valid."""
        return self.lease_left_ms > 0

    @property
    def has_room(self) -> bool:
        """Whether messages are taken.

        False for a while after the server had no room, until the next commit tries again.
        """
        return boot_ms() >= self._full_until_ms

    @property
    def durability(self) -> str:
        """The place of an answered commit: "1 copy", "2 copies, synchronous", "1 copy, 1 more that may be behind".

        As of the opening or the last renewal.
        """
        _, mode, names, synchronous, streaming = self._writer.durability
        waits = bool(names) and mode not in ("local", "off")
        copies = 1 + (synchronous if waits else 0)
        text = "1 copy" if copies == 1 else f"{copies} copies, synchronous"
        behind = streaming - (copies - 1)
        if waits and copies == 1:
            return f"{text}; waits for synchronous standbys ({names}), none that it can see is there"
        return text if behind <= 0 else f"{text}, {behind} more that may be behind"

    def commit(self, writes: Writes) -> None:
        """Make all rows durable, or none. A key that exists already is an error of the caller: nothing is stored."""
        with self._commit_lock:
            self._check_usable()
            try:
                self._writer.commit(writes)
            except StoreFull:
                self._full_until_ms = boot_ms() + self._settings.full_ms
                raise
            finally:
                self._follow_writer()
        if writes.dropped_partitions:
            self._remover.dropped(writes.dropped_partitions)

    def read(self, query: Query[T]) -> T:
        """Answer a query as of the last commit. Raises `StoreError`."""
        self._check_usable()
        hidden = self._remover.hidden
        if query.row in hidden:
            return query.nothing()
        found: T = self._readers.read(lambda connection: reader.READS[type(query)](connection, *astuple(query)))
        return without_hidden(hidden, query, found) if hidden else found

    def wait_until_swept(self) -> None:
        """Wait until the rows of dropped partitions are deleted from the tables as well (they are hidden at once)."""
        self._remover.wait()

    def close(self) -> None:
        """Release the connections and the lease, even if an earlier step raises. Idempotent.

        Waits for a commit under way; reads under way end by themselves.
        """
        with self._commit_lock:
            if self._closed:
                return
            self._closed = True
        with ExitStack() as closing:  # the last of these first
            closing.callback(self._close_writer)
            closing.callback(self._readers.close)
            closing.callback(self._keeper.stop)
            closing.callback(self._remover.stop)

    def _close_writer(self) -> None:
        with self._commit_lock:
            writer = self._writer
            if writer.refusal is None and not writer.connection.closed:
                with suppress(psycopg.Error):  # then the lease ends by itself
                    writer.ownership.release(writer.connection)
            end(writer.connection)

    def _keep_lease(self) -> None:
        """Renew the lease, on the keeper's thread. A commit under way renews it by itself.

        After a `StoreError` or `psycopg.Error` the lease runs on, and the keeper tries again.
        """
        self._writer.ownership.sync()
        if not self._commit_lock.acquire(blocking=False):
            return
        try:
            if self._closed or self._writer.refusal is not None:
                return
            if self._renew_if_due():
                self._writer.look_at_durability()
        finally:
            try:
                self._follow_writer()
            finally:  # whatever fails: commits, and the close, wait for the lock without a limit
                self._commit_lock.release()

    def _renew_if_due(self) -> bool:
        """Renew the lease unless that was done a moment ago, and tell whether; the lock of commits is held."""
        if self.lease_left_ms > self._settings.lease_ms - self._settings.renewal_ms / 2:
            return False
        self._writer.renew()
        return True

    def _follow_writer(self) -> None:
        """Renew the readers' connections after the writer reconnected: the old server may no longer be the primary."""
        if self._readers_of != self._writer.reconnected:
            self._readers_of = self._writer.reconnected
            self._readers.renew()

    def _remove_slice(self, partition_row: int) -> bool:
        parameters = {"partition_row": partition_row, "most": SLICE_ROWS, "most_states": _SWEPT_STATES}
        with self._commit_lock:
            self._check_usable()
            self._renew_if_due()  # the keeper rarely finds the lock free between the slices of a large partition
            return bool(self._writer.transact(statement("sweep_partition"), parameters))

    def _check_usable(self) -> None:
        refusal = "closed" if self._closed else self._writer.refusal
        if refusal is not None:
            raise refused(self.name, f"not usable ({refusal}); open it again")
