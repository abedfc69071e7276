from collections import Counter

import pytest

from partibus.namespace.placement import Placement, deal, next_first_store_no


def test_partitions_go_to_stores_in_turn_and_rows_count_up() -> None:
    assert deal(3, 4, 2, 100) == (Placement(0, 2, 100), Placement(1, 3, 101), Placement(2, 0, 102))


@pytest.mark.row("P11")
@pytest.mark.parametrize("first_store_no", range(16))
def test_sixteen_partitions_touch_sixteen_stores(first_store_no: int) -> None:
    assert {placement.store_no for placement in deal(16, 16, first_store_no, 1)} == set(range(16))


@pytest.mark.parametrize(("partition_count", "store_count"), [(1, 16), (16, 16), (3, 16), (4, 16), (2, 2)])
def test_many_entities_fill_all_stores_alike(partition_count: int, store_count: int) -> None:
    loads: Counter[int] = Counter()
    starts: Counter[int] = Counter()
    store_no = 0
    for _ in range(store_count * 4):
        placements = deal(partition_count, store_count, store_no, 1)
        loads.update(placement.store_no for placement in placements)
        starts[store_no] += 1
        store_no = next_first_store_no(partition_count, store_count, store_no)
    assert len(loads) == store_count
    assert max(loads.values()) - min(loads.values()) <= 1
    assert len(starts) > 1 or store_count == 1


@pytest.mark.row("A2")
def test_stores_that_are_away_are_passed_over_in_turn() -> None:
    assert [place.store_no for place in deal(3, 5, 3, 1, away={4, 0})] == [3, 1, 2]
    assert [place.store_no for place in deal(1, 5, 4, 1, away={4})] == [0]
