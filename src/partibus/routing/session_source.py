"""The messages of one session, for the receiver that holds it."""

from collections.abc import Callable
from typing import Any

from partibus.errors import SessionLockLost
from partibus.partition.commands import CancelReceive, Receive
from partibus.partition.keys import SubqueueKind
from partibus.partition.replies import Failed, Granted
from partibus.routing.partitions import Numbers
from partibus.routing.receive import OnFailed, OnGranted
from partibus.routing.session_hold import SessionHold


class SessionSource:
    """A `partibus.routing.receive.Source`. The end of the session's lock ends it: ``on_failed`` is told, once."""

    __slots__ = ("_delete", "_entity", "_hold", "_numbers", "_on_failed", "_on_granted", "_over")

    def __init__(
        self,
        entity: str,
        hold: SessionHold,
        numbers: Numbers,
        *,
        delete: bool,
        on_granted: OnGranted,
        on_failed: OnFailed,
    ) -> None:
        self._entity = entity
        self._hold = hold
        self._numbers = numbers
        self._delete = delete
        self._on_granted = on_granted
        self._on_failed = on_failed
        self._over = False
        hold.listen(self._reply)

    def ask(self, count: int, max_bytes: int) -> None:
        if not self._over:
            hold = self._hold
            hold.partition.submit(
                Receive(SubqueueKind.ACTIVE, hold.receiver, count, max_bytes, delete=self._delete, session=hold.lock_id)
            )

    def stop(self, on_stopped: Callable[[], None]) -> None:
        hold = self._hold
        command = CancelReceive(self._numbers.next(), SubqueueKind.ACTIVE, hold.receiver)
        hold.partition.submit(command, lambda _: on_stopped())

    def close(self) -> None:
        """The receiver is gone: the session is free at once."""
        if not self._over:
            self._over = True
            self._hold.release()

    def _reply(self, reply: Any) -> None:
        """Messages, or the end: `SessionEnded`, or `Failed`, since session locks are in memory only and end when their
        store fails."""
        if isinstance(reply, Granted):
            self._on_granted(self._hold.partition, reply)
        elif not self._over:
            self._over = True
            if isinstance(reply, Failed):
                self._hold.release()  # when only the way to the store is cut, the next holder need not wait
            else:
                self._hold.forget()
            self._on_failed(SessionLockLost(self._entity, self._hold.session))
