"""The rows of a job as messages of an entity, each stored once, with a line per message: source, target and time.

The rows have the columns of the data source, and are identified by their address (ADR 0014). The broker keeps their
names until `forget`, so a failed attempt may be sent again as a whole. Tasks write no faster than their rate.
"""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import DataFrame

from partibus.client.errors import AccessDenied, NotFound
from partibus.client.extensions.entities import Entities, EntityInfo
from partibus.client.extensions.sinks import SINK_ENDS
from partibus.client.sync import connect
from partibus.pipeline.job import JobError
from partibus.spark.sink import open_sink_client
from partibus.spark.sink_options import Naming, SinkOptions
from partibus.spark.sink_values import SINK_TYPES

if TYPE_CHECKING:
    import pyarrow as pa

LINE = "entity_id string, partition_id int, position bigint, sent_to string, sent_time timestamp, repeated boolean"
"""Columns of a line. ``repeated``: an earlier, failed attempt had stored some of the rows sent with it."""
_STEP_S = 0.25
"""The interval at which a task with a rate writes the due rows."""
_ROWS_MAX = 2_000
"""The most rows of one step. It bounds the rows that the trail marks as repeated when a task fails."""


class Sending(NamedTuple):
    """The target of the rows, and the form in which they are sent."""

    options: SinkOptions
    sink: int
    rate: float | None = None
    """Messages per second, of all tasks together."""


def check_target(connection: str, entity: str, *, new_ids: bool) -> EntityInfo | None:
    """Return the entity's properties if the key has the right to ask.

    Raises `JobError` when rows would not arrive there.
    """
    client = connect(connection)
    try:
        found = Entities(client).get(entity)
    except AccessDenied:
        return None
    except NotFound as error:
        raise JobError(f"there is no entity {entity!r} to send to: create it, or name another one") from error
    finally:
        client.close()
    if found.kind == "subscription":
        raise JobError(f"no client can send to the subscription {entity!r}; name its topic, or a queue")
    if found.properties.get("RequiresDuplicateDetection") and not new_ids:
        raise JobError(
            f"{entity!r} detects duplicates, and would drop messages whose ids it has seen lately: give new ones with "
            "--new-ids, or send to another entity"
        )
    return found


def sent(rows: DataFrame, sending: Sending) -> DataFrame:
    """Return lines; rows are stored when the lines are computed.

    Rows of one source partition are sent in the order of their positions, so that keys keep their order.
    """
    columns = [name for name in rows.columns if name in SINK_TYPES]
    rows = rows.select(*columns)
    partitions = 1 if sending.rate is not None else rows.sparkSession.sparkContext.defaultParallelism
    rows = rows.repartition(partitions, "entity_id", "partition_id").sortWithinPartitions("partition_id", "position")

    def store(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        return _store(batches, sending)

    return rows.mapInArrow(store, LINE)


def forget(sending: Sending) -> None:
    """Let the broker forget the names of the rows, which are all stored and will not be sent again. Raises nothing."""
    from partibus.spark.writer import tell_committed

    tell_committed(sending.sink, SINK_ENDS, sending.options, open_sink_client)


def _store(batches: Iterator["pa.RecordBatch"], sending: Sending) -> Iterator["pa.RecordBatch"]:
    import pyarrow as pa

    from partibus.spark.writer import write_rows

    step = _ROWS_MAX if sending.rate is None else min(_ROWS_MAX, max(1, int(sending.rate * _STEP_S)))
    due_s = time.monotonic()
    for batch in batches:
        for start in range(0, batch.num_rows, step):
            part = batch.slice(start, step)
            if sending.rate is not None:
                time.sleep(max(0.0, due_s - time.monotonic()))
                due_s = max(due_s, time.monotonic() - _STEP_S) + part.num_rows / sending.rate
            now_ms = int(time.time() * 1000)
            report = write_rows([part], sending.options, Naming.IDS, sending.sink, open_sink_client, now_ms)
            count = part.num_rows
            yield pa.RecordBatch.from_arrays(
                [
                    part.column("entity_id").cast(pa.string()),
                    part.column("partition_id").cast(pa.int32()),
                    part.column("position").cast(pa.int64()),
                    pa.array([sending.options.entity] * count, pa.string()),
                    pa.array([datetime.now(UTC)] * count, pa.timestamp("us", "UTC")),
                    pa.array([report.duplicates > 0] * count, pa.bool_()),
                ],
                names=["entity_id", "partition_id", "position", "sent_to", "sent_time", "repeated"],
            )
