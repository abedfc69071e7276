"""Messages over plain HTTP, as any client may send and receive them."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import pytest

from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.admin import Answer, Http, entry
from tests.conformance.clients.interface import Outgoing, receive_all
from tests.conformance.clients.python_sync import PythonSync
from tests.conformance.conftest import CountMessages
from tests.kit.eventually import EVENTUALLY_S, eventually

CLOCK = "manual"
MakeQueue = Callable[..., str]
BATCH = "application/vnd.microsoft.servicebus.json"


@pytest.fixture
def http(broker: BrokerProcess) -> Http:
    return Http(broker)


def broker_properties(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.headers["brokerproperties"])
    return found


def lock_path(answer: Answer) -> str:
    """Return the lock's path from the address in ``Location``."""
    return urlsplit(answer.headers["location"]).path.lstrip("/")


@pytest.mark.row("C1")
def test_a_message_goes_in_and_out_with_its_properties(http: Http, queue: str) -> None:
    target = queue.partition("/Subscriptions/")[0]
    sent = {
        "MessageId": "m-1",
        "CorrelationId": "c",
        "Label": "l ü",
        "ReplyTo": "r",
        "To": "t",
        "PartitionKey": "k",
        "TimeToLive": 90.5,
        "Unknown": 1,
    }
    headers = {"Customer": '"12345,ABC"', "Priority": "High", "Weight": "1.5", "Count": "7", "Fragile": "true"}
    made = http(
        "POST", f"{target}/messages", b"\x00body", BrokerProperties=json.dumps(sent), Content_Type="text/x", **headers
    )
    assert (made.status, made.body) == (201, b"")
    got = http("DELETE", f"{queue}/messages/head?timeout=5")
    assert (got.status, got.body, got.headers["content-type"]) == (200, b"\x00body", "text/x")
    shown = broker_properties(got)
    assert {name: shown[name] for name in sent if name != "Unknown"} == {
        name: value for name, value in sent.items() if name != "Unknown"
    }
    assert (shown["DeliveryCount"], shown["State"]) == (1, "Active")
    assert shown["SequenceNumber"] > 0
    assert parsedate_to_datetime(shown["EnqueuedTimeUtc"]) > datetime(2026, 1, 1, tzinfo=UTC)
    assert not {"LockToken", "LockedUntilUtc"} & set(shown)
    assert {name: got.headers[name.lower()] for name in headers} == headers | {"Priority": '"High"'}
    assert http("DELETE", f"{queue}/messages/head?timeout=0").status == 204


@pytest.mark.row("C1")
def test_what_is_sent_over_http_is_received_over_amqp_and_the_other_way_round(
    http: Http, python: PythonSync, queue: str
) -> None:
    target = queue.partition("/Subscriptions/")[0]
    http("POST", f"{target}/messages", b"from http", BrokerProperties='{"Label": "s"}', Colour='"red"')
    (message,) = receive_all(python, queue, 1, delete=True)
    assert (message.body, message.subject, message.properties) == (b"from http", "s", {"colour": "red"})
    assert message.message_id
    python.send(target, Outgoing(b"from amqp", subject="s", properties={"colour": "blue", "not a name": 1}))
    got = http("DELETE", f"{queue}/messages/head")
    assert (got.body, got.headers["colour"], broker_properties(got)["Label"]) == (b"from amqp", '"blue"', "s")
    assert "not a name" not in got.headers


@pytest.mark.row("C12", "C21")
def test_a_receive_brings_one_message_and_keeps_no_other(http: Http, python: PythonSync, make_queue: MakeQueue) -> None:
    queue = make_queue()
    python.send(queue, *(Outgoing(b"%d" % i) for i in range(3)))
    assert http("POST", f"{queue}/messages/head?timeout=5").body == b"0"
    assert [message.body for message in receive_all(python, queue, 2)] == [b"1", b"2"]


