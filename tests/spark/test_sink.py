"""Writing without Spark: options, columns, what messages become, what rows are called, and what tasks report."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from partibus.amqp.codec.types import Described, Int, Symbol, Timestamp, UByte
from partibus.amqp.section_encoding import encode_application_properties
from partibus.amqp.sections import split_sections
from partibus.client.errors import AccessDenied, Busy, ConnectionLost
from partibus.client.extensions.sinks import Stored
from partibus.client.messages import IncomingMessage
from partibus.spark import writer
from partibus.spark.composites import read_list, read_map
from partibus.spark.errors import OptionError, WriteError
from partibus.spark.properties import text_of, type_of
from partibus.spark.sink_encoding import encode_batch
from partibus.spark.sink_options import SINK_OPTIONS, KeyOrder, Naming, SinkOptions
from partibus.spark.sink_rows import Namer, sink_key
from partibus.spark.sink_values import SINK_COLUMNS, check_columns, encoded_value, naming_of
from partibus.spark.writer import Report, committed, write_rows

CONNECTION = "Endpoint=sb://localhost;SharedAccessKeyName=name;SharedAccessKey=secret"
GIVEN = {"connection": CONNECTION, "entity": "orders"}
MAP = pa.map_(pa.string(), pa.string())
NOW_MS = 1_750_000_000_000
DAY_MS = 86_400_000


def options(**more: str) -> SinkOptions:
    return SinkOptions.parse(GIVEN | more)


def table(**columns: Any) -> pa.RecordBatch:
    count = max(len(column) for column in columns.values())
    return pa.RecordBatch.from_pydict({"body": pa.array([b""] * count, pa.binary())} | columns)


def rows_of(partition: int, *positions: int, entity: str = "7-1") -> dict[str, pa.Array]:
    return {
        "entity_id": pa.array([entity] * len(positions)),
        "partition_id": pa.array([partition] * len(positions), pa.int32()),
        "position": pa.array(positions, pa.int64()),
    }


# Options ------------------------------------------------------------------------------------------------------------


def test_defaults_of_the_table_are_those_of_the_values() -> None:
    assert options() == SinkOptions(CONNECTION, "orders")


def test_key_is_not_shown() -> None:
    assert "secret" not in repr(options())


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"entity": " "}, "option 'entity' is missing"),
        ({"entity": "topic/Subscriptions/one"}, "no client can send"),
        ({"entity": "q/$DeadLetterQueue"}, "no client can send"),
        ({"namig": "ids"}, "did you mean 'naming'"),
        ({"path": "orders"}, "option(\"entity\", 'orders')"),
        ({"naming": "hope"}, "'auto' or 'ids' or 'positions' or 'none'"),
        ({"naming": "none", "idColumn": "id"}, "leave one of them out"),
        ({"keyOrder": "maybe"}, "'warn' or 'strict' or 'ignore'"),
        ({"batchBytes": "12"}, "between 4,096 and"),
        ({"retryTimeoutMs": "soon"}, "not a whole number"),
        ({"connection": "Endpoint="}, "option 'connection'"),
    ],
)
def test_wrong_option_is_refused_with_the_way_out(more: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError) as refused:
        options(**more)
    assert words in str(refused.value)
    assert "secret" not in str(refused.value)


def test_every_option_has_help() -> None:
    assert all(option.help for option in SINK_OPTIONS)


# Columns ------------------------------------------------------------------------------------------------------------


def test_table_that_was_read_can_be_written() -> None:
    from partibus.spark.schema import TYPE_OF

    check_columns(TYPE_OF, options(keyOrder="strict"))
    assert naming_of(TYPE_OF, options()) is Naming.IDS


@pytest.mark.parametrize(
    ("columns", "more", "words"),
    [
        ({"id": "bigint"}, {}, "no column 'body'"),
        ({"body": "bigint"}, {}, "cast it, col('body').cast('binary')"),
        ({"body": "string", "sesion_id": "string"}, {}, "did you mean 'session_id'"),
        ({"body": "string", "carrier": "string"}, {}, "propertyColumns"),
        ({"body": "string", "carrier": "array<int>"}, {"propertyColumns": "carrier"}, "it must be string or"),
        ({"body": "string"}, {"propertyColumns": "carrier"}, "names 'carrier'"),
        ({"body": "string"}, {"idColumn": "id"}, "the table has: body"),
        ({"body": "string", "id": "double"}, {"idColumn": "id"}, "column 'id' is double"),
        ({"body": "string"}, {"naming": "ids"}, "keep the source's columns"),
        ({"body": "string"}, {"naming": "positions"}, "keep the source's columns"),
        ({"body": "string"}, {"keyOrder": "strict"}, "the order of rows is unknown"),
    ],
)
def test_table_that_cannot_be_written_is_refused(columns: dict[str, str], more: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError) as refused:
        check_columns(columns, options(**more))
    assert words in str(refused.value)


def test_rows_without_a_name_have_none() -> None:
    assert naming_of({"body": "string"}, options()) is Naming.NONE
    assert naming_of({"body": "string", "id": "string"}, options(idColumn="id")) is Naming.IDS


# Messages -----------------------------------------------------------------------------------------------------------


def encoded(batch: pa.RecordBatch, ids: Sequence[str] | None = None, properties: Sequence[str] = ()) -> list[Any]:
    return [IncomingMessage(payload) for payload in encode_batch(batch, ids, properties, NOW_MS)]


@pytest.mark.row("D5")
def test_columns_become_the_parts_of_a_message() -> None:
    long = "l" * 300
    at = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    batch = table(
        body=pa.array([b"one", long.encode(), None]),
        message_id=["m", None, ""],
        session_id=["s", None, long],
        partition_key=["k", None, None],
        subject=["label", long, None],
        correlation_id=["c", None, None],
        to=["t", None, None],
        reply_to=["r", None, None],
        reply_to_session_id=["rs", None, None],
        content_type=["text/plain", None, None],
        content_encoding=["gzip", None, None],
        time_to_live_ms=pa.array([1_500, None, 1 << 40], pa.int64()),
        scheduled_enqueue_time=pa.array([at, None, None], pa.timestamp("us", "UTC")),
    )
    first, second, third = encoded(batch)
    assert (first.body, second.body, third.body) == (b"one", long.encode(), b"")
    assert (first.message_id, second.message_id, third.message_id) == ("m", None, "")
    assert (first.session_id, second.session_id, third.session_id) == ("s", None, long)
    assert (first.partition_key, second.partition_key) == ("k", None)
    assert (first.subject, second.subject, first.correlation_id, first.to, first.reply_to) == (
        "label", long, "c", "t", "r",
    )  # fmt: skip
    assert first._properties[12] == "rs"
    assert first.content_type == Symbol("text/plain")
    assert first._properties[7] == Symbol("gzip")
    assert (first.header.ttl, second.header.ttl, third.header.ttl) == (1_500, None, 0xFFFFFFFF)
    assert first.header.durable
    assert (first.scheduled_ms, second.scheduled_ms) == (int(at.timestamp() * 1000), None)
    assert second.annotations == {}


def test_text_is_a_body_too() -> None:
    (message,) = encoded(table(body=["grüße"]))
    assert message.body == "grüße".encode()


def test_bodies_of_other_kinds_come_back_as_they_were_read() -> None:
    value, sequence = b"\xa1\x01x", b"\xc0\x03\x01\x54\x05"
    batch = table(body=pa.array([value, sequence, b"d", b"n"]), body_type=["value", "sequence", "data", None])
    first, second, third, fourth = encoded(batch)
    assert (first.body, second.body, third.body, fourth.body) == ("x", [5], b"d", b"n")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"body_type": ["strange"]}, "'data', 'value' or 'sequence'"),
        ({"body": pa.array([b"\xff\xff"]), "body_type": ["value"]}, "no encoded AMQP value"),
        ({"time_to_live_ms": [-5]}, "it must be 0 or more"),
    ],
)
def test_value_that_no_message_has_is_refused(columns: dict[str, Any], words: str) -> None:
    with pytest.raises(WriteError) as refused:
        encoded(table(**columns))
    assert words in str(refused.value)


def test_message_ids_are_given_to_those_that_have_none() -> None:
    assert [one.message_id for one in encoded(table(message_id=["m", None]), ["a", "b"])] == ["m", "b"]
    assert [one.message_id for one in encoded(table(body=["", ""]), ["a", "b"])] == ["a", "b"]


VALUES: list[object] = [
    "text", True, False, 5, -(1 << 40), 1.5, b"\x00\xff", UUID(int=7), Symbol("s"), UByte(3), Int(-4), Timestamp(1_234),
    [1, "two"], {"a": 1}, None, Described(Symbol("com.microsoft:timespan"), 5),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_typed_property_comes_back_as_it_was_read(value: object) -> None:
    section = encode_application_properties({"name": value})
    found = read_map(encode_application_properties({"name": 0})[:3] + section[3:])["name"]
    text, type_ = text_of(found), type_of(found)
    (message,) = encoded(
        table(
            application_properties=pa.array([[("name", text)]], MAP),
            application_property_types=pa.array([[("name", type_)]], MAP),
        )
    )
    again = message.application_properties["name"]
    assert again == value
    assert type(again) is type(value)


def test_properties_of_maps_and_columns_go_together() -> None:
    batch = table(
        application_properties=pa.array([[("a", "1"), ("b", None)], None, []], MAP),
        delay=pa.array([12, None, 3], pa.int32()),
        carrier=["UA", "AA", None],
    )
    found = [one.application_properties for one in encoded(batch, None, ("delay", "carrier"))]
    assert found == [{"a": "1", "b": None, "delay": 12, "carrier": "UA"}, {"carrier": "AA"}, {"delay": 3}]
    assert type(found[0]["delay"]) is Int


def test_slice_of_a_batch_has_its_own_properties() -> None:
    batch = table(application_properties=pa.array([[("a", "1")], [("b", "2")], [("c", "3")]], MAP)).slice(1, 2)
    assert [one.application_properties for one in encoded(batch)] == [{"b": "2"}, {"c": "3"}]


def test_many_properties_take_the_long_form() -> None:
    pairs = [(f"name-{number}", "v" * 20) for number in range(200)]
    (message,) = encoded(table(application_properties=pa.array([pairs], MAP)))
    assert message.application_properties == dict(pairs)


def test_property_of_no_type_names_itself() -> None:
    with pytest.raises(WriteError, match="application property 'delay' is 'soon', no int"):
        encoded_value("delay", "soon", "int")
    with pytest.raises(WriteError, match="has type 'strange'"):
        encoded_value("delay", "soon", "strange")


# Names --------------------------------------------------------------------------------------------------------------


def ids_of(batch: pa.RecordBatch, **more: str) -> list[bytes]:
    found = Namer(options(**more), Naming.IDS, 5).names(batch).ids
    assert found is not None
    return found


def test_id_is_the_same_wherever_the_row_is() -> None:
    alone = ids_of(table(**rows_of(3, 17)))
    among = ids_of(table(**rows_of(3, 5, 17, 19)))
    assert alone[0] == among[1]


def test_ids_differ_by_entity_partition_and_position() -> None:
    places = [("7-1", 3, 17), ("7-1", 3, 18), ("7-1", 4, 17), ("8-1", 3, 17), ("7-1", 3, 17 + (1 << 33))]
    found = {ids_of(table(**rows_of(pid, pos, entity=entity)))[0] for entity, pid, pos in places}
    assert len(found) == len(places)
    mixed = table(
        entity_id=[entity for entity, _, _ in places],
        partition_id=[pid for _, pid, _ in places],
        position=[pos for _, _, pos in places],
    )
    assert set(ids_of(mixed)) == found


def test_neighbours_go_to_one_place_and_blocks_everywhere() -> None:
    places = [row_id[:2] for row_id in ids_of(table(**rows_of(0, *range(256 * 64))))]
    assert len(set(places)) == 64
    partitions = {int.from_bytes(place) * 16 >> 16 for place in places}
    assert len(partitions) == 16


def test_names_make_message_ids() -> None:
    assert Namer(options(), Naming.IDS, 5).names(table(**rows_of(3, 17))).message_ids == ["7-1/3/17"]
    by_column = Namer(options(idColumn="id"), Naming.IDS, 5)
    assert by_column.names(table(id=["a", "b" * 200])).message_ids == [
        "a",
        ids_of(table(id=["b" * 200]), idColumn="id")[0].hex(),
    ]
    assert Namer(options(idColumn="id"), Naming.IDS, 5).names(table(id=[5])).message_ids == ["5"]


@pytest.mark.parametrize(
    ("batches", "more"),
    [
        ([table(**rows_of(3, 17, 17))], {}),
        ([table(**rows_of(3, 17)), table(**rows_of(3, 17))], {}),
        ([table(id=["a", "b", "a"])], {"idColumn": "id"}),
    ],
    ids=["beside each other", "in two batches", "apart"],
)
def test_rows_of_one_name_are_refused(batches: list[pa.RecordBatch], more: dict[str, str]) -> None:
    """One of them would be dropped: an explode, most often."""
    namer = Namer(options(**more), Naming.IDS, 5)
    for batch in batches[:-1]:
        namer.names(batch)
    with pytest.raises(WriteError, match="two rows have the same name"):
        namer.names(batches[-1])


@pytest.mark.parametrize("name", ["entity_id", "partition_id", "position"])
def test_row_without_its_address_is_refused(name: str) -> None:
    columns = rows_of(3, 17)
    columns[name] = pa.nulls(1, columns[name].type)
    with pytest.raises(WriteError, match=f"column '{name}' is null in 1 rows"):
        Namer(options(), Naming.IDS, 5).names(table(**columns))


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        ([rows_of(3, 5, 4)], "do not ascend"),
        ([rows_of(3, 5, 5)], "do not ascend"),
        ([rows_of(3, 5), rows_of(3, 5)], "do not ascend"),
        ([rows_of(3, 5), rows_of(4, 6)], "several source partitions"),
        ([rows_of(3, 5), rows_of(3, 6, entity="8-1")], "several source partitions"),
    ],
)
@pytest.mark.parametrize("more", [{"naming": "positions"}, {"keyOrder": "strict"}], ids=["positions", "strict"])
def test_rows_out_of_order_are_refused_where_order_is_needed(
    batches: list[dict[str, Any]], words: str, more: dict[str, str]
) -> None:
    found = options(**more)
    namer = Namer(found, Naming.POSITIONS if found.naming is Naming.POSITIONS else Naming.IDS, 5)
    for columns in batches[:-1]:
        namer.names(table(**columns))
    with pytest.raises(WriteError) as refused:
        namer.names(table(**batches[-1]))
    assert words in str(refused.value)


def test_mark_is_of_one_sink_and_source() -> None:
    keys = set()
    for sink, partition in ((5, 3), (5, 4), (6, 3)):
        names = Namer(options(naming="positions"), Naming.POSITIONS, sink).names(table(**rows_of(partition, 5, 9)))
        assert names.positions == [5, 9]
        assert names.source is not None
        keys.add(names.source)
    assert len(keys) == 3
    assert all(-(1 << 63) < key < 0 for key in keys)


def test_sinks_of_different_kinds_have_different_keys() -> None:
    assert sink_key("batch", "x") != sink_key("stream", "x")
    assert 0 < sink_key("batch", "x") < 1 << 63


# Tasks --------------------------------------------------------------------------------------------------------------


class FakeStore:
    """Takes rows, or fails."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.commits: list[tuple[int, int]] = []
        self.error: Exception | None = None
        self.closed = 0

    def put(self, messages: Sequence[bytes], **names: Any) -> Stored:
        if self.error is not None:
            raise self.error
        self.calls.append({"messages": messages, **names})
        return Stored(len(messages), 0)

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def commit(self, sink: int, batch: int) -> None:
        if self.error is not None:
            raise self.error
        self.commits.append((sink, batch))

    def close(self) -> None:
        self.closed += 1

    def open(self, connection: str, entity: str, within_s: float, request_bytes: int) -> FakeStore:
        return self


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


