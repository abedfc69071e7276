"""Makes a store's schema, migrates an older one, and checks to which cluster the store belongs."""

from typing import NamedTuple

import psycopg
from psycopg import sql

from partibus.store.postgresql.connection import DEFAULTS, Address, Connection, PostgreSQLSettings, connect, end
from partibus.store.postgresql.sql import (
    FORMAT_VERSION,
    OLDEST_VERSION,
    functions_script,
    migration_script,
    refused,
    schema_script,
    statement,
    store_error,
)

AT_A_START = DEFAULTS._replace(connect_timeout_s=10)
"""The time-outs at a start: nothing else waits for the server, so it gets more time than from a working broker."""


class Identity(NamedTuple):
    """The identity that a store records."""

    store_id: str
    """The broker's name of the store, e.g. ``store-07``."""
    cluster: str
    """The data directory, or the brokers of one catalog, that own it."""


def identity_of(address: Address, settings: PostgreSQLSettings = AT_A_START) -> Identity | None:
    """Return the identity of the store at an address; None if the schema holds no store.

    Raises `StoreError`: not reachable, not allowed.
    """
    try:
        connection = connect(address, "partibus looks around", settings)
        try:
            return _read_meta(connection, address)[1] if _is_store(connection, address) else None
        finally:
            end(connection)
    except psycopg.Error as error:
        raise store_error(error, address.name, "looking for the store", executed=False) from error


def make_store(
    address: Address, identity: Identity, created_ms: int, settings: PostgreSQLSettings = AT_A_START
) -> None:
    """Make an empty store if there is none yet. Raises `StoreError`: not reachable, not allowed, another's schema."""
    try:
        connection = connect(address, "partibus makes a store", settings)
        try:
            make_if_missing(connection, address, identity, created_ms)
        finally:
            end(connection)
    except psycopg.Error as error:
        raise store_error(error, address.name, "making the store", executed=False) from error


def make_if_missing(connection: Connection, address: Address, identity: Identity, created_ms: int) -> None:
    """Make a missing store in a transaction of its own, one broker at a time. Raises `psycopg.Error`, `StoreError`."""
    if _is_store(connection, address):
        return
    with connection.transaction():
        connection.execute(statement("lock_for_making"), {"schema": address.schema})
        if _is_store(connection, address):
            return
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(address.schema)))
        connection.execute(schema_script().encode())
        meta = {"version": FORMAT_VERSION, "created_ms": created_ms, **identity._asdict()}
        connection.execute(statement("insert_meta"), meta)


def check_and_migrate(connection: Connection, address: Address, identity: Identity) -> None:
    """Check that it is the expected store, and migrate it to the format of this version.

    Raises `psycopg.Error`, `StoreError`; then the store is unchanged.
    """
    if not _is_store(connection, address):
        raise refused(
            address.name,
            f"has lost store {identity.store_id!r}, which was made there; restore a backup of schema "
            f"{address.schema!r}: an empty store in its place would hide the loss",
        )
    version, found = _read_meta(connection, address)
    if not OLDEST_VERSION <= version <= FORMAT_VERSION:
        raise refused(
            address.name,
            f"has format version {version}, this partibus knows {OLDEST_VERSION} to {FORMAT_VERSION}; install a "
            "version of partibus that knows it, or restore a backup made before the upgrade",
        )
    if found.store_id != identity.store_id:
        raise refused(
            address.name,
            f"is store {found.store_id!r}, not {identity.store_id!r}; give each --store the database and schema that "
            "it had",
        )
    if found.cluster != identity.cluster:
        raise refused(
            address.name,
            f"belongs to the brokers of {found.cluster!r}, not to those of {identity.cluster!r}; choose another "
            "schema (?schema=NAME), or serve from the data directory that it was made with",
        )
    if version < FORMAT_VERSION:
        _migrate(connection, address)


def install_functions(connection: Connection) -> None:
    """Install the functions that this version's commits call, in the caller's transaction."""
    connection.execute(functions_script().encode())


def _migrate(connection: Connection, address: Address) -> None:
    with connection.transaction():
        connection.execute(statement("lock_for_making"), {"schema": address.schema})
        version, _ = _read_meta(connection, address)
        for older in range(version, FORMAT_VERSION):
            connection.execute(migration_script(older).encode())
        connection.execute(statement("update_format"), {"version": FORMAT_VERSION})


def _is_store(connection: Connection, address: Address) -> bool:
    """Tell whether the schema holds a store. Raises `StoreError` if it holds something else."""
    row = connection.execute(statement("schema_exists"), {"schema": address.schema}).fetchone()
    assert row is not None, "an aggregate has one row"
    is_store, _, is_used = row
    if is_used and not is_store:
        raise refused(
            address.name,
            f"schema {address.schema!r} has tables that are no store of partibus; choose another one (?schema=NAME)",
        )
    return bool(is_store)


def _read_meta(connection: Connection, address: Address) -> tuple[int, Identity]:
    row = connection.execute(statement("select_meta")).fetchone()
    if row is None:
        raise refused(address.name, "is no complete store of partibus (its meta table is empty); restore a backup")
    version, store_id, cluster = row
    return version, Identity(store_id, cluster)
