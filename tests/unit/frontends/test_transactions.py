"""Transactions as a client sees them on its links: the coordinator, sends and settlements, every way to the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from partibus.amqp import (
    ACCEPTED,
    RELEASED,
    AmqpError,
    Coordinator,
    Declare,
    Delivery,
    DeliveryState,
    Detached,
    Discharge,
    Modified,
    Receiver,
    Rejected,
    Sender,
    Source,
    TransactionalState,
)
from partibus.amqp.codec.performatives import Outcome
from partibus.amqp.codec.types import Array, Described, Symbol, Timestamp, UInt
from partibus.amqp.section_encoding import encode_annotations, encode_batch, encode_value
from partibus.amqp.sections import BATCH_FORMAT
from partibus.client.messages import IncomingMessage
from partibus.limits import Limits, TransactionLimits
from partibus.partition.protocol.ports import StoreError
from tests.kit.stores.memory import MemoryStore
from tests.unit.frontends.controller import Controller, error_of, in_transaction, send_in, settle_in
from tests.unit.frontends.harness import NOW_S, Client, World, body_of, message

ROLLED_BACK = "amqp:transaction:rollback"
TIMED_OUT = "amqp:transaction:timeout"
UNKNOWN = "amqp:transaction:unknown-id"
NOT_ALLOWED = "amqp:not-allowed"
MINUTES_2_MS = 120_000
DEAD_LETTER = Rejected(AmqpError("com.microsoft:dead-letter", None, {"DeadLetterReason": "why"}))


class Desk:
    """A client with a coordinator link, a sender and a receiver on one queue."""

    def __init__(self, world: World, queue: str) -> None:
        self.world = world
        self.queue = queue
        self.client: Client = world.client()
        self.controller = Controller(self.client)
        self.sender: Sender = self.client.sender(queue)

    def declare(self) -> bytes:
        return self.controller.declare()

    def send(self, transaction: bytes, *messages: bytes) -> list[DeliveryState | None]:
        return send_in(self.client, self.sender, transaction, *messages)

    def receive(self, count: int, *, address: str | None = None) -> tuple[Receiver, list[Delivery]]:
        link = self.client.receiver(address or self.queue)
        return link, self.client.receive(link, count)

    def left(self, *, dead: bool = False) -> list[object]:
        """The bodies that another client receives now; it gives them back."""
        client = self.world.client()
        link = client.receiver(f"{self.queue}/$DeadLetterQueue" if dead else self.queue)
        deliveries = client.receive(link, 200)
        link.grant(0)
        self.world.wait()
        link.settle_many(deliveries, RELEASED)
        self.world.wait()
        link.detach()
        self.world.wait()
        return sorted((body_of(delivery) for delivery in deliveries), key=str)


@pytest.fixture(params=[False, True], ids=["plain", "partitioned"])
def desk(world: World, request: pytest.FixtureRequest) -> Desk:
    return Desk(world, world.queue("q", EnablePartitioning=request.param))


@pytest.fixture
def plain(world: World) -> Desk:
    return Desk(world, world.queue("q"))


@pytest.fixture
def partitioned(world: World) -> Desk:
    return Desk(world, world.queue("q", EnablePartitioning=True))


def keyed(body: bytes, key: str = "k") -> bytes:
    return message(body, partition_key=key)


# The coordinator ------------------------------------------------------------------------------------------------------


def test_a_coordinator_says_what_it_can_do(plain: Desk) -> None:
    target = plain.controller.link.target
    assert isinstance(target, Coordinator)
    assert isinstance(target.capabilities, Array)
    assert "amqp:local-transactions" in target.capabilities.items


def test_each_transaction_has_an_id_of_its_own(plain: Desk) -> None:
    first, second = plain.declare(), plain.declare()
    assert first != second
    assert plain.controller.discharge(first) is ACCEPTED
    assert plain.controller.discharge(second, fail=True) is ACCEPTED


@pytest.mark.parametrize("fail", [False, True])
def test_an_id_that_is_not_open_is_refused_by_name(plain: Desk, *, fail: bool) -> None:
    transaction = plain.declare()
    plain.controller.commit(transaction)
    for unknown in (transaction, b"never", b""):
        error = error_of(plain.controller.discharge(unknown, fail=fail))
        assert error.condition == UNKNOWN
        assert unknown.hex() in str(error.description)


def test_a_transaction_of_another_connection_is_unknown(plain: Desk) -> None:
    other = Controller(plain.world.client()).declare()
    assert error_of(plain.controller.discharge(other)).condition == UNKNOWN
    (state,) = plain.send(other, message())
    assert error_of(state).condition == UNKNOWN


def test_distributed_transactions_are_refused(plain: Desk) -> None:
    state = plain.controller.ask(encode_value(Declare(global_id=b"xid")))
    assert error_of(state).condition == "amqp:not-implemented"


@pytest.mark.parametrize(
    ("payload", "condition"),
    [
        (encode_value("hello"), "amqp:decode-error"),
        (encode_value(Described(Symbol("amqp:discharge:list"), [])), "amqp:decode-error"),
        (encode_value(ACCEPTED), "com.microsoft:argument-error"),
        (encode_value(Described(Symbol("what:ever"), [])), "com.microsoft:argument-error"),
        (b"", "com.microsoft:argument-error"),
        (b"\xff\xff", "amqp:decode-error"),
    ],
    ids=["text", "without id", "another type", "foreign type", "nothing", "garbage"],
)
def test_what_is_no_request_is_rejected_and_the_link_lives_on(plain: Desk, payload: bytes, condition: str) -> None:
    assert error_of(plain.controller.ask(payload)).condition == condition
    plain.controller.commit(plain.declare())


def test_clients_may_name_types_by_symbol(plain: Desk) -> None:
    """Name types as one library does (section 8)."""
    plain.controller.ask(encode_value(Described(Symbol("amqp:declare:list"), [None])))
    transaction = plain.declare()
    discharge = Described(Symbol("amqp:discharge:list"), [transaction, False])
    assert plain.controller.ask(encode_value(discharge)) is ACCEPTED


def test_requests_that_are_settled_already_get_no_answer(plain: Desk) -> None:
    transaction = plain.declare()
    plain.send(transaction, message(b"x"))
    for request in (Declare(), Discharge(txn_id=transaction)):
        plain.client.send_raw(plain.controller.link, encode_value(request), settled=True)
    plain.world.wait()
    assert plain.left() == [b"x"]
    assert error_of(plain.controller.discharge(transaction)).condition == UNKNOWN


def test_a_coordinator_goes_on_past_its_first_credit(plain: Desk) -> None:
    for _ in range(120):
        plain.controller.commit(plain.declare())


def test_open_transactions_of_a_connection_are_bounded(tmp_path: Path) -> None:
    world = World(tmp_path, replace(Limits(), transaction=TransactionLimits(open_max=2)))
    controller = Controller(world.client())
    first = controller.declare()
    controller.declare()
    error = error_of(controller.ask(encode_value(Declare())))
    assert error.condition == "amqp:resource-limit-exceeded"
    assert "2 transactions" in str(error.description)
    controller.commit(first)
    controller.declare()


# Sends and settlements ------------------------------------------------------------------------------------------------


@pytest.mark.row("T1", "P4")
def test_messages_are_there_when_they_are_committed_and_not_before(desk: Desk) -> None:
    transaction = desk.declare()
    assert desk.send(transaction, keyed(b"1"), keyed(b"2")) == [in_transaction(transaction, ACCEPTED)] * 2
    assert desk.left() == []
    desk.controller.commit(transaction)
    assert desk.left() == [b"1", b"2"]


@pytest.mark.row("T1")
def test_messages_of_a_transaction_that_is_rolled_back_were_never_there(desk: Desk) -> None:
    transaction = desk.declare()
    desk.send(transaction, keyed(b"1"))
    assert desk.controller.discharge(transaction, fail=True) is ACCEPTED
    assert desk.left() == []
    assert desk.client.send(desk.sender, keyed(b"2")) == [ACCEPTED]
    assert desk.left() == [b"2"]


def test_a_batch_is_part_of_a_transaction_as_a_message_is(desk: Desk) -> None:
    transaction = desk.declare()
    state = TransactionalState(txn_id=transaction)
    batch = encode_batch([keyed(b"1"), keyed(b"2")])
    desk.client.send_raw(desk.sender, batch, message_format=BATCH_FORMAT, state=state)
    desk.world.wait()
    assert desk.left() == []
    desk.controller.commit(transaction)
    assert desk.left() == [b"1", b"2"]


def test_transfers_with_and_without_a_transaction_may_come_together(plain: Desk) -> None:
    transaction = plain.declare()
    start = len(plain.client.events)
    for index in range(6):
        state = TransactionalState(txn_id=transaction) if index % 2 else None
        plain.client.send_raw(plain.sender, message(b"%d" % index), index, state=state)
    plain.world.wait()
    answers = plain.client.outcomes(plain.sender, start)
    assert [answers[index] for index in range(6)] == [ACCEPTED, in_transaction(transaction, ACCEPTED)] * 3
    assert plain.left() == [b"0", b"2", b"4"]
    plain.controller.commit(transaction)
    assert plain.left() == [b"%d" % index for index in range(6)]


def test_transfers_in_a_transaction_get_new_credit(plain: Desk) -> None:
    limit = plain.world.limits.connection.link_credit
    transaction = plain.declare()
    plain.send(transaction, message(b"1"))
    for _ in range(limit):  # more than the credit there was
        plain.client.send_raw(plain.sender, message(), state=TransactionalState(txn_id=b"nobody's"))
        plain.world.carry()
    plain.controller.commit(transaction)
    assert plain.left() == [b"1"]


@pytest.mark.row("T1")
@pytest.mark.parametrize(
    ("outcome", "answer", "left", "dead"),
    [
        (ACCEPTED, ACCEPTED, [], []),
        (Modified(), Modified(), [b"x"], []),
        (Modified(undeliverable_here=True), Modified(), [], []),
        (RELEASED, RELEASED, [b"x"], []),
        (DEAD_LETTER, Rejected(), [], [b"x"]),
    ],
    ids=["complete", "abandon", "defer", "release", "dead-letter"],
)
def test_a_message_is_settled_with_the_commit(
    desk: Desk, outcome: Outcome, answer: Outcome, left: list[object], dead: list[object]
) -> None:
    desk.client.send(desk.sender, message(b"x"))
    link, deliveries = desk.receive(1)
    transaction = desk.declare()
    assert settle_in(desk.client, link, transaction, deliveries, outcome) == [in_transaction(transaction, answer)]
    assert desk.left() == desk.left(dead=True) == []
    link.detach()
    desk.controller.commit(transaction)
    desk.world.wait(1)
    assert (desk.left(), desk.left(dead=True)) == (left, dead)


def test_sends_and_settlements_are_committed_together(desk: Desk) -> None:
    """The consume-process-produce step that transactions are for."""
    desk.client.send(desk.sender, keyed(b"old"))
    link, deliveries = desk.receive(1)
    transaction = desk.declare()
    settle_in(desk.client, link, transaction, deliveries, ACCEPTED)
    desk.send(transaction, keyed(b"new"))
    desk.controller.commit(transaction)
    assert desk.left() == [b"new"]


@pytest.mark.row("T1")
def test_a_rolled_back_settlement_leaves_the_message_under_its_lock(plain: Desk) -> None:
    plain.client.send(plain.sender, message(b"x"))
    link, deliveries = plain.receive(1)
    transaction = plain.declare()
    settle_in(plain.client, link, transaction, deliveries, ACCEPTED)
    plain.controller.discharge(transaction, fail=True)
    assert plain.left() == []
    link.detach()
    plain.world.wait(60_000)
    assert plain.left() == [b"x"]


def test_a_settlement_that_is_settled_already_needs_no_answer(plain: Desk) -> None:
    """One library can be told to settle before the discharge."""
    plain.client.send(plain.sender, message(b"x"))
    link, deliveries = plain.receive(1)
    transaction = plain.declare()
    link.settle_many(deliveries, TransactionalState(txn_id=transaction, outcome=ACCEPTED), settled=True)
    plain.world.wait()
    plain.controller.commit(transaction)
    plain.world.wait(60_000)
    assert plain.left() == []


def test_a_settlement_without_an_outcome_is_refused(plain: Desk) -> None:
    plain.client.send(plain.sender, message(b"x"))
    link, deliveries = plain.receive(1)
    transaction = plain.declare()
    (state,) = settle_in(plain.client, link, transaction, deliveries, None)
    assert error_of(state).condition == "com.microsoft:argument-error"
    assert plain.controller.refusal(transaction).condition == ROLLED_BACK


def test_messages_of_the_dead_letter_queue_belong_to_the_same_entity(plain: Desk) -> None:
    """How a message is sent again: back to the queue and out of the dead letters, or neither."""
    plain.client.send(plain.sender, message(b"x"))
    link, deliveries = plain.receive(1)
    plain.client.settle(link, deliveries, DEAD_LETTER)
    link, dead = plain.receive(1, address="q/$DeadLetterQueue")
    transaction = plain.declare()
    plain.send(transaction, message(b"again"))
    settle_in(plain.client, link, transaction, dead, ACCEPTED)
    plain.controller.commit(transaction)
    assert (plain.left(), plain.left(dead=True)) == ([b"again"], [])


def test_transactions_go_on_side_by_side(plain: Desk) -> None:
    first, second = plain.declare(), plain.declare()
    plain.send(first, message(b"1"))
    plain.send(second, message(b"2"))
    plain.send(first, message(b"3"))
    plain.controller.commit(first)
    assert plain.left() == [b"1", b"3"]
    plain.controller.discharge(second, fail=True)
    assert plain.left() == [b"1", b"3"]


def test_a_discharge_right_behind_what_belongs_to_it_finds_all_of_it(plain: Desk) -> None:
    transaction = plain.declare()
    plain.client.send_raw(plain.sender, message(b"x"), state=TransactionalState(txn_id=transaction))
    plain.client.send_raw(plain.controller.link, encode_value(Discharge(txn_id=transaction)))
    plain.world.wait()
    assert plain.left() == [b"x"]


def test_messages_of_a_session_are_settled_under_its_lock(world: World) -> None:
    """The state of an order and what follows from it, in one session of a partitioned queue."""
    desk = Desk(world, world.queue("s", EnablePartitioning=True, RequiresSession=True))
    desk.client.send(desk.sender, message(b"old", session_id="a"))
    filters: dict[object, object] = {Symbol("com.microsoft:session-filter"): "a"}
    link = desk.client.receiver("s", source=Source("s", filter=filters))
    deliveries = desk.client.receive(link, 1)
    transaction = desk.declare()
    assert settle_in(desk.client, link, transaction, deliveries, ACCEPTED) == [in_transaction(transaction, ACCEPTED)]
    desk.send(transaction, message(b"new", session_id="a"))
    desk.controller.commit(transaction)
    assert [body_of(delivery) for delivery in desk.client.receive(link, 5)] == [b"new"]


def test_a_session_that_is_given_up_before_the_commit_rolls_it_back(world: World) -> None:
    desk = Desk(world, world.queue("s", RequiresSession=True))
    desk.client.send(desk.sender, message(b"old", session_id="a"))
    source = Source("s", filter={Symbol("com.microsoft:session-filter"): "a"})
    link = desk.client.receiver("s", source=source)
    transaction = desk.declare()
    settle_in(desk.client, link, transaction, desk.client.receive(link, 1), ACCEPTED)
    link.detach()
    world.wait()
    assert "the lock of 1 message" in str(desk.controller.refusal(transaction).description)
    again = desk.client.receiver("s", source=source)
    assert [body_of(delivery) for delivery in desk.client.receive(again, 1)] == [b"old"]


def test_duplicates_are_dropped_in_transactions_too(plain: Desk) -> None:
    world = plain.world
    desk = Desk(world, world.queue("d", RequiresDuplicateDetection=True))
    desk.client.send(desk.sender, message(b"first", message_id="1"))
    transaction = desk.declare()
    again = message(b"again", message_id="1"), message(b"new", message_id="2"), message(b"twice", message_id="2")
    assert desk.send(transaction, *again) == [in_transaction(transaction, ACCEPTED)] * 3
    desk.controller.commit(transaction)
    assert desk.left() == [b"first", b"new"]


@pytest.mark.row("T3", "K7")
def test_with_duplicate_detection_the_message_id_is_the_last_key(world: World) -> None:
    desk = Desk(world, world.queue("d", RequiresDuplicateDetection=True, EnablePartitioning=True))
    transaction = desk.declare()
    assert desk.send(transaction, message(b"1", message_id="1")) == [in_transaction(transaction, ACCEPTED)]
    (refused,) = desk.send(transaction, message(b"2", message_id="2"))
    assert error_of(refused).condition == NOT_ALLOWED
    keyed_ones = desk.declare()
    same = keyed(b"3"), keyed(b"4")
    assert desk.send(keyed_ones, *same) == [in_transaction(keyed_ones, ACCEPTED)] * 2
    desk.controller.commit(keyed_ones)
    assert desk.left() == [b"3", b"4"]


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.row("T4")
def test_a_message_without_a_key_is_refused_on_a_partitioned_queue(partitioned: Desk) -> None:
    transaction = partitioned.declare()
    (state,) = partitioned.send(transaction, message(b"x"))
    assert error_of(state).condition == NOT_ALLOWED
    error = partitioned.controller.refusal(transaction)
    assert error.condition == ROLLED_BACK
    assert "without a key" in str(error.description)
    assert partitioned.left() == []


def test_on_a_plain_queue_messages_need_no_key(plain: Desk) -> None:
    transaction = plain.declare()
    plain.send(transaction, message(b"1"), keyed(b"2", "a"), keyed(b"3", "b"))
    plain.controller.commit(transaction)
    assert plain.left() == [b"1", b"2", b"3"]


@pytest.mark.row("T5")
def test_a_second_key_is_refused_on_a_partitioned_queue(partitioned: Desk) -> None:
    transaction = partitioned.declare()
    first, second = partitioned.send(transaction, keyed(b"1", "a"), keyed(b"2", "b"))
    assert first == in_transaction(transaction, ACCEPTED)
    error = error_of(second)
    assert error.condition == NOT_ALLOWED
    assert "'b'" in str(error.description)
    assert "'a'" in str(error.description)
    assert partitioned.controller.refusal(transaction).condition == ROLLED_BACK
    assert partitioned.left() == []


@pytest.mark.row("P4")
def test_sessions_are_keys(world: World) -> None:
    desk = Desk(world, world.queue("s", EnablePartitioning=True, RequiresSession=True))
    transaction = desk.declare()
    fine = message(b"1", session_id="a"), message(b"2", session_id="a", partition_key="a")
    assert desk.send(transaction, *fine) == [in_transaction(transaction, ACCEPTED)] * 2
    desk.controller.commit(transaction)


@pytest.mark.row("T7")
@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize(
    "fields",
    [{}, {"partition_key": "a"}, {"session_id": "a", "partition_key": "b"}],
    ids=["none", "key only", "differ"],
)
def test_a_queue_of_sessions_takes_a_transaction_only_with_the_session_id(
    world: World, fields: dict[str, str], *, partitioned: bool
) -> None:
    desk = Desk(world, world.queue("s", EnablePartitioning=partitioned, RequiresSession=True))
    transaction = desk.declare()
    (state,) = desk.send(transaction, message(b"x", **fields))
    assert error_of(state).condition == NOT_ALLOWED
    assert desk.controller.refusal(transaction).condition == ROLLED_BACK


@pytest.mark.row("T8")
@pytest.mark.parametrize("sessions", [False, True])
def test_two_sessions_in_one_transaction(world: World, *, sessions: bool) -> None:
    messages = message(b"1", session_id="a"), message(b"2", session_id="b")
    plain = Desk(world, world.queue("one", RequiresSession=sessions))
    transaction = plain.declare()
    assert plain.send(transaction, *messages) == [in_transaction(transaction, ACCEPTED)] * 2
    plain.controller.commit(transaction)
    partitioned = Desk(world, world.queue("many", RequiresSession=sessions, EnablePartitioning=True))
    transaction = partitioned.declare()
    _, refused = partitioned.send(transaction, *messages)
    assert error_of(refused).condition == NOT_ALLOWED


def test_a_second_queue_is_refused(plain: Desk) -> None:
    other = plain.client.sender(plain.world.queue("other"))
    transaction = plain.declare()
    plain.send(transaction, message(b"x"))
    (state,) = send_in(plain.client, other, transaction, message(b"y"))
    error = error_of(state)
    assert error.condition == NOT_ALLOWED
    assert "cannot span multiple top-level entities" in str(error.description)
    assert plain.controller.refusal(transaction).condition == ROLLED_BACK
    assert plain.left() == []


def test_more_than_100_messages_are_refused(plain: Desk) -> None:
    """Section 11.2."""
    transaction = plain.declare()
    states = plain.send(transaction, *[message(b"x")] * 101)
    assert states[:100] == [in_transaction(transaction, ACCEPTED)] * 100
    assert error_of(states[100]).condition == "amqp:resource-limit-exceeded"
    assert plain.controller.refusal(transaction).condition == ROLLED_BACK
    full = plain.declare()
    plain.send(full, *[message(b"x")] * 100)
    plain.controller.commit(full)
    assert plain.left() == [b"x"] * 100


def test_a_message_that_nobody_could_read_fails_its_transaction(plain: Desk) -> None:
    transaction = plain.declare()
    states = plain.send(transaction, message(b"x"), b"\xff\xff", message(b"y"))
    conditions = [error_of(state).condition for state in states[1:]]
    assert conditions == ["com.microsoft:argument-error", ROLLED_BACK]
    assert plain.controller.refusal(transaction).condition == ROLLED_BACK
    assert plain.left() == []


def test_a_transfer_with_another_state_is_refused(plain: Desk) -> None:
    start = len(plain.client.events)
    plain.client.send_raw(plain.sender, message(b"x"), 0, state=ACCEPTED)
    plain.world.wait()
    (state,) = plain.client.outcomes(plain.sender, start).values()
    assert error_of(state).condition == "amqp:not-implemented"
    assert plain.left() == []


@pytest.mark.parametrize("status", ["Disabled", "SendDisabled"])
def test_a_queue_that_is_disabled_meanwhile_takes_no_commit(plain: Desk, status: str) -> None:
    transaction = plain.declare()
    plain.send(transaction, message(b"x"))
    plain.world.broker.update("q", {"Status": status})
    (state,) = plain.send(plain.declare(), message(b"y"))
    assert error_of(state).condition == "com.microsoft:entity-disabled"
    error = plain.controller.refusal(transaction)
    assert error.condition == ROLLED_BACK
    assert status in str(error.description)


def test_a_queue_that_is_deleted_meanwhile_takes_no_commit(plain: Desk) -> None:
    transaction = plain.declare()
    plain.send(transaction, message(b"x"))
    plain.world.broker.delete("q")
    plain.world.queue("q")
    assert "'q' was deleted" in str(plain.controller.refusal(transaction).description)
    assert plain.left() == []


@pytest.mark.parametrize("of", ["send", "settle", "schedule"])
def test_a_transaction_ends_with_its_queue(desk: Desk, of: str) -> None:
    """Its links go on with the queue that was made again, in another transaction."""
    body = keyed(b"old")
    desk.client.send(desk.sender, body, body)
    transactions = desk.declare(), desk.declare()
    link, held = desk.receive(2)
    for transaction, delivery in zip(transactions, held, strict=True):
        if of == "send":
            assert desk.send(transaction, body) == [in_transaction(transaction, ACCEPTED)]
        elif of == "settle":
            settle_in(desk.client, link, transaction, [delivery], ACCEPTED)
        else:
            due_ms = desk.world.timeline.now_ms() + MINUTES_2_MS
            assert schedule(desk, transaction, due_ms, (b"old", "k")).application_properties["statusCode"] == 200
    desk.world.broker.delete("q")
    desk.world.queue("q")
    for refused in (
        desk.send(transactions[0], keyed(b"new"))[0],
        desk.controller.discharge(transactions[0]),
        desk.controller.discharge(transactions[1]),
    ):
        error = error_of(refused)
        assert error.condition == ROLLED_BACK
        assert "'q' was deleted" in str(error.description)
    fresh = desk.declare()
    assert desk.send(fresh, keyed(b"new")) == [in_transaction(fresh, ACCEPTED)]
    desk.controller.commit(fresh)
    assert desk.left() == [b"new"]


def test_a_full_queue_takes_no_commit(plain: Desk) -> None:
    plain.client.send(plain.sender, message(b"old"))
    (partition,) = plain.world.broker.entity("q").route.partitions
    partition.options = replace(partition.options, size_bytes_max=1)
    transaction = plain.declare()
    plain.send(transaction, message(b"new"))
    error = plain.controller.refusal(transaction)
    assert error.condition == ROLLED_BACK
    assert "to send 1 message, failed: A partition of 'q'" in str(error.description)
    assert plain.left() == [b"old"]


def test_a_full_disk_takes_no_commit_that_sends(plain: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    plain.client.send(plain.sender, message(b"old"))
    link, deliveries = plain.receive(1)
    monkeypatch.setattr(MemoryStore, "has_room", property(lambda _: False))
    sends, settles = plain.declare(), plain.declare()
    plain.send(sends, message(b"new"))
    settle_in(plain.client, link, settles, deliveries, ACCEPTED)
    error = plain.controller.refusal(sends)
    assert error.condition == ROLLED_BACK
    assert "free disk space" in str(error.description)
    plain.controller.commit(settles)
    plain.world.wait(60_000)
    assert plain.left() == []


def test_a_lock_that_ends_before_the_commit_rolls_it_back(plain: Desk) -> None:
    plain.client.send(plain.sender, message(b"old"))
    link, deliveries = plain.receive(1)
    transaction = plain.declare()
    plain.send(transaction, message(b"new"))
    settle_in(plain.client, link, transaction, deliveries, ACCEPTED)
    link.detach()
    plain.world.wait(60_000)
    error = plain.controller.refusal(transaction)
    assert error.condition == ROLLED_BACK
    assert "operation 2 of 2, to complete 1 message, failed: the lock" in str(error.description)
    assert plain.left() == [b"old"]


def test_what_is_received_and_deleted_is_in_no_transaction(plain: Desk) -> None:
    plain.client.send(plain.sender, message(b"x"))
    link = plain.client.receiver("q", delete=True)
    transaction = plain.declare()
    deliveries = plain.client.receive(link, 1)
    assert settle_in(plain.client, link, transaction, deliveries, RELEASED) == []
    plain.controller.discharge(transaction, fail=True)
    assert plain.left() == []


# Time and loss --------------------------------------------------------------------------------------------------------


def test_after_two_minutes_a_transaction_is_rolled_back(plain: Desk) -> None:
    transaction = plain.declare()
    plain.world.wait(MINUTES_2_MS)
    plain.send(transaction, message(b"x"))
    plain.world.wait(MINUTES_2_MS - 1_000)
    (state,) = plain.send(transaction, message(b"y"))
    assert state == in_transaction(transaction, ACCEPTED)
    plain.world.wait(1_000)
    (state,) = plain.send(transaction, message(b"z"))
    assert error_of(state).condition == TIMED_OUT
    error = plain.controller.refusal(transaction)
    assert error.condition == TIMED_OUT
    assert "120 s" in str(error.description)
    assert plain.left() == []


def test_one_that_has_timed_out_can_be_rolled_back(plain: Desk) -> None:
    transaction = plain.declare()
    plain.send(transaction, message(b"x"))
    plain.world.wait(MINUTES_2_MS)
    assert plain.controller.discharge(transaction, fail=True) is ACCEPTED


def end_link(desk: Desk) -> None:
    desk.controller.link.detach()


def end_session(desk: Desk) -> None:
    desk.controller.link.session.end()


@pytest.mark.parametrize("end", [end_link, end_session])
def test_the_end_of_the_coordinator_link_rolls_back(plain: Desk, end: object) -> None:
    assert callable(end)
    transaction = plain.declare()
    plain.send(transaction, message(b"x"))
    end(plain)
    plain.world.wait()
    (state,) = plain.send(transaction, message(b"y"))
    assert error_of(state).condition == UNKNOWN
    assert error_of(Controller(plain.client).discharge(transaction)).condition == UNKNOWN
    assert plain.left() == []


def test_the_end_of_another_coordinator_link_does_not(plain: Desk) -> None:
    other = Controller(plain.client)
    transaction = plain.declare()
    plain.send(transaction, message(b"x"))
    other.link.detach()
    plain.world.wait()
    plain.controller.commit(transaction)
    assert plain.left() == [b"x"]


def test_the_end_of_the_connection_rolls_back(plain: Desk) -> None:
    transaction = plain.declare()
    plain.send(transaction, message(b"x"))
    plain.client.lose()
    plain.world.wait()
    assert plain.left() == []


def test_a_commit_under_way_goes_on_without_its_link(plain: Desk) -> None:
    transaction = plain.declare()
    plain.send(transaction, message(b"x"))
    plain.client.send_raw(plain.controller.link, encode_value(Discharge(txn_id=transaction)))
    plain.client.carry()
    plain.client.lose()
    plain.world.wait()
    assert plain.left() == [b"x"]


def test_a_store_that_is_away_rolls_back(plain: Desk) -> None:
    transaction = plain.declare()
    plain.send(transaction, message(b"x"))
    store = plain.world.store_of("q")
    store.fails = StoreError("the disk is sick", executed=False)
    error = plain.controller.refusal(transaction)
    assert error.condition == ROLLED_BACK
    assert "the disk is sick" in str(error.description)
    store.fails = None
    plain.world.wait(5_000)
    assert plain.left() == []


def test_of_a_commit_that_nobody_can_tell_of_the_link_says_nothing_but_ends(plain: Desk) -> None:
    """D11: a rejection would say that surely nothing was done."""
    transaction, other = plain.declare(), plain.declare()
    plain.send(transaction, message(b"x"))
    plain.send(other, message(b"y"))
    store = plain.world.store_of("q")
    store.fails = StoreError("no answer", executed=None)
    assert plain.controller.discharge(transaction) is None
    assert plain.client.refusal(plain.controller.link).condition == "amqp:link:detach-forced"
    store.fails = None
    plain.world.wait(5_000)
    (state,) = plain.send(other, message(b"z"))
    assert error_of(state).condition == UNKNOWN
    assert plain.left() == [b"x"]
    assert not [e for e in plain.client.events if isinstance(e, Detached) and e.link is plain.sender]


# Over the management node ---------------------------------------------------------------------------------------------

SCHEDULE = "com.microsoft:schedule-message"
DISPOSITION = "com.microsoft:update-disposition"
RECEIVE = "com.microsoft:receive-by-sequence-number"
PEEK = "com.microsoft:peek-message"
UUID_CODE = 0x98


def schedule(desk: Desk, transaction: bytes, at_ms: int, *messages: tuple[bytes, str | None]) -> IncomingMessage:
    """Each message a body and a partition key."""
    encoded: list[object] = []
    for body, key in messages:
        notes: dict[str, object] = {"x-opt-scheduled-enqueue-time": Timestamp(at_ms)}
        if key is not None:
            notes["x-opt-partition-key"] = key
        encoded.append({"message": encode_annotations(notes) + message(body)})
    return desk.client.request(f"{desk.queue}/$management", SCHEDULE, {"messages": encoded}, transaction=transaction)


def numbers_of(reply: IncomingMessage) -> list[Any]:
    """The sequence numbers in a reply."""
    assert isinstance(reply.body, dict)
    return list(reply.body["sequence-numbers"].items)


def status_of(reply: IncomingMessage) -> tuple[object, object]:
    properties = reply.application_properties
    return properties["statusCode"], properties.get("errorCondition")


def test_scheduled_messages_have_numbers_at_once_and_exist_from_the_commit_on(desk: Desk) -> None:
    transaction = desk.declare()
    first, second = numbers_of(schedule(desk, transaction, NOW_S * 1_000 + 30_000, (b"1", "k"), (b"2", "k")))
    assert second == first + 1
    node = f"{desk.queue}/$management"
    peeked = desk.client.request(node, PEEK, {"from-sequence-number": first, "message-count": 1})
    assert status_of(peeked) == (204, None)
    desk.controller.commit(transaction)
    peeked = desk.client.request(node, PEEK, {"from-sequence-number": first, "message-count": 1})
    assert status_of(peeked) == (200, None)
    assert desk.left() == []
    desk.world.wait(30_000)
    assert desk.left() == [b"1", b"2"]


def test_what_was_scheduled_in_a_transaction_that_is_rolled_back_never_comes(plain: Desk) -> None:
    transaction = plain.declare()
    schedule(plain, transaction, NOW_S * 1_000 + 30_000, (b"1", None))
    plain.controller.discharge(transaction, fail=True)
    plain.world.wait(60_000)
    assert plain.left() == []


@pytest.mark.row("T4")
def test_scheduling_without_a_key_is_refused_on_a_partitioned_queue(partitioned: Desk) -> None:
    transaction = partitioned.declare()
    assert status_of(schedule(partitioned, transaction, NOW_S * 1_000, (b"1", None))) == (400, NOT_ALLOWED)
    assert partitioned.controller.refusal(transaction).condition == ROLLED_BACK


def test_a_request_in_an_unknown_transaction_is_refused(plain: Desk) -> None:
    assert status_of(schedule(plain, b"never", NOW_S * 1_000, (b"1", None))) == (400, UNKNOWN)
    assert plain.left() == []


def test_a_message_is_settled_by_its_token_with_the_commit(desk: Desk) -> None:
    desk.client.send(desk.sender, message(b"x"))
    link, (delivery,) = desk.receive(1)
    link.detach()
    transaction = desk.declare()
    tokens = Array(UUID_CODE, [UUID(bytes_le=delivery.tag)])
    body = {"disposition-status": "completed", "lock-tokens": tokens}
    reply = desk.client.request(f"{desk.queue}/$management", DISPOSITION, body, transaction=transaction)
    assert status_of(reply) == (200, None)
    assert desk.left() == []
    desk.controller.commit(transaction)
    desk.world.wait(60_000)
    assert desk.left() == []


@pytest.mark.row("C7")
def test_deferred_messages_are_not_received_and_deleted_in_a_transaction(plain: Desk) -> None:
    plain.client.send(plain.sender, message(b"x"))
    link, deliveries = plain.receive(1)
    number = IncomingMessage(deliveries[0].payload).sequence_number
    plain.client.settle(link, deliveries, Modified(undeliverable_here=True))
    transaction = plain.declare()
    body = {"sequence-numbers": Array(0x81, [number]), "receiver-settle-mode": UInt(0)}
    reply = plain.client.request("q/$management", RECEIVE, body, transaction=transaction)
    assert status_of(reply) == (400, NOT_ALLOWED)
    body["receiver-settle-mode"] = UInt(1)
    reply = plain.client.request("q/$management", RECEIVE, body, transaction=transaction)
    assert status_of(reply) == (200, None)