def test_task_stores_its_rows_and_says_so(store: FakeStore) -> None:
    batches = [table(**rows_of(3, 1, 2)), table(**rows_of(3)), table(**rows_of(3, 3))]
    report = write_rows(batches, options(), Naming.IDS, 5, store.open, 0)
    assert (report.rows, report.duplicates, report.sink) == (3, 0, 5)
    assert [len(call["ids"]) for call in store.calls] == [2, 1]


def test_client_is_kept_from_task_to_task_and_closed_after_a_failure(store: FakeStore) -> None:
    opened = []

    def open_one(connection: str, entity: str, within_s: float, request_bytes: int) -> FakeStore:
        opened.append((entity, within_s, request_bytes))
        return store

    for _ in range(3):
        write_rows([table(id=["a"])], options(idColumn="id"), Naming.IDS, 5, open_one, 0)
    assert len(opened) == 1
    store.error = ConnectionLost("gone")
    with pytest.raises(WriteError, match=r"rows 0 to 1 of a Spark partition to 'orders' at sb://localhost.*gone"):
        write_rows([table(id=["a"])], options(idColumn="id"), Naming.IDS, 5, open_one, 0)
    assert store.closed == 1


def test_refusal_says_what_to_do(store: FakeStore) -> None:
    store.error = AccessDenied("no right")
    with pytest.raises(WriteError, match="the Send right"):
        write_rows([table(id=["a"])], options(idColumn="id"), Naming.IDS, 5, store.open, 0)


