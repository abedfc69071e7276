"""Spans of the client: their names and links, and the properties that carry them (docs/tracing.md)."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from partibus.amqp import AmqpError
from partibus.client.aio import OutgoingMessage
from partibus.client.errors import InvalidRequest
from partibus.client.messages import IncomingMessage
from partibus.errors import ArgumentError
from tests.unit.client.simulated import SimulatedBroker, run


def traced() -> tuple[TracerProvider, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


async def ended() -> None:
    """Let the callbacks of results run, which end spans."""
    await asyncio.sleep(0)


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def test_a_message_carries_its_span_from_the_send_to_the_settlement() -> None:
    async def work() -> None:
        provider, exporter = traced()
        broker = SimulatedBroker()
        client = broker.client(tracer_provider=provider)
        with provider.get_tracer("program").start_as_current_span("order") as program:
            sender = client.sender("q")
            await asyncio.gather(*[sender.send(OutgoingMessage(body=b"%d" % number)) for number in range(3)])
        await ended()
        messages = named(exporter, "ServiceBus.message")
        assert [one.kind for one in messages] == [SpanKind.PRODUCER] * 3
        assert {ids(one)[0] for one in messages} == {program.get_span_context().trace_id}
        (send,) = named(exporter, "ServiceBus.send")
        assert send.kind is SpanKind.CLIENT
        assert linked(send) == [ids(one) for one in messages]
        assert send.parent is not None
        assert send.parent.span_id == program.get_span_context().span_id
        assert send.attributes is not None
        assert send.attributes["messaging.batch.message_count"] == 3
        assert send.attributes["messaging.operation"] == "publish"
        assert send.attributes["messaging.destination.name"] == "q"
        for payload, span in zip(broker.stored["q"], messages, strict=True):
            trace_id, span_id = ids(span)
            properties = IncomingMessage(payload).application_properties
            assert properties["traceparent"] == properties["Diagnostic-Id"]
            assert str(properties["traceparent"]).startswith(f"00-{trace_id:032x}-{span_id:016x}-")

        receiver = client.receiver("q")
        got = await receiver.receive(3)
        await receiver.complete(got[0])
        await receiver.abandon(got[1])
        await receiver.dead_letter(got[2])
        await ended()
        (receive,) = named(exporter, "ServiceBus.receive")
        assert linked(receive) == [ids(one) for one in messages]
        for operation, message in (("complete", messages[0]), ("abandon", messages[1]), ("dead-letter", messages[2])):
            (settle,) = named(exporter, f"ServiceBus.{operation}")
            assert linked(settle) == [ids(message)]
            assert settle.attributes is not None
            assert settle.attributes["messaging.operation"] == "settle"
        await client.close()

    run(work())


def test_a_message_that_names_a_span_keeps_it() -> None:
    async def work() -> None:
        provider, exporter = traced()
        broker = SimulatedBroker()
        client = broker.client(tracer_provider=provider)
        known = f"00-{1:032x}-{2:016x}-01"
        await client.sender("q").send(OutgoingMessage(application_properties={"traceparent": known}))
        await ended()
        assert named(exporter, "ServiceBus.message") == []
        (send,) = named(exporter, "ServiceBus.send")
        assert linked(send) == [(1, 2)]
        (payload,) = broker.stored["q"]
        assert IncomingMessage(payload).application_properties == {"traceparent": known}
        await client.close()

    run(work())


def test_a_refused_send_is_an_error_of_its_span() -> None:
    async def work() -> None:
        provider, exporter = traced()
        broker = SimulatedBroker()
        broker.refuse = lambda payload: AmqpError("amqp:not-allowed", "no")
        client = broker.client(tracer_provider=provider)
        with pytest.raises(InvalidRequest):
            await client.sender("q").send(OutgoingMessage())
        await ended()
        (send,) = named(exporter, "ServiceBus.send")
        assert send.status.status_code is StatusCode.ERROR
        assert send.attributes is not None
        assert send.attributes["error.type"] == "InvalidRequest"
        await client.close()

    run(work())


def test_a_batch_of_the_callers_own_is_one_span_with_a_link_for_each_message() -> None:
    async def work() -> None:
        provider, exporter = traced()
        broker = SimulatedBroker()
        client = broker.client(tracer_provider=provider)
        await client.sender("q").send_batch([OutgoingMessage(), OutgoingMessage()])
        await ended()
        (send,) = named(exporter, "ServiceBus.send")
        assert linked(send) == [ids(one) for one in named(exporter, "ServiceBus.message")]
        assert len(linked(send)) == 2
        await client.close()

    run(work())


def test_without_a_provider_messages_stay_as_they_are() -> None:
    async def work() -> None:
        broker = SimulatedBroker()
        client = broker.client()
        await client.sender("q").send(OutgoingMessage())
        assert IncomingMessage(broker.stored["q"][0]).application_properties == {}
        await client.close()
        with pytest.raises(ArgumentError, match="TracerProvider"):
            broker.client(tracer_provider="yes")

    run(work())
