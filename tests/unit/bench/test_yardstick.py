"""Values that are left out because the machine was slow."""

from __future__ import annotations

from bench.yardstick import at_full_speed, piece_ns


def test_a_value_beside_a_slow_piece_does_not_count() -> None:
    assert at_full_speed([1.0, 2.0, 3.0, 4.0], [10, 10, 21, 10, 10]) == [1.0, 4.0]
    assert at_full_speed([1.0, 2.0], [10, 19, 10]) == [1.0, 2.0]


def test_a_piece_takes_time() -> None:
    assert piece_ns() > 0
