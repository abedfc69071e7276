"""Planning a batch and reading a split: batches, lost connections, errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from partibus.client.errors import AccessDenied, Busy, ClientError, ConnectFailed, ConnectionLost, NotFound, Throttled
from partibus.client.extensions.ranges import Frame, PartitionMap
from partibus.spark import retry_policy
from partibus.spark.errors import DataLossError, OptionError, PlanError, ReadError
from partibus.spark.options import Options
from partibus.spark.planning import Split, parse_bound
from partibus.spark.reader import Task, close_idle, plan, read_task
from tests.spark.simulated import (
    COMPLETED,
    ENQUEUED_MS,
    Held,
    SimulatedClient,
    SimulatedNamespace,
    connection_string,
    frame_of,
    message,
)

SCHEMA = pa.schema([("position", pa.int64()), ("state", pa.string())])
CONNECTION = "Endpoint=sb://broker:5672;SharedAccessKeyName=n;SharedAccessKey=hush"
OPTIONS = Options(CONNECTION, "orders", rows_per_batch=2, outage_timeout_ms=0)
TASK = Task(Split(1, 0, 10), "id")


class Script:
    """Opens clients that hold positions 0..9 in frames of 3 and fail as told: one entry per connection, the number of
    frames before the failure."""

    def __init__(self, failure: Exception, *frames_before_failure: int | None) -> None:
        self.failure = failure
        self.left = list(frames_before_failure)
        self.reads: list[tuple[int, int]] = []

    def __call__(self, connection: str, entity: str) -> ScriptedClient:
        return ScriptedClient(self, self.left.pop(0) if self.left else None)


class ScriptedClient(SimulatedClient):
    def __init__(self, script: Script, frames_left: int | None) -> None:
        self.script = script
        self.frames_left = frames_left

    def map(self) -> PartitionMap:
        raise self.script.failure

    def read(
        self,
        partition_id: int,
        from_pos: int,
        to_pos: int,
        max_bytes: int = 0,
        *,
        finished: bool = False,
        cursor: str | None = None,
    ) -> Iterator[Frame]:
        self.script.reads.append((from_pos, to_pos))
        for start in range(from_pos, to_pos, 3):
            if self.frames_left == 0:
                raise self.script.failure
            self.frames_left = self.frames_left and self.frames_left - 1
            end = min(start + 3, to_pos)
            yield frame_of([(pos, message(pos)) for pos in range(start, end)], end)


@pytest.fixture(autouse=True)
def _no_kept_connection() -> Iterator[None]:
    yield
    close_idle()


@pytest.fixture
def namespace(tmp_path: Path) -> SimulatedNamespace:
    return SimulatedNamespace(tmp_path)


def held(count: int, **states: int) -> dict[int, Held]:
    """Positions from 0; ``p3=1``: the state of the one at 3."""
    return {pos: message(pos, state=states.get(f"p{pos}", 0)) for pos in range(count)}


def positions(script: Script) -> list[list[int]]:
    return [batch.column("position").to_pylist() for batch in read_task(TASK, OPTIONS, SCHEMA, script)]


def read_all(options: Options) -> list[tuple[int, int, str]]:
    """Partition, position and state of every row of a batch."""
    return [
        (task.split.partition_id, row["position"], row["state"])
        for task in plan(options, SimulatedClient)
        for batch in read_task(task, options, SCHEMA, SimulatedClient)
        for row in batch.to_pylist()
    ]


def lost() -> Exception:
    return ConnectionLost("the peer is gone")


# -- the plan --------------------------------------------------------------------------------------------


def test_plan_asks_every_partition(namespace: SimulatedNamespace) -> None:
    namespace.put("q", {1: held(10), 0: {}}, {0: 4})
    tasks = plan(Options(namespace.connection, "q"), SimulatedClient)
    assert tasks == [Task(Split(0, 0, 4), "entity-1"), Task(Split(1, 0, 10), "entity-1")]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("earliest", "latest", [Split(0, 0, 10), Split(1, 0, 5)]),
        ("latest", "latest", [Split(0, 10, 10), Split(1, 5, 5)]),
        ('{"0": 3}', '{"1": 4}', [Split(0, 3, 10), Split(1, 0, 4)]),
        ('{"0": -1, "1": -2}', "latest", [Split(0, 10, 10), Split(1, 0, 5)]),
        ('{"sequenceNumbers": {"0": 4, "1": 281474976710658}}', "latest", [Split(0, 4, 10), Split(1, 2, 5)]),
        ("2013-01-01T00:00:00.127Z", "2013-01-01T00:00:00.129Z", [Split(0, 4, 6), Split(1, 4, 5)]),
        ("2099-01-01", "latest", [Split(0, 10, 10), Split(1, 5, 5)]),
    ],
)
def test_positions_are_given_by_word_number_and_time(
    namespace: SimulatedNamespace, start: str, end: str, expected: list[Split]
) -> None:
    assert ENQUEUED_MS % 1000 == 123
    namespace.put("q", {0: held(10), 1: held(5)})
    options = Options(
        namespace.connection,
        "q",
        starting=parse_bound("startingPositions", start),
        ending=parse_bound("endingPositions", end, "latest"),
    )
    assert [task.split for task in plan(options, SimulatedClient)] == expected


@pytest.mark.parametrize(
    ("entity", "given", "kind", "words"),
    [
        ("q", '{"0": 11}', PlanError, "has position 11 for partition 0 of 'q', which ends at 10"),
        ("q", '{"7": 1}', OptionError, "option 'startingPositions' names partition 7; 'q' has partitions 0 to 1"),
        ("q/$DeadLetterQueue", '{"sequenceNumbers": {"0": 1}}', OptionError, "in no order in a dead-letter queue"),
    ],
)
def test_positions_that_there_are_not_are_refused_in_the_plan(
    namespace: SimulatedNamespace, entity: str, given: str, kind: type[Exception], words: str
) -> None:
    for name in ("q", "q.DeadLetterQueue"):
        namespace.put(name, {0: held(10), 1: held(5)})
    options = Options(namespace.connection, entity, starting=parse_bound("startingPositions", given))
    with pytest.raises(kind) as caught:
        plan(options, SimulatedClient)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (lambda: ConnectFailed("refused"), "refused; option 'connection' must name a broker that runs"),
        (lambda: AccessDenied("bad token"), "bad token; the key in option 'connection'"),
        (lambda: NotFound("no such queue"), "no such queue; option 'entity' must name what exists"),
        (lambda: ClientError("odd", "amqp:internal-error"), "odd; the broker's log says more"),
        (lambda: Busy("throttled"), "throttled; reading it again may succeed"),
    ],
)
def test_failed_plan_names_the_option_and_the_way_out(failure: Callable[[], Exception], words: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan(OPTIONS, Script(failure()))
    assert str(caught.value).startswith(f"cannot read 'orders' at sb://broker:5672: {words}")
    assert "hush" not in str(caught.value)


# -- a split ---------------------------------------------------------------------------------------------


def test_frames_are_cut_into_batches_of_nearly_equal_length() -> None:
    assert positions(Script(lost())) == [[0], [1, 2], [3], [4, 5], [6], [7, 8], [9]]


@pytest.mark.parametrize("frames", [0, 1, 2, 3])
def test_lost_connection_is_replaced_and_nothing_is_read_twice(frames: int) -> None:
    script = Script(lost(), frames)
    assert [position for batch in positions(script) for position in batch] == list(range(10))
    assert script.reads == [(0, 10), (3 * frames, 10)]


def test_connections_may_be_lost_again_as_long_as_it_goes_on() -> None:
    assert [pos for batch in positions(Script(lost(), 1, 1, 1)) for pos in batch] == list(range(10))


def test_outage_that_lasts_is_an_error_that_names_partition_range_and_place() -> None:
    with pytest.raises(ReadError) as caught:
        positions(Script(lost(), 2, 0))
    assert str(caught.value) == (
        "reading partition 1, positions [0, 10) of 'orders' at sb://broker:5672 stopped at position 6: "
        "the peer is gone; option 'connection' must name a broker that runs and that this machine reaches"
    )


def test_refusal_is_not_tried_again() -> None:
    script = Script(NotFound("no such queue"), 0, None)
    with pytest.raises(ReadError, match="no such queue; option 'entity' must name what exists"):
        positions(script)
    assert len(script.reads) == 1


def test_what_is_no_message_names_partition_and_position(namespace: SimulatedNamespace) -> None:
    namespace.put("q", {1: {5: Held(b"\x01")}})
    options, schema = Options(namespace.connection, "q"), pa.schema([("body", pa.binary())])
    (task,) = plan(options, SimulatedClient)
    with pytest.raises(ReadError, match=r"partition 1, positions \[5, 6\).*position 5"):
        list(read_task(task, options, schema, SimulatedClient))


# -- cursors ---------------------------------------------------------------------------------------------


def test_browse_does_not_see_what_is_finished(namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: held(4, p1=COMPLETED, p2=1)})
    assert read_all(Options(namespace.connection, "q")) == [(0, 0, "active"), (0, 2, "deferred"), (0, 3, "active")]


def test_cursor_keeps_what_is_finished_and_a_batch_begins_where_it_stands(namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: held(4, p1=COMPLETED, p2=COMPLETED + 2)}, cursors={"report": {0: 1}})
    options = Options(namespace.connection, "q", cursor="report")
    expected = [(0, 1, "completed"), (0, 2, "dead_lettered"), (0, 3, "active")]
    assert read_all(options) == expected
    assert read_all(options) == expected
    assert namespace.read("q").cursors == {"report": {0: 1}}


def test_batch_makes_a_cursor_that_is_not_there(namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: held(4)})
    options = Options(namespace.connection, "q", cursor="new", starting=parse_bound("startingPositions", '{"0": 2}'))
    assert [position for _, position, _ in read_all(options)] == [2, 3]
    assert namespace.read("q").cursors == {"new": {0: 2}}


def test_what_a_cursor_could_not_keep_fails_unless_that_is_accepted(namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: held(9)}, cursors={"report": {0: 1}}, complete_from=5)
    options = Options(namespace.connection, "q", cursor="report")
    with pytest.raises(DataLossError, match=r"partition 0 of 'q' .* between the positions 1 and 5 are gone"):
        plan(options, SimulatedClient)
    assert len(read_all(options._replace(fail_on_data_loss=False))) == 8


def test_bound_that_is_reached_while_a_task_waits_fails_the_task(namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: held(9)}, cursors={"report": {0: 1}})
    options = Options(namespace.connection, "q", cursor="report")
    (task,) = plan(options, SimulatedClient)
    namespace.put("q", {0: held(9)}, cursors={"report": {0: 1}}, complete_from=5)
    with pytest.raises(DataLossError, match="Raise option 'cursorBytes'"):
        list(read_task(task, options, SCHEMA, SimulatedClient))


def test_cursor_that_was_dropped_fails_the_task(namespace: SimulatedNamespace) -> None:
    namespace.put("q", {0: held(9)})
    options = Options(namespace.connection, "q", cursor="report")
    (task,) = plan(options, SimulatedClient)
    namespace.put("q", {0: held(9)})
    with pytest.raises(ReadError, match="no cursor 'report'; `partibus cursor list`"):
        list(read_task(task, options, SCHEMA, SimulatedClient))


def test_exclusive_reader_takes_what_a_commit_would_complete(namespace: SimulatedNamespace) -> None:
    """Deferred messages are somebody's, and delayed ones come again at another position."""
    namespace.put("q", {1: held(6, p1=1, p2=3, p3=COMPLETED)})
    options = Options(connection_string(namespace.folder), "q", mode="consume", cursor="only")
    batches = read_task(Task(Split(1, 1, 6), "id"), options, SCHEMA, SimulatedClient)
    assert [pos for batch in batches for pos in batch.column("position").to_pylist()] == [4, 5]


def test_throttling_is_borne_longer_than_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(retry_policy, "time", SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append))
    waited_s = {}
    for error in (Busy("no store"), Throttled("50009")):
        slept.clear()
        one = retry_policy.RetryPolicy(10_000)
        while not one.has_ended(error):
            pass
        waited_s[type(error)] = sum(slept)
    assert 8 <= waited_s[Busy] <= 10
    assert 98 <= waited_s[Throttled] <= 100
