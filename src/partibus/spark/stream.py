"""The driver's side of a stream, without Spark: offsets, admission, cursors, commits.

One `StreamPlanner` lives in Spark's planner process for a run of a query; tasks need none of it. Spark reports a commit
one micro-batch late, and never that of the last one (`partibus.spark.tail`). After a restart it may plan a batch again
without asking for an offset first. Any exception ends the query, so this module waits during transient failures.
"""

import logging
from collections.abc import Mapping
from typing import Any

from partibus.client.extensions.ranges import CursorState, PartitionMap
from partibus.spark.errors import DataLossError
from partibus.spark.lease import Lease
from partibus.spark.options import Options
from partibus.spark.planning import (
    Offset,
    PassedOver,
    Positions,
    admit,
    admit_bytes,
    compacted,
    expanded,
    passed_over_in,
    plan_splits,
)
from partibus.spark.ports import OpenClient, RangeReader
from partibus.spark.reader import Task, begin_at, open_or_find, starting_positions
from partibus.spark.retry_policy import RetryPolicy
from partibus.spark.retrying_client import RetryingClient

_log = logging.getLogger(__name__)
_SAMPLE_BYTES = 64 << 10
"""Bytes of each partition's next messages that are read to learn their size."""
_COMMIT_RETRY_MS = 5_000
"""The time for a commit. The next commit repairs a failed one."""

CURSOR = "cursor"
"""The name of the query's cursor in a reported offset."""

Json = dict[str, Any]


