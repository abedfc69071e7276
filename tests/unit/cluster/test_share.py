"""The shares that each broker computes for itself converge, in any order of news, losses and delays."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from partibus.cluster.assignment import Member, Steps, owners_of, steps_of
from partibus.cluster.ownership import Identity

A, B, C = (Identity(name, f"run of {name}") for name in "abc")


def there(owner: Identity, owned: dict[int, int], *, leaving: bool = False) -> Member:
    return Member(owner, True, leaving, owned)


def gone(owner: Identity, owned: dict[int, int]) -> Member:
    return Member(owner, False, False, owned)


def test_the_highest_epoch_says_whose_a_store_is() -> None:
    members = [there(A, {0: 3, 1: 1}), there(B, {0: 4, 7: 1}), gone(C, {1: 2})]
    assert owners_of(3, members) == [B, C, None]


def test_the_stores_of_who_is_gone_are_taken_and_those_of_who_is_there_are_waited_for() -> None:
    members = [there(A, {0: 1, 1: 1}), gone(B, {2: 1, 3: 1})]
    assert steps_of(A, 4, members, {0, 1}) == Steps([2, 3], [])
    members = [there(A, {0: 1, 1: 1}), there(B, {2: 1, 3: 1}, leaving=True)]
    assert steps_of(A, 4, members, {0, 1}) == Steps([], [])
    members = [there(A, {0: 1, 1: 1}), there(B, {3: 1}, leaving=True)]
    assert steps_of(A, 4, members, {0, 1}) == Steps([2], [])


def test_who_comes_gets_its_share_once_it_is_given_up() -> None:
    members = [there(A, {0: 1, 1: 1, 2: 1, 3: 1}), there(B, {})]
    (first, second) = steps_of(A, 4, members, {0, 1, 2, 3}).give
    assert steps_of(B, 4, members, set()) == Steps([], [])
    members = [there(A, {no: 1 for no in range(4) if no not in (first, second)}), there(B, {})]
    assert steps_of(B, 4, members, set()).take == [first, second]


def test_what_another_has_taken_over_is_given_up_whoever_should_have_it() -> None:
    assert steps_of(A, 2, [there(A, {0: 1, 1: 1}), gone(B, {0: 2})], {0, 1}) == Steps([], [0])


class Stores:
    """Stores as in the database: one owner with a lease at a time, an epoch that rises."""

    def __init__(self, count: int) -> None:
        self.leased: list[Identity | None] = [None] * count
        self.epochs = [0] * count

    def open(self, owner: Identity, store_no: int) -> int | None:
        """The epoch; None: somebody has it."""
        if self.leased[store_no] not in (None, owner):
            return None
        self.leased[store_no] = owner
        self.epochs[store_no] += 1
        return self.epochs[store_no]


@given(st.integers(1, 9), st.integers(0, 2**32))
def test_brokers_that_act_on_old_news_end_with_an_even_share(count: int, seed: int) -> None:
    random = Random(seed)
    stores = Stores(count)
    owned: dict[Identity, dict[int, int]] = {A: {}, B: {}, C: {}}
    alive = {A, B, C}
    """Members with a valid lease."""
    news: dict[Identity, list[Member]] = {owner: [] for owner in owned}

    def act(us: Identity) -> None:
        for store_no in owned[us]:  # a lease that has ended: its runtime opens the store anew, if that is still free
            if stores.leased[store_no] != us and (epoch := stores.open(us, store_no)) is not None:
                owned[us][store_no] = epoch
        members = [one for one in news[us] if one.owner != us] + [there(us, owned[us])]
        steps = steps_of(us, count, members, owned[us])
        for store_no in steps.give:
            del owned[us][store_no]
            if stores.leased[store_no] == us:
                stores.leased[store_no] = None
        for store_no in steps.take:
            epoch = stores.open(us, store_no)
            if epoch is not None:
                owned[us][store_no] = epoch

    def hear(us: Identity) -> None:
        news[us] = [Member(one, one in alive, False, dict(owned[one])) for one in owned]

    for _ in range(60):
        us = random.choice([A, B, C])
        match random.randrange(8):
            case 0:  # stands still: its leases end, on the roster and in the stores
                alive.discard(us)
                stores.leased = [None if one == us else one for one in stores.leased]
            case 1:
                alive.add(us)
            case 2 | 3 | 4:
                hear(us)
            case _:
                if us in alive:
                    act(us)
        held = [owner for owner in stores.leased if owner is not None]
        assert all(store_no in owned[owner] for store_no, owner in enumerate(stores.leased) if owner is not None)
        assert len(held) <= count
    alive = {A, B}  # c never comes back
    stores.leased = [None if one == C else one for one in stores.leased]
    for _ in range(4 * count + 4):
        for us in (A, B):
            hear(us)
            act(us)
    assert all(owner in (A, B) for owner in stores.leased)
    shares = [stores.leased.count(owner) for owner in (A, B)]
    assert max(shares) - min(shares) <= 1
    hear(A)
    assert owners_of(count, news[A]) == stores.leased
