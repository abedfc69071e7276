"""Protocol headers and SASL, from the first byte to the AMQP header on both sides [2.2, 5.3].

A handshake reads bytes from a position and returns where it stopped. If `done` is then true, AMQP frames follow. Bytes
to send are in `output`. In AWAIT_VERDICT it waits for the answer to a PLAIN login, not for bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import ClassVar, Final

from msgspec import Struct

from partibus.amqp.codec.composite import symbols
from partibus.amqp.codec.performatives import (
    SASL_BODIES,
    SaslFrame,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    decode_performative,
)
from partibus.amqp.codec.types import Array
from partibus.amqp.errors import (
    DECODE_ERROR,
    FRAMING_ERROR,
    NOT_IMPLEMENTED,
    UNAUTHORIZED_ACCESS,
    DecodeError,
    PeerError,
    Scope,
    UsageError,
)
from partibus.amqp.events import Event, PlainLogin
from partibus.amqp.frames import AMQP_HEADER, HEADER, HEADER_BYTES, SASL_FRAME, SASL_HEADER, Output, frame

# MSSBCBS is an anonymous exchange under another name. EXTERNAL is listed because clients look for it. It can not
# succeed, since no listener checks client certificates.
SERVER_MECHANISMS: Final = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
_ANONYMOUS: Final = frozenset({"MSSBCBS", "ANONYMOUS"})

# A PLAIN response may carry a token as its password, so the limit is more than the 512 bytes of [5.3.1].
_MAX_SASL_FRAME: Final = 16_384

_OK: Final = 0
_AUTH_FAILED: Final = 1

# This frame is the same on every connection, and encoding it would be a tenth of a connection's cost.
_MECHANISMS_FRAME: Final = frame(
    0, SaslMechanisms(sasl_server_mechanisms=Array.of_symbols(SERVER_MECHANISMS)), SASL_FRAME
)
_OK_FRAME: Final = frame(0, SaslOutcome(code=_OK), SASL_FRAME)


class Phase(Enum):
    """A phase of the handshake."""

    __hash__ = object.__hash__  # as in `partibus.amqp.endpoint.State`

    EXPECT_HEADER = "expect a protocol header"
    EXPECT_SASL_HEADER = "expect the SASL header"
    EXPECT_MECHANISMS = "expect sasl-mechanisms"
    EXPECT_INIT = "expect sasl-init"
    AWAIT_VERDICT = "await the verdict on a login"
    EXPECT_OUTCOME = "expect sasl-outcome"
    EXPECT_AMQP_HEADER = "expect the AMQP header"
    DONE = "done"


class Anonymous(Struct, frozen=True):
    """An anonymous login. ``hostname`` is the client's name for the server."""

    hostname: str | None = None


class Plain(Struct, frozen=True):
    """A login with a name and a password. ``hostname`` is the client's name for the server."""

    username: str
    password: str
    hostname: str | None = None


Login = Anonymous | Plain


def _refuse(condition: str, description: str) -> PeerError:
    return PeerError(Scope.CONNECTION, condition, description)


class Handshake:
    """The common part of both sides: reading headers and SASL frames."""

    __slots__ = ("mechanism", "output", "phase")
    headers: ClassVar[Mapping[Phase, tuple[bytes, ...]]]
    """The protocol headers that may come in a phase."""

    def __init__(self, phase: Phase) -> None:
        self.phase = phase
        self.output = Output()
        self.mechanism: str | None = None
        """The SASL mechanism of the connection; None without SASL."""

    @property
    def done(self) -> bool:
        """Whether AMQP frames follow."""
        return self.phase is Phase.DONE

    def receive(self, buf: bytes, pos: int, events: list[Event]) -> int:
        """Read complete headers and frames; return the position of the first unused byte.

        Raises `PeerError`.
        """
        while pos < len(buf) and self.phase not in _SILENT_PHASES:
            is_frame = self.phase in _FRAME_PHASES
            after = self._read_frame(buf, pos, events) if is_frame else self._read_header(buf, pos)
            if after == pos:
                break
            pos = after
        return pos

    def _read_header(self, buf: bytes, pos: int) -> int:
        header = buf[pos : pos + HEADER_BYTES]
        expected = self.headers[self.phase]
        if header not in expected and not any(known.startswith(header) for known in expected):
            self.output.write(SASL_HEADER if SASL_HEADER in expected else AMQP_HEADER)
            raise _refuse(FRAMING_ERROR, f"protocol header {header!r} is not supported")
        if len(header) < HEADER_BYTES:
            return pos
        self.on_header(header)
        return pos + HEADER_BYTES

    def _read_frame(self, buf: bytes, pos: int, events: list[Event]) -> int:
        if len(buf) - pos < HEADER_BYTES:
            return pos
        size, offset, kind, _channel = HEADER.unpack_from(buf, pos)
        body = pos + offset * 4
        if kind != SASL_FRAME or offset < 2 or not offset * 4 < size <= _MAX_SASL_FRAME:
            raise _refuse(FRAMING_ERROR, f"no SASL frame: size {size}, data offset {offset}, type {kind}")
        end: int = pos + size
        if len(buf) < end:
            return pos
        try:
            performative, _after = decode_performative(buf, body, end, allowed=SASL_BODIES)
        except DecodeError as error:
            raise _refuse(DECODE_ERROR, f"{self.phase.value}: {error}") from None
        self.on_frame(performative, events)
        return end

    def on_header(self, header: bytes) -> None:
        """Process a protocol header."""
        raise NotImplementedError

    def on_frame(self, performative: SaslFrame, events: list[Event]) -> None:
        """Process a SASL frame."""
        raise NotImplementedError

    def unexpected(self, performative: object) -> PeerError:
        """Return the error for a frame that does not fit the phase."""
        return _refuse(FRAMING_ERROR, f"{type(performative).__name__} came; we {self.phase.value}")