class StreamPlanner:
    """The planner of one run. Offsets have the form in which Spark keeps them: JSON."""

    def __init__(self, options: Options, open_client: OpenClient) -> None:
        self._options = options
        self._open_client = open_client
        self._client = RetryingClient[RangeReader](options, open_client)
        self._lease: Lease | None = None
        self._cursor_version: int | None = None
        """The version of the partition map for which the cursor was opened in this run."""
        self._target: PartitionMap | None = None
        """The end of a run over the present messages."""
        self._seen: PartitionMap | None = None

    # -- what Spark asks -------------------------------------------------------------------------------

    def initial_offset(self) -> Json:
        """Return the offset of a query without a checkpoint. Raises `PlanError`, `OptionError`, `DataLossError`."""
        found = self._client.ask(lambda client: client.map())
        start = self._client.ask(lambda client: starting_positions(self._options, client, found))
        if self._options.cursor is not None:
            start = begin_at(self._options, self._open_cursor(start))
            self._cursor_version = found.version
        return Offset(found.entity_id, found.version, start).to_json()

    def prepare_available_now(self) -> None:
        """Limit the run to the messages that are present now."""
        self._target = self._client.ask(lambda client: client.map())

    def latest_offset(self, start_json: Json, *, limited: bool) -> Json:
        """Return the end of the next micro-batch; wait a while for new messages. Raises as `initial_offset`."""
        start = Offset.from_json(start_json)
        self._begin(start)
        found = self._target or self._look(start.positions)
        self._seen = found
        start.check_entity(found, self._options.where)
        self._begin(start._replace(map_version=found.version))
        ends = {one.partition_id: one.end_pos for one in found.partitions}
        self._warn_of_copies(start, found)
        positions = self._admit(start.positions, ends) if limited else admit(start.positions, ends, None)
        return Offset(found.entity_id, found.version, positions).to_json()

    def report_latest(self) -> Json | None:
        """Return the latest known offset, for the progress of the query, with the name of a cursor.

        The progress is all that a listener learns of a query, and offsets do not tell queries over one entity apart.
        """
        found = self._seen
        if found is None:
            return None
        ends = {one.partition_id: one.end_pos for one in found.partitions}
        latest = Offset(found.entity_id, found.version, ends).to_json()
        return latest if self._options.cursor is None else {**latest, CURSOR: self._options.cursor}

    def tasks(self, start_json: Json, end_json: Json) -> list[Task]:
        """Return the tasks of a micro-batch. Raises as `initial_offset`."""
        start, end = Offset.from_json(start_json), Offset.from_json(end_json)
        self._begin(start)
        passed_over: PassedOver = {}
        if self._options.messages_per_split is not None:
            seen = self._seen = self._seen or self._client.ask(lambda client: client.map())
            passed_over = passed_over_in(seen)
        splits = plan_splits(start.positions, end.positions, self._options.messages_per_split, passed_over)
        return [Task(split, end.entity_id) for split in splits if split.first_pos < split.end_pos]

    def commit(self, end_json: Json) -> None:
        """Note that the sink has everything below.

        Raises nothing: a failure is logged, and the next commit repairs it.
        """
        name = self._options.cursor
        if name is None:
            return
        positions = Offset.from_json(end_json).positions
        if self._seen is not None:
            there = {one.partition_id for one in self._seen.partitions}
            positions = {partition_id: pos for partition_id, pos in positions.items() if partition_id in there}
        try:
            epochs = self._lease.epochs if self._lease is not None else None
            self._client.ask(
                lambda client: client.advance_cursor(name, positions, epochs=epochs),
                RetryPolicy(_COMMIT_RETRY_MS),
            )
        except Exception as error:  # noqa: BLE001 (whatever it is: the query goes on)
            _log.warning("cursor %s of %s stays behind the query for now: %s", name, self._options.where, error)

    def stop(self) -> None:
        """Close the connections. Spark does not call this when a query is stopped as usual."""
        if self._lease is not None:
            self._lease.end()
        self._client.close()

    # -- the cursor ------------------------------------------------------------------------------------

    def _begin(self, start: Offset) -> None:
        """Place the cursor below the next read, after a restart and for new partitions."""
        if self._lease is not None:
            _ = self._lease.epochs  # Raises if it is lost.
        if self._options.cursor is None or (self._cursor_version or -1) >= start.map_version:
            return
        found = self._client.ask(lambda client: client.map())
        self._seen = self._seen or found
        start.check_entity(found, self._options.where)
        if self._cursor_version is None and not self._options.consumes and self._options.keeps_all:
            self._check_cursor_is_there()
        for partition_id, state in self._open_cursor(start.positions).items():
            position = start.positions.get(partition_id, 0)
            if self._options.keeps_all and max(state.position, state.complete_from) > position:
                raise DataLossError(
                    f"cursor {self._options.cursor!r} stands at position {state.position} of partition {partition_id} "
                    f"of {self._options.where} and has everything from {state.complete_from} on, but the checkpoint "
                    f"goes on at {position}. It was moved by another client, or its bound was reached: give each query "
                    "a cursor of its own and enough 'cursorBytes'; to go on with the rest set option "
                    "'failOnDataLoss' to 'false'"
                )
        self._cursor_version = start.map_version

    def _check_cursor_is_there(self) -> None:
        """Check that no client has dropped the cursor since the checkpoint was written. Raises `DataLossError`."""
        name = self._options.cursor
        if not any(cursor.name == name for cursor in self._client.ask(lambda client: client.cursors())):
            raise DataLossError(
                f"the checkpoint goes on, but {self._options.where} no longer has a cursor {name!r}: what consumers "
                "have finished meanwhile is gone. Set option 'failOnDataLoss' to 'false' to go on with the rest "
                "(the cursor is made again), or begin with a new checkpointLocation"
            )

    def _open_cursor(self, start: Positions) -> Mapping[int, CursorState]:
        if not self._options.consumes:
            return self._client.ask(lambda client: open_or_find(self._options, client, start))
        lease = self._lease = self._lease or Lease(self._options, self._open_client)
        return self._client.ask(lambda client: lease.take(client, start))

    # -- admission -------------------------------------------------------------------------------------

    def _look(self, positions: Positions) -> PartitionMap:
        timeout_s = self._options.poll_timeout_ms / 1000
        if not timeout_s:
            return self._client.ask(lambda client: client.map())
        return self._client.ask(lambda client: client.wait(positions, timeout_s))

    def _warn_of_copies(self, start: Offset, found: PartitionMap) -> None:
        for one in found.partitions:
            position = start.positions.get(one.partition_id, 0)
            for first, end in one.passed_over:
                if first < position < end:
                    _log.warning(
                        "partition %d of %s was put back from a copy: the checkpoint has read it up to position %d, "
                        "and the copy ends at %d. The query goes on with what came since, at %d.",
                        one.partition_id,
                        self._options.where,
                        position,
                        first,
                        end,
                    )

    def _admit(self, start: Positions, ends: Positions) -> dict[int, int]:
        assert self._seen is not None, "asked for the ends"
        passed_over = passed_over_in(self._seen)
        first, last = compacted(start, passed_over), compacted(ends, passed_over)
        admitted = admit(first, last, self._options.max_messages)
        if self._options.max_bytes is not None:
            upto = expanded(admitted, passed_over)
            sizes = {
                partition_id: self._bytes_per_position(partition_id, start.get(partition_id, 0), upto[partition_id])
                for partition_id, end in admitted.items()
                if end > first.get(partition_id, 0)
            }
            admitted = admit_bytes(first, admitted, self._options.max_bytes, sizes)
        return expanded(admitted, passed_over)

    def _bytes_per_position(self, partition_id: int, start: int, end: int) -> float:
        keeps = self._options.cursor is not None and not self._options.consumes
        frame = self._client.ask(
            lambda client: next(client.read(partition_id, start, end, _SAMPLE_BYTES, finished=keeps), None)
        )
        if frame is None:
            return 0.0
        assert self._seen is not None, "asked for the ends"
        passed = {partition_id: passed_over_in(self._seen).get(partition_id, ())}
        read = compacted({partition_id: frame.next_pos}, passed)[partition_id]
        return frame.data.nbytes / max(1, read - compacted({partition_id: start}, passed)[partition_id])
