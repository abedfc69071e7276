"""Fault injection for one partition: a route that fails or delays commands on purpose.

```text
 PartitionHandle ─▶ StoreAccess                without a fault: a direct route
 PartitionHandle ─▶ Detour ─▶ StoreAccess      refused, or passed on with a delay, in order
```

It refuses commands as an unavailable store does: surely not executed, to be retried. The partition's owner does not
know of the fault, so message locks continue and expire there. Commands that only return a reservation or a session are
passed on regardless. Their loss would be invisible, and other receivers would have to wait until they expire.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from partibus.partition.protocol.commands import (
    CancelAccept,
    CancelReceive,
    Command,
    Inspect,
    Outcome,
    Receive,
    ReleaseSession,
    ReturnReserved,
    Settle,
)
from partibus.partition.protocol.host import overloaded_stores
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.replies import Failed, refused
from partibus.partition.runtime.dispatcher import OnReply
from partibus.routing.partitions import PartitionHandle

LATE_MAX = 5_000
"""The number of delayed commands past which the partition counts as overloaded, as for a store (D24)."""


class Timer(Protocol):
    """The result of `CallLater`."""

    def cancel(self) -> None:
        """Cancel the call. Idempotent."""
        ...


CallLater = Callable[[float, Callable[[], None]], Timer]
"""A function that calls another one after so many ms."""


class Effect(NamedTuple):
    """The effect of fault injection on a partition."""

    fails: bool = False
    delay_ms: int = 0
    """The delay of every command."""


NO_EFFECT = Effect()


class FaultyRoute:
    """A `partibus.routing.store_access.StoreAccess` for one partition, between its handle and its store."""

    def __init__(self, partition: PartitionHandle, call_later: CallLater) -> None:
        """Insert this route between the partition and its store."""
        self._partition = partition
        self._call_later = call_later
        self._store = partition.reroute(self)
        self._effect = NO_EFFECT
        self._why = ""
        self._late: deque[tuple[Timer, Callable[[], None]]] = deque()
        self._waiting: list[Callable[[], None]] = []
        """Calls to make at the end of the failure or overload."""

    def begin(self, effect: Effect, why: str) -> None:
        """Replace the current effect; ``why`` is the reason in refusals."""
        failed, self._effect, self._why = self._effect.fails, effect, why
        if effect.fails and not failed:
            self._run_late()  # earlier commands are refused as well, in order
            receivers, self._partition.receivers = self._partition.receivers, {}
            for receiver, on_granted in receivers.items():
                self._store.unregister(receiver)
                on_granted(Failed(receiver, False, False, why))
        elif failed and not effect.fails:
            for receiver, on_granted in self._partition.receivers.items():
                self._store.register(receiver, on_granted)
        if not effect.fails and not effect.delay_ms:
            self._run_late()
        self._tell_usable()

    def end(self) -> None:
        """Restore the direct route."""
        self.begin(NO_EFFECT, "")
        self._partition.reroute(self._store)
        # The entity may have changed meanwhile. Reading counts updates the partition, and does not count as use.
        self._partition.submit(Inspect(0))

    # -- StoreAccess -------------------------------------------------------------------------------------------------

    @property
    def beneath(self) -> object:
        """The route that this one stands in."""
        return self._store

    @property
    def failure(self) -> str | None:
        """The reason why the partition is unavailable; None while it is available."""
        return self._why if self._effect.fails else self._store.failure

    @property
    def overloaded(self) -> bool:
        """Whether too many commands wait, here or for the store."""
        return not self._effect.fails and (len(self._late) > LATE_MAX or self._store.overloaded)

    def submit(
        self,
        row: int,
        options: PartitionOptions,
        command: Command,
        on_reply: OnReply | None = None,
        *,
        holdable: bool = False,
    ) -> None:
        """Pass a command on, at once or delayed, or refuse it."""
        self._in_time(lambda: self._submit(row, options, command, on_reply, holdable=holdable))

    def register(self, receiver: int, on_granted: OnReply) -> None:
        # During a failure only the handle knows the receivers; `begin` registers them when it ends.
        """Register a receiver with the store, unless the partition fails."""
        if not self._effect.fails:
            self._store.register(receiver, on_granted)

    def unregister(self, receiver: int) -> None:
        """Remove a receiver from the store."""
        self._in_time(lambda: self._store.unregister(receiver))

    def forget(self, request: int) -> None:
        """Discard the answer to a request."""
        self._in_time(lambda: self._store.forget(request))

    def when_usable(self, call: Callable[[], None]) -> None:
        """Call once, when the partition is available and not overloaded."""
        if self._effect.fails or len(self._late) > LATE_MAX:
            self._waiting.append(call)
        else:
            self._store.when_usable(call)

    def drop(self, row: int, on_dropped: Callable[[Any], None]) -> None:
        """Delete a partition's rows, unless the partition fails: as with a lost store, no callback follows then."""
        if not self._effect.fails:
            self._in_time(lambda: self._store.drop(row, on_dropped))

    def retire(self, why: str) -> list[Callable[[], None]]:
        """Retire the store's route."""
        return self._store.retire(why)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _submit(
        self, row: int, options: PartitionOptions, command: Command, on_reply: OnReply | None, *, holdable: bool
    ) -> None:
        if not self._effect.fails or _only_gives_back(command):
            self._store.submit(row, options, command, on_reply, holdable=holdable)
        elif isinstance(command, Receive):
            on_granted = self._partition.receivers.get(command.receiver)
            if on_granted is not None:
                on_granted(Failed(command.receiver, False, False, self._why))
        elif on_reply is not None:
            on_reply(refused(command, self._why))

    def _in_time(self, call: Callable[[], None]) -> None:
        """Make a call now, or with the delay. Calls keep their order even if the delay changes."""
        if self._effect.delay_ms and not self._effect.fails:
            self._late.append((self._call_later(self._effect.delay_ms, self._run_oldest), call))
            if len(self._late) > LATE_MAX:
                overloaded_stores.add(self)
        else:
            call()

    def _run_oldest(self) -> None:
        self._late.popleft()[1]()
        if 2 * len(self._late) < LATE_MAX:
            overloaded_stores.discard(self)
            self._tell_usable()

    def _run_late(self) -> None:
        late, self._late = self._late, deque()
        overloaded_stores.discard(self)
        for timer, call in late:
            timer.cancel()
            call()

    def _tell_usable(self) -> None:
        if self._waiting and not self._effect.fails:
            calls, self._waiting = self._waiting, []
            for call in calls:
                if self._store.failure is None and not self._store.overloaded:
                    self._call_later(0, call)
                else:
                    self._store.when_usable(call)


def _only_gives_back(command: Command) -> bool:
    """Tell whether a command only returns resources and has no reply."""
    match command:
        case ReturnReserved() | ReleaseSession() | CancelReceive(request=0) | CancelAccept(request=0):
            return True
        case Settle(request=0, outcome=Outcome.RELEASE):
            return True
    return False