@pytest.mark.row("C5")
def test_a_lock_is_completed_unlocked_and_renewed_by_its_address(
    http: Http, broker: BrokerProcess, queue: str, messages_in: CountMessages
) -> None:
    target = queue.partition("/Subscriptions/")[0]
    http("POST", f"{target}/messages", b"x")
    first = http("POST", f"{queue}/messages/head?timeout=5")
    assert (first.status, first.body) == (201, b"x")
    locked_until = parsedate_to_datetime(broker_properties(first)["LockedUntilUtc"])
    assert http("POST", f"{queue}/messages/head?timeout=0").status == 204
    broker.advance(30_000)
    renewed = http("POST", lock_path(first))
    assert renewed.status == 200
    assert parsedate_to_datetime(renewed.headers["lockeduntilutc"]) > locked_until
    broker.advance(40_000)
    assert http("PUT", lock_path(first)).status == 200
    second = http("POST", f"{queue}/messages/head?timeout=5")
    assert (broker_properties(second)["DeliveryCount"], second.body) == (2, b"x")
    for method in ("PUT", "DELETE", "POST"):
        gone = http(method, lock_path(first))
        assert (gone.status, "no longer held" in gone.detail) == (404, True)
    assert http("DELETE", lock_path(second)).status == 200
    assert http("DELETE", lock_path(second)).status == 404
    assert messages_in(queue) == 0


def test_a_lock_that_has_ended_is_gone(http: Http, broker: BrokerProcess, queue: str) -> None:
    http("POST", f"{queue.partition('/Subscriptions/')[0]}/messages", b"x")
    first = http("POST", f"{queue}/messages/head?timeout=5")
    broker.advance(61_000)
    assert http("DELETE", lock_path(first)).status == 404
    second = http("POST", f"{queue}/messages/head?timeout=5")
    assert broker_properties(second)["DeliveryCount"] == 2
    assert http("DELETE", lock_path(second)).status == 200


def test_a_batch_is_sent_as_one(http: Http, make_queue: MakeQueue, python: PythonSync) -> None:
    queue = make_queue(EnablePartitioning=True)
    batch = [
        {"Body": "one", "BrokerProperties": {"PartitionKey": "k", "TimeToLiveTimeSpan": "0.00:00:40"}},
        {"Body": "zwei ü", "BrokerProperties": {"PartitionKey": "k"}, "UserProperties": {"n": 1, "Name": "v"}},
    ]
    assert http("POST", f"{queue}/messages", json.dumps(batch), Content_Type=BATCH).status == 201
    first, second = receive_all(python, queue, 2, delete=True)
    assert [first.body, second.body] == [b"one", "zwei ü".encode()]
    assert second.properties == {"n": 1, "Name": "v"}
    broken = [*batch, {"Body": "x", "BrokerProperties": {"TimeToLive": -1}}]
    refused = http("POST", f"{queue}/messages", json.dumps(broken), Content_Type=f"{BATCH}; charset=utf-8")
    assert (refused.status, "TimeToLive is -1" in refused.detail) == (400, True)
    assert http("DELETE", f"{queue}/messages/head?timeout=0").status == 204


