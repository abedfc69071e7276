"""Who waits for answers of a store's partitions, and the way out for them.

Replies leave one after the other: what one leads to (a grant makes its receiver ask for more) is queued behind those
that are there, not nested in them.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from partibus.partition.protocol import commands as c
from partibus.partition.protocol import load_requests as w
from partibus.partition.protocol import replies as r

OnReply = Callable[[Any], None]


class ReplyDispatcher:
    """Requests and receivers by number, and replies on their way."""

    __slots__ = ("_call_soon", "_delivering", "_outbox", "_receivers", "_requests", "breaks")

    def __init__(self, call_soon: Callable[[Callable[[], None]], None]) -> None:
        """``call_soon`` makes a call when what is being handled now has been."""
        self._call_soon = call_soon
        self.breaks = 0
        """Unexpected exceptions in callbacks."""
        self._requests: dict[int, OnReply] = {}
        self._receivers: dict[int, OnReply] = {}
        self._outbox: deque[tuple[OnReply, Any]] = deque()
        self._delivering = False

    def expect(self, request: int, on_reply: OnReply) -> None:
        """A request was made."""
        self._requests[request] = on_reply

    def forget(self, request: int) -> None:
        """Whoever made a request waits for its answer no longer."""
        self._requests.pop(request, None)

    def register(self, receiver: int, on_granted: OnReply) -> None:
        """Say where grants for a receiver go."""
        self._receivers[receiver] = on_granted

    def unregister(self, receiver: int) -> None:
        """The receiver is gone."""
        self._receivers.pop(receiver, None)

    def whose(self, reply: r.Reply) -> OnReply | None:
        """Whom a reply is for; None when nobody is there. A request is answered once."""
        if type(reply) is r.Granted or type(reply) is r.SessionEnded or type(reply) is r.ReceiveRefused:
            return self._receivers.get(reply.receiver)
        return self._requests.pop(reply.request, None)  # type: ignore[union-attr]

    def put(self, call: OnReply, reply: Any) -> None:
        """Have a reply leave with the next `deliver`."""
        self._outbox.append((call, reply))

    def deliver(self) -> None:
        """Let the replies go. An exception in a callback is raised on the loop and holds no other reply up."""
        if self._delivering:
            return
        self._delivering = True
        outbox = self._outbox
        while outbox:
            call, reply = outbox.popleft()
            try:
                call(reply)
            except Exception as error:  # noqa: BLE001 (it is the callback's, and these replies are not)
                self.breaks += 1
                self._call_soon(partial(_raise, error))
        self._delivering = False

    def refuse(self, command: w.Input | w.Load, message: str, *, full: bool = False) -> None:
        """Nothing of a command was done: tell who asked, once. A receiver is forgotten: it begins anew."""
        if isinstance(command, c.Receive):
            number = command.receiver
            call = self._receivers.pop(number, None)
        else:
            number = _request_of(command)
            call = self._requests.pop(number, None)
        if call is not None:
            self.put(call, r.Failed(number, False, full, message))

    def fail_requests(self, message: str, *, full: bool = False) -> None:
        """Requests that still wait for a load have done nothing yet, and nobody will answer them."""
        for number, call in self._requests.items():
            self.put(call, r.Failed(number, False, full, message))
        self._requests.clear()

    def fail_receivers(self, message: str, *, full: bool = False) -> None:
        """Every receiver is told and forgotten."""
        for number, call in self._receivers.items():
            self.put(call, r.Failed(number, False, full, message))
        self._receivers.clear()


def given_back(reply: r.Reply) -> list[c.Command]:
    """What to tell a partition whose answer nobody is there to take: what was locked must not wait for the lock to end,
    nor be granted again."""
    if isinstance(reply, r.SessionAccepted):
        return [c.ReleaseSession(reply.lock_id)]
    if not isinstance(reply, r.Granted | r.Locked):
        return []
    tokens = [(reply.lock_id, entry.pos) for entry in reply.entries]
    released = c.Settle(0, reply.kind, c.Outcome.RELEASE, tokens)
    if isinstance(reply, r.Locked):
        return [released]
    # Locked or reserved: no message is both, and what the other command names is not found.
    return [c.CancelReceive(0, reply.kind, reply.receiver), released, c.ReturnReserved(reply.kind, tokens)]


def _request_of(command: w.Input | w.Load) -> int:
    """The number of the request that a command is, or that a load was made for; 0: nobody waits."""
    asker: object = command
    if isinstance(
        command,
        w.DeferredLoad
        | w.ScheduledCount
        | w.SessionStateLoad
        | w.SessionListLoad
        | w.SessionResume
        | w.RangeLoad
        | w.FatesLoad,
    ):
        asker = command.command
    elif isinstance(command, w.SweepLoad):
        asker = command.sweep
    elif isinstance(command, w.BodyLoad):
        asker = command.then
    return getattr(asker, "request", 0)


def _raise(error: Exception) -> None:
    raise error
