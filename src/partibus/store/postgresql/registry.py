"""The brokers of a namespace on several machines, which exchange their state through the catalog's server (D19).

```text
broker-a ── beat: "I am here, have these stores, apply change 17" ──▶ ┌─────────┐
         ◀─ which other brokers are there; changes 18, 19 ─────────── │ catalog │
broker-b ── ...                                    NOTIFY ──▶ all ─── └─────────┘
```

A broker counts as present until its row has not changed for the time of a lease, on the clock of the broker that reads
it. The server's clock, which an operator can set, is used only to forget old rows. This registry does not decide which
broker may commit to a store: the store itself records that. Rows lost in a crash of the server are sent again a second
later, so a broker does not wait until they are on the disk.

Calls block, and come from one thread at a time; `wake` may come from any.
"""

import json
import os
import selectors
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from partibus.errors import InvalidOperation, StartError, StoreUnavailable, UnusableFile
from partibus.store.acknowledged import Acknowledged, run_of
from partibus.store.postgresql.catalog import connect_catalog, unusable
from partibus.store.postgresql.connection import Address, TimedConnection, end

LEASE_S = 4.0
"""How long a silent broker counts as present. An error costs nothing: its stores can't be taken while their own leases
are valid (5 s).
"""
CHANGES_KEPT = 10_000
"""A broker that missed more changes reads everything again."""
START_S = 60.0
"""How long a start waits for others that start at the same time."""
_LOOK_S = 0.1

_REGISTER = """
    INSERT INTO broker VALUES (%(broker)s, %(incarnation)s, %(address)s,
        clock_timestamp() + make_interval(secs => %(lease_s)s), (SELECT version FROM version), %(facts)s)
    ON CONFLICT (broker) DO UPDATE SET incarnation = excluded.incarnation, address = excluded.address,
        until = excluded.until, followed = excluded.followed, facts = excluded.facts
    WHERE broker.address = '' OR broker.incarnation = ANY(%(ended)s) OR broker.xmin::text = %(silent)s
    RETURNING followed
"""
_BEAT = """
    INSERT INTO broker VALUES (%(broker)s, %(incarnation)s, %(address)s,
        clock_timestamp() + make_interval(secs => %(lease_s)s), %(followed)s, %(facts)s)
    ON CONFLICT (broker) DO UPDATE SET
        until = excluded.until, followed = excluded.followed, facts = excluded.facts, address = excluded.address
    WHERE broker.incarnation = excluded.incarnation
    RETURNING 1
"""
_REPORT = """
    INSERT INTO acknowledged AS known
    SELECT key, (value ->> 'last_commit')::bigint, (value ->> 'epoch')::bigint, %(incarnation)s
    FROM json_each(%(facts)s::json -> 'stores')
    WHERE value ->> 'last_commit' IS NOT NULL AND value ->> 'epoch' IS NOT NULL
    ON CONFLICT (store_id) DO UPDATE SET
        last_commit = excluded.last_commit, epoch = excluded.epoch, incarnation = excluded.incarnation
    WHERE (excluded.epoch, excluded.last_commit) > (known.epoch, known.last_commit)
"""
_REPORTED = "SELECT store_id, last_commit, epoch, incarnation FROM acknowledged"
_BROKERS = """
    SELECT broker, incarnation, address, xmin::text, followed, facts FROM broker ORDER BY broker
"""
_CHANGES = "SELECT version, body FROM change WHERE version > %(followed)s ORDER BY version"
_FIRST_CHANGE = "SELECT coalesce(min(version), 0) FROM change"
_ANNOUNCE = """
    WITH next AS (UPDATE version SET version = version + 1 RETURNING version)
    INSERT INTO change SELECT version, %s FROM next
"""
_FORGET_CHANGES = "DELETE FROM change WHERE version <= (SELECT version FROM version) - %s"
_FORGET_BROKERS = """
    DELETE FROM broker
    WHERE until < clock_timestamp() - CASE address WHEN '' THEN interval '0' ELSE interval '1 day' END
"""
_LEAVE = """
    UPDATE broker SET address = '', until = clock_timestamp(), facts = '{}'
    WHERE broker = %s AND incarnation = %s
"""
_NOTIFY = "SELECT pg_notify(current_schema(), '')"
_TRY_LOCK = "SELECT pg_try_advisory_lock(hashtextextended('partibus starts in ' || current_schema(), 0))"
_UNLOCK = "SELECT pg_advisory_unlock(hashtextextended('partibus starts in ' || current_schema(), 0))"
_SPEAKING = """
    SELECT broker, xmin::text, facts::json ->> 'speaks', facts::json ->> 'program' FROM broker
    WHERE address <> '' ORDER BY broker
"""
_OTHERS = "SELECT broker, xmin::text FROM broker WHERE broker <> %s AND address <> ''"
_OUR_ROW = "SELECT xmin::text, address FROM broker WHERE broker = %s"


