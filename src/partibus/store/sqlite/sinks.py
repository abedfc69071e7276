"""Lookup, counting, recording and removal of a sink's stored ids in a store's file.

Ids are hashes, so each id of a commit may fall on another page, and the log gets that page. With 25,000 ids in the live
batches of a partition an id costs 8 us to record and 3 us to look up, with 150,000 it is 28 and 6 (in commits of 250
with both cores busy; the message itself takes 6). Larger commits share pages, and ids that are known to be new in
memory are not looked up: 2 to 4 us in commits of 190 and more.
"""

import json
from collections.abc import Sequence
from sqlite3 import Connection

from partibus.partition.protocol.ports import SINK_ID_COLUMNS
from partibus.store.sqlite.sql import ROWS_MAX, execute_rows, in_list_form, padded_keys, statement, values_form


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
