"""Keys at the ends of their ranges."""

from __future__ import annotations

import pytest

from partibus.partition.protocol.keys import (
    PARTITION_ROW_MAX,
    POSITION_MAX,
    REWRITTEN_BODY,
    SubqueueKind,
    body_key,
    entry_key,
    kind_of,
    subqueue_key,
)


def test_greatest_key_fits_a_signed_64_bit_column() -> None:
    last = SubqueueKind.TRANSFER_DEAD_LETTER
    assert entry_key(subqueue_key(PARTITION_ROW_MAX, last), POSITION_MAX) < 1 << 63
    assert body_key(PARTITION_ROW_MAX, POSITION_MAX) < 1 << 63
    assert entry_key(subqueue_key(PARTITION_ROW_MAX, 3), POSITION_MAX) == (1 << 63) - 1


@pytest.mark.parametrize("row", [0, 1, PARTITION_ROW_MAX])
@pytest.mark.parametrize("kind", SubqueueKind)
def test_key_tells_its_parts(row: int, kind: SubqueueKind) -> None:
    subqueue = subqueue_key(row, kind)
    assert kind_of(subqueue) == kind
    for pos in (0, 1, POSITION_MAX):
        key = entry_key(subqueue, pos)
        assert (key >> 40, key & POSITION_MAX) == (subqueue, pos)


def test_neighbours_do_not_overlap() -> None:
    assert entry_key(subqueue_key(1, 0), POSITION_MAX) + 1 == entry_key(subqueue_key(1, 1), 0)
    assert entry_key(subqueue_key(1, 3), POSITION_MAX) + 1 == entry_key(subqueue_key(2, 0), 0)


def test_rewritten_bodies_lie_apart_from_those_that_came_in() -> None:
    assert body_key(1, REWRITTEN_BODY | 1) > body_key(1, REWRITTEN_BODY - 1)
    assert body_key(1, REWRITTEN_BODY | (REWRITTEN_BODY - 1)) < body_key(2, 0)
