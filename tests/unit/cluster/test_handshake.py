"""Brokers prove themselves to one another; who can't is refused with a reason that helps."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partibus.cluster import handshake
from partibus.cluster.handshake import Handshake, HandshakeError
from partibus.cluster.ownership import Identity
from partibus.cluster.wire import VERSION

REMOTE_BROKER, OWNER = Identity("broker-0", "a1"), Identity("broker-1", "b2")
SECRET = b"s" * 32


def remote_broker(secret: bytes = SECRET, *, expected: Identity = OWNER, binding: bytes = b"") -> Handshake:
    return Handshake(REMOTE_BROKER, secret, b"g" * 32, expected=expected, binding=lambda: binding)


def owner(secret: bytes = SECRET, *, binding: bytes = b"", nonce: bytes = b"o" * 32) -> Handshake:
    return Handshake(OWNER, secret, nonce, binding=lambda: binding)


def shake(one: Handshake, other: Handshake) -> None:
    """Carry messages to and fro until both are done."""
    message = one.first()
    speaking, listening = one, other
    done = []
    while message is not None:
        speaking, listening = listening, speaking
        message, is_done = speaking.receive(message)
        done.append(is_done)
    assert done == [False, False, True, True]


def test_both_know_the_other_in_the_end() -> None:
    one, other = remote_broker(), owner()
    assert (one.other, other.other) == ("broker-1 (run b2)", "a peer that has not proved itself")
    shake(one, other)
    assert (one.peer, other.peer) == (OWNER, REMOTE_BROKER)
    assert (one.other, other.other) == ("broker-1 (run b2)", "broker-0 (run a1)")


def test_guest_refuses_an_owner_without_the_secret() -> None:
    one = remote_broker()
    with pytest.raises(HandshakeError, match="does not know this namespace's secret; give all its brokers the same"):
        shake(one, owner(b"x" * 32))
    assert one.peer is None


def test_owner_refuses_a_guest_without_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = remote_broker(b"x" * 32), owner()
    monkeypatch.setattr(one, "_check", lambda side, proof: None)  # it would have noticed
    with pytest.raises(HandshakeError, match="does not know this namespace's secret"):
        shake(one, other)
    assert other.peer is None


def test_nobody_can_sit_in_between() -> None:
    with pytest.raises(HandshakeError, match="secret"):
        shake(remote_broker(binding=b"certificate of the one between"), owner(binding=b"certificate of the owner"))


def test_another_run_at_the_same_address_is_not_the_owner() -> None:
    with pytest.raises(HandshakeError, match=r"broker-1 .run b2. answers where .*b1.* should be"):
        shake(remote_broker(expected=Identity("broker-1", "b1")), owner())


def test_proof_cannot_be_said_again() -> None:
    """A proof of one channel is worth nothing on another, where the owner has another nonce."""
    one, other = remote_broker(), owner()
    hello = one.first()
    assert hello is not None
    challenge, _ = other.receive(hello)
    assert challenge is not None
    proof, _ = one.receive(challenge)
    assert proof is not None
    again = owner(nonce=b"p" * 32)
    again.receive(hello)
    with pytest.raises(HandshakeError, match="secret"):
        again.receive(proof)


def test_own_greeting_sent_back_is_refused() -> None:
    one = Handshake(REMOTE_BROKER, SECRET, b"g" * 32, expected=REMOTE_BROKER)
    with pytest.raises(HandshakeError, match="nonce"):
        shake(one, Handshake(REMOTE_BROKER, SECRET, b"g" * 32))


def test_other_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "VERSION", VERSION + 1)
    one = remote_broker()
    monkeypatch.undo()
    with pytest.raises(HandshakeError, match=f"version {VERSION + 1} of the wire, this broker version {VERSION}; run"):
        shake(one, owner())


def test_version_is_looked_at_before_what_only_that_version_has() -> None:
    greeting = msgspec.msgpack.encode(["partibus", VERSION + 1, {"anything": "else"}])
    with pytest.raises(HandshakeError, match="version"):
        owner().receive(msgspec.msgpack.encode([1, greeting]))


def test_other_form_of_commands_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "FINGERPRINT", "0123")
    one = remote_broker()
    monkeypatch.undo()
    with pytest.raises(HandshakeError, match="the peer's commands have the form 0123"):
        shake(one, owner())


def test_reason_of_a_refusal_is_passed_on() -> None:
    refusal = Handshake.refusal(HandshakeError("wrong secret"))
    with pytest.raises(HandshakeError, match="the peer refuses: wrong secret"):
        remote_broker().receive(refusal)


@pytest.mark.parametrize("greeting", [b"", b"\x90", b"\x91\xa8partibus", b"\x01", msgspec.msgpack.encode(["other", 1])])
def test_greeting_of_something_else_is_refused(greeting: bytes) -> None:
    with pytest.raises(HandshakeError, match="greeting is not that of a broker"):
        owner().receive(msgspec.msgpack.encode([1, greeting]))


@given(st.binary(max_size=100))
def test_garbage_is_refused(garbage: bytes) -> None:
    for side in (remote_broker(), owner()):
        with pytest.raises(HandshakeError):
            side.receive(garbage)


def test_nothing_is_said_out_of_turn() -> None:
    one = remote_broker()
    hello = one.first()
    assert hello is not None
    with pytest.raises(HandshakeError, match="says Hello out of turn"):
        one.receive(hello)
    for message in ([3, b"proof"], [4]):
        with pytest.raises(HandshakeError, match="out of turn"):
            owner().receive(msgspec.msgpack.encode(message))
    other = owner()
    other.receive(hello)
    with pytest.raises(HandshakeError, match="says Hello out of turn"):
        other.receive(hello)
