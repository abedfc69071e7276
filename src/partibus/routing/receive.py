"""Sources of a receiver's messages: a partition, or the front end's cache in front of several."""

from collections.abc import Callable, MutableMapping
from typing import Any, Protocol

from partibus.errors import PartibusError
from partibus.partition.protocol.commands import CancelReceive, Receive
from partibus.partition.protocol.keys import Entry
from partibus.partition.protocol.replies import Cancelled, Failed, Granted, Locked, ReceiveRefused
from partibus.routing.partitions import Numbers, PartitionHandle, error_of

OnGranted = Callable[[PartitionHandle, Granted], None]
OnFailed = Callable[[PartibusError], None]


class Source(Protocol):
    """A source of messages for one receiver."""

    def ask(self, count: int, max_bytes: int) -> None:
        """Ask for ``count`` more messages of at most ``max_bytes`` until the next `ask`.

        A grant with ``ended`` ends all outstanding demand.
        """
        ...

    def stop(self, on_stopped: Callable[[], None]) -> None:
        """Withdraw the demand; call ``on_stopped`` when no grant from an earlier request can come."""
        ...

    def close(self) -> None:
        """Remove the receiver."""
        ...


class DirectSource:
    """A receiver at one partition without a cache (plain entities)."""

    __slots__ = (
        "_asks",
        "_delete",
        "_entity",
        "_kind",
        "_lock_ms",
        "_numbers",
        "_on_failed",
        "_on_granted",
        "_once",
        "_partition",
        "_receiver",
    )

    def __init__(
        self,
        entity: str,
        partition: PartitionHandle,
        kind: int,
        numbers: Numbers,
        *,
        delete: bool,
        on_granted: OnGranted,
        on_failed: OnFailed,
        lock_ms: int = 0,
        once: bool = False,
    ) -> None:
        self._lock_ms = lock_ms
        self._once = once
        self._entity = entity
        self._partition = partition
        self._kind = kind
        self._numbers = numbers
        self._delete = delete
        self._on_granted = on_granted
        self._on_failed = on_failed
        self._receiver = numbers.next()
        self._asks = 0
        """Demands since the last one was surely withdrawn."""
        partition.register(self._receiver, self._reply)

    def _reply(self, reply: Any) -> None:
        if isinstance(reply, Failed | ReceiveRefused):
            self._on_failed(error_of(reply, self._entity))
        else:
            if reply.ended and self._asks == 1:
                self._asks = 0
            self._on_granted(self._partition, reply)

    def ask(self, count: int, max_bytes: int) -> None:
        """Ask the partition for messages."""
        self._asks += 1
        self._partition.submit(
            Receive(
                self._kind,
                self._receiver,
                count,
                max_bytes,
                delete=self._delete,
                lock_ms=self._lock_ms,
                once=self._once,
            )
        )

    def stop(self, on_stopped: Callable[[], None]) -> None:
        """Withdraw the demand from the partition."""
        request, asks = self._numbers.next(), self._asks

        def stopped(reply: Any) -> None:
            if isinstance(reply, Cancelled):
                self._asks = max(0, self._asks - asks)
            on_stopped()

        self._partition.submit(CancelReceive(request, self._kind, self._receiver), stopped)

    def close(self) -> None:
        """Remove the receiver from the partition."""
        self._partition.unregister(self._receiver)
        if self._asks:
            self._partition.submit(CancelReceive(0, self._kind, self._receiver))


class CachedSource:
    """The outstanding demand of a receiver, in messages and bytes.

    ``demand`` has the cache's receivers that want messages, ``pump`` makes the cache serve them, ``leave`` removes this
    one from the cache.
    """

    __slots__ = (
        "_closed",
        "_cut_off",
        "_demand",
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
        demand: MutableMapping["CachedSource", None],
        pump: Callable[[], None],
        leave: Callable[["CachedSource"], None],
        on_granted: OnGranted,
        on_failed: OnFailed,
        *,
        delete: bool,
    ) -> None:
        self._demand = demand
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
        self._demand[self] = None
        self._pump()

    def stop(self, on_stopped: Callable[[], None]) -> None:
        """Withdraw the demand; call ``on_stopped`` when no message is in flight."""
        self.wanted = self._cut_off = 0
        self._demand.pop(self, None)
        self._on_stopped = on_stopped
        self._pump()
        self._tell_stopped()

    def close(self) -> None:
        """Remove the receiver."""
        self.wanted = 0
        self._demand.pop(self, None)
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
            self._demand.pop(self, None)
            self._on_failed(error)

    def _end(self, count: int, missing: int) -> None:
        self._link_context -= count
        if self._on_stopped is not None or self._closed or not missing:
            return
        if self._room_bytes > 0:
            self.wanted += missing
            self._demand[self] = None
        else:
            self._cut_off += missing

    def _tell_stopped(self) -> None:
        if self._on_stopped is not None and not self._link_context:
            on_stopped, self._on_stopped = self._on_stopped, None
            on_stopped()
