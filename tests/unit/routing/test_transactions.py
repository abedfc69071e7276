"""The operations of a transaction until the commit, its pinning by the first operation, and its end."""

from __future__ import annotations

from itertools import count

import pytest
from msgspec.structs import replace

from partibus.clock import ManualClock
from partibus.errors import (
    EntityDisabled,
    InvalidOperation,
    OutcomeUnknown,
    PartibusError,
    QuotaExceeded,
    TransactionRolledBack,
    TransactionTimedOut,
    TransactionUnknown,
)
from partibus.limits import TransactionLimits
from partibus.message import Message, pack
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.routing.entity import EntityRoute
from partibus.routing.partitions import Numbers
from partibus.routing.slots import partition_for_key
from partibus.routing.transactions import Transaction, Transactions
from tests.unit.routing.fakes import UNAVAILABLE, UNKNOWN, FakePartition, message

PARTITIONS = 4
LIMITS = TransactionLimits(open_max=3, bytes_max=1_000, duration_ms=120_000)
OWNER = object()


class Entity:
    """A top-level entity of partitions that answer when the test says so."""

    def __init__(self, name: str = "q", partitions: int = 1) -> None:
        self.partitions = [FakePartition(i) for i in range(partitions)]
        self.route = EntityRoute(name, list(self.partitions), Numbers(), 0)
        self.refusal: PartibusError | None = None
        self.deleted = False

    def check_send(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def of_key(self, key: str) -> FakePartition:
        return self.partitions[partition_for_key(key, len(self.partitions))]


class Ends:
    """The outcome of a commit."""

    def __init__(self, transaction: Transaction) -> None:
        self.errors: list[PartibusError | None] = []
        transaction.commit(self.errors.append)

    @property
    def only(self) -> PartibusError | None:
        (error,) = self.errors
        return error


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000)


@pytest.fixture
def transactions(clock: ManualClock) -> Transactions:
    ids = count(1)
    return Transactions(clock, LIMITS, lambda: next(ids).to_bytes(16), lambda: 10)


@pytest.fixture
def transaction(transactions: Transactions) -> Transaction:
    return transactions.declare(OWNER)


def send(transaction: Transaction, entity: Entity, *keys: str | None) -> list[Message]:
    messages = [message(key) for key in keys]
    with transaction.operation():
        transaction.send(entity, messages)
    return messages


def complete(transaction: Transaction, entity: Entity, partition: FakePartition, *positions: int) -> c.Settle:
    command = c.Settle(0, 0, c.Outcome.COMPLETE, [(7, pos) for pos in positions])
    with transaction.operation():
        transaction.settle(entity, partition, command)
    return command


def committed(partition: FakePartition) -> c.Transact:
    (command,) = partition.taken(c.Transact)
    return command


# What a commit is -----------------------------------------------------------------------------------------------------


@pytest.mark.row("T1")
def test_nothing_is_asked_of_a_partition_before_the_commit_and_then_all_of_it_at_once_in_order(
    transaction: Transaction,
) -> None:
    entity = Entity()
    (partition,) = entity.partitions
    first = send(transaction, entity, None, "a")
    settled = complete(transaction, entity, partition, 1, 2)
    second = send(transaction, entity, "b")
    assert partition.commands == []
    ends = Ends(transaction)
    command = committed(partition)
    assert [kept.messages if isinstance(kept, c.Enqueue) else kept for kept in command.commands] == [
        first, settled, second
    ]  # fmt: skip
    assert ends.errors == []
    partition.answer(r.Transacted(command.request))
    assert ends.only is None


def test_a_transaction_without_operations_is_committed_without_asking_anybody(transaction: Transaction) -> None:
    entity = Entity()
    send(transaction, entity)  # a batch of nothing
    assert Ends(transaction).only is None
    assert entity.partitions[0].commands == []


def test_what_is_rolled_back_asks_nobody_and_is_forgotten(transactions: Transactions, transaction: Transaction) -> None:
    entity = Entity()
    send(transaction, entity, None)
    transaction.roll_back()
    assert entity.partitions[0].commands == []
    assert transactions.size_bytes == 0
    with pytest.raises(TransactionUnknown, match=transaction.id.hex()):
        transactions.find(transaction.id)


