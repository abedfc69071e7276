"""Export of spans to an OpenTelemetry collector over HTTP, on a thread of the SDK.

Only this module knows OpenTelemetry. The standard variables ``OTEL_*`` set the rest: headers, certificates, batch
sizes, the name of the service.
"""

from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from partibus.tracing.tracer import Span, Step

TIMEOUT_S: Final = 5
"""Time-out of one export. A graceful stop waits for the last one."""
TRACES_PATH: Final = "/v1/traces"
_KINDS: Final = {
    Step.SEND: SpanKind.SERVER,
    Step.DELIVER: SpanKind.PRODUCER,
    Step.SETTLE: SpanKind.SERVER,
    Step.FORWARD: SpanKind.INTERNAL,
}
_OPERATIONS: Final = {Step.SEND: "send", Step.DELIVER: "receive", Step.SETTLE: "settle", Step.FORWARD: "process"}


class Exporter:
    """The exporter of one broker process."""

    def __init__(self, endpoint: str, broker: str) -> None:
        """Export to the collector at ``endpoint``, a URL without the path; empty: as the variables say."""
        sent_to = (
            OTLPSpanExporter(endpoint.rstrip("/") + TRACES_PATH, timeout=TIMEOUT_S) if endpoint else OTLPSpanExporter()
        )
        named = Resource.create({"service.name": "partibus"}).merge(Resource({"service.instance.id": broker}))
        # A service name from the environment takes precedence.
        from_environment = Resource.create()
        if not str(from_environment.attributes.get("service.name", "")).startswith("unknown_service"):
            named = named.merge(from_environment)
        self._provider = TracerProvider(resource=named, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(sent_to))
        self._tracer = self._provider.get_tracer("partibus")

    def keep(self, span: Span) -> None:
        """Queue a span for export. The SDK drops it when too many wait."""
        parent = SpanContext(span.parent.trace_id, span.parent.span_id, is_remote=True, trace_flags=TraceFlags(1))
        attributes: dict[str, str | int] = {
            "messaging.system": "servicebus",
            "messaging.operation.type": _OPERATIONS[span.step],
            "messaging.operation.name": span.step.value,
            "messaging.destination.name": span.entity,
            "partibus.namespace": span.namespace,
            **dict(span.details),
        }
        if span.error is not None:
            attributes["error.type"] = span.error
        made = self._tracer.start_span(
            f"{span.step.value} {span.entity}",
            context=set_span_in_context(NonRecordingSpan(parent)),
            kind=_KINDS[span.step],
            attributes=attributes,
            start_time=span.since_ns,
        )
        if span.error is not None:
            made.set_status(Status(StatusCode.ERROR))
        made.end(span.until_ns)

    def close(self) -> None:
        """Export what is left. Blocks for some seconds at most."""
        self._provider.shutdown()
