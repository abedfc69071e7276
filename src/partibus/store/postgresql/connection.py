"""Connections to a store's schema, with the settings of all stores of a broker.

A `TimedConnection` serves callers that can't leave the waiting to a thread: each of its waits has a limit, after which
a silent server (stopped, its disk failed) counts as unavailable.

The address of a store is a PostgreSQL URL as libpq reads it, several hosts included, with two parameters of partibus.
``schema=NAME``: the schema of the store, ``partibus`` by default. ``stores=N``: N stores in one database, in schemas
``NAME_00``, ``NAME_01`` and so on.
"""

import re
from collections.abc import Generator, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, ClassVar, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from partibus.partition.protocol.ports import StoreError
from partibus.store.postgresql.rows import adapt
from partibus.store.postgresql.sql import refused

SCHEMA_DEFAULT = "partibus"
STORES_MAX = 64
"""The most stores in one database: each keeps a few connections open."""

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,31}")
"""A name of at most 32 letters: an application name (63 bytes) also holds the broker's incarnation."""


class Address(NamedTuple):
    """The place of one store."""

    conninfo: str
    """Key words and values for libpq, including the password."""
    schema: str
    name: str
    """The URL without its password: for people, and to recognize the place."""
    url: str
    """The URL of this store alone, with the password."""
    connect_timeout_s: int = 0
    """The timeout for each host, if the URL has one; 0: it has none."""


def parse_address(url: str, schema_default: str = SCHEMA_DEFAULT) -> list[Address]:
    """Return the stores of a URL. Raises `StoreError` that names the URL without its password."""
    base, _, query = url.partition("?")
    given = parse_qsl(query, keep_blank_values=True)
    ours = {key: value for key, value in given if key in ("schema", "stores")}
    theirs = [(key, value) for key, value in given if key not in ours]
    try:
        words = conninfo_to_dict(base + (f"?{urlencode(theirs)}" if theirs else ""))
    except psycopg.Error as error:
        raise _refused(url, " ".join(str(error).split())) from error
    schema = ours.get("schema", schema_default)
    if not _SCHEMA.fullmatch(schema):
        raise _refused(url, f"schema={schema!r}: give 1 to 32 of a-z, 0-9 and _, no digit first")
    schemas = [schema]
    if "stores" in ours:
        stores = ours["stores"]
        if not stores.isdecimal() or not 1 <= int(stores) <= STORES_MAX or len(schema) > 29:
            raise _refused(url, f"stores={stores!r}: give 1 to {STORES_MAX}, and a schema of 29 letters at most")
        schemas = [f"{schema}_{index:02}" for index in range(int(stores))]
    # A read-only server (a standby) can't commit: libpq goes on to the next host.
    words.setdefault("target_session_attrs", "read-write")
    timeout_s = str(words.pop("connect_timeout", None) or "0")
    if not timeout_s.isdecimal():
        raise _refused(url, f"connect_timeout={timeout_s!r}: give whole seconds")
    place = _without_password(words)
    conninfo = make_conninfo("", **words)
    return [
        Address(
            conninfo,
            schema,
            f"{place}?schema={schema}",
            f"{base}?{urlencode([*theirs, ('schema', schema)])}",
            int(timeout_s),
        )
        for schema in schemas
    ]


def _without_password(words: Mapping[str, object]) -> str:
    hosts = str(words.get("host") or words.get("hostaddr") or "").split(",")
    ports = str(words.get("port") or "").split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    places = ",".join(f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False))
    user = f"{words['user']}@" if "user" in words else ""
    return f"postgresql://{user}{places}/{words.get('dbname', '')}"


def _refused(url: str, why: str) -> StoreError:
    return StoreError(f"{_redacted(url.partition('?')[0])}: is no address of a store: {_redacted(why)}", executed=False)


def _redacted(text: str) -> str:
    """Return a URL, or libpq's message about one, without possible passwords."""
    return re.sub(r"password=[^&\s\"]*", "password=...", re.sub(r"//.*@", "//...@", text))


