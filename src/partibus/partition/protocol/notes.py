"""What a step has done to messages, for the broker's telemetry (D28): one note per batch of entries, never per message.

Whoever does something notes it where it counts it (`partition.core.meters`). Nobody reads notes but a recorder, if
there is one; taking one costs a tuple.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from partibus.message import Message
    from partibus.partition.protocol.entry import Entry

OPERATIONS: Final = (
    "send", "deliver", "complete", "defer", "renew", "release", "dead_letter", "dead_letter", "abandon", "lock_expired",
    "expire", "purge", "forward", "delete",
)  # fmt: skip
"""By number, as below."""
(
    SEND, DELIVER, COMPLETE, DEFER, RENEW, RELEASE, DEAD_LETTER_HELD, DEAD_LETTER, ABANDON, LOCK_EXPIRED,
    EXPIRE, PURGE, FORWARD, DELETE,
) = range(len(OPERATIONS))  # fmt: skip
"""``DEAD_LETTER_HELD``: by the receiver that holds it. ``DELETE``: a scheduled message was cancelled."""
HELD: Final = frozenset((DELIVER, COMPLETE, DEFER, RENEW, RELEASE, DEAD_LETTER_HELD))
"""The delivery that is under way is not counted in the entry yet."""

DONE, FULL, LOCK_LOST = range(3)
"""How it ended. ``FULL``: the partition has no room. ``LOCK_LOST``: the lock of that message had run out."""

Note = tuple[int, int, "list[Entry] | range", "Sequence[Message | None] | None"]
"""(operation, kind of sub-queue, entries, messages). Of a send the messages that they were made of are given, perhaps
with others between them; of a publication there are no entries, but a sequence counter for each message."""
Refusal = tuple[int, int, int, "Sequence[Message] | list[int]"]
"""(operation, kind of sub-queue, how it ended, messages that were not stored or positions that are not held)."""


class StoreRecorder(Protocol):
    """Keeps what the runtime of one store does."""

    def noted(self, row: int, notes: list[Note], now_ms: int, commit: int) -> None:
        """A partition has done this; its rows are in that commit, 0 if there are none."""
        ...

    def refused(self, row: int, refusals: list[Refusal], now_ms: int) -> None:
        """A partition has not done this."""
        ...

    def committed(self, row: int, commit: int, operations: int, size_bytes: int, seconds: float, now_ms: int) -> None:
        """A commit is durable; ``row`` is one of the partitions in it."""
        ...

    def failed(self) -> None:
        """The commits that are not durable yet never will be."""
        ...


class Recorder(Protocol):
    """Keeps what all stores of a process do."""

    rows: int
    """Rows that were recorded."""
    dropped: int
    """Of those: that did not get as far as a file, since the writer was too slow, or gone."""

    def of_store(self) -> StoreRecorder:
        """For one more runtime."""
        ...
