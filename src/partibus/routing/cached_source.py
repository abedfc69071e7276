"""One receiver behind a front end's cache."""

from collections.abc import Callable

from partibus.errors import PartibusError
from partibus.partition.protocol.entry import Entry
from partibus.partition.protocol.replies import Granted, Locked
from partibus.routing.partitions import PartitionHandle
from partibus.routing.receive import OnFailed, OnGranted


class CachedSource:
    """What the receiver still wants, in messages and bytes. ``pump`` has the cache look at it, ``leave`` forget it."""

    __slots__ = (
        "_closed",
        "_cut_off",
        "_handing_out",
        "_leave",
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
        self._handing_out = 0
        """Messages whose owners have not answered yet."""
        self._room_bytes = 0
        self._cut_off = 0
        """Messages that it wanted and will not get before it asks again, of which it has yet to be told."""
        self.delete = delete
        self.wanted = 0
        self._closed = False

    # -- the receiver's side: a `Source` -----------------------------------------------------------------------------

    def ask(self, count: int, max_bytes: int) -> None:
        self.wanted += count + self._cut_off  # of the latter the receiver was not told, so it does not ask again
        self._room_bytes = max_bytes
        self._cut_off = 0
        self._pump()

    def stop(self, on_stopped: Callable[[], None]) -> None:
        self.wanted = self._cut_off = 0
        self._on_stopped = on_stopped
        self._pump()
        self._tell_stopped()

    def close(self) -> None:
        self.wanted = 0
        if not self._closed:
            self._closed = True
            self._leave(self)

    # -- the cache's side --------------------------------------------------------------------------------------------

    def hand_out(self, size_bytes: int) -> None:
        """One message is on its way to the receiver. Past its bytes it gets nothing before it asks again."""
        self._handing_out += 1
        self._room_bytes -= size_bytes
        self.wanted -= 1
        if self._room_bytes <= 0:
            self._cut_off += self.wanted
            self.wanted = 0

    def locked(self, partition: PartitionHandle, locked: Locked, count: int) -> None:
        """The owner has answered a hand-out of ``count``; what has lapsed meanwhile is missing and still wanted."""
        self._hand_over(partition, locked.kind, locked.lock_id, locked.until_ms, locked.entries, count)

    def failed(self, partition: PartitionHandle, kind: int, count: int) -> None:
        """The owner's store failed before it answered: others may have as much."""
        self._hand_over(partition, kind, 0, 0, [], count)

    def _hand_over(
        self, partition: PartitionHandle, kind: int, lock_id: int, until_ms: int, entries: list[Entry], count: int
    ) -> None:
        """The end of a hand-out of ``count``, with what came of it. Who was cut off is told with the last answer,
        even when that is a failure: nothing else would make it ask again."""
        self._end(count, missing=count - len(entries))
        ended = self._cut_off > 0 and not self._handing_out
        if ended:
            self._cut_off = 0
        if entries or ended:
            self._on_granted(partition, Granted(0, kind, lock_id, until_ms, entries, ended=ended))
        self._tell_stopped()

    def refused(self, error: PartibusError) -> None:
        """Nobody receives from the sub-queue now."""
        if not self._closed:
            self.wanted = 0
            self._on_failed(error)

    def _end(self, count: int, missing: int) -> None:
        self._handing_out -= count
        if self._on_stopped is not None:
            return
        if self._room_bytes > 0:
            self.wanted += missing
        else:
            self._cut_off += missing

    def _tell_stopped(self) -> None:
        if self._on_stopped is not None and not self._handing_out:
            on_stopped, self._on_stopped = self._on_stopped, None
            on_stopped()
