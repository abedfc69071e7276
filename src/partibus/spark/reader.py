"""Planning a read and reading one split, without Spark: what a data source class hands on to.

A split is read by position, and read again it gives the same messages less those that consumers have finished
meanwhile. Browsing locks nothing and pins nothing, so rows that vanish between plan and read, or between two reads,
are no error.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from partibus.amqp.errors import DecodeError
from partibus.client.browse import BrowsedMessage
from partibus.client.errors import AccessDenied, ClientError, EntityDisabled, NotFound
from partibus.spark.connections import borrowed_client
from partibus.spark.decoding import decode_columns
from partibus.spark.errors import PlanError, ReadError
from partibus.spark.options import Options
from partibus.spark.planning import Split, plan_splits
from partibus.spark.ports import OpenClient

BATCH_BYTES_MAX = 64 << 20
"""Payload in one record batch. The bound on rows is none on bytes (a message may have 100 MB), and an Arrow binary
column ends at 2 GiB."""

ATTEMPTS = 2
"""Connections that one split may use up: a kept one may have died while it was idle. More patience is Spark's part,
which retries tasks (on a cluster; `local[n]` does not)."""

_WAYS_OUT: dict[type[Exception], str] = {
    AccessDenied: "the key in option 'connection' must be right and have the Listen right",
    NotFound: "option 'entity' must name what exists; `partibus entity list` shows it",
    EntityDisabled: "set the entity's Status to Active to read it",
    OSError: "option 'connection' must name a broker that runs and that this machine reaches",
}


def plan(options: Options, open_client: OpenClient) -> list[Split]:
    """Ask the broker what every partition holds now, and deal it out. Raises `PlanError`."""
    try:
        with borrowed_client(options, open_client, fresh=True) as client:
            return plan_splits(client.partitions(), options.positions_per_task)
    except (ClientError, OSError) as error:
        raise PlanError(f"cannot read {options.where}: {error}; {_way_out(error)}") from error


def read_split(split: Split, options: Options, schema: pa.Schema, open_client: OpenClient) -> Iterator[pa.RecordBatch]:
    """Record batches with exactly the columns of ``schema``. Raises `ReadError`."""
    pages = _pages(split, options, open_client)
    for messages in rebatch(pages, options.rows_per_batch, BATCH_BYTES_MAX):
        try:
            batch = decode_columns(messages, split.partition_id, schema)
        except DecodeError as error:
            raise ReadError(f"{split} of {options.where} holds what is no message: {error}") from error
        yield batch


def rebatch(pages: Iterable[Sequence[BrowsedMessage]], rows_max: int, bytes_max: int) -> Iterator[list[BrowsedMessage]]:
    """The same messages in lists of ``rows_max``, shorter where ``bytes_max`` of payload is reached; the last one is
    what remains. No list is empty."""
    rows: list[BrowsedMessage] = []
    size = 0
    for page in pages:
        for message in page:
            rows.append(message)
            size += len(message.payload)
            if len(rows) == rows_max or size >= bytes_max:
                yield rows
                rows, size = [], 0
    if rows:
        yield rows


def _pages(split: Split, options: Options, open_client: OpenClient) -> Iterator[Sequence[BrowsedMessage]]:
    """The pages of a split; goes on behind the last one when a connection is lost."""
    next_pos = split.first_pos
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with borrowed_client(options, open_client, fresh=attempt > 1) as client:
                for page in client.read(split.partition_id, next_pos, split.end_pos, options.bytes_per_fetch):
                    if page:
                        next_pos = page[-1].position + 1
                        yield page
            return
        except (ClientError, OSError) as error:
            if attempt == ATTEMPTS or not _may_pass(error):
                raise ReadError(
                    f"reading {split} of {options.where} stopped at position {next_pos}: {error}; {_way_out(error)}"
                ) from error


def _may_pass(error: ClientError | OSError) -> bool:
    return error.retriable if isinstance(error, ClientError) else True


def _way_out(error: ClientError | OSError) -> str:
    found = (words for kind, words in _WAYS_OUT.items() if isinstance(error, kind))
    return next(found, "reading it again may succeed" if _may_pass(error) else "the broker's log says more")
