"""`<entity>/$management`: peeking, and requests that no operation is meant by or allowed for."""

from __future__ import annotations

import pytest

from partibus.amqp import Modified, Receiver, Sender, Session, Source, Target
from partibus.amqp.codec.types import Int
from partibus.amqp.section_encoding import encode_application_properties, encode_properties, encode_value
from partibus.client.messages import IncomingMessage
from partibus.frontends.amqp import peer
from partibus.frontends.amqp.operations import rules
from partibus.partition.protocol.ports import StoreError
from partibus.routing.slots import partition_for_key
from tests.unit.frontends.controller import Controller
from tests.unit.frontends.harness import Client, World, message
from tests.unit.frontends.node_requests import ask, messages, peek, refusal

ONE = {"from-sequence-number": 0, "message-count": Int(1)}


RULES = (rules.ADD, rules.REMOVE, rules.ENUMERATE)


class TestPeeking:
    @pytest.mark.parametrize("partitioned", [False, True])
    def test_at_one_session(self, world: World, partitioned: bool) -> None:
        client = world.client()
        sender = client.sender(world.queue("q", RequiresSession=True, EnablePartitioning=partitioned))
        for number in range(12):
            client.send(sender, message(b"%d" % number, session_id="abc"[number % 3]))
        for index, session in enumerate("abc"):
            found = peek(client, "q", count=2, session=session)
            assert [one.body for one in found] == [b"%d" % number for number in range(index, 12, 3)]
            assert {one.session_id for one in found} == {session}
        assert peek(client, "q", session="none") == []
        assert len(peek(client, "q")) == 12

    def test_from_a_number_behind_the_sessions_partition_there_is_nothing(self, world: World) -> None:
        client = world.client()
        client.send(
            client.sender(world.queue("q", RequiresSession=True, EnablePartitioning=True)), message(session_id="s")
        )
        behind = partition_for_key("s", 16) + 1 << 48
        assert ask(client, "q", "peek-message", {**ONE, "from-sequence-number": behind, "session-id": "s"})[0] == 204

    def test_a_queue_without_sessions_has_none_to_peek_at(self, world: World) -> None:
        world.queue("q")
        assert refusal(world.client(), "q", "peek-message", {**ONE, "session-id": "s"})[:2] == (400, "amqp:not-allowed")

    def test_without_bodies(self, world: World) -> None:
        client = world.client()
        given = message(bytes(10_000), message_id="m", application_properties={"a": 1})
        client.send(client.sender(world.queue("q")), given)
        _, found = ask(client, "q", "peek-message", {**ONE, "omit-message-body": True})
        (one,) = messages(found)
        assert (one.message_id, one.application_properties, one.body) == ("m", {"a": 1}, b"")
        assert one.sections.body == b""
        (whole,) = messages(ask(client, "q", "peek-message", {**ONE, "omit-message-body": False})[1])
        assert len(whole.payload) > 10_000

    def test_a_message_that_stays_away_is_shown_as_active(self, world: World) -> None:
        client = world.client()
        client.send(client.sender(world.queue("q")), message())
        link = client.receiver("q")
        later = Modified(message_annotations={"x-opt-partibus-delay-ms": 60_000})
        client.settle(link, client.receive(link, 1), later)
        (found,) = peek(client, "q")
        assert (found.state, found.delivery_count) == ("active", 1)

    def test_a_session_whose_store_is_away(self, world: World) -> None:
        client = world.client()
        world.queue("q", RequiresSession=True, EnablePartitioning=True)
        store = world.store_of("q", partition_for_key("s", 16))
        store.fails, store.stays_away = StoreError("sick", executed=False), True
        client.send(client.sender("q"), message(session_id="s"))
        found = refusal(client, "q", "peek-message", {**ONE, "session-id": "s"})
        assert found[:2] == (503, "com.microsoft:server-busy")


