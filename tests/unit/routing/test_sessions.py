"""Which partition a receiver gets its session from, and that nothing stays locked for who has gone (row K4)."""

from __future__ import annotations

from typing import Any

from partibus.errors import PartibusError, SessionCannotBeLocked, StoreUnavailable, Timeout
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.routing.partitions import Numbers
from partibus.routing.session_source import SessionHold
from partibus.routing.sessions import ASKED_MAX, SessionDesk, SessionSearch
from partibus.routing.slots import partition_for_key
from tests.unit.routing.fakes import UNAVAILABLE, FakePartition

PARTITIONS = 4
UNTIL_MS = 60_000


class Bench:
    """A desk over partitions that answer when told to, and what one search came to."""

    def __init__(self, count: int = PARTITIONS) -> None:
        self.partitions = [FakePartition(index) for index in range(count)]
        # The first search begins at partition 0.
        self.desk = SessionDesk("q", list(self.partitions), Numbers(), first_turn=count - 1)
        self.found: list[SessionHold | PartibusError] = []

    def search(self, session: str | None = None) -> SessionSearch:
        search = self.desk.search(session, self.found.append)
        search.start()
        return search

    def asked(self) -> list[tuple[int, bool]]:
        """(partition, waits there) of what was asked since the last call."""
        return [
            (partition.partition_id, ask.wait)
            for partition in self.partitions
            for ask in partition.taken(c.AcceptSession)
        ]

    def answer(self, index: int, make: Any) -> None:
        """Answer a partition's oldest open request."""
        self.partitions[index].answer(make)

    def none_has_one(self) -> None:
        """Every partition says that it has no session, and is asked to wait."""
        for index in range(len(self.partitions)):
            self.answer(index, r.NoSession(0))

    def released(self) -> list[tuple[int, int]]:
        """(partition, lock id) of sessions that were given back."""
        return [
            (partition.partition_id, release.session)
            for partition in self.partitions
            for release in partition.taken(c.ReleaseSession)
        ]

    def cancelled(self) -> list[int]:
        """Partitions that were told to wait no longer."""
        return [p.partition_id for p in self.partitions for _ in p.taken(c.CancelAccept)]

    def receivers(self) -> list[int]:
        """Partitions that know a receiver."""
        return [p.partition_id for p in self.partitions for _ in p.receivers]

    @property
    def hold(self) -> SessionHold:
        (found,) = self.found
        assert isinstance(found, SessionHold)
        return found

    @property
    def error(self) -> PartibusError:
        (found,) = self.found
        assert isinstance(found, PartibusError)
        return found


def accepted(session: str, lock_id: int = 7) -> r.SessionAccepted:
    return r.SessionAccepted(0, session, lock_id, UNTIL_MS)


class TestNamed:
    def test_a_named_session_is_asked_for_where_its_messages_are(self) -> None:
        bench = Bench()
        bench.search("customer 17")
        home = partition_for_key("customer 17", PARTITIONS)
        assert bench.asked() == [(home, False)]
        bench.answer(home, accepted("customer 17"))
        assert bench.hold.partition is bench.partitions[home]
        assert (bench.hold.session, bench.hold.lock_id, bench.hold.until_ms) == ("customer 17", 7, UNTIL_MS)
        assert bench.receivers() == [home]

    def test_the_empty_name_is_a_name(self) -> None:
        bench = Bench()
        bench.search("")
        assert [index for index, _ in bench.asked()] == [partition_for_key("", PARTITIONS)]

    def test_a_session_that_somebody_holds_is_refused_at_once(self) -> None:
        bench = Bench(1)
        bench.search("s")
        bench.answer(0, r.SessionHeld(0, UNTIL_MS))
        assert isinstance(bench.error, SessionCannotBeLocked)
        assert bench.receivers() == []

    def test_the_session_of_a_sick_partition_is_an_error_at_once(self) -> None:
        bench = Bench()
        home = partition_for_key("s", PARTITIONS)
        bench.partitions[home].fails = UNAVAILABLE
        bench.search("s")
        assert isinstance(bench.error, StoreUnavailable)
        assert bench.error.retriable

    def test_who_has_gone_meanwhile_leaves_no_lock(self) -> None:
        bench = Bench(1)
        search = bench.search("s")
        search.cancel()
        assert bench.cancelled() == [0]
        bench.answer(0, accepted("s", lock_id=9))
        assert bench.released() == [(0, 9)]
        assert bench.found == []
        assert bench.receivers() == []


