"""Frames leave together, in order, and their batches are numbered."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from partibus.cluster.channel import BATCH_BYTES, HEAD_BYTES, Outbox
from partibus.cluster.forms import to_form
from partibus.cluster.wire import Drop, encode_frame, read_questions
from partibus.partition.protocol import commands as c


class Turns:
    """The bytes written in each turn of a loop."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self._calls: list[Callable[[], None]] = []
        self.outbox = Outbox(lambda batch: self.written.append(bytes(batch[HEAD_BYTES:])), self._calls.append)

    def end(self) -> int:
        """End a turn; how many calls that took."""
        calls = self._calls[:]
        self._calls.clear()
        for call in calls:
            call()
        return len(calls)

    def rows(self) -> list[list[int]]:
        """Return the rows of the `Drop` frames, by batch."""
        return [[frame.row for frame in read_questions(batch)] for batch in self.written]


def test_a_turn_is_one_write() -> None:
    turns = Turns()
    turns.outbox.put(Drop(1, 1))
    turns.outbox.put_encoded(encode_frame(Drop(1, 2)))
    turns.outbox.put(Drop(1, 3))
    assert turns.written == []
    assert turns.end() == 1
    turns.outbox.put(Drop(1, 4))
    turns.end()
    assert turns.rows() == [[1, 2, 3], [4]]
    assert turns.end() == 0, "nothing to send, nothing to do"


def test_large_batch_does_not_wait_for_the_turn() -> None:
    turns = Turns()
    frame = encode_frame(Drop(1, 7))
    while not turns.written:
        turns.outbox.put_encoded(frame)
    assert len(turns.written[0]) >= BATCH_BYTES - HEAD_BYTES
    turns.end()
    assert len(turns.written) == 1


def test_number_of_a_batch_says_whether_it_has_left() -> None:
    turns = Turns()
    numbers = []
    for row in range(3):
        numbers.append(turns.outbox.batch)
        turns.outbox.put(Drop(1, row))
        assert turns.outbox.left < numbers[-1]
        turns.end()
        assert turns.outbox.left == numbers[-1]
    assert all(later > earlier for earlier, later in pairwise(numbers))


def test_closed_outbox_writes_nothing_and_keeps_nothing() -> None:
    turns = Turns()
    turns.outbox.put(Drop(1, 1))
    turns.outbox.close()
    turns.outbox.put(Drop(1, 2))
    turns.outbox.put_encoded(bytes(BATCH_BYTES))
    turns.end()
    turns.outbox.flush()
    assert turns.written == []
    assert turns.outbox.left == 0


def test_frame_that_cannot_travel_harms_no_other() -> None:
    turns = Turns()
    turns.outbox.put(Drop(1, 1))
    with pytest.raises(ValueError, match="surrogates"):
        turns.outbox.put(to_form(c.AcceptSession(1, 1, "\udc00")))
    turns.outbox.put(Drop(1, 2))
    turns.end()
    assert turns.rows() == [[1, 2]]
