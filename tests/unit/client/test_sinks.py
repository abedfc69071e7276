"""Storing rows: what is tried again, for how long, and what goes in one request."""

from __future__ import annotations

from typing import Any

import pytest

import partibus.client.extensions.sinks as sinks
from partibus.client.errors import Busy, MessageTooLarge, NotFound, QuotaExceeded, Throttled
from partibus.client.extensions.sinks import SinkClient, open_sink
from tests.unit.client.broker import Answer, TinyBroker

SERVER_BUSY = (503, "com.microsoft:server-busy", "Busy. Please retry.", None)
THROTTLED = (503, "com.microsoft:server-busy", "It is being throttled. Error code: 50009. Please wait 2 seconds.", None)


class Stopped:
    """Time that passes only during a sleep."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Stopped:
    stopped = Stopped()
    monkeypatch.setattr(sinks, "time", stopped)
    return stopped


def answering(broker: TinyBroker, *answers: Answer) -> list[Any]:
    """Answers in turn, the last one for ever; the bodies that were asked."""
    left = list(answers)
    asked: list[Any] = []

    def answer(body: dict[Any, Any]) -> Answer:
        asked.append(body)
        return left.pop(0) if len(left) > 1 else left[0]

    broker.answers["partibus:sink"] = answer
    return asked


def stored(accepted: int, duplicates: int = 0) -> Answer:
    return (200, None, "OK", {"accepted": accepted, "duplicates": duplicates})


def client_of(broker: TinyBroker, within_s: float = 10.0) -> SinkClient:
    return open_sink(broker.connection_string, "q", within_s)


def test_busy_broker_is_asked_again_after_pauses_that_grow(broker: TinyBroker, time: Stopped) -> None:
    asked = answering(broker, SERVER_BUSY, SERVER_BUSY, SERVER_BUSY, stored(1, 1))
    client = client_of(broker)
    found = client.put([b"one", b"two"], sink=7, ids=[b"i" * 16, b"j" * 16])
    client.close()
    assert (found.accepted, found.duplicates) == (1, 1)
    assert (client.retries, time.slept) == (3, [0.05, 0.1, 0.2])
    assert asked == [asked[0]] * 4


def test_patience_ends_with_the_error_of_the_broker(broker: TinyBroker, time: Stopped) -> None:
    answering(broker, SERVER_BUSY)
    client = client_of(broker, within_s=5.0)
    with pytest.raises(Busy, match="Please retry"):
        client.put([b"one"], sink=7)
    client.close()
    assert time.slept == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6], "another pause would be over the five seconds"


def test_who_shares_credits_with_others_waits_longer_than_for_a_broker_that_is_away(
    broker: TinyBroker, time: Stopped
) -> None:
    answering(broker, *[THROTTLED] * 15, stored(1))
    client = client_of(broker, within_s=5.0)
    assert client.put([b"one"], sink=7).accepted == 1
    assert 5 < time.now_s < 50
    answering(broker, THROTTLED)
    with pytest.raises(Throttled, match="50009"):
        client.put([b"one"], sink=7)
    client.close()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((404, "amqp:not-found", "is not there", None), NotFound),
        ((403, "amqp:resource-limit-exceeded", "is full", None), QuotaExceeded),
    ],
)
def test_what_does_not_pass_is_raised_at_once(
    broker: TinyBroker, time: Stopped, answer: Answer, kind: type[Exception]
) -> None:
    answering(broker, answer)
    client = client_of(broker)
    with pytest.raises(kind):
        client.check()
    client.close()
    assert time.slept == []


def test_rows_go_in_requests_that_the_broker_takes_and_in_their_order(broker: TinyBroker, time: Stopped) -> None:
    asked = answering(broker, stored(1))
    client = open_sink(broker.connection_string, "q", 10.0, request_bytes=1_000)
    rows = [bytes([number]) * 400 for number in range(5)]
    assert client.put(rows, sink=7, source=-3, positions=[1, 2, 5, 8, 9]).accepted == 3
    assert [len(body["messages"]) for body in asked] == [2, 2, 1]
    assert [row for body in asked for row in body["messages"]] == rows
    assert [position for body in asked for position in body["positions"].items] == [1, 2, 5, 8, 9]
    with pytest.raises(MessageTooLarge, match="message 1 has 99000000 bytes"):
        client.put([b"x", bytes(99_000_000)], sink=7)
    client.close()
