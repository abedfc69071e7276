"""Any input or output over HTTP gives answers, no faults of ours, and takes no more memory than is allowed
(the fixture looks)."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from urllib.parse import urlsplit
from uuid import UUID

import pytest

from partibus.amqp.codec.performatives import ACCEPTED, Attach, Disposition
from partibus.amqp.codec.types import Char, Decimal128, Symbol, Timestamp, ULong
from partibus.amqp.section_encoding import (
    encode_application_properties,
    encode_data,
    encode_properties,
    encode_value,
)
from partibus.clock import SystemClock
from partibus.namespace.access import EMULATOR_KEY, ROOT_POLICY
from partibus.namespace.sas import make_token
from partibus.testing.broker_process import BrokerProcess
from tests.conformance.clients.admin import Http, entry
from tests.kit.eventually import EVENTUALLY_S
from tests.robustness.raw import MIB, RawPeer, transfer

BATCH = "application/vnd.microsoft.servicebus.json"
QUEUE = "QueueDescription"
UNKNOWN = UUID(int=7)
BODY_OF_BATCH_MAX = 2 * MIB
"""The most bytes of a batch's body for a queue whose messages have 256 KiB."""


@pytest.fixture
def http(broker: BrokerProcess) -> Http:
    return Http(broker)


def head(http: Http, method: str, path: str, *headers: str) -> bytes:
    return "\r\n".join(
        [f"{method} {path} HTTP/1.1", f"Host: {http.host}", f"Authorization: {http.token()}", *headers, "", ""]
    ).encode()


def answer_to(http: Http, request: bytes, *, ends: bool = False) -> bytes:
    """The first bytes of it; empty when the connection ends without any. ``ends``: nothing more will be sent."""
    host, _, port = http.host.partition(":")
    with socket.create_connection((host, int(port)), timeout=EVENTUALLY_S) as peer:
        peer.sendall(request)
        if ends:
            peer.shutdown(socket.SHUT_WR)
        try:
            return peer.recv(1 << 16)
        except ConnectionError:
            return b""


@pytest.mark.parametrize("item", [b"{}", b'{"":0}', b'{"BrokerProperties":{}}'])
def test_a_batch_of_a_million_messages_is_refused_before_they_are_made(http: Http, item: bytes) -> None:
    count = (BODY_OF_BATCH_MAX - 2) // (len(item) + 1)
    answer = http("POST", "alive/messages", b"[" + b",".join([item] * count) + b"]", Content_Type=BATCH)
    assert (answer.status, "A batch in JSON is at its quota of 40000 values" in answer.detail) == (403, True)
    few = b"[" + b",".join([item] * 5_000) + b"]"
    answer = http("POST", "alive/messages", few, Content_Type=BATCH)
    assert (answer.status, "A batch to 'alive'" in answer.detail) == (403, True)


