"""Messaging stores in PostgreSQL databases, a schema each; see `store` for layout, sync points and possible losses."""

from partibus.store.postgresql.connection import Address, PostgreSQLSettings, parse_address
from partibus.store.postgresql.creation import Identity, identity_of, make_store
from partibus.store.postgresql.ownership import OwnerWatch, watch_owner
from partibus.store.postgresql.store import PostgreSQLStore

__all__ = [
    "Address",
    "Identity",
    "OwnerWatch",
    "PostgreSQLSettings",
    "PostgreSQLStore",
    "identity_of",
    "make_store",
    "parse_address",
    "watch_owner",
]
