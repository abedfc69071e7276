"""Turns of inputs by a clock that moves with the work."""

from collections.abc import Callable

import pytest

from partibus.units.account import Account
from partibus.units.fair_scheduler import APART_NS, QUANTUM_NS, SLICE_NS, FairScheduler

MS = 1_000_000


class World:
    def __init__(self) -> None:
        self.now_ns = 10 * APART_NS
        self.soon: list[Callable[[], None]] = []
        self.done: list[str] = []
        self.scheduler = FairScheduler(self.soon.append, lambda: self.now_ns)

    def run(self, slices: int = 1_000_000) -> None:
        for _ in range(slices):
            if not self.soon:
                return
            self.soon.pop(0)()

    def share(self, one: Account, other: Account) -> None:
        """Both have sent something a moment ago."""
        for account in (one, other):
            if self.scheduler.begin(account):
                self.scheduler.end(account, 0)


class Connection:
    """Has so many pieces waiting, each of which takes ``cost_ns``."""

    def __init__(self, world: World, name: str, account: Account, pieces: int, cost_ns: int = MS // 10) -> None:
        self.world = world
        self.name = name
        self._account = account
        self.pieces = pieces
        self.cost_ns = cost_ns
        world.scheduler.add(self)

    @property
    def account(self) -> Account:
        return self._account

    def read_piece(self) -> bool:
        self.world.now_ns += self.cost_ns
        self.world.done.append(self.name)
        self.pieces -= 1
        return self.pieces > 0


def test_who_is_alone_is_served_at_once_and_its_time_is_noted() -> None:
    world, account = World(), Account()
    for _ in range(10):
        assert world.scheduler.begin(account)
        world.now_ns += MS
        world.scheduler.end(account, 100)
    assert account.busy_ns == 10 * MS
    assert account.moved == 1_000
    assert not world.soon


def test_two_share_until_one_has_sent_nothing_for_a_while() -> None:
    world, one, other = World(), Account(), Account()
    assert world.scheduler.begin(one)
    assert not world.scheduler.begin(other)
    assert not world.scheduler.begin(one)
    world.now_ns += APART_NS
    assert world.scheduler.begin(one)
    assert world.scheduler.begin(one)


def test_who_has_sent_nothing_lately_waits_for_the_end_of_a_slice_and_for_no_round() -> None:
    world, flood, quiet = World(), Account(), Account()
    connections = [Connection(world, "flood", flood, 1_000) for _ in range(20)]
    world.run(5)
    began_ns, done = world.now_ns, len(world.done)
    Connection(world, "quiet", quiet, 1)
    world.run(1)
    assert world.done[done] == "quiet"
    assert world.now_ns - began_ns < SLICE_NS + 2 * connections[0].cost_ns


@pytest.mark.row("R9")
def test_a_slice_ends_with_who_came_anew_so_that_what_they_ask_for_goes_on() -> None:
    world, flood = World(), Account()
    Connection(world, "flood", flood, 1_000)
    world.run(5)
    done = len(world.done)
    for name in ("one", "other"):
        Connection(world, name, Account(), 1)
    world.run(1)
    assert world.done[done:] == ["one", "other"]
    world.run(1)
    assert world.done[done + 2] == "flood"


def test_of_those_that_come_anew_the_one_that_has_used_least_lately_is_first_and_the_other_waits_a_slice() -> None:
    world, quiet, flood = World(), Account(), Account()
    Connection(world, "flood", flood, 20, cost_ns=MS)
    world.run()
    world.now_ns += 40 * MS  # in which it had its part of the time again
    done = len(world.done)
    for name, account in (("flood", flood), ("quiet", quiet)):
        Connection(world, name, account, 1)
    world.run(1)
    assert world.done[done:] == ["quiet"]
    world.run(1)
    assert world.done[done:] == ["quiet", "flood"]


@pytest.mark.row("R9")
def test_who_comes_back_within_a_round_goes_on_with_what_is_left_of_the_quantum() -> None:
    world, flood, quiet = World(), Account(), Account()
    for _ in range(2):
        Connection(world, "flood", flood, 100_000)
    world.run(3)
    for _ in range(100):
        done = len(world.done)
        Connection(world, "quiet", quiet, 1)
        world.run(1)
        if world.done[done] != "quiet":
            break
    else:
        pytest.fail("it was always first")
    assert quiet.busy_ns == pytest.approx(QUANTUM_NS / 2, abs=MS // 10)


def test_what_is_called_soon_comes_before_the_slice_that_waits() -> None:
    world, account = World(), Account()
    called: list[int] = []
    world.scheduler.soon(lambda: called.append(len(world.done)))
    assert len(world.soon) == 1
    Connection(world, "one", account, 100)
    world.run(1)
    assert called == [0]
    world.scheduler.soon(lambda: called.append(len(world.done)))
    world.run(1)
    assert called == [0, 0]


@pytest.mark.row("R9")
def test_what_is_called_soon_in_a_slice_comes_before_the_next() -> None:
    world, account = World(), Account()
    connection = Connection(world, "one", account, 100)
    piece = connection.read_piece
    called: list[int] = []

    def read_piece() -> bool:
        if not called:
            world.scheduler.soon(lambda: called.append(len(world.done)))
        return piece()

    connection.read_piece = read_piece  # type: ignore[method-assign]
    world.run(1)
    in_slice = len(world.done)
    world.run(1)
    assert called[0] == in_slice
    assert len(world.done) > in_slice


def test_what_fails_before_a_slice_holds_up_nobody() -> None:
    world, account = World(), Account()
    Connection(world, "one", account, 3)
    called: list[str] = []

    def fail() -> None:
        raise ValueError("of a test")

    world.scheduler.soon(fail)
    world.scheduler.soon(lambda: called.append("next"))
    with pytest.raises(ValueError, match="of a test"):
        world.run(1)
    world.run()
    assert called == ["next"]
    assert world.done == ["one"] * 3


@pytest.mark.row("R9")
def test_a_slice_leaves_the_loop_to_others() -> None:
    world, account = World(), Account()
    Connection(world, "one", account, 1_000)
    began_ns = world.now_ns
    world.run(1)
    assert world.now_ns - began_ns <= SLICE_NS + MS // 10
    assert len(world.soon) == 1


@pytest.mark.row("R9")
def test_time_is_shared_evenly_whatever_pieces_cost_and_however_many_connections_send() -> None:
    world, many, few = World(), Account(), Account()
    for _ in range(50):
        Connection(world, "many", many, 10_000)
    Connection(world, "few", few, 10_000, cost_ns=MS // 2)
    world.run(1_000)
    assert many.busy_ns == pytest.approx(few.busy_ns, rel=0.02)


@pytest.mark.row("R9")
def test_time_is_shared_by_units_and_who_has_none_shares_what_is_left() -> None:
    world = World()
    premium, first, second = Account(), Account(), Account()
    world.scheduler.follow(premium, 3)
    world.scheduler.left = 1
    for name, account in (("premium", premium), ("first", first), ("second", second)):
        Connection(world, name, account, 100_000)
    world.run(2_000)
    assert premium.busy_ns == pytest.approx(6 * first.busy_ns, rel=0.05)
    assert first.busy_ns == pytest.approx(second.busy_ns, rel=0.05)


@pytest.mark.row("R9")
def test_what_was_done_later_is_made_up_for() -> None:
    world, one, other = World(), Account(), Account()
    Connection(world, "one", one, 10_000)
    Connection(world, "other", other, 10_000)
    for _ in range(100):
        world.run(4)
        one.spend(SLICE_NS)  # what its commits and answers took
    assert one.busy_ns == pytest.approx(other.busy_ns, rel=0.05)


def test_what_nobody_else_wanted_is_not_made_up_for_for_ever() -> None:
    world, one, other = World(), Account(), Account()
    one.spend(1_000_000 * QUANTUM_NS)
    Connection(world, "one", one, 100)
    Connection(world, "other", other, 100_000)
    world.run(50)
    assert "one" in world.done


def test_a_debt_is_made_up_for_by_time_in_which_nothing_was_asked_for() -> None:
    world, flood, quiet = World(), Account(), Account()
    Connection(world, "flood", flood, 100_000)
    Connection(world, "quiet", quiet, 1)
    world.run(10)
    assert not quiet.is_listed
    quiet.spend(3 * QUANTUM_NS)  # what its commits and answers took
    world.run(10)
    done = len(world.done)
    Connection(world, "quiet", quiet, 1)
    world.run(1)
    assert world.done[done] == "quiet"


@pytest.mark.row("R9")
def test_connections_of_one_namespace_take_turns() -> None:
    world, account = World(), Account()
    for name in "abc":
        Connection(world, name, account, 3)
    world.run()
    assert world.done == list("abcabcabc")


def test_everything_is_done_in_the_end() -> None:
    world = World()
    for number in range(7):
        account = Account()
        if number % 2:
            world.scheduler.follow(account, number)
        for _ in range(number + 1):
            Connection(world, str(number), account, 11 * (number + 1), cost_ns=number * MS)
    world.run()
    assert not world.scheduler.waiting
    assert {name: world.done.count(name) for name in set(world.done)} == {
        str(number): 11 * (number + 1) ** 2 for number in range(7)
    }
