"""Reports on cursors that lag or have lost messages, in the stores that one broker owns, in the log and metrics (D14).

The cursor of a reader that never returns keeps messages until its bound is reached. So the stores are asked now and
then which partitions have cursors, and those partitions for the positions. That loads no partition.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, NamedTuple

from partibus.namespace.names import subqueue_path
from partibus.namespace.namespaces import Namespaces
from partibus.partition.protocol.commands import Inspect
from partibus.partition.protocol.generations import count_positions
from partibus.partition.protocol.replies import CursorInfo, Inspected
from partibus.partition.runtime.dispatcher import OnReply
from partibus.partition.runtime.store_runtime import StoreRuntime
from partibus.routing.arrivals import end_of, passed_over_in
from partibus.routing.partitions import PartitionHandle

log = logging.getLogger(__name__)

LOOK_S = 60.0
"""The interval of checks while metrics are not read."""
PARTITIONS_MAX = 1_600
"""The most partitions with cursors in one store that a look asks."""
CURSORS_MAX = 500
"""The most cursors in the metrics of one broker; those with the greatest lag come first."""


class CursorFacts(NamedTuple):
    """One cursor, over the partitions that are in this broker's stores."""

    entity: str
    kind: int
    name: str
    lag: int
    """Positions that it has yet to pass."""
    lost: int
    """Unread positions whose messages were removed when the bound was reached."""
    moved_ms: int
    alone: bool
    """Whether it reads exclusively."""


class Retained(NamedTuple):
    """The messages kept in one sub-queue for all its cursors."""

    entity: str
    kind: int
    messages: int
    size_bytes: int


class CursorWatch:
    """One broker's."""

    def __init__(
        self, namespaces: Namespaces, runtimes: Callable[[], Collection[StoreRuntime]], loop: asyncio.AbstractEventLoop
    ) -> None:
        """``runtimes``: of the stores that this broker owns at the moment."""
        self._namespaces = namespaces
        self._runtimes = runtimes
        self._loop = loop
        self._looking = asyncio.Lock()
        self._told: dict[tuple[str, int, str, int], tuple[int, bool]] = {}
        """The first available position and whether a lag was reported, by cursor and partition."""

    async def look(self) -> tuple[list[CursorFacts], list[Retained]]:
        """Return the positions of cursors, and log warnings.

        A warning names a cursor that has lost messages or begun to lag since the last check.
        """
        async with self._looking:
            partitions = await self._partitions()
            replies = await asyncio.gather(*[self._ask(self._inspect(partition)) for partition, _ in partitions])
            found = [
                (path, partition.partition_id, reply)
                for (partition, path), reply in zip(partitions, replies, strict=True)
                if isinstance(reply, Inspected)
            ]
            self._warn(found)
        return _facts(found), _retained(found)

    async def _partitions(self) -> list[tuple[PartitionHandle, str]]:
        """Return the partitions with cursors."""
        asked = [self._ask(partial(runtime.questions.find_cursors, PARTITIONS_MAX)) for runtime in self._runtimes()]
        rows: set[int] = set()
        for answer in await asyncio.gather(*asked):
            rows.update(answer or ())
        found = []
        for row in sorted(rows):
            queue = self._namespaces.queue_of(row)
            if queue is not None:
                broker = self._namespaces.broker_of(queue)
                partition = broker.entity_of(queue).route.partitions[queue.index_of(row)]
                found.append((partition, broker.qualified(queue.name)))
        return found

    def _inspect(self, partition: PartitionHandle) -> Callable[[OnReply], None]:
        return lambda on_reply: partition.submit(Inspect(self._namespaces.default.numbers.next()), on_reply)

    def _ask(self, ask: Callable[[OnReply], None]) -> asyncio.Future[Any]:
        """Ask a store. The asker may have ended when the answer comes, because the broker stops."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        ask(lambda reply: None if answer.done() else answer.set_result(reply))
        return answer

    def _warn(self, found: list[tuple[str, int, Inspected]]) -> None:
        told, self._told = self._told, {}
        for path, number, inspected in found:
            for cursor in inspected.cursors:
                key = (path, cursor.kind, cursor.name, number)
                cut_before, lagged = told.get(key, (0, False))
                retained_bytes = inspected.retained.get(cursor.kind, (0, 0))[1]
                lags = 2 * retained_bytes > cursor.bound_bytes > 0
                self._told[key] = (cursor.complete_from, lags)
                what = f"cursor {cursor.name!r} of '{subqueue_path(path, cursor.kind)}', partition {number}"
                if cursor.complete_from > max(cursor.position, cut_before):
                    log.warning(
                        "%s: messages from position %d to %d may be lost to it, since what was kept reached its bound "
                        "of %d bytes. Read faster, or open it with a larger bound.",
                        what,
                        cursor.position,
                        cursor.complete_from,
                        cursor.bound_bytes,
                    )
                elif lags and not lagged:
                    log.warning(
                        "%s: lags: %d of %d bytes are kept for it and others; past that the oldest messages go unread. "
                        "If its reader is not coming back: partibus cursor drop.",
                        what,
                        retained_bytes,
                        cursor.bound_bytes,
                    )


def _facts(found: list[tuple[str, int, Inspected]]) -> list[CursorFacts]:
    cursors: dict[tuple[str, int, str], list[tuple[CursorInfo, int]]] = {}
    """Each cursor with the positions that it has yet to pass."""
    for path, _, inspected in found:
        for cursor in inspected.cursors:
            key = (path, cursor.kind, cursor.name)
            passed, end_pos = passed_over_in(inspected, cursor.kind), end_of(inspected, cursor.kind)
            cursors.setdefault(key, []).append((cursor, count_positions(passed, cursor.position, end_pos)))
    facts = [
        CursorFacts(
            *key,
            sum(lag for _, lag in parts),
            sum(max(0, cursor.complete_from - cursor.position) for cursor, _ in parts),
            max(cursor.moved_ms for cursor, _ in parts),
            any(cursor.epoch for cursor, _ in parts),
        )
        for key, parts in cursors.items()
    ]
    return sorted(facts, key=lambda one: -one.lag)[:CURSORS_MAX]


def _retained(found: list[tuple[str, int, Inspected]]) -> list[Retained]:
    kept: dict[tuple[str, int], tuple[int, int]] = {}
    for path, kind, messages, size_bytes in _kept(found):
        before = kept.get((path, kind), (0, 0))
        kept[path, kind] = (before[0] + messages, before[1] + size_bytes)
    by_bytes = sorted(kept.items(), key=lambda one: -one[1][1])
    return [Retained(*key, *counts) for key, counts in by_bytes[:CURSORS_MAX]]


def _kept(found: list[tuple[str, int, Inspected]]) -> Iterator[tuple[str, int, int, int]]:
    for path, _, inspected in found:
        for kind in {cursor.kind for cursor in inspected.cursors} | inspected.retained.keys():
            yield path, kind, *inspected.retained.get(kind, (0, 0))
