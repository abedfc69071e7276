"""The write of one task's rows, and the driver's handling of the tasks' reports, without Spark."""

import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from partibus.client.errors import AccessDenied, ClientError, EntityDisabled, NotFound, QuotaExceeded, Throttled
from partibus.client.extensions.sinks import Stored
from partibus.spark.errors import WriteError
from partibus.spark.sink_encoding import encode_batch
from partibus.spark.sink_options import KeyOrder, Naming, SinkOptions
from partibus.spark.sink_rows import Namer

KEYS_MAX = 20_000
"""The most keys that a task reports; with more it reports none."""
_DIGEST_BYTES = 8
_log = logging.getLogger("partibus.spark")

_WAYS_OUT: dict[type[Exception], str] = {
    AccessDenied: "the key in option 'connection' must be right and have the Send right",
    NotFound: "option 'entity' must name what exists; `partibus entity list` shows it",
    EntityDisabled: "set the entity's Status to Active to write to it",
    QuotaExceeded: "receive messages, or raise MaxSizeInMegabytes; rows that are stored are not stored again",
    Throttled: "write with fewer tasks at once, raise option 'retryTimeoutMs', or have the namespace get more credits",
    OSError: "option 'connection' must name a broker that runs and that this machine reaches",
}


class RowStore(Protocol):
    """A client that stores rows, such as `partibus.client.extensions.sinks.SinkClient`."""

    def put(
        self,
        messages: Sequence[bytes],
        *,
        sink: int,
        source: int | None = None,
        positions: Sequence[int] | None = None,
        ids: Sequence[bytes] | None = None,
    ) -> Stored:
        """Store messages, and count the new and the repeated ones."""

    def check(self) -> None:
        """Check that the key may write to the entity now."""

    def commit(self, sink: int, batch: int) -> None:
        """Report a complete batch, so that the broker may forget the ids of its rows."""

    def close(self) -> None:
        """Close the connection. Idempotent."""


class OpenSink(Protocol):
    """Opens a client. A plain function will do. It must be picklable by reference: tasks get it from the driver."""

    def __call__(self, connection: str, entity: str, within_s: float, request_bytes: int) -> RowStore:
        """Open a client of an entity."""


@dataclass(frozen=True)
class Report:
    """The report of a task."""

    sink: int
    rows: int
    duplicates: int
    """Rows that an earlier attempt had stored, if rows are named."""
    source: bytes | None
    """The one source partition of its rows, where that was checked."""
    keys: bytes | None
    """Digests of the keys of its messages; None: not checked, or too many."""


def check_target(options: SinkOptions, open_sink: OpenSink) -> None:
    """Check on the driver, before any task, that this key may write there now. Raises `WriteError`."""
    try:
        client = open_sink(options.connection, options.entity, options.within_s, options.batch_bytes)
        try:
            client.check()
        finally:
            client.close()
    except (ClientError, OSError) as error:
        raise WriteError(f"cannot write to {options.where}: {error}; {_way_out(error)}") from error


def write_rows(
    batches: Iterable[pa.RecordBatch], options: SinkOptions, naming: Naming, sink: int, open_sink: OpenSink, now_ms: int
) -> Report:
    """Store all rows. ``now_ms`` is the parameter of `encode_batch`. Raises `WriteError`."""
    namer = Namer(options, naming, sink)
    keys: set[str] | None = set() if options.key_order is KeyOrder.WARN else None
    rows = duplicates = 0
    with _borrowed(options, open_sink) as client:
        for batch in batches:
            if not batch.num_rows:
                continue
            names = namer.names(batch)
            messages = encode_batch(batch, names.message_ids, options.property_columns, now_ms)
            try:
                stored = client.put(messages, sink=sink, source=names.source, positions=names.positions, ids=names.ids)
            except (ClientError, OSError) as error:
                raise WriteError(
                    f"writing rows {rows} to {rows + batch.num_rows} of a Spark partition to {options.where}: {error}; "
                    f"{_way_out(error)}"
                ) from error
            rows += batch.num_rows
            duplicates += stored.duplicates
            if keys is not None and (found := _keys_of(batch)) is not None:
                keys.update(found)
                if len(keys) > KEYS_MAX:
                    keys = None
    digests = None if keys is None else b"".join(sorted(_digest(key) for key in keys))
    return Report(sink, rows, duplicates, namer.source, digests)


