"""The plan of a batch and the read of one split, without Spark, for the data source class.

A split is read by position. A second read gives the same messages, less those that consumers have finished meanwhile,
unless a cursor keeps them. Browsing locks nothing and changes nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from partibus.amqp.errors import DecodeError
from partibus.client.errors import (
    AccessDenied,
    ClientError,
    CursorHeld,
    CursorLost,
    EntityDisabled,
    InvalidRequest,
    NotFound,
    Throttled,
)
from partibus.client.extensions.ranges import CursorState, Frame, PartitionMap
from partibus.spark.errors import DataLossError, PlanError, ReadError
from partibus.spark.options import Options
from partibus.spark.planning import Split, passed_over_in, plan_splits, resolve
from partibus.spark.ports import OpenClient, RangeReader
from partibus.spark.retry_policy import RetryPolicy, may_pass
from partibus.spark.schema import ACTIVE
from partibus.spark.stored import Rows, rows_of

IDLE_MAX = 4
"""Idle connections per process. A job reads one or two queues; a notebook that walks through many must not keep all."""

_idle: dict[tuple[OpenClient, str, str], RangeReader] = {}


@contextmanager
def borrowed_client(options: Options, open_client: OpenClient, *, fresh: bool = False) -> Iterator[RangeReader]:
    """Lend an open client for one use. ``fresh`` passes over the cache, after a kept connection failed."""
    key = (open_client, options.connection, options.entity)
    kept = _idle.pop(key, None)
    if kept is not None and fresh:
        kept.close()
        kept = None
    client = kept if kept is not None else open_client(options.connection, options.entity)
    try:
        yield client
    except BaseException:
        client.close()
        raise
    _give_back(key, client)


def close_idle() -> None:
    """Close every kept connection."""
    while _idle:
        _, client = _idle.popitem()
        client.close()


def _give_back(key: tuple[OpenClient, str, str], client: RangeReader) -> None:
    before = _idle.pop(key, None)
    if before is not None:
        before.close()
    while len(_idle) >= IDLE_MAX:
        _idle.pop(next(iter(_idle))).close()
    _idle[key] = client


_WAYS_OUT: dict[type[Exception], str] = {
    AccessDenied: "the key in option 'connection' must be right and have the Listen right",
    NotFound: "option 'entity' must name what exists; `partibus entity list` shows it",
    EntityDisabled: "set the entity's Status to Active to read it",
    CursorHeld: "wait until that reader has ended, or end it; `partibus cursor list` shows who reads",
    CursorLost: "`partibus cursor list` shows the cursors there are; option 'cursor' must name one of them",
    InvalidRequest: "option 'entity' must name a queue, or a topic with one of its subscriptions in 'subscription'",
    Throttled: "read with fewer tasks at once, raise option 'outageTimeoutMs', or have the namespace get more credits",
    OSError: "option 'connection' must name a broker that runs and that this machine reaches",
}


class Task(NamedTuple):
    """The work of one task, as Spark passes it on."""

    split: Split
    entity_id: str


def plan(options: Options, open_client: OpenClient) -> list[Task]:
    """Ask the broker for the contents of every partition, and divide them. Raises `PlanError`, `OptionError`."""
    try:
        with borrowed_client(options, open_client, fresh=True) as client:
            found = client.map()
            start = starting_positions(options, client, found)
            end = resolve(
                "endingPositions",
                options.ending,
                found,
                client,
                finished=options.cursor is not None,
                is_sub_queue=options.dead_letter_source is not None,
            )
            if options.cursor is not None:
                start = begin_at(options, open_or_find(options, client, start))
    except (ClientError, OSError) as error:
        raise plan_error(options, error) from error
    splits = plan_splits(start, end, options.messages_per_split, passed_over_in(found))
    return [Task(split, found.entity_id) for split in splits]


def starting_positions(options: Options, client: RangeReader, found: PartitionMap) -> dict[int, int]:
    """Return the positions of the option `startingPositions`."""
    return resolve(
        "startingPositions",
        options.starting,
        found,
        client,
        finished=options.cursor is not None,
        is_sub_queue=options.dead_letter_source is not None,
    )


def open_or_find(options: Options, client: RangeReader, start: Mapping[int, int]) -> Mapping[int, CursorState]:
    """Open the browsing cursor, or find it. It keeps all later messages from now on."""
    assert options.cursor is not None, "asked for a cursor without a name"
    return client.open_cursor(options.cursor, start=start, bound_bytes=options.cursor_bytes)


def begin_at(options: Options, states: Mapping[int, CursorState]) -> dict[int, int]:
    """Return the positions of a cursor. Raises `DataLossError` where messages behind it are missing."""
    for partition_id, state in states.items():
        if options.keeps_all and state.complete_from > state.position:
            raise data_loss(options, partition_id, state.position, state.complete_from)
    return {partition_id: state.position for partition_id, state in states.items()}


def data_loss(options: Options, partition_id: int, position: int, complete_from: int) -> DataLossError:
    """Return the error for a cursor that reached its bound of kept bytes, or was moved by another reader."""
    return DataLossError(
        f"messages of partition {partition_id} of {options.where} between the positions {position} and {complete_from} "
        f"are gone: cursor {options.cursor!r} may keep {options.cursor_bytes:,} bytes of finished ones, which was not "
        "enough, or another query has moved it. Raise option 'cursorBytes' and read more often, and give each query a "
        "cursor of its own; to go on with the rest set option 'failOnDataLoss' to 'false'"
    )


def plan_error(options: Options, error: ClientError | OSError) -> PlanError:
    """Return the error for a failure on the driver."""
    return PlanError(f"cannot read {options.where}: {error}; {_way_out(error)}")


def read_task(task: Task, options: Options, schema: pa.Schema, open_client: OpenClient) -> Iterator[pa.RecordBatch]:
    """Yield record batches with exactly the columns of ``schema``. Raises `ReadError`, `DataLossError`."""
    # Imported here: it loads pandas and Arrow's functions, half of the imports of a stream's planner, which needs none.
    from partibus.spark.decoding import Origin, decode_columns

    split = task.split
    origin = Origin(split.partition_id, task.entity_id, options.dead_letter_source)
    for frame in _frames(split, options, open_client):
        try:
            rows = rows_of(frame)
            if options.consumes:
                # A commit completes the active messages. The others are not read, or come again at another position.
                rows = rows.chosen(np.flatnonzero(rows.states == ACTIVE))
            for part in _parts(rows, options.rows_per_batch):
                yield decode_columns(part, origin, schema)
        except DecodeError as error:
            raise ReadError(f"{split} of {options.where} holds what is no message: {error}") from error


def _parts(rows: Rows, rows_max: int) -> Iterator[Rows]:
    """Divide rows into pieces of nearly equal length; none is empty."""
    count = len(rows)
    pieces = -(-count // rows_max)
    for piece in range(pieces):
        yield rows.chosen(slice(count * piece // pieces, count * (piece + 1) // pieces))


def _frames(split: Split, options: Options, open_client: OpenClient) -> Iterator[Frame]:
    """Yield the frames of a split. After the loss of a connection it continues behind the last frame."""
    next_pos = split.first_pos
    retry_policy = RetryPolicy(options.outage_timeout_ms)
    cursor = None if options.consumes else options.cursor
    fresh = False
    while True:
        try:
            with borrowed_client(options, open_client, fresh=fresh) as client:
                for frame in client.read(
                    split.partition_id,
                    next_pos,
                    split.end_pos,
                    options.bytes_per_fetch,
                    finished=cursor is not None,
                    cursor=cursor,
                ):
                    if options.keeps_all and frame.complete_from > next_pos and cursor is not None:
                        raise data_loss(options, split.partition_id, next_pos, frame.complete_from)
                    next_pos = frame.next_pos
                    retry_policy.forget()
                    yield frame
            return
        except (ClientError, OSError) as error:
            if retry_policy.has_ended(error):
                raise ReadError(
                    f"reading {split} of {options.where} stopped at position {next_pos}: {error}; {_way_out(error)}"
                ) from error
            fresh = True


def _way_out(error: ClientError | OSError) -> str:
    found = (words for kind, words in _WAYS_OUT.items() if isinstance(error, kind))
    return next(found, "reading it again may succeed" if may_pass(error) else "the broker's log says more")
