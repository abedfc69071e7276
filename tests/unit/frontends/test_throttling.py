"""Clients of a namespace without credits, and the cost of each operation."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from partibus.amqp import ACCEPTED, DeliveryState, Disposed, Drained, Modified, Receiver, Rejected
from partibus.amqp.codec.types import Int, Timestamp
from partibus.amqp.section_encoding import encode_annotations
from partibus.client.messages import IncomingMessage
from partibus.filters.model import CorrelationFilter, Rule, SqlFilter
from partibus.throttling.settings import ThrottlingPolicy, ThrottlingSettings
from partibus.throttling.throttle import Throttle
from partibus.throttling.uses import OPERATIONS, Operation
from tests.unit.frontends.controller import Controller, error_of, send_in
from tests.unit.frontends.harness import NOW_S, Client, World, body_of, message
from tests.unit.frontends.node_requests import ask, longs, number_of, refusal
from tests.unit.frontends.test_cursors import ask as ask_ours
from tests.unit.frontends.test_cursors import refusal as refuse_ours
from tests.unit.frontends.test_receiving import messages_in
from tests.unit.frontends.test_session_links import attach
from tests.unit.throttling.test_throttle import Bank

SAYS = (
    "The request was terminated because the entity is being throttled. Error code: 50009. "
    "Please wait 2 seconds and try again."
)
BUSY = "com.microsoft:server-busy"
MINUTE_MS = 60_000
CREDITS = 60
"""Credits of a minute, so that no period ends by itself within a test."""
MINUTE = ThrottlingSettings(ThrottlingPolicy.ENFORCE, credits_per_s=1, period_ms=MINUTE_MS)


def throttle(world: World, policy: ThrottlingPolicy = ThrottlingPolicy.ENFORCE, **changes: int) -> Throttle:
    """Count the namespace's credits from now on: 60 of them each minute."""
    settings = ThrottlingSettings(policy, credits_per_s=1, period_ms=MINUTE_MS, **changes)
    world.broker.throttle = Throttle(settings, world.timeline, world.timeline.call_later)
    next_period(world)
    return world.broker.throttle


def next_period(world: World) -> None:
    world.wait(MINUTE_MS - world.timeline.now_ms() % MINUTE_MS)
    world.wait()


def used(world: World) -> dict[str, int]:
    """Credits by operation, those that something was paid for."""
    counted = zip(OPERATIONS, world.broker.throttle.counters.used, strict=True)
    return {name: credits for name, credits in counted if credits}


def texts(count: int, start: int = 0) -> list[bytes]:
    return [message(str(number).encode()) for number in range(start, start + count)]


def check_busy(states: Iterable[DeliveryState | None]) -> None:
    for state in states:
        error = error_of(state)
        assert (error.condition, error.description) == (BUSY, SAYS)


def stored(world: World, queue: str) -> list[bytes]:
    """Bodies, in order, without paying for them."""
    settings, limits = world.broker.throttle, ThrottlingSettings()
    world.broker.throttle = Throttle(limits, world.timeline)
    client = world.client()
    found = [body_of(delivery) for delivery in client.receive(client.receiver(queue), 500)]
    client.lose()
    world.broker.throttle = settings
    return found


def is_drained(client: Client, link: Receiver) -> bool:
    return any(isinstance(event, Drained) and event.link is link for event in client.events)


