"""The names of rows, by which the broker knows rows that come again (ADR 0014).

```text
 id of a row that was read (16 bytes)
 0      2                8                         16
 | place | entity_id and  | position                |
 |       | partition_id   |                         |
```

*Place* decides the partition of a message without a key. It is the same for 256 neighbours, so that they go to one
partition with one command, and their ids to one place of the store.
"""

from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from partibus.spark.errors import WriteError
from partibus.spark.sink_options import KeyOrder, Naming, SinkOptions
from partibus.spark.sink_values import ADDRESS, has_address

ID_BYTES = 16
_BLOCK_BITS = 8
_STRIDE = 40_503
"""The golden ratio of 2^16: neighbouring blocks go to places far apart, and many blocks spread over all places."""
_SOURCE_BYTES = 6
_MESSAGE_ID_CHARS_MAX = 128


class Names(NamedTuple):
    """The names of the rows of one batch."""

    ids: list[bytes] | None
    source: int | None
    positions: list[int] | None
    message_ids: list[str] | None
    """Message ids for messages without one."""


class Namer:
    """The names of one task's rows, batch after batch.

    Raises `WriteError` for rows that can't be named so that each is stored once.
    """

    def __init__(self, options: SinkOptions, naming: Naming, sink: int) -> None:
        self._options = options
        self._naming = naming
        self._sink = sink
        self._in_order = naming is Naming.POSITIONS or options.key_order is KeyOrder.STRICT
        self._last: bytes | None = None
        self._last_position = -1
        self.source: bytes | None = None
        """The one source partition of the rows, where that is required."""

    def names(self, batch: pa.RecordBatch) -> Names:
        """Return the names of a batch that has rows."""
        column = self._options.id_column
        if column is not None:
            ids, message_ids = _column_ids(batch.column(column), column)
            if self._in_order:
                self._check_order(*_addresses(batch)[1:])
            return Names(self._unlike(ids), None, None, message_ids)
        if not has_address(dict.fromkeys(batch.schema.names, "")):
            return Names(None, None, None, None)
        if self._options.naming is Naming.AUTO and _have_no_address(batch):
            # INSERT of new rows into a table or view, which has all columns of a read.
            return Names(None, None, None, None)
        texts, sources, positions = _addresses(batch)
        message_ids = [f"{texts[source]}/{position}" for source, position in zip(sources, positions, strict=True)]
        if self._in_order:
            self._check_order(sources, positions)
        if self._naming is Naming.POSITIONS:
            assert self.source is not None, "checked"
            return Names(None, source_key(self._sink, self.source), positions.tolist(), message_ids)
        if self._naming is Naming.NONE:
            return Names(None, None, None, message_ids)
        return Names(self._unlike(_address_ids(sources, positions)), None, None, message_ids)

    def _unlike(self, ids: list[bytes]) -> list[bytes]:
        if len(set(ids)) < len(ids) or ids[0] == self._last:
            named = repr(self._options.id_column or "position")
            raise WriteError(
                f"two rows have the same name, so that the second would be dropped: {named} is not unlike in all rows. "
                'A join or explode makes several rows of one: name them with .option("idColumn", "COLUMN")'
            )
        self._last = ids[-1]
        return ids

    def _check_order(self, sources: Any, positions: Any) -> None:
        """Check that all rows come from one source partition and ascend."""
        option = "naming" if self._naming is Naming.POSITIONS else "keyOrder"
        value = "positions" if self._naming is Naming.POSITIONS else "strict"
        why = (
            f"option {option!r} is {value!r}, which takes a plan that reads, maps and writes: no join, union, "
            "repartition or aggregation in between, and no 'messagesPerSparkPartition'"
        )
        first = int(sources[0]).to_bytes(8)
        if (sources != sources[0]).any() or (self.source is not None and self.source != first):
            raise WriteError(f"a Spark partition has rows of several source partitions; {why}")
        if int(positions[0]) <= self._last_position or (np.diff(positions) <= 0).any():
            raise WriteError(f"a Spark partition has rows that do not ascend by 'position'; {why}")
        self.source = first
        self._last_position = int(positions[-1])


def sink_key(kind: str, name: str) -> int:
    """Return the number by which a partition knows a sink: 1 to 2^62."""
    return 1 + (int.from_bytes(blake2b(f"{kind}:{name}".encode(), digest_size=8).digest()) >> 2)


def source_key(sink: int, source: bytes) -> int:
    """Return the number by which a partition knows one source partition of a sink, below 0."""
    return -1 - (int.from_bytes(blake2b(sink.to_bytes(8) + source, digest_size=8).digest()) >> 2)


def _have_no_address(batch: pa.RecordBatch) -> bool:
    """Tell whether no row of the batch was read from an entity."""
    return all(batch.column(name).null_count == batch.num_rows for name in ADDRESS)


def _addresses(batch: pa.RecordBatch) -> tuple[dict[int, str], Any, Any]:
    """Return the text of each source, and for each row its source as 48 bits and its position."""
    columns = [batch.column(name) for name in ADDRESS]
    for name, column in zip(ADDRESS, columns, strict=True):
        if column.null_count:
            raise WriteError(
                f"column {name!r} is null in {column.null_count} rows, which have no name then; filter them out, or "
                'name rows with .option("idColumn", "COLUMN")'
            )
    entities = pc.cast(columns[0], pa.string()).dictionary_encode()
    partitions = columns[1].to_numpy(zero_copy_only=False).astype(np.int64)
    positions = columns[2].to_numpy(zero_copy_only=False).astype(np.int64)
    both = entities.indices.to_numpy(zero_copy_only=False).astype(np.int64) << 32 | partitions
    different, places = np.unique(both, return_inverse=True)
    words = entities.dictionary.to_pylist()
    texts: dict[int, str] = {}
    numbers = []
    for one in different.tolist():
        text = f"{words[one >> 32]}/{one & 0xFFFFFFFF}"
        number = int.from_bytes(blake2b(text.encode(), digest_size=_SOURCE_BYTES).digest())
        texts[number] = text
        numbers.append(number)
    return texts, np.array(numbers, np.int64)[places], positions


def _address_ids(sources: Any, positions: Any) -> list[bytes]:
    count = len(positions)
    columns = np.empty((count, 2), ">u8")
    place = ((positions >> _BLOCK_BITS) * _STRIDE + sources) & 0xFFFF
    columns[:, 0] = place.astype(np.uint64) << np.uint64(48) | sources.astype(np.uint64)
    columns[:, 1] = positions.astype(np.uint64)
    data = columns.tobytes()
    return [data[start : start + ID_BYTES] for start in range(0, ID_BYTES * count, ID_BYTES)]


def _column_ids(column: pa.Array, name: str) -> tuple[list[bytes], list[str]]:
    """Return row ids and message ids from a column."""
    if column.null_count:
        raise WriteError(f"option 'idColumn' is {name!r}, which is null in {column.null_count} rows; filter them out")
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        raw = column.to_pylist()
        texts = [value.hex() for value in raw]
    else:
        texts = pc.cast(column, pa.string()).to_pylist()
        raw = [text.encode() for text in texts]
    ids = [blake2b(value, digest_size=ID_BYTES).digest() for value in raw]
    return ids, [
        text if len(text) <= _MESSAGE_ID_CHARS_MAX else row_id.hex() for text, row_id in zip(texts, ids, strict=True)
    ]
