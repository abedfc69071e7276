"""Links on which a client sends: outcomes in order, refusals alone, failures that may be tried again, back-pressure."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from partibus.amqp import ACCEPTED, Receiver, Rejected
from partibus.client.messages import IncomingMessage, OutgoingMessage
from partibus.limits import Limits, StoreLimits
from partibus.partition.protocol.host import overloaded_stores
from partibus.partition.protocol.ports import StoreError, StoreFull
from partibus.routing.slots import partition_for_key
from tests.robustness.raw import transfer
from tests.unit.frontends.harness import Client, World, body_of, message, until
from tests.unit.frontends.node_requests import peek


def key_of(partition: int) -> str:
    """A partition key that leads to a partition of sixteen."""
    return next(key for key in map(str, range(10_000)) if partition_for_key(key, 16) == partition)


def condition(state: object) -> str:
    assert isinstance(state, Rejected)
    assert state.error is not None
    return state.error.condition


def is_overloaded(client: Client) -> bool:
    return bool(overloaded_stores) and client.peer.overloaded


def bodies(client: Client, queue: str, credit: int = 100) -> list[object]:
    return [body_of(delivery) for delivery in client.receive(client.receiver(queue), credit)]


def test_a_message_is_accepted_once_it_is_stored(world: World) -> None:
    client = world.client()
    sender = client.sender(world.queue("q"))
    world.store_of("q").host.delay_ms = 50.0
    client.send_raw(sender, message(), "first")
    world.wait(20)
    assert client.outcomes(sender) == {}
    world.wait()
    assert client.outcomes(sender) == {"first": ACCEPTED}


def test_a_delivery_that_waits_for_the_commit_does_not_keep_its_bytes_beside_the_message(world: World) -> None:
    client = world.client()
    sender = client.sender(world.queue("q"))
    world.store_of("q").host.delay_ms = 50.0
    client.send_raw(sender, message(bytes(10_000)), "accepted")
    client.send_raw(sender, bytes(10_000), "rejected")
    world.wait(20)
    (session,) = client.peer.connection.sessions
    assert [delivery.payload for delivery in session.inbound.unsettled.values()] == [b"", b""]
    world.wait()
    assert [type(state) for state in client.outcomes(sender).values()] == [type(ACCEPTED), Rejected]


def test_what_cannot_be_stored_is_rejected_alone(world: World) -> None:
    client = world.client()
    sender = client.sender(world.queue("q"))
    states = client.send(sender, message(b"1"), b"\x00\x53\x99garbage", message(b"2"))
    assert [states[0], states[2]] == [ACCEPTED, ACCEPTED]
    assert condition(states[1]) == "com.microsoft:argument-error"
    assert bodies(client, "q") == [b"1", b"2"]


def test_outcomes_leave_in_the_order_of_deliveries_though_partitions_answer_in_another(world: World) -> None:
    client = world.client()
    sender = client.sender(world.queue("q", EnablePartitioning=True))
    slow, quick = 3, 9
    world.store_of("q", slow).host.delay_ms = 100.0
    client.send_raw(sender, message(partition_key=key_of(slow)), "slow")
    world.wait(5)
    client.send_raw(sender, message(partition_key=key_of(quick)), "quick")
    world.wait(60)
    assert client.outcomes(sender) == {}
    world.wait()
    assert list(client.outcomes(sender)) == ["slow", "quick"]


def test_a_failed_commit_is_an_error_to_try_again(world: World) -> None:
    client = world.client()
    sender = client.sender(world.queue("q"))
    store = world.store_of("q")
    store.fails = StoreError("the disk is sick", executed=False)
    (state,) = client.send(sender, message(b"lost"))
    assert condition(state) == "com.microsoft:server-busy"
    store.fails = None
    world.wait()
    assert client.send(sender, message(b"kept")) == [ACCEPTED]
    assert bodies(client, "q") == [b"kept"]


def test_a_full_disk_is_the_quota_error(world: World) -> None:
    client = world.client()
    sender = client.sender(world.queue("q"))
    world.store_of("q").fails = StoreFull("no room")
    (state,) = client.send(sender, message())
    assert condition(state) == "amqp:resource-limit-exceeded"


def test_an_unknown_outcome_detaches_and_rejects_nothing(world: World) -> None:
    client = world.client()
    sender = client.sender(world.queue("q"))
    world.store_of("q").fails = StoreError("no answer", executed=None)
    states = client.send(sender, message(b"stored after all"))
    assert states == []
    assert client.refusal(sender).condition == "amqp:link:detach-forced"
    world.store_of("q").fails = None
    world.wait()
    assert bodies(client, "q") == [b"stored after all"]
    assert client.closed is None


def test_a_link_whose_queue_is_deleted_rejects(world: World) -> None:
    client = world.client()
    sender = client.sender(world.queue("q"))
    world.broker.delete("q")
    (state,) = client.send(sender, message())
    assert condition(state) == "amqp:not-found"


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_link_goes_on_with_the_queue_that_was_made_again(world: World, partitioned: bool) -> None:
    client = world.client()
    sender = client.sender(world.queue("q"))
    assert client.send(sender, message(b"old")) == [ACCEPTED]
    world.broker.delete("q")
    world.queue("q", EnablePartitioning=partitioned)
    assert client.send(sender, message(b"new")) == [ACCEPTED]
    assert [one.body for one in peek(client, "q")] == [b"new"]


def test_credit_is_topped_up(tmp_path: Path) -> None:
    world = World(tmp_path, replace(Limits(), connection=replace(Limits().connection, link_credit=10)))
    client = world.client()
    sender = client.sender(world.queue("q"))
    assert sender.credit == 10
    for _ in range(5):
        assert client.send(sender, *[message()] * 5) == [ACCEPTED] * 5
        assert sender.credit >= 5


class TestOverload:
    """D24: credit stops, then reading, and both come back."""

    @pytest.fixture
    def world(self, tmp_path: Path) -> World:
        limits = Limits()
        connection = replace(limits.connection, link_credit=10)
        return World(tmp_path, replace(limits, connection=connection, store=StoreLimits(queued_operations=50)))

    def test_no_credit_while_the_store_has_too_much_to_do(self, world: World) -> None:
        queue = world.queue("q")
        flood, client = world.client(), world.client()
        flooding, sender = flood.sender(queue), client.sender(queue)
        assert client.send(sender, message()) == [ACCEPTED]
        world.store_of("q").host.delay_ms = 100.0
        for index in range(8):
            client.send_raw(sender, message(), index)
        world.wait(5)
        for _ in range(6):
            flood.send_batch_nowait(flooding, [message()] * 20)
        world.carry()
        assert is_overloaded(client)
        until(world, lambda: len(client.outcomes(sender)) == 8)
        assert is_overloaded(client)
        assert sender.credit < 5
        world.wait(2_000)
        assert not is_overloaded(client)
        assert sender.credit == 10

    def test_what_waits_for_a_partition_to_be_loaded_counts(self, world: World) -> None:
        client = world.client()
        sender = client.sender(world.queue("q"))
        world.store_of("q").host.delay_ms = 100.0
        client.send_batch_nowait(sender, [message()] * 60)
        world.carry()
        assert is_overloaded(client)
        world.wait(1_000)
        assert not is_overloaded(client)
        assert len(bodies(client, "q")) == 60


def test_a_batch_is_stored_message_by_message(world: World) -> None:
    client = world.client()
    sender = client.sender(world.queue("q"))
    assert client.send_batch(sender, [message(b"1"), message(b"2")]) == ACCEPTED
    found = client.receive(client.receiver("q"), 10)
    assert [body_of(delivery) for delivery in found] == [b"1", b"2"]
    assert [IncomingMessage(delivery.payload).sequence_number for delivery in found] == [1, 2]


def test_a_batch_with_a_broken_message_is_rejected_whole(world: World) -> None:
    client = world.client()
    sender = client.sender(world.queue("q"))
    state = client.send_batch(sender, [message(b"1"), b"\x00\x53\x75\xb0\xff\xff\xff\xff", message(b"2")])
    assert condition(state) == "com.microsoft:argument-error"
    assert bodies(client, "q") == []


def test_what_was_under_way_when_the_client_left_is_kept(world: World) -> None:
    client = world.client()
    sender = client.sender(world.queue("q"))
    client.send_raw(sender, message(b"under way"))
    client.engine.close()
    world.wait()
    other = world.client()
    assert bodies(other, "q") == [b"under way"]


def test_a_message_over_the_entitys_size_is_rejected(world: World) -> None:
    client = world.client()
    sender = client.sender(world.queue("q"))
    (state,) = client.send(sender, OutgoingMessage(body=bytes(300 * 1024)))
    assert condition(state) == "amqp:link:message-size-exceeded"


@pytest.mark.parametrize("address", ["q", "$cbs"])
@pytest.mark.parametrize("fields", [{"settled": True}, {"aborted": True}], ids=["oversize", "aborted"])
def test_credit_that_unreported_deliveries_have_used_is_granted_again(
    world: World, address: str, fields: dict[str, bool]
) -> None:
    world.queue("q")
    client = world.client()
    sender = client.sender(address)
    (link,) = [link for session in client.peer.connection.sessions for link in session.links]
    assert isinstance(link, Receiver)
    link.taken_bytes_max = 10
    credit = link.credit
    assert credit > 0
    for number in range(credit):
        client.peer.receive_data(
            transfer(bytes(11), number, sender.session.local_channel, handle=sender.handle, **fields)
        )
    assert 2 * link.credit >= credit
