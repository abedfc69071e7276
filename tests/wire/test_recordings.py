"""Recorded bytes of real client libraries still mean the same."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from partibus.amqp import Closed, PlainLogin
from partibus.amqp import section_fields as sf
from partibus.amqp.sections import BATCH_FORMAT, iter_batch, split_sections
from tests.wire.replay import RECORDINGS, Replay, address_of, begins_with_sasl, read_recording

CBS = ["receiver $cbs", "sender $cbs"]


class Seen(NamedTuple):
    """The expected events of a server; `sizes` are those of the bodies sent to the queue."""

    attached: list[str]
    messages: int = 0
    batched: int = 0
    largest: int = 0
    outcomes: dict[str, int] = {}
    waiting: int = 0


SEEN = {
    "azure-servicebus-7.15.0-python-sender": Seen([*CBS, "receiver q"], 2, 50, 10_000),
    "azure-servicebus-7.15.0-python-receiver": Seen(
        [*CBS, "sender q"], outcomes={"Accepted": 49, "Modified": 2, "Rejected": 1}, waiting=52
    ),
    "azure-servicebus-7.15.0-python-refused": Seen([*CBS, "receiver missing"]),
    "azure-service-bus-7.9.5-javascript": Seen(
        [*CBS, "receiver q", "sender q", "receiver missing"],
        2,
        10,
        10_000,
        {"Accepted": 9, "Modified": 2, "Rejected": 1},
        12,
    ),
    "qpid-proton-0.40.0-python-plain": Seen(["receiver q", "sender q"], 21, 0, 10_000, {"Accepted": 21}, 21),
    "qpid-proton-0.40.0-python-no-sasl": Seen(["receiver q"], 1, 0, 1),
}


def test_every_recording_is_described() -> None:
    assert {path.stem for path in RECORDINGS.glob("*.hex")} == set(SEEN)


@pytest.fixture(params=["as recorded", "byte by byte"])
def cut(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("name", SEEN)
def test_recording_is_understood(name: str, cut: str) -> None:
    seen = SEEN[name]
    pieces = read_recording(name)
    replay = Replay(seen.waiting)
    if cut == "byte by byte":
        pieces = [bytes((byte,)) for byte in b"".join(pieces)]
    replay.listen(pieces)
    assert sorted(replay.attached) == sorted(seen.attached)
    assert replay.outcomes == seen.outcomes
    assert replay.closed == Closed(None, by_peer=True)
    messages = [d for d in replay.deliveries if address_of(d.link) != "$cbs"]
    single = [d.payload for d in messages if d.message_format == 0]
    batched = [message for d in messages if d.message_format == BATCH_FORMAT for message in iter_batch(d.payload)]
    assert (len(single), len(batched)) == (seen.messages, seen.batched)
    bodies = [sf.decode_body(split_sections(message).body)[0] for message in single + batched]
    assert max((len(body) if isinstance(body, (bytes, str)) else 1 for body in bodies), default=0) >= seen.largest


def test_recordings_hold_each_way_to_begin() -> None:
    assert {begins_with_sasl(read_recording(name)) for name in SEEN} == {True, False}
    replay = Replay(21)
    replay.listen(read_recording("qpid-proton-0.40.0-python-plain"))
    assert replay.logins == [PlainLogin("user", "pw")]
