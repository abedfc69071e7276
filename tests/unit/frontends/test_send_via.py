"""Messages that are sent through one entity to another, in a transaction about the first (sections 3.7 and 8)."""

from __future__ import annotations

from typing import Any

import pytest

from partibus.amqp import ACCEPTED, RELEASED, Session
from partibus.forwarding.forwarder import Forwarder
from partibus.node.options import partition_options
from partibus.partition.protocol.keys import KIND_BITS, SubqueueKind
from partibus.partition.protocol.ports import StoreError
from tests.unit.frontends.controller import Controller, error_of, in_transaction, send_in, settle_in
from tests.unit.frontends.harness import Client, World, body_of, message

NOT_ALLOWED = "amqp:not-allowed"
THROUGH = "com.microsoft:transfer-destination-address"


@pytest.fixture(autouse=True)
def forwarder(world: World) -> Forwarder:
    return world.forward()


class Desk:
    """A client that does everything on one AMQP session."""

    def __init__(self, world: World, queue: str) -> None:
        self.world = world
        self.queue = queue
        self.client: Client = world.client()
        self.session: Session = self.client.session()
        self.controller = Controller(self.client, self.session)

    def send(self, transaction: bytes, to: str, *messages: bytes, **properties: object) -> list[Any]:
        link = self.client.sender(to, self.session, properties=dict(properties) or None)
        return send_in(self.client, link, transaction, *messages)


@pytest.fixture(params=[False, True], ids=["plain", "partitioned"])
def desk(world: World, request: pytest.FixtureRequest) -> Desk:
    return Desk(world, world.queue("via", EnablePartitioning=request.param))


def left(world: World, address: str) -> list[object]:
    """The bodies that another client receives now; it gives them back."""
    client = world.client()
    link = client.receiver(address)
    deliveries = client.receive(link, 200)
    link.grant(0)
    world.wait()
    link.settle_many(deliveries, RELEASED)
    world.wait()
    link.detach()
    world.wait()
    return sorted((body_of(delivery) for delivery in deliveries), key=str)


def kept(world: World, queue: str, kind: int) -> int:
    """Entries in a sub-queue, as the stores have them."""
    world.wait()
    rows = [(place.store_no, place.partition_row) for place in world.namespace.queue(queue).partitions]
    return sum(len(list(world.stores[store].disk.durable.in_range(row << 2 | kind, 0, 1 << 40))) for store, row in rows)


def took_one(desk: Desk) -> tuple[Any, list[Any]]:
    """A message of the queue under lock, sent before."""
    sender = desk.client.sender(desk.queue)
    desk.client.send(sender, message(b"in", partition_key="k"))
    link = desk.client.receiver(desk.queue, desk.session)
    return link, desk.client.receive(link, 1)


@pytest.mark.row("T1", "F1")
@pytest.mark.parametrize("to_partitioned", [False, True])
def test_one_is_completed_and_others_are_sent_elsewhere_together(
    world: World, desk: Desk, *, to_partitioned: bool
) -> None:
    world.queue("one", EnablePartitioning=to_partitioned)
    world.queue("other", EnablePartitioning=to_partitioned)
    link, deliveries = took_one(desk)
    transaction = desk.controller.declare()
    settle_in(desk.client, link, transaction, deliveries, ACCEPTED)
    sent = desk.send(transaction, "one", message(b"1", partition_key="a"), message(b"2"))
    assert sent == [in_transaction(transaction, ACCEPTED)] * 2
    desk.send(transaction, "other", message(b"3", partition_key="b"))
    world.wait()
    assert (left(world, "one"), left(world, "other")) == ([], [])
    desk.controller.commit(transaction)
    world.wait()
    assert (left(world, "one"), left(world, "other")) == ([b"1", b"2"], [b"3"])
    assert kept(world, "via", SubqueueKind.ACTIVE) == kept(world, "via", SubqueueKind.TRANSFER) == 0


@pytest.mark.row("T1")
def test_nothing_is_sent_when_the_transaction_is_rolled_back(world: World, desk: Desk) -> None:
    world.queue("one")
    link, deliveries = took_one(desk)
    transaction = desk.controller.declare()
    settle_in(desk.client, link, transaction, deliveries, ACCEPTED)
    desk.send(transaction, "one", message(b"1"))
    desk.controller.discharge(transaction, fail=True)
    assert left(world, "one") == []
    assert kept(world, "via", SubqueueKind.ACTIVE) == 1


