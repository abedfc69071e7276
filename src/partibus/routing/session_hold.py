"""The lock of one receiver on a session."""

from typing import Any

from partibus.partition.protocol.commands import AcceptSession, CancelAccept, ReleaseSession
from partibus.partition.protocol.replies import ReceiveRefused, SessionAccepted
from partibus.partition.runtime.dispatcher import OnReply
from partibus.routing.partitions import Numbers, PartitionHandle


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