class Version(NamedTuple):
    """The program version of a broker."""

    speaks: str
    """A summary of all that must be equal among the brokers of a namespace: their protocol and formats."""
    program: str
    """The program's version, for people."""

    def __str__(self) -> str:
        return f"{self.program} ({self.speaks})"


class BrokerRow(NamedTuple):
    """The last report of a broker about itself."""

    broker: str
    incarnation: str
    address: str
    """HOST:PORT for other brokers; empty after an orderly end."""
    version: str
    """The version of the row: each heartbeat makes another."""
    followed: int
    """The version of the last change that it has applied."""
    facts: str
    """Facts about the broker, as JSON."""


class _Silence:
    """How long rows have not changed, on this machine's clock."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[str, float]] = {}
        self.has_changed = False
        """Whether any row has changed."""

    def has_lasted(self, broker: str, version: str) -> bool:
        """Note a row that was just read; tell whether its broker has been silent for the time of a lease."""
        now_s = time.monotonic()
        before, since_s = self._rows.get(broker, (version, now_s))
        if before != version:
            self.has_changed = True
            since_s = now_s
        self._rows[broker] = version, since_s
        return now_s - since_s >= LEASE_S


class Heartbeat(NamedTuple):
    """The answer to a broker's beat."""

    brokers: list[BrokerRow]
    changes: list[tuple[int, str]]
    """Version and JSON of each change that it has not applied yet, in order."""
    is_complete: bool
    """Whether these are all; False: earlier changes were deleted."""


def refuse_other_versions(address: Address, ours: Version) -> None:
    """Refuse to start beside brokers of another version, before touching a catalog.

    Brokers that don't understand each other would each serve a part of a namespace, and tables of a newer version don't
    serve an older one. Waits for the end of leases that killed brokers have left. Raises `StartError`, `UnusableFile`.
    """
    give_up_s = time.monotonic() + LEASE_S + 1
    silence = _Silence()
    try:
        connection = connect_catalog(address, "partibus lists the brokers")
        try:
            while others := _others_than(connection, ours, silence):
                if time.monotonic() > give_up_s:
                    named = ", ".join(f"{broker} with {theirs}" for broker, theirs in others.items())
                    raise StartError(
                        f"{address.name}: is served by another version of partibus than this one, {ours}: {named}. Run "
                        "the same version on all brokers; to change it, stop all of them first."
                    )
                time.sleep(_LOOK_S)
        finally:
            end(connection)
    except psycopg.Error as error:
        raise unusable(address, error) from error


def _others_than(connection: psycopg.Connection[Any], ours: Version, silence: _Silence) -> dict[str, Version]:
    row = connection.execute("SELECT to_regclass('broker') IS NOT NULL").fetchone()
    if row is None or not row[0]:
        return {}
    theirs = {
        broker: Version(speaks or "an unknown form", program or "an older one")
        for broker, row_version, speaks, program in connection.execute(_SPEAKING).fetchall()
        if not silence.has_lasted(broker, row_version)
    }
    return {broker: version for broker, version in theirs.items() if version.speaks != ours.speaks}


