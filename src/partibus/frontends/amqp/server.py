"""The sockets of this front end; only this file uses them."""

import asyncio
import logging
from collections.abc import Callable
from secrets import token_hex
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, cast

from msgspec.structs import replace

from partibus.amqp import AmqpError
from partibus.amqp.endpoint import State
from partibus.amqp.errors import CONNECTION_FORCED, INTERNAL_ERROR
from partibus.frontends.admission import Admission, SignIns
from partibus.frontends.amqp import CALLED, WEBSOCKET_PATH
from partibus.frontends.amqp.ingress import Ingress
from partibus.frontends.amqp.peer import Peer
from partibus.namespace.broker import Broker
from partibus.namespace.namespaces import Namespaces
from partibus.partition.protocol.host import overloaded_stores
from partibus.units.account import Account
from partibus.units.fair_scheduler import PIECE_BYTES, FairScheduler

if TYPE_CHECKING:
    from partibus.frontends.origins import Origins

log = logging.getLogger(__name__)

_OPEN: Final = State.OPEN
_CLOSED: Final = State.CLOSED
_CLOSE_SENT: Final = State.CLOSE_SENT

WAITING_BYTES_MAX = 256 * 1024
"""The bytes of one connection that may wait for its turn; past it the broker stops reading. The loop reads as much at
once, so the maximum is twice that, far below `ConnectionLimits.incoming_bytes`.
"""
_HEADER_BYTES = 64
"""Room for the protocol headers that a client writes in one piece with its first frame."""
WRITE_BYTES = 256
"""The number of bytes charged for a small read or write (`partibus.units.account.Account.moved`)."""


def is_websocket_path(path: str) -> bool:
    """Tell whether a path serves AMQP (section 1.4): some clients send a prefix, some a slash at the end."""
    return path.rstrip("/").lower().endswith(WEBSOCKET_PATH)


