"""The messages of one session, for the receiver that holds it, and the lock of that receiver.

```text
 held ──▶ the lock has expired: over
   │ ▲
   │ └── the next owner has found the lock and received the list of held messages
   └───▶ the partition's owner is lost ──▶ no owner resumes in time, or knows the lock: over
```
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from partibus.errors import SessionLockLost
from partibus.partition.protocol.commands import AcceptSession, CancelAccept, CancelReceive, Receive, ReleaseSession
from partibus.partition.protocol.host import Timer
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.replies import Failed, Granted, ReceiveRefused, SessionAccepted
from partibus.partition.runtime.dispatcher import OnReply
from partibus.routing.partitions import Numbers, PartitionHandle, error_of
from partibus.routing.receive import OnFailed, OnGranted


class SessionHold:
    """A request for a session, then its lock. ``session``, ``lock_id`` and ``until_ms`` are valid after `accepted`."""

    __slots__ = (
        "_listener",
        "_on_reply",
        "_request",
        "is_stored",
        "lock_id",
        "partition",
        "receiver",
        "session",
        "until_ms",
    )

    def __init__(self, partition: PartitionHandle, numbers: Numbers) -> None:
        self.partition = partition
        self.receiver = numbers.next()
        self.session = ""
        self.lock_id = 0
        self.until_ms = 0
        self.is_stored = False
        """Whether the lock is stored, so that the partition's next owner knows it."""
        self._request = numbers.next()
        self._listener: OnReply | None = None
        self._on_reply: OnReply | None = None

    # -- asking ------------------------------------------------------------------------------------------------------

    def ask(self, session: str | None, on_reply: OnReply, *, wait: bool, resident: bool = False) -> None:
        """Ask the partition for a session, or for any session.

        ``on_reply`` may run before this returns, and once more after `cancel` with an answer in flight. ``resident``:
        the session may have moved away, and is wanted for the messages that the partition still has.
        """
        self._on_reply = on_reply
        self.partition.register(self.receiver, self._tell)
        self.partition.submit(AcceptSession(self._request, self.receiver, session, wait, resident=resident), on_reply)

    def cancel(self) -> None:
        """Withdraw the request."""
        self.forget()
        self.partition.submit(CancelAccept(0, self._request))
        self.partition.forget(self._request)

    def accepted(self, reply: SessionAccepted) -> None:
        """Record the lock that the partition has granted."""
        self.session, self.lock_id, self.until_ms = reply.session, reply.lock_id, reply.until_ms
        self.is_stored = reply.is_stored

    # -- holding -----------------------------------------------------------------------------------------------------

    def listen(self, listener: OnReply) -> None:
        """Set the callback for the session's messages and its end."""
        self._listener = listener

    def resume(self, held: list[int], on_reply: OnReply) -> None:
        """Resume the session at the partition's new owner, or after a lost connection to it.

        ``held`` lists the positions of the messages that the receiver holds. The answer may come before this returns.
        """
        self.partition.register(self.receiver, self._tell)
        command = AcceptSession(self._request, self.receiver, self.session, resumes=self.lock_id, held=held)
        self.partition.submit(command, on_reply)

    def release(self) -> None:
        """Release the session and requeue its messages without counting a delivery."""
        self.forget()
        self.partition.submit(ReleaseSession(self.lock_id))

    def forget(self) -> None:
        """Remove the callbacks."""
        self._listener = self._on_reply = None
        self.partition.unregister(self.receiver)

    def _tell(self, reply: Any) -> None:
        if self._listener is not None:
            self._listener(reply)
        elif isinstance(reply, ReceiveRefused) and self._on_reply is not None:
            # A waiting request gets its answers as a receiver. Before a session is locked, the only other answer is a
            # failure of the store, which the request gets as well.
            self.partition.forget(self._request)
            self._on_reply(reply)


RESUME_MS = 15_000.0
"""How long the receiver waits for a new owner of its session; a take-over takes less (D21)."""
TRIES_MAX = 20
"""The number of consecutive attempts at owners that are lost or refuse."""


class Resuming(NamedTuple):
    """The functions that resume a session at another owner."""

    call_later: Callable[[float, Callable[[], None]], Timer]
    """A function that calls another one after so many ms of real time."""
    held: Callable[[], list[int]]
    """A function that returns the positions of the receiver's unsettled messages."""


