"""Notes of a step for the broker's telemetry (D28): one per batch of entries, never per message.

Code notes an operation where it counts it (`partition.core.meters`). Only a recorder reads notes, if there is one; a
note costs a tuple.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from partibus.message import Message
    from partibus.partition.protocol.keys import Entry

OPERATIONS: Final = (
    "send", "deliver", "complete", "defer", "renew", "release", "dead_letter", "dead_letter", "abandon", "lock_expired",
    "expire", "purge", "forward", "delete",
)  # fmt: skip
"""Names of the operations by number."""
(
    SEND, DELIVER, COMPLETE, DEFER, RENEW, RELEASE, DEAD_LETTER_HELD, DEAD_LETTER, ABANDON, LOCK_EXPIRED,
    EXPIRE, PURGE, FORWARD, DELETE,
) = range(len(OPERATIONS))  # fmt: skip
"""``DEAD_LETTER_HELD``: by the receiver that holds the message. ``DELETE``: a scheduled message was cancelled."""
HELD: Final = frozenset((DELIVER, COMPLETE, DEFER, RENEW, RELEASE, DEAD_LETTER_HELD))
"""Operations during a delivery that the entry does not count yet."""

DONE, FULL, LOCK_LOST = range(3)
"""Results. ``FULL``: the partition has no room. ``LOCK_LOST``: the message's lock had expired."""

Note = tuple[int, int, "list[Entry] | range", "Sequence[Message | None] | None"]
"""(operation, kind of sub-queue, entries, messages).

A send has the messages that became the entries, perhaps with others in between. A publication has no entries but a
sequence counter for each message.
"""
Refusal = tuple[int, int, int, "Sequence[Message] | list[int]"]
"""(operation, kind of sub-queue, result, messages that were not stored or positions that are not locked)."""


class StoreRecorder(Protocol):
    """Records the operations of one store's runtime."""

    def noted(self, row: int, notes: list[Note], now_ms: int, commit: int) -> None:
        """Record the operations of a partition; ``commit`` has their rows, 0: none."""
        ...

    def refused(self, row: int, refusals: list[Refusal], now_ms: int) -> None:
        """Record the refusals of a partition."""
        ...

    def committed(self, row: int, commit: int, operations: int, size_bytes: int, seconds: float, now_ms: int) -> None:
        """Record a durable commit; ``row`` is one of its partitions."""
        ...

    def failed(self) -> None:
        """Record that commits which are not durable yet never will be."""
        ...


class Recorder(Protocol):
    """Records the operations of all stores of a process."""

    rows: int
    """The number of recorded rows."""
    dropped: int
    """The number of rows that never reached a file, because the writer was too slow or had ended."""

    def of_store(self) -> StoreRecorder:
        """Return a recorder for one more runtime."""
        ...
