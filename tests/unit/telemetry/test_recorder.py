"""A reader finds what a recorder packs: columns, keys, samples, refusals, commits (D28)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from partibus.message import Message
from partibus.partition.protocol.keys import Entry
from partibus.partition.protocol.notes import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER,
    DELIVER,
    FULL,
    LOCK_LOST,
    SEND,
    StoreRecorder,
)
from partibus.partition.protocol.ports import EntryState
from partibus.routing.slots import slot_for_key
from partibus.telemetry.chunks import Keys, Reader
from partibus.telemetry.layout import LENGTH
from partibus.telemetry.recorder import PackedRecorder, Place
from partibus.telemetry.schema import COLUMNS, KEY_MAX, OPS
from partibus.telemetry.table import Tables

ROW = 7
NOW_MS = 1_900_000_000_000


def entries(*sequences: int, deliveries: int = 0, session: str | None = None, sent_ms: int = NOW_MS) -> list[Entry]:
    return [
        Entry(number, number, number, sent_ms, deliveries, session, None, 100 + number, b"%d" % number)
        for number in sequences
    ]


def messages_of(of: Sequence[Entry], keys: Sequence[str | None]) -> list[Message]:
    return [Message(entry.data or b"", partition_key=key) for entry, key in zip(of, keys, strict=True)]


class Recording:
    """A recorder and what a writer makes of it."""

    def __init__(self, sample: float | None = None) -> None:
        self.recorder = PackedRecorder(sample)
        self.recorder.place_of = lambda row: Place("orders", row, row + 100)
        self.store: StoreRecorder = self.recorder.of_store()
        self.reader = Reader()
        self._tables = Tables("broker-0", self.recorder.weight)

    def flush(self) -> None:
        chunk, _ = self.recorder.take()
        assert LENGTH.unpack_from(chunk) == (len(chunk) - LENGTH.size,)
        self.reader.read(chunk[LENGTH.size :])

    def table(self) -> pa.Table:
        """Return the chunks that are ready by now."""
        self.flush()
        made: pa.Table = self._tables.make(self.reader.take(), self.reader.places)
        assert made.column_names == [column.name for column in COLUMNS]
        return made

    def rows(self) -> list[dict[str, object]]:
        """The same, row by row."""
        found: list[dict[str, object]] = self.table().to_pylist()
        return found

    def commit(self, number: int) -> None:
        self.store.committed(ROW, number, 3, 300, 0.002, NOW_MS)


@pytest.fixture
def recording() -> Recording:
    return Recording()


def test_a_row_has_what_the_message_and_its_partition_are(recording: Recording) -> None:
    sent = entries(11)
    recording.store.noted(ROW, [(SEND, 0, sent, messages_of(sent, ["north"]))], NOW_MS, 1)
    recording.commit(1)
    sent_row, committed = recording.rows()
    assert sent_row.pop("time").timestamp() * 1000 == NOW_MS  # type: ignore[attr-defined]
    assert 0 <= sent_row.pop("latency_us") < 10_000_000  # type: ignore[operator]
    assert sent_row == {
        "op": "send",
        "namespace": "default",
        "entity": "orders",
        "partition_id": ROW,
        "store": ROW + 100,
        "broker": "broker-0",
        "position": 11,
        "sequence_number": ROW << 48 | 11,
        "key": "north",
        "slot": slot_for_key("north"),
        "size_bytes": 111,
        "delivery_count": 0,
        "dwell_ms": None,
        "messages": 1,
        "outcome": "ok",
        "weight": 1.0,
        **dict.fromkeys(("client", "asked_for", "requests", "rules")),
    }
    shown = {name: value for name, value in committed.items() if value is not None and name != "time"}
    assert shown == {
        "op": "commit",
        "namespace": "default",
        "store": ROW + 100,
        "broker": "broker-0",
        "size_bytes": 300,
        "latency_us": 2000,
        "messages": 3,
        "outcome": "ok",
        "weight": 1.0,
    }


def test_what_clients_asked_for_is_a_row_per_sum(recording: Recording) -> None:
    use: list[str | int] = ["acme", "events", "client-7", "filter", 3, 12, "a/$Default\nb/red"]
    recording.recorder.put_uses(NOW_MS, [use, ["acme", "", "", "management", 1, 1, ""]])
    assert recording.recorder.rows == 2
    of_rules, of_namespace = (
        {name: value for name, value in row.items() if value is not None} for row in recording.rows()
    )
    assert of_rules.pop("time").timestamp() * 1000 == NOW_MS  # type: ignore[attr-defined]
    assert of_rules == {
        "op": "use", "namespace": "acme", "entity": "events", "broker": "broker-0", "messages": 12, "outcome": "ok",
        "weight": 1.0, "client": "client-7", "asked_for": "filter", "requests": 3, "rules": "a/$Default\nb/red",
    }  # fmt: skip
    assert of_namespace.keys().isdisjoint({"entity", "client", "rules"})


def test_a_step_of_a_move_of_slots_is_a_row(recording: Recording) -> None:
    recording.recorder.put_move([NOW_MS, "acme", "orders.fifo", 0, 2, 5_461, 3, "route", 12, "partition 0 is used", 7])
    assert recording.recorder.rows == 1
    (row,) = ({name: value for name, value in row.items() if value is not None} for row in recording.rows())
    assert row.pop("time").timestamp() * 1000 == NOW_MS  # type: ignore[attr-defined]
    assert row == {
        "op": "move", "namespace": "acme", "entity": "orders.fifo", "partition_id": 2, "broker": "broker-0",
        "position": 0, "sequence_number": 7, "latency_us": 12_000, "messages": 5_461, "outcome": "ok", "weight": 1.0,
        "asked_for": "route", "requests": 3, "rules": "partition 0 is used",
    }  # fmt: skip


def test_nothing_is_ready_before_its_commit_is_durable(recording: Recording) -> None:
    recording.store.noted(ROW, [(COMPLETE, 0, entries(1), None)], NOW_MS, 4)
    assert recording.rows() == []
    recording.commit(4)
    assert [row["op"] for row in recording.rows()] == ["complete", "commit"]


def test_what_has_no_rows_in_a_commit_waits_for_none(recording: Recording) -> None:
    recording.store.noted(ROW, [(DELIVER, 0, entries(1, session="s"), None)], NOW_MS, 0)
    (row,) = recording.rows()
    assert (row["op"], row["latency_us"], row["key"]) == ("deliver", None, "s")


def test_a_commit_whose_end_was_dropped_holds_nothing_up(recording: Recording) -> None:
    recording.store.noted(ROW, [(COMPLETE, 0, entries(1), None)], NOW_MS, 4)
    recording.flush()
    recording.commit(4)
    recording.recorder.take()  # dropped: the socket was full
    recording.commit(5)
    assert [(row["op"], row["outcome"], row["latency_us"]) for row in recording.rows()] == [
        ("complete", "ok", None),
        ("commit", "ok", 2000),
    ]


def test_a_failed_commit_is_an_outcome_of_its_own_store_only(recording: Recording) -> None:
    other = recording.recorder.of_store()
    recording.store.noted(ROW, [(SEND, 0, entries(1), None)], NOW_MS, 1)
    other.noted(ROW + 1, [(SEND, 0, entries(2), None)], NOW_MS, 1)
    recording.store.failed()
    other.committed(ROW + 1, 1, 1, 1, 0.001, NOW_MS)
    outcomes = {row["position"]: row["outcome"] for row in recording.rows() if row["op"] == "send"}
    assert outcomes == {1: "com.microsoft:server-busy", 2: "ok"}


def test_what_never_hears_of_its_commit_is_unknown(recording: Recording) -> None:
    recording.store.noted(ROW, [(SEND, 0, entries(1), None)], NOW_MS, 1)
    recording.flush()
    recording.reader.end()
    assert [row["outcome"] for row in recording.rows()] == ["unknown"]


def test_deliveries_count_the_one_that_is_under_way(recording: Recording) -> None:
    held = entries(1, deliveries=2)
    recording.store.noted(ROW, [(DELIVER, 0, held, None), (COMPLETE, 0, held, None)], NOW_MS, 0)
    counted = entries(2, deliveries=2)
    recording.store.noted(ROW, [(ABANDON, 0, counted, None)], NOW_MS, 0)
    assert [(row["op"], row["delivery_count"]) for row in recording.rows()] == [
        ("deliver", 3),
        ("complete", 3),
        ("abandon", 2),
    ]


def test_dwell_is_since_the_enqueue_and_never_below_0(recording: Recording) -> None:
    recording.store.noted(ROW, [(DELIVER, 0, entries(1, sent_ms=NOW_MS - 1500), None)], NOW_MS, 0)
    recording.store.noted(ROW, [(DELIVER, 0, entries(2, sent_ms=NOW_MS + 10), None)], NOW_MS, 0)
    assert [row["dwell_ms"] for row in recording.rows()] == [1500, 0]


def test_a_dead_letter_sub_queue_has_positions_of_its_own(recording: Recording) -> None:
    dead = Entry(900, 1, 11, NOW_MS, 10, None, None, 50, b"")
    recording.store.noted(ROW, [(COMPLETE, 1, [dead], None)], NOW_MS, 0)
    (row,) = recording.rows()
    assert row["entity"] == "orders/$DeadLetterQueue"
    assert (row["position"], row["sequence_number"]) == (900, ROW << 48 | 11)


class TestKeys:
    def test_the_writer_remembers_them(self, recording: Recording) -> None:
        sent = entries(1, 2)
        recording.store.noted(ROW, [(SEND, 0, sent, messages_of(sent, ["a", None]))], NOW_MS, 0)
        recording.store.noted(ROW, [(DELIVER, 0, list(reversed(sent)), None)], NOW_MS, 0)
        recording.store.noted(ROW + 1, [(DELIVER, 0, sent, None)], NOW_MS, 0)
        keys = [(row["partition_id"], row["op"], row["position"], row["key"]) for row in recording.rows()]
        assert keys == [
            (ROW, "send", 1, "a"),
            (ROW, "send", 2, None),
            (ROW, "deliver", 2, None),
            (ROW, "deliver", 1, "a"),
            (ROW + 1, "deliver", 1, None),
            (ROW + 1, "deliver", 2, None),
        ]

    def test_entries_get_their_own_messages_keys(self, recording: Recording) -> None:
        """Duplicates become no entries, and scheduled ones come last."""
        sent = entries(1, 2, 3)
        first, second, third = messages_of(sent, ["a", "b", "c"])
        recording.store.noted(ROW, [(SEND, 0, [sent[0], sent[2]], [first, None, second, third])], NOW_MS, 0)
        sent[1].state = EntryState.SCHEDULED
        recording.store.noted(ROW, [(SEND, 0, [sent[0], sent[2], sent[1]], [first, second, third])], NOW_MS, 0)
        assert [(row["position"], row["key"]) for row in recording.rows()] == [
            (1, "a"), (3, "c"), (1, "a"), (3, "c"), (2, "b"),
        ]  # fmt: skip

    def test_of_a_publication(self, recording: Recording) -> None:
        published = [Message(b"12", session_id="s"), None, Message(b"1", partition_key="p")]
        recording.store.noted(ROW, [(SEND, 0, range(40, 43), published)], NOW_MS, 0)
        found = [(row["position"], row["key"], row["size_bytes"]) for row in recording.rows()]
        assert found == [(40, "s", 2), (42, "p", 1)]

    @pytest.mark.parametrize("key", ["with\0nul", "\ud800", "ü" * 200, "x" * 500])
    def test_strange_ones(self, recording: Recording, key: str) -> None:
        sent = entries(1, 2)
        recording.store.noted(ROW, [(SEND, 0, sent, messages_of(sent, [key, "after"]))], NOW_MS, 0)
        strange, after = recording.rows()
        assert after["key"] == "after"
        assert len(str(strange["key"])) <= KEY_MAX
        if "\0" not in key:
            assert strange["slot"] == slot_for_key(key)

    def test_memory_of_them_is_bounded(self) -> None:
        recording, keys = Recording(), Keys(most=10)
        for number in range(100):
            sent = entries(number)
            recording.store.noted(ROW, [(SEND, 0, sent, messages_of(sent, [f"k{number}"]))], NOW_MS, 0)
        recording.store.noted(ROW, [(DELIVER, 0, entries(*range(100)), None)], NOW_MS, 0)
        recording.flush()
        found = [
            list(keys.of(batch, batch.columns[: batch.size].tolist())) for batch in recording.reader.take().batches
        ]
        assert [key for batch in found[:-1] for key in batch] == [f"k{number}" for number in range(100)]
        remembered = [key for key in found[-1] if key is not None]
        assert 10 <= len(remembered) <= 22
        assert remembered == [f"k{number}" for number in range(100 - len(remembered), 100)]


class TestRefusals:
    def test_a_full_partition(self, recording: Recording) -> None:
        recording.store.refused(ROW, [(SEND, 0, FULL, [Message(b"12345", partition_key="p")])], NOW_MS)
        (row,) = recording.rows()
        assert (row["op"], row["outcome"], row["key"]) == ("send", "amqp:resource-limit-exceeded", "p")
        assert (row["position"], row["sequence_number"], row["size_bytes"]) == (None, None, 5)

    def test_a_lost_lock(self, recording: Recording) -> None:
        recording.store.refused(ROW, [(COMPLETE, 0, LOCK_LOST, [5, 6])], NOW_MS)
        recording.store.refused(ROW, [(COMPLETE, 1, LOCK_LOST, [5])], NOW_MS)
        found = [(row["op"], row["outcome"], row["position"], row["sequence_number"]) for row in recording.rows()]
        lost = "com.microsoft:message-lock-lost"
        assert found == [
            ("complete", lost, 5, ROW << 48 | 5),
            ("complete", lost, 6, ROW << 48 | 6),
            ("complete", lost, 5, None),
        ]


class TestSampling:
    def test_is_by_message(self) -> None:
        recording = Recording(0.05)
        everything = entries(*range(1, 4001))
        for op in (SEND, DELIVER, COMPLETE):
            for start in range(0, 4000, 50):
                recording.store.noted(ROW, [(op, 0, everything[start : start + 50], None)], NOW_MS, 0)
        rows = recording.rows()
        seen = {op: {row["position"] for row in rows if row["op"] == op} for op in ("send", "deliver", "complete")}
        assert seen["send"] == seen["deliver"] == seen["complete"]
        assert len(rows) == 3 * len(seen["send"])
        assert 0.04 * 4000 < len(seen["send"]) < 0.06 * 4000

    def test_weights_are_what_the_share_really_is(self) -> None:
        for sample in (0.000001, 0.003, 0.01, 0.5, 1.0):
            recording = Recording(sample)
            recording.store.noted(ROW, [(SEND, 0, entries(*range(1 << 16)), None)], NOW_MS, 0)
            assert sum(recording.table()["weight"].to_pylist()) == pytest.approx(1 << 16)

    def test_a_dead_letter_is_sampled_like_the_message_that_it_was(self) -> None:
        recording = Recording(0.1)
        living = entries(*range(500))
        dead = [Entry(9000 - e.pos, 1, e.sequence, NOW_MS, 1, None, None, 10, b"") for e in living]
        recording.store.noted(ROW, [(DEAD_LETTER, 0, living, None), (DELIVER, 1, dead, None)], NOW_MS, 0)
        rows = recording.rows()
        numbers = {op: [row["sequence_number"] for row in rows if row["op"] == op] for op in ("dead_letter", "deliver")}
        assert numbers["dead_letter"] == numbers["deliver"] != []

    def test_periods_of_senders_are_not_met(self) -> None:
        """Keys in turn, so many as one in a hundred messages is sampled: each is seen."""
        for keys in (2, 10, 16, 50, 100, 128):
            recording = Recording(0.01)
            recording.store.noted(ROW, [(SEND, 0, entries(*range(100 * keys * 3)), None)], NOW_MS, 0)
            seen = {position % keys for position in recording.table()["position"].to_pylist()}
            assert len(seen) > 0.8 * keys

    def test_small_partitions_do_not_all_choose_the_same(self) -> None:
        recording = Recording(0.01)
        for row in range(500):
            recording.store.noted(row, [(SEND, 0, entries(*range(1, 11)), None)], NOW_MS, 0)
        assert 20 < len(recording.rows()) < 100


def test_names_are_told_once_and_to_each_writer() -> None:
    recording = Recording()
    recording.store.noted(ROW, [(SEND, 0, entries(1), None)], NOW_MS, 0)
    recording.rows()
    recording.store.noted(ROW, [(SEND, 0, entries(2), None)], NOW_MS, 0)
    chunk, rows = recording.recorder.take()
    assert rows == 1
    assert b"orders" not in chunk
    recording.reader = Reader()
    recording.reader.read(recording.recorder.names()[LENGTH.size :])
    recording.reader.read(chunk[LENGTH.size :])
    assert [row["entity"] for row in recording.rows()] == ["orders"]


def test_every_operation_has_a_name() -> None:
    assert set(OPS) == {
        "send", "deliver", "complete", "abandon", "release", "dead_letter", "defer", "expire", "lock_expired", "renew",
        "purge", "forward", "delete", "commit", "use", "move",
    }  # fmt: skip
