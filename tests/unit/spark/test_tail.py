"""The last micro-batch of a query: from its checkpoint, and from a listener."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Never, cast

import pytest
from pyspark.sql.streaming.listener import QueryProgressEvent

from partibus.spark.dispositions import Open, complete_dispositions
from partibus.spark.errors import OffsetError, OptionError, PlanError
from partibus.spark.listener import CommitListener
from partibus.spark.options import Options
from partibus.spark.planning import Offset
from partibus.spark.stream import StreamPlanner
from partibus.spark.tail import committed_offsets, complete_tail
from tests.spark.simulated import SimulatedClient, SimulatedNamespace, message
from tests.unit.spark.test_progress import progress

OTHER = '{"topic": {"0": 5}}'
SETTINGS = '{"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}}'


@pytest.fixture
def namespace(tmp_path: Path) -> SimulatedNamespace:
    namespace = SimulatedNamespace(tmp_path)
    namespace.put("q", {0: {pos: message(pos) for pos in range(20)}}, cursors={"report": {0: 2}})
    return namespace


def options(namespace: SimulatedNamespace, **more: str) -> dict[str, str]:
    return {"connection": namespace.connection, "entity": "q", "cursor": "report", **more}


def text(position: int, entity: str = "entity-1") -> str:
    return json.dumps(Offset(entity, 1, {0: position}).to_json())


def checkpoint(folder: Path, offsets: list[str], committed: int) -> Path:
    """Write a checkpoint as Spark does: one file for each micro-batch, the newest planned and not yet committed."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for batch, line in enumerate(offsets):
        (folder / "offsets" / str(batch)).write_text(f"v1\n{SETTINGS}\n{OTHER}\n{line}")
        (folder / "offsets" / f".{batch}.crc").write_bytes(b"crc")
    for batch in range(committed):
        (folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return folder


def test_newest_committed_offsets_count_and_other_sources_do_not(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", [text(position) for position in range(12)], 11)
    assert committed_offsets(str(folder)) == [Offset("entity-1", 1, {0: 10})]
    assert committed_offsets(f"file://{folder}") == [Offset("entity-1", 1, {0: 10})]


@pytest.mark.row("D3")
@pytest.mark.parametrize("source", ["0", "orders_src", "a:b"])
def test_offsets_of_named_sources_count(tmp_path: Path, namespace: SimulatedNamespace, source: str) -> None:
    folder = checkpoint(tmp_path / "c", [text(5), text(9)], 2)
    for batch, position in enumerate((5, 9)):
        lines = ["v2", SETTINGS, f"kafka:{OTHER}", f"{source}:{text(position)}"]
        (folder / "offsets" / str(batch)).write_text("\n".join(lines))
    assert complete_tail(folder, options(namespace, mode="consume"), open_client=SimulatedClient) == {0: 9}
    assert min(namespace.read("q").partitions[0]) == 9


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["v3", SETTINGS, f"orders:{text(5)}"], "in the format 'v3'; this version of partibus reads v1 and v2"),
        (["v1", SETTINGS, OTHER], "no offset of a partibus source"),
        ([], "in the format ''"),
    ],
)
def test_a_checkpoint_without_a_known_offset_is_an_error(
    tmp_path: Path, namespace: SimulatedNamespace, lines: list[str], words: str
) -> None:
    folder = checkpoint(tmp_path / "c", [text(5)], 1)
    (folder / "offsets" / "0").write_text("\n".join(lines))
    with pytest.raises(OffsetError, match=words):
        complete_tail(folder, options(namespace), open_client=SimulatedClient)


def test_nothing_committed_is_nothing_to_complete(tmp_path: Path, namespace: SimulatedNamespace) -> None:
    folder = checkpoint(tmp_path / "c", [text(5)], 0)
    assert complete_tail(folder, options(namespace), open_client=SimulatedClient) == {}
    assert namespace.read("q").cursors == {"report": {0: 2}}