@pytest.mark.parametrize("item", [b'"a"', b"[[]]", b"0", b'{"a":0}'])
def test_a_batch_with_a_million_of_anything_is_read_within_bounds(http: Http, item: bytes) -> None:
    """The fixture looks at memory and at who else is served."""
    inside = b",".join([item] * ((BODY_OF_BATCH_MAX - 100) // (len(item) + 1)))
    answer = http("POST", "alive/messages", b'[{"Ignored":[' + inside + b"]}]", Content_Type=BATCH)
    assert (answer.status, "at its quota of 40000 values" in answer.detail) == (403, True)
    inside = b",".join([item] * 10_000)
    assert http("POST", "alive/messages", b'[{"Ignored":[' + inside + b"]}]", Content_Type=BATCH).status == 201
    assert http("DELETE", "alive/messages/head?timeout=1").status == 200


def test_names_and_texts_of_odd_characters_are_stored(http: Http) -> None:
    batch = b'[{"Body":"\\ud800","UserProperties":{"\\udfff":"\\ud800"},"BrokerProperties":{"Label":"\\ud800\\r\\n"}}]'
    assert http("POST", "alive/messages", batch, Content_Type=BATCH).status == 201
    answer = http("DELETE", "alive/messages/head?timeout=1")
    assert (answer.status, answer.body) == (200, b"?")
    assert json.loads(answer.headers["brokerproperties"])["Label"] == "?\r\n"


PROPERTIES: dict[str, object] = {
    "text": "x\r\nEvil: 1",
    "Evil\r\nName": "x",
    "Transfer-Encoding": "chunked",
    "Content-Length": "7",
    "Connection": "close",
    "Location": "http://elsewhere",
    "binary": b"\r\n",
    "id": UNKNOWN,
    "early": Timestamp(-(2**62)),
    "late": Timestamp(2**62),
    "infinite": float("inf"),
    "large": ULong(2**64 - 1),
    "decimal": Decimal128(bytes(16)),
    "symbol": Symbol("s"),
    "char": Char("c"),
    "nothing": None,
}
SECTIONS = {
    "content type with blanks": encode_properties(message_id="m", content_type=" x ") + encode_data(b"x"),
    "content type of two lines": encode_properties(message_id="m", content_type="x\r\nEvil: 1") + encode_data(b"x"),
    "ids of two lines": encode_properties(message_id="m\r\nEvil: 1", subject="a\r\nb", to="\r\n") + encode_data(b"x"),
    "a binary id": encode_properties(message_id=b"\xff\r\n") + encode_data(b"x"),
    "properties": encode_properties(message_id="m") + encode_application_properties(PROPERTIES) + encode_data(b"x"),
    "map by guid": encode_value({UNKNOWN: 1}),
    "map by bytes": encode_value({b"a": {b"b": [UNKNOWN, b"\xff"]}}),
    "list of maps": encode_value([[1, [2]], {1: 2}, {"a": {b"x": Timestamp(2**62)}}]),
    "not a number": encode_value(float("nan")),
    "decimal": encode_value(Decimal128(bytes(16))),
}


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS)
def test_what_amqp_can_say_leaves_as_one_answer(broker: BrokerProcess, http: Http, section: bytes) -> None:
    with RawPeer(broker) as peer:
        peer.open()
        peer.attach("alive", sending=True)
        peer.read_until(Attach)
        peer.write(transfer(section, 0))
        assert peer.read_until(Disposition).state == ACCEPTED
    locked = http("POST", "alive/messages/head?timeout=5")
    assert locked.status == 201
    assert http("PUT", urlsplit(locked.headers["location"]).path[1:]).status == 200
    deleted = http("DELETE", "alive/messages/head?timeout=5")
    assert (deleted.status, deleted.body) == (200, locked.body)
    for answer in (locked, deleted):
        assert not any(name.startswith("evil") for name in answer.headers)
        assert "transfer-encoding" not in answer.headers
        assert int(answer.headers["content-length"]) == len(answer.body)


@pytest.mark.parametrize("host", ["[", "[::1", "a b", "user@elsewhere", "elsewhere/alive", ":", ":99999"])
def test_a_host_that_is_none(http: Http, host: str) -> None:
    """A token may name whatever the client calls us."""
    token = make_token(f"http://{host}/", ROOT_POLICY, EMULATOR_KEY, SystemClock().now_ms() // 1000 + 60)
    requests = (("GET", "alive"), ("GET", "missing"), ("GET", "$Resources/Queues"), ("GET", "$namespaceinfo"))
    for method, path in (*requests, ("POST", "alive/messages/head?timeout=0"), ("POST", "missing/messages")):
        answer = http(method, path, token=token, Host=host)
        assert answer.status in (200, 204, 401, 404, 410)


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (["Content-Length: 3", "Content-Length: 4"], b"abcd", b"400"),
        (["Content-Length: -3"], b"abc", b"400"),
        (["Content-Length: +3"], b"abc", b"400"),
        ([f"Content-Length: {'9' * 30}"], b"abc", b"400"),
        (["Content-Length: 99000000000"], b"abc", b"413"),
        (["Content-Length: 100"], b"abc", b""),
        (["Transfer-Encoding: chunked"], b"zz\r\nabc\r\n", b"400"),
        (["Transfer-Encoding: chunked"], b"3\r\nabc\r\n", b""),
    ],
)
def test_lengths_that_lie(broker: BrokerProcess, http: Http, headers: list[str], body: bytes, status: bytes) -> None:
    answer = answer_to(http, head(http, "POST", "/alive/messages", *headers) + body, ends=True)
    assert answer[9:12] == status
    assert broker.describe("alive").messages == 0


