"""Handles through which a broker reaches partitions in its own and other brokers' stores."""

from collections.abc import Callable
from itertools import count

from partibus.errors import (
    OutcomeUnknown,
    PartibusError,
    QuotaExceeded,
    ReadExclusively,
    ServerBusy,
    StoreUnavailable,
    shown,
)
from partibus.partition.protocol.commands import Command, Enqueue, Inspect, Outcome, Settle, Tick
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.replies import CursorHeld, Failed, Moved, ReceiveRefused, Refused, ScreenFirst
from partibus.partition.runtime.dispatcher import OnReply
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.routing.store_access import StoreAccess, StoreRoute


class PartitionHandle:
    """One partition of an entity, in a store of this broker or another one."""

    __slots__ = ("_store", "batched", "options", "partition_id", "receivers", "row", "used")

    def __init__(
        self, partition_id: int, row: int, store: StoreAccess, options: PartitionOptions, *, batched: bool
    ) -> None:
        self.partition_id = partition_id
        self.row = row
        self.options = options
        self.batched = batched
        """Whether the entity has batched store access (row C14)."""
        self.used = False
        """Whether commands came, except those that read counts. `EntityRoute.take_used` resets it."""
        self.receivers: dict[int, OnReply] = {}
        """The registered receivers. Receivers that a store failure has ended stay until they unregister."""
        self._store = store

    def follow(self, other: "PartitionHandle") -> None:
        """Take over the options of another handle of the same partition for all later commands."""
        self.options = other.options
        self.batched = other.batched

    def reroute(self, store: StoreAccess) -> StoreAccess:
        """Replace the route to the store; return the old one."""
        before, self._store = self._store, store
        return before

    @property
    def available(self) -> bool:
        """Whether the partition's store is available."""
        return self._store.failure is None

    @property
    def is_local(self) -> bool:
        """Whether this broker owns the partition's store, which is open."""
        access: object = getattr(self._store, "beneath", self._store)  # a faulty route stands in
        if isinstance(access, StoreRoute):
            access = access.access
        return isinstance(access, StoreRuntime) and access.failure is None

    @property
    def failure(self) -> str | None:
        """The reason why the partition's store is unavailable; None while it is available."""
        return self._store.failure

    @property
    def overloaded(self) -> bool:
        """Whether the partition's store has more pending work than its limits allow."""
        return self._store.overloaded

    def revision(self) -> object:
        """Return a value that changes with every commit of the partition's store.

        The value is None if only the store's owner could tell.
        """
        access = self._store.access if isinstance(self._store, StoreRoute) else self._store
        return (access, access.commits) if isinstance(access, StoreRuntime) else None

    def when_usable(self, call: Callable[[], None]) -> None:
        """Call once, when the store has caught up or is available again; never before this returns."""
        self._store.when_usable(call)

    def submit(self, command: Command, on_reply: OnReply | None = None, *, more: bool = False) -> None:
        """Submit a command; ``on_reply`` gets the reply to ``command.request``.

        ``more`` means that the client has other requests in flight, so the entity may hold this one for batching.
        """
        if type(command) is not Inspect:
            self.used = True
        holdable = more and self.batched and _is_batched(command)
        self._store.submit(self.row, self.options, command, on_reply, holdable=holdable)

    def register(self, receiver: int, on_granted: OnReply) -> None:
        """Register the callback for a receiver's `Granted` replies.

        A `Failed` reply ends the receiver. After a `ReceiveRefused` reply it waits for no messages.
        """
        self.receivers[receiver] = on_granted
        self._store.register(receiver, on_granted)

    def unregister(self, receiver: int) -> None:
        """Remove a receiver."""
        self.receivers.pop(receiver, None)
        self._store.unregister(receiver)

    def forget(self, request: int) -> None:
        """Discard the answer to a request; an answer in flight may still come."""
        self._store.forget(request)

    def wake(self) -> None:
        """Load the partition, so that its timers run without a client's use."""
        self.submit(Tick())

    def drop(self, on_dropped: Callable[[int], None]) -> None:
        """Delete the rows of a deleted entity's partition, then call with the partition's number."""
        self._store.drop(self.row, on_dropped)


def _is_batched(command: Command) -> bool:
    """Tell whether batched store access applies: only to sending and completing (row C14)."""
    kind = type(command)
    return kind is Enqueue or (kind is Settle and command.outcome is Outcome.COMPLETE)  # type: ignore[union-attr]


class Numbers:
    """Unique numbers for the requests and receivers of a broker."""

    __slots__ = ("next",)

    def __init__(self) -> None:
        self.next: Callable[[], int] = count(1).__next__
        """Returns an unused number."""


def error_of(reply: Failed | Refused | CursorHeld | ReceiveRefused | Moved | ScreenFirst, entity: str) -> PartibusError:
    """Return the client's error for a partition's failed reply."""
    if isinstance(reply, Moved | ScreenFirst):
        return StoreUnavailable(f"Keys of '{entity}' are moving between its partitions, try again.")
    if isinstance(reply, ReceiveRefused):
        return ReadExclusively(entity, reply.cursor, reply.until_ms)
    if isinstance(reply, CursorHeld):
        if not reply.paused:
            return ReadExclusively(entity, reply.name, reply.until_ms)
        return ServerBusy(
            f"'{entity}' grants no messages for a moment: the cursor {shown(reply.name)} waits for the end of locks, "
            "to read it alone. Wait 10 seconds and try again."
        )
    if isinstance(reply, Refused) and reply.numbers:
        return QuotaExceeded(
            f"A partition of '{entity}' that has given out {reply.size_bytes} sequence numbers",
            reply.size_bytes_max,
            "sequence numbers",
            "Receive its messages, and make another entity for new ones.",
        )
    if isinstance(reply, Refused) and reply.copies:
        return QuotaExceeded(
            f"A batch or transaction to '{entity}' that makes {reply.size_bytes} copies or more",
            reply.size_bytes_max,
            "copies",
            "Send it in several parts.",
        )
    if isinstance(reply, Refused):
        return QuotaExceeded(
            f"A partition of '{entity}' with {reply.size_bytes} bytes",
            reply.size_bytes_max,
            "bytes",
            "Receive messages, or raise MaxSizeInMegabytes.",
        )
    if reply.full:
        return QuotaExceeded(
            f"The messaging store of '{entity}'",
            0,
            "free bytes",
            f"Receive messages or free disk space ({reply.message}).",
        )
    if reply.executed is False:
        return StoreUnavailable(f"A messaging store of '{entity}' can't be used now, try again: {reply.message}")
    return OutcomeUnknown(
        f"A messaging store of '{entity}' failed before it answered, so the outcome is unknown: {reply.message}"
    )