def test_tail_is_completed_as_often_as_one_likes(tmp_path: Path, namespace: SimulatedNamespace) -> None:
    folder = checkpoint(tmp_path / "c", [text(5), text(9), text(12)], 2)
    given = options(namespace, mode="consume")
    for _ in range(2):
        assert complete_tail(folder, given, open_client=SimulatedClient) == {0: 9}
        found = namespace.read("q")
        assert found.cursors == {"report": {0: 9}}
        assert min(found.partitions[0]) == 9
        assert found.epochs == {}


def test_checkpoint_of_another_entity_or_of_none_is_refused(tmp_path: Path, namespace: SimulatedNamespace) -> None:
    other = checkpoint(tmp_path / "c", [text(5, "entity-0")], 1)
    with pytest.raises(OffsetError, match="the checkpoint belongs to the entity entity-0"):
        complete_tail(other, options(namespace), open_client=SimulatedClient)
    with pytest.raises(OffsetError, match="there is no checkpoint at"):
        complete_tail(tmp_path / "nowhere", options(namespace), open_client=SimulatedClient)
    with pytest.raises(OffsetError, match=r"complete_tail\(..., spark=spark\)"):
        complete_tail("s3://bucket/c", options(namespace), open_client=SimulatedClient)
    with pytest.raises(PlanError, match="'nothing' at sb://simulated:5672"):
        complete_tail(other, options(namespace, entity="nothing"), open_client=SimulatedClient)


def test_without_a_cursor_there_is_nothing_to_complete(tmp_path: Path, namespace: SimulatedNamespace) -> None:
    given = {"connection": namespace.connection, "entity": "q"}
    with pytest.raises(OptionError, match="give the 'cursor' that the query has"):
        complete_tail(tmp_path, given, open_client=SimulatedClient)
    with pytest.raises(OptionError, match="give the 'cursor' that the query has"):
        CommitListener(given, open_client=SimulatedClient)


def test_listener_moves_its_cursor_and_no_other(namespace: SimulatedNamespace) -> None:
    listener = CommitListener(options(namespace), open_client=SimulatedClient)
    for offset in (text(7), text(9, "entity-0"), OTHER, "null", "-1", text(4)):
        listener.committed(offset)
    assert namespace.read("q").cursors == {"report": {0: 7}}
    namespace.delete("q")
    listener.committed(text(9))
    listener.close()


def test_tail_of_fates_that_can_not_be_completed_is_an_error(tmp_path: Path, namespace: SimulatedNamespace) -> None:
    def nobody(connection: str, entity: str) -> Never:
        raise ConnectionRefusedError("nobody listens")

    folder = checkpoint(tmp_path / "c", [text(5, "fates of entity-1")], 1)
    with pytest.raises(PlanError, match="nobody listens"):
        complete_dispositions(folder, options(namespace, outageTimeoutMs="0"), open_client=nobody)
    found = checkpoint(tmp_path / "messages", [text(5)], 1)
    with pytest.raises(OffsetError, match="of the messages of 'q'"):
        complete_dispositions(found, options(namespace), open_client=cast("Open", SimulatedClient))


def test_listener_leaves_its_cursor_where_another_query_over_the_entity_is_ahead(namespace: SimulatedNamespace) -> None:
    listener = CommitListener(options(namespace), open_client=SimulatedClient)

    def progressed(cursor: str | None, position: int) -> None:
        given = {"connection": namespace.connection, "entity": "q", "pollTimeoutMs": "0", "failOnDataLoss": "false"}
        checked = Options.parse(given | ({} if cursor is None else {"cursor": cursor}))
        planner = StreamPlanner(checked, SimulatedClient)
        start = planner.initial_offset()
        planner.latest_offset(start, limited=False)
        latest = planner.report_latest()
        listener.onQueryProgress(QueryProgressEvent(progress(1, 1, text(position), json.dumps(latest))))
        planner.stop()

    for cursor, position in (("capture", 18), (None, 19), ("report", 7)):
        progressed(cursor, position)
    listener.onQueryProgress(QueryProgressEvent(progress(1, 1, text(17), None)))
    listener.close()
    assert namespace.read("q").cursors["report"] == {0: 7}
