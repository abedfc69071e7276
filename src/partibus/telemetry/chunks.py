"""At the writer: chunks of records become columns of rows; batches wait for their commits (`layout`).

Of a message that is delivered or settled the broker has no key at hand, except a session. The writer remembers the keys
of the messages that it has seen sent, so many as fit `KEYS_MAX`: rows of older ones have none.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np

from partibus.partition.notes import SEND
from partibus.routing.slots import slot_for_key
from partibus.telemetry.layout import (
    BATCH,
    BATCH_HEAD,
    COLUMN_BYTES,
    COMMIT,
    COMMIT_HEAD,
    FAILED_HEAD,
    NAME,
    NAME_HEAD,
    NOT_DURABLE,
    USE,
    USE_HEAD,
    columns_of,
)
from partibus.telemetry.schema import KEY_MAX, NAMESPACE

KEYS_MAX = 1 << 18
"""Keys of messages that are remembered, twice: some 60 MB if all differ."""
COMMIT_FAILED, COMMIT_UNKNOWN = 3, 4
"""Outcomes beside those of `partibus.partition.notes`."""
NO_LATENCY = -1


class Place(NamedTuple):
    """See `partibus.telemetry.recorder.Place`."""

    entity: str
    partition: int
    store: int
    namespace: str = NAMESPACE


class Batch(NamedTuple):
    """Messages with which the same was done at once."""

    operation: int
    kind: int
    outcome: int
    row: int
    size: int
    """Messages."""
    now_ms: int
    taken_us: int
    columns: Any
    """One array of 64-bit numbers, column behind column."""
    keys: bytes


class Committed(NamedTuple):
    """One commit."""

    row: int
    now_ms: int
    took_us: int
    operations: int
    size_bytes: int


class Used(NamedTuple):
    """One sum of what a client asked for (`partibus.telemetry.recorder.PackedRecorder.put_uses`)."""

    since_ms: int
    namespace: str
    entity: str
    client: str
    asked_for: str
    requests: int
    units: int
    rules: str


class Rows:
    """What is ready to be written."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.latencies_us: list[int] = []
        """Of each batch."""
        self.outcomes: list[int] = []
        self.commits: list[Committed] = []
        self.uses: list[Used] = []
        self.count = 0

    def add(self, batch: Batch, latency_us: int, outcome: int) -> None:
        """A batch that waits for nothing any more."""
        self.batches.append(batch)
        self.latencies_us.append(latency_us)
        self.outcomes.append(outcome)
        self.count += batch.size


class Reader:
    """Reads chunks; `rows` is what they have come to."""

    def __init__(self) -> None:
        self.rows = Rows()
        self.places: dict[int, Place] = {}
        self._waiting: dict[int, dict[int, list[Batch]]] = {}
        """By runtime and commit."""

    def read(self, chunk: bytes) -> None:
        """Take a whole chunk."""
        at, end = 0, len(chunk)
        while at < end:
            kind = chunk[at]
            if kind == BATCH:
                at = self._batch(chunk, at)
            elif kind == NAME:
                _, row, length = NAME_HEAD.unpack_from(chunk, at)
                at += NAME_HEAD.size
                self.places[row] = Place(*msgspec.json.decode(chunk[at : at + length]))
                at += length
            elif kind == COMMIT:
                _, runtime, row, commit, now_ms, durable_us, *rest = COMMIT_HEAD.unpack_from(chunk, at)
                at += COMMIT_HEAD.size
                self._durable(runtime, commit, durable_us)
                self.rows.commits.append(Committed(row, now_ms, *rest))
                self.rows.count += 1
            elif kind == USE:
                _, length = USE_HEAD.unpack_from(chunk, at)
                at += USE_HEAD.size
                since_ms, uses = msgspec.json.decode(chunk[at : at + length])
                at += length
                self.rows.uses += [Used(since_ms, *use) for use in uses]
                self.rows.count += len(uses)
            else:
                _, runtime = FAILED_HEAD.unpack_from(chunk, at)
                at += FAILED_HEAD.size
                self._give_up(self._waiting.pop(runtime, {}), COMMIT_FAILED)

    def end(self) -> None:
        """Nothing more comes: what waits for its commit will not hear of it."""
        for waiting in self._waiting.values():
            self._give_up(waiting, COMMIT_UNKNOWN)
        self._waiting.clear()

    def take(self) -> Rows:
        """What is ready."""
        rows, self.rows = self.rows, Rows()
        return rows

    def _batch(self, chunk: bytes, at: int) -> int:
        head: tuple[int, ...] = BATCH_HEAD.unpack_from(chunk, at)
        _, operation, kind, outcome, runtime, row, count, keys, now_ms, taken_us, commit = head
        at += BATCH_HEAD.size
        numbers = count * columns_of(operation, kind, SEND)
        columns = np.frombuffer(chunk, "<i8", numbers, at)
        at += numbers * COLUMN_BYTES
        batch = Batch(operation, kind, outcome, row, count, now_ms, taken_us, columns, chunk[at : at + keys])
        if commit == NOT_DURABLE:
            self.rows.add(batch, NO_LATENCY, outcome)
        else:
            self._waiting.setdefault(runtime, {}).setdefault(commit, []).append(batch)
        return at + keys

    def _durable(self, runtime: int, commit: int, durable_us: int) -> None:
        waiting = self._waiting.get(runtime)
        if not waiting:
            return
        for batch in waiting.pop(commit, ()):
            self.rows.add(batch, max(0, durable_us - batch.taken_us), batch.outcome)
        for earlier in [number for number in waiting if number < commit]:  # a chunk with their ends was dropped
            for batch in waiting.pop(earlier):
                self.rows.add(batch, NO_LATENCY, batch.outcome)

    def _give_up(self, waiting: dict[int, list[Batch]], outcome: int) -> None:
        for batches in waiting.values():
            for batch in batches:
                self.rows.add(batch, NO_LATENCY, outcome)


class Keys:
    """Remembers keys of messages: by partition row and sequence counter. In two halves: when the younger one is full,
    the older one is forgotten."""

    def __init__(self, most: int = KEYS_MAX) -> None:
        self._most = most
        self._younger: dict[int, str] = {}
        self._older: dict[int, str] = {}
        self._slots: dict[str, int] = {}

    def of(self, batch: Batch, sequences: Iterable[int]) -> Iterator[str | None]:
        """The key of each message of a batch."""
        base = batch.row << 40
        if batch.keys:
            keys = batch.keys.decode("utf-8", "surrogatepass").split("\0")
            if batch.operation == SEND:
                if len(self._younger) > self._most:
                    self._older, self._younger = self._younger, {}
                self._younger.update((base | number, key) for number, key in zip(sequences, keys, strict=True) if key)
            return (key or None for key in keys)
        if batch.operation == SEND or not (self._younger or self._older):
            return iter([None] * batch.size)
        younger, older = self._younger.get, self._older.get
        return (younger(base | number) or older(base | number) for number in sequences)

    def slot(self, key: str) -> int:
        """As `slot_for_key`; each key is hashed once."""
        slot: int | None = self._slots.get(key)
        if slot is None:
            if len(self._slots) > self._most:
                self._slots.clear()
            self._slots[key] = slot = slot_for_key(key)
        return slot


def shown(text: str, most: int = KEY_MAX) -> str:
    """A text as a file can have it; at most so many characters of it."""
    return text[:most].encode("utf-8", "replace").decode() if not text.isascii() else text[:most]
