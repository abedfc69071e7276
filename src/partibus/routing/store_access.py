"""The route to the partitions of one messaging store, whichever broker owns it.

```text
 PartitionHandle ─▶ StoreRoute ─▶ StoreRuntime          the store is this broker's
                        │      ─▶ a peer's connection  the store is another broker's
                        └─ no owner yet: refused, retriably; a callback reports the next owner
```

The holder of a message or a session continues at the next owner (D21). Its requests wait for the duration of a
take-over instead of being refused.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from partibus.partition.protocol.commands import (
    Command,
    Receive,
    ReleaseSession,
    RenewLocks,
    RenewSession,
    Settle,
)
from partibus.partition.protocol.host import Timer
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.replies import Failed, refused
from partibus.partition.runtime.commits import OnFound
from partibus.partition.runtime.dispatcher import OnReply

CAN_WAIT: frozenset[type] = frozenset((Settle, RenewLocks, RenewSession, ReleaseSession))
"""Commands about locks that outlive the owner. Sends do not wait: they go to another partition, or the client repeats
them, which counts the time.
"""
WAIT_MS = 15_000.0
"""How long to wait for the next owner; a take-over takes less (D21)."""
WAITING_MAX = 10_000
TRIES_MAX = 5


class StoreAccess(Protocol):
    """The partitions of one store, with the interface of `partition.runtime.runtime.StoreRuntime`.

    All calls are on the loop.
    """

    @property
    def failure(self) -> str | None:
        """The reason why the store is unavailable; None while it is available."""
        ...

    @property
    def overloaded(self) -> bool:
        """Whether the store has more pending work than its limits allow."""
        ...

    def submit(
        self,
        row: int,
        options: PartitionOptions,
        command: Command,
        on_reply: OnReply | None = None,
        *,
        holdable: bool = False,
    ) -> None:
        """Submit a command to a partition; ``on_reply`` gets the reply to ``command.request``.

        The reply may come before this returns. A request is answered once, with `Failed` when the store or its owner is
        lost.
        """
        ...

    def register(self, receiver: int, on_granted: OnReply) -> None:
        """Register the callback for a receiver's grants; a `Failed` reply ends the receiver."""
        ...

    def unregister(self, receiver: int) -> None:
        """Remove a receiver; later grants to it return to the partition."""
        ...

    def forget(self, request: int) -> None:
        """Discard the answer to a request."""
        ...

    def when_usable(self, call: Callable[[], None]) -> None:
        """Call once, when the store has caught up or is available again; never before this returns."""
        ...

    def drop(self, row: int, on_dropped: Callable[[Any], None]) -> None:
        """Delete a partition's rows.

        ``on_dropped`` gets the row when the deletion is durable. It is not called if the store is lost before.
        """
        ...

    def retire(self, why: str) -> list[Callable[[], None]]:
        """Close this route: tell and remove the receivers, but still answer requests.

        Returns the calls that `when_usable` has not made.
        """
        ...


@runtime_checkable
class Remembers(Protocol):
    """A component that knows which requests of a lost route were executed."""

    def find_executed(self, asker: str, requests: Sequence[int], found: OnFound) -> None:
        """Report which requests of ``asker``, a run of a broker, the store's former owner executed.

        ``found`` is called once, never before this returns.
        """
        ...


def memory_of(access: object) -> Remembers | None:
    """Return the route as a `Remembers`, or None if it is not one."""
    return access if isinstance(access, Remembers) else None


class _Again:
    """The callback of a repeated request."""

    __slots__ = ("on_reply", "tries")

    def __init__(self, on_reply: OnReply) -> None:
        self.on_reply = on_reply
        self.tries = 1

    def __call__(self, reply: Any) -> None:
        self.on_reply(reply)


