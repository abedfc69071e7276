"""Numbers that wrap around."""

from __future__ import annotations

import pytest

from partibus.amqp import serial

LAST = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("start", "end", "steps"),
    [(0, 0, 0), (0, 1, 1), (LAST, 0, 1), (0, LAST, -1), (LAST - 1, 3, 5), (5, 2, -3), (0, 0x7FFFFFFF, 0x7FFFFFFF)],
)
def test_distance_goes_the_short_way_round(start: int, end: int, steps: int) -> None:
    assert serial.distance(start, end) == steps
    assert serial.add(start, steps) == end


def test_half_the_circle_away_counts_as_behind() -> None:
    assert serial.distance(0, 0x80000000) == -0x80000000
