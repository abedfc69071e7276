"""Arrow tables of telemetry rows with the columns of `schema`; and keys of sent messages, for advice without Spark."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from partibus.partition.protocol.notes import DONE, FULL, LOCK_LOST, OPERATIONS, SEND
from partibus.telemetry.chunks import COMMIT_FAILED, COMMIT_UNKNOWN, NO_LATENCY, Keys, Moved, Place, Rows, Used, shown
from partibus.telemetry.layout import NO_POSITION
from partibus.telemetry.schema import COLUMNS, COMMIT, FAILED, MOVE, NAMESPACE, OK, UNKNOWN, USE

SUBQUEUES: Final = ("", "/$DeadLetterQueue", "/$Transfer/$DeadLetterQueue", "/$Transfer")
"""Suffixes of the entity's path by kind of sub-queue; the last one is for messages sent through the entity."""
OUTCOMES: Final = {
    DONE: OK,
    FULL: "amqp:resource-limit-exceeded",
    LOCK_LOST: "com.microsoft:message-lock-lost",
    COMMIT_FAILED: FAILED,
    COMMIT_UNKNOWN: UNKNOWN,
}
_TYPES: Final = {
    "timestamp": pa.timestamp("us", "UTC"),
    "string": pa.dictionary(pa.int32(), pa.string()),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
}
_NULL: Final = -1
_TEXT_MAX: Final = 1 << 16
_OPS: Final = (*OPERATIONS, COMMIT)
_PARTITION_SHIFT: Final = 48
_NOWHERE: Final = Place("", 0, 0)


