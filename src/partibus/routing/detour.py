"""A way to one partition that fails or is slow on purpose: how a rehearsal of its loss reaches everything.

```text
 PartitionHandle ─▶ StoreAccess                without a rehearsal: nothing in between
 PartitionHandle ─▶ Detour ─▶ StoreAccess      refused, or handed on late, in order
```

What it refuses is refused as by a store that is away: surely not executed, to be tried again. The owner of the
partition knows nothing of it: message locks run on and end there. What only gives back (a reservation, a session) is
handed on even so, since nobody can see it and others would have to wait for its time.
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
from partibus.partition.protocol.options import PartitionOptions
from partibus.partition.protocol.replies import Failed, refused
from partibus.partition.runtime.dispatcher import OnReply
from partibus.routing.partitions import PartitionHandle

LATE_MAX = 5_000
"""Commands that wait for their time before the partition counts as overloaded, as for a store (D24)."""


class Timer(Protocol):
    """What `CallLater` gives."""

    def cancel(self) -> None:
        """Idempotent."""
        ...


CallLater = Callable[[float, Callable[[], None]], Timer]
"""Calls after so many ms."""


class Effect(NamedTuple):
    """What a rehearsal does to a partition."""

    fails: bool = False
    delay_ms: int = 0
    """Every command is so late."""


NO_EFFECT = Effect()


class Detour:
    """A `partibus.routing.store_access.StoreAccess` for one partition, between its handle and its store."""

    def __init__(self, partition: PartitionHandle, call_later: CallLater) -> None:
        """Puts itself in between."""
        self._partition = partition
        self._call_later = call_later
        self._store = partition.detour(self)
        self._effect = NO_EFFECT
        self._why = ""
        self._late: deque[tuple[Timer, Callable[[], None]]] = deque()
        self._waiting: list[Callable[[], None]] = []
        """For the end of the failure, or of the overload."""

    def begin(self, effect: Effect, why: str) -> None:
        """From now on this effect instead of another one; ``why`` is the reason that refusals give."""
        failed, self._effect, self._why = self._effect.fails, effect, why
        if effect.fails and not failed:
            self._run_late()  # they came before: refused as well, in their turn
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
        """Out of the way."""
        self.begin(NO_EFFECT, "")
        self._partition.detour(self._store)
        # The entity may have been changed meanwhile: looking at counts tells the partition, and counts as no use.
        self._partition.submit(Inspect(0))

    # -- StoreAccess -------------------------------------------------------------------------------------------------

    @property
    def failure(self) -> str | None:
        return self._why if self._effect.fails else self._store.failure

    @property
    def overloaded(self) -> bool:
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
        self._in_time(lambda: self._submit(row, options, command, on_reply, holdable=holdable))

    def register(self, receiver: int, on_granted: OnReply) -> None:
        # While it fails the handle alone knows them, until `begin` says that it does not.
        if not self._effect.fails:
            self._store.register(receiver, on_granted)

    def unregister(self, receiver: int) -> None:
        self._in_time(lambda: self._store.unregister(receiver))

    def forget(self, request: int) -> None:
        self._in_time(lambda: self._store.forget(request))

    def when_usable(self, call: Callable[[], None]) -> None:
        if self._effect.fails or len(self._late) > LATE_MAX:
            self._waiting.append(call)
        else:
            self._store.when_usable(call)

    def drop(self, row: int, on_dropped: Callable[[Any], None]) -> None:
        """Of a partition that fails nothing is dropped and nobody told, as of a lost store."""
        if not self._effect.fails:
            self._in_time(lambda: self._store.drop(row, on_dropped))

    def retire(self, why: str) -> list[Callable[[], None]]:
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
        """Now, or late by the delay. What came first is handed on first, whatever the delay is by then."""
        if self._effect.delay_ms and not self._effect.fails:
            self._late.append((self._call_later(self._effect.delay_ms, self._run_oldest), call))
        else:
            call()

    def _run_oldest(self) -> None:
        self._late.popleft()[1]()
        if 2 * len(self._late) < LATE_MAX:
            self._tell_usable()

    def _run_late(self) -> None:
        late, self._late = self._late, deque()
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
    """Nobody waits for an answer, and nothing is asked for."""
    match command:
        case ReturnReserved() | ReleaseSession() | CancelReceive(request=0) | CancelAccept(request=0):
            return True
        case Settle(request=0, outcome=Outcome.RELEASE):
            return True
    return False
