"""Bodies that several entries name, as a topic's are; marks of forwarded messages; sizes of partitions."""

import pytest

from partibus.partition.protocol import queries as q
from partibus.partition.protocol.keys import REWRITTEN_BODY, SHARED_BODY, body_key, entry_key, subqueue_key
from partibus.partition.protocol.ports import FINISHED, Disposition, EntryState, Store, Writes
from partibus.store.postgresql import PostgreSQLStore
from partibus.store.sqlite import SQLiteStore
from tests.contract.stores import Opener

TOPIC = 5
SUBSCRIPTIONS = (6, 7, 8)
MESSAGES = 40


def published(numbers: range, rows: tuple[int, ...] = SUBSCRIPTIONS) -> Writes:
    """Each body once, and an entry in each subscription, at the same position."""
    writes = Writes()
    flag = SHARED_BODY if len(rows) > 1 else 0
    for number in numbers:
        body = body_key(TOPIC, flag | number)
        writes.bodies += [body, b"%d" % number]
        for row in rows:
            writes.entries += [entry_key(subqueue_key(row, 0), number), body, number, 0, 0, 0, None, None]
    writes.counters.update(dict.fromkeys((TOPIC, *rows), (numbers.stop, 1, 0)))
    return writes


def completed(row: int, numbers: range) -> Writes:
    """Complete entries as a subscription's receiver would."""
    writes = Writes()
    subqueue = subqueue_key(row, 0)
    writes.deleted_entries.append((entry_key(subqueue, numbers[0]), entry_key(subqueue, numbers[-1])))
    writes.deleted_shared_bodies += [body_key(TOPIC, SHARED_BODY | number) for number in numbers]
    return writes


def bodies(store: Store, flag: int = SHARED_BODY) -> list[int]:
    """Numbers of those that are there."""
    found = store.read(q.Bodies([body_key(TOPIC, flag | number) for number in range(MESSAGES)]))
    return [number for number, data in enumerate(found) if data is not None]


def waiting(store: Store, row: int, kind: int = 0) -> list[int]:
    """Positions of the entries that have their body."""
    return [entry.pos for entry in store.read(q.Browse(subqueue_key(row, kind), 0, 1 << 40, 99, 1 << 20))]


def drop(store: Store, *rows: int) -> None:
    writes = Writes()
    writes.dropped_partitions.extend(rows)
    store.commit(writes)
    inner = getattr(store, "inner", store)
    if isinstance(inner, SQLiteStore | PostgreSQLStore):
        inner.wait_until_swept()


@pytest.fixture
def topic(store: Store) -> Store:
    """Make a topic with messages in three subscriptions."""
    store.commit(published(range(MESSAGES)))
    return store


def test_a_shared_body_goes_with_the_last_entry_that_names_it(topic: Store) -> None:
    some = range(5, 25)
    left = sorted({*range(MESSAGES)}.difference(some))
    for row in SUBSCRIPTIONS:
        assert bodies(topic) == [*range(MESSAGES)]
        topic.commit(completed(row, some))
        assert waiting(topic, row) == left
    assert bodies(topic) == left
    assert all(waiting(topic, row) == left for row in SUBSCRIPTIONS)


def test_a_shared_body_stays_for_an_entry_that_has_left_and_is_kept_for_a_cursor(topic: Store) -> None:
    writes = Writes()
    for number in range(MESSAGES):
        body = body_key(TOPIC, SHARED_BODY | number)
        key = entry_key(subqueue_key(6, 0), number)
        writes.entry_updates += [key, body, FINISHED + Disposition.COMPLETED, 0, None]
        writes.deleted_shared_bodies.append(body)
    topic.commit(writes)
    for row in (7, 8):
        topic.commit(completed(row, range(MESSAGES)))
    assert waiting(topic, 6) == []
    assert bodies(topic) == [*range(MESSAGES)]
    frame = topic.read(q.Range(subqueue_key(6, 0), 0, MESSAGES, 99, 1 << 20, finished=True))
    assert (frame.count, frame.next_pos) == (MESSAGES, MESSAGES)
    topic.commit(completed(6, range(20)))
    assert bodies(topic) == [*range(20, MESSAGES)]
    drop(topic, 6)
    assert bodies(topic) == []


def test_two_that_are_the_last_in_one_commit(topic: Store) -> None:
    topic.commit(completed(6, range(MESSAGES)))
    writes = completed(7, range(10))
    for column in ("deleted_entries", "deleted_shared_bodies"):
        getattr(writes, column).extend(getattr(completed(8, range(10)), column))
    topic.commit(writes)
    assert bodies(topic) == [*range(10, MESSAGES)]


def test_published_and_completed_in_one_commit(store: Store) -> None:
    writes = published(range(3))
    for row in SUBSCRIPTIONS:
        done = completed(row, range(1, 3))
        writes.deleted_entries += done.deleted_entries
        writes.deleted_shared_bodies += done.deleted_shared_bodies
    store.commit(writes)
    assert bodies(store) == [0]
    assert waiting(store, 7) == [0]


