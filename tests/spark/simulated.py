"""A namespace on disk in place of a broker: Spark's planner and workers are other processes than the test.

The name of the key in a connection string is the folder, an entity is a file in it. Tests against a broker hold a real
client to the behaviour of its client (`test_broker`, `test_stream_broker`).
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import Described, Symbol, ULong
from partibus.client.errors import AccessDenied, Busy, ConnectFailed, CursorHeld, CursorLost, NotFound
from partibus.client.extensions.ranges import (
    CursorPartition,
    CursorState,
    CursorSummary,
    Frame,
    PartitionMap,
    PartitionRange,
    Start,
    unpack_frame,
)
from partibus.message import pack
from partibus.namespace.connection_string import parse_connection_string
from partibus.spark.source import PartibusSource
from tests.kit.eventually import EVENTUALLY_S, eventually

ENDPOINT = "sb://simulated:5672"
KEY = "c2VjcmV0IGtleSBvZiBhIHRlc3Q="
FRAME_MESSAGES = 3
ENQUEUED_MS = 1_356_998_400_123
COMPLETED = 16
HELD_S = 2 * EVENTUALLY_S
"""How long a reader that is held waits at most."""


@dataclass
class Held:
    """A message of a simulated partition."""

    data: bytes
    """Stored form."""
    sequence: int = 0
    enqueued_ms: int = ENQUEUED_MS
    due_ms: int = -1
    delivery_count: int = 0
    state: int = 0


Partition = dict[int, Held]
"""Messages by position."""


@dataclass
class Entity:
    """The content of a file."""

    partitions: dict[int, Partition]
    ends: dict[int, int] = field(default_factory=dict)
    """Where it is not the position behind the last message."""
    entity_id: str = "entity-1"
    version: int = 1
    cursors: dict[str, dict[int, int]] = field(default_factory=dict)
    """Positions by name."""
    epochs: dict[str, int] = field(default_factory=dict)
    """Epochs of cursors that read exclusively."""
    complete_from: int = 0
    """The position from which every cursor and partition is complete."""
    locked: int = 0
    """The number of askers for exclusive reading that hear of messages under lock."""
    holds: bool = False
    """A read from behind the first position waits until this is over."""

    def end_of(self, partition_id: int) -> int:
        return self.ends.get(partition_id, max(self.partitions[partition_id], default=-1) + 1)


def connection_string(folder: Path, key: str = KEY) -> str:
    return f"Endpoint={ENDPOINT};SharedAccessKeyName={folder};SharedAccessKey={key}"


def section(code: int, value: object) -> bytes:
    return encode(Described(ULong(code), value))


def stored(
    body: bytes = b"",
    *,
    ttl_ms: int | None = None,
    annotations: Mapping[str, object] | None = None,
    properties: Sequence[object] = (),
    application_properties: Mapping[str, object] | None = None,
    rest: bytes | None = None,
    forwarding: int = 0,
) -> bytes:
    """The stored form; the body is one data section unless ``rest`` is given."""
    pairs = b"".join(encode(Symbol(name)) + encode(value) for name, value in (annotations or {}).items())
    return pack(
        ttl_ms=ttl_ms,
        annotation_count=len(annotations or {}),
        annotations=pairs,
        properties=section(0x73, list(properties)) if properties else b"",
        application_properties=b"" if application_properties is None else section(0x74, application_properties),
        rest=section(0x75, body) if rest is None else rest,
        forwarding=forwarding,
    )


def message(sequence: int, body: bytes = b"", *, state: int = 0, **parts: object) -> Held:
    """A message with an id; ``parts`` as of `stored`."""
    parts.setdefault("properties", [f"id-{sequence}"])
    return Held(stored(body, **parts), sequence, ENQUEUED_MS + sequence, state=state)  # type: ignore[arg-type]


def frame_of(found: Sequence[tuple[int, Held]], next_pos: int, complete_from: int = 0) -> Frame:
    """Pack a frame as a store does."""
    count = len(found)
    rows = [held for _, held in found]
    data = struct.pack(
        f"<{4 * count}q{2 * count}i{count}B",
        *(pos for pos, _ in found),
        *(held.sequence for held in rows),
        *(held.enqueued_ms for held in rows),
        *(held.due_ms for held in rows),
        *(held.delivery_count for held in rows),
        *(len(held.data) for held in rows),
        *(held.state for held in rows),
    )
    return unpack_frame(count, data + b"".join(held.data for held in rows), next_pos, complete_from)


class SimulatedNamespace:
    """The test's side: it writes."""

    def __init__(self, folder: Path) -> None:
        self.connection = connection_string(folder)
        self.folder = folder

    def put(
        self, entity: str, partitions: dict[int, Partition], ends: dict[int, int] | None = None, **facts: object
    ) -> None:
        """Replace an entity; ``facts`` as of `Entity`."""
        self.write(entity, Entity(partitions, ends or {}, **facts))  # type: ignore[arg-type]

    def read(self, entity: str) -> Entity:
        found: Entity = pickle.loads((self.folder / entity).read_bytes())
        return found

    def write(self, entity: str, content: Entity) -> None:
        file = self.folder / entity
        file.parent.mkdir(parents=True, exist_ok=True)
        # A reader may be at work:
        new = file.with_name(f"{file.name}.new")
        new.write_bytes(pickle.dumps(content))
        new.replace(file)

    def delete(self, entity: str) -> None:
        (self.folder / entity).unlink()


