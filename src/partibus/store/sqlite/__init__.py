"""Messaging stores in SQLite files, one file each; see `store` for layout, sync points and possible losses."""

from partibus.store.sqlite.directory import close_stores, lock_data_directory, open_stores
from partibus.store.sqlite.owner import Owner
from partibus.store.sqlite.sql import StoreSettings
from partibus.store.sqlite.store import SQLiteStore

__all__ = ["Owner", "SQLiteStore", "StoreSettings", "close_stores", "lock_data_directory", "open_stores"]
