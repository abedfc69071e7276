"""A partition whose numbers run out: it takes no messages long before, and loses none of those that it has."""

from __future__ import annotations

import pytest

from partibus.message import Message
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import queries as q
from partibus.partition.protocol import replies as r
from partibus.partition.protocol.keys import NUMBERS_END, NUMBERS_FULL, SHARED_BODY, SubqueueKind, subqueue_key
from partibus.partition.protocol.ports import Writes
from partibus.routing.partitions import error_of
from tests.unit.partition.one_partition import ROW, OnePartition
from tests.unit.partition.test_sink import message


def partition_at(next_sequence: int, next_number: int) -> OnePartition:
    """A partition that has given out the numbers below."""
    partition = OnePartition()
    writes = Writes()
    writes.counters[ROW] = (next_sequence, next_number, 0)
    partition.store.commit(writes)
    partition.load()
    return partition


def ask(partition: OnePartition, command: c.Enqueue | c.TakeNumbers | c.Settle) -> r.Reply:
    partition.give(command)
    partition.settle_down()
    return partition.replies[command.request]


def messages(count: int) -> list[Message]:
    return [message(number) for number in range(count)]


def test_below_the_bound_messages_are_taken_and_at_it_refused() -> None:
    partition = partition_at(NUMBERS_FULL - 2, 1)
    assert isinstance(ask(partition, c.Enqueue(1, messages(1))), r.Accepted)
    assert isinstance(ask(partition, c.Enqueue(2, messages(500))), r.Accepted)
    refused = ask(partition, c.Enqueue(3, messages(1)))
    assert refused == r.Refused(3, NUMBERS_FULL + 499, NUMBERS_FULL, numbers=True)
    assert isinstance(ask(partition, c.TakeNumbers(4, 1)), r.Refused)
    assert isinstance(refused, r.Refused)
    assert str(error_of(refused, "orders")) == (
        f"A partition of 'orders' that has given out {NUMBERS_FULL + 499} sequence numbers is at its quota of "
        f"{NUMBERS_FULL} sequence numbers. Receive its messages, and make another entity for new ones."
    )


def test_lock_ids_that_run_out_refuse_messages_too() -> None:
    assert isinstance(ask(partition_at(1, NUMBERS_FULL), c.Enqueue(1, messages(1))), r.Refused)


@pytest.mark.parametrize("outcome", [c.Outcome.COMPLETE, c.Outcome.DEAD_LETTER, c.Outcome.ABANDON])
def test_what_a_full_partition_has_can_be_received_and_settled(outcome: c.Outcome) -> None:
    partition = partition_at(NUMBERS_FULL - 1, NUMBERS_FULL - (1 << 22))
    ask(partition, c.Enqueue(1, messages(5)))
    assert isinstance(ask(partition, c.Enqueue(2, messages(1))), r.Refused)
    step = partition.machine.handle(c.Receive(SubqueueKind.ACTIVE, 9, 5, 1 << 20), partition.now_ms)
    (granted,) = [reply for reply in step.replies if isinstance(reply, r.Granted)]
    tokens = [(granted.lock_id, entry.pos) for entry in granted.entries]
    assert len(tokens) == 5
    assert isinstance(ask(partition, c.Settle(3, SubqueueKind.ACTIVE, outcome, tokens, "why")), r.Settled)
    counts = {kind: partition.machine.state.subqueues[kind].messages for kind in (0, 1)}
    assert (
        counts
        == {
            c.Outcome.COMPLETE: {0: 0, 1: 0},
            c.Outcome.DEAD_LETTER: {0: 0, 1: 5},
            c.Outcome.ABANDON: {0: 5, 1: 0},
        }[outcome]
    )
    for kind, count in counts.items():
        assert len(partition.store.read(q.Browse(subqueue_key(ROW, kind), 0, NUMBERS_END, 9, 1 << 20))) == count


def test_no_number_has_a_flag_of_a_bodys_key() -> None:
    assert NUMBERS_FULL < NUMBERS_END <= SHARED_BODY
