"""The mutual authentication of two brokers at the start of a channel. No IO.

```text
 remote broker                             owner
   Hello (version, name, nonce)     ─▶
                                    ◀─     Challenge (version, name, nonce; proof)
   Proof                            ─▶
                                    ◀─     Welcome                       or, at any point, Refusal (reason)
```

A proof is an HMAC-SHA256 under the secret that all brokers of a namespace share, over all earlier messages, the side
that speaks, and the *binding*: over TLS the digest of the owner's certificate, against a man in the middle. The secret
itself never travels. Each side's nonce is part of the proof, so no proof can be replayed on another channel.

The secret by which the brokers of one namespace know each other, in a file that only its owner can read.
"""

import hmac
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from partibus.cluster.forms import FINGERPRINT
from partibus.cluster.ownership import Identity
from partibus.cluster.wire import VERSION
from partibus.errors import UnusableFile

MESSAGE_BYTES_MAX = 4_096
NONCE_BYTES = 32
_NAME = "partibus"
_CONTEXT = b"partibus channel, version 1, "


class HandshakeError(Exception):
    """The peer is not the expected broker, or has another version; the text gives the next step."""


class _Greeting(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    name: str
    version: int
    fingerprint: str
    broker: str
    incarnation: str
    nonce: bytes


class _Hello(msgspec.Struct, array_like=True, tag=1, forbid_unknown_fields=True):
    greeting: bytes


class _Challenge(msgspec.Struct, array_like=True, tag=2, forbid_unknown_fields=True):
    greeting: bytes
    proof: bytes


class _Proof(msgspec.Struct, array_like=True, tag=3, forbid_unknown_fields=True):
    proof: bytes


class _Welcome(msgspec.Struct, array_like=True, tag=4, forbid_unknown_fields=True):
    pass


class _Refusal(msgspec.Struct, array_like=True, tag=5, forbid_unknown_fields=True):
    why: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Hello | _Challenge | _Proof | _Welcome | _Refusal).decode
_greetings = msgspec.msgpack.Decoder(_Greeting)


