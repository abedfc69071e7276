"""Backups: an operation of the namespace's `$management` node."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from partibus.client.client import Client
from partibus.client.values import items

TIMEOUT_S = 24 * 3600.0
"""The time limit of a backup: long, because a lost broker shows by its connection."""


class BackupInfo(NamedTuple):
    """A completed backup."""

    stores: dict[str, int]
    """The size in bytes of each store's copy, by store name."""
    left_out: list[str]
    """The names of stores that the backup does not contain."""
    is_one_moment: bool
    """Whether all copies show the same moment."""


def back_up(client: Client, directory: Path, stores: Sequence[str] = ()) -> BackupInfo:
    """Have the broker back up all stores, or some, to a directory of its own machine.

    Raises the `ClientError` of the broker's reply.
    """
    body: dict[str, object] = {"directory": str(directory)}
    if stores:
        body["stores"] = list(stores)
    reply = client.management().request("partibus:back-up", body, TIMEOUT_S)
    sizes = reply.get("stores")
    copied = {str(name): int(size) for name, size in sizes.items()} if isinstance(sizes, dict) else {}
    return BackupInfo(copied, [str(name) for name in items(reply, "left_out")], reply.get("is_one_moment") is True)
