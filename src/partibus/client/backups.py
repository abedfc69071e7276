"""Backups: an operation of the namespace's `$management` node."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from partibus.client.client import Client
from partibus.client.values import items

TIMEOUT_S = 24 * 3600.0
"""A backup takes as long as it takes; a broker that is gone is noticed by its connection."""


class BackupInfo(NamedTuple):
    """A backup that was made."""

    stores: dict[str, int]
    """Bytes by name."""
    left_out: list[str]
    """Names of stores that are not in it."""
    is_one_moment: bool
    """Whether all copies are of one moment."""


def back_up(client: Client, directory: Path, stores: Sequence[str] = ()) -> BackupInfo:
    """Have the broker write a backup, of all stores or of some, to a directory of its own machine. Raises the
    `ClientError` that it answered with."""
    body: dict[str, object] = {"directory": str(directory)}
    if stores:
        body["stores"] = list(stores)
    reply = client.management().request("partibus:back-up", body, TIMEOUT_S)
    sizes = reply.get("stores")
    copied = {str(name): int(size) for name, size in sizes.items()} if isinstance(sizes, dict) else {}
    return BackupInfo(copied, [str(name) for name in items(reply, "left_out")], reply.get("is_one_moment") is True)
