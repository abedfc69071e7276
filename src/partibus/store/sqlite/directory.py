"""The stores of one data directory: ``DATA/stores/store-00.db`` and so on, with ``DATA/lock`` for all of it."""

import sqlite3
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from partibus.durable import LOG_SUFFIX
from partibus.partition.protocol.ports import StoreError
from partibus.store.sqlite import creation
from partibus.store.sqlite.owner import LockFile, Owner
from partibus.store.sqlite.reserved_space import free_bytes
from partibus.store.sqlite.sql import DEFAULTS, StoreSettings, store_error
from partibus.store.sqlite.store import SQLiteStore
from partibus.store.sqlite.writer import Writer

STORES_DEFAULT = 16
"""A 16-partition queue touches each store once (D1)."""

_OPENED_AT_ONCE = 4
"""Opening waits for the disk more than it computes."""


def store_id(index: int) -> str:
    """Return the name of the store with this number, which is also that of its file."""
    return f"store-{index:02}"


def lock_data_directory(data_dir: Path, owner: Owner) -> LockFile:
    """Make the directory if it is missing (for its owner only) and lock out other processes until released.

    Raises `StoreError` if another process holds the lock, or the directory can't be made.
    """
    _make_directory(data_dir)
    return LockFile(data_dir / "lock", f"broker {owner.broker}, incarnation {owner.incarnation}")


def open_stores(
    data_dir: Path,
    *,
    owner: Owner,
    created_ms: int,
    count: int = STORES_DEFAULT,
    settings: StoreSettings = DEFAULTS,
    free: Callable[[Path], int] = free_bytes,
) -> list[SQLiteStore]:
    """Open the stores of a data directory in the order of their numbers; make missing ones.

    Opens all stores that exist, also more than ``count``: they hold messages. Refuses a gap in the numbers, since an
    empty store in place of a lost one would hide the loss. Raises `StoreError`; then none stays open.
    """
    paths = make_stores(data_dir, created_ms=created_ms, count=count)
    opened = open_each(paths, owner=owner, settings=settings, free=free)
    for failure in opened:
        if isinstance(failure, StoreError):
            close_stores([store for store in opened if isinstance(store, SQLiteStore)])
            raise failure
    return [store for store in opened if isinstance(store, SQLiteStore)]


def make_stores(data_dir: Path, *, created_ms: int, count: int = STORES_DEFAULT) -> list[Path]:
    """Return the files of a data directory's stores by number, at least ``count``; make missing ones.

    A lost store is not made again, since an empty store in its place would hide the loss: its path is in the list, and
    `open_store` refuses it. Raises `StoreError`.
    """
    directory = data_dir / "stores"
    _make_directory(data_dir)
    _make_directory(directory)
    _close_to_others(directory)
    with ThreadPoolExecutor(_OPENED_AT_ONCE) as pool:
        return _make_missing(directory, count, created_ms, pool)


def open_store(
    path: Path, *, owner: Owner, settings: StoreSettings = DEFAULTS, free: Callable[[Path], int] = free_bytes
) -> SQLiteStore:
    """Open a store that `make_stores` found or made, and take it over. Raises `StoreError`."""
    if not path.exists():
        raise StoreError(
            f"{path}: missing, while other stores are in the directory; put the file back from a copy: an empty one in "
            "its place would hide the loss",
            executed=False,
        )
    return SQLiteStore.open(path, store_id=path.stem, owner=owner, settings=settings, free=free)


def open_each(
    paths: Sequence[Path],
    *,
    owner: Owner,
    settings: StoreSettings = DEFAULTS,
    free: Callable[[Path], int] = free_bytes,
) -> list[SQLiteStore | StoreError]:
    """Open several stores at once; return for each path the store, or the reason why it can't be opened."""

    def opened(path: Path) -> SQLiteStore | StoreError:
        try:
            return open_store(path, owner=owner, settings=settings, free=free)
        except StoreError as error:
            return error

    with ThreadPoolExecutor(_OPENED_AT_ONCE) as pool:
        return list(pool.map(opened, paths))


def mark_copies(data_dir: Path) -> int:
    """Mark all stores of a data directory that is not in use as copies; return how many there are.

    Each begins a generation when it is opened next. Raises `StoreError`.
    """
    paths = sorted((data_dir / "stores").glob("store-*.db"))
    if not paths:
        raise StoreError(f"{data_dir}: no stores are in it; give the data directory of a broker", executed=False)
    lock = LockFile(data_dir / "lock", "accept-loss")
    try:
        for path in paths:
            _mark_copy(path)
    finally:
        lock.release()
    return len(paths)


def _mark_copy(path: Path) -> None:
    """Mark a store as a copy. Leave the log of a store that was not closed, which its next owner looks for."""
    lock = LockFile(path.with_suffix(".lock"), "accept-loss")
    try:
        keep_log = lock.is_left_open and path.with_name(path.name + LOG_SUFFIX).exists()
        writer = Writer(path, path.stem, DEFAULTS)
        try:
            writer.mark_copy()
        finally:
            writer.close(keep_log=keep_log)
    except (sqlite3.Error, OSError) as error:
        raise store_error(error, path, "the mark of a copy", executed=False) from error
    finally:
        lock.release()


def close_stores(stores: list[SQLiteStore]) -> None:
    """Close all stores, several at once."""
    with ThreadPoolExecutor(_OPENED_AT_ONCE) as pool:
        list(pool.map(SQLiteStore.close, stores))


def _make_missing(directory: Path, count: int, created_ms: int, pool: ThreadPoolExecutor) -> list[Path]:
    # A store that was opened once has a lock file beside it. So a lost store is noticed, whatever its number.
    names = {file.stem for pattern in ("store-*.db", "store-*.lock") for file in directory.glob(pattern)}
    paths = [directory / f"{store_id(index)}.db" for index in range(count)]
    while len(paths) < len(names):
        paths.append(directory / f"{store_id(len(paths))}.db")
    last_known = max((index for index, path in enumerate(paths) if path.stem in names), default=-1)
    missing = paths[last_known + 1 :]
    if not missing:
        return paths
    try:
        empty = creation.empty_store()
        # Name the files in order and only when all are complete, so that an interrupted start leaves no gap.
        unborn = list(pool.map(lambda path: creation.prepare(path, path.stem, created_ms, empty), missing))
        for new, path in zip(unborn, missing, strict=True):
            creation.publish(new, path)
        creation.sync_directory(directory)
    except (sqlite3.Error, OSError) as error:
        raise store_error(error, directory, "making the stores", executed=False) from error
    return paths


def _close_to_others(directory: Path) -> None:
    """Remove permissions that an earlier version gave other users of the machine on store files."""
    for path in (directory, *directory.glob("store-*")):
        with suppress(FileNotFoundError, PermissionError):  # gone meanwhile, or another user's
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & 0o077:
                path.chmod(mode & ~0o077)


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"{directory}: can't make the directory: {error.strerror}; choose another data directory, or make its "
            "parent writable for this user",
            executed=False,
        ) from error
