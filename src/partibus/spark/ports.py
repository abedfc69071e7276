"""What the data source needs of a broker's client: ranges of positions, and the messages in one range.

`partibus.client.browse.Browser` is one; tests bring others. Calls block. A client is used by one thread at a time. Each
call may raise `partibus.client.errors.ClientError` or `OSError`; the client is then of no more use but to be closed.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from partibus.client.browse import BrowsedMessage, PartitionRange


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
