"""How the broker processes of a server are divided."""

import pytest

from partibus.errors import ArgumentError
from partibus.units.scaling import LEFT_MIN, brokers_wanted, check_units, left_of


@pytest.mark.parametrize("units", [1, 2, 4])
def test_one_broker_has_room_for_one_namespace(units: int) -> None:
    check_units("acme", units, 0, 1, 4)


def test_what_is_not_free_is_refused_with_what_is_and_what_to_do() -> None:
    with pytest.raises(ArgumentError) as refused:
        check_units("acme", 4, 6, 2, 4)
    assert str(refused.value) == (
        "units of the namespace 'acme' is 4, but must be at most 2: 2 broker processes have 8 units, 6 of which are "
        "other namespaces'. Serve with --brokers 3, or give another namespace fewer units."
    )


def test_what_is_left_is_for_those_without_units_and_never_nothing() -> None:
    assert left_of(0, 2, 4) == 4
    assert left_of(5, 2, 4) == 1.5
    assert left_of(8, 2, 4) == LEFT_MIN / 2


@pytest.mark.parametrize(("units", "brokers"), [(0, 1), (3, 1), (4, 2), (7, 2), (8, 3), (16, 4), (40, 4)])
def test_there_are_as_many_brokers_as_units_want_and_one_unit_for_the_others(units: int, brokers: int) -> None:
    assert brokers_wanted(units, 1, 4, 4) == brokers


def test_never_fewer_than_the_least() -> None:
    assert brokers_wanted(0, 2, 4, 4) == 2