def test_an_entry_that_got_a_body_of_its_own_names_the_shared_one_no_longer(topic: Store) -> None:
    """A message that is dead-lettered with a reason, or abandoned with properties."""
    shared = body_key(TOPIC, SHARED_BODY | 3)
    for row in SUBSCRIPTIONS:
        assert 3 in bodies(topic)
        own = body_key(row, REWRITTEN_BODY | 1)
        writes = Writes()
        writes.bodies += [own, b"rewritten"]
        writes.entry_updates += [entry_key(subqueue_key(row, 0), 3), own, int(EntryState.DEFERRED), 1, None]
        writes.deleted_shared_bodies.append(shared)
        topic.commit(writes)
    assert 3 not in bodies(topic)
    assert [waiting(topic, row) for row in SUBSCRIPTIONS] == [[*range(MESSAGES)]] * 3


def test_a_move_to_the_dead_letters_keeps_the_shared_body(topic: Store) -> None:
    body = body_key(TOPIC, SHARED_BODY | 4)
    writes = Writes()
    writes.entries += [entry_key(subqueue_key(6, 1), 1), body, 4, 0, 0, 3, None, None]
    writes.deleted_entries.append((entry_key(subqueue_key(6, 0), 4),) * 2)
    topic.commit(writes)
    for row in (7, 8):
        topic.commit(completed(row, range(4, 5)))
    assert waiting(topic, 6, kind=1) == [1]
    writes = Writes()
    writes.deleted_entries.append((entry_key(subqueue_key(6, 1), 1),) * 2)
    writes.deleted_shared_bodies.append(body)
    topic.commit(writes)
    assert bodies(topic) == [*range(4), *range(5, MESSAGES)]


def test_a_dropped_subscription_takes_what_nobody_else_names(topic: Store) -> None:
    topic.commit(completed(6, range(10)))
    topic.commit(completed(7, range(5, 15)))
    drop(topic, 8)
    named = sorted({*range(MESSAGES)}.difference(range(5, 10)))
    assert bodies(topic) == named
    assert waiting(topic, 6) == [*range(10, MESSAGES)]
    assert waiting(topic, 7) == [*range(5), *range(15, MESSAGES)]
    drop(topic, 6)
    assert bodies(topic) == waiting(topic, 7) == [*range(5), *range(15, MESSAGES)]
    drop(topic, 7)
    assert bodies(topic) == []


def test_a_dropped_subscription_takes_the_bodies_that_it_alone_had(store: Store) -> None:
    store.commit(published(range(MESSAGES), rows=(6,)))
    rewritten = Writes()
    rewritten.bodies += [body_key(6, REWRITTEN_BODY | 1), b"its own"]
    rewritten.entry_updates += [entry_key(subqueue_key(6, 0), 3), rewritten.bodies[0], 0, 1, None]  # type: ignore[list-item]
    rewritten.deleted_bodies.append((body_key(TOPIC, 3),) * 2)
    store.commit(rewritten)
    drop(store, 6)
    assert bodies(store, flag=0) == []
    assert store.read(q.Bodies([body_key(6, REWRITTEN_BODY | 1)])) == [None]
    assert store.read(q.Partition(TOPIC)) is not None


def test_a_dropped_topic_goes_with_its_subscriptions(topic: Store) -> None:
    drop(topic, TOPIC, *SUBSCRIPTIONS)
    assert bodies(topic) == []
    assert [waiting(topic, row) for row in SUBSCRIPTIONS] == [[]] * 3


def test_who_names_a_body_is_known_after_the_store_is_opened_anew(open_store: Opener) -> None:
    store = open_store()
    store.commit(published(range(MESSAGES)))
    store.commit(completed(6, range(10)))
    store.close()
    store = open_store()
    store.commit(completed(7, range(10)))
    assert bodies(store) == [*range(MESSAGES)]
    store.close()
    store = open_store()
    store.commit(completed(8, range(10)))
    assert bodies(store) == [*range(10, MESSAGES)]


def test_marks_are_loaded_with_their_partition_and_go_with_it(open_store: Opener) -> None:
    store = open_store()
    writes = published(range(1))
    writes.inbound_marks = {(TOPIC, 40): 7, (TOPIC, 44): 1 << 39, (6, 40): 3}
    store.commit(writes)
    writes = Writes()
    writes.inbound_marks = {(TOPIC, 40): 9}
    store.commit(writes)
    store.close()
    store = open_store()
    snapshots = [store.read(q.Partition(row)) for row in (TOPIC, 6, 7)]
    assert [snapshot and snapshot.inbound_marks for snapshot in snapshots] == [{40: 9, 44: 1 << 39}, {40: 3}, {}]
    drop(store, 6)
    store.commit(published(range(1, 2)))
    snapshots = [store.read(q.Partition(row)) for row in (TOPIC, 6)]
    assert [snapshot and snapshot.inbound_marks for snapshot in snapshots] == [{40: 9, 44: 1 << 39}, {}]


def test_sizes_of_many_partitions(store: Store) -> None:
    writes = Writes()
    for row in range(700):
        writes.counters[row] = (1, 1, 1_000 * row)
        if row % 3:
            writes.counts[subqueue_key(row, 0)] = (1, 7)
            writes.counts[subqueue_key(row, 1)] = (2, row)
    store.commit(writes)
    rows = [*range(0, 1_400, 2), 1]
    assert store.read(q.Sizes(rows)) == {row: 1_000 * row + (7 + row if row % 3 else 0) for row in rows if row < 700}
    assert store.read(q.Sizes([])) == {}
