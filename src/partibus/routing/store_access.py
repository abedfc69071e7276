"""How the rest of a broker reaches the partitions of one messaging store, whoever owns it.

```text
 PartitionHandle ─▶ StoreRoute ─▶ StoreRuntime        the store is this broker's
                        │      ─▶ a peer's connection  the store is another broker's
                        └─ nobody yet: refused, retriably; told when somebody has it
```

Who holds a message or a session goes on with it at the next owner (D21): what he says meanwhile waits for that, so long
as a take-over takes, instead of being refused.
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
from partibus.partition.runtime.dispatcher import OnReply
from partibus.partition.runtime.executed import OnFound

CAN_WAIT: frozenset[type] = frozenset((Settle, RenewLocks, RenewSession, ReleaseSession))
"""What makes sense only of locks that outlive the owner. Sends do not wait: they go elsewhere, or are the client's to
repeat, which counts the time."""
WAIT_MS = 15_000.0
"""So long for the next owner: a take-over takes less (D21)."""
WAITING_MAX = 10_000
TRIES_MAX = 5


class StoreAccess(Protocol):
    """The partitions of one store, as `partition.runtime.runtime.StoreRuntime` offers them. All on the loop."""

    @property
    def failure(self) -> str | None:
        """Why the store can't be used right now; None when it can."""
        ...

    @property
    def overloaded(self) -> bool:
        """More waits for the store than its limits allow."""
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
        """Give a command to a partition; ``on_reply`` gets the reply to ``command.request``, perhaps before this
        returns. A request is answered once, with `Failed` when the store or its owner is lost."""
        ...

    def register(self, receiver: int, on_granted: OnReply) -> None:
        """Say where grants for a receiver go; a `Failed` there ends the receiver."""
        ...

    def unregister(self, receiver: int) -> None:
        """The receiver is gone; what is still granted to it goes back."""
        ...

    def forget(self, request: int) -> None:
        """Nobody waits for the answer to a request any more."""
        ...

    def when_usable(self, call: Callable[[], None]) -> None:
        """Call once, when the store has caught up or can be used again; never before this returns."""
        ...

    def drop(self, row: int, on_dropped: Callable[[Any], None]) -> None:
        """Delete a partition's rows; ``on_dropped`` gets the row when that is durable, and is never called when the
        store is lost before."""
        ...

    def retire(self, why: str) -> list[Callable[[], None]]:
        """The store is not reached this way any more: receivers are told and forgotten; requests are still answered.
        Gives the calls that `when_usable` has not made."""
        ...


@runtime_checkable
class Remembers(Protocol):
    """What knows which requests of a lost way to the store were executed."""

    def find_executed(self, asker: str, requests: Sequence[int], found: OnFound) -> None:
        """Tell which of the requests of ``asker``, a run of a broker, were executed by whoever had the store before.
        ``found`` is called once, never before this returns."""
        ...


def memory_of(access: object) -> Remembers | None:
    """A way to a store as one that `Remembers`, if it is."""
    return access if isinstance(access, Remembers) else None


class _Again:
    """Who gets the answer to something that was asked before."""

    __slots__ = ("on_reply", "tries")

    def __init__(self, on_reply: OnReply) -> None:
        self.on_reply = on_reply
        self.tries = 1

    def __call__(self, reply: Any) -> None:
        self.on_reply(reply)


class StoreRoute:
    """The way to one store, which may change: a `StoreAccess` that everybody keeps while owners come and go.

    ``call_soon`` runs a call when what is being handled now has been; ``call_later`` after so many ms, without which
    nothing waits.
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
        """For the next owner."""
        self._timer: Timer | None = None
        """Until they have waited too long."""
        self._access: StoreAccess | None = None
        self._why_not = f"{name} has no owner yet"
        self._waiting: list[Callable[[], None]] = []
        self._receivers: dict[int, OnReply] = {}
        """Registered while it leads nowhere."""

    def lead_to(self, access: StoreAccess) -> None:
        """The store has an owner. Whoever waits for it goes on."""
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
        """The owner is gone. What was asked of it is answered by its own access, not here. Receivers are told when the
        way is closed already, so that they can wait for the next owner."""
        access, self._access = self._access, None
        self._why_not = why
        if access is not None:
            self._waiting += access.retire(why)

    def retire(self, why: str) -> list[Callable[[], None]]:
        """As a part of another way: that one is closed."""
        self.lead_nowhere(why)
        receivers, self._receivers = self._receivers, {}
        for receiver, on_granted in receivers.items():
            on_granted(Failed(receiver, False, False, why))
        self._give_up_held()
        waiting, self._waiting = self._waiting, []
        return waiting

    def hold(self, row: int, options: PartitionOptions, command: Command, on_reply: OnReply | None) -> None:
        """Ask for something that was surely not done, or that may be done twice, as soon as the store can be used."""
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
                on_reply(refused(command, self.failure or "it was refused again and again"))
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
                on_reply(refused(command, self.failure or "its owner could not do it in time"))

    def _take_held(self) -> list[tuple[int, PartitionOptions, Command, OnReply | None]]:
        held, self._held = self._held, []
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        return held

    @property
    def access(self) -> StoreAccess | None:
        """Where it leads."""
        return self._access

    @property
    def failure(self) -> str | None:
        return self._why_not if self._access is None else self._access.failure

    @property
    def overloaded(self) -> bool:
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
        if self._access is not None:
            self._access.register(receiver, on_granted)
        else:
            self._receivers[receiver] = on_granted

    def unregister(self, receiver: int) -> None:
        if self._access is not None:
            self._access.unregister(receiver)
        else:
            self._receivers.pop(receiver, None)

    def forget(self, request: int) -> None:
        if self._access is not None:
            self._access.forget(request)

    def when_usable(self, call: Callable[[], None]) -> None:
        if self._access is not None:
            self._access.when_usable(call)
        else:
            self._waiting.append(call)

    def drop(self, row: int, on_dropped: Callable[[Any], None]) -> None:
        if self._access is not None:
            self._access.drop(row, on_dropped)
