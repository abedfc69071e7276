"""A namespace on disk in place of a broker: Spark's planner and workers are other processes than the test.

The name of the key in a connection string is the folder, an entity is a file in it. What its client does,
the tests against a broker hold a real client to as well (`test_broker`).
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from partibus.amqp.codec.encoder import encode
from partibus.amqp.codec.types import Described, Int, Short, Symbol, Timestamp, UByte, UInt, ULong
from partibus.client.browse import BrowsedMessage, PartitionRange
from partibus.client.errors import AccessDenied, ConnectFailed, NotFound
from partibus.namespace.connection_string import parse_connection_string
from partibus.spark.source import PartibusSource

ENDPOINT = "sb://simulated:5672"
KEY = "c2VjcmV0IGtleSBvZiBhIHRlc3Q="
PAGE_MESSAGES = 3
ENQUEUED_MS = 1_356_998_400_123

Partition = dict[int, bytes]
"""Position -> payload."""


def connection_string(folder: Path, key: str = KEY) -> str:
    return f"Endpoint={ENDPOINT};SharedAccessKeyName={folder};SharedAccessKey={key}"


def section(code: int, value: object) -> bytes:
    return encode(Described(ULong(code), value))


def message(
    sequence: int,
    body: bytes = b"",
    *,
    partition_id: int = 0,
    ttl_ms: int | None = None,
    annotations: Mapping[str, object] | None = None,
    properties: Sequence[object] = (),
    application_properties: Mapping[str, object] | None = None,
    body_section: bytes | None = None,
) -> bytes:
    """A message as a broker delivers it; body is one data section unless ``body_section`` is given."""
    ttl = None if ttl_ms is None else UInt(ttl_ms)
    ours = {
        "x-opt-enqueued-time": Timestamp(ENQUEUED_MS + sequence),
        "x-opt-sequence-number": partition_id << 48 | sequence,
        "x-opt-message-state": Int(0),
        "x-opt-partition-id": Short(partition_id),
        **(annotations or {}),
    }
    parts = [
        section(0x70, [True, UByte(4), ttl, None, UInt(0)]),
        section(0x72, {Symbol(name): value for name, value in ours.items()}),
        section(0x73, list(properties) or [f"id-{partition_id}-{sequence}"]),
    ]
    if application_properties is not None:
        parts.append(section(0x74, application_properties))
    parts.append(section(0x75, body) if body_section is None else body_section)
    return b"".join(parts)


class SimulatedNamespace:
    """What the test writes."""

    def __init__(self, folder: Path) -> None:
        self.connection = connection_string(folder)
        self.folder = folder

    def put(self, entity: str, partitions: dict[int, Partition], end_pos: dict[int, int] | None = None) -> None:
        """Replace an entity; ``end_pos`` where it is not the position behind the last message."""
        file = self.folder / entity
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pickle.dumps((partitions, end_pos or {})))

    def delete(self, entity: str) -> None:
        (self.folder / entity).unlink()


class SimulatedClient:
    """What the data source opens in place of a real client."""

    def __init__(self, connection: str, entity: str) -> None:
        given = parse_connection_string(connection)
        if given.key != KEY:
            raise AccessDenied("The token has an invalid signature.", "amqp:unauthorized-access")
        folder = Path(given.key_name)
        if not folder.is_dir():
            raise ConnectFailed(f"no broker answers at {folder}")
        self._file = folder / entity.replace("/$", ".")

    def _entity(self) -> tuple[dict[int, Partition], dict[int, int]]:
        try:
            found: tuple[dict[int, Partition], dict[int, int]] = pickle.loads(self._file.read_bytes())
        except FileNotFoundError:
            raise NotFound(f"The messaging entity '{self._file.name}' could not be found.", "amqp:not-found") from None
        return found

    def partitions(self) -> list[PartitionRange]:
        partitions, ends = self._entity()
        return [
            PartitionRange(
                number, min(messages, default=0), ends.get(number, max(messages, default=-1) + 1), len(messages)
            )
            for number, messages in partitions.items()
        ]

    def read(
        self, partition_id: int, from_pos: int, to_pos: int, max_bytes: int = 4 << 20
    ) -> Iterator[list[BrowsedMessage]]:
        messages = self._entity()[0][partition_id]
        found = [BrowsedMessage(pos, messages[pos]) for pos in sorted(messages) if from_pos <= pos < to_pos]
        for start in range(0, len(found), PAGE_MESSAGES):
            yield found[start : start + PAGE_MESSAGES]

    def close(self) -> None:
        """Nothing is open between calls."""


class SimulatedSource(PartibusSource):
    """`PartibusSource` over simulated namespaces."""

    open_client = SimulatedClient

    @classmethod
    def name(cls) -> str:
        return "partibus_simulated"