def committed(reports: Sequence[Report], options: SinkOptions, naming: Naming, batch: int, open_sink: OpenSink) -> None:
    """Finish a batch all of whose tasks have succeeded.

    The report to the broker may fail: then the broker keeps ids of rows longer, without other effects. Raises
    `WriteError` when the order of keys was required and not kept.
    """
    _check_order(reports, options, naming)
    if naming is Naming.IDS and reports:
        tell_committed(reports[0].sink, batch, options, open_sink)


def tell_committed(sink: int, batch: int, options: SinkOptions, open_sink: OpenSink) -> None:
    """Tell the broker which batch is complete. Raises nothing."""
    try:
        client = open_sink(options.connection, options.entity, options.within_s, options.batch_bytes)
        try:
            client.commit(sink, batch)
        finally:
            client.close()
    except (ClientError, OSError) as error:
        _log.warning("the ids of rows that were written to %s are kept longer than needed: %s", options.where, error)


def warn_at_least_once(options: SinkOptions) -> None:
    """Warn that rows have no names."""
    _log.warning(
        "rows are written to %s at least once: a task that is tried again writes its rows again. To have each stored "
        "once keep the source's columns entity_id, partition_id and position, or name a column that tells rows apart "
        'with .option("idColumn", "COLUMN"); .option("naming", "none") says that it is meant so',
        options.where,
    )


def _check_order(reports: Sequence[Report], options: SinkOptions, naming: Naming) -> None:
    sources = Counter(report.source for report in reports if report.source is not None)
    several = sum(count > 1 for count in sources.values())
    if several:
        lost = "rows may have been dropped" if naming is Naming.POSITIONS else "messages may be out of order"
        raise WriteError(
            f"{several} source partitions fed more than one Spark partition each, so {lost} in {options.where}; leave "
            "out 'messagesPerSparkPartition' and repartitions, or use naming 'ids' and keyOrder 'warn'"
        )
    seen: Counter[bytes] = Counter()
    for report in reports:
        if report.keys:
            data = report.keys
            seen.update(data[start : start + _DIGEST_BYTES] for start in range(0, len(data), _DIGEST_BYTES))
    shared = sum(count > 1 for count in seen.values())
    if shared:
        _log.warning(
            "%d keys of messages to %s were fed by several Spark partitions, whose order is not kept; "
            'df.repartition("session_id") or a similar one before the write brings a key together, '
            '.option("keyOrder", "ignore") says that it does not matter',
            shared,
            options.where,
        )


def _keys_of(batch: pa.RecordBatch) -> list[str] | None:
    """Return the distinct keys of a batch."""
    columns = [batch.column(name) for name in ("session_id", "partition_key") if name in batch.schema.names]
    if not columns:
        return None
    found = pc.unique(columns[0] if len(columns) == 1 else pc.coalesce(*columns)).to_pylist()
    return [key for key in found if key is not None]


def _digest(key: str) -> bytes:
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()


def _way_out(error: ClientError | OSError) -> str:
    found = (words for kind, words in _WAYS_OUT.items() if isinstance(error, kind))
    return next(found, "Spark may try the task again" if getattr(error, "retriable", True) else "change the rows")


_idle: dict[tuple[OpenSink, str, str, float, int], tuple[int, RowStore]] = {}
"""One client, kept from task to task with the id of its process: Spark reuses its Python workers."""


@contextmanager
def _borrowed(options: SinkOptions, open_sink: OpenSink) -> Iterator[RowStore]:
    key = (open_sink, options.connection, options.entity, options.within_s, options.batch_bytes)
    kept = _idle.pop(key, None)
    client = kept[1] if kept is not None and kept[0] == os.getpid() else open_sink(*key[1:])
    try:
        yield client
    except BaseException:
        client.close()
        raise
    while _idle:
        _idle.popitem()[1][1].close()
    _idle[key] = (os.getpid(), client)


def asked_columns(schema: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """Return the type of each column of a table. Raises `WriteError` for a name that comes twice."""
    found: dict[str, str] = {}
    for name, type_ in schema:
        if name in found:
            raise WriteError(f"two columns are named {name!r}; drop or rename one")
        found[name] = type_
    return found
