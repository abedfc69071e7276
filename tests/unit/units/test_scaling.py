"""How many units there should be, by loads that come once a second."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partibus.units.scaling import DOWN_MS, UNITS, UP_MS, Scaling


class Namespace:
    """Wants so many units of processor time."""

    def __init__(self, units: int = 1, least: int = 1, most: int = 16) -> None:
        self.scaling = Scaling()
        self.units = units
        self.least = least
        self.most = most
        self.now_ms = 1_000_000
        self.changes: list[tuple[int, int]] = []

    def run(self, seconds: int, wanted: float) -> None:
        for _ in range(seconds):
            self.now_ms += 1_000
            units = self.scaling.look(self.now_ms, wanted / self.units, self.units, self.least, self.most)
            if units != self.units:
                self.changes.append((self.now_ms - 1_000_000, units))
                self.units = units


@pytest.mark.row("R12")
def test_more_when_the_load_stays_high() -> None:
    namespace = Namespace()
    namespace.run(UP_MS // 1_000, 0.75)
    assert namespace.units == 1
    namespace.run(2, 0.75)
    assert namespace.units == 2


@pytest.mark.row("R12")
def test_step_by_step_up_to_what_the_load_needs() -> None:
    namespace = Namespace()
    namespace.run(600, 5.0)
    assert namespace.units == 8
    assert [units for _, units in namespace.changes] == [2, 4, 8]


def test_a_burst_changes_nothing() -> None:
    namespace = Namespace()
    for _ in range(30):
        namespace.run(3, 1.0)
        namespace.run(12, 0.25)
    assert namespace.changes == []


@pytest.mark.row("R12")
def test_less_when_the_load_stays_low_and_not_before() -> None:
    namespace = Namespace(units=4)
    namespace.run(DOWN_MS // 1_000, 0.2)
    assert namespace.units == 4
    namespace.run(2, 0.2)
    assert namespace.units == 2


def test_a_pause_costs_no_units() -> None:
    namespace = Namespace(units=4)
    for _ in range(10):
        namespace.run(60, 2.0)
        namespace.run(60, 0.0)
    assert namespace.changes == []


def test_the_range_is_kept() -> None:
    namespace = Namespace(units=2, least=2, most=4)
    namespace.run(300, 100.0)
    assert namespace.units == 4
    namespace.run(1_000, 0.0)
    assert namespace.units == 2


def test_a_few_looks_that_are_far_apart_say_nothing() -> None:
    namespace = Namespace()
    namespace.run(1, 1.0)
    namespace.now_ms += 10 * UP_MS
    namespace.run(1, 1.0)
    assert namespace.units == 1


@given(st.floats(0.0, 20.0), st.sampled_from(UNITS))
def test_under_a_steady_load_it_comes_to_rest(wanted: float, units: int) -> None:
    namespace = Namespace(units)
    namespace.run(600, wanted)
    before = list(namespace.changes)
    namespace.run(300, wanted)
    numbers = [units, *(units for _, units in before)]
    assert numbers == sorted(numbers) or numbers == sorted(numbers, reverse=True)
    assert namespace.changes == before
