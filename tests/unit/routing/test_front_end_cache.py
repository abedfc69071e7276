"""The cache between receivers and partitions (D10): who gets what, what is kept, what goes back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.routing.entity import EntityRoute
from partibus.routing.front_end_cache import ASK_MAX, OLDEST_EVERY
from partibus.routing.partitions import Numbers, PartitionHandle
from partibus.routing.receive import Source
from tests.unit.routing.fakes import FakePartition

PARTITIONS = 4
ROOM = 1 << 20


class Front:
    """A route with receivers and what they got: (partition, position)."""

    def __init__(self, partitions: int = PARTITIONS) -> None:
        self.partitions = [FakePartition(index) for index in range(partitions)]
        self.route = EntityRoute("q", [*self.partitions], Numbers(), 0)
        self.failures: list[object] = []

    def receiver(self, *, delete: bool = False) -> tuple[Source, list[tuple[int, int]]]:
        got: list[tuple[int, int]] = []

        def on_granted(partition: PartitionHandle, granted: r.Granted) -> None:
            got.extend((partition.partition_id, entry.pos) for entry in granted.entries)
            if granted.ended:
                got.append((-1, -1))

        return self.route.source(0, delete=delete, on_granted=on_granted, on_failed=self.failures.append), got

    def asked(self) -> list[int]:
        """Return the requests to every partition since the last time."""
        return [sum(command.count for command in p.taken(c.Receive)) for p in self.partitions]


@pytest.mark.row("P13")
def test_all_partitions_are_asked_and_the_first_message_wins() -> None:
    front = Front()
    source, got = front.receiver()
    source.ask(1, ROOM)
    front.partitions[2].reserve(1)
    assert front.partitions[2].lock() == [1]
    assert got == [(2, 1)]
    assert front.asked() == [1, 1, 1, 1]


@pytest.mark.row("P14")
def test_the_other_messages_are_kept_for_the_next_receive() -> None:
    front = Front()
    source, got = front.receiver()
    source.ask(1, ROOM)
    front.partitions[0].reserve(1)
    front.partitions[1].reserve(1)
    front.partitions[0].lock()
    front.asked()
    source.ask(1, ROOM)
    assert front.partitions[1].lock() == [1]
    assert got == [(0, 1), (1, 1)]
    assert front.asked() == [0, 0, 0, 0]


@pytest.mark.row("P14")
def test_what_is_kept_serves_other_receivers_too() -> None:
    front = Front()
    first, _ = front.receiver()
    second, got = front.receiver()
    first.ask(1, ROOM)
    front.partitions[0].reserve(1)
    front.partitions[1].reserve(1)
    front.partitions[0].lock()
    second.ask(1, ROOM)
    front.partitions[1].lock()
    assert got == [(1, 1)]


def test_a_reservation_that_has_lapsed_is_asked_for_again() -> None:
    front = Front()
    source, got = front.receiver()
    source.ask(3, ROOM)
    front.partitions[0].reserve(3, ended=True)
    front.asked()
    assert front.partitions[0].lock(missing=[2, 3]) == [1, 2, 3]
    assert got == [(0, 1)]
    assert front.asked()[0] == 2


def test_demand_is_taken_back_when_nobody_waits() -> None:
    front = Front()
    source, _ = front.receiver()
    source.ask(1, ROOM)
    front.partitions[0].reserve(1, ended=True)
    assert [len(partition.taken(c.CancelReceive)) for partition in front.partitions] == [0, 1, 1, 1]


def test_what_is_kept_goes_back_when_the_last_receiver_goes() -> None:
    front = Front()
    source, _ = front.receiver()
    other, _ = front.receiver()
    source.ask(1, ROOM)
    front.partitions[0].reserve(1)
    front.partitions[1].reserve(2)
    source.close()
    assert front.partitions[1].taken(c.ReturnReserved) == []
    other.close()
    (returned,) = front.partitions[1].taken(c.ReturnReserved)
    assert returned.tokens == [(1, 1), (1, 2)]


def test_what_is_kept_goes_back_when_somebody_wants_all_that_no_receiver_has() -> None:
    front = Front()
    source, got = front.receiver()
    source.ask(1, ROOM)
    for partition in front.partitions[:2]:
        partition.reserve(1)
    front.partitions[0].lock()
    front.route.give_back(0)
    front.route.give_back(1)
    returned = [p.taken(c.ReturnReserved) for p in front.partitions]
    assert [[command.tokens for command in commands] for commands in returned] == [[], [[(1, 1)]], [], []]
    front.asked()
    source.ask(1, ROOM)
    assert front.asked() == [1, 1, 1, 1], "what went back has to be asked for anew"
    assert got == [(0, 1)]


def test_closing_twice_is_closing_once() -> None:
    front = Front()
    source, _ = front.receiver()
    source.close()
    source.close()
    assert all(len(partition.receivers) == 1 for partition in front.partitions)


def test_no_receiver_asks_for_more_than_the_most() -> None:
    front = Front()
    source, _ = front.receiver()
    source.ask(10 * ASK_MAX, ROOM)
    assert front.asked() == [ASK_MAX] * PARTITIONS


@pytest.mark.row("P13")
def test_the_oldest_head_is_served_every_eighth_time() -> None:
    """A partition with little traffic is not starved by those that always have something."""
    front = Front(partitions=2)
    busy, quiet = front.partitions
    source, _ = front.receiver()
    source.ask(1, ROOM)
    quiet_receiver = next(command.receiver for command in quiet.commands if isinstance(command, c.Receive))
    quiet.reserve(1, enqueued_ms=1)
    quiet.lock()
    source.ask(1, ROOM)
    busy.reserve(200, enqueued_ms=1_000)
    busy.lock()
    quiet_served: list[int] = []
    for turn in range(3 * OLDEST_EVERY):
        if turn % OLDEST_EVERY == 0:
            quiet.commands.append(c.Receive(0, quiet_receiver, 1, 1))
            quiet.reserve(1, enqueued_ms=1)
        source.ask(1, ROOM)
        served = next(p for p in front.partitions if any(isinstance(x, c.LockReserved) for x in p.commands))
        served.lock()
        if served is quiet:
            quiet_served.append(turn)
    assert len(quiet_served) == 3
    assert all(after - before <= OLDEST_EVERY for before, after in pairwise(quiet_served))


def test_partitions_take_turns() -> None:
    front = Front()
    source, _ = front.receiver()
    source.ask(1, ROOM)
    for partition in front.partitions:
        partition.reserve(3)
    for _ in range(PARTITIONS - 1):
        source.ask(1, ROOM)
    assert [len(partition.taken(c.LockReserved)) for partition in front.partitions] == [1] * PARTITIONS


def test_a_stop_is_answered_when_surely_nothing_comes_any_more() -> None:
    front = Front()
    source, got = front.receiver()
    stopped: list[int] = []
    source.stop(lambda: stopped.append(len(got)))
    assert stopped == [0]
    source.ask(2, ROOM)
    front.partitions[0].reserve(1)
    source.stop(lambda: stopped.append(len(got)))
    assert stopped == [0]
    front.partitions[0].lock()
    assert stopped == [0, 1]
    assert [len(partition.taken(c.CancelReceive)) for partition in front.partitions] == [1, 1, 1, 1]


class TestBytes:
    """A receiver gets no more than it said it has room for, until it asks again."""

    def test_no_more_than_there_is_room_for_is_handed_out(self) -> None:
        front = Front()
        source, got = front.receiver()
        source.ask(100, 250)
        front.partitions[0].reserve(10, size_bytes=100)
        assert front.partitions[0].lock() == [1, 2, 3]
        assert got[-1] == (-1, -1)
        assert front.partitions[0].taken(c.LockReserved) == []
        source.ask(100, 250)
        assert front.partitions[0].lock() == [4, 5, 6]

    def test_it_is_told_when_the_last_answer_has_come(self) -> None:
        front = Front()
        source, got = front.receiver()
        source.ask(100, 150)
        front.partitions[0].reserve(1, size_bytes=100)
        front.partitions[1].reserve(1, size_bytes=100)
        front.partitions[1].lock()
        assert got == [(1, 1)]
        front.partitions[0].lock(missing=[1])
        assert got == [(1, 1), (-1, -1)]

    def test_it_is_told_when_the_last_answer_is_a_failure(self) -> None:
        front = Front()
        source, got = front.receiver()
        source.ask(100, 150)
        front.partitions[0].reserve(2, size_bytes=100)
        front.partitions[0].fail()
        assert got == [(-1, -1)]
        source.ask(100, 150)
        front.partitions[1].reserve(1)
        front.partitions[1].lock()
        assert got == [(-1, -1), (1, 1)]

    def test_who_asks_for_more_before_it_is_told_is_owed_everything(self) -> None:
        front = Front()
        source, got = front.receiver()
        source.ask(5, 150)
        front.partitions[0].reserve(2, size_bytes=100)
        source.ask(1, ROOM)
        front.partitions[1].reserve(10)
        front.partitions[0].lock()
        assert front.partitions[1].lock() == [1, 2, 3, 4]
        assert (-1, -1) not in got
        assert len(got) == 6

    def test_who_stopped_is_owed_nothing(self) -> None:
        front = Front()
        source, got = front.receiver()
        source.ask(5, 150)
        front.partitions[0].reserve(2, size_bytes=100)
        source.stop(lambda: got.append((-2, -2)))
        front.partitions[0].lock()
        source.ask(1, ROOM)
        front.partitions[1].reserve(10)
        assert front.partitions[1].lock() == [1]
        assert got == [(0, 1), (0, 2), (-2, -2), (1, 1)]

    def test_what_it_can_take_at_once_is_no_reason_to_ask_again(self) -> None:
        front = Front()
        source, got = front.receiver()
        source.ask(2, 200)
        front.partitions[0].reserve(2, size_bytes=100)
        front.partitions[0].lock()
        assert got == [(0, 1), (0, 2)]


class TestAPartitionThatFails:
    def test_the_others_go_on(self) -> None:
        front = Front()
        source, got = front.receiver()
        source.ask(10, ROOM)
        front.partitions[0].fail()
        front.partitions[1].reserve(1)
        front.partitions[1].lock()
        assert got == [(1, 1)]
        assert front.failures == []

    def test_it_is_asked_again_when_it_can_be_used(self) -> None:
        front = Front()
        source, got = front.receiver()
        source.ask(10, ROOM)
        front.partitions[0].fail()
        front.asked()
        front.partitions[0].recover()
        assert front.asked() == [10, 0, 0, 0]
        front.partitions[0].commands.append(c.Receive(0, min(front.partitions[0].receivers), 10, 1))
        front.partitions[0].reserve(1)
        front.partitions[0].lock()
        assert got == [(0, 1)]

    def test_its_reservations_go_back_before_it_is_asked_again(self) -> None:
        """Where only the way to it was cut, it would give later messages of their keys until they lapse."""
        front = Front()
        source, _ = front.receiver()
        source.ask(2, ROOM)
        front.partitions[0].reserve(5)
        front.partitions[0].fail()
        front.partitions[0].commands.clear()
        front.partitions[0].recover()
        returned, asked = front.partitions[0].commands
        assert isinstance(asked, c.Receive)
        assert sorted(returned.tokens) == [(1, pos) for pos in (1, 2, 3, 4, 5)], "handed out and kept ones"

    def test_one_that_was_away_when_a_receiver_asked_is_asked_when_it_is_back(self) -> None:
        """The receiver, which waits already, will not ask again."""
        front = Front()
        front.partitions[2].fail()
        source, _ = front.receiver()
        source.ask(3, ROOM)
        source.ask(1, ROOM)
        assert front.asked() == [3, 3, 0, 3]
        front.partitions[2].recover()
        assert front.asked() == [0, 0, 4, 0]

    def test_what_was_handed_out_of_it_is_wanted_from_the_others(self) -> None:
        front = Front()
        source, got = front.receiver()
        source.ask(2, ROOM)
        front.partitions[0].reserve(2)
        front.asked()
        front.partitions[0].fail()
        assert front.asked() == [0, 2, 2, 2]
        front.partitions[1].commands.append(c.Receive(0, min(front.partitions[1].receivers), 2, 1))
        front.partitions[1].reserve(2)
        front.partitions[1].lock()
        assert got == [(1, 1), (1, 2)]

    def test_what_was_kept_of_it_is_forgotten(self) -> None:
        front = Front()
        source, _ = front.receiver()
        source.ask(1, ROOM)
        front.partitions[1].reserve(1)
        front.partitions[0].reserve(5)
        front.partitions[1].lock()
        front.partitions[0].fail()
        source.ask(1, ROOM)
        assert front.partitions[0].taken(c.LockReserved) == []

    def test_a_stop_does_not_wait_for_it(self) -> None:
        front = Front()
        source, _ = front.receiver()
        stopped: list[bool] = []
        source.ask(1, ROOM)
        front.partitions[0].reserve(1)
        source.stop(lambda: stopped.append(True))
        front.partitions[0].fail()
        assert stopped == [True]

    def test_answers_that_come_after_the_store_was_given_up_are_for_whoever_asked(self) -> None:
        """An owner that gives its store up tells receivers at once, and still answers what it had begun."""
        front = Front()
        (mine, got_mine), (deleting, got_deleting) = front.receiver(), front.receiver(delete=True)
        mine.ask(1, ROOM)
        first = front.partitions[0]
        first.reserve(1)
        first.give_up()
        first.recover()
        first.commands = [command for command in first.commands if not isinstance(command, c.Receive)]
        deleting.ask(1, ROOM)
        first.reserve(1)
        assert first.lock() == [1]
        assert (got_mine, got_deleting) == ([(0, 1)], [])
        assert first.lock() == [2]
        assert (got_mine, got_deleting) == ([(0, 1)], [(0, 2)])


class TestLockedWhileKept:
    """The service's own behaviour, for who tests against it."""

    def front(self) -> Front:
        front = Front()
        front.route = EntityRoute("q", [*front.partitions], Numbers(), 0, lock_kept=True)
        return front

    @pytest.mark.row("P14")
    def test_what_is_handed_out_was_locked_when_it_was_kept(self) -> None:
        front = self.front()
        source, got = front.receiver()
        source.ask(1, ROOM)
        assert not any(command.reserve for p in front.partitions for command in p.commands)
        front.partitions[0].reserve(2)
        assert got == [(0, 1)]
        source.ask(1, ROOM)
        assert got == [(0, 1), (0, 2)]
        assert front.partitions[0].taken(c.LockReserved) == []

    def test_a_receiver_that_deletes_gets_it_once_it_is_deleted(self) -> None:
        front = self.front()
        source, got = front.receiver(delete=True)
        source.ask(2, ROOM)
        front.partitions[0].reserve(2)
        (settle,) = front.partitions[0].taken(c.Settle)
        assert (settle.outcome, settle.tokens, got) == (c.Outcome.COMPLETE, [(1, 1), (1, 2)], [])
        front.partitions[0].answer(r.Settled(settle.request, [1]))
        assert got == [(0, 1)]

    def test_what_is_kept_is_released_when_the_last_receiver_goes(self) -> None:
        front = self.front()
        source, _ = front.receiver()
        source.ask(1, ROOM)
        front.partitions[0].reserve(3)
        source.close()
        (settle,) = front.partitions[0].taken(c.Settle)
        assert (settle.outcome, settle.tokens) == (c.Outcome.RELEASE, [(1, 2), (1, 3)])