def test_a_scheduled_message_waits_for_its_time(http: Http, broker: BrokerProcess, make_queue: MakeQueue) -> None:
    queue = make_queue()
    due = datetime.fromtimestamp(broker.now_ms() // 1000, UTC) + timedelta(minutes=10)
    properties = json.dumps({"ScheduledEnqueueTimeUtc": format_datetime(due, usegmt=True)})
    assert http("POST", f"{queue}/messages", b"later", BrokerProperties=properties).status == 201
    assert http("DELETE", f"{queue}/messages/head?timeout=0").status == 204
    broker.advance(601_000)
    got = http("DELETE", f"{queue}/messages/head?timeout=5")
    assert got.body == b"later"
    assert broker_properties(got)["ScheduledEnqueueTimeUtc"] == format_datetime(due, usegmt=True)


def test_who_waits_gets_what_comes_meanwhile(http: Http, broker: BrokerProcess, make_queue: MakeQueue) -> None:
    """Have another client send while the request waits for its answer."""
    queue = make_queue(EnablePartitioning=True)
    with socket.create_connection(("127.0.0.1", urlsplit(broker.http_url).port or 0), timeout=EVENTUALLY_S) as client:
        head = (
            f"DELETE /{queue}/messages/head?timeout=20 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {http.token()}\r\n"
        )
        client.sendall(head.encode() + b"\r\n")
        assert http("POST", f"{queue}/messages", b"x").status == 201
        assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_a_message_for_a_client_that_has_left_goes_back(
    http: Http, broker: BrokerProcess, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    with socket.create_connection(("127.0.0.1", urlsplit(broker.http_url).port or 0), timeout=EVENTUALLY_S) as client:
        head = (
            f"POST /{queue}/messages/head?timeout=20 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {http.token()}\r\n"
        )
        client.sendall(head.encode() + b"Content-Length: 0\r\n\r\n")
        assert http("GET", queue).status == 200
    http("POST", f"{queue}/messages", b"x")
    found: list[Answer] = []

    def got() -> bool:
        found.append(http("POST", f"{queue}/messages/head?timeout=1"))
        return found[-1].status == 201

    eventually("the message comes back", got)
    assert (found[-1].body, broker_properties(found[-1])["DeliveryCount"]) == (b"x", 1)


def test_dead_letters_are_received_from_their_own_address(
    http: Http, python: PythonSync, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    python.send(queue, Outgoing(b"x"))
    (message,) = receive_all(python, queue, 1)
    python.dead_letter(queue, message, "reason", "description")
    got = http("POST", f"{queue}/$DeadLetterQueue/messages/head?timeout=5")
    assert (got.status, got.headers["deadletterreason"]) == (201, '"reason"')
    assert http("DELETE", lock_path(got)).status == 200
    assert http("POST", f"{queue}/$deadletterqueue/messages", b"x").status == 400


@pytest.mark.row("P20")
def test_partitioned_entities_need_an_api_version_of_2013_10_or_none(http: Http, make_queue: MakeQueue) -> None:
    partitioned, plain = make_queue(EnablePartitioning=True), make_queue("plain")
    for version, status in (("2012-03", 400), ("2013-08", 400), ("2013-10", 201), ("2024-05", 201), ("odd", 201)):
        sent = http("POST", f"{partitioned}/messages?api-version={version}", b"x")
        assert sent.status == status, version
        assert http("POST", f"{plain}/messages?api-version={version}", b"x").status == 201
        seen = http("GET", f"{partitioned}?api-version={version}")
        assert seen.status == (200 if status == 201 else 400), version
    assert http("POST", f"{partitioned}/messages", b"x").status == 201
    old = "api-version=2012-03"
    assert "2013-10 or later" in http("DELETE", f"{partitioned}/messages/head?{old}").detail
    made = http("PUT", f"old-way?{old}", entry("QueueDescription", "<EnablePartitioning>true</EnablePartitioning>"))
    assert made.status == 400
    assert http("PUT", f"old-way?{old}", entry("QueueDescription")).status == 201


@pytest.mark.parametrize(
    ("headers", "status", "says"),
    [
        ({"BrokerProperties": "{"}, 400, "BrokerProperties is '{'"),
        ({"BrokerProperties": "[]"}, 400, "a JSON object"),
        ({"BrokerProperties": '{"MessageId": 5}'}, 400, "MessageId is 5, but must be text"),
        ({"BrokerProperties": json.dumps({"MessageId": "x" * 129})}, 400, "at most 128 characters"),
        ({"BrokerProperties": '{"TimeToLive": "long"}'}, 400, "a number of seconds"),
        ({"BrokerProperties": '{"TimeToLive": NaN}'}, 400, "a number of seconds"),
        ({"BrokerProperties": '{"ScheduledEnqueueTimeUtc": "soon"}'}, 400, "a date such as"),
        ({"BrokerProperties": '{"SessionId": "a", "PartitionKey": "b"}'}, 400, "differ"),
        ({"Big": "9" * 30}, 400, "a number of 64 bits"),
        ({"Content_Type": BATCH}, 400, "a JSON array of at least one message"),
    ],
)
def test_bad_messages_are_refused_and_not_stored(
    http: Http, queue: str, headers: dict[str, str], status: int, says: str
) -> None:
    refused = http("POST", f"{queue.partition('/Subscriptions/')[0]}/messages", b"x", **headers)
    assert (refused.status, says in refused.detail) == (status, True), refused.detail
    assert http("DELETE", f"{queue}/messages/head?timeout=0").status == 204


def test_other_refusals(http: Http, make_queue: MakeQueue) -> None:
    queue, sessions = make_queue(), make_queue("sessions", RequiresSession=True)
    assert http("POST", "no-such-queue/messages", b"x").status == 410
    assert http("DELETE", "no-such-queue/messages/head").status == 410
    large = http("POST", f"{queue}/messages", bytes(300_000))
    assert (large.status, "262144 bytes" in large.detail) == (403, True)
    assert http("POST", f"{sessions}/messages", b"x").status == 400
    refused = http("POST", f"{sessions}/messages/head?timeout=0")
    assert (refused.status, "requires sessions" in refused.detail) == (400, True)
    assert http("DELETE", f"{queue}/messages/head?timeout=soon").status == 400
    unknown = "00000000-0000-0000-0000-000000000000"
    assert http("DELETE", f"{queue}/messages/1/{unknown}").status == 404
    assert http("POST", f"{queue}/messages/1/no-token").status == 404
    assert http("DELETE", f"{queue}/messages/1/no-token").status == 404
    assert http("DELETE", f"{queue}/messages/1/ffffffff-0000-0000-0000-000000000000").status == 404
    http("PUT", "rest-topic", entry("TopicDescription"))
    assert http("POST", "rest-topic/messages/head").status == 400
    http("PUT", "rest-topic/Subscriptions/s", entry("SubscriptionDescription"))
    assert http("POST", "rest-topic/Subscriptions/s/messages", b"x").status == 400
    http("PUT", queue, entry("QueueDescription", "<Status>Disabled</Status>"), If_Match="*")
    assert http("POST", f"{queue}/messages", b"x").status == 403
    assert http("POST", f"{queue}/messages/head").status == 403


def test_claims_are_asked_for_each_request_by_its_right(http: Http) -> None:
    rules = "".join(
        f"<AuthorizationRule><KeyName>{right}</KeyName><Rights><AccessRights>{right}</AccessRights></Rights>"
        f"<PrimaryKey>{right}-key-which-is-long-enough-0123456789012345</PrimaryKey></AuthorizationRule>"
        for right in ("Send", "Listen")
    )
    http("PUT", "rest-claims", entry("QueueDescription", f"<AuthorizationRules>{rules}</AuthorizationRules>"))

    def token(right: str, path: str = "rest-claims") -> str:
        return http.token(path, name=right, key=f"{right}-key-which-is-long-enough-0123456789012345")

    messages, head = "rest-claims/messages", "rest-claims/messages/head?timeout=5"
    assert http("POST", messages, b"x", token=None).status == 401
    assert http("POST", messages, b"x", token=token("Listen")).status == 401
    assert http("POST", messages, b"x", token=token("Send")).status == 201
    assert http("POST", messages, b"y", token=token("Send", messages)).status == 201
    assert http("DELETE", head, token=token("Send")).status == 401
    assert http("DELETE", head, token=token("Listen")).status == 200
    locked = http("POST", head, token=token("Listen", "rest-claims/messages/head"))
    assert locked.status == 201
    assert http("DELETE", lock_path(locked), token=token("Send")).status == 401
    assert http("DELETE", lock_path(locked), token=token("Listen")).status == 200
    assert http("POST", "another/messages", b"x", token=token("Send")).status == 401


def test_an_entity_may_be_called_as_an_address_of_messages(http: Http) -> None:
    """And who may use it may not use the other one therefore."""
    http("PUT", "ambiguous", entry("QueueDescription"))
    http("PUT", "ambiguous/messages", entry("QueueDescription"))
    narrow = http.token("ambiguous/messages")
    assert http("POST", "ambiguous/messages/head?timeout=0", token=narrow).status == 401
    assert http("GET", "ambiguous/messages", token=narrow).status == 200
    assert http("POST", "ambiguous/messages/messages", b"x", token=narrow).status == 201
    assert http("DELETE", "ambiguous/messages/messages/head?timeout=5", token=narrow).status == 200
    assert http("DELETE", "ambiguous/messages").status == 200
    assert http("POST", "ambiguous/messages", b"x").status == 201


def test_a_waiting_request_ends_when_the_queue_is_deleted(
    http: Http, broker: BrokerProcess, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    with socket.create_connection(("127.0.0.1", urlsplit(broker.http_url).port or 0), timeout=EVENTUALLY_S) as client:
        head = (
            f"DELETE /{queue}/messages/head?timeout=20 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {http.token()}\r\n"
        )
        client.sendall(head.encode() + b"\r\n")
        assert http("GET", queue).status == 200
        assert http("DELETE", queue).status == 200
        assert client.recv(100).startswith(b"HTTP/1.1 410")