@pytest.mark.row("T1", "R14")
def test_what_is_on_its_way_is_found_again_when_the_store_is_back(world: World) -> None:
    desk = Desk(world, world.queue("via"))
    world.queue("one")
    via, one = world.store_of("via"), world.store_of("one")
    assert via is not one
    link, deliveries = took_one(desk)
    transaction = desk.controller.declare()
    settle_in(desk.client, link, transaction, deliveries, ACCEPTED)
    desk.send(transaction, "one", message(b"1"))
    one.fails = StoreError("the disk fails", executed=False)
    desk.controller.commit(transaction)
    world.wait()
    assert kept(world, "via", SubqueueKind.TRANSFER) == 1
    rows = [key >> KIND_BITS for key in via.disk.durable.timed_subqueues()]
    assert rows == [world.namespace.queue("via").partitions[0].partition_row]
    via.fails = StoreError("the disk fails", executed=False)
    desk.client.send(desk.client.sender("via"), message(b"fails"))
    via.fails = one.fails = None
    world.wait(3_000)
    world.namespaces.wake_partitions(rows)
    assert left(world, "one") == [b"1"]


def test_on_another_amqp_session_another_entity_is_refused(world: World, desk: Desk) -> None:
    world.queue("one")
    link, deliveries = took_one(desk)
    transaction = desk.controller.declare()
    settle_in(desk.client, link, transaction, deliveries, ACCEPTED)
    (state,) = send_in(desk.client, desk.client.sender("one"), transaction, message(b"1", partition_key="k"))
    assert error_of(state).condition == NOT_ALLOWED


@pytest.mark.row("F1")
def test_a_destination_that_is_gone_leaves_a_transfer_dead_letter(world: World, desk: Desk) -> None:
    world.queue("one", Status="ReceiveDisabled")
    link, deliveries = took_one(desk)
    transaction = desk.controller.declare()
    settle_in(desk.client, link, transaction, deliveries, ACCEPTED)
    desk.send(transaction, "one", message(b"1"))
    world.broker.delete("one")
    desk.controller.commit(transaction)
    assert left(world, "via/$Transfer/$DeadLetterQueue") == [b"1"]
    link = desk.client.sender("via", desk.session, properties={THROUGH: "one"})
    assert "could not be found" in str(desk.client.refusal(link))


@pytest.mark.row("F1")
@pytest.mark.parametrize("partitioned", [False, True])
def test_a_link_that_names_another_destination(world: World, *, partitioned: bool) -> None:
    desk = Desk(world, world.queue("via", EnablePartitioning=partitioned))
    world.queue("one", EnablePartitioning=True)
    link = desk.client.sender("via", desk.session, properties={THROUGH: "one"})
    assert desk.client.send(link, message(b"1", partition_key="a"), message(b"2")) == [ACCEPTED, ACCEPTED]
    assert left(world, "one") == [b"1", b"2"]
    assert left(world, "via") == []
    if not partitioned:
        transaction = desk.controller.declare()
        send_in(desk.client, link, transaction, message(b"3"))
        assert left(world, "one") == [b"1", b"2"]
        desk.controller.commit(transaction)
        assert left(world, "one") == [b"1", b"2", b"3"]


def test_who_sends_through_an_entity_needs_a_claim_for_both(world: World, desk: Desk) -> None:
    world.queue("one")
    client = world.client(login=None)
    for shown, missing in (("via", "one"), ("one", "via")):
        other = world.client(login=None)
        assert other.put_token("sender", f"sb://host/{shown}") == 202
        error = other.refusal(other.sender("via", properties={THROUGH: "one"}))
        assert error.condition == "amqp:unauthorized-access"
        assert f"on '{missing}'" in str(error.description)
        assert client.put_token("sender", f"sb://host/{shown}", expires_in_s=600 if shown == "one" else 3600) == 202
    through, plain = client.sender("via", properties={THROUGH: "one"}), client.sender("via")
    assert client.send(through, message(b"1", partition_key="k")) == [ACCEPTED]
    world.wall_clock.advance(601_000)
    client.peer.tick(0.0)
    world.wait()
    assert client.refusal(through).condition == "amqp:unauthorized-access"
    assert plain.is_open


def test_a_destination_that_goes_while_a_link_leads_to_it_is_not_found(world: World, desk: Desk) -> None:
    world.queue("one")
    link = desk.client.sender("via", desk.session, properties={THROUGH: "one"})
    world.broker.delete("one")
    (state,) = desk.client.send(link, message(b"1", partition_key="k"))
    assert error_of(state).condition == "amqp:not-found"
    assert kept(world, "via", SubqueueKind.TRANSFER) == 0
    world.queue("one")
    assert desk.client.send(link, message(b"2", partition_key="k")) == [ACCEPTED]


@pytest.mark.row("F1")
def test_what_is_sent_through_to_a_disabled_entity_is_a_transfer_dead_letter(world: World, desk: Desk) -> None:
    world.queue("one", Status="SendDisabled")
    link = desk.client.sender("via", desk.session, properties={THROUGH: "one"})
    assert desk.client.send(link, message(b"1", partition_key="k")) == [ACCEPTED]
    assert left(world, "via/$Transfer/$DeadLetterQueue") == [b"1"]


