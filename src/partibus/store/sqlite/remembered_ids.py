"""Remembered ids in a store's file: those of messages (`duplicates`), and those of a sink's rows.

Ids of a sink are hashes, so each id of a commit may fall on another page, and the log gets that page. With 25,000 ids
in the live batches of a partition an id costs 8 us to record and 3 us to look up, with 150,000 it is 28 and 6 (in
commits of 250 with both cores busy; the message itself takes 6). Larger commits share pages, and ids that are known to
be new in memory are not looked up: 2 to 4 us in commits of 190 and more.
"""

import json
from collections.abc import Sequence
from sqlite3 import Connection

from partibus.partition.protocol.ports import SINK_ID_COLUMNS
from partibus.store.sqlite.sql import ROWS_MAX, execute_rows, in_list_form, padded_keys, statement, values_form


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


def find_sink_ids(connection: Connection, partition_row: int, sink: int, ids: Sequence[bytes]) -> set[bytes]:
    """Return those of ``ids`` that the sink has stored and still remembers (`queries.SinkIds`)."""
    found: set[bytes] = set()
    for chunk in padded_keys(ids):
        form = in_list_form("find_sink_ids", len(chunk))
        (listed,) = connection.execute(form, (partition_row, sink, *chunk)).fetchone()
        found.update(map(bytes.fromhex, json.loads(listed)))
    return found


def count_sink_ids(connection: Connection, partition_row: int, sink: int, batch: int) -> int:
    """Count the ids that a sink has of ``batch`` and earlier batches (`queries.SinkIdCount`)."""
    ((count,),) = connection.execute(statement("count_sink_ids"), (partition_row, sink, batch)).fetchall()
    return int(count)


def add_sink_ids(connection: Connection, partition_row: int, sink: int, batch: int, ids: Sequence[bytes]) -> None:
    """Record ids that no batch of the sink has, in the order of their places in the file."""
    ordered = sorted(ids)
    for start in range(0, len(ordered), ROWS_MAX):
        chunk = ordered[start : start + ROWS_MAX]
        count = len(chunk)
        (form_ids,) = padded_keys(chunk)
        form = values_form("insert_sink_ids", len(form_ids))
        connection.execute(form, (partition_row, sink, batch, *form_ids, count))


def remember_sink_ids(connection: Connection, flat: Sequence[int | bytes]) -> None:
    """Record ids, each with the batch of its last row here, replacing any batch before."""
    columns = [iter(flat)] * SINK_ID_COLUMNS
    sinks: dict[tuple[int, int], dict[bytes, int]] = {}
    for partition_row, sink, row_id, batch in zip(*columns, strict=True):
        sinks.setdefault((partition_row, sink), {})[row_id] = batch
    for place, batches in sinks.items():
        (listed,) = connection.execute(statement("select_sink_batches"), place).fetchone()
        for other in json.loads(listed):
            for chunk in padded_keys([row_id for row_id, batch in batches.items() if batch != other]):
                connection.execute(in_list_form("delete_sink_ids", len(chunk)), (*place, other, *chunk))
        rows = [column for row_id, batch in batches.items() for column in (*place, batch, row_id)]
        execute_rows(connection, "replace_sink_ids", SINK_ID_COLUMNS, rows)


def forget_sink_ids(connection: Connection, partition_row: int, sink: int, batch: int, most: int) -> None:
    """Delete the first ``most`` ids of ``batch`` and earlier batches, in order."""
    if most <= 0:
        return
    bound = connection.execute(statement("select_sink_bound"), (partition_row, sink, batch, most)).fetchone()
    if bound is None:
        connection.execute(statement("delete_sink_ids_to"), (partition_row, sink, batch))
    else:
        connection.execute(statement("delete_sink_ids_before"), (partition_row, sink, *bound))


def remove_sink_ids(connection: Connection, partition_row: int, most: int) -> int:
    """Delete up to ``most`` ids of a partition's sinks; return how many were deleted."""
    bound = connection.execute(statement("select_swept_sink_id"), (partition_row, most)).fetchone()
    if bound is None:
        return connection.execute(statement("delete_all_sink_ids"), (partition_row,)).rowcount
    return connection.execute(statement("delete_swept_sink_ids"), (partition_row, *bound)).rowcount
