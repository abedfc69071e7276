"""Values that the SQS port remembers between requests: header lines, and queues by their names."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from uuid import RFC_4122, UUID

import pytest
from starlette.types import Message, Receive, Scope, Send

from partibus.frontends.admission import Admission
from partibus.frontends.origins import Origins
from partibus.frontends.sqs import http_request
from partibus.frontends.sqs.names import QueueName
from partibus.frontends.sqs.queues import SqsQueue
from partibus.frontends.sqs.web import WithSqs
from partibus.limits import KIB, MIB, AdmissionLimits
from partibus.node.sqs_port import Uuids
from tests.unit.frontends.harness import World
from tests.unit.frontends.sqs.harness import SqsWorld


@pytest.fixture
def sqs(tmp_path: Path) -> SqsWorld:
    return SqsWorld(World(tmp_path))


def with_line(sqs: SqsWorld, line: bytes) -> bytes:
    """Return a signed request with one more header line, which is not signed."""
    return sqs.signer.request("ListQueues", {}).replace(b"User-Agent:", line + b"\r\nUser-Agent:", 1)


@pytest.mark.parametrize(
    "line",
    [b"X-Note: a\nX-Other: b", b"X-Note: a\rb", b"X-Note: a\0b", b"X Note: a", b"X-Note : a", b": a", b"X-Note", b""],
    ids=["line feed", "carriage return", "NUL", "blank inside", "blank behind", "no name", "no colon", "empty"],
)
def test_a_line_that_is_no_header_is_refused(sqs: SqsWorld, line: bytes) -> None:
    if not line:  # it would end the head
        line = b"\r"
    assert sqs.ask(with_line(sqs, line)).status == 400


@pytest.mark.parametrize("name", [b"Host", b"Content-Length"])
def test_a_repeated_header_that_decides_is_refused_also_when_its_line_is_known(sqs: SqsWorld, name: bytes) -> None:
    request = sqs.signer.request("ListQueues", {})
    assert sqs.ask(request).status == 200
    line = next(one for one in request.split(b"\r\n") if one.startswith(name))
    reply = sqs.ask(with_line(sqs, line))
    assert reply.status == 400
    assert b"repeated" in reply.body


def test_values_of_a_repeated_header_are_joined(sqs: SqsWorld) -> None:
    url = sqs.call("CreateQueue", QueueName="q")["QueueUrl"]
    request = sqs.signer.request("SendMessage", {"QueueUrl": url, "MessageBody": "b"})
    lines = b"X-Amzn-Trace-Id: Root=1\r\nx-amzn-trace-id:  Parent=2 \r\nUser-Agent:"
    assert sqs.ask(request.replace(b"User-Agent:", lines, 1)).status == 200
    (message,) = sqs.call("ReceiveMessage", QueueUrl=url, AttributeNames=["All"])["Messages"]
    assert message["Attributes"]["AWSTraceHeader"] == "Root=1,Parent=2"


def test_lines_are_remembered_within_a_bound(sqs: SqsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_request, "FIELDS_MAX", 5)
    for number in range(50):
        assert sqs.ask(with_line(sqs, b"Accept: text/%d" % number)).status == 200
        assert len(http_request.KNOWN_FIELDS) <= 5
    monkeypatch.setattr(http_request, "FIELDS_MAX", 1_000)
    long = "Accept: " + "x" * http_request.FIELD_CHARS
    assert sqs.ask(with_line(sqs, long.encode())).status == 200
    assert long not in http_request.KNOWN_FIELDS
    assert not any(line.startswith("Authorization") for line in http_request.KNOWN_FIELDS)


def test_a_queue_found_before_is_not_found_after_other_clients_have_deleted_it(sqs: SqsWorld) -> None:
    url = sqs.call("CreateQueue", QueueName="q", Attributes={"DelaySeconds": "7"})["QueueUrl"]
    assert sqs.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])["Attributes"]["DelaySeconds"] == "7"
    sqs.world.broker.delete("q")
    assert sqs.ask(sqs.signer.request("ListQueueTags", {"QueueUrl": url})).status == 400
    sqs.world.queue("q")
    attributes = sqs.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert attributes["DelaySeconds"] == "0"


def test_deleted_queues_are_forgotten(sqs: SqsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partibus.frontends.sqs.queues.KEPT_MIN", 10)
    queues = sqs.service.queues_of(sqs.world.broker)
    for number in range(50):
        name = sqs.world.queue(f"q{number}")
        queues.find(sqs.world.broker, QueueName("us-east-1", name))
        sqs.world.broker.delete(name)
    gc.collect()
    kept = [one for one in gc.get_objects() if isinstance(one, SqsQueue) and one.queue.name.startswith("q")]
    assert len(kept) <= 10


def test_ids_are_random_uuids_each_given_once() -> None:
    uuids = Uuids()
    made = [uuids.next() for _ in range(70)] + uuids.some(10) + uuids.some(100) + [uuids.next() for _ in range(20)]
    assert len(set(made)) == len(made) == 200
    for text in made:
        found = UUID(text)
        assert (str(found), found.version, found.variant) == (text, 4, RFC_4122)


def test_a_page_whose_name_points_at_this_machine_sends_nothing(sqs: SqsWorld) -> None:
    sqs.server.origins = Origins(public_key=True)
    request = b"GET /?Action=ListQueues HTTP/1.1\r\nHost: evil.example:9324\r\n%b\r\n"
    assert sqs.ask(request % b"").status == 403  # for its missing signature
    reply = sqs.ask(request % b"User-Agent: Mozilla/5.0 AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0\r\n")
    assert reply.status == 403
    assert b"A browser's SQS request to 'evil.example:9324' is refused" in reply.body


HEADS = [b"Content-Length: 8388608\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n800000\r\n"]


@pytest.mark.parametrize("head", HEADS, ids=["length", "chunks"])
def test_bodies_without_a_claim_are_bounded_over_all_connections(sqs: SqsWorld, head: bytes) -> None:
    sqs.server.admission = Admission(AdmissionLimits(bodies_bytes_max=MIB), sqs.server.loop.time)
    strangers = [sqs.connect() for _ in range(24)]
    for stranger in strangers:
        stranger.send(b"POST / HTTP/1.1\r\nHost: localhost\r\n" + head)
        stranger.send(b"x" * 200 * KIB)
    assert [one.transport.closed for one in strangers] == [True] * 19 + [False] * 5


def test_a_claim_and_an_answer_end_the_bound_on_a_body(sqs: SqsWorld) -> None:
    sqs.server.admission = Admission(AdmissionLimits(bodies_bytes_max=MIB), sqs.server.loop.time)
    url = sqs.call("CreateQueue", QueueName="q")["QueueUrl"]
    send = sqs.signer.request("SendMessage", {"QueueUrl": url, "MessageBody": "x" * 600 * KIB})
    forged = sqs.signer_of("root", key="no-key-of-this-policy").request(
        "SendMessage", {"QueueUrl": url, "MessageBody": "x" * 600 * KIB}
    )
    clients = [sqs.connect() for _ in range(6)]
    for client, request in zip(clients, [send, send, forged, forged, send, send], strict=True):
        client.send(request)
        sqs.world.wait()
    assert [client.replies()[0].status for client in clients] == [200, 200, 403, 403, 200, 200]
    assert not any(client.transport.closed for client in clients)


def test_an_answer_to_what_is_no_request_of_sqs_has_an_id_too(sqs: SqsWorld) -> None:
    sqs.server.origins = Origins(public_key=True)
    page = (
        b"GET /?Action=ListQueues HTTP/1.1\r\nHost: evil.example:9324\r\nUser-Agent: Mozilla/5.0 Chrome/140.0\r\n\r\n"
    )
    large = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8388609\r\n\r\n"
    requests = (b"nothing\r\n\r\n", large, page, sqs.signer.request("ListQueues", {}))
    replies = [sqs.ask(request) for request in requests]
    assert [reply.status for reply in replies] == [400, 413, 403, 200]
    ids = {UUID(reply.headers["x-amzn-requestid"]) for reply in replies}
    assert len(ids) == len(replies)


@pytest.mark.parametrize(("site", "body_bytes", "status"), [("cross-site", 0, 403), ("none", 8 * MIB + 1, 413)])
def test_an_answer_of_the_http_port_to_what_is_no_request_of_sqs_has_an_id_too(
    sqs: SqsWorld, site: str, body_bytes: int, status: int
) -> None:
    async def no_app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("the request is one of SQS")

    async def receive() -> Message:
        return {"type": "http.request", "body": b"x" * body_bytes}

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"sec-fetch-site", site.encode())]
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"Action=ListQueues", "headers": headers}
    asyncio.run(WithSqs(no_app, sqs.service, Origins())(scope, receive, send))
    assert sent[0]["status"] == status
    assert UUID(dict(sent[0]["headers"])[b"x-amzn-requestid"].decode()).version == 4