class SimulatedClient:
    """The client that the data source opens in place of a real one."""

    def __init__(self, connection: str, entity: str) -> None:
        given = parse_connection_string(connection)
        if given.key != KEY:
            raise AccessDenied("The token has an invalid signature.", "amqp:unauthorized-access")
        folder = Path(given.key_name)
        if not folder.is_dir():
            raise ConnectFailed(f"no broker answers at {folder}")
        self._namespace = SimulatedNamespace(folder)
        self._name = entity.replace("/$", ".")

    def _entity(self) -> Entity:
        try:
            return self._namespace.read(self._name)
        except FileNotFoundError:
            raise NotFound(f"The messaging entity '{self._name}' could not be found.", "amqp:not-found") from None

    def map(self) -> PartitionMap:
        entity = self._entity()
        ranges = [
            PartitionRange(number, min(messages, default=0), entity.end_of(number), len(messages))
            for number, messages in entity.partitions.items()
        ]
        return PartitionMap(self._name, entity.entity_id, entity.version, tuple(sorted(ranges)))

    def wait(self, positions: Mapping[int, int], timeout_s: float) -> PartitionMap:
        return self.map()

    def read(
        self,
        partition_id: int,
        from_pos: int,
        to_pos: int,
        max_bytes: int = 4 << 20,
        *,
        finished: bool = False,
        cursor: str | None = None,
    ) -> Iterator[Frame]:
        entity = self._entity()
        if cursor is not None and cursor not in entity.cursors:
            raise CursorLost(f"there is no cursor {cursor!r}")
        if entity.holds and from_pos:
            eventually("readers are let go on", lambda: not self._entity().holds, HELD_S)
        messages = entity.partitions[partition_id]
        found = [
            (pos, messages[pos])
            for pos in sorted(messages)
            if from_pos <= pos < to_pos and (finished or messages[pos].state < COMPLETED)
        ]
        complete_from = 0 if cursor is None else entity.complete_from
        for start in range(0, len(found), FRAME_MESSAGES):
            part = found[start : start + FRAME_MESSAGES]
            is_last = start + FRAME_MESSAGES >= len(found)
            yield frame_of(part, to_pos if is_last else part[-1][0] + 1, complete_from)

    def find_positions(self, at: datetime, *, finished: bool = True) -> dict[int, int]:
        entity, at_ms = self._entity(), at.timestamp() * 1000
        return {
            number: min(
                (pos for pos, held in messages.items() if held.enqueued_ms >= at_ms), default=entity.end_of(number)
            )
            for number, messages in entity.partitions.items()
        }

    def open_cursor(
        self,
        name: str,
        *,
        start: Start = "earliest",
        bound_bytes: int = 1 << 30,
        lease_ms: int = 0,
        epochs: Mapping[int, int] | None = None,
        revoke: bool = False,
    ) -> dict[int, CursorState]:
        entity = self._entity()
        if lease_ms:
            self._lease(entity, name, epochs, revoke)
        positions = start if isinstance(start, Mapping) else {}
        cursor = entity.cursors.setdefault(name, {})
        for number in entity.partitions:
            cursor.setdefault(number, positions.get(number, 0))
        self._namespace.write(self._name, entity)
        return self._states(entity, name)

    def _lease(self, entity: Entity, name: str, epochs: Mapping[int, int] | None, revoke: bool) -> None:
        if any(other != name for other in entity.epochs):
            raise CursorHeld("cursor 'other' reads exclusively until 2026-01-01T00:00:00Z")
        if epochs is not None and set(epochs.values()) != {entity.epochs.get(name)}:
            raise CursorLost("the lease has ended")
        if epochs is None:
            if entity.locked and not revoke:
                entity.locked -= 1
                self._namespace.write(self._name, entity)
                raise Busy("1 message is under lock until 2026-01-01T00:00:00Z")
            entity.epochs[name] = entity.epochs.get(name, 0) + 1

    def advance_cursor(
        self, name: str, positions: Mapping[int, int], *, epochs: Mapping[int, int] | None = None
    ) -> dict[int, CursorState]:
        entity = self._entity()
        if name not in entity.cursors:
            raise CursorLost(f"there is no cursor {name!r}")
        if name in entity.epochs and set((epochs or {}).values()) != {entity.epochs[name]}:
            raise CursorLost("the lease has ended")
        for number, pos in positions.items():
            entity.cursors[name][number] = max(pos, entity.cursors[name].get(number, 0))
            if name in entity.epochs:
                held = entity.partitions[number]
                entity.partitions[number] = {at: one for at, one in held.items() if at >= pos or one.state}
                entity.ends.setdefault(number, max(held, default=-1) + 1)
        self._namespace.write(self._name, entity)
        return self._states(entity, name)

    def close_cursor(self, name: str, *, epochs: Mapping[int, int] | None = None, drop: bool = False) -> None:
        entity = self._entity()
        entity.epochs.pop(name, None)
        if drop:
            entity.cursors.pop(name, None)
        self._namespace.write(self._name, entity)

    def cursors(self) -> list[CursorSummary]:
        entity = self._entity()
        return [
            CursorSummary(
                name,
                tuple(
                    CursorPartition(
                        number, state.epoch, 0, state.position, -1, state.complete_from, 0, state.end_pos, 0, 0, 0
                    )
                    for number, state in self._states(entity, name).items()
                ),
                0,
            )
            for name in entity.cursors
        ]

    def _states(self, entity: Entity, name: str) -> dict[int, CursorState]:
        return {
            number: CursorState(
                number, entity.epochs.get(name, 0), 0, position, -1, entity.complete_from, entity.end_of(number)
            )
            for number, position in entity.cursors[name].items()
            if number in entity.partitions
        }

    def close(self) -> None:
        """Nothing is open between calls."""


class SimulatedSource(PartibusSource):
    """`PartibusSource` over simulated namespaces."""

    open_client = SimulatedClient

    @classmethod
    def name(cls) -> str:
        return "partibus_simulated"