class TestSends:
    @pytest.mark.row("R3", "R6", "R7", "R15")
    def test_sends_past_the_credits_are_refused_until_the_next_period(self, world: World) -> None:
        throttle(world)
        client = world.client()
        sender = client.sender(world.queue("q"))
        states = client.send(sender, *texts(CREDITS + 5))
        assert states[:CREDITS] == [ACCEPTED] * CREDITS
        check_busy(states[CREDITS:])
        check_busy(client.send(sender, *texts(2, 100)))
        next_period(world)
        assert client.send(sender, *texts(2, 200)) == [ACCEPTED] * 2
        assert stored(world, "q") == [str(number).encode() for number in [*range(CREDITS), 200, 201]]
        assert world.broker.throttle.counters.throttled[Operation.SEND] == 7

    def test_what_is_refused_together_is_answered_together(self, world: World) -> None:
        throttle(world)
        client = world.client()
        sender = client.sender(world.queue("q"))
        for refused in (5, 50):
            start = len(client.events)
            check_busy(client.send(sender, *texts(CREDITS + refused))[-refused:])
            answers = [event for event in client.events[start:] if isinstance(event, Disposed)]
            assert sum(isinstance(event.state, Rejected) for event in answers) == 1

    @pytest.mark.row("R6")
    def test_a_large_batch_passes_and_is_paid_for_later(self, world: World) -> None:
        throttle(world)
        client = world.client()
        sender = client.sender(world.queue("q"))
        assert client.send(sender, *texts(1)) == [ACCEPTED]
        assert client.send_batch(sender, texts(150)) is ACCEPTED  # 91 more than there are
        for _ in range(2):
            check_busy(client.send(sender, *texts(1)))
            next_period(world)
        assert client.send(sender, *texts(30)) == [*[ACCEPTED] * 29, client.send(sender, *texts(1))[0]]
        assert used(world) == {"send": 180}

    @pytest.mark.row("R5")
    def test_each_rule_of_each_subscription_costs_something(self, world: World) -> None:
        throttle(world)
        world.broker.create_topic("t", {})
        for name in ("a", "b"):
            world.broker.create_subscription("t", name, {})
        world.broker.create_rule("t/Subscriptions/b", Rule("sql", SqlFilter("sys.Label = 'x'")))
        world.broker.create_rule("t/Subscriptions/b", Rule("label", CorrelationFilter(label="y")))
        client = world.client()
        states = client.send(client.sender("t"), *texts(13))
        assert states[:12] == [ACCEPTED] * 12  # 5 credits each
        check_busy(states[12:])
        assert used(world) == {"send": 12, "filter": 48}
        world.broker.delete_rule("t/Subscriptions/b", "sql")
        next_period(world)
        client.send(client.sender("t"), *texts(1))
        assert used(world) == {"send": 13, "filter": 51}

    @pytest.mark.row("P19")
    def test_partitioned_entities_cost_what_plain_ones_do(self, world: World) -> None:
        throttle(world)
        client = world.client()
        spent = []
        for partitioned in (False, True):
            before = sum(world.broker.throttle.counters.used)
            queue = world.queue(f"q-{partitioned}", EnablePartitioning=partitioned)
            client.send(client.sender(queue), *texts(8))
            assert len(client.receive(client.receiver(queue), 8)) == 8
            ask(client, queue, "peek-message", {"from-sequence-number": 0, "message-count": 1})
            spent.append(sum(world.broker.throttle.counters.used) - before)
        assert spent == [17, 17]

    def test_a_transfer_that_is_refused_leaves_its_transaction_as_it_was(self, world: World) -> None:
        throttle(world)
        client = world.client()
        sender = client.sender(world.queue("q"))
        controller = Controller(client)
        transaction = controller.declare()
        send_in(client, sender, transaction, message(b"first"))
        client.send_batch(sender, texts(59))
        check_busy(send_in(client, sender, transaction, message(b"second")))
        next_period(world)
        send_in(client, sender, transaction, message(b"second"))
        controller.commit(transaction)
        assert stored(world, "q")[-2:] == [b"first", b"second"]
        assert used(world) == {"send": 61}

    def test_what_is_wrong_with_a_message_is_said_and_costs_nothing(self, world: World) -> None:
        throttle(world)
        client = world.client()
        sender = client.sender(world.queue("q", RequiresSession=True))
        states = client.send(sender, message(b"none"), message(b"1", session_id="s"))
        assert isinstance(states[0], Rejected)
        assert states[1] is ACCEPTED
        assert used(world) == {"send": 1}