def test_commit_is_told_and_its_failure_changes_nothing(store: FakeStore, caplog: pytest.LogCaptureFixture) -> None:
    reports = [Report(5, 1, 0, None, b"")]
    committed(reports, options(), Naming.IDS, 7, store.open)
    assert store.commits == [(5, 7)]
    store.error = Busy("busy")
    with caplog.at_level(logging.WARNING):
        committed(reports, options(), Naming.IDS, 8, store.open)
    assert "kept longer than needed" in caplog.text
    committed([], options(), Naming.IDS, 9, store.open)
    assert store.commits == [(5, 7)]


def test_key_that_two_tasks_fed_is_warned_of(store: FakeStore, caplog: pytest.LogCaptureFixture) -> None:
    def task(order: KeyOrder, *keys: str | None) -> Report:
        batch = table(session_id=pa.array(keys, pa.string()), id=[str(number) for number in range(len(keys))])
        return write_rows([batch], options(idColumn="id", keyOrder=order.value), Naming.IDS, 5, store.open, 0)

    with caplog.at_level(logging.WARNING):
        committed(
            [task(KeyOrder.WARN, "a", None), task(KeyOrder.WARN, "b", None)], options(), Naming.NONE, 1, store.open
        )
        committed([task(KeyOrder.IGNORE, "a"), task(KeyOrder.IGNORE, "a")], options(), Naming.NONE, 1, store.open)
        assert not caplog.records
        committed([task(KeyOrder.WARN, "a", "b"), task(KeyOrder.WARN, "b", "c")], options(), Naming.NONE, 1, store.open)
    assert "1 keys of messages" in caplog.text