class Handshake:
    """One side of a handshake. ``peer`` is set once `receive` has returned that it is done."""

    def __init__(
        self,
        us: Identity,
        secret: bytes,
        nonce: bytes,
        *,
        expected: Identity | None = None,
        binding: Callable[[], bytes] = bytes,
    ) -> None:
        """Begin a handshake.

        ``expected``: the broker that a remote broker wants to reach. None makes this the owner's side, which accepts
        any broker with the secret.
        """
        self._us = us
        self._secret = secret
        self._expected = expected
        self._binding = binding
        self._ours = _encode(_Greeting(_NAME, VERSION, FINGERPRINT, us.broker, us.incarnation, nonce))
        self._theirs = b""
        self.peer: Identity | None = None

    @property
    def other(self) -> str:
        """A description of the other side for log messages."""
        known = self.peer or self._expected
        return "a peer that has not proved itself" if known is None else f"{known.broker} (run {known.incarnation})"

    def first(self) -> bytes | None:
        """Return the first message of the remote broker's side."""
        return None if self._expected is None else _encode(_Hello(self._ours))

    def receive(self, data: bytes | memoryview) -> tuple[bytes | None, bool]:
        """Take a message; return the answer and whether the handshake is complete.

        Raises `HandshakeError`; `refusal` encodes it for the peer.
        """
        try:
            message = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise HandshakeError(f"the peer does not begin as a broker does: {error}") from error
        remote_broker = self._expected is not None
        match message:
            case _Refusal():
                raise HandshakeError(f"the peer refuses: {message.why[:500]}")
            case _Hello() if not remote_broker and not self._theirs:
                self._meet(message.greeting)
                return _encode(_Challenge(self._ours, self._proof("owner"))), False
            case _Challenge() if remote_broker and not self._theirs:
                peer = self._meet(message.greeting)
                self._check("owner", message.proof)
                if peer != self._expected:
                    raise HandshakeError(
                        f"{peer.broker} (run {peer.incarnation}) answers where {self._expected} should be; it was "
                        "started again, or two brokers share an address"
                    )
                return _encode(_Proof(self._proof("guest"))), False
            case _Proof() if not remote_broker and self._theirs:
                self._check("guest", message.proof)
                self.peer = self._met()
                return _encode(_Welcome()), True
            case _Welcome() if remote_broker and self._theirs:
                self.peer = self._met()
                return None, True
        raise HandshakeError(f"the peer says {type(message).__name__[1:]} out of turn")

    @staticmethod
    def refusal(error: Exception) -> bytes:
        """Return the message that tells the peer why this broker rejects it."""
        return _encode(_Refusal(str(error)[:500]))

    def _meet(self, greeting: bytes) -> Identity:
        try:
            # The fields behind the version may differ in another version, so the version is checked first, alone.
            beginning = msgspec.msgpack.decode(greeting)
            version = beginning[1] if isinstance(beginning, list) and beginning[:1] == [_NAME] else None
            if version is not None and version != VERSION:
                raise HandshakeError(
                    f"the peer speaks version {version!r} of the wire, this broker version {VERSION}; run the same "
                    "partibus on all brokers"
                )
            parts = _greetings.decode(greeting)
        except (msgspec.DecodeError, UnicodeDecodeError, IndexError) as error:
            raise HandshakeError(f"the peer's greeting is not that of a broker: {error}") from error
        if parts.fingerprint != FINGERPRINT:
            raise HandshakeError(
                f"the peer's commands have the form {parts.fingerprint}, those of this broker {FINGERPRINT}; run the "
                "same partibus on all brokers"
            )
        if len(parts.nonce) != NONCE_BYTES or greeting == self._ours:
            raise HandshakeError("the peer's nonce is not one")
        self._theirs = greeting
        return Identity(parts.broker, parts.incarnation)

    def _met(self) -> Identity:
        parts = _greetings.decode(self._theirs)
        return Identity(parts.broker, parts.incarnation)

    def _proof(self, side: str) -> bytes:
        remote_broker, owner = (self._ours, self._theirs) if self._expected is not None else (self._theirs, self._ours)
        said = b"".join(len(part).to_bytes(4, "big") + part for part in (remote_broker, owner, self._binding()))
        return hmac.digest(self._secret, _CONTEXT + side.encode() + b"\0" + said, "sha256")

    def _check(self, side: str, proof: bytes) -> None:
        if not hmac.compare_digest(self._proof(side), proof):
            raise HandshakeError(
                "the peer does not know this namespace's secret; give all its brokers the same secret file"
            )


FILE_NAME = "cluster.secret"
SECRET_BYTES = 32


def load_secret(directory: Path) -> bytes:
    """Read the secret in a data directory; make it at the first start.

    Several processes may do so at once, and get the same. Raises `UnusableFile` when other users than its owner can use
    it, or it is too short.
    """
    return read_secret(directory / FILE_NAME, make=True)


def read_secret(path: Path, *, make: bool) -> bytes:
    """Read the secret in a file. Raises `UnusableFile` as `load_secret`.

    ``make``: make a missing one, which is otherwise an `UnusableFile`.
    """
    try:
        if make and not path.exists():
            _make(path)
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            secret = file.read(1024).strip()
    except OSError as error:
        raise UnusableFile(
            str(path), f"can't be used ({error.strerror})", "Check that it is there, can be read, and has room."
        ) from error
    if mode & 0o077:
        raise UnusableFile(
            str(path),
            f"holds a secret and has the mode {mode:o}, so others than its owner can use it",
            f"Run: chmod 600 {path}. Remove the file to have a new one made, if another user may have read it.",
        )
    if len(secret) < SECRET_BYTES:
        raise UnusableFile(
            str(path),
            f"has {len(secret)} bytes, a secret has {SECRET_BYTES} at least",
            "Remove the file to have a new one made.",
        )
    return secret


def _make(path: Path) -> None:
    """Write a secret atomically, and never over one that another process has made."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with suppress(FileNotFoundError):
        beside.unlink()
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(file, os.urandom(SECRET_BYTES).hex().encode() + b"\n")
        os.fsync(file)
    finally:
        os.close(file)
    try:
        with suppress(FileExistsError):
            os.link(beside, path)
    finally:
        beside.unlink()
