"""The data source inside Spark, over a simulated namespace."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from partibus.amqp.codec.types import Float, Symbol, UInt
from partibus.spark.schema import DDL, TYPE_OF
from tests.spark.simulated import ENDPOINT, KEY, SimulatedNamespace, SimulatedSource, connection_string, message


def load(spark: SparkSession, namespace: SimulatedNamespace, entity: str = "q", **options: str) -> DataFrame:
    given = {"connection": namespace.connection, "entity": entity, **options}
    return spark.read.format("partibus_simulated").options(**given).load()


def error_of(act: Callable[[], object]) -> str:
    with pytest.raises(PySparkException) as caught:
        act()
    assert KEY not in str(caught.value)
    return str(caught.value)


@pytest.mark.row("D1")
def test_each_of_sixteen_partitions_is_read_by_a_task_of_its_own(
    spark: SparkSession, namespace: SimulatedNamespace
) -> None:
    held = {p: {pos: message(pos) for pos in range(3, 3 + p % 5)} for p in range(16)}
    namespace.put("q", held)
    frame = load(spark, namespace)
    assert frame.rdd.getNumPartitions() == 16
    rows = frame.select(sf.spark_partition_id().alias("task"), "partition_id", "position").collect()
    assert {(row.partition_id, row.position) for row in rows} == {(p, pos) for p in held for pos in held[p]}
    assert all(row.task == row.partition_id for row in rows)


def test_schema_is_the_documented_one(spark: SparkSession, namespace: SimulatedNamespace) -> None:
    from pyspark import testing  # imports matplotlib: not in each worker that collects this file

    namespace.put("q", {0: {}})
    schema = load(spark, namespace).schema
    documented = StructType.fromDDL(DDL)
    assert isinstance(documented, StructType)
    testing.assertSchemaEqual(schema, documented)
    assert {field.name: field.dataType.simpleString() for field in schema.fields} == TYPE_OF
    assert to_arrow_schema(schema, timezone="UTC").names == list(TYPE_OF)


def test_queue_with_nothing_in_it_is_an_empty_table(spark: SparkSession, namespace: SimulatedNamespace) -> None:
    namespace.put("q", {p: {} for p in range(4)}, {2: 17})
    assert load(spark, namespace).collect() == []


def test_rows_carry_body_times_and_properties_of_every_type(spark: SparkSession, namespace: SimulatedNamespace) -> None:
    properties: dict[str, object] = {"n": 1, "u": UInt(2), "f": Float(0.5), "b": True, "s": Symbol("x"), "none": None}
    namespace.put("q", {5: {9: message(7, b"\x00\xff", application_properties=properties)}})
    row = (
        load(spark, namespace)
        .withColumn("enqueued_time", sf.date_format("enqueued_time", "yyyy-MM-dd HH:mm:ss.SSS"))
        .select("body", "position", "sequence_number", "enqueued_time", "application_properties")
        .collect()
    )
    assert row == [
        Row(
            body=b"\x00\xff",
            position=9,
            sequence_number=5 << 48 | 7,
            enqueued_time="2013-01-01 00:00:00.130",
            application_properties={"n": "1", "u": "2", "f": "0.5", "b": "true", "s": "x", "none": None},
        )
    ]
    types = load(spark, namespace).select(sf.explode("application_property_types")).collect()
    assert {(row.key, row.value) for row in types} == {
        ("n", "long"), ("u", "uint"), ("f", "float"), ("b", "boolean"), ("s", "symbol"), ("none", "null"),
    }  # fmt: skip


def test_fewer_columns_in_another_order(spark: SparkSession, namespace: SimulatedNamespace) -> None:
    from pyspark import testing  # imports matplotlib: not in each worker that collects this file

    namespace.put("q", {0: {4: message(4, b"four")}})
    reader = spark.read.format("partibus_simulated").options(connection=namespace.connection, entity="q")
    frame = reader.schema("position bigint, body binary").load()
    testing.assertDataFrameEqual(frame, spark.createDataFrame([(4, b"four")], "position bigint, body binary"))


def test_partition_is_split_by_positions_when_asked(spark: SparkSession, namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: {pos: message(pos) for pos in range(10)}, 1: {}})
    frame = load(spark, namespace, messagesPerSparkPartition="4")
    assert frame.rdd.getNumPartitions() == 4
    assert sorted(row.position for row in frame.select("position").collect()) == list(range(10))


def test_small_batches_give_the_same_rows(spark: SparkSession, namespace: SimulatedNamespace) -> None:
    from pyspark import testing  # imports matplotlib: not in each worker that collects this file

    namespace.put("q", {0: {pos: message(pos, b"%d" % pos) for pos in range(25)}})
    testing.assertDataFrameEqual(load(spark, namespace, rowsPerBatch="4"), load(spark, namespace))


def test_dead_letter_queue_is_an_entity_of_its_own(spark: SparkSession, namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: {}})
    namespace.put("q.DeadLetterQueue", {0: {1: message(8, application_properties={"DeadLetterReason": "why"})}})
    rows = load(spark, namespace, "q/$DeadLetterQueue").select("sequence_number", "dead_letter_reason").collect()
    assert rows == [Row(sequence_number=8, dead_letter_reason="why")]


def test_what_arrives_after_the_plan_is_not_in_it(spark: SparkSession, namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: {1: message(1)}})
    frame = load(spark, namespace).select("position")
    assert frame.count() == 1
    namespace.put("q", {0: {1: message(1), 2: message(2)}})
    assert frame.collect() == [Row(position=1)]
    assert load(spark, namespace).count() == 2


def test_what_is_gone_before_the_read_is_missing_and_no_error(
    spark: SparkSession, namespace: SimulatedNamespace
) -> None:
    namespace.put("q", {0: {pos: message(pos) for pos in range(5)}})
    planned = load(spark, namespace).select("position").rdd
    assert planned.getNumPartitions() == 1
    namespace.put("q", {0: {3: message(3)}})
    assert [row.position for row in planned.collect()] == [3]


def test_without_properties_there_are_the_columns_that_need_none(
    spark: SparkSession, namespace: SimulatedNamespace
) -> None:
    namespace.put("q", {0: {4: message(4, b"four", state=1)}})
    frame = load(spark, namespace, includeProperties="false", includeBody="false")
    assert "message_id" not in frame.columns
    assert "body" not in frame.columns
    assert frame.select("position", "state", "entity_id").collect() == [
        Row(position=4, state="deferred", entity_id="entity-1")
    ]


def test_json_bodies_become_a_struct(spark: SparkSession, namespace: SimulatedNamespace) -> None:
    bodies = [b'{"id": 1, "name": "one", "at": "2026-01-31T12:00:00Z"}', b"no document", b'{"id": 2, "more": []}']
    namespace.put("q", {0: {pos: message(pos, body) for pos, body in enumerate(bodies)}})
    frame = load(spark, namespace, bodyFormat="json", bodySchema="id long, name string, at timestamp")
    values = frame.orderBy("position").select("value.id", "value.name", sf.unix_seconds("value.at").alias("at"))
    assert values.collect() == [
        Row(id=1, name="one", at=1_769_860_800), Row(id=None, name=None, at=None), Row(id=2, name=None, at=None),
    ]  # fmt: skip


def test_times_without_a_zone_are_read_from_json(spark: SparkSession, namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: {0: message(0, b'{"at": "2026-01-31T12:00:00", "n": 1}')}})
    frame = load(spark, namespace, bodyFormat="json", bodySchema="struct<at:timestamp_ntz,n:bigint>")
    (row,) = frame.select("value.at", "value.n").collect()
    assert (row.at, row.n) == (datetime(2026, 1, 31, 12), 1)


@pytest.mark.row("D1")
def test_tables_of_the_catalog_read_an_entity(
    spark: SparkSession, namespace: SimulatedNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace.put("q", {0: {pos: message(pos) for pos in range(5)}})
    options = f"'connection' '{namespace.connection}', 'entity' 'q'"
    made = {
        "by_options": f"CREATE TABLE by_options USING partibus_simulated OPTIONS ({options})",
        "by_properties": f"CREATE TABLE by_properties USING partibus_simulated OPTIONS ({options}) "
        "COMMENT 'orders' TBLPROPERTIES ('team' = 'sales')",
        "in_view": f"CREATE TEMPORARY VIEW in_view USING partibus_simulated OPTIONS ({options})",
    }
    try:
        for statement in made.values():
            spark.sql(statement)
        made["by_call"] = ""
        spark.catalog.createTable("by_call", source="partibus_simulated", connection=namespace.connection, entity="q")
        assert spark.sql("SELECT count(*) AS n FROM in_view").collect() == [Row(n=5)]
        for name in ("by_options", "by_properties", "by_call"):
            assert "body" in spark.table(name).columns
            count = spark.sql(f"SELECT count(*) AS n FROM {name} WITH ({options})")
            assert count.collect() == [Row(n=5)]
            assert "PARTIBUS_CONNECTION is not in" in error_of(spark.table(name).count)
            assert namespace.connection not in spark.table(name).schema.json(), "goes into files with the columns"
        # Spark starts planners with this environment, as they have the driver's if it is set before the session.
        monkeypatch.setitem(spark.sparkContext.environment, "PARTIBUS_CONNECTION", namespace.connection)
        spark.dataSource.register(SimulatedSource)
        spark.sql("CREATE TABLE without_key USING partibus_simulated OPTIONS ('entity' 'q')")
        made["without_key"] = ""
        for name in ("by_options", "by_properties", "by_call", "without_key"):
            assert spark.sql(f"SELECT count(*) AS n FROM {name}").collect() == [Row(n=5)]
        latest = spark.sql("SELECT count(*) AS n FROM by_options WITH (startingPositions 'latest')")
        assert latest.collect() == [Row(n=0)]
        stream = spark.readStream.option("failOnDataLoss", "false").table("by_options")
        assert stream.isStreaming
    finally:
        monkeypatch.undo()
        spark.dataSource.register(SimulatedSource)
        for name in made:
            spark.sql(f"DROP {'VIEW' if name == 'in_view' else 'TABLE'} IF EXISTS {name}")


def test_filters_on_partition_and_position_spare_reading(spark: SparkSession, namespace: SimulatedNamespace) -> None:
    namespace.put("q", {p: {pos: message(pos) for pos in range(10)} for p in range(4)})
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(spark, namespace, pushdown="true").where("partition_id in (1, 3) and position >= 7")
        frame = frame.where("sequence_number % 2 = 0")
        assert frame.rdd.getNumPartitions() == 2
        rows = frame.select("partition_id", "position").collect()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert sorted((row.partition_id, row.position) for row in rows) == [(1, 8), (3, 8)]


def test_key_is_in_no_plan(spark: SparkSession, namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: {}})
    execution = load(spark, namespace)._jdf.queryExecution()
    assert KEY not in execution.toString()
    assert KEY not in execution.logical().toJSON()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"connection": ""}, "option 'connection' is missing"),
        ({"entity": ""}, "option 'entity' is missing"),
        ({"entitty": "q"}, "unknown option 'entitty'; did you mean 'entity'?"),
        ({"rowsPerBatch": "0"}, "option 'rowsPerBatch' is 0; it must be between 1 and 100,000"),
        ({"startingPositions": "soon"}, "option 'startingPositions' is 'soon'; it may be earliest, latest, a time"),
    ],
)
def test_wrong_options_fail_in_load(
    spark: SparkSession, namespace: SimulatedNamespace, options: dict[str, str], words: str
) -> None:
    assert words in error_of(lambda: load(spark, namespace, **options))


def test_unknown_column_fails_before_any_task(spark: SparkSession, namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: {}})
    reader = spark.read.format("partibus_simulated").options(connection=namespace.connection, entity="q")
    text = error_of(lambda: reader.schema("messageid string").load().collect())
    assert "column 'messageid', which a queue does not have; did you mean 'message_id'?" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "consume", "cursor": "c"}, "a batch can't have mode 'consume'"),
        ({"failOnDataLoss": "true"}, "browsing beside live consumers promises nothing"),
        ({"startingPositions": '{"0": 9}'}, "has position 9 for partition 0 of 'q', which ends at 0"),
        ({"bodyFormat": "json", "bodySchema": "id interval day"}, "a type should stand where 'interval' is"),
    ],
)
def test_what_a_batch_can_not_do_fails_before_any_task(
    spark: SparkSession, namespace: SimulatedNamespace, options: dict[str, str], words: str
) -> None:
    namespace.put("q", {0: {}})
    assert words in error_of(lambda: load(spark, namespace, **options).collect())


@pytest.mark.parametrize(
    ("connection", "entity", "words"),
    [
        (None, "other", "could not be found.; option 'entity' must name what exists"),
        ("wrong key", "q", "invalid signature.; the key in option 'connection' must be right"),
        ("wrong endpoint", "q", "option 'connection' must name a broker that runs"),
    ],
)
def test_what_the_broker_refuses_fails_in_the_plan(
    spark: SparkSession, namespace: SimulatedNamespace, connection: str | None, entity: str, words: str
) -> None:
    namespace.put("q", {0: {}})
    folder = namespace.folder
    given = {
        None: namespace.connection,
        "wrong key": connection_string(folder, "bm90IHRoZSBrZXk="),
        "wrong endpoint": connection_string(folder / "nowhere"),
    }[connection]
    text = error_of(lambda: load(spark, namespace, entity, connection=given).collect())
    assert words in text
    assert "bm90IHRoZSBrZXk=" not in text
    assert f"cannot read '{entity}' at {ENDPOINT}" in text


def test_entity_deleted_after_the_plan_fails_its_task_with_partition_and_range(
    spark: SparkSession, namespace: SimulatedNamespace
) -> None:
    namespace.put("q", {0: {1: message(1)}})
    planned = load(spark, namespace).rdd
    assert planned.getNumPartitions() == 1
    namespace.delete("q")
    assert "reading partition 0, positions [1, 2) of 'q'" in error_of(planned.collect)