class TestRequests:
    @pytest.mark.parametrize(
        "operation", [name.removeprefix("com.microsoft:") for name in (rules.ADD, rules.REMOVE, rules.ENUMERATE)]
    )
    def test_a_queue_has_no_rules(self, world: World, operation: str) -> None:
        world.queue("q")
        found = refusal(world.client(), "q", operation, {"rule-name": "r"})
        assert found[:2] == (400, "amqp:not-allowed")
        assert "'q' is a queue" in found[2]
        listener = world.client(login="listener")
        assert refusal(listener, "q", operation, {})[:2] == (401, "amqp:unauthorized-access")

    def test_an_operation_that_nobody_knows(self, world: World) -> None:
        world.queue("q")
        found = refusal(world.client(), "q", "dance")
        assert found[:2] == (501, "amqp:not-implemented")
        assert "com.microsoft:peek-message" in found[2]

    def test_a_body_that_is_no_map(self, world: World) -> None:
        world.queue("q")
        reply = world.client().request("q/$management", "com.microsoft:peek-message", [1])
        properties = reply.application_properties
        assert (properties["statusCode"], properties["errorCondition"]) == (400, "com.microsoft:argument-error")

    def test_a_queue_that_is_gone(self, world: World) -> None:
        client = world.client()
        session = client.session()
        replies = client.receiver(f"{world.queue('q')}/$management", session)
        replies.grant(1)
        sender = client.sender("q/$management", session)
        world.broker.delete("q")
        client.send_raw(
            sender, encode_application_properties({"operation": "com.microsoft:peek-message"}) + encode_value(ONE)
        )
        world.wait()
        (found,) = client.deliveries(replies)
        assert b"could not be found" in found.payload

    def test_a_queue_that_is_made_again_under_the_same_name(self, world: World) -> None:
        client = world.client()
        client.send(client.sender(world.queue("q")), message(b"old"))
        session = client.session()
        replies = client.receiver("q/$management", session)
        replies.grant(1)
        sender = client.sender("q/$management", session)
        world.broker.delete("q")
        client.send(client.sender(world.queue("q")), message(b"new"))
        client.send_raw(
            sender, encode_application_properties({"operation": "com.microsoft:peek-message"}) + encode_value(ONE)
        )
        world.wait()
        (found,) = client.deliveries(replies)
        assert b"new" in found.payload

    def test_what_cannot_be_undone_is_no_part_of_a_transaction(self, world: World) -> None:
        client = world.client()
        world.queue("q")
        transaction = Controller(client).declare()
        for operation in ("cancel-scheduled-message", "batch-delete-messages", "set-session-state"):
            found = refusal(client, "q", operation, ONE, transaction=transaction)
            assert found[:2] == (400, "amqp:not-allowed")
            assert "can't be part of a transaction" in found[2]


class TestPairsOfLinks:
    """Several pairs of links to one node in one session, each with a reply-to of its own."""

    def test_a_reply_goes_to_the_link_that_the_request_names(self, world: World) -> None:
        client = world.client()
        session = client.session()
        world.queue("q")
        pairs = [self._pair(client, session, name) for name in ("first", "second")]
        for _, replies in pairs:
            replies.grant(10)
        for sender, replies in pairs:
            self._ask(client, sender, replies.name)
            assert self._replies(client, pairs) == [[one.name] if one is replies else [] for _, one in pairs]
            client.events.clear()
        self._ask(client, pairs[0][0], None)
        assert self._replies(client, pairs) == [[], [None]], "the latest link"
        client.events.clear()
        pairs[1][1].detach()
        world.wait()
        for named in ("first", "second"):
            self._ask(client, pairs[0][0], named)
        assert self._replies(client, pairs) == [["first", "second"], []]

    def test_replies_are_dropped_from_the_link_that_takes_none(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(peer, "REPLY_BYTES_MAX", 2_000)
        client = world.client()
        session = client.session()
        world.queue("q")
        pairs = [self._pair(client, session, name) for name in ("first", "second")]
        for _ in range(20):
            self._ask(client, pairs[0][0], "first")
        self._ask(client, pairs[1][0], "second")
        for _, replies in pairs:
            replies.grant(100)
        world.wait()
        stuck, waiting = self._replies(client, pairs)
        assert waiting == ["second"]
        assert 0 < len(stuck) < 20

    @staticmethod
    def _pair(client: Client, session: Session, name: str) -> tuple[Sender, Receiver]:
        address = "q/$management"
        replies = session.attach_receiver(name, source=Source(address), target=Target(name))
        return client.sender(address, session), replies

    @staticmethod
    def _ask(client: Client, sender: Sender, reply_to: str | None) -> None:
        """Send a request whose reply shows the reply-to."""
        head = encode_properties(message_id=reply_to or "none", reply_to=reply_to)
        client.send_raw(sender, head + encode_application_properties({"operation": "x"}) + encode_value({}))
        client.world.wait()

    @staticmethod
    def _replies(client: Client, pairs: list[tuple[Sender, Receiver]]) -> list[list[object]]:
        """The reply-to of each reply, by pair."""
        found = [[IncomingMessage(one.payload).correlation_id for one in client.deliveries(to)] for _, to in pairs]
        return [[None if name == "none" else name for name in names] for names in found]


def test_a_refused_peek_names_the_session_as_callers_give_it(world: World) -> None:
    world.queue("q")
    refused = refusal(world.client(), "q", "peek-message", {**ONE, "session-id": "s"})
    assert "Peek at it without one: leave session-id (--session) out." in refused[2]