class TestReceivers:
    @pytest.mark.row("R3", "R6")
    @pytest.mark.parametrize("partitioned", [False, True])
    def test_deliveries_are_withheld_and_come_with_the_next_period(self, world: World, partitioned: bool) -> None:
        throttle(world)
        client = world.client()
        world.queue("q", EnablePartitioning=partitioned, LockDuration="PT5M")
        receiver = client.receiver("q")
        client.receive(receiver, 200)
        assert client.send_batch(client.sender("q"), texts(80)) is ACCEPTED  # leaves a debt of 20
        world.wait()
        assert client.deliveries(receiver) == []
        assert messages_in(world, "q") == (80, 0)
        next_period(world)
        assert 40 <= len(client.deliveries(receiver)) <= 80  # a grant is one request, and the last one may be over
        next_period(world)
        next_period(world)
        assert len({number_of(delivery) for delivery in client.deliveries(receiver)}) == 80
        assert not client.is_detached(receiver)
        assert used(world) == {"send": 80, "receive": 80}

    def test_a_drain_is_answered_while_deliveries_are_withheld(self, world: World) -> None:
        throttle(world)
        client = world.client()
        receiver = client.receiver(world.queue("q"))
        client.send_batch(client.sender("q"), texts(70))
        receiver.drain(5)
        world.wait()
        assert is_drained(client, receiver)
        assert client.deliveries(receiver) == []
        next_period(world)
        assert client.deliveries(receiver) == []
        assert len(client.receive(receiver, 5)) == 5

    def test_what_is_deleted_when_received_is_withheld_before(self, world: World) -> None:
        throttle(world)
        client = world.client()
        receiver = client.receiver(world.queue("q"), delete=True)
        client.receive(receiver, 100)
        client.send_batch(client.sender("q"), texts(70))
        world.wait()
        assert client.deliveries(receiver) == []
        next_period(world)
        next_period(world)
        assert [body_of(delivery) for delivery in client.deliveries(receiver)] == [b"%d" % n for n in range(70)]

    def test_sessions_are_accepted_for_nothing_and_their_messages_withheld(self, world: World) -> None:
        throttle(world)
        client = world.client()
        sender = client.sender(world.queue("q", RequiresSession=True))
        client.send_batch(sender, [message(b"%d" % number, session_id="s") for number in range(70)])
        receiver = attach(client, "s")
        assert client.receive(receiver, 10) == []
        next_period(world)
        assert [body_of(delivery) for delivery in client.deliveries(receiver)] == [b"%d" % n for n in range(10)]


class TestNodes:
    @pytest.mark.row("R3")
    def test_peeking_costs_what_it_shows(self, world: World) -> None:
        throttle(world)
        client = world.client()
        client.send_batch(client.sender(world.queue("q")), texts(50))
        _, body = ask(client, "q", "peek-message", {"from-sequence-number": 0, "message-count": 9})
        assert len(body["messages"]) == 9
        assert used(world) == {"send": 50, "peek": 9}
        ask(client, "q", "peek-message", {"from-sequence-number": 0, "message-count": 9})
        assert refusal(client, "q", "peek-message", {"from-sequence-number": 0}) == (503, BUSY, SAYS)

    @pytest.mark.row("R3")
    def test_scheduling_is_refused_without_effect(self, world: World) -> None:
        throttle(world)
        client = world.client()
        sender = client.sender(world.queue("q"))
        scheduled = {"messages": [schedule(60_000 * 10)]}
        ask(client, "q", "schedule-message", scheduled)
        assert used(world) == {"send": 1}
        client.send_batch(sender, texts(59))
        assert refusal(client, "q", "schedule-message", scheduled) == (503, BUSY, SAYS)
        assert messages_in(world, "q")[0] == 60

    @pytest.mark.row("R3")
    def test_deferred_messages_cost_what_is_asked_for(self, world: World) -> None:
        throttle(world)
        client = world.client()
        client.send_batch(client.sender(world.queue("q")), texts(2))
        receiver = client.receiver("q")
        deliveries = client.receive(receiver, 2)
        client.settle(receiver, deliveries, Modified(undeliverable_here=True))
        numbers = longs(number_of(delivery) for delivery in deliveries)
        ask(client, "q", "receive-by-sequence-number", {"sequence-numbers": numbers})
        assert used(world) == {"send": 2, "receive": 4}

    @pytest.mark.row("R4")
    def test_management_costs_ten_and_is_refused_without_effect(self, world: World) -> None:
        throttle(world)
        client = world.client()
        for number in range(6):
            assert manage(client, "partibus:create-entity", {"name": f"q{number}"}) == (200, None)
        assert manage(client, "partibus:create-entity", {"name": "q6"}) == (503, SAYS)
        assert world.namespace.find("q6") is None
        next_period(world)
        world.broker.create_topic("t", {})
        world.broker.create_subscription("t", "s", {})
        ask(client, "t/Subscriptions/s", "enumerate-rules", {"skip": Int(0), "top": Int(10)})
        for operation in ("get-entity", "update-entity", "delete-entity"):
            body: dict[str, object] = {"name": "q1", "properties": {"LockDuration": "PT5S"}}
            assert manage(client, f"partibus:{operation}", body) == (200, None)
        assert used(world) == {"management": 100}

    @pytest.mark.row("R3")
    def test_ranges_cost_what_is_in_them_and_rows_of_a_sink_what_messages_do(self, world: World) -> None:
        throttle(world)
        client = world.client()
        world.queue("q")
        rows = {"sink": 5, "messages": texts(30), "ids": [number.to_bytes(16) for number in range(30)]}
        part = {"partition_id": Int(0), "from_position": 0, "to_position": 1 << 40}
        assert ask_ours(client, "q", "sink", **rows)["accepted"] == 30
        assert ask_ours(client, "q", "read-range", **part)["count"] == 30
        assert used(world) == {"send": 30, "peek": 30}
        for operation, body in (("sink", rows), ("read-range", part)):
            assert refuse_ours(client, "q", operation, **body) == (503, BUSY, SAYS)
        assert ask_ours(client, "q", "partitions")["partitions"][0]["messages"] == 30  # costs nothing

    def test_what_is_settled_renewed_or_cancelled_costs_nothing(self, world: World) -> None:
        throttle(world)
        client = world.client()
        client.send_batch(client.sender(world.queue("q")), texts(59))
        receiver = client.receiver("q")
        (delivery,) = client.receive(receiver, 1)
        (event,) = client.settle(receiver, [delivery], ACCEPTED)
        assert event.state is ACCEPTED
        assert used(world) == {"send": 59, "receive": 1}


