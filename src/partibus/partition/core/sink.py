"""Sinks: each row that a job stores is stored once, however often its tasks run (row D5, ADR 0014).

A sink's rows have ids. The partition keeps them in the store, tagged with the batch that they came with last: the one
after the batch that the sink has committed last. The commit of a batch deletes the ids of earlier ones. So a committed
batch can still be repeated: a driver that is lost may not know that it has committed it.

```text
 batch 0 ids ──┐                      commit 0: deletes none
 batch 1 ids ──┼──┐                   commit 1: deletes ids of batch 0
 batch 2 ids      └── ...             commit 2: deletes ids of batch 1
```

The store is asked once, for all commands that wait, whether rows are stored. Commands wait in line, so that two
attempts at the same rows can't pass each other. Where memory has all ids of a sink, rows that are surely new pass
without a look-up: nearly all are. Memory has all ids from some batch on; from the first, if the store had none when the
sink was first used here.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from partibus.message import Message
from partibus.partition.core.events import SinkCommitted, SinkIdsForgotten, SinkIdsKept
from partibus.partition.core.step import Step
from partibus.partition.protocol.commands import SINK_ENDS, CommitSink, Enqueue
from partibus.partition.protocol.load_requests import SinkCount, SinkLoad

IDS_MAX = 32_768
"""The most ids in memory, of all sinks of a partition: 3 MB. With more the store is asked again, until two more batches
are committed.
"""


ID_BYTES = 110
"""Memory of one: its bytes and its place in a set."""


class _Ids:
    """The ids of one sink."""

    __slots__ = ("batches", "first", "newest", "oldest")

    def __init__(self, first: int) -> None:
        self.first = first
        """Ids of this batch and later ones are here."""
        self.oldest = 0
        """Ids of earlier batches than this are not in the store."""
        self.newest = 0
        self.batches: dict[int, set[bytes]] = {}


class SinkMemory:
    """The ids of one partition's sinks in memory."""

    __slots__ = ("_count", "_sinks")

    def __init__(self) -> None:
        self._sinks: dict[int, _Ids] = {}
        self._count = 0

    @property
    def size_bytes(self) -> int:
        """The memory of the ids."""
        return ID_BYTES * self._count

    def has(self, sink: int) -> bool:
        """Something is known of the sink: `begin` was called, and its ids have not all been forgotten since."""
        return sink in self._sinks

    def begin(self, sink: int, first: int) -> None:
        """Note that the store has no ids of that batch of the sink, or later ones; ``first`` 0: none at all."""
        self._sinks[sink] = _Ids(first)

    def lacks(self, sink: int, ids: Sequence[bytes]) -> bool:
        """Return True if the sink has none of the ids and they are all different. False says nothing."""
        known = self._sinks.get(sink)
        if known is None or known.oldest < known.first or len(set(ids)) < len(ids):
            return False
        return all(batch.isdisjoint(ids) for batch in known.batches.values())

    def add(self, sink: int, batch: int, ids: Sequence[bytes]) -> None:
        """Add ids that the next commit stores as those of a batch."""
        known = self._sinks.get(sink)
        if known is None:
            return
        known.newest = max(known.newest, batch)
        if batch < known.first:
            return
        kept = known.batches.setdefault(batch, set())
        self._count -= len(kept)
        kept.update(ids)
        self._count += len(kept)
        if self._count > IDS_MAX:
            for other in self._sinks.values():
                if other.batches:
                    other.batches.clear()
                    other.first = other.newest + 1
            self._count = 0

    def forget(self, sink: int, batch: int) -> None:
        """Forget ids of a batch and earlier ones, which the store has deleted."""
        known = self._sinks.get(sink)
        if known is None:
            return
        known.oldest = max(known.oldest, batch + 1)
        for old in [one for one in known.batches if one <= batch]:
            self._count -= len(known.batches.pop(old))
        if known.newest <= batch:
            del self._sinks[sink]


LOOKED_UP_MAX = 8_192
"""The most ids of a load for several commands; those of one command are looked up together in any case."""
TRIM_IDS = 2_000
TRIM_PAUSE_MS = 20
NEVER_COMMITTED = -1


