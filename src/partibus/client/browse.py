"""Browsing an entity by position: what readers of whole partitions use. Locks nothing and changes nothing."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from partibus.amqp.codec.types import Int
from partibus.client.client import Client, connect
from partibus.client.errors import ClientError
from partibus.client.values import binaries, integer, integers, maps

PAGE_BYTES = 4 << 20


class PartitionRange(NamedTuple):
    """The positions that one partition of the entity holds now."""

    partition_id: int
    first_pos: int
    end_pos: int
    """Exclusive: the position that the next message will get."""
    messages: int
    """Messages between the two; fewer than the positions when some are settled already."""


class BrowsedMessage(NamedTuple):
    """One message as the broker would deliver it."""

    position: int
    payload: bytes
    """The whole encoded message, header and broker annotations included [3.2]."""


class Browser:
    """One connection that browses one entity."""

    def __init__(self, client: Client, entity: str) -> None:
        self._client = client
        self._entity = entity

    def partitions(self) -> Sequence[PartitionRange]:
        """Every partition of the entity, empty ones included, by id."""
        body = self._client.management(self._entity).request("partibus:partitions", {})
        found = [
            PartitionRange(
                integer(entry, "partition-id"),
                integer(entry, "first-position"),
                integer(entry, "end-position"),
                integer(entry, "messages"),
            )
            for entry in maps(body, "partitions")
        ]
        return sorted(found)

    def read(
        self, partition_id: int, from_pos: int, to_pos: int, max_bytes: int = PAGE_BYTES
    ) -> Iterator[Sequence[BrowsedMessage]]:
        """The messages with ``from_pos <= position < to_pos`` that still exist, in order of position, in pages of at
        most ``max_bytes`` of payload (one message at least); no page is empty."""
        next_pos = from_pos
        while next_pos < to_pos:
            body = self._client.management(self._entity).request(
                "partibus:browse",
                {
                    "partition-id": Int(partition_id),
                    "from-position": next_pos,
                    "to-position": to_pos,
                    "max-bytes": Int(max_bytes),
                },
            )
            positions, messages = integers(body, "positions"), binaries(body, "messages")
            if len(positions) != len(messages):
                raise ClientError(f"the broker sent {len(positions)} positions with {len(messages)} messages")
            if messages:
                yield list(map(BrowsedMessage, positions, messages))
            before, next_pos = next_pos, integer(body, "next-position")
            if next_pos <= before:
                raise ClientError(f"browsing partition {partition_id} of '{self._entity}' stands still at {before}")

    def close(self) -> None:
        """Idempotent."""
        self._client.close()


def browse(connection: str, entity: str) -> Browser:
    """Connect to browse one entity. Raises `ClientError` or `OSError`, as every call of the browser."""
    return Browser(connect(connection), entity)
