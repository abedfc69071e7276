"""A session under lock for one receiver."""

from typing import Any

from partibus.partition.protocol.commands import AcceptSession, CancelAccept, ReleaseSession
from partibus.partition.protocol.replies import ReceiveRefused, SessionAccepted
from partibus.partition.runtime.dispatcher import OnReply
from partibus.routing.partitions import Numbers, PartitionHandle


class SessionHold:
    """Made with the request for it; ``session``, ``lock_id`` and ``until_ms`` are true from `accepted` on."""

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
        """The next owner of the partition knows of it, too."""
        self._request = numbers.next()
        self._listener: OnReply | None = None
        self._on_reply: OnReply | None = None

    # -- asking ------------------------------------------------------------------------------------------------------

    def ask(self, session: str | None, on_reply: OnReply, *, wait: bool) -> None:
        """Ask the partition for a session, or for any; ``on_reply`` may be called before this returns, and once more
        after `cancel` by what was on its way."""
        self._on_reply = on_reply
        self.partition.register(self.receiver, self._tell)
        self.partition.submit(AcceptSession(self._request, self.receiver, session, wait), on_reply)

    def cancel(self) -> None:
        """The answer is not wanted any more."""
        self.forget()
        self.partition.submit(CancelAccept(0, self._request))
        self.partition.forget(self._request)

    def accepted(self, reply: SessionAccepted) -> None:
        """The partition has locked a session for this receiver."""
        self.session, self.lock_id, self.until_ms = reply.session, reply.lock_id, reply.until_ms
        self.is_stored = reply.is_stored

    # -- holding -----------------------------------------------------------------------------------------------------

    def listen(self, listener: OnReply) -> None:
        """Say where the session's messages and its end go."""
        self._listener = listener

    def resume(self, held: list[int], on_reply: OnReply) -> None:
        """Its partition has another owner, or was out of reach: go on with the session there. ``held``: positions of
        the messages that the holder has. The answer may come before this returns."""
        self.partition.register(self.receiver, self._tell)
        command = AcceptSession(self._request, self.receiver, self.session, resumes=self.lock_id, held=held)
        self.partition.submit(command, on_reply)

    def release(self) -> None:
        """The holder is gone: what was handed out goes back to its place, uncounted."""
        self.forget()
        self.partition.submit(ReleaseSession(self.lock_id))

    def forget(self) -> None:
        """Nobody listens any more."""
        self._listener = self._on_reply = None
        self.partition.unregister(self.receiver)

    def _tell(self, reply: Any) -> None:
        if self._listener is not None:
            self._listener(reply)
        elif isinstance(reply, ReceiveRefused) and self._on_reply is not None:
            # Who waits for a session is told as a receiver. Nothing else comes before one is held but its store's
            # failure, and of that the request is told, too.
            self.partition.forget(self._request)
            self._on_reply(reply)
