"""Traces of clients go on through the broker: a collector gets real spans over OTLP (docs/tracing.md)."""

from __future__ import annotations

import gzip
import secrets
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusReceiveMode
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from partibus.clock import SystemClock
from partibus.namespace.connection_string import parse_connection_string
from partibus.namespace.sas import make_token
from partibus.testing.broker_process import BrokerProcess
from tests.kit.azure_receiving import receive_exactly
from tests.kit.eventually import EVENTUALLY_S


class Collector:
    """An OTLP endpoint that keeps what it gets."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.resources: list[dict[str, Any]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path == "/v1/traces":
                    collector.take(body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for of_resource in request.resource_spans:
            self.resources.append(values(of_resource.resource.attributes))
            for scope in of_resource.scope_spans:
                for span in scope.spans:
                    self.spans.append(
                        {
                            "name": span.name,
                            "trace": span.trace_id.hex(),
                            "parent": span.parent_span_id.hex(),
                            "ns": span.end_time_unix_nano - span.start_time_unix_nano,
                            "start": span.start_time_unix_nano,
                            "failed": span.status.code == 2,
                            **values(span.attributes),
                        }
                    )

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


class Trace:
    """The trace of one message; ``flags``: 01 is sampled."""

    def __init__(self, flags: str = "01", name: str = "traceparent") -> None:
        self.trace, self.span = secrets.token_hex(16), secrets.token_hex(8)
        self._properties = {name: f"00-{self.trace}-{self.span}-{flags}"}

    def message(self, body: str = "x", **more: Any) -> ServiceBusMessage:
        return ServiceBusMessage(body, application_properties={**self._properties, "other": 1}, **more)  # type: ignore[dict-item]


def receive(client: ServiceBusClient, queue: str, count: int, **options: Any) -> list[ServiceBusReceivedMessage]:
    """Received, and completed unless they were deleted as they came."""
    with client.get_queue_receiver(queue, max_wait_time=EVENTUALLY_S, **options) as receiver:
        taken = receive_exactly(receiver, count)
        if not options:
            for message in taken:
                receiver.complete_message(message)
    return taken


@pytest.mark.parametrize("brokers", [1, 2])
def test_a_trace_goes_on_through_send_delivery_settlement_and_forwarding(
    tmp_path: Path, collector: Collector, brokers: int
) -> None:
    arguments = ("--otlp-endpoint", collector.url, *(("--brokers", "2") if brokers > 1 else ()))
    traced, old, unsampled = Trace(), Trace(name="Diagnostic-Id"), Trace(flags="00")
    with BrokerProcess(tmp_path, arguments=arguments) as broker:
        target = broker.create_queue("target", EnablePartitioning=True)
        first = broker.create_queue("first", ForwardTo=target)
        with ServiceBusClient.from_connection_string(broker.connection_string) as client:
            with client.get_queue_sender(first) as sender:
                sender.send_messages([traced.message(), old.message(), unsampled.message(), ServiceBusMessage("none")])
            receive(client, target, 4)
        broker.stop()
    found = {(span["trace"], span["messaging.operation.name"]): span for span in collector.spans}
    steps = ("send", "forward", "deliver", "settle")
    assert set(found) == {(trace, step) for trace in (traced.trace, old.trace) for step in steps}
    assert len(collector.spans) == len(found)
    for trace in (traced, old):
        spans = [found[trace.trace, step] for step in steps]
        assert {span["parent"] for span in spans} == {trace.span}
        assert [span["messaging.destination.name"] for span in spans] == [first, first, target, target]
        assert not any(span["failed"] for span in spans)
        assert all(span["ns"] >= 0 for span in spans)
        assert all(span["partibus.namespace"] == "default" for span in spans)
        assert spans[1]["partibus.forwarded.to"] == target
        assert spans[2]["messaging.servicebus.message.delivery_count"] == 1
        assert spans[3]["messaging.servicebus.disposition_status"] == "COMPLETE"
        assert spans[0]["start"] <= spans[3]["start"]
    assert {one["service.name"] for one in collector.resources} == {"partibus"}
    assert {one["service.instance.id"] for one in collector.resources} <= {"broker-0", "broker-1"}


def test_the_standard_variables_are_enough(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for by the standard variable alone, with a name for the service."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders-broker")
    trace = Trace()
    with BrokerProcess(tmp_path, arguments=("--clock", "manual")) as broker:
        queue = broker.create_queue("orders", LockDuration="PT5S")
        with ServiceBusClient.from_connection_string(broker.connection_string) as client:
            with client.get_queue_sender(queue) as sender:
                sender.send_messages(trace.message())
            with client.get_queue_receiver(queue, max_wait_time=EVENTUALLY_S) as receiver:
                (message,) = receiver.receive_messages(1)
                receiver.abandon_message(message)
            receive(client, queue, 1, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
        broker.stop()
    steps = [
        (span["messaging.operation.name"], span.get("messaging.servicebus.disposition_status"))
        for span in collector.spans
    ]
    assert sorted(steps, key=str) == [("deliver", None), ("deliver", None), ("send", None), ("settle", "ABANDON")]
    assert {one["service.name"] for one in collector.resources} == {"orders-broker"}


def test_what_is_scheduled_received_by_number_or_over_http_belongs_to_its_trace(
    tmp_path: Path, collector: Collector
) -> None:
    later, deferred, over_http = Trace(), Trace(), Trace()
    with BrokerProcess(tmp_path, arguments=("--clock", "manual", "--otlp-endpoint", collector.url)) as broker:
        queue = broker.create_queue("orders")
        with ServiceBusClient.from_connection_string(broker.connection_string) as client:
            with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
                due = datetime.fromtimestamp(broker.now_ms() / 1_000 + 60, UTC)
                sender.schedule_messages(later.message(), due)
                sender.send_messages(deferred.message())
                (message,) = receiver.receive_messages(1, max_wait_time=EVENTUALLY_S)
                receiver.defer_message(message)
                assert message.sequence_number is not None
                (message,) = receiver.receive_deferred_messages(message.sequence_number)
                receiver.complete_message(message)
            with client.get_queue_sender(queue) as sender:
                sender.send_messages(over_http.message())
        url = f"{broker.http_url}/{queue}/messages"
        lock = http(broker, "POST", f"{url}/head")
        assert lock is not None
        http(broker, "PUT", lock)
        lock = http(broker, "POST", f"{url}/head")
        assert lock is not None
        http(broker, "DELETE", lock)
        broker.advance(61_000)
        assert http(broker, "DELETE", f"{url}/head") is None
        broker.stop()
    found = {
        trace: [
            (span["messaging.operation.name"], span.get("messaging.servicebus.disposition_status"))
            for span in collector.spans
            if (span["trace"], span["parent"]) == (trace.trace, trace.span) and not span["failed"]
        ]
        for trace in (later, deferred, over_http)
    }
    assert sorted(found[later], key=str) == [("deliver", None), ("send", None)]
    assert Counter(found[deferred]) == {
        ("send", None): 1,
        ("deliver", None): 2,
        ("settle", "DEFER"): 1,
        ("settle", "COMPLETE"): 1,
    }
    assert Counter(found[over_http]) == {
        ("send", None): 1,
        ("deliver", None): 2,
        ("settle", "ABANDON"): 1,
        ("settle", "COMPLETE"): 1,
    }
    assert len(collector.spans) == 12


def http(broker: BrokerProcess, method: str, url: str) -> str | None:
    """Where the lock of the message is that came, if there is one. Other answers than success are errors."""
    shown = parse_connection_string(broker.connection_string)
    token = make_token("http://127.0.0.1", shown.key_name, shown.key, SystemClock().now_ms() // 1_000 + 3_600)
    request = Request(url, b"" if method != "DELETE" else None, {"Authorization": token}, method=method)
    with urlopen(request, timeout=EVENTUALLY_S) as response:
        where: str | None = response.headers.get("Location")
        assert response.status in (200, 201)
        return where


def test_a_collector_that_is_away_harms_nobody(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, arguments=("--otlp-endpoint", "http://127.0.0.1:9")) as broker:
        queue = broker.create_queue("orders")
        with ServiceBusClient.from_connection_string(broker.connection_string) as client:
            with client.get_queue_sender(queue) as sender:
                sender.send_messages(Trace().message("there"))
            (message,) = receive(client, queue, 1)
        assert str(message) == "there"
