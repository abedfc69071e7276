"""What the data source needs of a broker's client: ranges of positions, and the messages in one range.

`partibus.client.browse` provides it. Calls block. A client is used by one thread at a time. Every call may raise
`partibus.client.errors.ClientError`; the client is then of no more use, except to be closed.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol


class PartitionRange(NamedTuple):
    """The positions that one broker partition of the entity holds now."""

    partition_id: int
    first_pos: int
    end_pos: int
    """Exclusive: the position that the next message will get."""
    messages: int
    """Messages between the two; fewer than ``end_pos - first_pos`` when some are settled already."""


class BrowsedMessage(NamedTuple):
    """One message as the broker would deliver it."""

    position: int
    payload: bytes
    """The whole encoded message, header and broker annotations included [3.2]."""


class BrowseClient(Protocol):
    """An open connection that browses one entity; browsing locks nothing and changes nothing."""

    def partitions(self) -> Sequence[PartitionRange]:
        """Every partition of the entity, empty ones included."""
        ...

    def read(
        self, partition_id: int, from_pos: int, to_pos: int, max_bytes: int = 4 << 20
    ) -> Iterator[Sequence[BrowsedMessage]]:
        """The messages with ``from_pos <= position < to_pos`` that still exist, in order of position, in pages of at
        most ``max_bytes`` of payload (one message at least)."""
        ...

    def close(self) -> None:
        """Idempotent."""
        ...


class OpenClient(Protocol):
    """Opens a client; a plain function will do. Must be picklable by reference: tasks get it from the driver."""

    def __call__(self, connection: str, entity: str) -> BrowseClient: ...
