"""Spans of what is done by number, by lock token and in transactions (docs/tracing.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from partibus.amqp import ACCEPTED, Modified
from partibus.partition.protocol.ports import StoreError
from partibus.tracing.tracer import Span, Tracer
from tests.unit.frontends.controller import Controller, send_in, settle_in
from tests.unit.frontends.harness import Client, World, message
from tests.unit.frontends.node_requests import ask, longs, now_ms, number_of, refusal, scheduled, uuids
from tests.unit.frontends.test_deferral import DELETE, PEEK_LOCK, receive
from tests.unit.frontends.test_scheduling import MINUTE_MS, schedule

PROPERTIES = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
STATUS = "messaging.servicebus.disposition_status"


class Traced(World):
    """A peer whose traces are kept."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.spans: list[Span] = []
        self.broker.tracer = Tracer("default", self.spans.append, lambda: now_ms(self) * 1_000_000)

    def steps(self) -> list[tuple[str, object, str | None]]:
        """Return the new steps with the receiver's word and the kind of error."""
        spans, self.spans[:] = self.spans.copy(), []
        assert all(span.entity == "q" and span.since_ns <= span.until_ns for span in spans)
        return [(span.step.value, dict(span.details).get(STATUS), span.error) for span in spans]


@pytest.fixture
def world(tmp_path: Path) -> Traced:
    return Traced(tmp_path)


def deferred(client: Client) -> int:
    """A message with a trace, put aside on its link."""
    client.send(client.sender("q"), message(application_properties=PROPERTIES))
    link = client.receiver("q")
    (delivery,) = client.receive(link, 1)
    client.settle(link, [delivery], Modified(undeliverable_here=True))
    link.detach()
    client.world.wait()
    return number_of(delivery)


def test_what_is_scheduled_is_sent_and_delivered_when_it_is_due(world: Traced) -> None:
    client = world.client()
    link = client.receiver(world.queue("q"))
    later = message(application_properties=PROPERTIES, scheduled_ms=now_ms(world) + MINUTE_MS)
    schedule(client, "q", later, scheduled(now_ms(world) + MINUTE_MS))
    assert world.steps() == [("send", None, None)]
    link.grant(2)
    world.wait(MINUTE_MS + 1_000)
    assert world.steps() == [("deliver", None, None)]


def test_scheduling_that_fails_says_why(world: Traced) -> None:
    client = world.client()
    world.queue("q")
    store = world.store_of("q")
    store.fails, store.stays_away = StoreError("sick", executed=False), True
    later = message(application_properties=PROPERTIES, scheduled_ms=now_ms(world) + MINUTE_MS)
    assert refusal(client, "q", "schedule-message", {"messages": [{"message": later}]})[0] == 503
    assert world.steps() == [("send", None, "StoreUnavailable")]


def test_a_deferred_message_is_delivered_by_its_number_and_settled_by_its_token(world: Traced) -> None:
    client = world.client()
    world.queue("q", LockDuration="PT5S")
    number = deferred(client)
    assert world.steps() == [("send", None, None), ("deliver", None, None), ("settle", "DEFER", None)]
    (item,) = receive(client, "q", [number], PEEK_LOCK)["messages"]
    assert world.steps() == [("deliver", None, None)]
    body = {"disposition-status": "completed", "lock-tokens": uuids([item["lock-token"]])}
    another = world.client()
    world.wait(6_000)
    assert refusal(another, "q", "update-disposition", body)[0] == 410
    assert world.steps() == [("settle", "COMPLETE", "MessageLockLost")]
    (item,) = receive(client, "q", [number], PEEK_LOCK)["messages"]
    body["lock-tokens"] = uuids([item["lock-token"]])
    assert ask(another, "q", "update-disposition", body)[0] == 200
    assert world.steps() == [("deliver", None, None), ("settle", "COMPLETE", None)]


def test_what_is_deleted_as_it_is_received_is_settled_by_nobody(world: Traced) -> None:
    client = world.client()
    world.queue("q")
    number = deferred(client)
    world.steps()
    receive(client, "q", [number], DELETE)
    assert world.steps() == [("deliver", None, None)]


def test_sends_and_settlements_of_a_transaction_end_with_its_commit(world: Traced) -> None:
    client = world.client()
    controller, sender = Controller(client), client.sender(world.queue("q"))
    client.send(sender, message(application_properties=PROPERTIES))
    link = client.receiver("q")
    deliveries = client.receive(link, 1)
    assert world.steps() == [("send", None, None), ("deliver", None, None)]
    transaction = controller.declare()
    send_in(client, sender, transaction, message(application_properties=PROPERTIES), message())
    settle_in(client, link, transaction, deliveries, ACCEPTED)
    body = {"messages": [{"message": message(application_properties=PROPERTIES, scheduled_ms=now_ms(world) + 1_000)}]}
    assert ask(client, "q", "schedule-message", body, transaction=transaction)[0] == 200
    assert world.steps() == []
    controller.commit(transaction)
    assert world.steps() == [("send", None, None), ("settle", "COMPLETE", None), ("send", None, None)]


def test_what_is_rolled_back_was_not_done(world: Traced) -> None:
    client = world.client()
    controller, sender = Controller(client), client.sender(world.queue("q"))
    client.send(sender, message(application_properties=PROPERTIES))
    link = client.receiver("q")
    deliveries = client.receive(link, 1)
    world.steps()
    transaction = controller.declare()
    send_in(client, sender, transaction, message(application_properties=PROPERTIES))
    settle_in(client, link, transaction, deliveries, ACCEPTED)
    controller.discharge(transaction, fail=True)
    why = "TransactionRolledBack"
    assert world.steps() == [("send", None, why), ("settle", "COMPLETE", why)]


def test_a_deferred_message_is_settled_by_its_token_in_a_transaction(world: Traced) -> None:
    client = world.client()
    world.queue("q")
    number = deferred(client)
    (item,) = receive(client, "q", [number], PEEK_LOCK)["messages"]
    world.steps()
    controller = Controller(client)
    body = {"disposition-status": "completed", "lock-tokens": uuids([item["lock-token"]])}
    lost = controller.declare()
    assert ask(client, "q", "update-disposition", body, transaction=lost)[0] == 200
    assert controller.discharge(lost, fail=True) is ACCEPTED
    kept = controller.declare()
    assert ask(client, "q", "update-disposition", body, transaction=kept)[0] == 200
    controller.commit(kept)
    assert world.steps() == [("settle", "COMPLETE", "TransactionRolledBack"), ("settle", "COMPLETE", None)]
    assert refusal(client, "q", "receive-by-sequence-number", {"sequence-numbers": longs([number])})[0] == 404