class Sinks:
    """The sinks of one partition."""

    __slots__ = ("_committed", "_known", "_loading", "_memory", "_passing", "_sink", "_trim_ms", "_trims", "_waiting")

    def __init__(self, committed: Mapping[int, int]) -> None:
        self._committed = dict(committed)
        """Sink -> the batch that it has committed last."""
        self._memory = SinkMemory()
        self._waiting: deque[Enqueue] = deque()
        self._loading = False
        self._passing: Enqueue | None = None
        """The command that has left the line and is not carried out yet."""
        self._sink = 0
        self._known: dict[bytes, bool] = {}
        """The ids of commands that are here, of `_sink`, with whether they are stored."""
        self._trims: dict[int, list[int]] = {}
        """Sink -> [batch, ids of that one and earlier ones in the store; -1: the store has not said yet]."""
        self._trim_ms: int | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no command waits, and nothing is left to be forgotten."""
        return not (self._waiting or self._loading or self._passing or self._trims)

    @property
    def memory_bytes(self) -> int:
        """The memory of the ids in memory."""
        return self._memory.size_bytes

    # -- waiting commands --------------------------------------------------------------------------------------------

    def lets_pass(self, command: Enqueue) -> bool:
        """Tell whether a command has waited for its turn, which has come."""
        return command is self._passing

    def wait(self, command: Enqueue) -> None:
        """Queue a command behind those that wait."""
        self._waiting.append(command)

    def next(self, step: Step) -> Enqueue | None:
        """Return the next command whose ids are all decided.

        None: no command waits, another one is not carried out yet, or the store was asked.
        """
        if self._loading or self._passing is not None:
            return None
        if not self._waiting:
            self._known.clear()
            return None
        sink, ids = _rows(self._waiting[0])
        if self._sink != sink or any(item not in self._known for item in ids):
            if self._memory.lacks(sink, ids):
                self._known.clear()  # it lists none of these ids as stored, which is about to change
                self._passing = self._waiting.popleft()
                return self._passing
            # Earlier answers are of no use: the commands whose ids were looked up last have passed.
            asked: dict[bytes, None] = {}
            for waiting in self._waiting:
                other, ids = _rows(waiting)
                if other != sink or len(asked) >= LOOKED_UP_MAX:
                    break
                asked.update(dict.fromkeys(ids))
            self._known.clear()
            self._sink = sink
            self._loading = True
            step.loads.append(SinkLoad(sink, list(asked), counts=not self._memory.has(sink)))
            return None
        self._passing = self._waiting.popleft()
        return self._passing

    def found(self, load: SinkLoad, stored: set[bytes], count: int | None) -> None:
        """Take the store's answer about ids, and the number of the sink's ids if it was asked for."""
        self._loading = False
        if count is not None:
            self._memory.begin(load.sink, 0 if count == 0 else self._batch(load.sink) + 1)
        self._known.update((item, item in stored) for item in load.ids)

    def passed(self) -> None:
        """Note that a command is carried out, or refused."""
        self._passing = None

    def new_rows(
        self, command: Enqueue, ids: Iterator[bytes | None] | None, step: Step
    ) -> tuple[Sequence[Message | None], Iterator[bytes | None] | None]:
        """Return the messages with None in place of those that the sink has stored; the others count as stored now.

        With them ``ids``, their ids of duplicate detection. A repeated row belongs to the batch that it came with last,
        and is known as long as that.
        """
        sink, wanted = _rows(command)
        batch = self._batch(sink)
        self._memory.add(sink, batch, wanted)
        known = self._known
        if not known:  # surely new
            step.events.append(SinkIdsKept(sink, batch, wanted, are_new=True))
            return command.messages, ids
        messages: list[Message | None] = []
        again = False
        for message, item in zip(command.messages, wanted, strict=True):
            if known[item]:
                messages.append(None)
                again = True
            else:
                known[item] = True
                messages.append(message)
        step.events.append(SinkIdsKept(sink, batch, wanted))
        if not again:  # the usual case
            return command.messages, ids
        if ids is not None:
            ids = iter([None if message is None else item for message, item in zip(messages, ids, strict=False)])
        return messages, ids

    # -- commits -----------------------------------------------------------------------------------------------------

    def commit(self, command: CommitSink, step: Step) -> None:
        """Commit a batch: have the ids of earlier ones deleted."""
        sink = command.sink
        before = self._committed.get(sink, NEVER_COMMITTED)
        if command.batch == SINK_ENDS:
            self._forget(sink, before + 1, step)
        elif command.batch > before:
            self._committed[sink] = command.batch
            step.events.append(SinkCommitted(sink, command.batch))
            if before != NEVER_COMMITTED:
                self._forget(sink, before, step)

    def _batch(self, sink: int) -> int:
        """Return the batch that rows belong to now."""
        return self._committed.get(sink, NEVER_COMMITTED) + 1

    def _forget(self, sink: int, batch: int, step: Step) -> None:
        self._trims[sink] = [batch, -1]
        step.loads.append(SinkCount(sink, batch))

    def counted(self, load: SinkCount, count: int, now_ms: int) -> None:
        """Take the number of ids to delete."""
        trim = self._trims.get(load.sink)
        if trim is None or trim[0] != load.batch:
            return  # another batch has been committed since
        trim[1] = count
        if not count:
            self._forgotten(load.sink, load.batch)
        elif self._trim_ms is None:
            self._trim_ms = now_ms

    def next_deadline_ms(self) -> int | None:
        """Return when `trim` has work."""
        return self._trim_ms

    def trim(self, now_ms: int, step: Step) -> None:
        """Have some ids removed: slices, lest one commit takes long."""
        if self._trim_ms is None or now_ms < self._trim_ms:
            return
        for sink, trim in self._trims.items():
            batch, left = trim
            if left > 0:
                step.events.append(SinkIdsForgotten(sink, batch, TRIM_IDS))
                trim[1] = left - TRIM_IDS
                if trim[1] <= 0:
                    self._forgotten(sink, batch)
                break
        more = any(left > 0 for _, left in self._trims.values())
        self._trim_ms = now_ms + TRIM_PAUSE_MS if more else None

    def _forgotten(self, sink: int, batch: int) -> None:
        del self._trims[sink]
        self._memory.forget(sink, batch)


def _rows(command: Enqueue) -> tuple[int, list[bytes]]:
    """Return the pairs (sink, ids)."""
    assert command.sink is not None, "only such commands wait here"
    return command.sink
