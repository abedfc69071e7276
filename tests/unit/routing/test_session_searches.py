"""Searches for sessions in any order of answers, failures and departures: no lock is lost, none is given twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from partibus.errors import PartibusError
from partibus.partition.protocol import commands as c
from partibus.partition.protocol import replies as r
from partibus.routing.partitions import Numbers
from partibus.routing.session_source import SessionHold
from partibus.routing.sessions import SessionDesk, SessionSearch
from tests.unit.routing.fakes import UNKNOWN, FakePartition

PARTITIONS = 2
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["search", "named", "accept", "none", "dry", "fail", "recover", "cancel", "give up"]),
        st.integers(0, 7),
    ),
    min_size=10,
    max_size=60,
)


class Searches:
    """Searches over partitions whose replies come late and in any order among partitions."""

    def __init__(self) -> None:
        self.partitions = [FakePartition(index) for index in range(PARTITIONS)]
        self.desk = SessionDesk("q", list(self.partitions), Numbers(), 0)
        self.searches: list[SessionSearch] = []
        self.found: dict[int, list[SessionHold | PartibusError]] = {}
        self.gone: set[int] = set()
        self.locks = 0
        """Sessions that partitions have locked; their ids count up."""

    def search(self, session: str | None) -> None:
        number = len(self.searches)
        found = self.found[number] = []
        search = self.desk.search(session, found.append)
        self.searches.append(search)
        search.start()

    def step(self, name: str, index: int) -> None:
        partition = self.partitions[index % PARTITIONS]
        match name:
            case "search":
                self.search(None)
            case "named":
                self.search(f"session {index}")
            case "accept" if partition.callbacks and partition.is_available:
                self.locks += 1
                partition.answer(r.SessionAccepted(0, "s", self.locks, 60_000))
            case "none" if partition.callbacks:
                partition.answer(r.NoSession(0))
            case "dry":
                for other in self.partitions * PARTITIONS:
                    if other.callbacks:
                        other.answer(r.NoSession(0))
            case "fail":
                partition.fail()
                while partition.callbacks:
                    partition.answer(UNKNOWN)
            case "recover":
                partition.recover()
            case "cancel" | "give up" if self.searches:
                search = self.searches[index % len(self.searches)]
                if name == "cancel":
                    if not self.found[index % len(self.searches)]:
                        self.gone.add(index % len(self.searches))
                    search.cancel()
                else:
                    search.give_up()

    def rest(self) -> None:
        """Everybody who still waits goes, and partitions answer what they were asked."""
        for search in self.searches:
            search.cancel()
        for partition in self.partitions:
            while partition.callbacks:
                self.locks += 1
                partition.answer(r.SessionAccepted(0, "s", self.locks, 60_000))


@given(STEPS)
def test_every_lock_is_held_by_one_search_or_given_back(steps: list[tuple[str, int]]) -> None:
    searches = Searches()
    for name, index in steps:
        searches.step(name, index)
    searches.rest()
    holds = [found for told in searches.found.values() for found in told if isinstance(found, SessionHold)]
    held = [hold.lock_id for hold in holds]
    released = [command.session for p in searches.partitions for command in p.taken(c.ReleaseSession)]
    for partition in searches.partitions:
        partition.taken(c.AcceptSession)
    assert sorted(held + released) == list(range(1, searches.locks + 1))
    for number, found in searches.found.items():
        assert len(found) <= 1, "told twice"
        assert not (found and number in searches.gone), "told after it has gone"
    assert {receiver for p in searches.partitions for receiver in p.receivers} <= {hold.receiver for hold in holds}
    for partition in searches.partitions:
        partition.fail()
        partition.recover()
        assert partition.taken(c.AcceptSession) == [], "asked for nobody"
