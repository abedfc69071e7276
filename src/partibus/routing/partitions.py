"""How the rest of a broker reaches a partition, wherever it lives."""

from collections.abc import Callable, Iterator
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
from partibus.partition.protocol.replies import CursorHeld, Failed, ReceiveRefused, Refused
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
        """Batched store access of the entity (row C14)."""
        self.used = False
        """Commands came, other than to look at counts; reset by who asks (`EntityRoute.take_used`)."""
        self.receivers: dict[int, OnReply] = {}
        """Who is registered here; those that a failure of the store has ended stay until they say that they are gone.
        """
        self._store = store

    def follow(self, other: "PartitionHandle") -> None:
        """Take over the options of another handle of the same partition: what comes from now on goes by them."""
        self.options = other.options
        self.batched = other.batched

    def detour(self, store: StoreAccess) -> StoreAccess:
        """From now on reach the store another way; the way until now."""
        before, self._store = self._store, store
        return before

    @property
    def available(self) -> bool:
        """The partition's store can be used."""
        return self._store.failure is None

    @property
    def failure(self) -> str | None:
        """Why the partition's store can't be used right now; None when it can."""
        return self._store.failure

    @property
    def overloaded(self) -> bool:
        """More waits for the partition's store than its limits allow."""
        return self._store.overloaded

    def revision(self) -> object:
        """Equal to what it was before: nothing has become durable in the partition's store since. None: who owns the
        store would have to be asked."""
        access = self._store.access if isinstance(self._store, StoreRoute) else self._store
        return (access, access.commits) if isinstance(access, StoreRuntime) else None

    def when_usable(self, call: Callable[[], None]) -> None:
        """Call once, when the store has caught up or can be used again; never before this returns."""
        self._store.when_usable(call)

    def submit(self, command: Command, on_reply: OnReply | None = None, *, more: bool = False) -> None:
        """Give the partition a command; ``on_reply`` gets what it answers to ``command.request``. ``more``: who waits
        has other requests under way, so this one may wait for company if the entity allows."""
        if type(command) is not Inspect:
            self.used = True
        holdable = more and self.batched and _is_batched(command)
        self._store.submit(self.row, self.options, command, on_reply, holdable=holdable)

    def register(self, receiver: int, on_granted: OnReply) -> None:
        """Say where `Granted` for a receiver goes; a `Failed` there ends the receiver, after a `ReceiveRefused` it
        waits for nothing."""
        self.receivers[receiver] = on_granted
        self._store.register(receiver, on_granted)

    def unregister(self, receiver: int) -> None:
        """The receiver is gone."""
        self.receivers.pop(receiver, None)
        self._store.unregister(receiver)

    def forget(self, request: int) -> None:
        """Nobody waits for the answer to a request any more; one that is on its way may still come."""
        self._store.forget(request)

    def wake(self) -> None:
        """Have the partition loaded, lest what falls due in it waits for somebody to use it."""
        self.submit(Tick())

    def drop(self, on_dropped: Callable[[int], None]) -> None:
        """The entity was deleted: delete the partition's rows, then call with its number."""
        self._store.drop(self.row, on_dropped)


def _is_batched(command: Command) -> bool:
    """Batched store access is about sending and completing only (row C14)."""
    kind = type(command)
    return kind is Enqueue or (kind is Settle and command.outcome is Outcome.COMPLETE)  # type: ignore[union-attr]


class Numbers:
    """Numbers for requests and receivers, unique in a broker."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count: Iterator[int] = count(1)

    def next(self) -> int:
        """A number that was not used before."""
        return next(self._count)


def error_of(reply: Failed | Refused | CursorHeld | ReceiveRefused, entity: str) -> PartibusError:
    """What a front end tells its client when a partition could not do it."""
    if isinstance(reply, ReceiveRefused):
        return ReadExclusively(entity, reply.cursor, reply.until_ms)
    if isinstance(reply, CursorHeld):
        if not reply.paused:
            return ReadExclusively(entity, reply.name, reply.until_ms)
        return ServerBusy(
            f"'{entity}' hands nothing out for a moment: the cursor {shown(reply.name)} waits for the end of locks, to "
            "read it alone. Wait 10 seconds and try again."
        )
    if isinstance(reply, Refused) and reply.numbers:
        return QuotaExceeded(
            f"A partition of '{entity}' that has given out {reply.size_bytes} sequence numbers",
            reply.size_bytes_max,
            "sequence numbers",
            "Receive its messages, and make another entity for new ones.",
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
    return OutcomeUnknown(f"A messaging store of '{entity}' failed in between, the outcome is unknown: {reply.message}")
