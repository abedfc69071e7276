"""The connection [2.4], without socket and clock: bytes in, events out; calls in, bytes out.

    conn = Connection(server=True)
    for event in conn.receive_data(data): ...     # never raises because of the peer's bytes
    transport.write(conn.data_to_send())

The engine reports a protocol violation to the peer by close or end, and to the owner by `Closed` or `SessionClosed`.
Our `open` is always the first performative sent, so the answer to a session that a client begins early follows it. The
owner calls `tick` every `tick_interval` seconds with the time of any clock that does not jump back. It sends
keep-alives and detects a silent peer.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf
from sys import maxsize
from typing import Any, Final

from partibus.amqp.codec.decoder import Decoding
from partibus.amqp.codec.fast import read_flow
from partibus.amqp.codec.performatives import Begin, Close, End, Open, decode_performative
from partibus.amqp.endpoint import ENDING, Move, State, after
from partibus.amqp.errors import (
    DECODE_ERROR,
    FRAMING_ERROR,
    ILLEGAL_STATE,
    INVALID_FIELD,
    NOT_ALLOWED,
    RESOURCE_LIMIT_EXCEEDED,
    AmqpError,
    DecodeError,
    PeerError,
    Scope,
    UsageError,
)
from partibus.amqp.events import Closed, Event, Opened, SessionClosed, SessionOpened
from partibus.amqp.frames import AMQP_FRAME, EMPTY_FRAME, HEADER, HEADER_BYTES, MIN_MAX_FRAME_SIZE, Output, frame
from partibus.amqp.keepalive import KeepAlive
from partibus.amqp.limits import Limits
from partibus.amqp.pool import NumberPool
from partibus.amqp.sasl import ClientHandshake, Login, Phase, ServerHandshake
from partibus.amqp.session import Session

_DONE: Final = Phase.DONE
_CLOSED: Final = State.CLOSED
"""An enum member takes ten times as long to look up as a global."""
_ATTACH: Final = 0x12
_FLOW: Final = 0x13
_TRANSFER: Final = 0x14
_DISPOSITION: Final = 0x15


class Connection:
    """One connection of a server or a client. `peer` is the peer's open; `user` belongs to the owner."""

    def __init__(self, *, server: bool, login: Login | None = None, limits: Limits | None = None) -> None:
        if server and login is not None:
            raise UsageError("a login belongs to a client; a server answers logins by answer_login")
        self.limits = limits or Limits()
        self.output = Output()
        self.peer: Open | None = None
        self.state = State.IDLE
        self.user: object = None
        self.max_frame_size_out = MIN_MAX_FRAME_SIZE
        self.link_count = 0
        self.partial_bytes = 0
        self.message_bytes_max = 0
        self.more_to_read = False
        """Whether received bytes are still unread (`Limits.performatives_at_once`). Call `receive_data` again, with no
        bytes.
        """
        self.ends_unread = False
        """Whether they are unread because of many begins and attaches, which a lost connection no longer needs."""
        self.ids_looked_at = 0
        self._performatives_left: float = inf
        """The frames other than transfers and dispositions that this call may still read."""
        self.decoding = Decoding(self.limits.nesting_max)
        self._handshake = ServerHandshake() if server else ClientHandshake(login)
        self._channels = NumberPool()
        self._sessions_in: dict[int, Session] = {}
        self._sessions_out: dict[int, Session] = {}
        self._rest: bytes | bytearray = b""
        self._rest_needs = 0
        self._keep_alive = KeepAlive(self.limits.idle_timeout_ms)

    # -- facts -----------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether the connection has ended, except for the remaining output of `data_to_send`."""
        return self.state is _CLOSED

    @property
    def sessions(self) -> list[Session]:
        """All sessions of the connection."""
        return list(self._sessions_out.values())

    @property
    def called(self) -> str | None:
        """The client's name for this server: the host name of its open, or else of its login."""
        opened = None if self.peer is None else self.peer.hostname
        return opened or (self._handshake.hostname if isinstance(self._handshake, ServerHandshake) else None)

    @property
    def bytes_buffered(self) -> int:
        """The number of bytes that `data_to_send` has not returned yet."""
        return self.output.size + self._handshake.output.size

    @property
    def must_flush(self) -> bool:
        """Whether there are bytes to send, or the connection has ended."""
        return self.output.size > 0 or self._handshake.output.size > 0 or self.state is _CLOSED

    # -- verbs -----------------------------------------------------------------------------------------

    def open(
        self,
        container_id: str,
        *,
        hostname: str | None = None,
        properties: dict[object, object] | None = None,
    ) -> None:
        """Send our open, ahead of all waiting frames. Does nothing if the connection has ended."""
        if self.state in ENDING:
            return
        self.state = after(self.state, Move.SEND_OPEN, "the connection")
        limits = self.limits
        if properties is None:
            idle_ms = limits.idle_timeout_ms or None
            opening = _open_frame(container_id, hostname, limits.max_frame_size, limits.channel_max, idle_ms)
        else:
            opening = frame(
                0,
                Open(
                    container_id=container_id,
                    hostname=hostname,
                    max_frame_size=limits.max_frame_size,
                    channel_max=limits.channel_max,
                    idle_time_out=limits.idle_timeout_ms or None,
                    properties=properties,
                ),
            )
        self.output.write_first(opening)

    def begin(self) -> Session:
        """Begin a session; `SessionOpened` follows."""
        if self.state in ENDING or self.state is State.IDLE:
            raise UsageError(f"the connection is {self.state.value}: open it before a session is begun")
        most = min(self.limits.channel_max, self.peer.channel_max if self.peer is not None else 0xFFFF) + 1
        if len(self._sessions_out) >= most:
            raise UsageError(f"the connection has {most} sessions, its most: end one first")
        session = self._new_session()
        session.write_begin()
        return session

    def change_limits(self, limits: Limits) -> None:
        """Apply other limits to the peer from now on, also on existing sessions.

        The advertised limits of frames, channels and handles stay.
        """
        self.limits = limits
        for session in self._sessions_out.values():
            session.limits = limits

    def close(self, error: AmqpError | None = None) -> None:
        """End the connection and all its sessions; `Closed` follows when the peer has answered."""
        if self.state in ENDING:
            return
        if self.state in (State.IDLE, State.OPEN_RECEIVED):
            self.open("closing")
        self.state = after(self.state, Move.SEND_CLOSE, "the connection")
        self._forget_sessions()
        self.output.write(_CLOSE_FRAME if error is None else frame(0, Close(error)))

    def abandon(self) -> None:
        """Forget all sessions: the transport is gone."""
        if self.state is not State.CLOSED:
            self._die()

    def answer_login(self, accepted: bool) -> list[Event]:
        """Answer a `PlainLogin`; return the events of bytes that the client sent ahead."""
        if not isinstance(self._handshake, ServerHandshake):
            raise UsageError("a client has no login to answer")
        events: list[Event] = []
        try:
            self._handshake.verdict(accepted)
        except PeerError as violation:
            self._fail(violation.error, events)
            return events
        self._rest_needs = 0
        return self.receive_data(b"")

    def data_to_send(self) -> bytes:
        """Return all bytes to send now. Frames wait for the handshake and for our open."""
        return b"".join(self.pieces_to_send())

    def pieces_to_send(self) -> list[bytes | memoryview]:
        """Return `data_to_send` in pieces to be written together, so that large payloads are not copied here."""
        pieces = self._handshake.output.take() if self._handshake.output.parts else []
        if self._handshake.phase is _DONE and self.state not in (State.IDLE, State.OPEN_RECEIVED) and self.output.parts:
            self._keep_alive.sent = True
            pieces += self.output.take()
        return pieces

    # -- time ------------------------------------------------------------------------------------------

    @property
    def tick_interval(self) -> float:
        """The seconds between two calls of `tick`, which may shrink when the peer's open arrives."""
        return self._keep_alive.interval

    def tick(self, now: float) -> list[Event]:
        """Send an empty frame if we were silent, and close the connection if the peer was.

        `now` is in seconds.
        """
        events: list[Event] = []
        if self.state is State.CLOSED:
            return events
        if self._keep_alive.must_speak() and self.state in (State.OPEN_SENT, State.OPEN) and not self.output.parts:
            self.output.write(EMPTY_FRAME)
        if self._keep_alive.peer_is_lost(now):
            description = f"nothing arrived for more than {self.limits.idle_timeout_ms} milliseconds"
            self._fail(AmqpError(RESOURCE_LIMIT_EXCEEDED, description), events)
        return events

    # -- input -----------------------------------------------------------------------------------------

    def receive_data(self, data: bytes) -> list[Event]:
        """Process bytes from the peer and return their events. Never raises because of their content."""
        events: list[Event] = []
        self.more_to_read = self.ends_unread = False
        if self.state is State.CLOSED:
            return events
        self._keep_alive.heard = True
        limits = self.limits
        frames_left = limits.frames_at_once
        self._performatives_left = inf if limits.performatives_at_once is None else limits.performatives_at_once
        self.ids_looked_at = 0
        self.decoding.left = limits.decoded_at_once or inf
        pos = 0
        try:
            if self._rest:
                missing = self._rest_needs - len(self._rest)
                if missing > len(data):
                    if type(self._rest) is bytes:
                        self._rest = bytearray(self._rest)
                    self._rest += data
                    return events
                rest, self._rest = self._rest, b""
                if missing > 0 and len(rest) >= HEADER_BYTES and self._handshake.phase is _DONE:
                    # Only the incomplete frame is copied, not all that has come with its end.
                    pos = missing
                    self._read_frames(b"".join((rest, memoryview(data)[:missing])), 0, events, 1)
                    if self.is_closed:
                        return events
                    frames_left = frames_left - 1 if self._reads_on() else 0
                else:
                    data = b"".join((rest, data))
            if self._handshake.phase is not _DONE:
                pos = self._handshake.receive(data, 0, events)
            if self._handshake.phase is _DONE:
                pos = self._read_frames(data, pos, events, frames_left)
            if pos != len(data):
                self._keep_rest(data, pos)
        except PeerError as violation:
            self._fail(violation.error, events)
        except DecodeError as error:
            self._fail(AmqpError(DECODE_ERROR, str(error)), events)
        return events

    def _keep_rest(self, data: bytes, pos: int) -> None:
        """Keep an incomplete frame, and compute how many bytes are needed to continue reading."""
        if self.state is State.CLOSED:
            return
        self._rest = data[pos:]
        size = len(self._rest)
        if self._handshake.phase is _DONE:
            self._rest_needs = int.from_bytes(self._rest[:4]) if size >= HEADER_BYTES else HEADER_BYTES
        elif size > self.limits.max_frame_size:
            raise PeerError(Scope.CONNECTION, FRAMING_ERROR, f"{size} bytes came before the login was answered")

    def _read_frames(self, data: bytes, pos: int, events: list[Event], frames_left: int) -> int:
        """Read complete frames while this call may; return the position of the first unread one. Hot path."""
        available = len(data)
        unpack = HEADER.unpack_from
        size_max = self.limits.max_frame_size
        sessions = self._sessions_in
        is_open = State.OPEN  # an enum member takes ten times as long to look up as a local
        ids_max = self.limits.ids_at_once or maxsize
        decoding = self.decoding
        for _ in range(frames_left):
            if available - pos < HEADER_BYTES:
                return pos
            size, offset, kind, channel = unpack(data, pos)
            body = pos + offset * 4
            end = pos + size
            if size > size_max or offset < 2 or body > end or kind != AMQP_FRAME:
                raise _bad_frame(size, offset, kind, size_max)
            if end > available:
                return pos
            pos = end
            if body == end:
                continue
            session = sessions.get(channel)
            try:
                if session is not None and session.state is is_open and data.startswith(b"\x00\x53", body):
                    code = data[body + 2] if body + 2 < end else 0
                    if code == _TRANSFER:
                        session.inbound.on_transfer(data, body + 3, end, events)
                        if decoding.left > 0:
                            continue
                        break
                    if code == _DISPOSITION:
                        session.on_disposition(data, body + 3, end, events)
                        if decoding.left > 0 and self.ids_looked_at <= ids_max:
                            continue
                        break
                else:
                    code = 0
                decoding.left -= end - body
                if code == _FLOW and session is not None:
                    session.on_flow(read_flow(data, body + 3, end, decoding), events)
                else:
                    performative, _after = decode_performative(data, body, end, decoding.nesting_max)
                    if code == _ATTACH and session is not None:
                        session.on_attach(performative, events)
                    else:
                        self._on_performative(channel, session, performative, events)
            except PeerError as violation:
                if violation.scope is not Scope.SESSION or session is None:
                    raise
                session.fail(violation.error)
                events.append(SessionClosed(session, violation.error, by_peer=False))
            if self.state is State.CLOSED:
                return available
            self._performatives_left -= 1
            if self._performatives_left <= 0 or decoding.left <= 0 or self.ids_looked_at > ids_max:  # as `_reads_on`
                break
        self.more_to_read = pos < available
        self.ends_unread = self.more_to_read and self._performatives_left <= 0
        return pos

    def _reads_on(self) -> bool:
        """Tell whether this call may read further frames, if it may read any number."""
        ids_max = self.limits.ids_at_once or maxsize
        return self._performatives_left > 0 and self.decoding.left > 0 and self.ids_looked_at <= ids_max

    def _on_performative(self, channel: int, session: Session | None, performative: Any, events: list[Event]) -> None:
        if isinstance(performative, Close):
            self._on_close(performative, events)
        elif self.state in ENDING:
            return
        elif isinstance(performative, Open):
            self._on_open(performative, events)
        elif self.peer is None:
            raise _connection_error(ILLEGAL_STATE, f"{type(performative).__name__} came before open")
        elif isinstance(performative, Begin):
            self._on_begin(channel, performative, events)
        elif session is None:
            name = type(performative).__name__.lower()
            raise _connection_error(NOT_ALLOWED, f"{name} came on channel {channel}, which has no session")
        elif isinstance(performative, End):
            self._on_end(session, channel, performative, events)
        elif session.state not in ENDING:
            session.on_performative(performative, events)

    def _on_open(self, opening: Open, events: list[Event]) -> None:
        if self.peer is not None:
            raise _connection_error(ILLEGAL_STATE, "open came twice")
        if opening.max_frame_size < MIN_MAX_FRAME_SIZE:
            raise _connection_error(
                INVALID_FIELD, f"max-frame-size is {opening.max_frame_size}, at least {MIN_MAX_FRAME_SIZE} is needed"
            )
        self.state = after(self.state, Move.RECEIVE_OPEN, "the connection")
        self.peer = opening
        self.max_frame_size_out = min(opening.max_frame_size, self.limits.max_frame_size)
        self._keep_alive.their_timeout_s = (opening.idle_time_out or 0) / 1000
        events.append(Opened(self))

    def _on_begin(self, channel: int, begin: Begin, events: list[Event]) -> None:
        if channel in self._sessions_in:
            raise _connection_error(ILLEGAL_STATE, f"begin came twice on channel {channel}")
        if begin.remote_channel is None:
            session = self._new_session()
            session.on_begin(channel, begin)
            session.write_begin()
        else:
            answered = self._sessions_out.get(begin.remote_channel)
            if answered is None or answered.state not in (State.OPEN_SENT, State.CLOSE_PIPELINED):
                raise _connection_error(NOT_ALLOWED, f"begin answers channel {begin.remote_channel}, which did not ask")
            session = answered
            session.on_begin(channel, begin)
        self._sessions_in[channel] = session
        if session.state is State.OPEN:
            events.append(SessionOpened(session))

    def _on_end(self, session: Session, channel: int, end: End, events: list[Event]) -> None:
        by_peer = session.on_end()
        del self._sessions_in[channel]
        del self._sessions_out[session.local_channel]
        self._channels.give_back(session.local_channel)
        if session.failure is None:
            events.append(SessionClosed(session, end.error, by_peer))

    def _on_close(self, close: Close, events: list[Event]) -> None:
        by_peer = self.state not in ENDING
        if by_peer:
            self.close()
        self._die()
        events.append(Closed(close.error, by_peer))

    # -- ends ------------------------------------------------------------------------------------------

    def _new_session(self) -> Session:
        limits = self.limits
        most = limits.channel_max + 1 if limits.sessions_max is None else limits.sessions_max
        if len(self._sessions_out) >= most:
            raise _connection_error(
                RESOURCE_LIMIT_EXCEEDED, f"there are {len(self._sessions_out)} sessions, the most: end one first"
            )
        channel = self._channels.take()
        session = self._sessions_out[channel] = Session(self, channel)
        return session

    def _fail(self, error: AmqpError, events: list[Event]) -> None:
        """Close the connection after a protocol violation, and stop reading."""
        if self._handshake.phase is _DONE:
            self.close(error)
        self._die()
        events.append(Closed(error, by_peer=False))

    def _forget_sessions(self) -> None:
        for session in self._sessions_out.values():
            session.forget()
            session.state = State.CLOSED
        self._sessions_in.clear()
        self._sessions_out.clear()

    def _die(self) -> None:
        if self._sessions_out:
            self._forget_sessions()
        self._rest = b""
        self.state = State.CLOSED


_CLOSE_FRAME = frame(0, Close())


@lru_cache(64)
def _open_frame(
    container_id: str, hostname: str | None, max_frame_size: int, channel_max: int, idle_time_out: int | None
) -> bytes:
    """Encode an open without properties: a broker's is the same on every connection."""
    return frame(
        0,
        Open(
            container_id=container_id,
            hostname=hostname,
            max_frame_size=max_frame_size,
            channel_max=channel_max,
            idle_time_out=idle_time_out,
        ),
    )


def _connection_error(condition: str, description: str) -> PeerError:
    return PeerError(Scope.CONNECTION, condition, description)


def _bad_frame(size: int, offset: int, kind: int, size_max: int) -> PeerError:
    if size > size_max:
        return _connection_error(FRAMING_ERROR, f"a frame of {size} bytes came, at most {size_max} are read")
    return _connection_error(FRAMING_ERROR, f"no AMQP frame: size {size}, data offset {offset}, type {kind}")
