"""Lookup, scan and removal of remembered message ids in a store's file."""

import json
from collections.abc import Sequence
from sqlite3 import Connection

from partibus.store.sqlite.sql import in_list_form, padded_keys, statement


def find_duplicates(
    connection: Connection, partition_row: int, first_bucket: int, ids: Sequence[bytes]
) -> dict[bytes, tuple[int, bytes]]:
    """Return the ids that a bucket has (`queries.Duplicates`)."""
    found: dict[bytes, tuple[int, bytes]] = {}
    for chunk in padded_keys(ids):
        form = in_list_form("find_duplicates", len(chunk))
        (listed,) = connection.execute(form, (partition_row, first_bucket, *chunk)).fetchone()
        for message_id, accepted_ms, original in json.loads(listed):
            found[bytes.fromhex(message_id)] = (accepted_ms, bytes.fromhex(original))
    return found


def scan_duplicates(
    connection: Connection, partition_row: int, after: tuple[int, bytes], max_ids: int
) -> list[tuple[int, bytes, int]]:
    """Return remembered ids in order (`queries.DuplicatesBehind`)."""
    parameters = (partition_row, *after, max(0, max_ids))
    listed, data = connection.execute(statement("scan_duplicates"), parameters).fetchone()
    rows = []
    end = 0
    for bucket, size, accepted_ms in json.loads(listed):
        rows.append((bucket, data[end : end + size], accepted_ms))
        end += size
    return rows


def forget_duplicates(connection: Connection, partition_row: int, bucket: int, most: int) -> int:
    """Delete the first ``most`` ids of buckets below ``bucket``, in order; return how many were deleted."""
    if most <= 0:
        return 0
    parameters = (partition_row, bucket, most)
    bound = connection.execute(statement("select_duplicate_bound"), parameters).fetchone()
    if bound is None:
        return connection.execute(statement("delete_duplicate_buckets"), (partition_row, bucket)).rowcount
    return connection.execute(statement("delete_duplicates_before"), (partition_row, *bound)).rowcount
