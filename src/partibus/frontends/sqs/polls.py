"""Receivers of one request each: they wait for messages, and give all that came to the request.

A poll ends when its messages are there, its time is over, the queue is deleted, or the client has left. It first
withdraws its demand, so that a message on its way is either part of the answer or back in its place.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from partibus.errors import PartibusError, ReadExclusively, ServerBusy
from partibus.frontends.sqs.errors import SqsError
from partibus.namespace.broker import Broker
from partibus.namespace.entity import Entity
from partibus.partition.protocol.commands import (
    CancelReceiveGroups,
    ChangeLocks,
    LockToken,
    Outcome,
    ReceiveGroups,
    Settle,
)
from partibus.partition.protocol.keys import Entry, SubqueueKind
from partibus.partition.protocol.replies import Granted, GroupsGranted
from partibus.routing.entity import Inspection, inspect_each
from partibus.routing.fault_injections import CallLater
from partibus.routing.partitions import PartitionHandle
from partibus.routing.receive import Source

ANSWER_BYTES: Final = 2 * 1024 * 1024
"""Stored bytes of one answer. Ten messages of 1 MiB would take 40 ms to encode."""
IN_FLIGHT_MAX: Final = 120_000
"""Messages in flight from which on a receive of a standard queue that does not wait is refused."""
COLD_MS: Final = 250
"""How long a receive that does not wait gives a partition that has messages in its store only."""
RETRY_MS: Final = 200
"""The pause before a partition is asked again whose store has failed, or which a cursor reads alone."""
_ACTIVE: Final = int(SubqueueKind.ACTIVE)

Found = Sequence[tuple[PartitionHandle, int, int, list[Entry]]]
"""Partition, lock id, end of the lock, entries."""
OnFound = Callable[[Found], None]


STEP_MS: Final = 100
"""Long polls end in steps of so long, up to a step late. A thousand that wait 20 s end fifty times a second. One by one
they would wake a processor each time, with nothing of the broker in its caches.
"""


ENDS_A_TURN: Final = 50
"""Waits that end in one turn of the loop: they take some 10 ms."""


class Ends:
    """The ends of waits: one timer for all that end in the same step."""

    def __init__(self, call_later: CallLater, now_ms: Callable[[], float]) -> None:
        self._call_later = call_later
        self._now_ms = now_ms
        self._steps: dict[int, dict[Callable[[], None], None]] = {}
        """Calls by the number of their step."""

    def add(self, wait_ms: float, call: Callable[[], None]) -> "_End":
        """Make a call when a wait is over; return what cancels it."""
        now_ms = self._now_ms()
        step = int((now_ms + wait_ms) // STEP_MS) + 1
        calls = self._steps.get(step)
        if calls is None:
            calls = self._steps[step] = {}
            self._call_later(step * STEP_MS - now_ms, partial(self._end, step))
        calls[call] = None
        return _End(calls, call)

    def _end(self, step: int) -> None:
        self._go_on(self._steps.pop(step))

    def _go_on(self, calls: dict[Callable[[], None], None]) -> None:
        """Make some of the calls now and the others soon, also when one has raised an exception."""
        try:
            for _ in range(min(len(calls), ENDS_A_TURN)):
                calls.popitem()[0]()
                if not calls:  # a call may have cancelled others
                    break
        finally:
            if calls:
                self._call_later(0, partial(self._go_on, calls))


class _End:
    """The end of one wait."""

    __slots__ = ("_call", "_calls")

    def __init__(self, calls: dict[Callable[[], None], None], call: Callable[[], None]) -> None:
        self._calls = calls
        self._call = call

    def cancel(self) -> None:
        """Make no call."""
        self._calls.pop(self._call, None)


class _Timers(Protocol):
    """A source of timers."""

    @property
    def call_later(self) -> CallLater:
        """Set a timer."""
        ...

    @property
    def ends(self) -> Ends:
        """The timers of waits."""
        ...


class Asker(Protocol):
    """The owner of a poll: a request, or a message move task."""

    on_gone: Callable[[], None] | None
    end_early: Callable[[], None] | None

    @property
    def broker(self) -> Broker:
        """The namespace."""
        ...

    @property
    def state(self) -> _Timers:
        """The shared state, which has the timers."""
        ...

    def refuse(self, error: SqsError | PartibusError) -> None:
        """End without messages."""
        ...

    def guarded(self, step: Callable[..., None]) -> Callable[..., None]:
        """Return a callback whose errors end the asker."""
        ...


class _Poll:
    """The common part of both kinds of polls."""

    def __init__(
        self, call: Asker, entity: Entity, count: int, wait_ms: float, lock_ms: int, on_found: OnFound
    ) -> None:
        """Wait up to ``wait_ms`` for up to ``count`` messages. ``lock_ms`` 0: they stay visible."""
        self._call = call
        self._entity = entity
        self._route = entity.route
        self._count = count
        self._wait_ms = wait_ms
        self._lock_ms = lock_ms
        self._on_found = on_found
        self._found: list[tuple[PartitionHandle, int, int, list[Entry]]] = []
        self._got = 0
        self._size_bytes = 0
        """Stored bytes of the messages that came."""
        self._is_gone = False
        """Whether the client has left."""
        self._is_ending = False
        self._is_over = False
        self.has_failed = False
        """Whether it may have ended without messages although there are some."""
        self._timer: Any = None

    @property
    def waiting(self) -> bool:
        """Whether it waits for messages, so that the entity is not idle."""
        return True

    def start(self) -> None:
        """Begin. Raises `ServerBusy` when the queue has as many receivers as it takes."""
        self._call.broker.clients.add_receiver(self._entity.queue)
        self._entity.join(self)
        self._call.on_gone = self._leave
        self._call.end_early = self.end
        if self._wait_ms > 0:
            self._timer = self._call.state.ends.add(self._wait_ms, self.end)
        self._ask()

    def on_entity_changed(self) -> None:
        """End with nothing when the queue was deleted or hands out no messages."""
        if self._entity.queue.deleted or not self._entity.queue.can_receive:
            self.has_failed = True
            self._finish()

    def _leave(self) -> None:
        self._is_gone = True
        self.end()

    def end(self) -> None:
        """Withdraw the demand; the answer follows."""
        if not self._is_ending:
            self._is_ending = True
            self._withdraw()

    def _add(self, partition: PartitionHandle, lock_id: int, until_ms: int, entries: list[Entry]) -> None:
        """Take granted messages, or give them back if the answer has left."""
        room = 0 if self._is_over else self._count - self._got
        if len(entries) > room:
            self._release(partition, lock_id, entries[room:])
            entries = entries[:room]
        if entries:
            self._got += len(entries)
            self._size_bytes += sum([entry.size_bytes for entry in entries])
            self._found.append((partition, lock_id, until_ms, entries))

    def _finish(self) -> None:
        if self._is_over:
            return
        self._is_over = self._is_ending = True
        if self._timer is not None:
            self._timer.cancel()
        self._entity.leave(self)
        self._call.broker.clients.remove_receiver(self._entity.queue)
        self._close()
        if self._is_gone:
            self._release_found()
        else:
            self._call.on_gone = self._call.end_early = None
            self._call.guarded(self._hand_over)()

    def _hand_over(self) -> None:
        try:
            self._on_found(self._found)
        except Exception:
            self._release_found()
            raise

    def _release_found(self) -> None:
        for partition, lock_id, _, entries in self._found:
            self._release(partition, lock_id, entries)

    def _release(self, partition: PartitionHandle, lock_id: int, entries: list[Entry]) -> None:
        if lock_id:
            partition.submit(Settle(0, _ACTIVE, Outcome.RELEASE, [(lock_id, entry.pos) for entry in entries]))

    def _ask(self) -> None:
        raise NotImplementedError

    def _withdraw(self) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        """Do nothing: there is no state to close."""


class StandardPoll(_Poll):
    """A poll of a standard queue: a receiver like a link of AMQP, for one answer."""

    def _ask(self) -> None:
        lock_ms = 0 if self._route.partitioned else self._lock_ms
        self._source: Source = self._route.source(
            _ACTIVE, delete=False, on_granted=self._granted, on_failed=self._failed, lock_ms=lock_ms, once=True
        )
        self._source.ask(self._count, ANSWER_BYTES)
        if self._wait_ms <= 0 and not self._is_ending:
            inspect_each(self._route, self._inspected)

    def _inspected(self, inspection: Inspection) -> None:
        """End, unless a partition has messages that it still has to read from its store."""
        if self._is_ending:
            return
        active = [found.subqueues.get(_ACTIVE) for found in inspection.found.values()]
        if any(one is not None and one.locked >= IN_FLIGHT_MAX for one in active):
            self._call.refuse(SqsError("OverLimit", f"Too many messages in flight: at most {IN_FLIGHT_MAX}."))
            self._is_gone = True
            self.end()
            return
        visible = sum(one.messages - one.locked for one in active if one is not None)
        if visible > sum(found.has_scheduled for found in inspection.found.values()):
            self._timer = self._call.state.call_later(COLD_MS, self.end)
        else:
            self.end()

    def _granted(self, partition: PartitionHandle, granted: Granted) -> None:
        if granted.entries:
            self._lock_as_wanted(partition, granted)
            self._add(partition, granted.lock_id, granted.until_ms, granted.entries)
        if self._is_over:
            return
        if self._got and granted.ended:
            self._finish()
        elif self._got:
            self.end()
        elif granted.ended and not self._is_ending:
            self._source.ask(self._count, ANSWER_BYTES)

    def _lock_as_wanted(self, partition: PartitionHandle, granted: Granted) -> None:
        """Set the locks that a partitioned queue's cache makes for the entity's LockDuration."""
        if self._route.partitioned and self._lock_ms not in (0, self._entity.queue.lock_duration_ms):
            tokens: list[LockToken] = [(granted.lock_id, entry.pos) for entry in granted.entries]
            numbers = self._route.numbers
            partition.submit(ChangeLocks(numbers.next(), _ACTIVE, tokens, [self._lock_ms] * len(tokens)), _ignore)

    def _failed(self, error: PartibusError) -> None:
        """Answer with nothing after a pause when a store has failed: the client asks again.

        A queue that a cursor reads alone has no messages for others, either.
        """
        if self._is_over:
            return
        self.has_failed = True
        if isinstance(error, ReadExclusively | ServerBusy) or error.retriable:
            if not self._is_ending:
                self._is_ending = True
                self._timer = self._call.state.call_later(RETRY_MS, self._finish)
            else:
                self._finish()
        else:
            self._call.refuse(error)
            self._is_gone = True
            self._finish()

    def _withdraw(self) -> None:
        self._source.stop(self._finish)

    def _close(self) -> None:
        self._source.close()


def _ignore(reply: object) -> None:
    """Ignore a reply."""


class GroupPoll(_Poll):
    """A poll of a FIFO queue: it asks one partition after another, then waits at all of them if none had messages."""

    _first_turn = 0

    attempt: str | None = None
    """The id under which partitions remember what they grant."""

    is_closed: Callable[[int], bool] = staticmethod(lambda partition_id: False)
    """Tells whether a partition has no budget to answer from now."""

    def _ask(self) -> None:
        self._asked: dict[int, PartitionHandle] = {}
        """Waiting requests."""
        self._closed: set[int] = set()
        """Rows of partitions that are looked at again later."""
        self._is_watching = False
        partitions = list(self._route.partitions)
        GroupPoll._first_turn += 1
        turn = GroupPoll._first_turn % len(partitions)
        self._left = [one for one in (*partitions[turn:], *partitions[:turn]) if not self.is_closed(one.partition_id)]
        if len(partitions) == 1 and self._wait_ms > 0:
            self._wait_everywhere()
        else:
            self._ask_next()

    def _ask_next(self) -> None:
        """Ask the next partition for the messages that it has ready."""
        if self._is_ending:
            self._finish()
        elif self._left:
            self._submit(self._left.pop(0), wait=False)
        elif self._got or self._wait_ms <= 0:
            self._finish()
        else:
            self._wait_everywhere()

    def _wait_everywhere(self) -> None:
        """Wait at every partition, also at those that are added meanwhile."""
        if not self._is_watching:
            self._is_watching = True
            self._route.grown.append(self._wait_everywhere)
        if not self._is_ending:
            asked = {partition.row for partition in self._asked.values()}
            for partition in list(self._route.partitions):
                if partition.row not in asked and partition.row not in self._closed:
                    self._wait_at(partition)

    def _close(self) -> None:
        if self._is_watching:
            self._route.grown.remove(self._wait_everywhere)

    def _wait_at(self, partition: PartitionHandle) -> None:
        """Wait at a partition, or look again later if it is closed."""
        self._closed.discard(partition.row)
        if self._is_ending:
            return
        if self.is_closed(partition.partition_id):
            self._wait_later(partition)
        else:
            self._submit(partition, wait=True)

    def _wait_later(self, partition: PartitionHandle) -> None:
        self._closed.add(partition.row)
        self._call.state.call_later(RETRY_MS, lambda: self._wait_at(partition))

    def _submit(self, partition: PartitionHandle, *, wait: bool) -> None:
        request = self._route.numbers.next()
        self._asked[request] = partition

        def answered(reply: Any) -> None:
            self._answered(request, partition, reply, wait=wait)

        room, size_bytes = self._count - self._got, max(1, ANSWER_BYTES - self._size_bytes)
        partition.submit(ReceiveGroups(request, room, size_bytes, self._lock_ms, wait, self.attempt), answered)

    def _answered(self, request: int, partition: PartitionHandle, reply: Any, *, wait: bool) -> None:
        self._asked.pop(request, None)
        if isinstance(reply, GroupsGranted):
            if reply.entries:
                self._add(partition, reply.lock_id, reply.until_ms, reply.entries)
        else:
            self.has_failed = True
            if wait and not self._is_ending:
                # The store is away, or a cursor reads the queue alone. Other partitions may have messages meanwhile.
                self._wait_later(partition)
                return
        if self._is_over:
            return
        is_full = self._got >= self._count or (wait and self._got > 0)
        if is_full or self._is_ending:
            self.end()
            if not self._asked:
                self._finish()
        elif not wait:
            self._ask_next()
        else:
            self._wait_at(partition)

    def _withdraw(self) -> None:
        if not self._asked:
            self._finish()
            return
        for request, partition in list(self._asked.items()):
            partition.submit(
                CancelReceiveGroups(self._route.numbers.next(), request), self._cancelled(request, partition)
            )

    def _cancelled(self, request: int, partition: PartitionHandle) -> Callable[[Any], None]:
        def done(_: Any) -> None:
            # A grant that crossed the cancellation has come before this reply.
            if self._asked.pop(request, None) is not None:
                partition.forget(request)
            if not self._asked:
                self._finish()

        return done
