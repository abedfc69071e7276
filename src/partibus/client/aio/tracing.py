"""Spans of a client's operations by OpenTelemetry, with the names, attributes and properties of the service's clients.

Only clients with a `tracer_provider` import this module.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from partibus.amqp.errors import DecodeError
from partibus.client.messages import IncomingMessage, OutgoingMessage

PARENT: Final = "traceparent"
STATE: Final = "tracestate"
DIAGNOSTIC_ID: Final = "Diagnostic-Id"
"""The older name of `PARENT`, which clients of the service write too."""
_NAMESPACE: Final = {"az.namespace": "Microsoft.ServiceBus", "messaging.system": "servicebus"}
_CONTEXT: Final = TraceContextTextMapPropagator()


class Tracing:
    """The tracer of one client."""

    def __init__(self, provider: TracerProvider, host: str) -> None:
        self._tracer = provider.get_tracer("partibus.client")
        self._host = host

    def message(self, message: OutgoingMessage) -> tuple[OutgoingMessage, SpanContext | None]:
        """Return a message that names a span of its own, and that span.

        A message that names one already stays as it is: a program forwards it.
        """
        properties = message.application_properties
        if PARENT in properties or DIAGNOSTIC_ID in properties:
            return message, _named(properties)
        with self._tracer.start_span("ServiceBus.message", kind=SpanKind.PRODUCER, attributes=_NAMESPACE) as span:
            written: dict[str, str] = {}
            _CONTEXT.inject(written, set_span_in_context(span))
        if PARENT not in written:
            return message, None
        named = {**properties, DIAGNOSTIC_ID: written[PARENT], **written}
        return replace(message, application_properties=named), span.get_span_context()

    def sending(
        self, entity: str, messages: "Sequence[SpanContext | None]", results: "Sequence[asyncio.Future[None]]"
    ) -> None:
        """Follow one transfer from now until all of its messages have their results."""
        links = [Link(one) for one in messages if one is not None]
        self._follow(self._span("ServiceBus.send", "publish", entity, links, len(results)), results)

    def settling(self, operation: str, entity: str, message: IncomingMessage, result: "asyncio.Future[None]") -> None:
        """Follow the settlement of a message until it has its result."""
        self._follow(self._span(f"ServiceBus.{operation}", "settle", entity, _links([message])), [result])

    def received(self, entity: str, messages: Sequence[IncomingMessage], began_ns: int) -> None:
        """Record a call that received messages, with links to their spans."""
        span = self._span("ServiceBus.receive", "receive", entity, _links(messages), len(messages), began_ns)
        span.end()

    def _span(
        self, name: str, operation: str, entity: str, links: Sequence[Link], count: int = 1, began_ns: int | None = None
    ) -> Span:
        attributes: dict[str, str | int] = {
            **_NAMESPACE,
            "messaging.operation": operation,
            "messaging.destination.name": entity,
            "net.peer.name": self._host,
        }
        if operation != "settle":
            # The names from before the conventions for messaging, which the service's clients still write.
            attributes |= {"message_bus.destination": entity, "peer.address": self._host}
        if count > 1:
            attributes["messaging.batch.message_count"] = count
        return self._tracer.start_span(
            name, kind=SpanKind.CLIENT, attributes=attributes, links=links, start_time=began_ns
        )

    def _follow(self, span: Span, results: "Sequence[asyncio.Future[None]]") -> None:
        """End a span with the last of some results; the first error is the span's."""
        left = len(results)
        failed = False

        def done(result: "asyncio.Future[None]") -> None:
            nonlocal left, failed
            left -= 1
            error = asyncio.CancelledError() if result.cancelled() else result.exception()
            if error is not None and not failed:
                failed = True
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(Status(StatusCode.ERROR, str(error)))
            if not left:
                span.end()

        for result in results:
            result.add_done_callback(done)


def _links(messages: Iterable[IncomingMessage]) -> list[Link]:
    """Return links to the spans that messages name."""
    links: list[Link] = []
    for message in messages:
        try:
            context = _named(message.application_properties)
            enqueued_ms = message.enqueued_ms
        except DecodeError:
            continue
        if context is not None:
            links.append(Link(context, None if enqueued_ms is None else {"enqueuedTime": enqueued_ms}))
    return links


def _named(properties: Mapping[str, object]) -> SpanContext | None:
    """Return the span that application properties name; None without a valid one."""
    carrier: dict[str, str] = {}
    found = {PARENT: properties.get(PARENT) or properties.get(DIAGNOSTIC_ID), STATE: properties.get(STATE)}
    for name, value in found.items():
        text = value.decode("ascii", "replace") if isinstance(value, bytes) else value  # Some libraries write binary.
        if isinstance(text, str):
            carrier[name] = text
    context = get_current_span(_CONTEXT.extract(carrier)).get_span_context()
    return context if context.is_valid else None
