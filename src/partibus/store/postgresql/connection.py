"""Connections to a store's schema."""

from contextlib import suppress
from typing import Any

import psycopg
from psycopg import sql

from partibus.store.postgresql.address import Address
from partibus.store.postgresql.bigints import adapt
from partibus.store.postgresql.failure import refused
from partibus.store.postgresql.settings import PostgreSQLSettings

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
        connect_timeout=settings.connect_timeout_s,
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