class TestPolicies:
    def test_observing_refuses_nothing_and_counts_what_would_have_been(self, world: World) -> None:
        throttle(world, ThrottlingPolicy.OBSERVE)
        client = world.client()
        receiver = client.receiver(world.queue("q"))
        client.receive(receiver, 100)
        assert client.send(client.sender("q"), *texts(CREDITS + 10)) == [ACCEPTED] * (CREDITS + 10)
        assert len(client.deliveries(receiver)) == CREDITS + 10
        assert manage(client, "partibus:get-entity", {"name": "q"}) == (200, None)
        counters = world.broker.throttle.counters
        assert used(world) == {"send": 70, "receive": 70, "management": 10}
        assert not any(counters.throttled)
        assert counters.would_throttle[Operation.SEND] >= 10
        assert counters.would_throttle[Operation.MANAGEMENT] == 1

    def test_off_counts_nothing(self, world: World) -> None:
        client = world.client()
        assert client.send(client.sender(world.queue("q")), *texts(3)) == [ACCEPTED] * 3
        assert used(world) == {}

    @pytest.mark.row("R2")
    def test_another_rate_holds_at_once_for_who_is_connected(self, world: World) -> None:
        counting = throttle(world)
        client = world.client()
        sender = client.sender(world.queue("q"))
        assert client.send_batch(sender, texts(60)) is ACCEPTED
        check_busy(client.send(sender, *texts(1)))
        counting.change(ThrottlingSettings(ThrottlingPolicy.OFF))
        assert client.send(sender, *texts(1)) == [ACCEPTED]
        counting.change(ThrottlingSettings(ThrottlingPolicy.ENFORCE, credits_per_s=5))
        world.wait(2_000)
        states = client.send(sender, *texts(7))
        assert states[:5] == [ACCEPTED] * 5
        check_busy(states[5:])


