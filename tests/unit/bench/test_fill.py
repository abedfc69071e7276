"""Queues that are filled behind the broker's back hold what the broker would have written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.fill import fill_ids, fill_messages, store_of
from bench.many import parse_peak
from partibus.message import StoredMessage
from partibus.namespace.catalog import Catalog
from partibus.namespace.entities import QueueDescription
from partibus.partition.protocol import queries as q
from partibus.partition.protocol.keys import subqueue_key
from partibus.partition.protocol.ports import EntryState, Store
from partibus.store.sqlite import Owner
from partibus.store.sqlite.directory import STORES_DEFAULT, close_stores, open_stores


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with a queue ``q``."""
    close_stores(open_stores(tmp_path, owner=Owner("test", "1"), created_ms=1))
    catalog = Catalog(tmp_path, STORES_DEFAULT)
    catalog.create(QueueDescription("q"), 1)
    catalog.close()
    return tmp_path


@contextmanager
def opened(data: Path) -> Iterator[tuple[Store, int, int]]:
    with store_of(data, "q") as (store, row):
        yield store, row, subqueue_key(row, 0)


def test_messages_are_counted_and_can_be_received(data: Path) -> None:
    fill_messages(data, "q", 30, session=lambda number: f"s{number % 3}")
    with opened(data) as (store, row, subqueue):
        snapshot = store.read(q.Partition(row))
        assert snapshot is not None
        assert snapshot.next_sequence == 31
        page = store.read(q.Page(subqueue, 0, 100, 1 << 20))
        assert [entry.sequence for entry in page] == list(range(1, 31))
        assert snapshot.counts[subqueue] == (30, sum(len(entry.data) for entry in page))
        assert len(StoredMessage(page[0].data).rest) > 1024
        assert store.read(q.SessionsBehind(subqueue, None, 10)) == ["s0", "s1", "s2"]


def test_deferred_and_scheduled_messages_are_in_that_state(data: Path) -> None:
    fill_messages(data, "q", 5, state=EntryState.SCHEDULED, due_ms=lambda number: 1_000 + number)
    with opened(data) as (store, _row, subqueue):
        assert store.read(q.Page(subqueue, 0, 100, 1 << 20)) == []
        due = store.read(q.Due(subqueue, EntryState.SCHEDULED, 1_002, 100, 1 << 20))
        assert [entry.due_ms for entry in due.rows] == [1_000, 1_001, 1_002]
        assert due.next_due_ms == 1_003


def test_a_queue_that_was_used_is_not_filled(data: Path) -> None:
    fill_messages(data, "q", 1)
    with pytest.raises(AssertionError, match="nobody has used"):
        fill_messages(data, "q", 1)


def test_ids_are_in_the_latest_half_of_the_window(data: Path) -> None:
    before_ms = int(time.time() * 1000)
    fill_ids(data, "q", 100, 80_000)
    with opened(data) as (store, row, _):
        found = store.read(q.DuplicatesBehind(row, (-1, b""), 1_000))
        assert len(found) == 100
        assert all(before_ms - 40_000 <= accepted_ms for _, _, accepted_ms in found)
        assert all(0 <= accepted_ms - bucket < 10_000 for bucket, _, accepted_ms in found)
        ids = [message_id for _, message_id, _ in found]
        assert len(store.read(q.Duplicates(row, 0, ids))) == 100


def test_peak_of_memory_is_in_bytes() -> None:
    assert parse_peak("VmPeak:\t 90 kB\nVmHWM:\t   80 kB\nVmRSS:\t 9 kB\n") == 81_920
    with pytest.raises(ValueError, match="ended"):
        parse_peak("Name:\tx\n")
