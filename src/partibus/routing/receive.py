"""Sources of a receiver's messages."""

from collections.abc import Callable
from typing import Any, Protocol

from partibus.errors import PartibusError
from partibus.partition.protocol.commands import CancelReceive, Receive
from partibus.partition.protocol.replies import Cancelled, Failed, Granted, ReceiveRefused
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
    ) -> None:
        self._lock_ms = lock_ms
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
            self._on_granted(self._partition, reply)

    def ask(self, count: int, max_bytes: int) -> None:
        """Ask the partition for messages."""
        self._asks += 1
        self._partition.submit(
            Receive(self._kind, self._receiver, count, max_bytes, delete=self._delete, lock_ms=self._lock_ms)
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
