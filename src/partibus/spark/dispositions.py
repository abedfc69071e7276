"""The log of dispositions as a stream: ``.option("table", "fates")`` with the name of a cursor that reads it.

It has one row for each message that has left the entity, whatever the way. Lines are numbered within a partition, and
offsets are those numbers: the cursor's second position, which moves apart from that of its messages. A broker tells the
end of the log only by handing out its lines, so the planner reads ahead of the tasks as far as a micro-batch may go.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from partibus.client.errors import ClientError
from partibus.client.extensions.ranges import DispositionLine, PartitionMap, RangeClient
from partibus.spark.errors import DataLossError, OffsetError, OptionError, ReadError
from partibus.spark.options import Options
from partibus.spark.planning import Offset, plan_splits
from partibus.spark.reader import Task
from partibus.spark.retry_policy import RetryPolicy
from partibus.spark.retrying_client import RetryingClient
from partibus.spark.schema import STATES
from partibus.spark.tail import committed_offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LINES = 10_000
"""Lines of one request."""
PAGES_MAX = 8
"""Requests by which the planner looks ahead in each partition: a micro-batch takes no more."""
_FINISHED = 16
"""The offset between the number of a disposition and `partibus.spark.schema.STATES`."""
_MARK = "fates of "
"""Prefix of the entity's id in offsets, so that a query over messages refuses this checkpoint and the other way round.
"""
_COMMIT_RETRY_MS = 5_000

Open = Callable[[str, str], RangeClient]
Json = dict[str, Any]
_log = logging.getLogger(__name__)


class DispositionsPlanner:
    """The driver's side of a stream of dispositions, as `partibus.spark.stream.StreamPlanner`."""

    def __init__(self, options: Options, open_client: Open) -> None:
        assert options.cursor is not None, "checked with the options"
        self._options = options
        self._name = options.cursor
        self._client = RetryingClient[RangeClient](options, open_client)
        self._until_ms: int | None = None
        """The end of a run over what is there now, by the broker's clock."""
        self._is_checked = False
        self.reached: Json | None = None
        """The last look at the log, for the query's progress."""

    def initial_offset(self) -> Json:
        """Return the offset of a query without a checkpoint: the cursor's position. Raises `PlanError`.

        A new cursor begins with messages that leave from now on.
        """
        found = self._client.ask(lambda client: client.map())
        states = self._client.ask(
            lambda client: client.open_cursor(self._name, dispositions=True, bound_bytes=self._options.cursor_bytes)
        )
        return self._offset(found, {partition_id: state.disposition_position for partition_id, state in states.items()})

    def prepare_available_now(self) -> None:
        """Limit the run to messages that have left until now."""
        self._until_ms = self._client.ask(lambda client: max((one.now_ms for one in client.cursors()), default=0))

    def latest_offset(self, start_json: Json) -> Json:
        """Return the end of the next micro-batch; waits a while for new lines. Raises `PlanError`, `DataLossError`."""
        start = Offset.from_json(start_json)
        found = self._client.ask(lambda client: client.map())
        self._check(start, found)
        end = self._client.ask(lambda client: self._reach(client, start.positions, found))
        if end == start.positions and self._until_ms is None and self._options.poll_timeout_ms:
            time.sleep(self._options.poll_timeout_ms / 1000)
            end = self._client.ask(lambda client: self._reach(client, start.positions, found))
        self.reached = self._offset(found, end)
        return self.reached

    def tasks(self, start_json: Json, end_json: Json) -> list[Task]:
        """Return the tasks of a micro-batch."""
        start, end = Offset.from_json(start_json), Offset.from_json(end_json)
        splits = plan_splits(start.positions, end.positions)
        return [Task(split, end.entity_id.removeprefix(_MARK)) for split in splits if split.first_pos < split.end_pos]

    def commit(self, end_json: Json) -> None:
        """Advance the cursor: the sink has everything below. Raises nothing; the next commit repairs a failed one."""
        try:
            self._advance(Offset.from_json(end_json), RetryPolicy(_COMMIT_RETRY_MS))
        except Exception as error:  # noqa: BLE001 (whatever it is: the query goes on)
            _log.warning("cursor %s of %s stays behind for now: %s", self._name, self._options.where, error)

    def complete(self, offset: Offset) -> None:
        """Advance the cursor to the last commit of a query that has ended. Raises `PlanError`, `OffsetError`."""
        self._check_entity(offset, self._client.ask(lambda client: client.map()))
        self._advance(offset)

    def stop(self) -> None:
        """Close the connection."""
        self._client.close()

    def _advance(self, offset: Offset, retry_policy: RetryPolicy | None = None) -> None:
        positions = offset.positions
        self._client.ask(
            lambda client: client.advance_cursor(self._name, {}, disposition_positions=positions), retry_policy
        )

    def _offset(self, found: PartitionMap, positions: Mapping[int, int]) -> Json:
        return Offset(f"{_MARK}{found.entity_id}", found.version, positions).to_json()

    def _check_entity(self, start: Offset, found: PartitionMap) -> None:
        if not start.entity_id.startswith(_MARK):
            raise OffsetError(
                f"the checkpoint is of the messages of {self._options.where}, not of their fates; "
                "give each of both streams a checkpointLocation of its own"
            )
        if start.entity_id != f"{_MARK}{found.entity_id}":
            raise OffsetError(
                f"the checkpoint belongs to the {start.entity_id}, but {self._options.where} is {found.entity_id}: "
                "another one, or one that was deleted and made again; begin with a new checkpointLocation"
            )

    def _check(self, start: Offset, found: PartitionMap) -> None:
        self._check_entity(start, found)
        if self._is_checked:
            return
        named = [one for one in self._client.ask(lambda client: client.cursors()) if one.name == self._name]
        behind = [
            one
            for cursor in named
            for one in cursor.partitions
            if one.disposition_position > start.positions.get(one.partition_id, one.disposition_position)
        ]
        if behind or not named:
            raise DataLossError(
                f"cursor {self._name!r} of {self._options.where} was dropped, or moved by another client, since the "
                "checkpoint was written: fates that were not read are forgotten. Give each query a cursor of its own, "
                "and begin with a new checkpointLocation"
            )
        self._is_checked = True

    def _reach(self, client: RangeClient, start: Mapping[int, int], found: PartitionMap) -> dict[int, int]:
        """Return the ends of the logged lines, as far as a micro-batch goes."""
        ends = dict(start)
        for one in found.partitions:
            number = start.get(one.partition_id, 0)
            for lines in _pages(client, one.partition_id, self._name, number, PAGES_MAX):
                if self._until_ms is not None:
                    lines = [line for line in lines if line.at_ms <= self._until_ms]
                if not lines:
                    break
                ends[one.partition_id] = lines[-1].number + 1
            ends.setdefault(one.partition_id, number)
        return ends