class Tables:
    """Makes tables of one broker's rows."""

    def __init__(self, broker: str, weight: float) -> None:
        """Prepare tables. ``weight`` is that of each row except commits, all of which are recorded."""
        self._broker = broker
        self._weight = weight
        self._keys = Keys()

    def make(self, rows: Rows, places: Mapping[int, Place]) -> pa.Table:
        """Make a table of all rows, batch by batch, then the commits, uses and moves."""
        words, keys = _Words(), _Words()
        columns = self._of_batches(rows, places, words, keys)
        parts = [columns]
        if rows.commits:
            parts.append(self._of_commits(rows, places, words))
        if rows.uses:
            parts.append(self._of_uses(rows.uses, words))
        if rows.moves:
            parts.append(self._of_moves(rows.moves, words))
        if len(parts) > 1:
            columns = {name: np.concatenate([part[name] for part in parts]) for name in columns}
        return pa.table(
            [
                _array(columns[column.name], _TYPES[column.type], keys if column.name == "key" else words)
                for column in COLUMNS
            ],
            names=[column.name for column in COLUMNS],
        )

    def _of_batches(
        self, rows: Rows, places: Mapping[int, Place], words: "_Words", key_words: "_Words"
    ) -> dict[str, Any]:
        batches = rows.batches
        counts = np.array([batch.size for batch in batches], np.int64)
        total = int(counts.sum())
        zeros = np.zeros(int(counts.max(initial=0)), np.int64)
        positions, sizes, sequences, enqueued, deliveries = [], [], [], [], []
        for batch in batches:
            count, columns = batch.size, batch.columns
            positions.append(columns[:count])
            sizes.append(columns[count : 2 * count])
            if batch.operation == SEND:
                enqueued.append(zeros[:count])
                deliveries.append(zeros[:count])
            else:
                enqueued.append(columns[2 * count : 3 * count])
                deliveries.append(columns[3 * count : 4 * count])
            sequences.append(columns[-count:] if batch.kind else positions[-1])

        def repeated(values: list[int]) -> Any:
            return np.repeat(np.array(values, np.int64), counts)

        found = [places.get(batch.row, _NOWHERE) for batch in batches]
        now_ms = repeated([batch.now_ms for batch in batches])
        is_send = repeated([batch.operation == SEND for batch in batches]).astype(bool)
        position, sequence = _joined(positions), _joined(sequences)
        keys, slots = self._keys_of(rows, sequences, total, key_words)
        partitions = [place.partition for place in found]
        nothing = np.full(total, _NULL)
        return {
            "time": now_ms * 1000,
            "op": repeated([words.number(_OPS[batch.operation]) for batch in batches]),
            "namespace": repeated([words.number(place.namespace) for place in found]),
            "entity": repeated(
                [
                    words.number(place.entity + SUBQUEUES[batch.kind])
                    for place, batch in zip(found, batches, strict=True)
                ]
            ),
            "partition_id": repeated(partitions),
            "store": repeated([place.store for place in found]),
            "broker": np.full(total, words.number(self._broker)),
            "position": position,
            "sequence_number": np.where(
                sequence == NO_POSITION, _NULL, sequence | repeated(partitions) << _PARTITION_SHIFT
            ),
            "key": keys,
            "slot": slots,
            "size_bytes": _joined(sizes),
            "delivery_count": _joined(deliveries),
            "dwell_ms": np.where(is_send, _NULL, np.maximum(now_ms - _joined(enqueued), 0)),
            "latency_us": np.where((latency := repeated(rows.latencies_us)) == NO_LATENCY, _NULL, latency),
            "messages": np.ones(total, np.int64),
            "outcome": repeated([words.number(OUTCOMES[outcome]) for outcome in rows.outcomes]),
            "weight": np.full(total, self._weight),
            **dict.fromkeys(("client", "asked_for", "requests", "rules"), nothing),
        }

    def _keys_of(self, rows: Rows, sequences: list[Any], total: int, words: "_Words") -> tuple[Any, Any]:
        of_batches = [
            self._keys.of(batch, numbers.tolist()) for batch, numbers in zip(rows.batches, sequences, strict=True)
        ]
        keys = list(chain.from_iterable(of_batches))
        distinct = [key for key in dict.fromkeys(keys) if key is not None]
        if not distinct:
            return np.full(total, _NULL), np.full(total, _NULL)
        numbers: dict[str | None, int] = {None: _NULL} | {key: words.number(shown(key)) for key in distinct}
        slots: dict[str | None, int] = {None: _NULL} | {key: self._keys.slot(key) for key in distinct}
        return np.array([numbers[key] for key in keys], np.int64), np.array([slots[key] for key in keys], np.int64)

    def _of_commits(self, rows: Rows, places: Mapping[int, Place], words: "_Words") -> dict[str, Any]:
        commits = rows.commits
        total = len(commits)
        columns = {column.name: np.full(total, _NULL) for column in COLUMNS}
        return columns | {
            "time": np.array([commit.now_ms * 1000 for commit in commits]),
            "op": np.full(total, words.number(COMMIT)),
            "namespace": np.full(total, words.number(NAMESPACE)),
            "store": np.array([places[commit.row].store if commit.row in places else _NULL for commit in commits]),
            "broker": np.full(total, words.number(self._broker)),
            "size_bytes": np.array([commit.size_bytes for commit in commits]),
            "latency_us": np.array([commit.took_us for commit in commits]),
            "messages": np.array([commit.operations for commit in commits]),
            "outcome": np.full(total, words.number(OK)),
            "weight": np.ones(total),
        }

    def _of_uses(self, uses: list[Used], words: "_Words") -> dict[str, Any]:
        total = len(uses)
        columns = {column.name: np.full(total, _NULL) for column in COLUMNS}

        def numbers(texts: list[str]) -> Any:
            return np.array([words.number(shown(text, _TEXT_MAX)) if text else _NULL for text in texts], np.int64)

        return columns | {
            "time": np.array([use.since_ms * 1000 for use in uses]),
            "op": np.full(total, words.number(USE)),
            "namespace": numbers([use.namespace for use in uses]),
            "entity": numbers([use.entity for use in uses]),
            "broker": np.full(total, words.number(self._broker)),
            "messages": np.array([use.units for use in uses]),
            "outcome": np.full(total, words.number(OK)),
            "weight": np.ones(total),
            "client": numbers([use.client for use in uses]),
            "asked_for": numbers([use.asked_for for use in uses]),
            "requests": np.array([use.requests for use in uses]),
            "rules": numbers([use.rules for use in uses]),
        }

    def _of_moves(self, moves: list[Moved], words: "_Words") -> dict[str, Any]:
        total = len(moves)
        columns = {column.name: np.full(total, _NULL) for column in COLUMNS}

        def numbers(texts: list[str]) -> Any:
            return np.array([words.number(shown(text, _TEXT_MAX)) for text in texts], np.int64)

        return columns | {
            "time": np.array([move.now_ms * 1000 for move in moves]),
            "op": np.full(total, words.number(MOVE)),
            "namespace": numbers([move.namespace for move in moves]),
            "entity": numbers([move.entity for move in moves]),
            "partition_id": np.array([move.target for move in moves]),
            "broker": np.full(total, words.number(self._broker)),
            "position": np.array([move.source for move in moves]),
            "sequence_number": np.array([move.version for move in moves]),
            "latency_us": np.array([move.took_ms * 1000 for move in moves]),
            "messages": np.array([move.slots for move in moves]),
            "outcome": np.full(total, words.number(OK)),
            "weight": np.ones(total),
            "asked_for": numbers([move.step for move in moves]),
            "requests": np.array([move.partitions for move in moves]),
            "rules": numbers([move.why for move in moves]),
        }


