"""What the data source needs of a broker's client: positions, frames of messages, cursors.

`partibus.client.ranges.RangeClient` is one, and says what each call does; tests bring others. Calls block. A client is
used by one thread at a time. Each call may raise `partibus.client.errors.ClientError` or `OSError`; the client is then
of no more use but to be closed.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from partibus.client.ranges import CursorState, CursorSummary, Frame, PartitionMap, Start


class RangeReader(Protocol):
    """An open connection that reads one entity by position."""

    def map(self) -> PartitionMap: ...

    def wait(self, positions: Mapping[int, int], timeout_s: float) -> PartitionMap: ...

    def read(
        self,
        partition_id: int,
        from_pos: int,
        to_pos: int,
        max_bytes: int = ...,
        *,
        finished: bool = False,
        cursor: str | None = None,
    ) -> Iterator[Frame]: ...

    def find_positions(self, at: datetime, *, finished: bool = True) -> Mapping[int, int]: ...

    def open_cursor(
        self,
        name: str,
        *,
        start: Start = "earliest",
        bound_bytes: int = ...,
        lease_ms: int = 0,
        epochs: Mapping[int, int] | None = None,
        revoke: bool = False,
    ) -> Mapping[int, CursorState]: ...

    def advance_cursor(
        self, name: str, positions: Mapping[int, int], *, epochs: Mapping[int, int] | None = None
    ) -> Mapping[int, CursorState]: ...

    def close_cursor(self, name: str, *, epochs: Mapping[int, int] | None = None, drop: bool = False) -> None: ...

    def cursors(self) -> Sequence[CursorSummary]: ...

    def close(self) -> None:
        """Idempotent."""
        ...


class OpenClient(Protocol):
    """Opens a client; a plain function will do. Must be picklable by reference: tasks get it from the driver."""

    def __call__(self, connection: str, entity: str) -> RangeReader: ...