def test_a_transaction_is_unknown_as_soon_as_its_commit_has_begun(
    transactions: Transactions, transaction: Transaction
) -> None:
    send(transaction, Entity(), None)
    Ends(transaction)
    with pytest.raises(TransactionUnknown):
        transactions.find(transaction.id)


# Pinning --------------------------------------------------------------------------------------------------------------


def test_on_a_partitioned_entity_the_key_decides_the_partition(transaction: Transaction) -> None:
    entity = Entity(partitions=PARTITIONS)
    send(transaction, entity, "k", "k")
    send(transaction, entity, "k")
    Ends(transaction)
    assert len(committed(entity.of_key("k")).commands) == 2


@pytest.mark.row("T4")
def test_a_message_without_a_key_is_refused_on_a_partitioned_entity(transaction: Transaction) -> None:
    with pytest.raises(InvalidOperation, match=r"without a key.*'q'.*partition key or session id"):
        send(transaction, Entity(partitions=PARTITIONS), None)


@pytest.mark.row("T5")
def test_a_second_key_is_refused_on_a_partitioned_entity_even_if_it_belongs_to_the_same_partition(
    transaction: Transaction,
) -> None:
    entity = Entity(partitions=PARTITIONS)
    send(transaction, entity, "k")
    neighbour = next(key for key in map(str, count()) if entity.of_key(key) is entity.of_key("k"))
    with pytest.raises(InvalidOperation, match=f"'{neighbour}'.*'k'"):
        send(transaction, entity, neighbour)


@pytest.mark.row("T8")
def test_two_sessions_are_refused_on_a_partitioned_entity_and_fine_on_a_plain_one(transactions: Transactions) -> None:
    messages = [Message(pack(), session_id="a"), Message(pack(), session_id="b")]
    plain, partitioned = Entity(), Entity(partitions=PARTITIONS)
    fine = transactions.declare(OWNER)
    with fine.operation():
        fine.send(plain, messages)
    Ends(fine)
    assert len(committed(plain.partitions[0]).commands) == 1
    refused = transactions.declare(OWNER)
    with pytest.raises(InvalidOperation, match=r"'b'.*'a'"), refused.operation():
        refused.send(partitioned, messages)


def test_a_settled_message_pins_its_partition(transaction: Transaction) -> None:
    entity = Entity(partitions=PARTITIONS)
    there = entity.of_key("k")
    complete(transaction, entity, there, 1)
    send(transaction, entity, "k")
    elsewhere = next(key for key in map(str, count()) if entity.of_key(key) is not there)
    other = entity.of_key(elsewhere)
    with pytest.raises(
        InvalidOperation, match=f"partition {there.partition_id} of 'q'.*partition {other.partition_id}"
    ):
        complete(transaction, entity, other, 1)


def test_a_message_whose_key_belongs_elsewhere_than_what_was_settled_is_refused(transaction: Transaction) -> None:
    entity = Entity(partitions=PARTITIONS)
    complete(transaction, entity, entity.of_key("k"), 1)
    elsewhere = next(key for key in map(str, count()) if entity.of_key(key) is not entity.of_key("k"))
    with pytest.raises(InvalidOperation, match="began in partition"):
        send(transaction, entity, elsewhere)


def test_a_second_entity_is_refused(transaction: Transaction) -> None:
    send(transaction, Entity("one"), None)
    with pytest.raises(
        InvalidOperation, match=r"Local transactions cannot span multiple top-level entities.*'one'.*'two'"
    ):
        send(transaction, Entity("two"), None)


# Refusals -------------------------------------------------------------------------------------------------------------


def test_after_a_refused_operation_a_transaction_can_only_be_rolled_back(
    transactions: Transactions, transaction: Transaction
) -> None:
    entity = Entity()
    send(transaction, entity, None)
    with pytest.raises(InvalidOperation, match="too odd"), transaction.operation():
        raise InvalidOperation("too odd")
    assert transaction.failed
    assert transactions.size_bytes == 0
    with pytest.raises(TransactionRolledBack, match="too odd"):
        send(transaction, entity, None)
    assert isinstance(error := Ends(transaction).only, TransactionRolledBack)
    assert "too odd" in str(error)
    assert entity.partitions[0].commands == []


def test_too_many_messages_are_refused(transaction: Transaction) -> None:
    entity = Entity()
    send(transaction, entity, *[None] * 9)
    with pytest.raises(QuotaExceeded, match=r"9 messages and 2 more .* 10 messages"):
        complete(transaction, entity, entity.partitions[0], 1, 2)