def full(world: World, name: str) -> None:
    """Make a queue in which no message has room."""
    world.queue(name)
    queue = world.namespace.queue(name)
    queue.partition_size_max_bytes = 1
    for partition in world.broker.entity(name).route.partitions:
        partition.options = partition_options(queue, world.limits)
    world.client().send(world.client().sender(name), message(b"first"))


@pytest.mark.parametrize("target", ["other", ""])
def test_another_target_takes_the_messages_for_which_the_old_one_has_no_room(world: World, target: str) -> None:
    full(world, "full")
    world.queue("other")
    world.queue("src", ForwardTo="full")
    client = world.client()
    client.send(client.sender("src"), message(b"1"), message(b"2"))
    world.broker.update("src", {"ForwardTo": target})
    world.wait(2_000)
    assert left(world, target or "src") == [b"1", b"2"]


@pytest.mark.parametrize("target", ["other", ""])
def test_another_target_takes_messages_while_the_store_of_the_old_one_is_away(world: World, target: str) -> None:
    world.queue("old")
    world.queue("other")
    world.queue("src", ForwardTo="old")
    old = world.store_of("old")
    assert old is not world.store_of("src")
    assert old is not world.store_of("other")
    client = world.client()
    old.stays_away = True
    old.fails = StoreError("the disk fails", executed=False)
    client.send(client.sender("old"), message(b"fails"))
    client.send(client.sender("src"), message(b"1"))
    world.broker.update("src", {"ForwardTo": target})
    world.wait()
    assert left(world, target or "src") == [b"1"]


def test_a_batch_in_doubt_is_not_sent_to_another_target_as_well(world: World) -> None:
    """The first attempt is stored without an answer; the later ones surely store nothing."""
    world.queue("old")
    world.queue("other")
    world.queue("src", ForwardTo="old")
    old = world.store_of("old")
    assert old is not world.store_of("src")
    client = world.client()
    old.fails = StoreError("the disk fails")
    client.send(client.sender("src"), message(b"1"))
    old.fails = StoreError("the disk fails", executed=False)
    world.wait(5_000)
    world.broker.update("src", {"ForwardTo": "other"})
    world.wait()
    old.fails = None
    world.wait(10_000)
    assert (left(world, "old"), left(world, "other")) == ([b"1"], [])


def test_a_target_that_is_made_again_while_its_pump_stops_ends_the_pump(world: World) -> None:
    world.queue("old")
    world.queue("other")
    world.queue("src", ForwardTo="old")
    client = world.client()
    old = world.store_of("old")
    assert old is not world.store_of("src")
    old.fails = StoreError("the disk fails")
    client.send(client.sender("src"), message(b"1"))
    old.fails = StoreError("the disk fails", executed=False)
    world.wait(5_000)
    world.broker.update("src", {"ForwardTo": "other"})
    world.broker.delete("old")
    world.queue("old")
    old.fails = None
    world.wait(10_000)
    assert left(world, "other") == [b"1"]


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("name", ["Orders", "orders"])
def test_a_destination_that_is_made_again_gets_every_message(world: World, name: str, *, partitioned: bool) -> None:
    """The first message waits for room in the deleted entity when the second one is sent to the new one."""
    world.queue("via")
    full(world, "Orders")
    client = world.client()
    first = client.sender("via", properties={THROUGH: "Orders"})
    assert client.send(first, message(b"1", partition_key="k")) == [ACCEPTED]
    world.wait(5_000)
    world.broker.delete("Orders")
    world.queue(name, EnablePartitioning=partitioned)
    second = client.sender("via", properties={THROUGH: name})
    assert client.send(second, message(b"2", partition_key="k")) == [ACCEPTED]
    world.wait(5_000)
    assert left(world, name) == [b"1", b"2"]


@pytest.mark.parametrize("deleted", [False, True])
def test_forwarding_that_is_set_while_a_store_is_away_begins_when_it_is_back(world: World, *, deleted: bool) -> None:
    desk = Desk(world, world.queue("via"))
    world.queue("one")
    via, row = world.store_of("via"), world.namespace.queue("via").partitions[0].partition_row
    assert via is not world.store_of("one")
    desk.client.send(desk.client.sender("via"), message(b"1"))
    via.stays_away, via.fails = True, StoreError("the disk fails", executed=False)
    desk.client.send(desk.client.sender("via"), message(b"fails"))
    assert via.runtime.failure is not None
    world.broker.update("via", {"ForwardTo": "one"})
    if deleted:
        world.broker.delete("via")
    via.stays_away, via.fails = False, None
    world.wait(3_000)
    assert left(world, "one") == ([] if deleted else [b"1"])
    assert (row in via.runtime.slots) is not deleted
