"""One receiver of a front end's cache."""

from collections.abc import Callable

from partibus.errors import PartibusError
from partibus.partition.protocol.entry import Entry
from partibus.partition.protocol.replies import Granted, Locked
from partibus.routing.partitions import PartitionHandle
from partibus.routing.receive import OnFailed, OnGranted


class CachedSource:
    """The outstanding demand of a receiver, in messages and bytes.

    ``pump`` makes the cache serve it, ``leave`` removes it from the cache.
    """

    __slots__ = (
        "_closed",
        "_cut_off",
        "_leave",
        "_link_context",
        "_on_failed",
        "_on_granted",
        "_on_stopped",
        "_pump",
        "_room_bytes",
        "delete",
        "wanted",
    )

    def __init__(
        self,
        pump: Callable[[], None],
        leave: Callable[["CachedSource"], None],
        on_granted: OnGranted,
        on_failed: OnFailed,
        *,
        delete: bool,
    ) -> None:
        self._pump = pump
        self._leave = leave
        self._on_failed = on_failed
        self._on_granted = on_granted
        self._on_stopped: Callable[[], None] | None = None
        self._link_context = 0
        """The number of messages whose owners have not answered yet."""
        self._room_bytes = 0
        self._cut_off = 0
        """Unreported messages that the receiver asked for but will not get before it asks again."""
        self.delete = delete
        self.wanted = 0
        self._closed = False

    # -- the receiver's side: a `Source` -----------------------------------------------------------------------------

    def ask(self, count: int, max_bytes: int) -> None:
        """Add to the demand of the receiver."""
        self.wanted += count + self._cut_off  # the cut-off part is unreported, so the receiver does not repeat it
        self._room_bytes = max_bytes
        self._cut_off = 0
        self._pump()

    def stop(self, on_stopped: Callable[[], None]) -> None:
        """Withdraw the demand; call ``on_stopped`` when no message is in flight."""
        self.wanted = self._cut_off = 0
        self._on_stopped = on_stopped
        self._pump()
        self._tell_stopped()

    def close(self) -> None:
        """Remove the receiver."""
        self.wanted = 0
        if not self._closed:
            self._closed = True
            self._leave(self)

    # -- the cache's side --------------------------------------------------------------------------------------------

    def hand_out(self, size_bytes: int) -> None:
        """Count one message in flight to the receiver.

        Once the bytes are used up, it gets none before it asks again.
        """
        self._link_context += 1
        self._room_bytes -= size_bytes
        self.wanted -= 1
        if self._room_bytes <= 0:
            self._cut_off += self.wanted
            self.wanted = 0

    def locked(self, partition: PartitionHandle, locked: Locked, count: int) -> None:
        """Deliver the owner's answer to a hand-out of ``count`` messages; lapsed ones are still wanted."""
        self._hand_over(partition, locked.kind, locked.lock_id, locked.until_ms, locked.entries, count)

    def failed(self, partition: PartitionHandle, kind: int, count: int) -> None:
        """End a hand-out whose owner's store failed before the answer; the demand stays."""
        self._hand_over(partition, kind, 0, 0, [], count)

    def _hand_over(
        self, partition: PartitionHandle, kind: int, lock_id: int, until_ms: int, entries: list[Entry], count: int
    ) -> None:
        """End a hand-out of ``count`` messages with its result.

        The last answer tells a receiver whose demand was cut off, even when the answer is a failure: otherwise the
        receiver would never ask again.
        """
        self._end(count, missing=count - len(entries))
        ended = self._cut_off > 0 and not self._link_context
        if ended:
            self._cut_off = 0
        if entries or ended:
            self._on_granted(partition, Granted(0, kind, lock_id, until_ms, entries, ended=ended))
        self._tell_stopped()

    def refused(self, error: PartibusError) -> None:
        """End the demand, because the sub-queue has an exclusive reader."""
        if not self._closed:
            self.wanted = 0
            self._on_failed(error)

    def _end(self, count: int, missing: int) -> None:
        self._link_context -= count
        if self._on_stopped is not None:
            return
        if self._room_bytes > 0:
            self.wanted += missing
        else:
            self._cut_off += missing

    def _tell_stopped(self) -> None:
        if self._on_stopped is not None and not self._link_context:
            on_stopped, self._on_stopped = self._on_stopped, None
            on_stopped()
