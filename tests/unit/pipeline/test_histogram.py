"""Percentiles of histograms with weights."""

from __future__ import annotations

import numpy as np
import pytest

from partibus.pipeline.partial import buckets_of, spread, value_of


def test_percentiles_count_weights() -> None:
    found = spread({1: 98.0, 100: 1.0, 200: 1.0}, (0.5, 0.98, 0.99, 1))
    assert found["count"] == 100
    assert (found["p50"], found["p98"]) == (1, 1)
    assert found["p99"] == pytest.approx(value_of(100), rel=1e-3)
    assert found["p100"] == found["largest"] == pytest.approx(value_of(200), rel=1e-3)


def test_one_value_is_all_of_them() -> None:
    found = spread({0: 0.3})
    assert set(found.values()) == {0}
    assert list(found) == ["count", "mean", "p50", "p90", "p99", "p99_9", "largest"]


def test_fractions_of_weights_do_not_hide_the_last_value() -> None:
    found = spread(dict.fromkeys(range(1, 11), 0.1), (1.0,))
    assert found["p100"] == found["largest"]


def test_buckets_hold_their_values_within_two_percent() -> None:
    values = [0, 1, 2, 3, 7, 10, 99, 1000, 123_456, 10**9, 10**12]
    buckets = [int(bucket) for bucket in buckets_of(np.array(values))]
    assert [value_of(bucket) for bucket in buckets] == [pytest.approx(value, rel=0.02) for value in values]
    assert len(set(buckets)) == len(values)
