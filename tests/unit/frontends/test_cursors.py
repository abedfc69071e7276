"""Cursors and ranges over AMQP: what readers of whole partitions ask, and what receivers are told meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from partibus.amqp import ACCEPTED, Delivery, Modified, Receiver, Sender, Source
from partibus.amqp.codec.types import Array, Int, Symbol, UInt
from partibus.amqp.section_encoding import encode_application_properties, encode_properties, encode_value
from partibus.client.extensions.ranges import Frame, unpack_frame
from partibus.client.messages import IncomingMessage
from partibus.frontends.amqp.operations.ranges import WAIT_MAX_MS
from partibus.namespace import moving
from partibus.namespace.namespace_options import NamespaceOptions
from partibus.partition.protocol.commands import CloseCursor
from tests.unit.frontends import node_requests
from tests.unit.frontends.harness import Client, World, body_of, message
from tests.unit.frontends.node_requests import token_of, uuids

LEASE: dict[str, Any] = {"lease-ms": Int(60_000)}


def ask(client: Client, address: str, operation: str, **body: Any) -> dict[str, Any]:
    """The body of a reply that says success; keywords with dashes for underscores."""
    reply = client.request(f"{address}/$management", f"partibus:{operation}", _dashed(body))
    assert reply.application_properties["statusCode"] == 200, reply.application_properties
    assert isinstance(reply.body, dict)
    return reply.body


def refusal(client: Client, address: str, operation: str, **body: Any) -> tuple[int, str, str]:
    """Status code, condition and text."""
    properties = client.request(f"{address}/$management", f"partibus:{operation}", _dashed(body)).application_properties
    status, condition = properties["statusCode"], properties["errorCondition"]
    assert isinstance(status, Int)
    assert isinstance(condition, Symbol)
    return int(status), str(condition), str(properties["statusDescription"])


def _dashed(body: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("_", "-"): value for key, value in body.items()}


def filled(world: World, client: Client, count: int = 3, **properties: object) -> Sender:
    """A queue ``q`` with messages."""
    sender = client.sender(world.queue("q", **properties))
    client.send(sender, *(message(b"%d" % number, partition_key=f"k{number}") for number in range(count)))
    return sender


def frame_of(answer: Mapping[str, Any]) -> Frame:
    return unpack_frame(
        int(answer["count"]), answer["frame"], int(answer["next-position"]), int(answer["complete-from"])
    )


def read(client: Client, partition: int = 0, **body: Any) -> Frame:
    body = {"from_position": 0, "to_position": 1 << 40, **body}
    return frame_of(ask(client, "q", "read-range", partition_id=Int(partition), **body))


def opened(client: Client, name: str = "c", address: str = "q", **body: Any) -> dict[int, dict[str, Any]]:
    return {one["partition-id"]: one for one in ask(client, address, "open-cursor", name=name, **body)["cursors"]}


def epochs_of(states: Mapping[int, Mapping[str, Any]]) -> dict[Any, int]:
    return {Int(index): state["epoch"] for index, state in states.items()}


def messages_in(answer: Mapping[str, Any]) -> int:
    return sum(one["messages"] for one in answer["partitions"])


def complete(client: Client, held: list[Delivery]) -> None:
    """Complete as client libraries do when the link is gone."""
    tokens = {"disposition-status": "completed", "lock-tokens": uuids(map(token_of, held))}
    node_requests.ask(client, "q", "update-disposition", tokens)


class TestPartitions:
    def test_the_map_names_the_entity_and_tells_incarnations_apart(self, world: World) -> None:
        client = world.client()
        filled(world, client)
        before = ask(client, "Q", "partitions")
        assert (before["entity"], before["map-version"]) == ("q", 1)
        (partition,) = before["partitions"]
        assert (partition["end-position"], partition["messages"], partition["retained"]) == (4, 3, 0)
        world.broker.delete("q")
        world.wait()
        world.queue("q")
        after, dead_letters = ask(client, "q", "partitions"), ask(client, "q/$deadletterqueue", "partitions")
        assert dead_letters["entity"] == "q/$DeadLetterQueue"
        assert len({before["entity-id"], after["entity-id"], dead_letters["entity-id"]}) == 3

    def test_all_partitions_are_there(self, world: World) -> None:
        client = world.client()
        filled(world, client, 40, EnablePartitioning=True)
        partitions = ask(client, "q", "partitions")["partitions"]
        assert [one["partition-id"] for one in partitions] == list(range(16))
        assert sum(one["messages"] for one in partitions) == 40

    def test_a_topic_has_nothing_to_read(self, world: World) -> None:
        world.broker.create_topic("t", {})
        client = world.client()
        for operation in (
            "partitions",
            "wait",
            "read-range",
            "read-fates",
            "open-cursor",
            "advance-cursor",
            "close-cursor",
            "cursors",
        ):
            assert refusal(client, "t", operation, name="c")[:2] == (400, "amqp:not-allowed"), operation


class TestWaiting:
    def test_what_is_there_is_told_at_once(self, world: World) -> None:
        client = world.client()
        filled(world, client)
        before_ms = world.timeline.time_ms
        assert ask(client, "q", "wait", timeout_ms=Int(20_000))["partitions"][0]["end-position"] == 4
        assert world.timeline.time_ms - before_ms < WAIT_MAX_MS

    @pytest.mark.parametrize("partitioned", [False, True])
    def test_the_next_message_ends_it(self, world: World, partitioned: bool) -> None:
        client = world.client()
        sender = client.sender(world.queue("q", EnablePartitioning=partitioned))
        replies, requests = waiting(client)
        begin_wait(requests, timeout_ms=Int(20_000))
        world.wait(5_000)
        assert client.deliveries(replies) == []
        client.send(sender, message(b"late", partition_key="k"))
        (reply,) = client.deliveries(replies)
        assert sum(one["messages"] for one in body_of(reply)["partitions"]) == 1

    def test_in_the_end_it_answers_all_the_same(self, world: World) -> None:
        client = world.client()
        filled(world, client)
        replies, requests = waiting(client)
        begin_wait(requests, positions={Int(0): 4}, timeout_ms=Int(2_000))
        world.wait(1_000)
        assert client.deliveries(replies) == []
        world.wait(1_500)
        (reply,) = client.deliveries(replies)
        assert body_of(reply)["partitions"][0]["end-position"] == 4
        assert world.broker.arrivals.partitions == 0, "nobody is looked after any more"

    def test_many_who_wait_are_looked_after_together(self, world: World) -> None:
        sender = world.client().sender(world.queue("q", EnablePartitioning=True))
        clients = [world.client() for _ in range(20)]
        links = [waiting(client) for client in clients]
        for _, requests in links:
            begin_wait(requests, timeout_ms=Int(25_000))
        world.wait(3_000)
        assert world.broker.arrivals.partitions == 16
        world.clients[0].send(sender, message(partition_key="k"))
        assert [len(client.deliveries(replies)) for client, (replies, _) in zip(clients, links, strict=True)] == [
            1
        ] * 20

    @pytest.mark.parametrize(
        "body",
        [
            {"positions": {Int(1): 0}},
            {"positions": {Int(0): -1}},
            {"positions": {"0": 1}},
            {"positions": [1]},
            {"timeout_ms": Int(-1)},
        ],
    )
    def test_wrong_arguments(self, world: World, body: dict[str, Any]) -> None:
        world.queue("q")
        assert refusal(world.client(), "q", "wait", **body)[:2] == (400, "com.microsoft:argument-error")


def waiting(client: Client) -> tuple[Receiver, Sender]:
    """The two links of a node."""
    session = client.session()
    replies = client.receiver("q/$management", session, source=Source("q/$management"))
    replies.grant(10)
    return replies, client.sender("q/$management", session)


def begin_wait(requests: Sender, **body: Any) -> None:
    """Ask, and do not wait for the answer."""
    request = encode_properties(message_id="1") + encode_application_properties({"operation": "partibus:wait"})
    assert requests.send(b"request", request + encode_value(_dashed(body)))


class TestRanges:
    def test_frames_come_as_they_are_stored(self, world: World) -> None:
        client = world.client()
        filled(world, client)
        frame = read(client)
        assert frame.positions.tolist() == frame.sequences.tolist() == [1, 2, 3]
        assert frame.states.tolist() == [0, 0, 0]
        assert sum(frame.sizes) == len(frame.data)
        assert frame.next_pos == 1 << 40 or frame.next_pos == 4

    def test_small_frames_lead_to_all_messages(self, world: World) -> None:
        client = world.client()
        filled(world, client, 5)
        found: list[int] = []
        start = 0
        while start < 6:
            frame = read(client, from_position=start, to_position=6, max_bytes=1)
            assert frame.count <= 1
            found += frame.positions.tolist()
            assert frame.next_pos > start
            start = frame.next_pos
        assert found == [1, 2, 3, 4, 5]

    def test_locked_messages_are_read_and_completed_ones_are_not(self, world: World) -> None:
        client = world.client()
        filled(world, client)
        receiver = client.receiver("q")
        first, _ = client.receive(receiver, 2)
        client.settle(receiver, [first], ACCEPTED)
        assert read(client).positions.tolist() == [2, 3]

    @pytest.mark.parametrize(
        "body",
        [
            {"partition_id": Int(1)},
            {"partition_id": Int(0), "from_position": 5, "to_position": 4},
            {"partition_id": Int(0), "from_position": 0},
            {"partition_id": Int(0), "from_position": 0, "to_position": 9, "max_bytes": 0},
        ],
    )
    def test_wrong_arguments(self, world: World, body: dict[str, Any]) -> None:
        world.queue("q")
        assert refusal(world.client(), "q", "read-range", **body)[:2] == (400, "com.microsoft:argument-error")

    def test_an_unknown_cursor(self, world: World) -> None:
        world.queue("q")
        body = {"partition_id": Int(0), "from_position": 0, "to_position": 9, "cursor": "c"}
        status, condition, text = refusal(world.client(), "q", "read-range", **body)
        assert (status, condition) == (410, "partibus:cursor-lost")
        assert "there is no cursor 'c'" in text


class TestCursors:
    def test_what_it_has_not_passed_stays_readable(self, world: World) -> None:
        client = world.client()
        filled(world, client)
        assert opened(client)[0]["position"] == 0
        receiver = client.receiver("q")
        client.settle(receiver, client.receive(receiver, 3), ACCEPTED)
        assert read(client).count == 0
        frame = read(client, finished=True, cursor="c")
        assert frame.positions.tolist() == [1, 2, 3]
        assert set(frame.states) == {16}
        (state,) = ask(client, "q", "advance-cursor", name="c", positions={Int(0): 3})["cursors"]
        assert (state["position"], state["end-position"]) == (3, 4)
        world.wait()
        assert read(client, finished=True).positions.tolist() == [3]
        assert ask(client, "q", "close-cursor", name="c", drop=True) == {}
        world.wait()
        assert read(client, finished=True).count == 0

    def test_starts(self, world: World) -> None:
        client = world.client()
        filled(world, client)
        assert opened(client, "early", start="earliest")[0]["position"] == 0
        assert opened(client, "late", start="latest")[0]["position"] == 4
        assert opened(client, "mine", start={Int(0): 2})[0]["position"] == 2
        assert opened(client, "late", start="earliest")[0]["position"] == 4, "one that exists stays where it is"

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"name": ""},
            {"name": "a\nb"},
            {"name": "a" * 129},
            {"name": "c", "start": "newest"},
            {"name": "c", "start": {Int(1): 0}},
            {"name": "c", "lease_ms": Int(-1)},
            {"name": "c", "lease_ms": Int(3_600_001)},
            {"name": "c", "bound_bytes": -1},
            {"name": "c", "fates": "yes"},
        ],
    )
    def test_wrong_arguments(self, world: World, body: dict[str, Any]) -> None:
        world.queue("q")
        assert refusal(world.client(), "q", "open-cursor", **body)[:2] == (400, "com.microsoft:argument-error")

    def test_what_is_kept_has_a_bound_of_the_namespace(self, world: World) -> None:
        world.become(NamespaceOptions(limits={"retained_mb": 2}))
        world.queue("q")
        client = world.client()
        opened(client, "most", bound_bytes=2 << 20)
        opened(client, "default")
        assert {cursor["partitions"][0]["bound-bytes"] for cursor in ask(client, "q", "cursors")["cursors"]} == {
            2 << 20
        }
        status, condition, text = refusal(client, "q", "open-cursor", name="more", bound_bytes=(2 << 20) + 1)
        assert (status, condition) == (400, "com.microsoft:argument-error")
        assert "bound-bytes is 2097153, but must be at most 2097152, by the limit retained_mb" in text

    def test_fates_are_logged_for_who_wants_them(self, world: World) -> None:
        client = world.client()
        filled(world, client)
        opened(client, fates=True)
        receiver = client.receiver("q")
        client.settle(receiver, client.receive(receiver, 2), ACCEPTED)
        found = ask(client, "q", "read-fates", partition_id=Int(0), cursor="c", from_number=0)
        assert found["positions"].items == found["sequences"].items == [1, 2]
        assert found["fates"].items == [0, 0]
        last = found["numbers"].items[-1]
        assert (
            ask(client, "q", "read-fates", partition_id=Int(0), cursor="c", from_number=last + 1)["numbers"].items == []
        )
        refused = refusal(client, "q", "read-fates", partition_id=Int(0), cursor="d", from_number=0)
        assert refused[:2] == (410, "partibus:cursor-lost")

    def test_the_list_has_every_partition(self, world: World) -> None:
        client = world.client()
        filled(world, client, 40, EnablePartitioning=True)
        opened(client, "b", bound_bytes=1_000)
        opened(client, "a", start="latest", **LEASE)
        answer = ask(client, "q", "cursors")
        assert 0 <= world.timeline.now_ms() - answer["now-ms"] < 1_000
        a, b = answer["cursors"]
        assert [a["name"], b["name"]] == ["a", "b"]
        assert [one["partition-id"] for one in b["partitions"]] == list(range(16))
        assert {one["bound-bytes"] for one in b["partitions"]} == {1_000}
        assert {one["epoch"] > 0 for one in a["partitions"]} == {True}
        assert {one["epoch"] for one in b["partitions"]} == {0}
        assert sum(one["end-position"] - max(1, one["position"]) for one in b["partitions"]) == 40
        assert ask(client, "q/$deadletterqueue", "cursors")["cursors"] == []

    def test_who_may_only_send_may_not_read(self, world: World) -> None:
        world.queue("q")
        for operation in (
            "wait",
            "read-range",
            "open-cursor",
            "advance-cursor",
            "close-cursor",
            "cursors",
            "partitions",
        ):
            assert refusal(world.client(login="sender"), "q", operation)[:2] == (401, "amqp:unauthorized-access")


@pytest.mark.parametrize("partitioned", [False, True])
class TestAnExclusiveReader:
    @pytest.mark.row("D3")
    def test_receivers_are_refused_while_it_holds_and_not_after(self, world: World, partitioned: bool) -> None:
        client = world.client()
        filled(world, client, 20, EnablePartitioning=partitioned)
        receiver = client.receiver("q")
        states = opened(client, **LEASE)
        assert client.receive(receiver, 5) == []
        error = client.refusal(receiver)
        assert error.condition == "amqp:not-allowed"
        assert "'q' is read by the cursor 'c' alone, until 20" in str(error.description)
        positions = {Int(index): state["end-position"] for index, state in states.items()}
        ask(client, "q", "advance-cursor", name="c", positions=positions, epochs=epochs_of(states))
        ask(client, "q", "close-cursor", name="c", epochs=epochs_of(states))
        filled_later = client.sender("q")
        client.send(filled_later, message(b"new", partition_key="k"))
        again = client.receiver("q")
        assert [body_of(delivery) for delivery in client.receive(again, 50)] == [b"new"]

    @pytest.mark.row("D3")
    @pytest.mark.row("D10")
    def test_it_may_complete_what_it_chooses(self, world: World, partitioned: bool) -> None:
        client = world.client()
        filled(world, client, 20, EnablePartitioning=partitioned)
        states = opened(client, **LEASE)
        chosen = {Int(index): Array(0x81, [1, 3]) for index in states}
        before = messages_in(ask(client, "q", "partitions"))
        ask(client, "q", "advance-cursor", name="c", only=chosen, epochs=epochs_of(states))
        assert 0 < before - messages_in(ask(client, "q", "partitions")) <= 2 * len(states)
        for wrong in ([3, 1], [], [-1], "all"):
            only = {Int(0): Array(0x81, wrong) if isinstance(wrong, list) else wrong}
            assert refusal(client, "q", "advance-cursor", name="c", only=only, epochs=epochs_of(states))[0] == 400

    def test_a_receiver_that_waits_is_told(self, world: World, partitioned: bool) -> None:
        client = world.client()
        receiver = client.receiver(world.queue("q", EnablePartitioning=partitioned))
        receiver.grant(10)
        world.wait()
        opened(client, **LEASE)
        world.wait()
        assert client.refusal(receiver).condition == "amqp:not-allowed"

    def test_another_one_is_refused(self, world: World, partitioned: bool) -> None:
        client = world.client()
        filled(world, client, EnablePartitioning=partitioned)
        opened(client, **LEASE)
        status, condition, text = refusal(client, "q", "open-cursor", name="d", lease_ms=Int(1_000))
        assert (status, condition) == (409, "partibus:cursor-held")
        assert "cursor 'c' alone, until 20" in text
        assert opened(client, "d")[0]["epoch"] == 0, "reading beside it is allowed"

    def test_locks_come_first(self, world: World, partitioned: bool) -> None:
        client = world.client()
        filled(world, client, EnablePartitioning=partitioned)
        receiver = client.receiver("q")
        held = client.receive(receiver, 1)
        status, condition, text = refusal(client, "q", "open-cursor", name="c", **LEASE)
        assert (status, condition) == (503, "com.microsoft:server-busy")
        assert text.startswith("1 messages of 'q' are under lock")
        complete(client, held)  # the link may be gone: partitions without locks are the cursor's already
        assert min(state["epoch"] for state in opened(client, **LEASE).values()) > 0

    def test_or_they_are_revoked(self, world: World, partitioned: bool) -> None:
        client = world.client()
        filled(world, client, EnablePartitioning=partitioned)
        receiver = client.receiver("q")
        held = client.receive(receiver, 1)
        opened(client, revoke=True, **LEASE)
        tokens = {"disposition-status": "completed", "lock-tokens": uuids(map(token_of, held))}
        assert node_requests.refusal(client, "q", "update-disposition", tokens)[1] == "com.microsoft:message-lock-lost"

    @pytest.mark.row("D3")
    def test_its_lease_ends_by_itself_and_can_be_renewed(self, world: World, partitioned: bool) -> None:
        client = world.client()
        filled(world, client, EnablePartitioning=partitioned)
        states = opened(client, **LEASE)
        world.wait(50_000)
        renewed = opened(client, epochs=epochs_of(states), **LEASE)
        assert {index: one["epoch"] for index, one in renewed.items()} == {
            index: one["epoch"] for index, one in states.items()
        }
        world.wait(50_000)
        receiver = client.receiver("q")
        assert client.receive(receiver, 5) == []
        world.wait(20_000)
        assert len(client.receive(client.receiver("q"), 5)) == 3
        refused = refusal(client, "q", "open-cursor", name="c", epochs=epochs_of(states), **LEASE)
        assert refused[:2] == (410, "partibus:cursor-lost")

    def test_what_the_others_gave_goes_back_when_one_refuses(self, world: World, partitioned: bool) -> None:
        client = world.client()
        filled(world, client, EnablePartitioning=partitioned)
        states = opened(client, "other", **LEASE)
        others = {index: epoch for index, epoch in epochs_of(states).items() if index}
        if others:
            for index, epoch in others.items():
                partition = world.broker.entity("q").route.partitions[index]
                partition.submit(CloseCursor(world.numbers.next(), 0, "other", epoch), lambda _: None)
            world.wait()
        assert refusal(client, "q", "open-cursor", name="c", **LEASE)[1] == "partibus:cursor-held"
        assert {one["name"] for one in ask(client, "q", "cursors")["cursors"]} == {"other"}, "nothing was made"
        opened(client)
        assert refusal(client, "q", "open-cursor", name="c", **LEASE)[1] == "partibus:cursor-held"
        (c,) = [one for one in ask(client, "q", "cursors")["cursors"] if one["name"] == "c"]
        assert [one["epoch"] for one in c["partitions"]] == [0] * len(c["partitions"]), "it stays where it was"


@pytest.mark.parametrize("partitioned", [False, True])
class TestAnExclusiveReaderOfSessions:
    def test_who_holds_a_session_loses_it_by_name(self, world: World, partitioned: bool) -> None:
        client = world.client()
        world.queue("q", RequiresSession=True, EnablePartitioning=partitioned)
        link = session_receiver(client, "s")
        link.grant(5)
        world.wait()
        assert refusal(client, "q", "open-cursor", name="c", **LEASE)[1] == "com.microsoft:server-busy"
        opened(client, revoke=True, **LEASE)
        assert client.refusal(link).condition in ("amqp:not-allowed", "com.microsoft:session-lock-lost")

    @pytest.mark.row("D3")
    @pytest.mark.parametrize("session", ["s", None], ids=["named", "next"])
    def test_who_wants_one_is_refused(self, world: World, partitioned: bool, session: str | None) -> None:
        client = world.client()
        world.queue("q", RequiresSession=True, EnablePartitioning=partitioned)
        waits = session_receiver(client, None)
        opened(client, **LEASE)
        assert client.refusal(waits).condition == "amqp:not-allowed"
        comes = session_receiver(client, session)
        assert client.refusal(comes).condition == "amqp:not-allowed"
        assert "read by the cursor 'c' alone" in str(client.refusal(comes).description)
        world.wait(65_000)
        assert session_receiver(client, "s").is_open, "the lease is over"


def session_receiver(client: Client, session: str | None) -> Receiver:
    """Attached, refused or waiting by now."""
    return client.receiver("q", source=Source("q", filter={Symbol("com.microsoft:session-filter"): session}))


class TestOtherWaysToMessages:
    def test_deferred_ones_and_purges_are_refused(self, world: World) -> None:
        client = world.client()
        filled(world, client)
        receiver = client.receiver("q")
        held = client.receive(receiver, 1)
        client.settle(receiver, held, Modified(undeliverable_here=True))
        opened(client, **LEASE)
        numbers = {"sequence-numbers": node_requests.longs([1])}
        for operation, body in (
            ("receive-by-sequence-number", numbers),
            ("batch-delete-messages", {"message-count": Int(1)}),
        ):
            status, condition, text = node_requests.refusal(client, "q", operation, body)
            assert (status, condition) == (409, "amqp:not-allowed"), operation
            assert "read by the cursor 'c' alone" in text

    def test_while_a_cursor_waits_for_locks_it_is_a_passing_refusal(self, world: World) -> None:
        client = world.client()
        filled(world, client)
        receiver = client.receiver("q")
        deferred, _ = client.receive(receiver, 2)
        client.settle(receiver, [deferred], Modified(undeliverable_here=True))
        assert refusal(client, "q", "open-cursor", name="c", **LEASE)[1] == "com.microsoft:server-busy"
        numbers = {"sequence-numbers": node_requests.longs([1])}
        status, condition, text = node_requests.refusal(client, "q", "receive-by-sequence-number", numbers)
        assert (status, condition) == (503, "com.microsoft:server-busy")
        assert "the cursor 'c' waits for the end of locks" in text
        assert not client.is_detached(receiver), "receivers wait"

    @pytest.mark.row("D3")
    def test_the_dead_letters_of_a_queue_are_another_sub_queue(self, world: World) -> None:
        client = world.client()
        filled(world, client)
        opened(client, address="q/$deadletterqueue", **LEASE)
        assert len(client.receive(client.receiver("q"), 5)) == 3
        dead = client.receiver("q/$deadletterqueue")
        assert client.receive(dead, 5) == []
        assert client.refusal(dead).condition == "amqp:not-allowed"


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_cursor_ends_with_its_queue(world: World, partitioned: bool) -> None:
    client = world.client()
    filled(world, client, EnablePartitioning=partitioned)
    before = ask(client, "q", "partitions")["entity-id"]
    epochs = epochs_of(opened(client, **LEASE))
    world.broker.delete("q")
    filled(world, client, EnablePartitioning=partitioned)
    assert ask(client, "q", "partitions")["entity-id"] != before
    found = refusal(client, "q", "advance-cursor", name="c", positions={Int(0): 1}, epochs=epochs)
    assert found[:2] == (410, "partibus:cursor-lost")
    ask(client, "q", "close-cursor", name="c", epochs=epochs)
    assert opened(client, start="earliest")[0]["epoch"] not in epochs.values()


def test_a_reader_that_waits_is_told_that_its_queue_was_deleted(world: World) -> None:
    client = world.client()
    filled(world, client, count=0)
    session = client.session()
    replies = client.receiver("q/$management", session)
    replies.grant(2)
    requests = client.sender("q/$management", session)
    body = encode_application_properties({"operation": "partibus:wait"}) + encode_value(
        {"positions": {}, "timeout-ms": UInt(WAIT_MAX_MS)}
    )
    client.send_raw(requests, body)
    world.wait()
    assert client.deliveries(replies) == []
    world.broker.delete("q")
    world.wait(WAIT_MAX_MS / 2)
    (answer,) = client.deliveries(replies)
    properties = IncomingMessage(answer.payload).application_properties
    assert properties["statusCode"] == 503, "a client asks again"
    assert "the entity was deleted" in str(properties["statusDescription"])
    filled(world, client)
    client.send_raw(requests, body, 1)
    world.wait()
    (_, answer) = client.deliveries(replies)
    assert IncomingMessage(answer.payload).application_properties["statusCode"] == 200


def test_the_version_of_the_map_rises_with_the_partitions(world: World) -> None:
    world.queue("q", PartibusElasticPartitions=4)
    client = world.client()
    now_ms = world.broker.clock.now_ms()
    world.broker.change_slots("q", lambda old: moving.plan(old, [(0, 1, [(0, 99)])], 2, now_ms, "test"))
    answer = ask(client, "q", "partitions")
    assert [one["partition-id"] for one in answer["partitions"]] == [0, 1]
    assert answer["map-version"] > 1