class PostgreSQLSettings(NamedTuple):
    """Timeouts and pool sizes, in ms unless the name says otherwise."""

    lease_ms: int = 5_000
    """How long a silent broker keeps its store from others (D19). This is half of the time allowed for a take-over
    between machines; three renewals fit in.
    """
    connect_timeout_s: int = 2
    """The timeout for each host of the URL; libpq's own minimum."""
    statement_limit_ms: int = 2_000
    """How long a statement waits for a lock that another session holds, and a take-over for the end of a connection."""
    doubt_ms: int = 1_000
    """How long the writer tries to resolve a commit in doubt before it reports the outcome as unknown."""
    full_ms: int = 2_000
    """How long messages are refused after the disk was full, before the next commit tries again."""
    readers_idle: int = 1
    """Idle connections kept for the next load; more are opened while several loads run at once."""

    @property
    def renewal_ms(self) -> float:
        """The time between two renewals of an idle store's lease."""
        return self.lease_ms / 3


DEFAULTS = PostgreSQLSettings()


Connection = psycopg.Connection[tuple[Any, ...]]

OLDEST_SERVER = 140_000
"""The first version in which `pg_terminate_backend` can wait for the end of a session."""

_SESSION = """
    SET search_path = {schema};
    SET client_min_messages = warning;
    SET default_transaction_isolation = 'read committed';
    SET lock_timeout = {limit_ms};
    SET idle_in_transaction_session_timeout = {idle_ms};
    SET plan_cache_mode = force_generic_plan;
    SET jit = off;
    SET enable_seqscan = off;
    SET enable_bitmapscan = off;
    SET enable_hashjoin = off;
    SET enable_mergejoin = off;
    SET enable_material = off;
    SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off';
"""
"""A queue's tables are full at one moment and empty at the next, so statistics mislead and plans must not depend on
them. Every load is an index scan. An answered commit is on the disk, independent of the server's default.
"""


def application_name(incarnation: str, address: Address) -> str:
    """Return the name by which the server knows the connections of one run of a broker to one store (63 bytes)."""
    return f"{incarnation[:30]} {address.schema}"


def connect(address: Address, application: str, settings: PostgreSQLSettings) -> Connection:
    """Open a connection in which every statement is a transaction. Raises `psycopg.Error`, `StoreError`."""
    connection: Connection = psycopg.Connection.connect(
        address.conninfo,
        autocommit=True,
        application_name=application,
        connect_timeout=address.connect_timeout_s or settings.connect_timeout_s,
        # A peer that is silent for so long counts as lost, whatever TCP still retries.
        tcp_user_timeout=settings.lease_ms,
        keepalives_idle=max(1, settings.lease_ms // 2_000),
        keepalives_interval=1,
        keepalives_count=3,
        client_encoding="UTF8",
    )
    try:
        if connection.info.server_version < OLDEST_SERVER:
            raise refused(
                address.name,
                f"runs PostgreSQL {connection.info.server_version // 10_000}, partibus needs "
                f"{OLDEST_SERVER // 10_000} or newer; upgrade the server",
            )
        adapt(connection)
        connection.execute(
            sql.SQL(_SESSION).format(
                schema=sql.Identifier(address.schema),
                limit_ms=sql.Literal(settings.statement_limit_ms),
                idle_ms=sql.Literal(settings.lease_ms // 2),
            )
        )
    except BaseException:
        end(connection)
        raise
    return connection


def end(connection: Connection) -> None:
    """Close a connection, whatever its state."""
    with suppress(psycopg.Error):
        connection.close()


RV = TypeVar("RV")


class TimedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that raises `psycopg.OperationalError` if a statement exceeds ``TIMEOUT_S``; then it is useless."""

    TIMEOUT_S: ClassVar[float] = 2.0

    def wait(self, gen: Generator[Any, Any, RV], *args: Any, **kwargs: Any) -> RV:
        """Wait as psycopg does, but at most ``TIMEOUT_S``.

        psycopg resumes the generator every 0.1 s, whether data has arrived or not.
        """
        return super().wait(_limited(gen, monotonic() + self.TIMEOUT_S), *args, **kwargs)


def _limited(inner: Generator[Any, Any, RV], end_s: float) -> Generator[Any, Any, RV]:
    try:
        wanted = next(inner)
        while True:
            ready = yield wanted
            if not ready and monotonic() > end_s:
                raise psycopg.OperationalError("the server does not answer")
            wanted = inner.send(ready)
    except StopIteration as end:
        result: RV = end.value
        return result