def test_transactions_of_a_connection_hold_only_so_many_bytes_together(transactions: Transactions) -> None:
    entity = Entity()
    first, second = transactions.declare(OWNER), transactions.declare(OWNER)
    large = Message(pack(rest=bytes(600)))
    with first.operation():
        first.send(entity, [large])
    with pytest.raises(QuotaExceeded, match="bytes in open transactions"), second.operation():
        second.send(entity, [large])
    first.roll_back()
    third = transactions.declare(OWNER)
    with third.operation():
        third.send(entity, [large])


def test_what_a_settlement_says_counts_as_bytes(transaction: Transaction) -> None:
    entity = Entity()
    said = c.Settle(0, 0, c.Outcome.DEAD_LETTER, [(1, 1)], "r" * 400, "d" * 400, {"p": "x" * 300})
    with pytest.raises(QuotaExceeded), transaction.operation():
        transaction.settle(entity, entity.partitions[0], said)


def test_only_so_many_transactions_are_open_at_a_time(transactions: Transactions) -> None:
    declared = [transactions.declare(OWNER) for _ in range(LIMITS.open_max)]
    with pytest.raises(QuotaExceeded, match="3 transactions"):
        transactions.declare(OWNER)
    declared[0].roll_back()
    transactions.declare(OWNER)


def test_a_disabled_entity_refuses_the_commit(transaction: Transaction) -> None:
    entity = Entity()
    send(transaction, entity, None)
    entity.refusal = EntityDisabled("q", "SendDisabled")
    assert isinstance(error := Ends(transaction).only, TransactionRolledBack)
    assert "SendDisabled" in str(error)
    assert entity.partitions[0].commands == []


# Answers of the partition ---------------------------------------------------------------------------------------------


def test_a_refused_commit_names_the_operation_and_the_reason(transaction: Transaction) -> None:
    entity = Entity()
    (partition,) = entity.partitions
    send(transaction, entity, None)
    complete(transaction, entity, partition, 1, 2, 3)
    ends = Ends(transaction)
    partition.answer(r.TransactionRefused(1, 1, r.Settled(0, [0, 2])))
    assert isinstance(ends.only, TransactionRolledBack)
    assert "operation 2 of 2, to complete 3 messages, failed: the lock of 2 messages" in str(ends.only)


def test_a_full_partition_refuses_the_commit(transaction: Transaction) -> None:
    entity = Entity()
    send(transaction, entity, None)
    ends = Ends(transaction)
    entity.partitions[0].answer(r.TransactionRefused(1, 0, r.Refused(0, 900, 1_000)))
    assert isinstance(ends.only, TransactionRolledBack)
    assert "to send 1 message, failed: A partition of 'q'" in str(ends.only)


def test_a_store_that_is_away_rolls_back(transactions: Transactions, transaction: Transaction) -> None:
    entity = Entity()
    send(transaction, entity, None)
    ends = Ends(transaction)
    entity.partitions[0].answer(UNAVAILABLE)
    assert isinstance(ends.only, TransactionRolledBack)
    assert transactions.size_bytes == 0


@pytest.mark.parametrize("full", [False, True])
def test_a_commit_that_nobody_can_tell_of_is_no_roll_back(transaction: Transaction, *, full: bool) -> None:
    entity = Entity()
    send(transaction, entity, None)
    ends = Ends(transaction)
    entity.partitions[0].answer(replace(UNKNOWN, full=full))
    assert isinstance(ends.only, OutcomeUnknown)


# Scheduled messages ---------------------------------------------------------------------------------------------------


def test_scheduled_messages_take_their_numbers_at_once_and_are_stored_under_them(transaction: Transaction) -> None:
    entity = Entity(partitions=PARTITIONS)
    replies: list[r.Accepted | r.Failed] = []
    with transaction.operation():
        partition = transaction.schedule(entity, [message("k"), message("k")], replies.append)
    assert partition is entity.of_key("k")
    (asked,) = entity.of_key("k").taken(c.TakeNumbers)
    assert asked.count == 2
    entity.of_key("k").answer(r.Accepted(asked.request, 41))
    assert replies == [r.Accepted(asked.request, 41)]
    Ends(transaction)
    (stored,) = committed(entity.of_key("k")).commands
    assert isinstance(stored, c.Enqueue)
    assert stored.first_sequence == 41


