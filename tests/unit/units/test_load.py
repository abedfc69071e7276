"""When the units of a namespace have too much to do."""

import pytest

from partibus.units.scaling import LOOKS, Load, Resource

SHARE_S, MEMORY = 0.25, 1_000


def look(load: Load, busy_s: float, refused_s: float = 0.0, held_bytes: int = 0) -> Resource | None:
    load.look(busy_s, busy_s + refused_s, held_bytes, SHARE_S, MEMORY)
    return load.exhausted


def test_what_the_units_can_do_is_done() -> None:
    load = Load()
    assert {look(load, 0.0249) for _ in range(5 * LOOKS)} == {None}
    assert load.cpu == pytest.approx(0.996)


@pytest.mark.row("R11")
def test_a_burst_is_served_until_the_second_is_used_up_and_again_when_enough_of_it_is_past() -> None:
    load = Load()
    said = [look(load, 0.1) for _ in range(3)]
    assert said == [None, None, Resource.CPU]
    said = [look(load, 0.0) for _ in range(LOOKS)]
    # 0.3 s were used; below 80 % of 0.25 s is less than two of the three tenths.
    assert said == [Resource.CPU] * (LOOKS - 2) + [None, None]


@pytest.mark.row("R11")
def test_between_the_bounds_it_stays_as_it_was() -> None:
    load = Load()
    assert look(load, 0.22) is None
    for _ in range(LOOKS):
        look(load, 0.0)
    look(load, 0.25)
    assert look(load, 0.0) is Resource.CPU
    for _ in range(LOOKS - 2):
        look(load, 0.0)
    assert look(load, 0.22) is Resource.CPU
    assert look(load, 0.0) is Resource.CPU


def test_refusals_are_load_and_keep_nobody_out() -> None:
    load = Load()
    look(load, 0.3)
    for _ in range(LOOKS):
        look(load, 0.0, refused_s=0.1)
    assert load.exhausted is None
    assert load.cpu == pytest.approx(4.0)


@pytest.mark.row("R11")
def test_memory_counts_as_well() -> None:
    load = Load()
    assert look(load, 0.0, held_bytes=999) is None
    assert look(load, 0.0, held_bytes=1_000) is Resource.MEMORY
    assert look(load, 0.0, held_bytes=800) is Resource.MEMORY
    assert look(load, 0.0, held_bytes=799) is None


@pytest.mark.row("R11")
def test_what_other_brokers_do_for_it_is_added() -> None:
    load = Load()
    load.elsewhere = (0.2, 0.4, 600)
    assert look(load, 0.04, held_bytes=100) is None
    assert load.cpu == pytest.approx(1.76)
    assert load.memory == pytest.approx(0.7)
    assert look(load, 0.02) is Resource.CPU
    assert load.here == pytest.approx((0.06, 0.06, 0))