class StoreRoute:
    """A `StoreAccess` to one store that stays the same while owners change.

    ``call_soon`` runs a call after the current event, and ``call_later`` after so many ms. Without ``call_later`` no
    request waits.
    """

    __slots__ = (
        "_access",
        "_call_later",
        "_call_soon",
        "_held",
        "_receivers",
        "_timer",
        "_waiting",
        "_why_not",
        "name",
    )

    def __init__(
        self,
        name: str,
        call_soon: Callable[[Callable[[], None]], Any],
        call_later: Callable[[float, Callable[[], None]], Timer] | None = None,
    ) -> None:
        self.name = name
        self._call_soon = call_soon
        self._call_later = call_later
        self._held: list[tuple[int, PartitionOptions, Command, OnReply | None]] = []
        """Requests for the next owner."""
        self._timer: Timer | None = None
        """The timer of their deadline."""
        self._access: StoreAccess | None = None
        self._why_not = f"{name} has no owner yet"
        self._waiting: list[Callable[[], None]] = []
        self._receivers: dict[int, OnReply] = {}
        """Receivers registered while the store has no owner."""

    def lead_to(self, access: StoreAccess) -> None:
        """Route to the store's new owner, and continue all waiting requests."""
        if self._access is not None:
            self.lead_nowhere(f"{self.name} has another owner now")
        self._access = access
        receivers, self._receivers = self._receivers, {}
        for receiver, on_granted in receivers.items():
            access.register(receiver, on_granted)
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            if access.failure is None:
                self._call_soon(call)
            else:
                access.when_usable(call)

    def lead_nowhere(self, why: str) -> None:
        """Close the route after the loss of the owner.

        The owner's own access answers its requests. Receivers are told when the route is already closed, so that they
        can wait for the next owner.
        """
        access, self._access = self._access, None
        self._why_not = why
        if access is not None:
            self._waiting += access.retire(why)

    def retire(self, why: str) -> list[Callable[[], None]]:
        """Close this route as part of another one."""
        self.lead_nowhere(why)
        receivers, self._receivers = self._receivers, {}
        for receiver, on_granted in receivers.items():
            on_granted(Failed(receiver, False, False, why))
        self._give_up_held()
        waiting, self._waiting = self._waiting, []
        return waiting

    def hold(self, row: int, options: PartitionOptions, command: Command, on_reply: OnReply | None) -> None:
        """Submit a command when the store is available; it surely was not executed, or is idempotent."""
        if type(on_reply) is _Again:
            on_reply.tries += 1
        elif on_reply is not None:
            on_reply = _Again(on_reply)
        if (
            self._call_later is None
            or len(self._held) >= WAITING_MAX
            or (type(on_reply) is _Again and on_reply.tries > TRIES_MAX)
        ):
            if on_reply is not None:
                on_reply(refused(command, self.failure or "its owners refused it too many times"))
            return
        self._held.append((row, options, command, on_reply))
        if len(self._held) == 1:
            self._timer = self._call_later(WAIT_MS, self._give_up_held)
            self.when_usable(self._ask_again)

    def _ask_again(self) -> None:
        for row, options, command, on_reply in self._take_held():
            self.submit(row, options, command, on_reply)

    def _give_up_held(self) -> None:
        for _, _, command, on_reply in self._take_held():
            if on_reply is not None:
                on_reply(refused(command, self.failure or "its owner did not execute it in time"))

    def _take_held(self) -> list[tuple[int, PartitionOptions, Command, OnReply | None]]:
        held, self._held = self._held, []
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        return held

    @property
    def access(self) -> StoreAccess | None:
        """The access to the current owner."""
        return self._access

    @property
    def failure(self) -> str | None:
        """The reason why the store is unavailable; None while it is available."""
        return self._why_not if self._access is None else self._access.failure

    @property
    def overloaded(self) -> bool:
        """Whether the owner's store has more pending work than its limits allow."""
        return self._access is not None and self._access.overloaded

    def submit(
        self,
        row: int,
        options: PartitionOptions,
        command: Command,
        on_reply: OnReply | None = None,
        *,
        holdable: bool = False,
    ) -> None:
        """Submit a command to the owner, hold it for the next one, or refuse it."""
        if self._access is not None:
            self._access.submit(row, options, command, on_reply, holdable=holdable)
        elif isinstance(command, Receive):
            on_granted = self._receivers.pop(command.receiver, None)
            if on_granted is not None:
                on_granted(Failed(command.receiver, False, False, self._why_not))
        elif type(command) in CAN_WAIT and self._call_later is not None:
            self.hold(row, options, command, on_reply)
        elif on_reply is not None:
            on_reply(refused(command, self._why_not))

    def register(self, receiver: int, on_granted: OnReply) -> None:
        """Register a receiver with the current or next owner."""
        if self._access is not None:
            self._access.register(receiver, on_granted)
        else:
            self._receivers[receiver] = on_granted

    def unregister(self, receiver: int) -> None:
        """Remove a receiver."""
        if self._access is not None:
            self._access.unregister(receiver)
        else:
            self._receivers.pop(receiver, None)

    def forget(self, request: int) -> None:
        """Discard the answer to a request."""
        if self._access is not None:
            self._access.forget(request)

    def when_usable(self, call: Callable[[], None]) -> None:
        """Call once, when the store has an owner and is available."""
        if self._access is not None:
            self._access.when_usable(call)
        else:
            self._waiting.append(call)

    def drop(self, row: int, on_dropped: Callable[[Any], None]) -> None:
        """Delete a partition's rows at the current owner."""
        if self._access is not None:
            self._access.drop(row, on_dropped)