class Registry:
    """One run of one broker among those of a catalog."""

    def __init__(self, address: Address, broker: str, incarnation: str, version: Version) -> None:
        """Connect to a prepared catalog. Raises `UnusableFile`."""
        self.name = address.name
        self._address = address
        self._broker = broker
        self._incarnation = incarnation
        self._version = version
        self._our_address = ""
        self.acknowledged: Mapping[str, Acknowledged] = {}
        """The last commit of each store that an owner has reported, as of the last `beat`, by store id."""
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_writer, False)
        os.set_blocking(self._wake_reader, False)
        self._notified = False
        self._closed = False
        self._connection: TimedConnection | None = None
        try:
            self._connection = self._connect()
        except psycopg.Error as error:
            raise unusable(address, error) from error

    # -- the start ---------------------------------------------------------------------------------------------------

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Let one broker start at a time, as a context. Raises `StartError`."""
        deadline_s = time.monotonic() + START_S
        while not self._one(_TRY_LOCK)[0]:
            if time.monotonic() > deadline_s:
                raise StartError(
                    f"{self.name}: another broker has been starting for more than {START_S:g} s. See what holds it up, "
                    "and start again."
                )
            time.sleep(_LOOK_S)
        try:
            yield
        finally:
            with suppress(StoreUnavailable):
                self._one(_UNLOCK)

    def others(self) -> list[str]:
        """Return the other brokers that are present, after watching for their heartbeats.

        That takes the time of a lease if one was lost less than a day ago, and a second otherwise.
        """
        first = dict(self._run(_OTHERS, (self._broker,)))
        found: set[str] = set()
        end_s = time.monotonic() + LEASE_S
        while first.keys() - found and time.monotonic() < end_s:
            time.sleep(_LOOK_S)
            now = dict(self._run(_OTHERS, (self._broker,)))
            found |= {broker for broker, version in now.items() if first.get(broker) != version}
            first = {broker: version for broker, version in first.items() if broker in now}
        return sorted(found)

    @property
    def is_new(self) -> bool:
        """Whether no broker has joined yet."""
        return not self._run("SELECT 1 FROM cluster")

    def join(self, cluster: str, secret_digest: str, keys_digest: str) -> str:
        """Join the catalog's cluster, or make it the catalog of ``cluster``; return the cluster's name.

        Raises `UnusableFile` if this broker's secret or keys differ from those of the others.
        """
        values = (cluster, secret_digest, keys_digest)
        self._run("INSERT INTO cluster VALUES (1, %s, %s, %s) ON CONFLICT DO NOTHING", values)
        found, *theirs = self._one("SELECT cluster, secret_digest, keys_digest FROM cluster")
        ours = (secret_digest, keys_digest)
        files = (("another secret", "cluster.secret (or --cluster-secret)"), ("other keys", "keys.json"))
        for (what, file), our, their in zip(files, ours, theirs, strict=True):
            if our != their and (others := self.others()):
                raise UnusableFile(
                    self.name,
                    f"the brokers that serve this catalog ({', '.join(others)}) have {what} than this one",
                    f"Copy {file} from the data directory of one of them. To change it, stop all brokers first.",
                )
        if tuple(theirs) != ours:
            self._run("UPDATE cluster SET secret_digest = %s, keys_digest = %s", ours)
        return str(found)

    def stores(self) -> dict[str, str]:
        """Return where each store is: names without passwords by store id."""
        return dict(self._run("SELECT store_id, name FROM store ORDER BY store_id"))

    def save_stores(self, stores: Mapping[str, str]) -> None:
        """Record where stores are."""
        statement = "INSERT INTO store VALUES (%s, %s) ON CONFLICT (store_id) DO UPDATE SET name = excluded.name"
        for row in stores.items():
            self._run(statement, row)

    def register(self, address: str, ended: Sequence[str] = ()) -> int:
        """Register this broker at HOST:PORT; return the version of the last change. Call it before reading the catalog.

        ``ended``: earlier runs of this broker, which have surely ended. Another earlier run counts as lost when its row
        has not changed for the time of a lease. Raises `StartError` if that run is alive.
        """
        self._our_address = address
        self._run(_FORGET_BROKERS)
        values = {
            "broker": self._broker,
            "incarnation": self._incarnation,
            "address": address,
            "lease_s": LEASE_S,
            "facts": json.dumps(self._version._asdict()),
            "ended": list(ended),
            "silent": "",
        }
        silence = _Silence()
        while True:
            rows = self._run(_REGISTER, values)
            if rows:
                self._run(_NOTIFY)
                return int(rows[0][0])
            for version, theirs in self._run(_OUR_ROW, (self._broker,)):
                if silence.has_lasted(self._broker, version):
                    values["silent"] = version
                if silence.has_changed:
                    raise StartError(
                        f"{self.name}: a broker with the name '{self._broker}' runs already, reached at {theirs}. "
                        "Stop it, or give this one another name (--broker-name)."
                    )
            time.sleep(_LOOK_S)

    def fault_injections(self) -> str | None:
        """Return the JSON of the last fault injection change, which no catalog keeps.

        Returns None if no broker is present that may have applied it.
        """
        rows = self._run(
            "SELECT body FROM change WHERE body::json ->> 'rehearsals' IS NOT NULL ORDER BY version DESC LIMIT 1"
        )
        return str(rows[0][0]) if rows and self.others() else None

    # -- while it runs -----------------------------------------------------------------------------------------------

    def beat(self, followed: int, facts: str, used: Iterable[int], *, tell: bool) -> Heartbeat:
        """Report that this broker is present, and the last commits of its stores; return the news.

        ``facts`` may have the ``epoch`` and ``last_commit`` of ``stores`` by store id. ``used``: entities used since
        the last time. ``tell``: notify the other brokers at once. Raises `StoreUnavailable`, and `InvalidOperation` if
        another run has taken this broker's name.
        """
        values = {
            "broker": self._broker,
            "incarnation": self._incarnation,
            "address": self._our_address,
            "lease_s": LEASE_S,
            "followed": followed,
            "facts": facts,
        }
        connection = self._connected()
        try:
            with connection.pipeline():
                beaten = connection.execute(_BEAT, values)
                connection.execute(_REPORT, values)
                reported = connection.execute(_REPORTED)
                brokers = connection.execute(_BROKERS)
                first = connection.execute(_FIRST_CHANGE)
                changes = connection.execute(_CHANGES, values)
                for entity_id in used:
                    connection.execute("INSERT INTO used_entity VALUES (%s) ON CONFLICT DO NOTHING", (entity_id,))
                if tell:
                    connection.execute(_NOTIFY)
            if beaten.fetchone() is None:
                raise InvalidOperation(
                    f"{self.name}: another run of the broker '{self._broker}' has been started; this one ends."
                )
            self.acknowledged = {
                store_id: Acknowledged(last_commit, epoch, run_of(incarnation))
                for store_id, last_commit, epoch, incarnation in reported.fetchall()
            }
            first_row = first.fetchone()
            found = changes.fetchall()
            kept_from = first_row[0] if first_row else 0
            return Heartbeat(
                [BrokerRow._make(row) for row in brokers.fetchall()],
                [(version, body) for version, body in found],
                kept_from <= followed + 1,
            )
        except psycopg.Error as error:
            raise self._failed(connection, error) from error

    def wait(self, seconds: float) -> None:
        """Wait until a notification or `wake`, at most ``seconds``. Raises `StoreUnavailable`."""
        if not self._notified:
            connection = self._connection
            # Not select(), which refuses descriptors above 1,023; a broker with many clients has higher ones.
            with selectors.DefaultSelector() as selector:
                selector.register(self._wake_reader, selectors.EVENT_READ)
                if connection is not None:
                    selector.register(connection.fileno(), selectors.EVENT_READ)
                readable = {key.fd for key, _ in selector.select(seconds)}
            if connection is not None and connection.fileno() in readable:
                try:
                    connection.pgconn.consume_input()
                    while connection.pgconn.notifies() is not None:
                        pass
                except psycopg.Error as error:
                    raise self._failed(connection, error) from error
        self._drain()

    def wake(self) -> None:
        """Let `wait` return."""
        with suppress(OSError):  # full is as good
            os.write(self._wake_writer, b"w")

    def announce(self, body: Mapping[str, Any]) -> None:
        """Announce to all brokers a change that the catalog does not hold. Raises `StoreUnavailable`."""
        self._run(_ANNOUNCE, (json.dumps(body),))
        self._run(_FORGET_CHANGES, (CHANGES_KEPT,))
        self._run(_NOTIFY)

    def take_used(self) -> list[int]:
        """Return the entities that other brokers have used since the last call. Raises `StoreUnavailable`."""
        return [entity_id for (entity_id,) in self._run("DELETE FROM used_entity RETURNING entity_id")]

    def leave(self) -> None:
        """Report an orderly end, so that no broker waits for this one's lease. Never raises."""
        with suppress(StoreUnavailable):
            self._run(_LEAVE, (self._broker, self._incarnation))
            self._run(_NOTIFY)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._connection is not None:
            end(self._connection)
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    # -- the connection ----------------------------------------------------------------------------------------------

    def _connect(self) -> TimedConnection:
        connection = connect_catalog(self._address, f"partibus {self._broker[:40]}")
        try:
            connection.add_notify_handler(self._hear)
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._address.schema)))
            connection.execute("SET synchronous_commit = off")
        except BaseException:
            end(connection)
            raise
        return connection

    def _hear(self, _: psycopg.Notify) -> None:
        """Note a notification that arrived while a statement ran."""
        self._notified = True

    def _connected(self) -> TimedConnection:
        if self._connection is None:
            try:
                self._connection = self._connect()
            except psycopg.Error as error:
                raise StoreUnavailable(
                    f"{self.name}: the catalog can't be reached now ({' '.join(str(error).split())}). Try again."
                ) from error
        return self._connection

    def _run(self, statement: str, values: Sequence[Any] | Mapping[str, Any] | None = None) -> list[Any]:
        connection = self._connected()
        try:
            cursor = connection.execute(statement.encode(), values)
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            raise self._failed(connection, error) from error

    def _one(self, statement: str) -> tuple[Any, ...]:
        (row,) = self._run(statement)
        found: tuple[Any, ...] = row
        return found

    def _failed(self, connection: TimedConnection, error: psycopg.Error) -> StoreUnavailable:
        """Drop the connection after an error, so that the next call reconnects; return the error to raise."""
        end(connection)
        self._connection = None
        return StoreUnavailable(
            f"{self.name}: the catalog can't be used now ({' '.join(str(error).split())}). Try again."
        )

    def _drain(self) -> None:
        self._notified = False
        with suppress(BlockingIOError):
            while os.read(self._wake_reader, 1024):
                pass
