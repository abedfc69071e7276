"""Packing of what the runtimes of a process do into bytes, batch by batch (D28).

This runs within every command, so it makes no object per message: each column of a batch is one pass over its entries.
Sampling is by message: it uses a hash of the sequence counter and the partition, the same for every operation on it.
"""

from array import array
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any, NamedTuple

import msgspec

from partibus.message import Message
from partibus.partition.protocol.keys import Entry
from partibus.partition.protocol.notes import DONE, HELD, SEND, Note, Refusal
from partibus.partition.protocol.ports import EntryState
from partibus.telemetry.layout import (
    BATCH,
    BATCH_HEAD,
    COMMIT,
    COMMIT_HEAD,
    FAILED,
    FAILED_HEAD,
    LENGTH,
    MOVE,
    MOVE_HEAD,
    NAME,
    NAME_HEAD,
    NO_POSITION,
    NOT_DURABLE,
    USE,
    USE_HEAD,
)
from partibus.telemetry.schema import NAMESPACE

CHUNK_BYTES = 256 << 10
"""Size at which a chunk goes to the writer; the feed's timer takes smaller ones."""
_CLASSES = 1 << 16
"""Messages are sampled by the lowest bits of their counters: so many classes, of which some are chosen."""
_MASK = _CLASSES - 1
_GOLDEN = 40503
"""Fibonacci hashing chooses evenly among neighbouring counters, without a period that a sender might have too."""
_ROW_SALT = 25_173
"""Other classes for each partition, lest the same few messages of every small queue are sampled."""


def chosen_classes(sample: float) -> bytes:
    """Mark the chosen classes with 1: the share ``sample`` of them, and one at least."""
    most = max(1, round(sample * _CLASSES))
    return bytes([number * _GOLDEN & _MASK < most for number in range(_CLASSES)])


class Place(NamedTuple):
    """The entity and store of a partition row."""

    entity: str
    """The path; empty when it is no longer known."""
    partition: int
    store: int
    namespace: str = NAMESPACE


class PackedRecorder:
    """A `partition.protocol.notes.Recorder` that packs. The feed takes what it has packed."""

    def __init__(self, sample: float | None) -> None:
        """Record the share ``sample`` of messages; None: all."""
        self.rows = 0
        self.dropped = 0
        self.place_of: Callable[[int], Place] = lambda row: Place("", 0, 0)
        """Finds the place of a partition row."""
        self.on_begun: Callable[[], None] = lambda: None
        """Called when the first bytes were packed after a take."""
        self.on_full: Callable[[], None] = lambda: None
        """Called when a chunk is full."""
        self.classes = None if sample is None else chosen_classes(sample)
        """The chosen classes; None: all."""
        self.weight = 1.0 if self.classes is None else _CLASSES / sum(self.classes)
        """How many messages each recorded one stands for."""
        self.buffer = bytearray()
        self.buffered_rows = 0
        self.named: dict[int, bytes] = {}
        """Names that the writer was told, as records, by partition row."""
        self._runtimes = 0

    def of_store(self) -> "PackedStoreRecorder":
        """Make the recorder of one store (`partition.protocol.notes.Recorder`)."""
        self._runtimes += 1
        return PackedStoreRecorder(self, self._runtimes)

    def take(self) -> tuple[bytes, int]:
        """Take the bytes packed since the last call, as a chunk, with the number of their rows."""
        chunk = LENGTH.pack(len(self.buffer)) + self.buffer
        rows, self.buffered_rows = self.buffered_rows, 0
        self.buffer.clear()
        return chunk, rows

    def names(self) -> bytes:
        """Make a chunk of all names, for a new writer."""
        told = b"".join(self.named.values())
        return LENGTH.pack(len(told)) + told

    def put(self, record: bytes, rows: int) -> None:
        """Add one or several records."""
        buffer = self.buffer
        if not buffer:
            self.on_begun()
        buffer += record
        self.buffered_rows += rows
        self.rows += rows
        if len(buffer) >= CHUNK_BYTES:
            self.on_full()

    def put_uses(self, since_ms: int, uses: Sequence[Sequence[str | int]]) -> None:
        """Add the uses of the second that begins at ``since_ms``.

        A use is: namespace, entity, client, what was asked for (`partibus.telemetry.schema.USES`), requests, units,
        rules.
        """
        document = msgspec.json.encode([since_ms, uses])
        self.put(USE_HEAD.pack(USE, len(document)) + document, len(uses))

    def put_move(self, fields: Sequence[str | int]) -> None:
        """Add a step of a move of slots: the fields of `partibus.telemetry.chunks.Moved`."""
        document = msgspec.json.encode(fields)
        self.put(MOVE_HEAD.pack(MOVE, len(document)) + document, 1)

    def name(self, row: int) -> None:
        """Tell the writer the place of a row."""
        document = msgspec.json.encode(self.place_of(row))
        record = self.named[row] = NAME_HEAD.pack(NAME, row, len(document)) + document
        self.put(record, 0)