class TestBesideOtherFrontEnds:
    """A cache beside receivers of other front ends, which may wait for what it keeps without need."""

    def front(self) -> tuple[Front, list[Callable[[], None]]]:
        front = Front()
        idle: list[Callable[[], None]] = []
        front.route = EntityRoute("q", [*front.partitions], Numbers(), 0, call_idle=idle.append)
        return front, idle

    @pytest.mark.row("P14", "A5")
    def test_what_nobody_asks_for_goes_back_while_the_receiver_stays(self) -> None:
        front, idle = self.front()
        source, _ = front.receiver()
        source.ask(1, ROOM)
        front.partitions[0].reserve(1)
        front.partitions[1].reserve(2)
        (look,) = idle
        assert front.partitions[1].taken(c.ReturnReserved) == []
        look()
        (returned,) = front.partitions[1].taken(c.ReturnReserved)
        assert [pos for _, pos in returned.tokens] == [1, 2]
        source.ask(1, ROOM)
        assert front.partitions[1].taken(c.LockReserved) == []

    @pytest.mark.row("A6")
    def test_it_stays_as_long_as_somebody_comes_back_for_some(self) -> None:
        front, idle = self.front()
        source, got = front.receiver()
        source.ask(1, ROOM)
        front.partitions[0].reserve(4)
        front.partitions[0].lock()
        for _ in range(2):
            source.ask(1, ROOM)
            front.partitions[0].lock()
            idle.pop()()
            assert front.partitions[0].taken(c.ReturnReserved) == []
        assert [pos for _, pos in got] == [1, 2, 3]
        idle.pop()()
        assert len(front.partitions[0].taken(c.ReturnReserved)) == 1
        assert idle == []

    def test_what_is_locked_while_it_is_kept_stays_as_in_the_service(self) -> None:
        front, idle = self.front()
        front.route = EntityRoute("q", [*front.partitions], Numbers(), 0, lock_kept=True, call_idle=idle.append)
        source, _ = front.receiver()
        source.ask(1, ROOM)
        front.partitions[0].reserve(3)
        assert idle == []
