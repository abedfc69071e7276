"""The assignment of stores: even, and with few moves."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from partibus.cluster.assignment import assign

NAMES = [f"broker-{index}" for index in range(12)]


@st.composite
def situations(draw: st.DrawFn) -> tuple[int, set[str], dict[int, str]]:
    """(stores, brokers that are there, present owners, dead ones among them)"""
    count = draw(st.integers(0, 40))
    brokers = draw(st.sets(st.sampled_from(NAMES), max_size=8))
    owners = draw(st.dictionaries(st.integers(0, max(count - 1, 0)), st.sampled_from(NAMES), max_size=count))
    return count, brokers, {store: owner for store, owner in owners.items() if store < count}


@given(situations())
def test_every_store_has_an_owner_that_is_there(situation: tuple[int, set[str], dict[int, str]]) -> None:
    count, brokers, owners = situation
    wanted = assign(count, brokers, owners)
    assert set(wanted) == (set(range(count)) if brokers else set())
    assert set(wanted.values()) <= brokers


@given(situations())
def test_no_broker_has_two_more_than_another(situation: tuple[int, set[str], dict[int, str]]) -> None:
    count, brokers, owners = situation
    shares = Counter(assign(count, brokers, owners).values())
    sizes = [shares[broker] for broker in brokers]
    assert not sizes or max(sizes) - min(sizes) <= 1


@given(situations())
def test_as_many_stay_as_evenness_allows(situation: tuple[int, set[str], dict[int, str]]) -> None:
    count, brokers, owners = situation
    wanted = assign(count, brokers, owners)
    stayed = sum(1 for store, owner in owners.items() if wanted.get(store) == owner)
    held = sorted((Counter(owner for owner in owners.values() if owner in brokers)).values(), reverse=True)
    share, remainder = divmod(count, len(brokers)) if brokers else (0, 0)
    assert stayed == sum(min(had, share + (rank < remainder)) for rank, had in enumerate(held))


@given(situations())
def test_it_is_at_rest_with_what_it_wants(situation: tuple[int, set[str], dict[int, str]]) -> None:
    count, brokers, owners = situation
    wanted = assign(count, brokers, owners)
    assert assign(count, sorted(brokers, reverse=True), wanted) == wanted


@given(st.integers(1, 40), st.sets(st.sampled_from(NAMES), min_size=2), st.data())
def test_the_loss_of_a_broker_moves_its_stores_only(count: int, brokers: set[str], data: st.DataObject) -> None:
    before = assign(count, brokers, {})
    lost = data.draw(st.sampled_from(sorted(brokers)))
    after = assign(count, brokers - {lost}, before)
    assert {store for store in before if before[store] != after[store]} == {
        store for store, owner in before.items() if owner == lost
    }


def test_neighbouring_partitions_begin_at_different_brokers() -> None:
    wanted = assign(16, NAMES[:4], {})
    assert all(wanted[store] != wanted[store + 1] for store in range(15))