class TestNext:
    def test_partitions_are_asked_one_after_the_other_until_one_has_a_session(self) -> None:
        bench = Bench()
        bench.search()
        assert bench.asked() == [(0, False)]
        bench.answer(0, r.NoSession(0))
        assert bench.asked() == [(1, False)]
        bench.answer(1, accepted("s"))
        assert bench.hold.partition is bench.partitions[1]
        assert bench.asked() == []
        assert bench.receivers() == [1]

    def test_searches_begin_at_different_partitions(self) -> None:
        bench = Bench()
        for _ in range(2 * PARTITIONS):
            bench.search()
        assert [index for index, _ in sorted(bench.asked())] == sorted([*range(PARTITIONS)] * 2)

    def test_where_nothing_is_all_partitions_are_waited_for_and_the_first_wins(self) -> None:
        bench = Bench()
        bench.search()
        bench.none_has_one()
        assert [ask for ask in bench.asked() if ask[1]] == [(i, True) for i in range(PARTITIONS)]
        bench.answer(2, accepted("s"))
        assert bench.hold.partition is bench.partitions[2]
        assert bench.cancelled() == [0, 1, 3]
        assert bench.receivers() == [2]

    def test_a_late_grant_is_given_back(self) -> None:
        bench = Bench()
        bench.search()
        bench.none_has_one()
        bench.answer(2, accepted("s"))
        bench.answer(3, accepted("t", lock_id=8))
        assert bench.hold.session == "s"
        assert bench.released() == [(3, 8)]

    def test_partitions_whose_stores_are_away_are_passed_over(self) -> None:
        bench = Bench()
        bench.partitions[0].is_available = False
        bench.search()
        assert bench.asked() == [(1, False)]
        bench.answer(1, r.Failed(0, executed=None, full=False, message="sick"))
        assert bench.asked() == [(2, False)]
        bench.answer(2, accepted("s"))
        assert bench.hold.partition is bench.partitions[2]

    def test_a_partition_is_asked_again_when_its_store_is_back(self) -> None:
        bench = Bench()
        bench.partitions[0].is_available = False
        bench.search()
        for index in (1, 2, 3):
            bench.answer(index, r.NoSession(0))
        assert [index for index, waits in bench.asked() if waits] == [1, 2, 3]
        bench.partitions[1].fail()
        bench.partitions[0].recover()
        bench.partitions[1].recover()
        assert bench.asked() == [(0, True), (1, True)]
        bench.answer(0, accepted("s"))
        assert bench.hold.partition is bench.partitions[0]

    def test_a_store_that_comes_back_finds_nobody_who_has_gone(self) -> None:
        bench = Bench(2)
        bench.partitions[0].is_available = False
        search = bench.search()
        bench.answer(1, r.NoSession(0))
        search.cancel()
        bench.asked()
        bench.partitions[0].recover()
        assert bench.asked() == []

    def test_many_who_wait_ask_a_sick_store_to_tell_them_once(self) -> None:
        bench = Bench(2)
        bench.partitions[0].is_available = False
        for _ in range(50):
            bench.search()
            bench.partitions[1].callbacks.pop()(r.NoSession(0))
        assert len(bench.partitions[0].awaiting) == 1
        bench.asked()
        bench.partitions[0].recover()
        assert bench.asked() == [(0, True)] * 50

    def test_however_many_wait_a_partition_is_asked_for_no_more_than_so_many(self) -> None:
        bench = Bench(1)
        for _ in range(3 * ASKED_MAX):
            bench.search()
            bench.partitions[0].callbacks.pop()(r.NoSession(0))
        assert sum(waits for _, waits in bench.asked()) == ASKED_MAX
        assert bench.cancelled() == []

    def test_who_has_waited_longest_comes_first(self) -> None:
        partition = FakePartition(0)
        desk = SessionDesk("q", [partition], Numbers(), first_turn=0)
        order: list[int] = []
        for number in range(2 * ASKED_MAX):
            desk.search(None, lambda _, number=number: order.append(number)).start()  # type: ignore[misc]
            partition.callbacks.pop()(r.NoSession(0))
        for lock_id in range(1, 2 * ASKED_MAX + 1):
            partition.answer(accepted("s", lock_id))
        assert order == list(range(2 * ASKED_MAX))
        assert partition.taken(c.ReleaseSession) == []

    def test_without_any_store_the_receiver_is_told_at_once(self) -> None:
        bench = Bench()
        for partition in bench.partitions:
            partition.is_available = False
        bench.search()
        assert isinstance(bench.error, StoreUnavailable)

    def test_when_the_last_store_fails_who_waits_is_told(self) -> None:
        bench = Bench(2)
        bench.search()
        bench.none_has_one()
        for index in (0, 1):
            assert bench.found == []
            bench.partitions[index].fail()
        assert isinstance(bench.error, StoreUnavailable)

    def test_who_has_gone_while_it_waits_leaves_nothing_behind(self) -> None:
        bench = Bench()
        search = bench.search()
        bench.none_has_one()
        search.cancel()
        search.cancel()
        assert bench.cancelled() == [0, 1, 2, 3]
        assert bench.receivers() == []
        bench.answer(0, accepted("s"))
        assert bench.released() == [(0, 7)]
        assert bench.found == []


class TestGivingUp:
    def test_who_waits_is_told_that_the_time_is_over(self) -> None:
        bench = Bench()
        search = bench.search()
        bench.none_has_one()
        search.give_up()
        assert isinstance(bench.error, Timeout)
        assert bench.cancelled() == [0, 1, 2, 3]

    def test_however_short_the_time_every_partition_is_asked_once(self) -> None:
        bench = Bench(2)
        search = bench.search()
        search.give_up()
        assert bench.found == []
        bench.answer(0, r.NoSession(0))
        bench.answer(1, r.NoSession(0))
        assert isinstance(bench.error, Timeout)
        assert bench.asked() == [(0, False), (1, False)]

    def test_a_session_found_after_the_time_was_over_is_taken(self) -> None:
        bench = Bench(2)
        search = bench.search()
        search.give_up()
        bench.answer(0, accepted("s"))
        assert bench.hold.session == "s"
        search.give_up()
        assert bench.found == [bench.hold]
