"""Links on which a client receives: credit, drain, windows, bounds, settlement, the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from partibus.amqp import (
    ACCEPTED,
    RELEASED,
    AmqpError,
    Delivery,
    DeliveryState,
    Disposed,
    Drained,
    Modified,
    Received,
    Receiver,
    Rejected,
    Source,
)
from partibus.amqp import Limits as EngineLimits
from partibus.amqp.codec.types import Int, Symbol
from partibus.client.messages import IncomingMessage
from partibus.frontends.amqp.outcomes import DELAY_KEY
from partibus.frontends.amqp.settling import EXPIRED_PARTS
from partibus.limits import Limits
from partibus.partition.protocol.commands import Inspect
from partibus.partition.protocol.ports import StoreError
from partibus.partition.protocol.replies import Inspected
from tests.unit.frontends.harness import Client, World, body_of, message

DEAD_LETTER = Rejected(AmqpError("com.microsoft:dead-letter", None, {"DeadLetterReason": "why"}))


def fill(world: World, queue: str, count: int, body: bytes = b"") -> None:
    client = world.client()
    sender = client.sender(queue)
    client.send_batch(sender, [message(body + b"%d" % number) for number in range(count)])


def bodies(deliveries: Sequence[Delivery]) -> list[object]:
    return [body_of(delivery) for delivery in deliveries]


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


def messages_in(world: World, queue: str, kind: int = 0) -> tuple[int, int]:
    """Messages in a sub-queue, and those of them under lock."""
    inspected: list[Inspected] = []
    route = world.broker.entity(queue).route
    for partition in route.partitions:
        partition.submit(Inspect(route.numbers.next()), inspected.append)
    world.wait(50)
    infos = [one.subqueues[kind] for one in inspected]
    return sum(info.messages for info in infos), sum(info.locked for info in infos)


def drained(client: Client, link: Receiver) -> bool:
    return any(isinstance(event, Drained) and event.link is link for event in client.events)


class TestCredit:
    def test_no_more_comes_than_there_is_credit_for(self, world: World) -> None:
        fill(world, world.queue("q"), 10)
        client = world.client()
        link = client.receiver("q")
        assert bodies(client.receive(link, 3)) == numbers(0, 3)
        assert bodies(client.receive(link, 4)) == numbers(3, 7)
        assert messages_in(world, "q") == (10, 7)

    def test_what_is_sent_later_comes_for_credit_that_is_left(self, world: World) -> None:
        client = world.client()
        link = client.receiver(world.queue("q"))
        assert client.receive(link, 5) == []
        fill(world, "q", 2)
        assert bodies(client.deliveries(link)) == numbers(0, 2)

    def test_credit_that_is_lowered_is_taken_back(self, world: World) -> None:
        client = world.client()
        link = client.receiver(world.queue("q"))
        client.receive(link, 5)
        client.receive(link, 0)
        fill(world, "q", 2)
        assert client.deliveries(link) == []
        assert messages_in(world, "q") == (2, 0)
        assert bodies(client.receive(link, 1)) == [b"0"]

    @pytest.mark.parametrize("partitioned", [False, True])
    def test_a_drain_of_nothing_is_answered(self, world: World, partitioned: bool) -> None:
        client = world.client()
        link = client.receiver(world.queue("q", EnablePartitioning=partitioned))
        client.receive(link, 5)
        link.drain()
        world.wait()
        assert drained(client, link)
        assert link.credit == 0
        fill(world, "q", 2)
        assert client.deliveries(link) == []

    @pytest.mark.parametrize("partitioned", [False, True])
    def test_a_drain_with_some_sends_them_first(self, world: World, partitioned: bool) -> None:
        fill(world, world.queue("q", EnablePartitioning=partitioned), 3)
        client = world.client()
        link = client.receiver("q")
        link.drain(5)
        world.wait()
        found = client.deliveries(link)
        if not partitioned:  # behind a front end's cache a drain finds what is cached
            assert len(found) == 3
        assert drained(client, link)
        assert link.credit == 0
        fill(world, "q", 2)
        assert client.deliveries(link) == found

    def test_a_drain_is_answered_though_the_store_has_failed(self, world: World) -> None:
        client = world.client()
        link = client.receiver(world.queue("q", EnablePartitioning=True))
        client.receive(link, 5)
        for store in world.stores:
            store.stays_away = True
            store.fails = StoreError("sick", executed=False)
        other = world.client()
        other.send(other.sender("q"), message())
        link.drain()
        world.wait()
        assert drained(client, link)

    def test_no_more_is_unsettled_than_the_bound(self, tmp_path: Path) -> None:
        limits = Limits()
        world = World(tmp_path, replace(limits, connection=replace(limits.connection, unsettled_max=5)))
        fill(world, world.queue("q"), 20)
        client = world.client()
        link = client.receiver("q")
        first = client.receive(link, 100)
        assert bodies(first) == numbers(0, 5)
        for _ in range(3):  # who says it again and again does not get more for it
            link.settle_many(first[:2], ACCEPTED, settled=False)
        world.wait()
        assert bodies(client.deliveries(link)) == numbers(0, 7)

    def test_what_is_received_and_deleted_is_never_unsettled(self, tmp_path: Path) -> None:
        limits = Limits()
        world = World(tmp_path, replace(limits, connection=replace(limits.connection, unsettled_max=5)))
        fill(world, world.queue("q"), 20)
        client = world.client()
        assert bodies(client.receive(client.receiver("q", delete=True), 100)) == numbers(0, 20)


class TestWindowAndCongestion:
    def test_a_shut_window_holds_deliveries_back_until_it_opens(self, tmp_path: Path) -> None:
        limits = Limits()
        world = World(tmp_path, replace(limits, connection=replace(limits.connection, outgoing_bytes=1_000)))
        fill(world, world.queue("q"), 100, b"x" * 100)
        client = world.client(limits=EngineLimits(incoming_window=10))
        session = client.session()
        session.hold_window()
        link = client.receiver("q", session)
        client.receive(link, 100)
        before = len(client.deliveries(link))
        assert before <= 10
        session.release_window()
        world.wait()
        session.release_window()
        world.wait()
        assert len(client.deliveries(link)) > before

    @pytest.mark.parametrize("partitioned", [False, True])
    def test_a_congested_connection_is_sent_nothing_more(self, tmp_path: Path, partitioned: bool) -> None:
        limits = Limits()
        world = World(tmp_path, replace(limits, connection=replace(limits.connection, outgoing_bytes=10_000)))
        fill(world, world.queue("q", EnablePartitioning=partitioned), 100, b"x" * 1_000)
        client = world.client()
        link = client.receiver("q")
        client.congested = True
        assert client.receive(link, 100) == []
        client.congested = False
        client.peer.resume()
        client.congested = True
        world.wait()
        some = len(client.deliveries(link))
        assert 0 < some < 50
        client.congested = False
        client.peer.resume()
        world.wait()
        assert len(client.deliveries(link)) == 100

    def test_what_is_held_goes_back_when_the_link_is_detached(self, tmp_path: Path) -> None:
        limits = Limits()
        connection = replace(limits.connection, outgoing_bytes=1_000)
        world = World(tmp_path, replace(limits, connection=connection))
        fill(world, world.queue("q"), 100, b"x" * 500)
        client = world.client(limits=EngineLimits(incoming_window=5))
        session = client.session()
        session.hold_window()
        link = client.receiver("q", session)
        got = client.receive(link, 100)
        link.detach()
        world.wait()
        messages, locked = messages_in(world, "q")
        assert messages == 100
        assert locked <= len(got) + 3  # besides what has left for the client

    @pytest.mark.parametrize("drain", [False, True])
    def test_what_is_held_goes_back_when_it_is_not_wanted_any_more(self, tmp_path: Path, drain: bool) -> None:
        limits = Limits()
        connection = replace(limits.connection, outgoing_bytes=1_000)
        world = World(tmp_path, replace(limits, connection=connection))
        fill(world, world.queue("q"), 100, b"x" * 500)
        client = world.client(limits=EngineLimits(incoming_window=5))
        session = client.session()
        session.hold_window()
        link = client.receiver("q", session)
        got = client.receive(link, 100)
        if drain:
            link.drain()
        else:
            link.grant(0)
        world.wait()
        assert messages_in(world, "q")[1] <= len(got) + 3

    @pytest.mark.parametrize("partitioned", [False, True])
    @pytest.mark.parametrize("drain", [False, True])
    def test_what_is_deleted_and_held_comes_all_the_same(self, tmp_path: Path, drain: bool, partitioned: bool) -> None:
        """Deliver it, since it exists nowhere else: a drain is answered after it, and lowered credit came too late."""
        limits = Limits()
        world = World(tmp_path, replace(limits, connection=replace(limits.connection, outgoing_bytes=1_000)))
        fill(world, world.queue("q", EnablePartitioning=partitioned), 20, b"x" * 500)
        client = world.client(limits=EngineLimits(incoming_window=2))
        client.peer.connection.limits = replace(client.peer.connection.limits, pending_bytes_max=1)
        session = client.session()
        session.hold_window()
        link = client.receiver("q", session, delete=True)
        client.receive(link, 20)
        if drain:
            link.drain()
        else:
            link.grant(0)
        world.wait()
        deleted = 20 - messages_in(world, "q")[0]
        assert deleted > 3, "besides what has left for the client"
        if not drain:
            link.grant(deleted - len(client.deliveries(link)))
        for _ in range(20):
            session.release_window()
            session.hold_window()
            world.wait()
        assert len(client.deliveries(link)) == 20 - messages_in(world, "q")[0] >= deleted
        assert drained(client, link) is drain


class TestTheEnd:
    @pytest.mark.parametrize("way", ["detach", "session", "connection", "lost"])
    @pytest.mark.parametrize("partitioned", [False, True])
    def test_what_was_on_the_way_is_there_for_others(self, world: World, way: str, partitioned: bool) -> None:
        """Granted, but the client leaves before that is durable: back at once, and no delivery was counted."""
        client, other = world.client(), world.client()
        link = client.receiver(world.queue("q", EnablePartitioning=partitioned))
        client.receive(link, 10)
        sender = other.sender("q")
        for store in world.stores:
            store.host.delay_ms = 50.0
        other.send_raw(sender, message())
        world.wait(5)
        match way:
            case "detach":
                link.detach()
            case "session":
                link.session.end()
            case "connection":
                client.engine.close()
            case "lost":
                client.lose()
        world.wait()
        found = other.receive(other.receiver("q"), 10)
        assert client.deliveries(link) == []
        assert [IncomingMessage(delivery.payload).delivery_count for delivery in found] == [0]

    @pytest.mark.parametrize("partitioned", [False, True])
    def test_a_link_ends_with_its_queue(self, world: World, partitioned: bool) -> None:
        client = world.client()
        link = client.receiver(world.queue("q", EnablePartitioning=partitioned))
        client.receive(link, 10)
        world.broker.delete("q")
        client.peer.tick(0.0)
        world.wait()
        assert client.refusal(link).condition == "amqp:not-found"
        assert client.closed is None

    def test_locks_outlive_the_link(self, world: World) -> None:
        fill(world, world.queue("q"), 1)
        client, other = world.client(), world.client()
        link = client.receiver("q")
        client.receive(link, 1)
        link.detach()
        world.wait()
        assert other.receive(other.receiver("q"), 1) == []


class TestSettling:
    @pytest.mark.parametrize(
        ("state", "answer", "left", "dead"),
        [
            (ACCEPTED, ACCEPTED, 0, 0),
            (Modified(), Modified(), 1, 0),
            (RELEASED, RELEASED, 1, 0),
            (DEAD_LETTER, Rejected(), 0, 1),
        ],
        ids=["complete", "abandon", "release", "dead-letter"],
    )
    @pytest.mark.parametrize("settled", [False, True])
    def test_an_outcome_does_what_it_says(
        self, world: World, state: DeliveryState, answer: DeliveryState, left: int, dead: int, settled: bool
    ) -> None:
        fill(world, world.queue("q"), 1)
        client = world.client()
        link = client.receiver("q")
        found = client.receive(link, 1)
        start = len(client.events)
        link.settle_many(found, state, settled=settled)
        world.wait()
        answers = [event for event in client.events[start:] if isinstance(event, Disposed)]
        assert [(event.state, event.settled) for event in answers] == ([] if settled else [(answer, True)])
        assert messages_in(world, "q") == (left, 0)
        assert messages_in(world, "q", 1) == (dead, 0)

    @pytest.mark.parametrize("state", [None, Received(section_number=0, section_offset=0)])
    def test_a_state_that_is_no_outcome_settles_nothing(self, world: World, state: DeliveryState | None) -> None:
        fill(world, world.queue("q"), 1)
        client = world.client()
        link = client.receiver("q")
        found = client.receive(link, 1)
        assert client.settle(link, found, state) == []
        assert messages_in(world, "q") == (1, 1)
        (answer,) = client.settle(link, found, ACCEPTED)
        assert answer.state == ACCEPTED

    def test_a_run_of_settlements_is_one_command_per_partition(self, world: World) -> None:
        world.queue("q", EnablePartitioning=True)
        for _ in range(8):
            fill(world, "q", 3)
        client = world.client()
        link = client.receiver("q")
        found = client.receive(link, 100)
        assert len(found) == 24
        answers = client.settle(link, found, ACCEPTED)
        assert sum(len(answer.delivery_ids) for answer in answers) == 24
        assert {type(answer.state) for answer in answers} == {type(ACCEPTED)}
        assert messages_in(world, "q") == (0, 0)

    @pytest.mark.row("C17")
    def test_a_lost_lock_is_told_for_the_message_that_lost_it(self, world: World) -> None:
        fill(world, world.queue("q", LockDuration="PT5S"), 2)
        client = world.client()
        link = client.receiver("q")
        first = client.receive(link, 1)
        world.wait(5_100)
        second = client.receive(link, 1)
        answers = client.settle(link, first + second, ACCEPTED)
        states = {delivery_id: answer.state for answer in answers for delivery_id in answer.delivery_ids}
        lost = states[first[0].delivery_id]
        assert isinstance(lost, Rejected)
        assert lost.error is not None
        assert lost.error.condition == "com.microsoft:message-lock-lost"

    def test_what_is_refused_by_name_stays_locked(self, world: World) -> None:
        fill(world, world.queue("q"), 1)
        client = world.client()
        link = client.receiver("q")
        (answer,) = client.settle(link, client.receive(link, 1), Modified(message_annotations={DELAY_KEY: "soon"}))
        assert isinstance(answer.state, Rejected)
        assert answer.state.error is not None
        assert answer.state.error.condition == "com.microsoft:argument-error"
        assert DELAY_KEY in (answer.state.error.description or "")
        assert messages_in(world, "q") == (1, 1)

    def test_a_deferred_message_stays_away(self, world: World) -> None:
        fill(world, world.queue("q"), 2)
        client = world.client()
        link = client.receiver("q")
        first, second = client.receive(link, 2)
        defer = Modified(delivery_failed=True, undeliverable_here=True, message_annotations={"why": "later"})
        (answer,) = client.settle(link, [first], defer)
        assert (answer.state, answer.settled) == (Modified(), True)
        client.settle(link, [second], Modified())
        assert bodies(client.receive(link, 2)) == [b"1"]
        assert messages_in(world, "q") == (2, 1)

    def test_properties_of_an_abandon_are_set_and_its_body_is_untouched(self, world: World) -> None:
        client = world.client()
        given = message(b"body", application_properties={"kept": 1, "changed": 2})
        client.send(client.sender(world.queue("q")), given)
        link = client.receiver("q")
        changes = Modified(message_annotations={"changed": "now text", "added": None})
        client.settle(link, client.receive(link, 1), changes)
        (found,) = map(IncomingMessage, (delivery.payload for delivery in client.receive(link, 1)))
        assert found.application_properties == {"kept": 1, "changed": "now text", "added": None}
        assert (found.body, found.delivery_count) == (b"body", 1)
        assert not {"changed", "added"} & set(found.annotations)

    def test_a_dead_letter_keeps_the_properties_that_come_with_it(self, world: World) -> None:
        fill(world, world.queue("q"), 1)
        client = world.client()
        link = client.receiver("q")
        info: dict[object, object] = {"DeadLetterReason": "why", "DeadLetterErrorDescription": None, "step": 3}
        client.settle(link, client.receive(link, 1), Rejected(AmqpError("com.microsoft:dead-letter", None, info)))
        (found,) = client.receive(client.receiver("q/$DeadLetterQueue"), 1)
        assert IncomingMessage(found.payload).application_properties == {"DeadLetterReason": "why", "step": 3}

    def test_an_abandon_may_keep_a_message_away_for_a_while(self, world: World) -> None:
        fill(world, world.queue("q"), 1)
        client = world.client()
        link = client.receiver("q")
        client.settle(link, client.receive(link, 5), Modified(message_annotations={Symbol(DELAY_KEY): Int(10_000)}))
        start = len(client.events)
        world.wait(9_000)
        assert client.deliveries(link, start) == []
        world.wait(1_000)
        (again,) = map(IncomingMessage, (delivery.payload for delivery in client.deliveries(link, start)))
        assert (again.delivery_count, again.application_properties) == (1, {})

    def test_where_sessions_keep_their_order_an_abandon_is_not_delayed(self, world: World) -> None:
        client = world.client()
        client.send(client.sender(world.queue("q", RequiresSession=True)), message(session_id="s"))
        link = client.receiver("q", source=Source("q", filter={Symbol("com.microsoft:session-filter"): "s"}))
        (answer,) = client.settle(link, client.receive(link, 1), Modified(message_annotations={DELAY_KEY: 1}))
        assert isinstance(answer.state, Rejected)
        assert answer.state.error is not None
        assert answer.state.error.condition == "amqp:not-allowed"
        assert messages_in(world, "q") == (1, 1)

    def test_a_settlement_that_failed_may_be_said_again(self, world: World) -> None:
        fill(world, world.queue("q"), 1)
        client = world.client()
        link = client.receiver("q")
        found = client.receive(link, 1)
        store = world.store_of("q")
        store.fails = StoreError("sick", executed=False)
        link.settle_many(found, ACCEPTED, settled=False)
        world.wait()
        (answer,) = [event for event in client.events if isinstance(event, Disposed)]
        assert isinstance(answer.state, Rejected)
        assert answer.state.error is not None
        assert answer.state.error.condition == "com.microsoft:server-busy"
        assert messages_in(world, "q")[0] == 1


class TestAStoreThatFails:
    def test_a_plain_queues_receiver_is_told_to_attach_again(self, world: World) -> None:
        client = world.client()
        link = client.receiver(world.queue("q"))
        client.receive(link, 5)
        world.store_of("q").fails = StoreError("sick", executed=False)
        other = world.client()
        other.send(other.sender("q"), message())
        assert client.refusal(link).condition == "amqp:link:detach-forced"
        world.store_of("q").fails = None
        world.wait()
        again = client.receiver("q")
        client.receive(again, 5)
        fill(world, "q", 1)
        assert bodies(client.deliveries(again)) == [b"0"]

    def test_a_partitioned_queues_receiver_goes_on(self, world: World) -> None:
        client = world.client()
        link = client.receiver(world.queue("q", EnablePartitioning=True))
        client.receive(link, 100)
        for store in world.stores[:8]:
            store.fails = StoreError("sick", executed=False)
        for _ in range(32):
            fill(world, "q", 1)
        assert not client.is_detached(link)
        during = len(client.deliveries(link))
        assert during > 0
        for store in world.stores:
            store.fails = None
        world.wait(1_000)
        for _ in range(32):
            fill(world, "q", 1)
        assert not client.is_detached(link)
        assert messages_in(world, "q")[0] == len(client.deliveries(link)) > during


class TestDeliveriesThatEndWithoutADisposition:
    BOUND = 5

    @pytest.fixture
    def world(self, tmp_path: Path) -> World:
        limits = Limits()
        return World(tmp_path, replace(limits, connection=replace(limits.connection, unsettled_max=self.BOUND)))

    def test_those_whose_lock_has_expired_do_not_count_as_held(self, world: World) -> None:
        fill(world, world.queue("q", LockDuration="PT5S", MaxDeliveryCount=100), 20)
        client = world.client()
        link = client.receiver("q")
        first = client.receive(link, 200)
        assert bodies(first) == numbers(0, self.BOUND)
        for round_no in range(2, 10):
            world.wait(6_000)
            client.peer.tick(0.0)
            world.wait()
            assert len(client.deliveries(link)) == round_no * self.BOUND
        # The broker remembers deliveries of the last rounds, and has settled older ones itself.
        assert client.peer.unsettled == (1 + EXPIRED_PARTS) * self.BOUND
        seen = client.deliveries(link)
        for delivery in (seen[-2 * self.BOUND], seen[-1]):
            client.settle(link, [delivery], ACCEPTED)
        late, timely = [event.state for event in client.events if isinstance(event, Disposed)][-2:]
        assert isinstance(late, Rejected)
        assert late.error is not None
        assert late.error.condition == "com.microsoft:message-lock-lost"
        assert timely is ACCEPTED

    def test_those_whose_settlement_a_store_has_failed_do_not_count_for_ever(self, world: World) -> None:
        fill(world, world.queue("q", LockDuration="PT5S", EnablePartitioning=True), 20)
        client = world.client()
        link = client.receiver("q")
        held = client.receive(link, 100)
        assert len(held) == self.BOUND
        for store in world.stores:
            store.fails = StoreError("sick", executed=False)
        link.settle_many(held, ACCEPTED, settled=False)
        world.wait()
        assert len(client.deliveries(link)) == self.BOUND
        for store in world.stores:
            store.fails = None
        world.wait(6_000)
        client.peer.tick(0.0)
        world.wait()
        assert len(client.deliveries(link)) == 2 * self.BOUND

    def test_a_refused_settlement_makes_room(self, world: World) -> None:
        fill(world, world.queue("q"), 20)
        client = world.client()
        link = client.receiver("q")
        held = client.receive(link, 100)
        assert len(held) == self.BOUND
        client.settle(link, held, Modified(message_annotations={DELAY_KEY: -1}))
        assert len(client.deliveries(link)) == 2 * self.BOUND