class _Words:
    """Texts and their numbers in a dictionary of a table.

    Keys have a dictionary of their own: a file stores the whole dictionary with each column that uses it.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, word: str) -> int:
        return self._numbers.setdefault(word, len(self._numbers))

    @property
    def array(self) -> pa.Array:
        return pa.array(list(self._numbers), pa.string())


def _joined(columns: list[Any]) -> Any:
    return np.concatenate(columns) if columns else np.zeros(0, np.int64)


def _array(values: Any, kind: pa.DataType, words: _Words) -> pa.Array:
    """Make an array. No value is below 0, so `_NULL` can stand for none."""
    if pa.types.is_floating(kind):
        return pa.array(values, kind)
    mask = values == _NULL
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(pa.array(values.astype(np.int32), mask=mask), words.array)
    return pa.array(values, pa.int64(), mask=mask).cast(kind)


KEYS_MAX: Final = 100_000
"""The most keys of one entity that are returned: the first ones of the newest files."""
SINCE: Final = timedelta(hours=1)
"""The age up to which rows are read."""


def sent_keys(
    directory: Path, namespace: str, entities: Collection[str], now: datetime | None = None
) -> dict[str, list[tuple[int, str]]]:
    """Return the partition and key of each recorded message with a key, by entity.

    Rows of the last hour before ``now`` are read. Files that the broker removes meanwhile have none.
    """
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    files: list[tuple[float, Path]] = []
    for path in directory.rglob("*.parquet"):
        with suppress(FileNotFoundError):
            files.append((path.stat().st_mtime, path))
    found: dict[str, list[tuple[int, str]]] = {}
    since = ((now or datetime.now(UTC)) - SINCE).timestamp()
    for changed, file in sorted(files, reverse=True):
        if changed < since:
            break
        try:
            table = ds.dataset(str(file)).to_table(
                columns=["entity", "partition_id", "key"],
                filter=(pc.field("op") == "send")
                & (pc.field("namespace") == namespace)
                & pc.field("entity").isin(sorted(entities))
                & ~pc.field("key").is_null(),
            )
        except FileNotFoundError:
            continue
        columns = (table.column(name).to_pylist() for name in ("entity", "partition_id", "key"))
        for entity, partition, key in zip(*columns, strict=True):
            keys = found.setdefault(entity, [])
            if len(keys) < KEYS_MAX:
                keys.append((partition, key))
    return found
