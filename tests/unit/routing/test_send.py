"""Messages to partitions (D8): spread, keys, and partitions that can't be used."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Mapping

import pytest

from partibus.errors import OutcomeUnknown, PartibusError, QuotaExceeded, StoreUnavailable
from partibus.message import Message
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.routing.entity import EntityRoute
from partibus.routing.partitions import Numbers
from partibus.routing.send import Batch, send, send_numbered, send_through
from partibus.routing.slots import SlotMap, partition_for_key
from tests.unit.routing.fakes import UNAVAILABLE, UNKNOWN, FakePartition, message

Result = list[PartibusError | None] | None


def entity(count: int = 16, *, accepts: bool = True) -> tuple[EntityRoute, list[FakePartition]]:
    partitions = [FakePartition(index, accepts=accepts) for index in range(count)]
    return EntityRoute("q", [*partitions], Numbers(), 0), partitions


def sent(route: EntityRoute, *batches: Batch) -> list[Result]:
    """Every answer that a run got; the list grows when answers come later."""
    answers: list[Result] = []
    send(route, batches, answers.append)
    return answers


def stored(partitions: list[FakePartition]) -> dict[int, list[str | None]]:
    """Keys of the messages that each partition was asked to store."""
    return {
        partition.partition_id: [m.key for command in commands for m in command.messages]
        for partition in partitions
        if (commands := [command for command in partition.commands if isinstance(command, c.Enqueue)])
    }


def key_of(partition: int, number: int = 0) -> str:
    found = (key for key in map(str, range(100_000)) if partition_for_key(key, 16) == partition)
    for _ in range(number):
        next(found)
    return next(found)


@pytest.mark.row("K11")
def test_runs_without_a_key_are_spread_evenly() -> None:
    route, partitions = entity()
    for _ in range(160):
        assert sent(route, [message()]) == [None]
    assert {index: len(keys) for index, keys in stored(partitions).items()} == dict.fromkeys(range(16), 10)


def test_a_run_without_keys_goes_whole_to_one_partition() -> None:
    route, partitions = entity()
    assert sent(route, [message()] * 10, [message()] * 5) == [None]
    assert [len(keys) for keys in stored(partitions).values()] == [15]
    assert sum(len(partition.commands) for partition in partitions) == 1


def test_a_plain_entity_has_no_choice() -> None:
    route, partitions = entity(1)
    assert sent(route, [message("a")], [message()]) == [None]
    assert stored(partitions) == {0: ["a", None]}


@pytest.mark.row("K1")
def test_equal_keys_meet_in_one_partition_in_order() -> None:
    route, partitions = entity()
    keys = [f"key-{index % 50}" for index in range(500)]
    assert sent(route, *[[message(key)] for key in keys]) == [None]
    for index, found in stored(partitions).items():
        assert found == [key for key in keys if partition_for_key(key, 16) == index]
    assert all(len(partition.commands) == 1 for partition in partitions)


def test_a_batch_is_routed_message_by_message() -> None:
    route, partitions = entity()
    a, b = key_of(3), key_of(7)
    assert sent(route, [message(a), message(b), message(a)]) == [None]
    assert stored(partitions) == {3: [a, a], 7: [b]}


def test_keyed_and_unkeyed_messages_of_a_run_are_stored_all() -> None:
    route, partitions = entity()
    assert sent(route, [message(key_of(3)), message()], [message()]) == [None]
    assert Counter(key for keys in stored(partitions).values() for key in keys) == {key_of(3): 1, None: 2}


def test_a_single_message_with_a_key_follows_its_slot() -> None:
    route, partitions = entity(accepts=False)
    counted: list[Mapping[int, int]] = []
    route.on_sent = counted.append
    answers = sent(route, [message(key_of(3))])
    partitions[3].answer(r.Moved(0, {0: 9}))
    partitions[3].answer(r.Moved(0, {0: 9}))
    assert answers == []
    partitions[9].answer(r.Accepted(0, 1))
    assert answers == [None]
    assert stored(partitions) == {3: [key_of(3)] * 2, 9: [key_of(3)]}
    assert counted == [{3: 1}], "it counts as load once"


def test_a_single_message_with_a_key_is_screened_by_the_former_owner() -> None:
    route, partitions = entity(accepts=False)
    answers = sent(route, [message(key_of(3))])
    for _ in range(2):
        partitions[3].answer(r.ScreenFirst(0, {7: [0]}))
    (asked,) = partitions[7].taken(c.CheckIds)
    assert [one.key for one in asked.messages] == [key_of(3)]
    partitions[7].answer(r.IdsKnown(0, [0], []))
    *_, last = partitions[3].taken(c.Enqueue)
    assert last.screened == [0]
    partitions[3].answer(r.Accepted(0, 1))
    assert answers == [None]


@pytest.mark.parametrize(("reply", "error"), [(UNAVAILABLE, StoreUnavailable), (UNKNOWN, OutcomeUnknown)])
def test_a_single_message_with_a_key_fails_with_its_partition(reply: r.Failed, error: type[PartibusError]) -> None:
    route, partitions = entity(accepts=False)
    answers = sent(route, [message(key_of(3))])
    partitions[3].answer(reply)
    assert [type(one) for answer in answers for one in answer or ()] == [error]
    assert list(stored(partitions)) == [3], "a key has one partition"


def test_the_answer_waits_for_every_partition() -> None:
    route, partitions = entity(accepts=False)
    answers = sent(route, [message(key_of(3))], [message(key_of(7))])
    partitions[7].answer(r.Accepted(1, 1))
    assert answers == []
    partitions[3].answer(r.Accepted(1, 1))
    assert answers == [None]


def test_an_empty_run_and_an_empty_batch_are_answered() -> None:
    route, _ = entity()
    assert sent(route) == [None]
    assert sent(route, []) == [None]


@pytest.mark.parametrize("keys", [[None], [None, None], ["a"], ["a", "b", None]])
def test_a_run_is_gone_with_its_answer_and_waits_for_no_collection_of_garbage(keys: list[str | None]) -> None:
    route, _ = entity()
    gc.collect()
    gc.disable()
    try:
        assert sent(route, [message(key) for key in keys]) == [None]
        assert gc.collect() == 0
    finally:
        gc.enable()


class TestAPartitionThatCannotBeUsed:
    @pytest.mark.row("K12")
    def test_without_a_key_another_partition_takes_the_message(self) -> None:
        route, partitions = entity()
        first = partitions[1]  # whose turn it is
        first.fails = UNAVAILABLE
        assert sent(route, [message()]) == [None]
        assert len(first.commands) == 1
        assert sum(len(keys) for keys in stored(partitions).values()) == 2

    @pytest.mark.row("K12")
    def test_without_a_key_any_partition_that_is_left_takes_it(self) -> None:
        route, partitions = entity()
        for partition in partitions[:15]:
            partition.fails = UNAVAILABLE
        for _ in range(20):
            assert sent(route, [message()]) == [None]

    def test_without_a_key_it_is_not_even_asked_when_it_is_known_to_be_away(self) -> None:
        route, partitions = entity()
        partitions[5].is_available = False
        for _ in range(32):
            assert sent(route, [message()]) == [None]
        assert 5 not in stored(partitions)

    def test_a_message_that_may_be_stored_already_is_stored_nowhere_else(self) -> None:
        route, partitions = entity()
        partitions[1].fails = UNKNOWN
        ((error,),) = [answer or [None] for answer in sent(route, [message()])]
        assert isinstance(error, OutcomeUnknown)
        assert list(stored(partitions)) == [1]

    def test_when_none_is_left_the_error_may_be_tried_again(self) -> None:
        route, partitions = entity()
        for partition in partitions:
            partition.fails = UNAVAILABLE
        (errors,) = sent(route, [message()], [message()])
        assert errors is not None
        assert [type(error) for error in errors] == [StoreUnavailable] * 2
        assert all(error is not None and error.retriable for error in errors)
        assert [len(partition.commands) for partition in partitions] == [1] * 16

    @pytest.mark.row("K2", "A1")
    def test_with_a_key_the_sender_gets_an_error_to_try_again(self) -> None:
        route, partitions = entity()
        partitions[3].fails = UNAVAILABLE
        (errors,) = sent(route, [message(key_of(3))], [message(key_of(7))])
        assert errors is not None
        assert isinstance(errors[0], StoreUnavailable)
        assert errors[1] is None
        assert sorted(stored(partitions)) == [3, 7]

    def test_a_batch_is_rejected_when_any_part_of_it_was(self) -> None:
        route, partitions = entity()
        partitions[3].fails = UNKNOWN
        (errors,) = sent(route, [message(key_of(7)), message(key_of(3))], [message(key_of(7))], [message(key_of(3, 1))])
        assert errors is not None
        assert [type(error) for error in errors] == [OutcomeUnknown, type(None), OutcomeUnknown]

    def test_a_full_partition_is_the_quota_error(self) -> None:
        route, partitions = entity()
        partitions[3].fails = r.Refused(0, 11, 10)
        (errors,) = sent(route, [message(key_of(3))])
        assert errors is not None
        assert isinstance(errors[0], QuotaExceeded)

    def test_a_full_disk_is_the_quota_error(self) -> None:
        route, partitions = entity(1)
        partitions[0].fails = r.Failed(0, executed=False, full=True, message="no room")
        (errors,) = sent(route, [message()])
        assert errors is not None
        assert isinstance(errors[0], QuotaExceeded)
        assert "no room" in str(errors[0])


class TestNumbers:
    def numbered(self, route: EntityRoute, *messages: Message) -> list[list[int] | PartibusError]:
        answers: list[list[int] | PartibusError] = []
        send_numbered(route, messages, answers.append)
        return answers

    def test_each_message_gets_the_number_that_its_partition_gave(self) -> None:
        route, partitions = entity(accepts=False)
        keys = [key_of(3), None, key_of(5), key_of(3), None]
        answers = self.numbered(route, *map(message, keys))
        asked = [partition for partition in partitions if partition.commands]
        unkeyed = next(partition for partition in asked if partition.partition_id not in (3, 5))
        for partition, first in ((partitions[5], 50), (unkeyed, 7), (partitions[3], 30)):
            assert answers == []
            partition.answer(r.Accepted(0, first))
        base = unkeyed.partition_id << 48
        assert answers == [[3 << 48 | 30, base | 7, 5 << 48 | 50, 3 << 48 | 31, base | 8]]

    def test_a_plain_entitys_messages_go_together_in_order(self) -> None:
        route, (partition,) = entity(1)
        assert self.numbered(route, message("a"), message(), message("b")) == [[1, 2, 3]]
        (command,) = partition.taken(c.Enqueue)
        assert [one.key for one in command.messages] == ["a", None, "b"]

    @pytest.mark.row("K12")
    def test_without_a_key_another_partition_takes_them(self) -> None:
        route, partitions = entity(2)
        first = route.next_partition()
        other = next(partition for partition in partitions if partition is not first)
        other.fails = UNAVAILABLE
        assert self.numbered(route, message(), message()) == [
            [first.partition_id << 48 | 1, first.partition_id << 48 | 2]
        ]

    @pytest.mark.parametrize(("fails", "error"), [(UNAVAILABLE, StoreUnavailable), (UNKNOWN, OutcomeUnknown)])
    def test_when_some_are_not_stored_the_others_are_cancelled(
        self, fails: r.Failed, error: type[PartibusError]
    ) -> None:
        route, partitions = entity()
        partitions[3].fails = fails
        (answer,) = self.numbered(route, message(key_of(2)), message(key_of(3)), message(key_of(4)), message(key_of(2)))
        assert isinstance(answer, error)
        cancelled = {
            partition.partition_id: [command.sequences for command in partition.taken(c.CancelScheduled)]
            for partition in partitions
        }
        assert {index: sequences for index, sequences in cancelled.items() if sequences} == {2: [[1, 2]], 4: [[1]]}


def test_messages_for_another_entity_go_through_partitions_with_slots() -> None:
    """A partition without slots is dropped with its messages, once it was found empty."""
    route, partitions = entity(4)
    route.slots = SlotMap(4, 1, [(0, 1), (9_000, 2)])
    places = [partition.partition_id for partition in partitions]
    answers: list[Result] = []
    for _ in range(8):
        send_through(route, "other", [[message()]], answers.append)
    partitions[1].is_available = False
    for _ in range(2):
        send_through(route, "other", [[message()]], answers.append)
    partitions[2].is_available = False
    partitions[1].fails = UNAVAILABLE
    send_through(route, "other", [[message()]], answers.append)
    assert [len(partitions[place].taken(c.Enqueue)) for place in places] == [0, 5, 6, 0]
    assert answers[:10] == [None] * 10
    assert [type(error) for error in answers[10] or []] == [StoreUnavailable]