class PeerProtocol(asyncio.Protocol):
    """One connection: bytes between a transport and a `Peer`. A `partibus.units.account.Reader` of its namespace."""

    def __init__(self, server: "AmqpServer") -> None:
        self._server = server
        self._loop = server.loop
        self.peer = Peer(
            server.namespaces,
            server.ingress,
            self._flush_soon,
            self._is_congested,
            self._call_later,
            self._on_claimed,
            server.sign_ins,
        )
        self._limits = server.unclaimed_limits
        self._waiting_bytes_max = min(WAITING_BYTES_MAX, self._limits.unclaimed_bytes)
        self.when_claimed: Callable[[], None] = _do_nothing
        """Called when the client has shown its first claim."""
        self._transport: asyncio.Transport | None = None
        self._encrypts = False
        """Whether the transport encrypts: each piece that it is given becomes a record of its own."""
        self._flushing = False
        self._congested = False
        self._congested_links = False
        self._reading = True
        self._awaiting_relief = False
        self._later = bytearray()
        """Bytes that were read but not decoded yet."""
        self._waits = False
        """Whether the connection is queued in the fair scheduler."""
        self._lost = False
        """Whether the peer has been told that the connection is lost."""
        self._scheduler = server.scheduler
        self._ticker: asyncio.TimerHandle | None = None
        self._awaiting_close = False
        """Whether the timer ends the connection, because the client has not answered the broker's close."""

    # -- the transport's calls ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register a new connection."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not registered as such
        self._encrypts = transport.get_extra_info("ssl_object") is not None
        self.peer.called = transport.get_extra_info(CALLED) or _server_name(transport)
        limits = self._limits
        self._transport.set_write_buffer_limits(high=limits.outgoing_bytes)
        self._server.protocols.add(self)
        self._tick_after(limits.handshake_timeout_s, self._check_handshake)
        peername = transport.get_extra_info("peername")
        self.peer.host = peername[0] if isinstance(peername, tuple) else None
        self._server.admission.enter(self, self.peer.host)

    def drop(self) -> None:
        """Abort the connection (`partibus.frontends.admission.Connection`)."""
        if self._transport is not None:
            self._transport.abort()

    def _on_claimed(self) -> None:
        """Raise the limits to those of a client that has shown a claim."""
        self._server.admission.claim(self)
        self._limits = self._server.limits
        self._waiting_bytes_max = WAITING_BYTES_MAX
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=self._limits.outgoing_bytes)
        self.when_claimed()

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client."""
        account = self.peer.account
        scheduler = self._scheduler
        if self._waits or not scheduler.begin(account):
            self._later += data
            self._wait_for_turn()
        else:
            waits, self._flushing = self._flushing, True  # the flush below needs no other one at the end of the turn
            try:
                self.peer.receive_data(data)
            except Exception:  # noqa: BLE001 (logged there)
                self._fail()
            connection = self.peer.connection
            if waits or connection.output.size or connection.state is not _OPEN:  # a handshake has an output of its own
                # Immediate answers leave before output for other connections, which waits for the end of the turn: a
                # sender to an express queue gets its answer before its receiver is woken.
                self._flush()
            else:
                self._flushing = False
            scheduler.end(account, len(data) + WRITE_BYTES)
            if self.peer.more_to_read:
                self._wait_for_turn()
        if (
            self._waits
            or overloaded_stores
            or self.peer.overloaded_nodes
            or not self._reading
            or self._transport is None
            # Not only what a flush has written: a websocket answers pings itself.
            or self._transport.get_write_buffer_size() > self._limits.unsent_bytes_max
        ):
            self._balance_reading()

    @property
    def account(self) -> Account:
        """The account of the namespace in which the client has shown a claim; before, of the default one."""
        return self.peer.account

    @property
    def held_bytes(self) -> int:
        """The memory of its input and output."""
        connection = self.peer.connection
        unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return len(self._later) + connection.partial_bytes + connection.bytes_buffered + unsent

    def read_piece(self) -> bool:
        """Decode some of the input in this connection's turn."""
        self._waits = False
        if self._lost:
            return False
        piece = b""
        if not self.peer.more_to_read:
            piece = bytes(self._later[:PIECE_BYTES])
            del self._later[:PIECE_BYTES]
        self.account.moved += len(piece) + WRITE_BYTES
        self._take(piece)
        if self.peer.connection.must_flush:  # most requests are answered later
            self._flush_soon()
        if self._transport is None:
            # The client has closed the connection: the broker attaches no further links for it.
            self._waits = self._reads_on() or (bool(self._later) and not self.peer.connection.ends_unread)
            if not self._waits:
                self._lose()
            return self._waits
        self._waits = bool(self._later) or self.peer.more_to_read
        self._balance_reading()
        return self._waits

    def _wait_for_turn(self) -> None:
        if not self._waits:
            self._waits = True
            self._scheduler.add(self)

    def _take(self, data: bytes) -> None:
        try:
            self.peer.receive_data(data)
        except Exception:  # noqa: BLE001 (logged there)
            self._fail()

    def _fail(self) -> None:
        """End this connection and no other after a bug of ours."""
        log.exception("internal error: a connection ends")
        self.peer.close(AmqpError(INTERNAL_ERROR, "An error inside of the broker; its log says more."))

    def pause_writing(self) -> None:
        """Note that the transport's buffer is full."""
        self._congested = True

    def resume_writing(self) -> None:
        """Go on after the transport's buffer has emptied."""
        self._congested = False
        self.peer.resume()
        self._flush_soon()

    def eof_received(self) -> bool:
        """Handle the end of the client's input."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Process the remaining input, mostly settlements of a departing client, then end.

        A little is done at once, more in turns: otherwise connections that open, send and close would take the time of
        others.
        """
        self._transport = None
        self._server.admission.leave(self)
        self._congested = True  # nothing more is asked for that would have to be sent
        if self._ticker is not None:
            self._ticker.cancel()
        if len(self._later) > PIECE_BYTES or self._reads_on():
            return  # its turn will come
        if self._later:
            account, began_ns = self.account, perf_counter_ns()
            piece, self._later = bytes(self._later), bytearray()
            self._take(piece)
            account.spend(perf_counter_ns() - began_ns)
            account.moved += len(piece) + WRITE_BYTES
            if self._reads_on():
                self._wait_for_turn()
                return
        self._lose()

    def _reads_on(self) -> bool:
        """Tell whether input that was taken waits for another turn, and matters after the end of the connection."""
        connection = self.peer.connection
        return self.peer.is_behind or (connection.more_to_read and not connection.ends_unread)

    def _lose(self) -> None:
        if not self._lost:
            self._lost = True
            self._server.protocols.discard(self)
            self.peer.on_lost()
            self.when_claimed = _do_nothing
            self.peer.release()
            del self.peer  # it refers to this object

    # -- sending -----------------------------------------------------------------------------------------------------

    def _is_congested(self) -> bool:
        """Tell whether too much is unsent, in the transport or in this turn of the loop."""
        if self._congested or self.peer.connection.output.size > self._limits.outgoing_bytes:
            self._congested_links = True
            return True
        return False

    def _flush_soon(self) -> None:
        """Schedule one write for all output of this turn of the loop."""
        if not self._flushing:
            self._flushing = True
            self._scheduler.soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self._transport is None:
            return
        pieces = self.peer.connection.pieces_to_send()
        if pieces:
            self.peer.account.moved += sum(map(len, pieces)) + WRITE_BYTES
            if self._encrypts and len(pieces) > 1:
                pieces = [b"".join(pieces)]
            self._transport.writelines(pieces)
        if self._congested_links and not self._congested:
            self._congested_links = False
            self.peer.resume()
            self._flush_soon()
        state = self.peer.connection.state
        if state is _CLOSE_SENT and not self._awaiting_close:
            self._awaiting_close = True
            self._tick_after(self._server.limits.handshake_timeout_s, self._transport.abort)
        if state is not _CLOSED:
            # A client that reads and has taken the answers is checked when more arrives.
            if not self._reading or self._transport.get_write_buffer_size() > self._limits.unsent_bytes_max:
                self._balance_reading()
        elif not self._transport.is_closing():
            self._transport.close()
            self._tick_after(self._server.limits.handshake_timeout_s, self._transport.abort)

    # -- reading -----------------------------------------------------------------------------------------------------

    def _balance_reading(self) -> None:
        """Pause or resume reading, the last resort of back-pressure (D24).

        It applies to a client that sends without credit, and to one that sends requests but does not read the answers.
        """
        if self._transport is None or self._transport.is_closing():
            return
        overloaded = bool(overloaded_stores or self.peer.overloaded_nodes) and self.peer.overloaded
        if overloaded and not self._awaiting_relief:
            self._awaiting_relief = True
            self.peer.when_relieved(self._on_relieved)
        unsent_max = self._limits.unsent_bytes_max
        unsent = self._transport.get_write_buffer_size()
        more = self.peer.more_to_read or len(self._later) >= self._waiting_bytes_max
        reading = not overloaded and not more and unsent <= unsent_max
        if reading is self._reading:
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _on_relieved(self) -> None:
        self._awaiting_relief = False
        self._balance_reading()

    # -- time --------------------------------------------------------------------------------------------------------

    def _check_handshake(self) -> None:
        """Close a connection whose client has not opened it in time."""
        if self.peer.connection.peer is None:
            if self._transport is not None:
                self._transport.abort()
            return
        self._tick()

    def _tick(self) -> None:
        self.peer.tick(self._loop.time())
        self._tick_after(self.peer.connection.tick_interval, self._tick)
        self._flush_soon()

    def check_claims(self) -> None:
        """Re-check every claim after a policy change."""
        self.peer.check_claims()
        self._flush_soon()

    def _call_later(self, delay_ms: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return self._loop.call_later(delay_ms / 1000, call)

    def _tick_after(self, delay_s: float, call: Callable[[], None]) -> None:
        """Set the connection's only timer, which replaces the previous one."""
        if self._ticker is not None:
            self._ticker.cancel()
        self._ticker = self._loop.call_later(delay_s, call)

    def close(self, error: AmqpError) -> None:
        """Close the connection and tell the client the reason. Does nothing after its end."""
        if not self._lost:
            self.peer.close(error)
            self._flush()


class AmqpServer:
    """The listeners and their connections."""

    def __init__(
        self,
        namespaces: Namespaces,
        loop: asyncio.AbstractEventLoop,
        scheduler: FairScheduler | None = None,
        admission: Admission | None = None,
    ) -> None:
        """Prepare to listen.

        ``turns``, the fair scheduler of namespaces, and ``admission``, of connections, are shared with other front ends
        on the loop.
        """
        self.sign_ins = SignIns(loop.time)
        """The failed sign-ins, shared with HTTP."""
        self.admission = admission or Admission(namespaces.default.limits.admission, loop.time)
        self.namespaces = namespaces
        self.limits = limits = namespaces.default.limits.connection
        self.unclaimed_limits = replace(
            limits,
            outgoing_bytes=min(limits.outgoing_bytes, limits.unclaimed_bytes),
            unsent_bytes_max=min(limits.unsent_bytes_max, limits.unclaimed_bytes),
        )
        """The limits of connections that have shown no claim."""
        self.origins: Origins | None = None
        """The pages that may open websockets; None: the broker's own."""
        self.loop = loop
        self.ingress = Ingress(_message_ids())
        self.protocols: set[PeerProtocol] = set()
        self.scheduler = scheduler or FairScheduler(loop.call_soon, perf_counter_ns)
        self._listener: asyncio.Server | None = None
        self._watched: set[Broker] = set()
        for broker in namespaces:
            self._watch(broker)
        namespaces.on_changed.append(self._watch)
        namespaces.on_deleted.append(self._close_those_of)

    async def start(self, host: str, port: int, *, shared: bool = False, queue: int = 100) -> int:
        """Listen and return the port, which the system chooses if ``port`` is 0. Raises OSError.

        ``shared``: share the port with other processes that also set this. ``queue``: connections that the system holds
        until they are accepted.
        """
        self._listener = await self.loop.create_server(self.make_protocol, host, port, reuse_port=shared, backlog=queue)
        return int(self._listener.sockets[0].getsockname()[1])

    def make_protocol(self) -> PeerProtocol:
        """Return the protocol of a new connection, accepted by any listener."""
        return PeerProtocol(self)

    def make_websocket_protocol(self) -> asyncio.Protocol:
        """Return the protocol inside a websocket, beginning with the client's handshake."""
        # Importing the library takes 30 ms, and only brokers with such clients need it.
        from partibus.frontends.amqp.websocket import Websocket

        limits = self.limits
        inner = self.make_protocol()
        frame_bytes_max = min(limits.websocket_frame_bytes_max, limits.unclaimed_bytes + _HEADER_BYTES)
        websocket = Websocket(inner, frame_bytes_max, limits.handshake_timeout_s, self.origins)
        inner.when_claimed = lambda: websocket.take_frames_of(limits.websocket_frame_bytes_max)
        return websocket

    def _watch(self, broker: Broker) -> None:
        if broker not in self._watched:
            self._watched.add(broker)
            broker.access.on_changed.append(lambda: self._check_claims_soon(broker))

    def _close_those_of(self, broker: Broker) -> None:
        """Close the connections of a deleted namespace."""
        self._watched.discard(broker)
        error = AmqpError(CONNECTION_FORCED, f"The namespace '{broker.namespace.name}' was deleted.")
        for protocol in list(self.protocols):
            if protocol.peer.broker is broker:
                # A request on this very connection may have deleted it.
                self.loop.call_soon(protocol.close, error)

    def _check_claims_soon(self, broker: Broker) -> None:
        """Check claims in a later turn: a request of one of the connections may have changed the policies."""
        self.loop.call_soon(self._check_claims, broker)

    def _check_claims(self, broker: Broker) -> None:
        for protocol in list(self.protocols):
            if protocol.peer.broker is broker:
                protocol.check_claims()

    def stop_listening(self) -> None:
        """Stop accepting connections."""
        if self._listener is not None:
            self._listener.close()

    def close_connections(self, reason: str) -> None:
        """Tell every client to reconnect elsewhere or later."""
        for protocol in list(self.protocols):
            protocol.close(AmqpError(CONNECTION_FORCED, reason))


def _do_nothing() -> None:
    """Stand for a callback that is not needed."""


def _server_name(transport: asyncio.BaseTransport) -> str | None:
    """Return the server name in the client's TLS handshake, where `partibus.node.tls` has noted it."""
    name: str | None = getattr(transport.get_extra_info("ssl_object"), "server_name", None)
    return name


def _message_ids() -> Callable[[], str]:
    """Return a source of ids of 32 hexadecimal digits.

    The process's random half makes them unique, and the counted half cheap.
    """
    prefix = token_hex(8)
    count = 0

    def new_message_id() -> str:
        nonlocal count
        count += 1
        return f"{prefix}{count:016x}"

    return new_message_id