def read_dispositions(task: Task, options: Options, schema: pa.Schema, open_client: Open) -> Iterator[pa.RecordBatch]:
    """Read the lines of one task. Raises `ReadError`."""
    split = task.split
    number = split.first_pos
    retry_policy = RetryPolicy(options.outage_timeout_ms)
    while number < split.end_pos:
        try:
            client = open_client(options.connection, options.entity)
            try:
                for page in _pages(client, split.partition_id, str(options.cursor), number):
                    lines = [line for line in page if line.number < split.end_pos]
                    if not lines:
                        return
                    yield _batch(lines, split.partition_id, task.entity_id, schema)
                    number = lines[-1].number + 1
                    retry_policy.forget()
                return
            finally:
                client.close()
        except (ClientError, OSError) as error:
            if retry_policy.has_ended(error):
                raise ReadError(
                    f"reading the fates {number} to {split.end_pos} of partition {split.partition_id} of "
                    f"{options.where}: {error}"
                ) from error


def complete_dispositions(
    checkpoint: str | Path, options: Mapping[str, str], *, spark: "SparkSession | None" = None, open_client: Open
) -> None:
    """Complete a query over dispositions as `partibus.spark.tail.complete_tail` does.

    Raises `OptionError`, `OffsetError`, `PlanError`.
    """
    checked = Options.parse(options)
    if checked.cursor is None:
        raise OptionError("there is nothing to complete without a cursor; give the 'cursor' that the query has")
    committed = committed_offsets(str(checkpoint), spark)
    if not committed:
        return
    planner = DispositionsPlanner(checked, open_client)
    try:
        planner.complete(committed[-1])
    finally:
        planner.stop()


def _pages(
    client: RangeClient, partition_id: int, cursor: str, number: int, most: int | None = None
) -> Iterator[list[DispositionLine]]:
    count = 0
    while most is None or count < most:
        lines = client.read_dispositions(partition_id, cursor, number, LINES)
        if not lines:
            return
        yield lines
        number = lines[-1].number + 1
        count += 1


def _batch(lines: list[DispositionLine], partition_id: int, entity_id: str, schema: pa.Schema) -> pa.RecordBatch:
    numbers, positions, sequences, dispositions, times_ms, counts = zip(*lines, strict=True)
    high = partition_id << 48
    columns = {
        "entity_id": [entity_id] * len(lines),
        "partition_id": [partition_id] * len(lines),
        "number": numbers,
        "position": positions,
        "sequence_number": [high | sequence for sequence in sequences],
        "fate": [STATES.get(_FINISHED + disposition, str(disposition)) for disposition in dispositions],
        "fate_time": [time_ms * 1000 for time_ms in times_ms],
        "delivery_count": counts,
    }
    return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in schema], schema=schema)
