"""Message move tasks at work: dead letters go back to their queues, or to another one, as new messages.

The state of a task is in the options of the dead-letter queue, so it survives restarts. The broker that owns the
queue's first partition carries it out; another one goes on when that changes. A message is deleted from the source when
it is durable at its destination: a crash in between leaves it in both.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from partibus.amqp.errors import DecodeError
from partibus.errors import PartibusError
from partibus.frontends.sqs.errors import SqsError, no_such_queue, of_core
from partibus.frontends.sqs.names import Home, QueueName, queue_of_arn, queue_of_entity
from partibus.frontends.sqs.polls import Ends, Found, GroupPoll, StandardPoll
from partibus.frontends.sqs.queues import Queues, SqsQueue, change_options
from partibus.frontends.sqs.stored import as_new, read_stored
from partibus.message import Message
from partibus.namespace.broker import Broker
from partibus.namespace.entities import MoveTask, SqsOptions
from partibus.namespace.entity import Entity
from partibus.partition.protocol.commands import Outcome, Settle
from partibus.partition.protocol.keys import Entry, SubqueueKind
from partibus.partition.protocol.replies import Failed
from partibus.routing.fault_injections import CallLater
from partibus.routing.partitions import PartitionHandle
from partibus.routing.send import send

log = logging.getLogger(__name__)

RUNNING: Final = "RUNNING"
CANCELLING: Final = "CANCELLING"
CANCELLED: Final = "CANCELLED"
COMPLETED: Final = "COMPLETED"
FAILED: Final = "FAILED"
UNDER_WAY: Final = (RUNNING, CANCELLING)

BATCH: Final = 10
LOCK_MS: Final = 60_000
LAST_WAIT_MS: Final = 500
"""How long a task waits for messages that were there at its start. Without any, it is complete."""
NOTE_EVERY_MS: Final = 1_000
"""How often progress is written to the catalog."""
RETRY_MS: Final = 500
_ACTIVE: Final = int(SubqueueKind.ACTIVE)
_NO_SOURCE: Final = "CouldNotDetermineMessageSource"
"""Why a task fails; no request is refused with this code."""


class Movers:
    """The tasks that this process carries out."""

    def __init__(self, home: Home, call_later: CallLater, ends: Ends, new_uuid: Callable[[], str]) -> None:
        self.home = home
        self.call_later = call_later
        self.ends = ends
        self.new_uuid = new_uuid
        self._running: dict[str, Mover] = {}

    def look(self, broker: Broker, queues: Queues) -> None:
        """Begin the tasks under way whose queues are this broker's and that no mover carries out yet."""
        for queue in broker.namespace.queues:
            options = queue.description.options.sqs
            if options is None or not options.moves:
                continue
            source = queues.of(queue)
            for task in options.moves:
                if task.status in UNDER_WAY and task.task_id not in self._running and source is not None:
                    entity = broker.entity_of(queue)
                    if is_here(entity):
                        self._running[task.task_id] = mover = Mover(self, broker, queues, source, entity, task)
                        mover.step()

    def moved(self, task_id: str, noted: int) -> int:
        """Return how many messages a task has moved until now; ``noted`` is the number in the catalog."""
        mover = self._running.get(task_id)
        return noted if mover is None else mover.moved

    def ended(self, task_id: str) -> None:
        """Note that a mover has stopped."""
        self._running.pop(task_id, None)


def is_here(entity: Entity) -> bool:
    """Tell whether this broker owns the first partition of an entity."""
    return entity.route.partitions[0].revision() is not None


