"""The port to a broker's client: positions, frames of messages, cursors.

`partibus.client.extensions.ranges.RangeClient` implements it and documents each call; tests have other implementations.
Calls block. One thread at a time uses a client. Each call may raise `partibus.client.errors.ClientError` or `OSError`.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from partibus.client.extensions.ranges import CursorState, CursorSummary, Frame, PartitionMap, Start


class RangeReader(Protocol):
    """An open connection that reads one entity by position."""

    def map(self) -> PartitionMap:
        """Return the current partitions."""

    def wait(self, positions: Mapping[int, int], timeout_s: float) -> PartitionMap:
        """Wait until a partition's end exceeds its position, or the time is over; return the partitions."""

    def read(
        self,
        partition_id: int,
        from_pos: int,
        to_pos: int,
        max_bytes: int = ...,
        *,
        finished: bool = False,
        cursor: str | None = None,
    ) -> Iterator[Frame]:
        """Read the messages with ``from_pos <= position < to_pos``, ordered by position."""

    def find_positions(self, at: datetime, *, finished: bool = True) -> Mapping[int, int]:
        """Return the first position at or after a time in each partition."""

    def open_cursor(
        self,
        name: str,
        *,
        start: Start = "earliest",
        bound_bytes: int = ...,
        lease_ms: int = 0,
        epochs: Mapping[int, int] | None = None,
        revoke: bool = False,
    ) -> Mapping[int, CursorState]:
        """Open a cursor, or find it; with ``lease_ms`` for an exclusive reader."""

    def advance_cursor(
        self, name: str, positions: Mapping[int, int], *, epochs: Mapping[int, int] | None = None
    ) -> Mapping[int, CursorState]:
        """Move a cursor forward."""

    def close_cursor(self, name: str, *, epochs: Mapping[int, int] | None = None, drop: bool = False) -> None:
        """Release a cursor, or drop it with everything that is kept for it."""

    def cursors(self) -> Sequence[CursorSummary]:
        """Return the cursors of the entity."""

    def close(self) -> None:
        """Close the connection. Idempotent."""


class OpenClient(Protocol):
    """Opens a client. A plain function will do. It must be picklable by reference: tasks get it from the driver."""

    def __call__(self, connection: str, entity: str) -> RangeReader:
        """Open a client of an entity."""