_SILENT_PHASES: Final = frozenset({Phase.DONE, Phase.AWAIT_VERDICT})
_FRAME_PHASES: Final = frozenset({Phase.EXPECT_MECHANISMS, Phase.EXPECT_INIT, Phase.EXPECT_OUTCOME})


class ServerHandshake(Handshake):
    """The server's side. A client that skips SASL counts as anonymous."""

    __slots__ = ("hostname",)
    headers: ClassVar = {
        Phase.EXPECT_HEADER: (SASL_HEADER, AMQP_HEADER),
        Phase.EXPECT_AMQP_HEADER: (AMQP_HEADER,),
    }

    def __init__(self) -> None:
        super().__init__(Phase.EXPECT_HEADER)
        self.hostname: str | None = None
        """The client's name for the server, if known."""

    def on_header(self, header: bytes) -> None:
        """Answer the client's protocol header."""
        self.output.write(header)
        if header == AMQP_HEADER:
            self.phase = Phase.DONE
        else:
            self.output.write(_MECHANISMS_FRAME)
            self.phase = Phase.EXPECT_INIT

    def on_frame(self, performative: SaslFrame, events: list[Event]) -> None:
        """Process the client's SASL frame."""
        if not isinstance(performative, SaslInit):
            raise self.unexpected(performative)
        self.mechanism = performative.mechanism
        self.hostname = performative.hostname
        if self.mechanism in _ANONYMOUS:
            self._accept()
        elif self.mechanism == "PLAIN":
            events.append(_parse_plain(performative.initial_response, performative.hostname))
            self.phase = Phase.AWAIT_VERDICT
        else:
            raise self._failed(f"SASL mechanism {self.mechanism} is not available here; use PLAIN or ANONYMOUS")

    def verdict(self, accepted: bool) -> None:
        """Answer a `PlainLogin`. Raises `PeerError` after a refusal, which ends the connection."""
        if self.phase is not Phase.AWAIT_VERDICT:
            raise UsageError(f"no login waits for an answer: we {self.phase.value}")
        if not accepted:
            raise self._failed("the name or the password is wrong")
        self._accept()

    def _accept(self) -> None:
        self.output.write(_OK_FRAME)
        self.phase = Phase.EXPECT_AMQP_HEADER

    def _failed(self, reason: str) -> PeerError:
        self.output.write(frame(0, SaslOutcome(code=_AUTH_FAILED), SASL_FRAME))
        return _refuse(UNAUTHORIZED_ACCESS, reason)


def _parse_plain(response: bytes | None, hostname: str | None) -> PlainLogin:
    """Parse RFC 4616: authorization identity (ignored), name and password, divided by NUL."""
    parts = (response or b"").split(b"\x00")
    if len(parts) != 3:
        raise _refuse(DECODE_ERROR, "a PLAIN response has three parts divided by NUL")
    try:
        return PlainLogin(parts[1].decode(), parts[2].decode(), hostname)
    except UnicodeDecodeError:
        raise _refuse(DECODE_ERROR, "a PLAIN response is UTF-8") from None


class ClientHandshake(Handshake):
    """The client's side, which speaks first: SASL with a `login`, else the AMQP header."""

    __slots__ = ("_login",)
    headers: ClassVar = {Phase.EXPECT_SASL_HEADER: (SASL_HEADER,), Phase.EXPECT_AMQP_HEADER: (AMQP_HEADER,)}

    def __init__(self, login: Login | None) -> None:
        super().__init__(Phase.EXPECT_AMQP_HEADER if login is None else Phase.EXPECT_SASL_HEADER)
        self._login = login
        self.output.write(AMQP_HEADER if login is None else SASL_HEADER)

    def on_header(self, header: bytes) -> None:
        """Process the server's protocol header."""
        self.phase = Phase.DONE if header == AMQP_HEADER else Phase.EXPECT_MECHANISMS

    def on_frame(self, performative: SaslFrame, events: list[Event]) -> None:
        """Process the server's SASL frame."""
        if self.phase is Phase.EXPECT_MECHANISMS and isinstance(performative, SaslMechanisms):
            self._choose(symbols(performative.sasl_server_mechanisms))
        elif self.phase is Phase.EXPECT_OUTCOME and isinstance(performative, SaslOutcome):
            if performative.code != _OK:
                raise _refuse(UNAUTHORIZED_ACCESS, f"the server refused the login (code {performative.code})")
            self.output.write(AMQP_HEADER)
            self.phase = Phase.EXPECT_AMQP_HEADER
        else:
            raise self.unexpected(performative)

    def _choose(self, offered: list[str]) -> None:
        if isinstance(self._login, Plain):
            self.mechanism = "PLAIN"
            response = f"\0{self._login.username}\0{self._login.password}".encode()
        else:
            self.mechanism = "ANONYMOUS"
            response = b""
        if self.mechanism not in offered:
            raise _refuse(NOT_IMPLEMENTED, f"the server offers {', '.join(offered)}, not {self.mechanism}")
        init = SaslInit(
            mechanism=self.mechanism, initial_response=response, hostname=self._login.hostname if self._login else None
        )
        self.output.write(frame(0, init, SASL_FRAME))
        self.phase = Phase.EXPECT_OUTCOME
