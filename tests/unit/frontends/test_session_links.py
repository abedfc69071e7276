"""Session receivers over AMQP: who gets which session, for how long, and how it ends (sections 4.2 to 4.4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from partibus.amqp import ACCEPTED, AmqpError, Delivery, Disposed, Modified, Receiver, Rejected, Source
from partibus.amqp.codec.composite import changed
from partibus.amqp.codec.types import Described, Symbol, UInt, ULong
from partibus.client.messages import IncomingMessage
from partibus.frontends.amqp.session_link import WAIT_MAX_MS, wait_ms_of
from partibus.namespace.namespace_options import NamespaceOptions
from partibus.partition.protocol.ports import StoreError
from partibus.routing.slots import partition_for_key
from tests.unit.frontends.harness import NOW_S, Client, World, body_of, message

FILTER = Symbol("com.microsoft:session-filter")
LOCKED_UNTIL = "com.microsoft:locked-until-utc"
TICKS_1970 = 621_355_968_000_000_000
LOCK_MS = 60_000


@pytest.fixture(params=[False, True], ids=["plain", "partitioned"])
def queue(world: World, request: pytest.FixtureRequest) -> str:
    """A queue that requires sessions."""
    return world.queue("q", RequiresSession=True, EnablePartitioning=request.param)


def fill(world: World, *sessions: str, body: bytes = b"body") -> None:
    """One message for each name, in order."""
    client = world.client()
    sender = client.sender("q")
    states = client.send(sender, *[message(body, session_id=session) for session in sessions])
    assert states == [ACCEPTED] * len(sessions)


def attach(client: Client, session: object = None, *, timeout_ms: int | None = None, **fields: Any) -> Receiver:
    """A session receiver, attached, refused or waiting by now."""
    properties = None if timeout_ms is None else {Symbol("com.microsoft:timeout"): UInt(timeout_ms)}
    return client.receiver("q", source=Source("q", filter={FILTER: session}), properties=properties, **fields)


def accepted(link: Receiver) -> object:
    """The session that a link says it holds."""
    assert link.is_open
    assert isinstance(link.source, Source)
    return (link.source.filter or {})[FILTER]


def condition(client: Client, link: Receiver) -> str:
    return client.refusal(link).condition


def is_pending(client: Client, link: Receiver) -> bool:
    return not link.is_open and not client.is_detached(link)


def operate(client: Client, operation: str, body: Mapping[str, object] | None = None) -> tuple[int, dict[str, Any]]:
    """Status and body of a management request about session s."""
    reply = client.request("q/$management", f"com.microsoft:{operation}", {"session-id": "s", **(body or {})})
    status = reply.application_properties["statusCode"]
    assert isinstance(status, int)
    return int(status), reply.body if isinstance(reply.body, dict) else {}


class TestAccepting:
    def test_a_named_session_is_held_also_without_messages(self, world: World, queue: str) -> None:
        client = world.client()
        link = attach(client, "s")
        assert accepted(link) == "s"
        assert client.receive(link, 10) == []

    def test_the_answer_says_until_when_in_ticks_of_eight_bytes(self, world: World, queue: str) -> None:
        link = attach(world.client(), "s")
        assert link.properties is not None
        until = link.properties[LOCKED_UNTIL]
        assert type(until) is int, "decoded from a long, not from a narrower type"
        until_ms = (until - TICKS_1970) / 10_000
        assert NOW_S * 1000 + LOCK_MS <= until_ms <= world.timeline.time_ms + LOCK_MS

    def test_the_source_is_echoed_to_the_letter(self, world: World, queue: str) -> None:
        address = "amqps://some.host:1234/Q"
        client = world.client()
        source = Source(address, filter={FILTER: None, Symbol("x"): "y"}, durable=0)
        fill(world, "s")
        link = client.receiver("q", source=source)
        echoed = changed(source, filter={FILTER: "s", Symbol("x"): "y"})
        assert link.source == echoed

    @pytest.mark.parametrize("asked", ["s", None, ""])
    def test_the_filter_comes_back_in_its_form(self, world: World, queue: str, asked: str | None) -> None:
        fill(world, asked or "")
        described = Described(ULong(0x137000000C), asked)
        link = attach(world.client(), described)
        answer = accepted(link)
        assert answer == Described(ULong(0x137000000C), asked or "")
        assert isinstance(answer, Described)
        assert isinstance(answer.descriptor, ULong)

    def test_the_empty_id_is_one(self, world: World, queue: str) -> None:
        fill(world, "other")
        assert accepted(attach(world.client(), "")) == ""

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            (17, "com.microsoft:argument-error"),
            (b"s", "com.microsoft:argument-error"),
            ("s" * 129, "com.microsoft:argument-error"),
            (Described(ULong(0x137000000C), ["s"]), "com.microsoft:argument-error"),
            (Described(ULong(0x137000000E), ["s", None]), "amqp:not-implemented"),
            (
                Described(Symbol("com.microsoft:non-exclusive-session-filter:list"), [None, None]),
                "amqp:not-implemented",
            ),
        ],
    )
    def test_other_filters_are_refused_by_name(self, world: World, queue: str, value: object, expected: str) -> None:
        client = world.client()
        assert condition(client, attach(client, value)) == expected

    def test_a_session_that_somebody_holds_is_refused_at_once(self, world: World, queue: str) -> None:
        holder, other = world.client(), world.client()
        attach(holder, "s")
        link = attach(other, "s", timeout_ms=60_000)
        assert condition(other, link) == "com.microsoft:session-cannot-be-locked"
        assert accepted(attach(other, "t")) == "t"

    def test_a_link_does_not_share_with_another_one_of_its_connection(self, world: World, queue: str) -> None:
        client = world.client()
        attach(client, "s")
        assert condition(client, attach(client, "s")) == "com.microsoft:session-cannot-be-locked"

    def test_the_next_session_is_one_that_has_messages_and_is_free(self, world: World, queue: str) -> None:
        fill(world, "a", "b", "c")
        client = world.client()
        found = {accepted(attach(client, None, timeout_ms=1000)) for _ in range(3)}
        assert found == {"a", "b", "c"}
        link = attach(client, None, timeout_ms=10)
        world.wait(100)
        assert condition(client, link) == "com.microsoft:timeout"

    def test_a_session_that_was_emptied_is_no_next_one(self, world: World, queue: str) -> None:
        fill(world, "s")
        client = world.client()
        link = attach(client, None)
        client.settle(link, client.receive(link, 1), ACCEPTED)
        link.detach()
        world.wait()
        link = attach(client, None, timeout_ms=200)
        assert condition(client, link) == "com.microsoft:timeout"


class TestWaiting:
    def test_who_waits_gets_the_session_that_comes(self, world: World, queue: str) -> None:
        client = world.client()
        link = attach(client, None)
        assert is_pending(client, link)
        fill(world, "late")
        assert accepted(link) == "late"
        assert [body_of(delivery) for delivery in client.receive(link, 5)] == [b"body"]

    def test_credit_that_comes_with_the_attach_counts(self, world: World, queue: str) -> None:
        client = world.client()
        session = client.session()
        link = session.attach_receiver("early", source=Source("q", filter={FILTER: None}))
        link.flow.available = 5
        session.write_flow(link)
        world.wait()
        fill(world, "s")
        assert [body_of(delivery) for delivery in client.deliveries(link)] == [b"body"]

    def test_a_session_goes_to_one_of_many_who_wait(self, world: World, queue: str) -> None:
        clients = [world.client() for _ in range(5)]
        links = [attach(client, None) for client in clients]
        fill(world, "a", "b")
        world.wait()
        assert sorted(str(accepted(link)) for link in links if link.is_open) == ["a", "b"]
        assert sum(is_pending(client, link) for client, link in zip(clients, links, strict=True)) == 3

    def test_who_waits_gets_a_session_that_its_holder_gives_up(self, world: World, queue: str) -> None:
        fill(world, "s")
        holder, other = world.client(), world.client()
        held = attach(holder, None)
        waiting = attach(other, None)
        assert is_pending(other, waiting)
        held.detach()
        world.wait()
        assert accepted(waiting) == "s"

    @pytest.mark.parametrize(
        ("timeout_ms", "earliest_ms", "latest_ms"),
        [(2_000, 1_850, 2_000), (7_000, 6_700, 6_800), (None, 64_700, 64_800), (600_000, 64_700, 64_800)],
    )
    def test_the_answer_comes_shortly_before_the_client_gives_up(
        self, world: World, queue: str, timeout_ms: int | None, earliest_ms: float, latest_ms: float
    ) -> None:
        client = world.client()
        start_ms = world.timeline.time_ms
        link = attach(client, None, timeout_ms=timeout_ms)
        while not client.is_detached(link):
            world.wait(10)
        assert earliest_ms <= world.timeline.time_ms - start_ms <= latest_ms + 20
        assert condition(client, link) == "com.microsoft:timeout"
        assert link.refused, "an attach with nulls came first"

    def test_no_time_at_all_is_enough_for_what_is_there(self, world: World, queue: str) -> None:
        fill(world, "s")
        client = world.client()
        assert accepted(attach(client, None, timeout_ms=0)) == "s"
        assert condition(client, attach(client, None, timeout_ms=0)) == "com.microsoft:timeout"

    @pytest.mark.parametrize("value", ["soon", -5, True, 2.5])
    def test_a_time_that_is_none_is_refused(self, world: World, queue: str, value: object) -> None:
        client = world.client()
        link = client.receiver(
            "q", source=Source("q", filter={FILTER: None}), properties={Symbol("com.microsoft:timeout"): value}
        )
        error = client.refusal(link)
        assert error.condition == "com.microsoft:argument-error"
        assert "com.microsoft:timeout" in str(error.description)

    def test_waiting_times(self) -> None:
        assert wait_ms_of(None) == WAIT_MAX_MS - 250
        assert wait_ms_of({"com.microsoft:timeout": 1000}) == 950
        assert wait_ms_of({"com.microsoft:timeout": 0}) == 0

    @pytest.mark.parametrize(
        "leave",
        [
            lambda client, link: link.detach(),
            lambda client, link: link.session.end(),
            lambda client, link: client.engine.close(),
            lambda client, link: client.lose(),
        ],
        ids=["detach", "end", "close", "lost"],
    )
    def test_who_has_gone_while_it_waited_locks_nothing(
        self, world: World, queue: str, leave: Callable[[Client, Receiver], None]
    ) -> None:
        gone, other = world.client(), world.client()
        link = attach(gone, None)
        assert is_pending(gone, link)
        leave(gone, link)
        world.wait()
        assert not link.is_open
        fill(world, "s")
        assert accepted(attach(other, "s")) == "s"

    def test_an_attach_that_is_taken_back_at_once_locks_nothing(self, world: World, queue: str) -> None:
        fill(world, "s")
        gone, other = world.client(), world.client()
        for _ in range(3):
            link = gone.session().attach_receiver("hasty", source=Source("q", filter={FILTER: "s"}))
            link.detach()
            world.wait()
            assert gone.is_detached(link)
        assert accepted(attach(other, "s")) == "s"

    def test_the_end_of_the_queue_is_told_to_who_waits(self, world: World, queue: str) -> None:
        client = world.client()
        link = attach(client, None)
        world.broker.delete("q")
        world.carry()
        assert condition(client, link) == "amqp:not-found"
        assert link.refused

    def test_a_queue_closed_forreceivers_is_told_to_who_waits(self, world: World, queue: str) -> None:
        client = world.client()
        link = attach(client, None)
        world.broker.update("q", {"Status": "ReceiveDisabled"})
        world.carry()
        assert condition(client, link) == "com.microsoft:entity-disabled"


class TestRefusing:
    def test_a_session_receiver_on_a_queue_without_sessions(self, world: World) -> None:
        world.queue("q")
        client = world.client()
        error = client.refusal(attach(client, "s"))
        assert error.condition == "amqp:not-allowed"
        assert "A sessionful message receiver cannot be created" in str(error.description)

    def test_a_plain_receiver_on_a_queue_with_sessions(self, world: World, queue: str) -> None:
        client = world.client()
        error = client.refusal(client.receiver("q"))
        assert error.condition == "amqp:not-allowed"
        assert "to create a non-sessionful message receiver" in str(error.description)

    def test_dead_letters_have_no_sessions(self, world: World, queue: str) -> None:
        fill(world, "s")
        client = world.client()
        link = attach(client, "s")
        client.settle(link, client.receive(link, 1), Rejected(AmqpError("com.microsoft:dead-letter")))
        refused = client.receiver("q/$DeadLetterQueue", source=Source("q/$DeadLetterQueue", filter={FILTER: "s"}))
        assert condition(client, refused) == "amqp:not-allowed"
        plain = client.receiver("q/$DeadLetterQueue")
        assert [body_of(delivery) for delivery in client.receive(plain, 5)] == [b"body"]

    def test_who_may_not_listen_does_not_learn_whether_there_are_sessions(self, world: World, queue: str) -> None:
        client = world.client(login="sender")
        assert condition(client, attach(client, "s")) == "amqp:unauthorized-access"

    def test_morereceivers_than_an_entity_takes(self, tmp_path: Path) -> None:
        world = World(tmp_path)
        world.become(NamespaceOptions(limits={"receivers": 3}))
        world.queue("q", RequiresSession=True)
        world.queue("other")
        client = world.client()
        waiting = [attach(client, None), attach(client, None)]
        held = attach(client, "s")
        error = client.refusal(attach(client, "t"))
        assert error.condition == "com.microsoft:server-busy"
        assert "limit is 3" in str(error.description)
        assert client.receiver("other").is_open
        held.detach()
        waiting[0].detach()
        world.wait()
        assert accepted(attach(client, "t")) == "t"
        client.lose()
        assert world.broker.clients.receivers_of(world.broker.entity("q").queue) == 0


class TestHolding:
    def test_messages_come_in_order_and_under_the_lock_of_the_session(self, world: World, queue: str) -> None:
        client = world.client()
        sender = client.sender("q")
        bodies = [b"%d" % i for i in range(20)]
        client.send(sender, *[message(body, session_id="s") for body in bodies])
        link = attach(client, "s")
        deliveries = client.receive(link, 20)
        assert [body_of(delivery) for delivery in deliveries] == bodies
        assert link.properties is not None
        until_ms = (int(link.properties[LOCKED_UNTIL]) - TICKS_1970) // 10_000  # type: ignore[call-overload]
        assert {locked_until(delivery) for delivery in deliveries} == {until_ms}
        assert [answer.state for answer in client.settle(link, deliveries, ACCEPTED)] == [ACCEPTED]
        assert world_counts(world) == 0

    def test_other_sessions_messages_do_not_come(self, world: World, queue: str) -> None:
        fill(world, "a", "b", "a", "c")
        client = world.client()
        link = attach(client, "a")
        assert [IncomingMessage(d.payload).session_id for d in client.receive(link, 10)] == ["a", "a"]

    def test_an_abandoned_message_is_the_next_one_again(self, world: World, queue: str) -> None:
        fill(world, "s", body=b"1")
        fill(world, "s", body=b"2")
        client = world.client()
        link = attach(client, "s")
        (first,) = client.receive(link, 1)
        client.settle(link, [first], Modified(delivery_failed=True))
        assert [body_of(delivery) for delivery in client.receive(link, 2)] == [b"1", b"2"]

    def test_receive_and_delete(self, world: World, queue: str) -> None:
        fill(world, "s", "s")
        client = world.client()
        link = attach(client, "s", delete=True)
        assert [body_of(delivery) for delivery in client.receive(link, 5)] == [b"body", b"body"]
        assert world_counts(world) == 0

    def test_a_drain_is_answered(self, world: World, queue: str) -> None:
        fill(world, "s")
        client = world.client()
        link = attach(client, "s")
        assert len(client.receive(link, 5)) == 1
        link.drain()
        world.wait()
        assert (link.credit, link.delivery_count) == (0, 5)

    def test_credit_that_comes_with_a_drain_brings_what_is_at_hand(self, world: World, queue: str) -> None:
        client = world.client()
        link = attach(client, None)
        fill(world, "s", "s")
        link.drain(5)
        world.wait()
        assert len(client.deliveries(link)) == 2
        assert (link.credit, link.delivery_count) == (0, 5)

    @pytest.mark.parametrize(
        "leave",
        [
            lambda client, link: link.detach(),
            lambda client, link: link.session.end(),
            lambda client, link: client.engine.close(),
            lambda client, link: client.lose(),
        ],
        ids=["detach", "end", "close", "lost"],
    )
    def test_the_session_is_free_when_its_link_has_gone_and_nothing_was_counted(
        self, world: World, queue: str, leave: Callable[[Client, Receiver], None]
    ) -> None:
        fill(world, "s", "s", "s")
        holder, other = world.client(), world.client()
        link = attach(holder, "s")
        assert len(holder.receive(link, 2)) == 2
        leave(holder, link)
        world.wait()
        deliveries = other.receive(attach(other, "s"), 5)
        assert [IncomingMessage(delivery.payload).header.delivery_count for delivery in deliveries] == [0, 0, 0]

    def test_the_end_of_the_lock_ends_the_link_and_counts(self, world: World, queue: str) -> None:
        fill(world, "s", "s")
        holder, other = world.client(), world.client()
        link = attach(holder, "s")
        assert len(holder.receive(link, 1)) == 1
        world.wait(LOCK_MS)
        assert condition(holder, link) == "com.microsoft:session-lock-lost"
        deliveries = other.receive(attach(other, "s"), 5)
        assert [IncomingMessage(delivery.payload).header.delivery_count for delivery in deliveries] == [1, 0]

    def test_the_end_of_an_idle_lock_ends_the_link_too(self, world: World, queue: str) -> None:
        client = world.client()
        link = attach(client, "s")
        world.wait(LOCK_MS)
        assert condition(client, link) == "com.microsoft:session-lock-lost"
        assert accepted(attach(client, "s")) == "s"

    def test_a_settlement_that_crosses_the_end_of_the_lock_is_refused(self, world: World, queue: str) -> None:
        """Nothing of the client is read between the end of the lock and its settlement."""
        fill(world, "s")
        client = world.client()
        link = attach(client, "s")
        deliveries = client.receive(link, 1)
        world.clients.remove(client)
        link.settle_many(deliveries, ACCEPTED, settled=False)
        up = client.engine.data_to_send()
        # The clock has moved on, the partition's timer has not run yet.
        world.timeline.time_ms += LOCK_MS
        client.peer.receive_data(up)
        world.clients.append(client)
        world.wait()
        (state,) = [event.state for event in client.events if isinstance(event, Disposed) and event.link is link]
        assert isinstance(state, Rejected)
        assert state.error is not None
        assert state.error.condition == "com.microsoft:session-lock-lost"
        assert condition(client, link) == "com.microsoft:session-lock-lost"
        other = world.client()
        assert len(other.receive(attach(other, "s"), 5)) == 1, "it was not completed"

    def test_a_failing_store_takes_the_session_with_it(self, world: World) -> None:
        world.queue("q", RequiresSession=True)
        client = world.client()
        link = attach(client, "s")
        servant = world.store_of("q")
        servant.fails = StoreError("the disk is sick", executed=False)
        client.send(client.sender("q"), message(b"body", session_id="s"))
        servant.fails = None
        world.wait(2_000)
        assert condition(client, link) == "com.microsoft:session-lock-lost"
        assert accepted(attach(client, "s")) == "s"

    def test_the_end_of_the_queue_ends_the_link(self, world: World, queue: str) -> None:
        client = world.client()
        link = attach(client, "s")
        world.broker.delete("q")
        world.wait()
        assert condition(client, link) == "amqp:not-found"

    def test_a_queue_closed_forreceivers_frees_the_session(self, world: World, queue: str) -> None:
        client = world.client()
        link = attach(client, "s")
        world.broker.update("q", {"Status": "Disabled"})
        world.wait()
        assert condition(client, link) == "com.microsoft:entity-disabled"
        world.broker.update("q", {"Status": "Active"})
        assert accepted(attach(client, "s")) == "s"

    def test_an_expired_token_ends_holding_and_waiting(self, world: World, queue: str) -> None:
        client = world.client(login=None)
        assert client.put_token("root", "sb://localhost/q", expires_in_s=30) == 202
        held, waiting = attach(client, "s"), attach(client, None)
        world.wall_clock.advance(31_000)
        client.peer.tick(1.0)
        world.wait()
        assert condition(client, held) == "amqp:unauthorized-access"
        assert condition(client, waiting) == "amqp:unauthorized-access"
        other = world.client()
        assert accepted(attach(other, "s")) == "s"


class TestOperations:
    def test_a_renewal_moves_the_end_of_the_lock(self, world: World, queue: str) -> None:
        client = world.client()
        fill(world, "s", "s")
        link = attach(client, "s")
        client.receive(link, 1)
        world.wait(LOCK_MS / 2)
        status, body = operate(client, "renew-session-lock")
        assert status == 200
        assert world.timeline.time_ms + LOCK_MS - 5_000 < body["expiration"] <= world.timeline.time_ms + LOCK_MS
        world.wait(LOCK_MS * 0.75)
        assert link.is_open
        (delivery,) = client.receive(link, 1)
        assert locked_until(delivery) == body["expiration"]
        world.wait(LOCK_MS / 2)
        assert condition(client, link) == "com.microsoft:session-lock-lost"

    def test_state_is_kept_without_messages_and_without_a_holder(self, world: World, queue: str) -> None:
        client = world.client()
        link = attach(client, "s")
        assert operate(client, "get-session-state") == (200, {"session-state": None})
        assert operate(client, "set-session-state", {"session-state": b"\x00one"}) == (200, {})
        link.detach()
        world.wait()
        other = world.client()
        attach(other, "s")
        assert operate(other, "get-session-state") == (200, {"session-state": b"\x00one"})
        assert operate(other, "set-session-state", {"session-state": b""}) == (200, {})
        assert operate(other, "get-session-state") == (200, {"session-state": b""})
        assert operate(other, "set-session-state", {"session-state": None}) == (200, {})
        assert operate(other, "get-session-state") == (200, {"session-state": None})

    @pytest.mark.parametrize("state", ["text", 5, [b"x"]])
    def test_a_state_that_is_not_binary_is_refused(self, world: World, queue: str, state: object) -> None:
        client = world.client()
        attach(client, "s")
        assert operate(client, "set-session-state", {"session-state": state})[0] == 400
        assert operate(client, "set-session-state")[0] == 400

    def test_a_state_is_no_larger_than_a_message(self, world: World, queue: str) -> None:
        client = world.client()
        attach(client, "s")
        assert operate(client, "set-session-state", {"session-state": bytes(256 * 1024)})[0] == 200
        assert operate(client, "set-session-state", {"session-state": bytes(256 * 1024 + 1)})[0] == 403

    @pytest.mark.parametrize("operation", ["renew-session-lock", "get-session-state", "set-session-state"])
    def test_only_the_connection_that_holds_a_session_acts_for_it(
        self, world: World, queue: str, operation: str
    ) -> None:
        holder, other = world.client(), world.client()
        attach(holder, "s")
        body = {"session-state": b"x"}
        assert operate(holder, operation, body)[0] == 200
        reply = other.request("q/$management", f"com.microsoft:{operation}", {"session-id": "s", **body})
        assert reply.application_properties["statusCode"] == 410
        assert reply.application_properties["errorCondition"] == "com.microsoft:session-lock-lost"
        assert operate(holder, operation, {"session-id": "t", **body})[0] == 410
        world.wait(LOCK_MS)
        assert operate(holder, operation, body)[0] == 410

    @pytest.mark.parametrize("operation", ["renew-session-lock", "get-session-state", "get-message-sessions"])
    def test_where_there_are_no_sessions_they_are_not_allowed(self, world: World, operation: str) -> None:
        world.queue("q")
        client = world.client()
        assert operate(client, operation, {"top": 5})[0] == 400

    def test_a_session_must_be_named(self, world: World, queue: str) -> None:
        client = world.client()
        assert operate(client, "renew-session-lock", {"session-id": None})[0] == 400

    def test_who_may_only_send_may_not(self, world: World, queue: str) -> None:
        client = world.client(login="sender")
        for operation in ("renew-session-lock", "get-message-sessions"):
            assert operate(client, operation, {"top": 1})[0] == 401


class TestListing:
    def listed(self, client: Client, **body: object) -> list[str]:
        """All names, in pages of three."""
        names: list[str] = []
        while True:
            status, page = operate(client, "get-message-sessions", {"skip": len(names), "top": 3, **body})
            if status == 204:
                return names
            assert status == 200
            names += page["sessions-ids"].items
            assert page["skip"] == len(names)

    def test_every_session_with_messages_or_state_is_listed_once(self, world: World, queue: str) -> None:
        sessions = [f"session {i}" for i in range(20)]
        fill(world, *sessions, *sessions)
        client = world.client()
        attach(client, "s")
        attach(client, "empty")
        operate(client, "set-session-state", {"session-state": b"x"})
        assert sorted(self.listed(client)) == sorted([*sessions, "s"])
        assert sorted(self.listed(client, **{"last-updated-time": 253402300800000})) == sorted([*sessions, "s"])

    def test_with_a_time_only_those_whose_state_was_set_after_it(self, world: World, queue: str) -> None:
        fill(world, "other")
        client = world.client()
        attach(client, "s")
        before_ms = world.timeline.now_ms()
        operate(client, "set-session-state", {"session-state": b"x"})
        assert self.listed(client, **{"last-updated-time": before_ms}) == ["s"]
        assert self.listed(client, **{"last-updated-time": world.timeline.now_ms() + 1}) == []

    def test_nothing_is_answered_with_a_condition(self, world: World, queue: str) -> None:
        reply = world.client().request("q/$management", "com.microsoft:get-message-sessions", {"skip": 0, "top": 10})
        assert reply.application_properties["statusCode"] == 204
        assert reply.application_properties["errorCondition"] == "com.microsoft:session-not-found"

    @pytest.mark.parametrize("body", [{"skip": -1}, {"top": 0}, {"top": "x"}, {"last-updated-time": "x"}])
    def test_what_makes_no_sense_is_refused(self, world: World, queue: str, body: dict[str, object]) -> None:
        assert operate(world.client(), "get-message-sessions", {"skip": 0, "top": 5, **body})[0] == 400


def test_nothing_is_left_ofreceivers_that_came_and_went(world: World, queue: str) -> None:
    """Ended while it waited, ended while it held, refused, timed out: over and over."""
    client = world.client()
    before = remembered(world)
    for _ in range(5):
        holder, waiting, refused = attach(client, "s"), attach(client, None), attach(client, "s")
        timed_out = attach(client, None, timeout_ms=100)
        assert (holder.is_open, client.is_detached(refused), client.is_detached(timed_out)) == (True, True, True)
        waiting.detach()
        holder.detach()
        world.wait()
    assert remembered(world) == before
    assert world.broker.clients.receivers_of(world.broker.entity("q").queue) == 0
    assert not world.broker.entity("q").route.sessions._waiting
    attach(client, "s")
    attach(client, None)
    world.broker.delete("q")
    world.wait()
    assert remembered(world) == before


def remembered(world: World) -> list[int]:
    """Requests and receivers that stores still know."""
    world.wait()
    answers = [servant.runtime._answers for servant in world.stores]
    return [len(one.requests) + len(one.receivers) for one in answers]


@pytest.mark.row("K3")
def test_the_messages_of_a_session_share_its_partition(world: World) -> None:
    world.queue("q", RequiresSession=True, EnablePartitioning=True)
    client = world.client()
    fill(world, *["s"] * 5)
    deliveries = client.receive(attach(client, "s"), 5)
    partitions = [IncomingMessage(delivery.payload).partition_id for delivery in deliveries]
    assert partitions == [partition_for_key("s", 16)] * 5


def locked_until(delivery: Delivery) -> int:
    value = IncomingMessage(delivery.payload).annotations["x-opt-locked-until"]
    assert isinstance(value, int)
    return int(value)


def world_counts(world: World) -> int:
    """Messages that are left in the queue."""
    world.wait()
    reply = world.client().request("$management", "partibus:get-entity", {"name": "q"})
    assert isinstance(reply.body, dict)
    return int(reply.body["messages"])
