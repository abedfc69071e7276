"""A backup: a directory with copies of stores and of the catalog, and a list of them that is written last.

```text
 BACKUP/stores/store-00.db ...   all of one moment
 BACKUP/catalog.db               copied last, without the keys of access policies
 BACKUP/backup.json              the list; without it the directory is no backup
```

The layout is that of a data directory, so a broker can serve a copy of a whole backup. The catalog is copied last: it
knows every number given out for rows in the stores, so no number is given out again. The catalog holds entities that
were created meanwhile; they are empty. Entities that were deleted meanwhile leave rows that the catalog notes for
removal or that no entity reaches.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

from partibus.durable import replace_file
from partibus.partition.protocol.ports import StoreError
from partibus.store.sqlite.backup import Moment, check_directory, copy_changed, copy_store

LIST = "backup.json"
CATALOG = "catalog.db"
STORES = "stores"
FORMAT = 1
_REMOVE_KEYS = "UPDATE policy SET primary_key = '', secondary_key = ''"
"""A policy with empty keys grants no access until it is given new ones."""


class Backup(NamedTuple):
    """The contents of a backup's list."""

    began_ms: int
    stores: dict[str, int]
    """Bytes of the copy, by name of the store."""
    left_out: list[str]
    """Stores that the caller did not want, or that are in a database with its own backup tools."""
    is_one_moment: bool
    """Whether all copies are of one moment. If not, messages that were being forwarded may be in none of them."""


def back_up(
    files: Mapping[str, Path], catalog: Path, directory: Path, left_out: list[str], now_ms: int, stop: Event
) -> Backup:
    """Copy stores, by name, and the catalog into a new or empty directory; blocks.

    ``now_ms`` is noted as the backup's time. Raises `StoreError`, and `BackupStopped` soon after ``stop`` is set; then
    the directory is no backup.
    """
    check_directory(directory)
    target = directory / STORES
    try:
        target.mkdir(mode=0o700)
    except OSError as error:
        raise StoreError(f"{target}: can't be made: {error.strerror}", executed=False) from error
    with Moment(files.values(), stop) as moment:
        sizes = {name: copy_store(path, store_file(directory, name), stop, moment) for name, path in files.items()}
    copy_changed(catalog, directory / CATALOG, stop, _REMOVE_KEYS)
    backup = Backup(now_ms, sizes, left_out, moment.is_one)
    _write_list(directory, backup)
    return backup


def read_backup(directory: Path) -> Backup:
    """Read the list of a backup.

    Raises `StoreError` if the directory is no backup, is of a newer version, or differs from what was written.
    """
    path = directory / LIST
    try:
        document: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if document["format"] != FORMAT:
            raise StoreError(
                f"{path}: has format {document['format']}, and this version reads format {FORMAT}; use the version of "
                "partibus that wrote it",
                executed=False,
            )
        backup = Backup(
            int(document["began_ms"]),
            {str(name): int(size) for name, size in document["stores"].items()},
            [str(name) for name in document["left_out"]],
            document.get("is_one_moment") is True,
        )
    except FileNotFoundError:
        raise StoreError(
            f"{directory}: is no backup, or one that was not finished: it has no {LIST}", executed=False
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{path}: can't be read ({error})", executed=False) from error
    for name, size_bytes in backup.stores.items():
        copy = store_file(directory, name)
        if not copy.is_file() or copy.stat().st_size != size_bytes:
            raise StoreError(f"{copy}: is not the copy of {size_bytes} bytes that {path} names", executed=False)
    return backup


def store_file(directory: Path, name: str) -> Path:
    """Return the path of a store's copy in a backup."""
    return directory / STORES / f"{name}.db"


def _write_list(directory: Path, backup: Backup) -> None:
    document = {"format": FORMAT, **backup._asdict()}
    try:
        replace_file(directory / LIST, json.dumps(document, indent=2).encode() + b"\n")
    except OSError as error:
        raise StoreError(f"{directory}: its list can't be written: {error.strerror}", executed=False) from error
