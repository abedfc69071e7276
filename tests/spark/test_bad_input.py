"""Mistakes of users: an error names the option and the way out, before any task where that can be; and no key is
shown, wherever it was put by mistake."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from partibus.amqp.codec.encoder import encode
from partibus.client.extensions.ranges import open_ranges
from partibus.spark.errors import OptionError, WriteError
from partibus.spark.json_bodies import check_value, decode_json
from partibus.spark.options import Options
from partibus.spark.sink_encoding import encode_batch
from partibus.spark.sink_options import SinkOptions
from partibus.spark.sink_values import encoded_value
from partibus.testing.broker_process import BrokerProcess

KEY = "c2VjcmV0IG9mIG91cnM="
CONNECTION = f"Endpoint=sb://localhost;SharedAccessKeyName=all;SharedAccessKey={KEY}"
TOKEN = f"SharedAccessSignature sr=x&sig={KEY}&se=1&skn=all"
HERE = {"connection": CONNECTION, "entity": "orders"}
PROPERTIES = pa.map_(pa.string(), pa.string())


def refusal(kind: type[Options] | type[SinkOptions], given: dict[str, str]) -> str:
    with pytest.raises(OptionError) as caught:
        kind.parse(given)
    assert KEY not in str(caught.value)
    return str(caught.value)


# Options ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Options, SinkOptions])
@pytest.mark.parametrize("name", ["entity", "path", "endpoint"])
@pytest.mark.parametrize("secret", [CONNECTION, TOKEN, f"SharedAccessKey = {KEY}"])
def test_key_in_the_wrong_place_is_not_shown(kind: type[Options] | type[SinkOptions], name: str, secret: str) -> None:
    assert "which is not shown here" in refusal(kind, {"connection": CONNECTION, name: secret})


@pytest.mark.parametrize("kind", [Options, SinkOptions])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"connection": f"{CONNECTION};EntityPath=other", "entity": "orders"}, "is of 'other' (EntityPath)"),
        (
            {"endpoint": "sb://h", "keyName": "all", "key": f"{KEY};EntityPath=x", "entity": "q"},
            "'key' has a semicolon",
        ),
        ({"keyName": "all", "key": KEY, "entity": "q"}, "option 'keyName' goes with 'endpoint'"),
        (HERE | {"conection": CONNECTION}, "did you mean 'connection'?"),
    ],
)
def test_connection_that_does_not_fit(
    kind: type[Options] | type[SinkOptions], given: dict[str, str], words: str
) -> None:
    assert words in refusal(kind, given)


@pytest.mark.parametrize("kind", [Options, SinkOptions])
@pytest.mark.parametrize("given", [{}, {"entity": "Orders"}])
def test_connection_string_of_one_entity_says_which(
    kind: type[Options] | type[SinkOptions], given: dict[str, str]
) -> None:
    options = kind.parse({"connection": f"{CONNECTION};EntityPath=orders"} | given)
    assert options.entity.lower() == "orders"


def test_subscription_of_the_topic_that_the_connection_string_names() -> None:
    given = {"connection": f"{CONNECTION};EntityPath=news", "subscription": "all"}
    assert Options.parse(given).entity == Options.parse(given | {"entity": "news"}).entity == "news/Subscriptions/all"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"cursor": "c" * 129}, "1 to 128 printable characters"),
        ({"cursor": "a\x00b"}, "1 to 128 printable characters"),
        ({"startingPositions": '{"0": ' + "9" * 5_000 + "}"}, "'startingPositions' is no JSON"),
        ({"startingPositions": '{"a":' * 3_000}, "'startingPositions' is no JSON"),
        ({"startingPositions": '{"0": 5}', "endingPositions": '{"0": 4}'}, "'endingPositions' is 4 for partition 0"),
        ({"bodyFormat": "json", "bodySchema": "id lng"}, "a type should stand where 'lng' is; did you mean 'long'?"),
        ({"bodyFormat": "json", "bodySchema": "id"}, "a type should stand where the end is"),
        ({"bodyFormat": "json", "bodySchema": "id long, ID int"}, "names 'ID' twice"),
        ({"bodyFormat": "json", "bodySchema": "a struct<b int, b int>"}, "names 'b' twice"),
        ({"bodyFormat": "json", "bodySchema": "id long>, x struct<a: int"}, "should stand where '>' is"),
        ({"bodyFormat": "json", "bodySchema": "a " + "array<" * 5_000}, "a type should stand where 'array' is"),
        ({"bodyFormat": "json", "bodySchema": "a decimal(x)"}, "a number of digits should stand where 'x' is"),
    ],
)
def test_values_that_only_look_right(given: dict[str, str], words: str) -> None:
    assert words in refusal(Options, HERE | given)


@pytest.mark.parametrize(
    "schema",
    [
        "id long",
        "`a b` string, `c``d`: decimal(10,2)",
        "a array<struct<b: int, c map<string,double>>>, e date",
        "id BIGINT NOT NULL COMMENT 'it''s', at TIMESTAMP_NTZ, struct int",
        *(
            form
            for made in [
                StructType([
                    StructField("id", LongType(), nullable=False),
                    StructField("at", TimestampNTZType(), metadata={"comment": "when"}),
                    StructField("lines", ArrayType(StructType([StructField("sku", StringType(), nullable=False)]))),
                    StructField("prices", MapType(StringType(), DecimalType(10, 2))),
                ])
            ]
            for form in (made.simpleString(), made.json(), "id BIGINT NOT NULL,at TIMESTAMP_NTZ COMMENT 'when'")
        ),
    ],
)  # fmt: skip
def test_schemas_that_spark_writes_are_taken(schema: str) -> None:
    columns = Options.parse(HERE | {"bodyFormat": "json", "bodySchema": schema}).body_schema
    assert Options.parse(HERE | {"bodyFormat": "json", "bodySchema": columns}).body_schema == columns
    assert "null" not in columns.lower()
    assert columns.lower().lstrip("`").startswith(("id", "a"))


@pytest.mark.parametrize("schema", ['{"type": "array"}', '{"type": "struct"}', '{"id": ', "[" * 3])
def test_json_that_is_no_schema_is_refused(schema: str) -> None:
    assert "bodySchema" in refusal(Options, HERE | {"bodyFormat": "json", "bodySchema": schema})


TABLE = {"provider": "partibus", "owner": "ada", "option.entity": "orders", "a.property": "b"}


def test_properties_of_a_catalog_table_are_no_options() -> None:
    given = TABLE | {f"option.{name}": value for name, value in HERE.items()} | HERE
    assert Options.parse(given) == Options.parse(HERE)
    sink = {name: value for name, value in HERE.items() if name in ("connection", "entity")}
    assert SinkOptions.parse(given) == SinkOptions.parse(sink)
    assert "unknown option 'owner'" in refusal(Options, HERE | {"owner": "ada"})


# Bodies and rows ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.date32(), pa.binary(), pa.list_(pa.date32()), pa.map_(pa.string(), pa.int8())])
def test_types_that_json_has_not_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(OptionError, match="take string"):
        check_value(pa.schema([("value", pa.struct([("a", kind)]))]))


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b'{"id": 1', b'{"id": 1} {"id": 2}', b'{"id": "1"}', b'{"id": 99999999999999999999}',
        b'{"name": "\xff\xfe"}', b'{"name": "\\ud800"}', b'{"id": 1, "id": 2}', b'\xef\xbb\xbf{"id": 1}', b"{" * 200,
        '{"id": 1}'.encode("utf-16"),
    ],
)  # fmt: skip
def test_body_that_is_no_such_document_is_null_and_its_neighbours_are_not(body: bytes) -> None:
    kind = pa.struct([("id", pa.int64()), ("name", pa.string())])
    found = decode_json(pa.array([b'{"id": 7}', body, b'{"name": "x"}']), kind)
    assert found.to_pylist() == [{"id": 7, "name": None}, None, {"id": None, "name": "x"}]


def test_deep_documents_do_no_harm() -> None:
    body = b'{"deep": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    assert decode_json(pa.array([body]), pa.struct([("id", pa.int64())])).to_pylist() == [{"id": None}]


def columns(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"body": pa.array([b""])} | columns)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (columns(body_type=["value"]), "0 encoded AMQP values in place of one"),
        (columns(body=pa.array([b"\x40\x40"]), body_type=["value"]), "2 encoded AMQP values in place of one"),
        (columns(body=pa.array([b"\x40"]), body_type=["sequence"]), "and no list"),
        (columns(body=pa.array([b"\xc0\x05\x01\xff"]), body_type=["value"]), "no encoded AMQP value"),
        (columns(content_type=["text/pläin"]), "column 'content_type' is 'text/pläin'; it must be ASCII"),
        (columns(application_properties=pa.array([[("a", "1")]], PROPERTIES), a=["2"]), "take it out of one of them"),
    ],
)
def test_row_that_would_make_a_message_nobody_can_read_is_refused(rows: pa.RecordBatch, words: str) -> None:
    with pytest.raises(WriteError, match=words):
        encode_batch(rows, None, [name for name in rows.schema.names if name == "a"], 0)


@pytest.mark.parametrize("data", [b"", b"\x45\x45", b"\xd1", b"\x40", b"\xc0\x02\x01\xff"])
@pytest.mark.parametrize("type_", ["list", "map", "array", "made-up:list"])
def test_compound_property_is_one_or_is_refused(type_: str, data: bytes) -> None:
    with pytest.raises(WriteError, match="application property 'p'"):
        encoded_value("p", base64.b64encode(data).decode(), type_)


def test_compound_properties_come_back() -> None:
    text = base64.b64encode(encode([1, "two"])).decode()
    assert encoded_value("p", text, "list") == encode([1, "two"])
    assert encoded_value("p", text, "made-up:list") == b"\x00\xa3\x07made-up" + encode([1, "two"])


def test_row_of_nothing_but_nulls_is_an_empty_message() -> None:
    names = ("message_id", "session_id", "partition_key", "subject", "content_type", "body_type")
    nulls = {name: pa.nulls(2, pa.string()) for name in names}
    rows = pa.RecordBatch.from_pydict(
        {"body": pa.nulls(2, pa.binary()), "application_properties": pa.nulls(2, PROPERTIES), **nulls}
    )
    assert len(set(encode_batch(rows, None, (), 0))) == 1


# Inside Spark, at a broker ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        broker.create_queue("orders")
        yield broker


@pytest.mark.parametrize("ending", ["$DeadLetterQueue", "$Transfer/$DeadLetterQueue"])
def test_sub_queue_that_never_had_a_message_is_empty_however_often_it_is_read(
    broker: BrokerProcess, ending: str
) -> None:
    client = open_ranges(broker.connection_string, f"orders/{ending}")
    try:
        for _ in range(2):
            for one in client.map().partitions:
                frames = list(client.read(one.partition_id, one.first_pos, one.end_pos))
                assert sum(frame.count for frame in frames) == one.messages == 0
    finally:
        client.close()


@pytest.mark.timeout(600)
def test_what_is_wrong_is_said_before_any_task_without_the_key(spark: SparkSession, broker: BrokerProcess) -> None:
    key = "SAS_KEY_VALUE"
    assert key in broker.connection_string
    table = spark.read.format("partibus").option("connection", broker.connection_string)
    rows = spark.range(2).select(sf.lit("x").alias("body"), "id").write.format("partibus").mode("append")
    rows = rows.option("connection", broker.connection_string)
    for act, words in (
        (lambda: table.load(broker.connection_string), "which is not shown here"),
        (lambda: table.option("entity", "orders").schema("body binary, body binary").load().count(), "'body' twice"),
        (lambda: rows.option("idColumn", "id").save(broker.connection_string), "which is not shown here"),
        (lambda: rows.option("idColumn", "id").option("entity", "nowhere").save(), "option 'entity' must name"),
    ):
        with pytest.raises(PySparkException) as caught:
            act()
        assert words in str(caught.value)
        assert key not in str(caught.value)


@pytest.mark.row("D2")
@pytest.mark.timeout(600)
def test_checkpoint_of_another_entity_or_of_one_made_again_is_refused_and_holds_no_key(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    def run(entity: str) -> None:
        given = {"connection": broker.connection_string, "entity": entity, "cursor": "reader"}
        query = (
            spark.readStream.format("partibus").options(**given).load()
            .writeStream.format("noop").option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination(60)

    broker.create_queue("made", EnablePartitioning=True)
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender("made") as sender,
    ):
        sender.send_messages(ServiceBusMessage(b"x"))
    run("made")
    with pytest.raises(PySparkException, match="begin with a new checkpointLocation"):
        run("orders")
    broker.delete_queue("made")
    with pytest.raises(PySparkException, match="option 'entity' must name what exists"):
        run("made")
    broker.create_queue("made")  # with another number of partitions
    with pytest.raises(PySparkException, match="deleted and made again"):
        run("made")
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any(file.parent.name == "offsets" for file in files)
    assert not any(b"SAS_KEY_VALUE" in file.read_bytes() for file in files)


def test_documents_that_lines_do_not_end_at_shift_no_neighbour() -> None:
    """Two documents in one body, and one in two bodies: as many documents as bodies."""
    kind = pa.struct([("a", pa.int64())])
    bodies = [b'{"a": 1} {"a": 666}', b'{"a": 5}', b'{"x":', b'{"b": 1}}']
    assert decode_json(pa.array(bodies), kind).to_pylist() == [None, {"a": 5}, None, None]