@pytest.mark.parametrize(("naming", "words"), [(Naming.POSITIONS, "dropped"), (Naming.IDS, "out of order")])
def test_source_partition_that_fed_two_tasks_fails_the_batch(store: FakeStore, naming: Naming, words: str) -> None:
    reports = [Report(5, 1, 0, b"source", None), Report(5, 1, 0, b"source", None)]
    with pytest.raises(WriteError, match=words):
        committed(reports, options(), naming, 1, store.open)


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(WriteError, match="two columns are named 'body'"):
        writer.asked_columns([("body", "string"), ("body", "binary")])


def test_columns_of_a_write_are_said_to_be_what_a_read_gives() -> None:
    from partibus.spark.schema import TYPE_OF

    for column in SINK_COLUMNS:
        assert TYPE_OF[column.name] in column.types


def test_options_and_columns_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
    _, _, chapter = page.partition("# Writing to a queue or topic")
    for option in SINK_OPTIONS:
        default = f"{option.default:,}" if isinstance(option.default, int) else option.default or "none"
        assert f"| `{option.name}` | {default} | {option.help} |" in chapter
    for column in SINK_COLUMNS:
        assert f"| `{column.name}` |" in chapter
        assert f"| {column.doc} |" in chapter


def test_time_to_live_that_no_header_holds_is_kept_by_a_copy() -> None:
    times_ms = [90 * DAY_MS, 1_000, None, (1 << 63) - 1, 0xFFFFFFFF]
    payloads = encode_batch(table(time_to_live_ms=times_ms), ["a", "b", "c", "d", "e"], (), NOW_MS)
    spans = []
    for payload in payloads:
        fields = read_list(split_sections(payload).properties)
        expiry, creation = (fields[8], fields[9]) if len(fields) > 9 else (None, None)
        spans.append((creation, None if expiry is None else expiry - creation))
    last_ms = 253_402_300_799_999
    nothing = (None, None)
    assert spans == [(NOW_MS, 90 * DAY_MS), nothing, nothing, (NOW_MS, last_ms - NOW_MS), nothing]
    assert [IncomingMessage(payload).message_id for payload in payloads] == ["a", "b", "c", "d", "e"]
