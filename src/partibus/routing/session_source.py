"""The messages of one session, for the receiver that holds it.

```text
 held ──▶ the lock has run out: over
   │ ▲
   │ └── the next owner has found the lock, and been told what the receiver has
   └───▶ the owner of the partition is lost ──▶ nobody goes on in time, or knows of the lock: over
```
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from partibus.errors import SessionLockLost
from partibus.partition.protocol.commands import CancelReceive, Receive
from partibus.partition.protocol.host import Timer
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.replies import Failed, Granted, ReceiveRefused, SessionAccepted
from partibus.routing.partitions import Numbers, error_of
from partibus.routing.receive import OnFailed, OnGranted
from partibus.routing.session_hold import SessionHold

RESUME_MS = 15_000.0
"""So long the receiver is left without an owner of its session: a take-over takes less (D21)."""
TRIES_MAX = 20
"""Owners that were lost, or had to refuse, one after the other."""


class Resuming(NamedTuple):
    """What a session takes that goes on at another owner."""

    call_later: Callable[[float, Callable[[], None]], Timer]
    """Calls after so many ms of real time."""
    held: Callable[[], list[int]]
    """Positions of the messages that the receiver was given and has not settled."""


class SessionSource:
    """A `partibus.routing.receive.Source`. The end of the session's lock ends it: ``on_failed`` is told, once."""

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
        """``resuming``: without it the loss of the owner is the end."""
        self._entity = entity
        self._hold = hold
        self._numbers = numbers
        self._delete = delete
        self._on_granted = on_granted
        self._on_failed = on_failed
        self._resuming = resuming
        self._over = False
        self._wanted = 0
        """Messages that were asked for and have not come."""
        self._max_bytes = 0
        self._timer: Timer | None = None
        """While the owner is lost: until it is too late for the next one."""
        self._tries = 0
        hold.listen(self._reply)

    def ask(self, count: int, max_bytes: int) -> None:
        if not self._over:
            self._wanted += count
            self._max_bytes = max_bytes
            if self._timer is None:
                self._receive(count)

    def stop(self, on_stopped: Callable[[], None]) -> None:
        self._wanted = 0
        hold = self._hold
        command = CancelReceive(self._numbers.next(), SubqueueKind.ACTIVE, hold.receiver)
        hold.partition.submit(command, lambda _: on_stopped())

    def close(self) -> None:
        """The receiver is gone: the session is free at once."""
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
        """Messages, or the end of the session or of its owner: `SessionEnded`, `ReceiveRefused`, or `Failed`."""
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
        elif not self._over and self._timer is None:  # else who resumes is told as well
            self._lose()

    # -- without an owner --------------------------------------------------------------------------------------------

    def _lose(self) -> None:
        """The owner is lost, or the way there."""
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
            self._hold.release()  # when only the way to the store is cut, the next holder need not wait
            self._on_failed(SessionLockLost(self._entity, self._hold.session))

    def _end(self) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