def test_a_body_without_end_ends_a_receive(http: Http) -> None:
    """The broker neither reads nor keeps the body of a receive."""
    chunks = b"100000\r\n" + bytes(MIB) + b"\r\n"
    asked = head(http, "POST", "/alive/messages/head?timeout=300", "Transfer-Encoding: chunked")
    assert answer_to(http, asked + 20 * chunks)[9:12] in (b"204", b"413")
    assert http("POST", "alive/messages", b"x").status == 201
    assert http("DELETE", "alive/messages/head?timeout=5").body == b"x"


def test_who_has_left_takes_nothing_along(broker: BrokerProcess, http: Http) -> None:
    host, _, port = http.host.partition(":")
    with ExitStack() as stack:
        for _ in range(500):
            peer = stack.enter_context(socket.create_connection((host, int(port)), timeout=EVENTUALLY_S))
            peer.sendall(head(http, "DELETE", "/parts/messages/head?timeout=300"))
        # All of them are waited for: who comes last gets nothing either.
        assert http("DELETE", "parts/messages/head?timeout=0").status == 204
    for _ in range(20):
        assert http("GET", "parts").status == 200
    for number in range(20):
        assert http("POST", "parts/messages", str(number)).status == 201
    found = {http("DELETE", "parts/messages/head?timeout=5").body for _ in range(20)}
    assert found == {str(number).encode() for number in range(20)}


def test_lock_tokens_of_others_and_twice(broker: BrokerProcess, http: Http) -> None:
    assert http("POST", "alive/messages", b"x").status == 201
    lock = urlsplit(http("POST", "alive/messages/head?timeout=5").headers["location"]).path[1:]
    token = lock.rpartition("/")[2]
    for path in (
        *(f"parts/messages/1/{token}", f"alive/$DeadLetterQueue/messages/1/{token}"),
        *(f"alive/messages/1/{UNKNOWN}", f"alive/messages/1/{UUID(int=2**128 - 1)}"),
    ):
        for method in ("DELETE", "PUT", "POST"):
            assert http(method, path).status == 404
    assert http("DELETE", lock).status == 200
    assert [http(method, lock).status for method in ("DELETE", "PUT", "POST")] == [404, 404, 404]


@pytest.mark.parametrize(
    "name",
    [
        *("a%00b", "..", "../alive", "%2e%2e/alive", "a/../b", "a//b", "%C3%A9", "%FF", "a%5Cb", "a%3Fb", "a%252Fb"),
        *("$x", "$cbs", "alive/$management", "alive/$DeadLetterQueue", "Rules", "a/rules", ".", "%20", "x" * 261),
        *("alive/Subscriptions/s", "ALIVE", "missing/Subscriptions/s", "Subscriptions", "", "/"),
    ],
)
def test_names_that_nothing_can_have(http: Http, name: str) -> None:
    kind = "SubscriptionDescription" if "Subscriptions/" in name else QUEUE
    before = http("GET", "$Resources/Queues").body.count(b"<entry")
    answer = http("PUT", name, entry(kind))
    assert (answer.status in (400, 404, 405, 409), answer.detail != "") == (True, True)
    assert http("GET", "$Resources/Queues").body.count(b"<entry") == before


@pytest.mark.parametrize(
    "body",
    [
        b"",
        bytes(1_000),
        b'<!DOCTYPE a [<!ENTITY a "x"><!ENTITY b "&a;&a;">]><a>&b;</a>',
        b"<a>" * 80_000,
        b'<?xml version="1.0" encoding="rot13"?>' + entry(QUEUE).encode(),
        b'<?xml version="1.0" encoding="hex"?>' + entry(QUEUE).encode(),
        entry(QUEUE, "<LockDuration>PT1M</LockDuration>" * 2).encode(),
        entry(QUEUE, "<a/>" * 50_000).encode(),
        entry(QUEUE, f"<MaxDeliveryCount>{'9' * 5_000}</MaxDeliveryCount>").encode(),
        entry(QUEUE, f"<AutoDeleteOnIdle>PT{'9' * 5_000}S</AutoDeleteOnIdle>").encode(),
    ],
)
def test_documents_that_describe_nothing(http: Http, body: bytes) -> None:
    assert http("PUT", "never", body).status == 400
    assert http("GET", "never").status == 404
