"""Percentiles and medians, at their edges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partibus.bench.measures import median, percentile, percentiles


def test_percentile_is_the_smallest_value_that_the_share_does_not_exceed() -> None:
    ordered = list(range(1, 1001))
    assert [percentile(ordered, share) for share in (0, 0.5, 0.9, 0.99, 0.999, 1)] == [1, 500, 900, 990, 999, 1000]
    assert percentile([7], 0.99) == 7


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1), st.integers(1, 1_000_000))
def test_percentile_covers_its_share_and_no_smaller_value_does(values: list[float], millionths: int) -> None:
    found = percentile(sorted(values), millionths / 1_000_000)
    not_above = sum(value <= found for value in values)
    below = sum(value < found for value in values)
    assert not_above * 1_000_000 >= millionths * len(values)
    assert below * 1_000_000 < millionths * len(values)


def test_percentiles_of_unordered_values() -> None:
    assert percentiles([3, 1, 2])._asdict() == {"p50": 2, "p90": 3, "p99": 3, "p999": 3, "most": 3}


def test_median() -> None:
    assert median([5, 1, 3]) == 3
    assert median([4, 1, 3, 2]) == 2.5


@pytest.mark.parametrize("summary", [median, percentiles, lambda values: percentile(values, 0.5)])
def test_nothing_has_no_summary(summary: object) -> None:
    assert callable(summary)
    with pytest.raises(ValueError, match="no values"):
        summary([])
