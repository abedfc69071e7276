"""The driver of one AMQP engine over one socket: bytes in, events to the links' owners, bytes out.

All work happens inside `wait` and `poll`, on the caller's thread: there is no background work. The broker closes the
connection of a client that is not used for longer than the broker's idle time-out (240 s).
"""

import time
from collections.abc import Callable

from partibus.amqp import (
    AmqpError,
    Attached,
    Closed,
    Connection,
    Deliveries,
    Delivery,
    Detached,
    Disposed,
    Event,
    Link,
    Session,
    SessionClosed,
)
from partibus.client.errors import ClientError, ConnectFailed, ConnectionLost, LinkLost, TimedOut, error_from
from partibus.client.socket_stream import SocketStream


class LinkOwner:
    """The receiver of a link's events, stored in `Link.user`."""

    def __init__(self, name: str) -> None:
        self.name = name
        """The name for error texts: ``sender of 'orders'``."""
        self.error: ClientError | None = None
        """The reason why the link has ended; None while it is open."""

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        """Process messages that arrived on the link."""

    def on_disposed(self, event: Disposed) -> None:
        """Process the peer's dispositions of deliveries on the link."""

    def on_over(self, error: ClientError) -> None:
        """Record the error that ended the link, unless one is known already."""
        if self.error is None:
            self.error = error

    def check(self) -> None:
        """Raise the error that ended the link, if any."""
        if self.error is not None:
            raise self.error


class Driver:
    """The driver of one connection, used by one thread at a time."""

    def __init__(self, engine: Connection, stream: SocketStream, peer: str) -> None:
        self.engine = engine
        self.peer = peer
        self._stream = stream
        self._failure: ClientError | None = None
        self._closing = False
        self._owners: dict[Session, list[LinkOwner]] = {}
        self._next_tick = 0.0
        self.upkeep: Callable[[], None] | None = None
        """A function called every few seconds while the connection is in use; it may wait for answers itself."""

    # -- links -----------------------------------------------------------------------------------------

    def begin(self) -> Session:
        """Begin a session, usable at once because requests are pipelined."""
        session = self.engine.begin()
        self._owners[session] = []
        return session

    def adopt(self, link: Link, owner: LinkOwner) -> None:
        """Route the events of ``link`` to ``owner``."""
        link.user = owner
        self._owners[link.session].append(owner)

    def await_open(self, link: Link, owner: LinkOwner, timeout_s: float) -> None:
        """Wait until the broker has attached the link. Raises the broker's error if it refuses."""
        self.wait(lambda: link.is_open or owner.error is not None, timeout_s, f"opening {owner.name}")
        owner.check()

    def end(self, session: Session) -> None:
        """End one of this client's sessions with its links, without waiting for the answer."""
        self._owners.pop(session, None)
        if self._failure is None:
            session.end()
            self._flush()

    # -- waiting ---------------------------------------------------------------------------------------

    def wait(self, done: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Work until ``done``.

        Raises `TimedOut` after ``timeout_s``, and `ConnectionLost` when the connection ends.
        """
        deadline = time.monotonic() + timeout_s
        self._pass(0)
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimedOut(f"{what}: no answer from {self.peer} within {timeout_s:g} s")
            self._pass(left)

    def wait_quietly(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Work until ``done``, and return False when the time is over."""
        try:
            self.wait(done, timeout_s, "")
        except TimedOut:
            return False
        return True

    def poll(self) -> None:
        """Send pending output and process pending input, without waiting."""
        self._pass(0)

    def _pass(self, timeout_s: float) -> None:
        """Do one round of socket work, waiting at most ``timeout_s`` for the socket."""
        if self._failure is not None:
            raise self._failure
        try:
            self._write()
            data = self._stream.read()
            if not data and timeout_s > 0:
                self._stream.wait(min(timeout_s, self.engine.tick_interval))
                self._stream.send_more()
                data = self._stream.read()
            if data:
                self._dispatch(self.engine.receive_data(data))
            self._tick()
            self._write()
        except ConnectionLost as error:
            self._fail(error)
        if self._failure is not None:
            raise self._failure

    def _write(self) -> None:
        if self.engine.bytes_buffered:
            self._stream.write(self.engine.data_to_send())
        else:
            self._stream.send_more()

    def _flush(self) -> None:
        try:
            self._write()
        except ConnectionLost as error:
            self._fail(error)

    def _tick(self) -> None:
        """Run timers after reading, so that frames received while the client was idle count for the idle time-out."""
        now = time.monotonic()
        if now >= self._next_tick:
            self._next_tick = now + self.engine.tick_interval
            self._dispatch(self.engine.tick(now))
            upkeep, self.upkeep = self.upkeep, None  # It may come here again.
            if upkeep is not None:
                try:
                    upkeep()
                finally:
                    self.upkeep = upkeep

    # -- events ----------------------------------------------------------------------------------------

    def _dispatch(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, (Deliveries, Disposed, Detached)):
                owner = event.link.user
                if not isinstance(owner, LinkOwner):
                    continue
                if isinstance(event, Deliveries):
                    owner.on_deliveries(event.deliveries)
                elif isinstance(event, Disposed):
                    owner.on_disposed(event)
                elif event.by_peer:
                    owner.on_over(error_from(owner.name, event.error, LinkLost))
            elif isinstance(event, SessionClosed):
                for owner in self._owners.pop(event.session, ()):
                    owner.on_over(error_from(f"the session of {owner.name} ended", event.error, LinkLost))
            elif isinstance(event, Closed):
                self._fail(self._closed(event.error, event.by_peer))
            elif isinstance(event, Attached) and event.link.awaits_answer:
                event.link.refuse(AmqpError("amqp:not-allowed", "this client offers no nodes"))

    def _closed(self, error: AmqpError | None, by_peer: bool) -> ClientError:
        kind = ConnectionLost if self.engine.peer is not None else ConnectFailed
        if by_peer:
            return error_from(f"{self.peer} closed the connection", error, kind)
        return error_from(f"this client closed the connection to {self.peer}", error, kind)

    def _fail(self, error: ClientError) -> None:
        if self._failure is not None:
            return
        self._failure = error
        for owners in self._owners.values():
            for owner in owners:
                owner.on_over(error)
        self._owners.clear()

    # -- end -------------------------------------------------------------------------------------------

    def close(self, timeout_s: float) -> None:
        """Close the connection and wait briefly for the answer. Idempotent."""
        if self._closing:
            return
        self._closing = True
        try:
            if self._failure is None:
                self.engine.close()
                self.wait_quietly(lambda: self.engine.is_closed, timeout_s)
        except ClientError:
            pass  # The peer's goodbye, or its absence: the connection is over either way.
        finally:
            self._failure = self._failure or ConnectionLost(f"the connection to {self.peer} was closed on our side")
            self._stream.close()
