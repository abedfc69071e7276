"""The writer's side of chunks: records become columns of rows, and batches wait for their commits (`layout`).

The broker has no key at hand for a message that is delivered or settled, except a session id. The writer remembers the
keys of sent messages, `KEYS_MAX` at most; rows of older messages have no key.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np

from partibus.partition.protocol.notes import SEND
from partibus.routing.slots import slot_for_key
from partibus.telemetry.layout import (
    BATCH,
    BATCH_HEAD,
    COLUMN_BYTES,
    COMMIT,
    COMMIT_HEAD,
    FAILED_HEAD,
    MOVE,
    MOVE_HEAD,
    NAME,
    NAME_HEAD,
    NOT_DURABLE,
    USE,
    USE_HEAD,
    columns_of,
)
from partibus.telemetry.schema import KEY_MAX, NAMESPACE

KEYS_MAX = 1 << 18
"""The most remembered keys, twice: some 60 MB if all differ."""
COMMIT_FAILED, COMMIT_UNKNOWN = 3, 4
"""Outcomes beyond those of `partition.protocol.notes`."""
NO_LATENCY = -1


class Place(NamedTuple):
    """The place of a partition row (`partibus.telemetry.recorder.Place`)."""

    entity: str
    partition: int
    store: int
    namespace: str = NAMESPACE


class Batch(NamedTuple):
    """Messages that went through the same operation together."""

    operation: int
    kind: int
    outcome: int
    row: int
    size: int
    """The number of messages."""
    now_ms: int
    taken_us: int
    columns: Any
    """One array of 64-bit numbers, column after column."""
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


class Moved(NamedTuple):
    """One step of a move of slots (`partibus.telemetry.recorder.PackedRecorder.put_move`)."""

    now_ms: int
    namespace: str
    entity: str
    source: int
    target: int
    slots: int
    partitions: int
    """Partitions that own slots after the step."""
    step: str
    took_ms: int
    """Time since the move began."""
    why: str
    version: int
    """The version of the entity's slots, which rises with each change."""


class Rows:
    """Rows that are ready to be written."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.latencies_us: list[int] = []
        """The latency of each batch."""
        self.outcomes: list[int] = []
        self.commits: list[Committed] = []
        self.uses: list[Used] = []
        self.moves: list[Moved] = []
        self.count = 0

    def add(self, batch: Batch, latency_us: int, outcome: int) -> None:
        """Add a batch that waits for nothing."""
        self.batches.append(batch)
        self.latencies_us.append(latency_us)
        self.outcomes.append(outcome)
        self.count += batch.size


class Reader:
    """Reads chunks and gathers their `rows`."""

    def __init__(self) -> None:
        self.rows = Rows()
        self.places: dict[int, Place] = {}
        self._waiting: dict[int, dict[int, list[Batch]]] = {}
        """Waiting batches by runtime and commit."""

    def read(self, chunk: bytes) -> None:
        """Read a whole chunk."""
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
            elif kind == MOVE:
                _, length = MOVE_HEAD.unpack_from(chunk, at)
                at += MOVE_HEAD.size
                self.rows.moves.append(Moved(*msgspec.json.decode(chunk[at : at + length])))
                at += length
                self.rows.count += 1
            else:
                _, runtime = FAILED_HEAD.unpack_from(chunk, at)
                at += FAILED_HEAD.size
                self._give_up(self._waiting.pop(runtime, {}), COMMIT_FAILED)

    def end(self) -> None:
        """End: batches that wait for their commit will not hear of it."""
        for waiting in self._waiting.values():
            self._give_up(waiting, COMMIT_UNKNOWN)
        self._waiting.clear()

    def take(self) -> Rows:
        """Take the rows that are ready."""
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
    """Remembers keys of messages by partition row and sequence counter.

    The memory has two halves. When the younger one is full, the older one is dropped.
    """

    def __init__(self, most: int = KEYS_MAX) -> None:
        self._most = most
        self._younger: dict[int, str] = {}
        self._older: dict[int, str] = {}
        self._slots: dict[str, int] = {}

    def of(self, batch: Batch, sequences: Iterable[int]) -> Iterator[str | None]:
        """Return the key of each message of a batch."""
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
        """Return the slot of a key as `slot_for_key` does; each key is hashed once."""
        slot: int | None = self._slots.get(key)
        if slot is None:
            if len(self._slots) > self._most:
                self._slots.clear()
            self._slots[key] = slot = slot_for_key(key)
        return slot


def shown(text: str, most: int = KEY_MAX) -> str:
    """Make a text that a file can hold, of ``most`` characters at most."""
    return text[:most].encode("utf-8", "replace").decode() if not text.isascii() else text[:most]
