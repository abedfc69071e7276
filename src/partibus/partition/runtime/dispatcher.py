"""The dispatcher of replies: it knows the callback of each request.

Replies leave one after the other. A reply to a command that another reply causes (a grant makes its receiver ask for
more) is queued behind the waiting ones, not nested in them.
"""

from collections import deque
from collections.abc import Callable, Container
from functools import partial
from typing import Any, Final

from partibus.partition.protocol import commands as c
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.keys import SubqueueKind

OnReply = Callable[[Any], None]
DELETED: Final = "the entity was deleted"
"""Why commands of a dropped partition fail."""


class ReplyDispatcher:
    """Requests and receivers by number, and replies on their way."""

    __slots__ = ("_call_soon", "_delivering", "breaks", "outbox", "receivers", "requests")

    def __init__(self, call_soon: Callable[[Callable[[], None]], None]) -> None:
        """Begin without requests. ``call_soon`` makes a call after the current event has been handled."""
        self._call_soon = call_soon
        self.breaks = 0
        """The number of unexpected exceptions in callbacks."""
        self.requests: dict[int, tuple[int, OnReply]] = {}
        """The row of each request's partition, and the callback that expects the reply."""
        self.receivers: dict[int, OnReply] = {}
        """The callback of each receiver, by number."""
        self.outbox: deque[tuple[OnReply, Any]] = deque()
        """Callbacks and replies for the next `deliver`."""
        self._delivering = False

    def forget(self, request: int) -> None:
        """Forget a request whose asker has stopped waiting."""
        self.requests.pop(request, None)

    def register(self, receiver: int, on_granted: OnReply) -> None:
        """Register the callback for grants to a receiver."""
        self.receivers[receiver] = on_granted

    def unregister(self, receiver: int) -> None:
        """Remove a receiver."""
        self.receivers.pop(receiver, None)

    def whose(self, reply: r.Reply) -> OnReply | None:
        """Return the callback for a reply, or None when its asker has ended. A request is answered once."""
        if type(reply) is r.Granted or type(reply) is r.SessionEnded or type(reply) is r.ReceiveRefused:
            return self.receivers.get(reply.receiver)
        expected = self.requests.pop(reply.request, None)  # type: ignore[union-attr]
        return None if expected is None else expected[1]

    def put(self, call: OnReply, reply: Any) -> None:
        """Queue a reply for the next `deliver`."""
        self.outbox.append((call, reply))

    def deliver(self) -> None:
        """Deliver the queued replies. An exception in a callback is raised on the loop and holds no other reply up."""
        if self._delivering:
            return
        self._delivering = True
        outbox = self.outbox
        while outbox:
            call, reply = outbox.popleft()
            try:
                call(reply)
            except Exception as error:  # noqa: BLE001 (it is the callback's, and these replies are not)
                self.breaks += 1
                self._call_soon(partial(_raise, error))
        self._delivering = False

    def refuse(self, command: w.Input | w.Load, message: str, *, full: bool = False) -> None:
        """Tell the asker that nothing of a command was done, once. A receiver is forgotten: it begins anew."""
        if isinstance(command, c.Receive):
            number = command.receiver
            if (call := self.receivers.pop(number, None)) is not None:
                self.put(call, r.Failed(number, False, full, message))
        elif (expected := self.requests.pop(number := _request_of(command), None)) is not None:
            self.put(expected[1], r.Failed(number, False, full, message))

    def fail_requests(self, message: str, *, rows: Container[int] | None = None, full: bool = False) -> None:
        """Fail the requests that still wait, those of ``rows`` or all of them; nothing was done for them."""
        for number, (row, call) in list(self.requests.items()):
            if rows is None or row in rows:
                del self.requests[number]
                self.put(call, r.Failed(number, False, full, message))

    def fail_receivers(self, message: str, *, full: bool = False) -> None:
        """Tell every receiver of a failure, and forget it."""
        for number in list(self.receivers):
            self.put(self.receivers.pop(number), r.Failed(number, False, full, message))


def given_back(reply: r.Reply) -> list[c.Command]:
    """Return the commands that undo a reply without a taker.

    Locked messages must not wait for the end of the lock, and the receiver must get no further grants.
    """
    if isinstance(reply, r.SessionAccepted):
        return [c.ReleaseSession(reply.lock_id)]
    if isinstance(reply, r.GroupsGranted) and reply.entries:
        return [
            c.Settle(0, SubqueueKind.ACTIVE, c.Outcome.RELEASE, [(reply.lock_id, entry.pos) for entry in reply.entries])
        ]
    if not isinstance(reply, r.Granted | r.Locked):
        return []
    tokens = [(reply.lock_id, entry.pos) for entry in reply.entries]
    released = c.Settle(0, reply.kind, c.Outcome.RELEASE, tokens)
    if isinstance(reply, r.Locked):
        return [released]
    # They are locked or reserved, never both; the partition ignores the command that does not apply.
    return [c.CancelReceive(0, reply.kind, reply.receiver), released, c.ReturnReserved(reply.kind, tokens)]


def _request_of(command: w.Input | w.Load) -> int:
    """Return the number of the request that a command is, or that a load was made for; 0: there is no asker."""
    asker: object = command
    if isinstance(
        command,
        w.DeferredLoad
        | w.ScheduledCount
        | w.SessionStateLoad
        | w.SessionListLoad
        | w.SessionResume
        | w.GroupsLoad
        | w.SlotScan
        | w.RangeLoad
        | w.DispositionsLoad,
    ):
        asker = command.command
    elif isinstance(command, w.RangeScanLoad):
        asker = command.range_scan
    elif isinstance(command, w.BodyLoad):
        asker = command.then
    return getattr(asker, "request", 0)


def _raise(error: Exception) -> None:
    raise error