class SessionSource:
    """A `partibus.routing.receive.Source` that ends with the session's lock and calls ``on_failed`` once."""

    __slots__ = (
        "_delete",
        "_entity",
        "_hold",
        "_max_bytes",
        "_numbers",
        "_on_failed",
        "_on_granted",
        "_over",
        "_resuming",
        "_timer",
        "_tries",
        "_wanted",
    )

    def __init__(
        self,
        entity: str,
        hold: SessionHold,
        numbers: Numbers,
        *,
        delete: bool,
        on_granted: OnGranted,
        on_failed: OnFailed,
        resuming: Resuming | None = None,
    ) -> None:
        """Build a source; without ``resuming`` the loss of the owner ends it."""
        self._entity = entity
        self._hold = hold
        self._numbers = numbers
        self._delete = delete
        self._on_granted = on_granted
        self._on_failed = on_failed
        self._resuming = resuming
        self._over = False
        self._wanted = 0
        """The number of requested messages that have not come."""
        self._max_bytes = 0
        self._timer: Timer | None = None
        """The timer of the deadline for the next owner, set while the owner is lost."""
        self._tries = 0
        hold.listen(self._reply)

    def ask(self, count: int, max_bytes: int) -> None:
        """Ask the session's partition for messages."""
        if not self._over:
            self._wanted += count
            self._max_bytes = max_bytes
            if self._timer is None:
                self._receive(count)

    def stop(self, on_stopped: Callable[[], None]) -> None:
        """Withdraw the demand from the session's partition."""
        self._wanted = 0
        hold = self._hold
        command = CancelReceive(self._numbers.next(), SubqueueKind.ACTIVE, hold.receiver)
        hold.partition.submit(command, lambda _: on_stopped())

    def close(self) -> None:
        """Release the session at once."""
        if not self._over:
            self._end()
            self._hold.release()

    def _receive(self, count: int) -> None:
        hold = self._hold
        hold.partition.submit(
            Receive(
                SubqueueKind.ACTIVE, hold.receiver, count, self._max_bytes, delete=self._delete, session=hold.lock_id
            )
        )

    def _reply(self, reply: Any) -> None:
        """Process messages, or the session's or owner's end: `SessionEnded`, `ReceiveRefused` or `Failed`."""
        if isinstance(reply, Granted):
            self._wanted = 0 if reply.ended else max(0, self._wanted - len(reply.entries))
            self._on_granted(self._hold.partition, reply)
        elif isinstance(reply, ReceiveRefused):
            if not self._over:
                self._end()
                self._hold.release()
                self._on_failed(error_of(reply, self._entity))
        elif not isinstance(reply, Failed):
            if not self._over:
                self._end()
                self._hold.forget()
                self._on_failed(SessionLockLost(self._entity, self._hold.session))
        elif not self._over and self._timer is None:  # otherwise the pending resume gets the failure as well
            self._lose()

    # -- without an owner --------------------------------------------------------------------------------------------

    def _lose(self) -> None:
        """Wait for the next owner after the loss of the owner or of the route to it."""
        if self._resuming is None or not self._hold.is_stored:
            self._give_up()
            return
        self._tries = 0
        self._timer = self._resuming.call_later(RESUME_MS, self._give_up)
        self._hold.partition.when_usable(self._resume)

    def _resume(self) -> None:
        if self._over or self._resuming is None:
            return
        self._tries += 1
        self._hold.resume(self._resuming.held(), self._resumed)

    def _resumed(self, reply: Any) -> None:
        if self._over:
            if isinstance(reply, SessionAccepted):
                self._hold.release()
        elif isinstance(reply, SessionAccepted):
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._wanted:
                self._receive(self._wanted)
        elif isinstance(reply, Failed) and self._tries < TRIES_MAX:
            self._hold.partition.when_usable(self._resume)
        else:
            self._give_up()

    def _give_up(self) -> None:
        if not self._over:
            self._end()
            self._hold.release()  # if only the route is cut, this spares the next holder the wait
            self._on_failed(SessionLockLost(self._entity, self._hold.session))

    def _end(self) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
