"""A stream on the driver: offsets, admission, cursors, commits, leases."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from partibus.client.errors import AccessDenied, ConnectionLost
from partibus.client.extensions.ranges import CursorState, DispositionLine, PartitionMap, Start
from partibus.spark.dispositions import Open, read_dispositions
from partibus.spark.errors import DataLossError, OffsetError, PlanError
from partibus.spark.lease import Lease
from partibus.spark.options import Options
from partibus.spark.planning import Split, parse_bound
from partibus.spark.reader import Task
from partibus.spark.stream import StreamPlanner
from tests.spark.simulated import Partition, SimulatedClient, SimulatedNamespace, message


@pytest.fixture
def namespace(tmp_path: Path) -> SimulatedNamespace:
    return SimulatedNamespace(tmp_path)


def held(count: int) -> Partition:
    return {pos: message(pos) for pos in range(count)}


def options(namespace: SimulatedNamespace, **given: Any) -> Options:
    quick = {"poll_timeout_ms": 0, "outage_timeout_ms": 0}
    return Options(namespace.connection, "q", **{"fail_on_data_loss": False, **quick, **given})


def browsing(namespace: SimulatedNamespace, **given: Any) -> StreamPlanner:
    return StreamPlanner(options(namespace, **given), SimulatedClient)


def with_cursor(namespace: SimulatedNamespace, **given: Any) -> StreamPlanner:
    return browsing(namespace, cursor="report", **{"fail_on_data_loss": None, **given})


def offset(*positions: int, entity: str = "entity-1", version: int = 1) -> dict[str, Any]:
    return {
        "entity": entity,
        "mapVersion": version,
        "positions": {f"{partition_id:05}": position for partition_id, position in enumerate(positions)},
    }


class Failing(SimulatedClient):
    """Fails as often as told."""

    failures: list[Exception] = []

    def map(self) -> PartitionMap:
        if self.failures:
            raise self.failures.pop(0)
        return super().map()

    def advance_cursor(
        self, name: str, positions: Mapping[int, int], *, epochs: Mapping[int, int] | None = None
    ) -> dict[int, CursorState]:
        if self.failures:
            raise self.failures.pop(0)
        return super().advance_cursor(name, positions, epochs=epochs)


# -- offsets ---------------------------------------------------------------------------------------------


@pytest.mark.row("D2")
def test_offsets_of_the_same_positions_are_the_same_text(namespace: SimulatedNamespace) -> None:
    """Spark compares text: another order of keys would be a micro-batch without rows, again and again."""
    namespace.put("q", {partition_id: held(3) for partition_id in reversed(range(12))})
    planner = browsing(namespace)
    first = planner.latest_offset(planner.initial_offset(), limited=False)
    assert json.dumps(first) == json.dumps(offset(*[3] * 12))
    shuffled = {**first, "positions": dict(reversed(first["positions"].items()))}
    assert json.dumps(planner.latest_offset(shuffled, limited=False)) == json.dumps(first)
    assert planner.report_latest() == first


def test_stream_begins_where_it_is_told_and_takes_what_is_there(namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: held(9), 1: held(4)})
    planner = browsing(namespace, starting=parse_bound("startingPositions", '{"0": 5, "1": -1}'))
    start = planner.initial_offset()
    assert start == offset(5, 4)
    end = planner.latest_offset(start, limited=False)
    assert end == offset(9, 4)
    assert planner.tasks(start, end) == [Task(Split(0, 5, 9), "entity-1")]
    assert planner.tasks(end, end) == []


@pytest.mark.row("D4")
def test_partition_that_comes_while_the_query_runs_is_read_from_its_beginning(namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: held(2)})
    planner = with_cursor(namespace)
    start = planner.initial_offset()
    namespace.put("q", {0: held(3), 1: held(5)}, version=2, cursors=namespace.read("q").cursors)
    end = planner.latest_offset(start, limited=False)
    assert end == offset(3, 5, version=2)
    assert [task.split for task in planner.tasks(start, end)] == [Split(0, 0, 3), Split(1, 0, 5)]
    assert namespace.read("q").cursors["report"].keys() == {0, 1}
    namespace.put("q", {1: held(6)}, version=3, cursors=namespace.read("q").cursors)
    end = planner.latest_offset(end, limited=False)
    assert end == offset(3, 6, version=3)
    planner.commit(end)
    assert namespace.read("q").cursors["report"][1] == 6


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (
            offset(1, entity="entity-0"),
            "the checkpoint belongs to the entity entity-0, but 'q' at sb://simulated",
        ),
        (
            offset(9),
            "up to 9, but it ends at 3: its store is an older copy",
        ),
        ({"0": 4}, "the checkpoint has an offset that is none of this source's"),
        ({"entity": "e", "mapVersion": 1, "positions": [1]}, "the checkpoint has an offset that is none"),
    ],
)
@pytest.mark.parametrize("cursor", [None, "report"])
def test_checkpoint_of_something_else_is_refused(
    namespace: SimulatedNamespace, start: dict[str, Any], words: str, cursor: str | None
) -> None:
    namespace.put("q", {0: held(3)}, cursors={"report": {0: 0}})
    with pytest.raises(OffsetError) as caught:
        browsing(namespace, cursor=cursor).latest_offset(start, limited=False)
    assert words in str(caught.value)


# -- admission -------------------------------------------------------------------------------------------


@pytest.mark.row("D4")
def test_limits_count_only_where_spark_says_so(namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: held(100), 1: held(2)})
    planner = browsing(namespace, max_messages=10)
    start = planner.initial_offset()
    assert planner.latest_offset(start, limited=True) == offset(8, 2)
    assert planner.latest_offset(start, limited=False) == offset(100, 2)


def test_bytes_are_estimated_from_the_next_messages(namespace: SimulatedNamespace) -> None:
    large = {pos: message(pos, bytes(10_000)) for pos in range(20)}
    namespace.put("q", {0: large, 1: held(1000)})
    small_bytes = len(message(0).data)
    planner = browsing(namespace, max_bytes=40_000)
    end = planner.latest_offset(planner.initial_offset(), limited=True)["positions"]
    assert end["00000"] in (1, 2, 3)
    assert 40_000 - 3 * 11_000 <= end["00001"] * small_bytes <= 40_000
    assert sum(planner.latest_offset(offset(19, 0), limited=True)["positions"].values()) > 100


@pytest.mark.row("D4")
def test_available_now_ends_at_what_was_there(namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: held(25)})
    planner = browsing(namespace, max_messages=10)
    planner.prepare_available_now()
    namespace.put("q", {0: held(1000)})
    at, ends = planner.initial_offset(), []
    while at not in ends:
        ends.append(at)
        at = planner.latest_offset(at, limited=True)
    assert ends == [offset(0), offset(10), offset(20), offset(25)]


# -- the cursor ------------------------------------------------------------------------------------------


def test_cursor_is_made_at_the_start_and_moved_by_commits_only_forwards(namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: held(9), 1: held(9)})
    planner = with_cursor(namespace, starting=parse_bound("startingPositions", '{"0": 2}'))
    assert planner.initial_offset() == offset(2, 0)
    assert namespace.read("q").cursors == {"report": {0: 2, 1: 0}}
    for end, expected in ((offset(5, 5), 5), (offset(3, 3), 5), (offset(5, 5), 5), (offset(9, 9), 9)):
        planner.commit(end)
        assert namespace.read("q").cursors == {"report": {0: expected, 1: expected}}


def test_query_without_a_checkpoint_begins_where_its_cursor_stands(namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: held(9)}, cursors={"report": {0: 4}})
    assert with_cursor(namespace).initial_offset() == offset(4)


def test_batch_that_is_planned_again_after_a_restart_needs_no_offset_before(namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: held(9)}, cursors={"report": {0: 4}})
    assert with_cursor(namespace).tasks(offset(4), offset(7)) == [Task(Split(0, 4, 7), "entity-1")]


@pytest.mark.parametrize(
    ("cursors", "complete_from", "words"),
    [
        ({}, 0, "no longer has a cursor 'report'"),
        ({"report": {0: 6}}, 0, "cursor 'report' stands at position 6 of partition 0"),
        ({"report": {0: 1}}, 5, "has everything from 5 on, but the checkpoint goes on at 3"),
    ],
)
def test_what_is_lost_at_a_restart_is_an_error_unless_accepted(
    namespace: SimulatedNamespace, cursors: dict[str, dict[int, int]], complete_from: int, words: str
) -> None:
    namespace.put("q", {0: held(9)}, cursors=cursors, complete_from=complete_from)
    with pytest.raises(DataLossError) as caught:
        with_cursor(namespace).latest_offset(offset(3), limited=False)
    assert words in str(caught.value)
    accepting = with_cursor(namespace, fail_on_data_loss=False)
    assert accepting.latest_offset(offset(3), limited=False) == offset(9)
    assert "report" in namespace.read("q").cursors


def test_start_behind_what_the_bound_has_cut_is_an_error(namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: held(9)}, cursors={"report": {0: 1}}, complete_from=5)
    with pytest.raises(DataLossError, match="between the positions 1 and 5 are gone"):
        with_cursor(namespace).initial_offset()


# -- failures --------------------------------------------------------------------------------------------


def test_outage_is_waited_out(namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: held(9)})
    planner = StreamPlanner(options(namespace, outage_timeout_ms=60_000), Failing)
    Failing.failures = [ConnectionLost("gone"), ConnectionLost("still gone")]
    assert planner.initial_offset() == offset(0)
    assert Failing.failures == []


def test_refusal_and_an_outage_that_lasts_end_the_query(namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: held(9)})
    for failures in ([AccessDenied("no such key")], [ConnectionLost("gone"), ConnectionLost("gone")]):
        Failing.failures = list(failures)
        with pytest.raises(PlanError, match="cannot read 'q' at sb://simulated:5672"):
            StreamPlanner(options(namespace), Failing).initial_offset()
        assert Failing.failures == []


def test_failed_commit_never_ends_the_query(namespace: SimulatedNamespace, caplog: pytest.LogCaptureFixture) -> None:
    namespace.put("q", {0: held(9)})
    planner = StreamPlanner(options(namespace, cursor="report"), Failing)
    planner.initial_offset()
    Failing.failures = [AccessDenied("the rule is gone")]
    with caplog.at_level(logging.WARNING):
        planner.commit(offset(5))
    assert "cursor report of 'q' at sb://simulated:5672 stays behind" in caplog.text
    planner.commit(offset(6))
    assert namespace.read("q").cursors == {"report": {0: 6}}


# -- reading alone ---------------------------------------------------------------------------------------


def consuming(namespace: SimulatedNamespace, **given: Any) -> StreamPlanner:
    return with_cursor(namespace, mode="consume", **given)


@pytest.mark.row("D3")
def test_commit_completes_what_it_passes_and_nothing_else(namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: held(6)})
    planner = consuming(namespace)
    try:
        assert planner.initial_offset() == offset(0)
        planner.commit(offset(4))
        assert list(namespace.read("q").partitions[0]) == [4, 5]
        assert namespace.read("q").epochs == {"report": 1}
    finally:
        planner.stop()
    assert namespace.read("q").epochs == {}


def test_locks_are_waited_for_or_ended(namespace: SimulatedNamespace) -> None:
    for revoke, left in ((False, 0), (True, 1)):
        namespace.put("q", {0: held(6)}, locked=1)
        planner = consuming(namespace, revoke_locks=revoke)
        planner.initial_offset()
        planner.stop()
        assert namespace.read("q").locked == left


def test_another_reader_that_reads_alone_is_named(namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: held(6)}, epochs={"other": 1})
    with pytest.raises(PlanError, match=r"cursor 'other' reads exclusively .* wait until that reader has ended"):
        consuming(namespace).initial_offset()


def test_restarted_query_takes_its_lease_over(namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: held(6)})
    killed, again = consuming(namespace), consuming(namespace)
    try:
        killed.initial_offset()
        assert again.latest_offset(offset(2), limited=False) == offset(6)
        killed.commit(offset(6))
        assert len(namespace.read("q").partitions[0]) == 6
        again.commit(offset(6))
        assert namespace.read("q").partitions[0] == {}
    finally:
        again.stop()
        killed.stop()


class Leased(SimulatedClient):
    """Tells of renewals."""

    renewed: list[Mapping[int, int]] = []

    def open_cursor(
        self,
        name: str,
        *,
        start: Start = "earliest",
        bound_bytes: int = 1 << 30,
        lease_ms: int = 0,
        epochs: Mapping[int, int] | None = None,
        revoke: bool = False,
    ) -> dict[int, CursorState]:
        if epochs is not None:
            self.renewed.append(dict(epochs))
        return super().open_cursor(
            name, start=start, bound_bytes=bound_bytes, lease_ms=lease_ms, epochs=epochs, revoke=revoke
        )


def test_lease_that_ran_out_is_taken_again_and_one_that_was_taken_is_not(namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: held(6)})
    given = options(namespace, cursor="report", mode="consume")
    client = Leased(namespace.connection, "q")
    lease = Lease(given, Leased)
    lease._granted(client, {0: 0})
    lease._renew(client)
    assert Leased.renewed == [{0: 1}]
    ended = namespace.read("q")
    ended.epochs = {}
    namespace.write("q", ended)
    lease._renew(client)
    assert lease.epochs == {0: 1}
    taken = namespace.read("q")
    taken.epochs = {"report": 7}
    namespace.write("q", taken)
    with pytest.raises(Exception, match="another query reads with the same cursor since"):
        lease._renew(client)


def test_batch_that_is_planned_again_after_a_restart_has_a_latest_offset_with_the_cursor(
    namespace: SimulatedNamespace,
) -> None:
    namespace.put("q", {0: held(4)}, cursors={"report": {0: 0}})
    planner = with_cursor(namespace)
    planner.tasks(offset(0), offset(2))
    assert planner.report_latest() == {**offset(4), "cursor": "report"}


def test_lease_that_was_ended_during_a_renewal_is_not_taken_again(namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: held(6)})
    client = SimulatedClient(namespace.connection, "q")
    lease = Lease(options(namespace, cursor="report", mode="consume"), SimulatedClient)
    lease.take(client, {0: 0})
    lease.end()
    lease._renew(client)
    assert namespace.read("q").epochs == {}


def test_each_outage_while_a_task_reads_dispositions_is_one_of_its_own(namespace: SimulatedNamespace) -> None:
    """A task without time for an outage repeats the first failed request, and the next one after a success."""
    failures = {0: ConnectionLost("gone"), 1: ConnectionLost("gone again")}

    class Log:
        """Hands out one line at a time, each at the second request for it."""

        def read_dispositions(self, partition_id: int, cursor: str, number: int, most: int) -> list[DispositionLine]:
            if (failure := failures.pop(number, None)) is not None:
                raise failure
            return [DispositionLine(number, number, number, 0, 1, 1)] if number < 2 else []

        def close(self) -> None:
            """Do nothing."""

    schema = pa.schema([("number", pa.int64())])
    task = Task(Split(0, 0, 2), "entity-1")
    given = options(namespace, cursor="report", table="fates")
    batches = read_dispositions(task, given, schema, cast("Open", lambda connection, entity: Log()))
    assert [number for batch in batches for number in batch["number"].to_pylist()] == [0, 1]
