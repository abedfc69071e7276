"""Which messages have a trace, and which spans are made of what is done with them."""

from __future__ import annotations

import pytest

from partibus.amqp.section_encoding import encode_application_properties, encode_data
from partibus.errors import StoreUnavailable
from partibus.message import pack
from partibus.tracing.tracer import HELD_MAX, SPANS_MAX, Held, Parent, Span, Step, Tracer, parent_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
VALUE = f"00-{TRACE}-{SPAN}-01"
PARENT = Parent(int(TRACE, 16), int(SPAN, 16))


def stored(properties: dict[str, object], body: bytes = b"x") -> bytes:
    return pack(application_properties=encode_application_properties(properties), rest=encode_data(body))


@pytest.mark.parametrize("name", ["traceparent", "Diagnostic-Id"])
def test_a_sampled_trace_is_found(name: str) -> None:
    assert parent_of(stored({"a": 1, name: VALUE, "z": "y"})) == PARENT


@pytest.mark.parametrize(
    "value",
    [
        f"00-{TRACE}-{SPAN}-00",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"01-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        "",
    ],
)
def test_what_is_not_sampled_or_unreadable_has_none(value: str) -> None:
    assert parent_of(stored({"traceparent": value})) is None


def test_what_a_body_says_is_no_trace() -> None:
    spoof = b"traceparent\xa1\x37" + VALUE.encode()
    assert parent_of(stored({}, spoof)) is None
    assert parent_of(stored({"traceparent": 7}, spoof)) is None
    assert parent_of(b"\x09traceparent" + bytes(40)) is None  # a stored form of another version


class Kept:
    """Spans, and a clock that is moved."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.now_ns = 1_000_000_000
        self.tracer = Tracer("acme", self.spans.append, lambda: self.now_ns)


def test_each_message_of_a_send_has_a_span_and_the_error_of_its_batch() -> None:
    kept = Kept()
    traced, plain = stored({"traceparent": VALUE}), stored({})
    answers: list[object] = []
    sent = kept.tracer.sending("orders", [[traced], [plain], [plain, traced]], answers.append)
    kept.now_ns += 5
    errors = [None, None, StoreUnavailable("away")]
    sent(list(errors))
    assert answers == [errors]
    assert [(span.error, span.until_ns - span.since_ns) for span in kept.spans] == [(None, 5), ("StoreUnavailable", 5)]
    assert {(span.step, span.parent, span.namespace, span.entity) for span in kept.spans} == {
        (Step.SEND, PARENT, "acme", "orders")
    }


def test_without_a_trace_nobody_comes_between() -> None:
    answers: list[object] = []
    on_sent = answers.append
    assert Kept().tracer.sending("orders", [[stored({})]], on_sent) is on_sent


def test_a_batch_has_so_many_spans_at_most() -> None:
    kept = Kept()
    traced = stored({"traceparent": VALUE})
    kept.tracer.sending("orders", [[traced] * 60, [traced] * 60], lambda errors: None)(None)
    assert len(kept.spans) == SPANS_MAX
    Held(kept.tracer, "orders").delivered(1, 1, [(pos, traced, 0, 1) for pos in range(2 * SPANS_MAX)], settles=True)
    assert len(kept.spans) == 2 * SPANS_MAX


def test_a_settlement_belongs_to_the_message_that_was_delivered() -> None:
    kept = Kept()
    held = Held(kept.tracer, "orders")
    held.delivered(7, 2, [(10, stored({}), 0, 1), (11, stored({"traceparent": VALUE}), 400, 3)], settles=True)
    (delivered,) = kept.spans
    assert (delivered.step, delivered.since_ns, delivered.until_ns) == (Step.DELIVER, 400_000_000, kept.now_ns)
    assert dict(delivered.details) == {"messaging.servicebus.message.delivery_count": 3}
    assert held.settling(8, [(2, 11)], "COMPLETE") is None, "another partition"
    settled = held.settling(7, [(2, 10), (2, 11)], "COMPLETE")
    assert settled is not None
    kept.now_ns += 9
    settled(None)
    assert (kept.spans[-1].step, kept.spans[-1].until_ns - kept.spans[-1].since_ns) == (Step.SETTLE, 9)
    assert held.settling(7, [(2, 11)], "COMPLETE") is None, "it is settled"


def test_who_never_settles_is_forgotten() -> None:
    kept = Kept()
    held = Held(kept.tracer, "orders")
    traced = stored({"traceparent": VALUE})
    for pos in range(HELD_MAX + 1):
        held.delivered(1, 1, [(pos, traced, 0, 1)], settles=True)
    assert held.settling(1, [(1, 0)], "COMPLETE") is None
    assert held.settling(1, [(1, 1)], "COMPLETE") is not None