class PackedStoreRecorder:
    """A `partition.protocol.notes.StoreRecorder` that packs."""

    __slots__ = ("_all", "_classes", "_refused", "_runtime")

    def __init__(self, recorder: PackedRecorder, runtime: int) -> None:
        self._all = recorder
        self._runtime = runtime
        self._classes = recorder.classes
        self._refused = 0
        """Sends refused so far: such a message has no number."""

    def noted(self, row: int, notes: list[Note], now_ms: int, commit: int) -> None:
        """Pack the notes of a step (`partition.protocol.notes.StoreRecorder`)."""
        classes = self._classes
        salt = row * _ROW_SALT
        for operation, kind, entries, messages in notes:
            if not entries:
                continue
            if type(entries) is range:
                self._published(row, entries, messages or (), now_ms, commit)
                continue
            chosen: Any = entries
            if classes is not None:
                at = [i for i, e in enumerate(entries) if classes[e.sequence + salt & _MASK]]
                if not at:
                    continue
                if messages is not None and _are_alike(entries, messages):
                    messages = [messages[i] for i in at]
                chosen = [entries[i] for i in at]
            columns = [e.pos for e in chosen]
            columns += [e.size_bytes for e in chosen]
            keys = b""
            if operation == SEND:
                if messages is not None:
                    keys = _keys_of(chosen, messages)
            else:
                columns += [e.enqueued_ms for e in chosen]
                if operation in HELD:
                    columns += [e.delivery_count + 1 for e in chosen]
                else:
                    columns += [e.delivery_count for e in chosen]
                if chosen[0].session is not None:
                    keys = _joined([e.session or "" for e in chosen])
            if kind:
                columns += [e.sequence for e in chosen]
            self._put(row, operation, kind, DONE, len(chosen), columns, keys, now_ms, commit)

    def refused(self, row: int, refusals: list[Refusal], now_ms: int) -> None:
        """Pack refusals (`partition.protocol.notes.StoreRecorder`)."""
        classes = self._classes
        for operation, kind, outcome, what in refusals:
            positions: list[int] = []
            sizes: list[int] = []
            keys: list[str] = []
            for one in what:
                if isinstance(one, Message):
                    self._refused += 1
                    number, size = self._refused, len(one.data)
                else:
                    number, size = one, 0
                if classes is not None and not classes[number + row * _ROW_SALT & _MASK]:
                    continue
                positions.append(NO_POSITION if isinstance(one, Message) else number)
                sizes.append(size)
                keys.append(_key_of(one) if isinstance(one, Message) else "")
            if positions:
                columns = positions + sizes
                if operation != SEND:
                    columns += [now_ms] * len(positions) + [0] * len(positions)
                if kind:
                    columns += [NO_POSITION] * len(positions)
                self._put(row, operation, kind, outcome, len(positions), columns, _joined(keys), now_ms, NOT_DURABLE)

    def committed(self, row: int, commit: int, operations: int, size_bytes: int, seconds: float, now_ms: int) -> None:
        """Pack a commit (`partition.protocol.notes.StoreRecorder`)."""
        recorder = self._all
        if row and row not in recorder.named:
            recorder.name(row)
        recorder.put(
            COMMIT_HEAD.pack(
                COMMIT, self._runtime, row, commit, now_ms, perf_counter_ns() // 1000, round(seconds * 1e6), operations,
                size_bytes,
            ),
            1,
        )  # fmt: skip

    def failed(self) -> None:
        """Pack the failure of the store (`partition.protocol.notes.StoreRecorder`)."""
        self._all.put(FAILED_HEAD.pack(FAILED, self._runtime), 0)

    def _published(
        self, row: int, numbers: range, messages: Sequence[Message | None], now_ms: int, commit: int
    ) -> None:
        """Pack messages of a topic, which makes no entries. None stands for a duplicate."""
        classes = self._classes
        salt = row * _ROW_SALT
        chosen = [
            (number, message)
            for number, message in zip(numbers, messages, strict=True)
            if message is not None and (classes is None or classes[number + salt & _MASK])
        ]
        if chosen:
            columns = [number for number, _ in chosen] + [len(message.data) for _, message in chosen]
            keys = _joined([_key_of(message) for _, message in chosen])
            self._put(row, SEND, 0, DONE, len(chosen), columns, keys, now_ms, commit)

    def _put(
        self,
        row: int,
        operation: int,
        kind: int,
        outcome: int,
        count: int,
        columns: list[int],
        keys: bytes,
        now_ms: int,
        commit: int,
    ) -> None:
        recorder = self._all
        if row not in recorder.named:
            recorder.name(row)
        head = BATCH_HEAD.pack(
            BATCH, operation, kind, outcome, self._runtime, row, count, len(keys), now_ms, perf_counter_ns() // 1000,
            commit,
        )  # fmt: skip
        recorder.put(head + array("q", columns).tobytes() + keys, count)


def _key_of(message: Message) -> str:
    return message.session_id or message.partition_key or ""


def _keys_of(entries: list[Entry], messages: Sequence[Message | None]) -> bytes:
    """Return the keys of the messages that became the entries."""
    if _are_alike(entries, messages):
        return _joined([m.session_id or m.partition_key or "" for m in messages])  # type: ignore[union-attr]
    by_data = {id(message.data): _key_of(message) for message in messages if message is not None}
    return _joined([by_data.get(id(entry.data), "") for entry in entries])


def _are_alike(entries: list[Entry], messages: Sequence[Message | None]) -> bool:
    """Tell whether each message became an entry in the same order. Scheduled ones come after all others."""
    return len(entries) == len(messages) and entries[-1].state != EntryState.SCHEDULED


def _joined(keys: list[str]) -> bytes:
    if not any(keys):
        return b""
    text = "\0".join(keys)
    if text.count("\0") != len(keys) - 1:
        text = "\0".join([key.replace("\0", "\ufffd") for key in keys])
    return text.encode("utf-8", "surrogatepass")