class Mover:
    """One task at work. It is to the polls what a call is."""

    def __init__(
        self,
        movers: Movers,
        broker: Broker,
        queues: Queues,
        source: SqsQueue,
        entity: Entity,
        task: MoveTask,
    ) -> None:
        self.state = movers
        self.broker = broker
        self.on_gone: Callable[[], None] | None = None
        self.end_early: Callable[[], None] | None = None
        self._movers = movers
        self._queues = queues
        self._source = source
        self._entity = entity
        self._task = task
        self.moved = task.moved
        self._noted_ms = broker.clock.now_ms()
        self._locked_until_ms = 0 if task.is_new else self._noted_ms + LOCK_MS
        """The time until which messages may be locked for a mover that has ended with its process."""
        self._is_begun = not task.is_new

    # -- as a poll's call ----------------------------------------------------------------------------------------------

    def guarded(self, step: Callable[..., None]) -> Callable[..., None]:
        """Return a callback of the core; an error ends the task."""

        def run(*arguments: Any) -> None:
            try:
                step(*arguments)
            except (SqsError, PartibusError) as error:
                self.refuse(error)
            except Exception:  # noqa: BLE001 - a bug of ours: it ends this task and no other
                self.refuse(self._failure())

        return run

    def _failure(self) -> SqsError:
        """Log the exception being handled, and return it as a client sees it."""
        log.exception("an error inside of the broker ends the move task of %s", self._source.queue.name)
        return SqsError("InternalFailure", "An error inside of the broker; its log says more.")

    def refuse(self, error: SqsError | PartibusError) -> None:
        """Try again later, or give up."""
        if isinstance(error, PartibusError) and error.retriable:
            self._movers.call_later(RETRY_MS, self.step)
        elif isinstance(error, SqsError) and error.code == "OverLimit":
            self._end(COMPLETED)  # of the last look: other receivers hold what is left
        else:
            self._end(FAILED, (of_core(error) if isinstance(error, PartibusError) else error).code)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Take the next messages, unless the task was cancelled or is another broker's."""
        self.guarded(self._step)()

    def _step(self) -> None:
        if self._source.queue.deleted or not is_here(self._entity):
            self._movers.ended(self._task.task_id)
            return
        status = next((one.status for one in self._moves() if one.task_id == self._task.task_id), CANCELLED)
        if status != RUNNING:
            self._end(CANCELLED)
            return
        if not self._is_begun and not self._note(RUNNING):  # before it locks messages, of which a next mover must know
            self._movers.call_later(RETRY_MS, self.step)
            return
        self._is_begun = True
        count = min(BATCH, self._task.rate) if self._task.rate else BATCH
        kind = GroupPoll if self._source.fifo else StandardPoll
        # Once all have moved, the task ends at once: clients expect the full count together with the end.
        wait_ms = LAST_WAIT_MS if self.moved < self._task.to_move else 0
        self._poll = kind(self, self._entity, count, wait_ms, LOCK_MS, self._got)
        self._poll.start()

    def _moves(self) -> tuple[MoveTask, ...]:
        options = self._source.queue.description.options.sqs
        return () if options is None else options.moves

    def _got(self, found: Found) -> None:
        entries = [(partition, lock_id, entry) for partition, lock_id, _, some in found for entry in some]
        if not entries:
            if self._poll.has_failed or self.broker.clock.now_ms() < self._locked_until_ms:
                self._movers.call_later(RETRY_MS, self.step)
            else:
                self._end(COMPLETED)
            return
        left = len(entries)
        failure: PartibusError | SqsError | None = None

        def moved(error: PartibusError | SqsError | None) -> None:
            nonlocal left, failure
            failure = failure or error
            left -= 1
            if not left:
                self._next(len(entries), failure)

        for partition, lock_id, entry in entries:
            self._move(partition, lock_id, entry, moved)

    def _move(
        self,
        partition: PartitionHandle,
        lock_id: int,
        entry: Entry,
        moved: Callable[[PartibusError | SqsError | None], None],
    ) -> None:
        """Store one message at its destination, then delete it here."""
        tokens = [(lock_id, entry.pos)]

        def give_back(error: PartibusError | SqsError) -> None:
            partition.submit(Settle(0, _ACTIVE, Outcome.RELEASE, tokens))
            moved(error)

        def deleted(reply: Any) -> None:
            if not isinstance(reply, Failed):
                self.moved += 1
            moved(None)

        def sent(errors: list[PartibusError | None] | None) -> None:
            error = None if errors is None else errors[0]
            if error is not None:
                give_back(error)
                return
            number = self._entity.route.numbers.next()
            partition.submit(Settle(number, _ACTIVE, Outcome.COMPLETE, tokens), self.guarded(deleted))

        try:
            target = self._target(entry)
            message = self._message(entry, target)
        except (SqsError, PartibusError) as error:
            give_back(error)
            return
        except Exception:  # noqa: BLE001 - a bug of ours: the message stays where it is
            give_back(self._failure())
            return
        send(self.broker.entity_of(target.queue).route, [[message]], self.guarded(sent))

    def _target(self, entry: Entry) -> SqsQueue:
        """Return the destination of a message. Raises `SqsError`."""
        return self._queues.find(self.broker, self._name_of_target(entry))

    def _name_of_target(self, entry: Entry) -> QueueName:
        home = self._movers.home
        if self._task.destination_arn:
            name = queue_of_arn(home, self._task.destination_arn)
            if name is None:  # the operator has changed the account since
                raise no_such_queue()
            return name
        source = read_stored(entry.data or b"").dead_letter_source
        name = None if source is None else queue_of_entity(home, source)
        if name is None:
            raise SqsError(_NO_SOURCE, "The message names no source queue.")
        return name

    def _message(self, entry: Entry, target: SqsQueue) -> Message:
        assert entry.data is not None, "a grant brings bodies"
        message_id = self._movers.new_uuid()
        try:
            data = as_new(entry.data, message_id)
            group = read_stored(entry.data).group
        except DecodeError as error:
            raise SqsError("InvalidMessageContents", f"A stored message can't be read: {error}") from None
        delay_ms, now_ms = target.delay_ms, self.broker.clock.now_ms()
        return Message(
            data,
            message_id=message_id if target.queue.requires_duplicate_detection else None,
            session_id=group,
            scheduled_ms=now_ms + delay_ms if delay_ms else None,
            enqueued_ms=now_ms if delay_ms else None,
        )

    def _next(self, count: int, failure: PartibusError | SqsError | None) -> None:
        if failure is not None:
            self._note(RUNNING)
            self.refuse(failure)
            return
        now_ms = self.broker.clock.now_ms()
        # The full count is written with the status that ends the task.
        if now_ms - self._noted_ms >= NOTE_EVERY_MS and self.moved != self._task.to_move:
            self._noted_ms = now_ms
            self._note(RUNNING)
        pause_ms = 1000 * count / self._task.rate if self._task.rate else 0
        self._movers.call_later(pause_ms, self.step)

    # -- state ---------------------------------------------------------------------------------------------------------

    def _end(self, status: str, failure: str = "") -> None:
        self._movers.ended(self._task.task_id)
        self._note(status, failure)

    def _note(self, status: str, failure: str = "") -> bool:
        """Write progress to the catalog; return whether it is there.

        A cancellation that another request has noted meanwhile stays.
        """
        if self._source.queue.deleted:
            return False

        def change(old: SqsOptions) -> SqsOptions:
            def noted(one: MoveTask) -> MoveTask:
                if one.task_id != self._task.task_id:
                    return one
                now = one.status if status == RUNNING else status
                return replace(one, status=now, moved=self.moved, failure=failure, is_new=False)

            return replace(old, moves=tuple(map(noted, old.moves)))

        try:
            change_options(self.broker, self._movers.home, self._source, change)
        except PartibusError as error:
            if error.retriable and status != RUNNING:
                self._movers.call_later(RETRY_MS, partial(self._end, status, failure))
            return False
        return True