class TestCreditsElsewhere:
    """Another broker hands them out, and answers after 20 ms."""

    @pytest.fixture
    def bank(self, world: World) -> Bank:
        bank = Bank(world.timeline, MINUTE)
        bank.delay_ms = 20
        world.broker.throttle = Throttle(MINUTE, world.timeline, world.timeline.call_later, bank)
        next_period(world)
        return bank

    @pytest.mark.usefixtures("bank")
    def test_a_senders_messages_keep_their_order(self, world: World) -> None:
        client = world.client()
        sender = client.sender(world.queue("q"))
        for number in range(20):
            client.send_raw(sender, message(b"%d" % number), number)
            world.wait(7)
        world.wait()
        assert list(client.outcomes(sender).values()) == [ACCEPTED] * 20
        assert stored(world, "q") == [b"%d" % number for number in range(20)]

    @pytest.mark.usefixtures("bank")
    def test_deliveries_wait_for_the_answer_in_their_order(self, world: World) -> None:
        client = world.client()
        client.send_batch(client.sender(world.queue("q")), texts(20))
        receiver = client.receiver("q")
        receiver.grant(6)
        world.wait(10)
        assert client.deliveries(receiver) == []
        client.send_batch_nowait(client.sender("q"), texts(5, 20))
        receiver.grant(30)
        world.wait()
        assert [body_of(delivery) for delivery in client.deliveries(receiver)] == [b"%d" % n for n in range(25)]
        assert used(world) == {"send": 25, "receive": 25}

    def test_what_is_refused_goes_back_uncounted(self, world: World, bank: Bank) -> None:
        client = world.client()
        client.send_batch(client.sender(world.queue("q")), texts(20))
        bank.away = True
        receiver = client.receiver("q")
        receiver.grant(30)
        world.wait(2_000)
        assert client.deliveries(receiver) == []
        assert messages_in(world, "q") == (20, 0)
        asked = bank.asked
        bank.away = False
        world.wait(2_000)
        assert bank.asked == asked, "until the next period it asks for nothing"
        next_period(world)
        found = client.deliveries(receiver)
        assert [body_of(delivery) for delivery in found] == [b"%d" % n for n in range(20)]
        assert {IncomingMessage(delivery.payload).delivery_count for delivery in found} == {0}

    @pytest.mark.parametrize("how", ["detach", "lose"])
    def test_nothing_stays_locked_when_the_receiver_goes_before_the_answer(
        self, world: World, bank: Bank, how: str
    ) -> None:
        client = world.client()
        client.send_batch(client.sender(world.queue("q")), texts(5))
        bank.delay_ms = 200
        next_period(world)
        receiver = client.receiver("q")
        receiver.grant(5)
        world.wait(50)
        assert messages_in(world, "q") == (5, 5)
        if how == "lose":
            client.lose()
        else:
            receiver.detach()
        world.wait()
        assert messages_in(world, "q") == (5, 0)

    def test_a_drain_is_answered_before_the_answer_and_nothing_comes_behind(self, world: World, bank: Bank) -> None:
        client = world.client()
        client.send_batch(client.sender(world.queue("q")), texts(5))
        bank.delay_ms = 200
        next_period(world)
        receiver = client.receiver("q")
        receiver.grant(5)
        world.wait(50)
        receiver.drain()
        world.wait()
        assert is_drained(client, receiver)
        assert client.deliveries(receiver) == []
        assert messages_in(world, "q") == (5, 0)

    def test_a_queue_that_is_deleted_meanwhile_gets_nothing(self, world: World, bank: Bank) -> None:
        client = world.client()
        sender = client.sender(world.queue("q"))
        bank.delay_ms = 100
        next_period(world)
        client.send_raw(sender, message(b"late"), 0)
        world.wait(10)
        world.broker.delete("q")
        world.wait()
        world.queue("q")
        assert stored(world, "q") == []


def schedule(later_ms: int) -> dict[str, object]:
    due = encode_annotations({"x-opt-scheduled-enqueue-time": Timestamp(int(NOW_S * 1000) + later_ms)})
    return {"message-id": "m", "message": due + message(b"later")}


def manage(client: Client, operation: str, body: dict[str, object]) -> tuple[int, str | None]:
    """Status and, of a refusal, its text."""
    properties = client.request("$management", operation, body).application_properties
    status = properties["statusCode"]
    assert isinstance(status, int)
    return int(status), None if status == 200 else str(properties["statusDescription"])