def test_a_commit_waits_for_numbers_that_are_on_their_way(transaction: Transaction) -> None:
    entity = Entity()
    (partition,) = entity.partitions
    with transaction.operation():
        transaction.schedule(entity, [message()], lambda _: None)
    ends = Ends(transaction)
    assert partition.taken(c.Transact) == []
    partition.answer(r.Accepted(0, 5))
    assert len(committed(partition).commands) == 1
    partition.answer(r.Transacted(0))
    assert ends.only is None


def test_without_numbers_nothing_is_scheduled(transaction: Transaction) -> None:
    entity = Entity()
    replies: list[r.Accepted | r.Failed] = []
    with transaction.operation():
        transaction.schedule(entity, [message()], replies.append)
    ends = Ends(transaction)
    entity.partitions[0].answer(UNAVAILABLE)
    assert replies == [UNAVAILABLE]
    assert isinstance(ends.only, TransactionRolledBack)


# Time and owners ------------------------------------------------------------------------------------------------------


def test_time_counts_from_the_first_operation(clock: ManualClock, transaction: Transaction) -> None:
    entity = Entity()
    clock.advance(500_000)
    send(transaction, entity, None)
    clock.advance(119_999)
    Ends(transaction)
    assert len(committed(entity.partitions[0]).commands) == 1


def test_after_its_time_nothing_of_a_transaction_is_done(clock: ManualClock, transaction: Transaction) -> None:
    entity = Entity()
    send(transaction, entity, None)
    clock.advance(120_000)
    with pytest.raises(TransactionTimedOut, match="120 s"):
        send(transaction, entity, None)
    assert isinstance(Ends(transaction).only, TransactionTimedOut)
    assert entity.partitions[0].commands == []


def test_what_has_timed_out_is_let_go_before_anybody_asks(
    clock: ManualClock, transactions: Transactions, transaction: Transaction
) -> None:
    send(transaction, Entity(), None)
    clock.advance(119_999)
    transactions.expire()
    assert transactions.size_bytes > 0
    clock.advance(1)
    transactions.expire()
    assert transactions.size_bytes == 0
    assert isinstance(Ends(transactions.find(transaction.id)).only, TransactionTimedOut)


def test_an_owner_that_is_gone_takes_its_own_transactions_with_it(transactions: Transactions) -> None:
    other = object()
    mine, theirs = transactions.declare(OWNER), transactions.declare(other)
    send(mine, Entity(), None)
    transactions.roll_back_all(OWNER)
    assert transactions.size_bytes == 0
    with pytest.raises(TransactionUnknown):
        transactions.find(mine.id)
    assert transactions.find(theirs.id) is theirs


def test_messages_with_numbers_of_a_partition_go_to_no_other_one(transaction: Transaction) -> None:
    """The client holds the numbers to cancel by, and another partition may have messages under them."""
    entity = Entity(partitions=PARTITIONS)
    source = entity.of_key("k")
    target = next(partition for partition in entity.partitions if partition is not source)
    with transaction.operation():
        transaction.schedule(entity, [message("k")], lambda _: None)
    source.answer(r.Accepted(0, 41))
    ends = Ends(transaction)
    (stored,) = committed(source).commands
    assert isinstance(stored, c.Enqueue)
    assert stored.numbered_by == source.row
    source.answer(r.Moved(0, {0: target.partition_id}))
    assert target.commands == []
    assert isinstance(ends.only, TransactionRolledBack)
    assert "moving between its partitions, try again" in str(ends.only)


def test_a_partition_that_refuses_numbers_names_no_other_one(transaction: Transaction) -> None:
    entity = Entity()
    send(transaction, entity, None)
    ends = Ends(transaction)
    entity.partitions[0].answer(r.Moved(0, {}))
    assert isinstance(ends.only, TransactionRolledBack)
    assert "moving between its partitions, try again" in str(ends.only)


@pytest.mark.parametrize("executed", [None, True])
def test_a_commit_that_may_have_been_done_is_in_doubt(transaction: Transaction, executed: bool | None) -> None:
    entity = Entity()
    send(transaction, entity, None)
    ends = Ends(transaction)
    entity.partitions[0].answer(r.Failed(0, executed, False, "it broke"))
    assert isinstance(ends.only, OutcomeUnknown)
