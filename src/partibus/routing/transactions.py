"""Transactions: operations that are buffered until the client commits them all or none (D16, rows T1-T8).

Buffered operations have no effect: no message is stored, and locks stay. The first operation pins the transaction to
one entity and one partition, so that a commit is one command to one partition, and one transaction of its store. A
refused operation leaves a transaction that can only be rolled back, because a partial commit is never wanted.

A transaction belongs to a connection and to an owner on it. The size of its operations is bounded.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from partibus.clock import Clock
from partibus.errors import (
    InvalidOperation,
    OutcomeUnknown,
    PartibusError,
    QuotaExceeded,
    TransactionRolledBack,
    TransactionTimedOut,
    TransactionUnknown,
    shown,
)
from partibus.limits import TransactionLimits
from partibus.message import Message, with_destination
from partibus.partition.protocol.commands import Enqueue, Settle, TakeNumbers, Transact
from partibus.partition.protocol.replies import (
    Accepted,
    Failed,
    Moved,
    Refused,
    ScreenFirst,
    Settled,
    Transacted,
    TransactionRefused,
)
from partibus.routing.entity import EntityRoute
from partibus.routing.partitions import PartitionHandle, error_of
from partibus.routing.placing import HOPS_MAX, screen

OnDone = Callable[[PartibusError | None], None]
"""A function that gets None when a transaction is durable, `OutcomeUnknown` when it is in doubt, else the error of a
transaction without effect.
"""
OnNumbered = Callable[[Accepted | Failed], None]
_Operation = Enqueue | Settle


class Place(Protocol):
    """A top-level entity, with its sub-queues."""

    route: EntityRoute

    @property
    def deleted(self) -> bool:
        """Whether it was deleted. An entity that is made again at its path is another one."""
        ...

    def check_send(self) -> None:
        """Raise the error that prevents sending to it now."""
        ...


class Transaction:
    """One transaction. Its methods for operations are called inside `operation`."""

    __slots__ = (
        "_commands",
        "_connection",
        "_deadline_ms",
        "_entity",
        "_error",
        "_key",
        "_messages",
        "_on_done",
        "_partition",
        "_unnumbered",
        "_watchers",
        "id",
        "owner",
        "size_bytes",
    )

    def __init__(self, connection: "Transactions", transaction_id: bytes, owner: object) -> None:
        self._connection = connection
        self.id = transaction_id
        self.owner = owner
        self.size_bytes = 0
        """The size of its operations."""
        self._commands: list[_Operation] = []
        self._messages = 0
        self._deadline_ms: int | None = None
        self._entity: Place | None = None
        self._partition: PartitionHandle | None = None
        self._key: str | None = None
        """The key of its messages, on a partitioned entity."""
        self._error: PartibusError | None = None
        """The error that allows only a roll-back."""
        self._unnumbered = 0
        """The number of operations without their sequence numbers yet."""
        self._on_done: OnDone | None = None
        """The callback of the commit."""
        self._watchers: list[OnDone] = []

    @property
    def failed(self) -> bool:
        """Whether the transaction can only be rolled back."""
        return self._error is not None

    # -- operations --------------------------------------------------------------------------------------------------

    @contextmanager
    def operation(self) -> Iterator[None]:
        """Enclose one operation, including its decoding: a `PartibusError` inside fails the transaction.

        Raises `TransactionTimedOut` and `TransactionRolledBack` for an earlier end.
        """
        self._check_open()
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._deadline_ms is None:
            self._deadline_ms = self._connection.now_ms() + self._connection.limits.duration_ms
        try:
            yield
        except PartibusError as error:
            self._fail(TransactionRolledBack(f"an operation in it was refused ({error})"))
            raise

    def send(self, entity: Place, messages: list[Message]) -> None:
        """Store messages at the commit, together and in order.

        Raises `InvalidOperation` (no key, a second key, another entity) and `QuotaExceeded`.
        """
        if not messages:  # an empty batch
            return
        self._pin(entity, self._partition_of(entity, messages))
        self._add(Enqueue(0, messages), len(messages), sum([len(message.data) for message in messages]))

    def send_through(self, via: Place | None, destination: str, messages: list[Message]) -> None:
        """Store messages for another entity than the transaction's own.

        The pinned partition stores the messages at the commit and then forwards them (section 8). ``via`` is the entity
        that the transaction must be about; None accepts any. Raises as `send` does.
        """
        if not messages:
            return
        if via is not None and self._entity is None:
            if via.route.partitioned:
                raise InvalidOperation(
                    f"Messages were sent through the partitioned entity '{via.route.name}' first in a transaction. "
                    "Begin with an operation on it, which has a partition, or send through a plain entity."
                )
            self._pin(via, via.route.partitions[0])
        elif via is not None:
            assert self._partition is not None, "pinned with the entity"
            self._pin(via, self._partition)
        transfers = [Message(with_destination(message.data, destination)) for message in messages]
        self._add(Enqueue(0, transfers, via=True), len(messages), sum([len(message.data) for message in transfers]))

    def is_about_another(self, entity: Place) -> bool:
        """Tell whether the transaction has begun with another top-level entity."""
        return self._entity is not None and self._entity is not entity

    def schedule(self, entity: Place, messages: list[Message], on_numbered: OnNumbered) -> PartitionHandle:
        """Send messages with sequence numbers from the start; return the partition.

        ``on_numbered`` gets the reply of an `Enqueue` without a transaction. Raises as `send` does.
        """
        partition = self._partition_of(entity, messages)
        self._pin(entity, partition)
        command = Enqueue(0, messages)
        self._add(command, len(messages), sum([len(message.data) for message in messages]))
        self._unnumbered += 1

        def numbered(reply: Any) -> None:
            self._unnumbered -= 1
            if isinstance(reply, Accepted):
                command.first_sequence, command.numbered_by = reply.first_sequence, partition.row
            else:
                error = error_of(reply, entity.route.name)
                self._fail(TransactionRolledBack(f"there were no sequence numbers for its messages ({error})"))
            on_numbered(reply)
            if self._on_done is not None and not self._unnumbered:
                self._submit(self._on_done)

        partition.submit(TakeNumbers(entity.route.numbers.next(), len(messages)), numbered)
        return partition

    def settle(self, entity: Place, partition: PartitionHandle, command: Settle) -> None:
        """Settle messages at the commit, if they are still locked then.

        Raises `InvalidOperation` (another entity or partition) and `QuotaExceeded`.
        """
        self._pin(entity, partition)
        said = [command.reason or "", command.description or "", repr(command.properties or "")]
        self._add(command, len(command.tokens), sum(map(len, said)))

    def _partition_of(self, entity: Place, messages: list[Message]) -> PartitionHandle:
        """Return the partition of messages. On a partitioned entity a transaction has one key (rows T2-T5, T8)."""
        route = entity.route
        if not route.partitioned:
            return route.partitions[0]
        for message in messages:
            key = message.key
            if key is None:
                raise InvalidOperation(
                    f"A message without a key was sent to the partitioned entity '{route.name}' in a transaction. Set "
                    "its partition key or session id, the same one for all messages of the transaction."
                )
            if self._key is None:
                self._key = key
            elif key != self._key:
                raise InvalidOperation(
                    f"A message with the key {shown(key)} was sent to the partitioned entity '{route.name}' in a "
                    f"transaction whose messages have the key {shown(self._key)}. Use one partition key or session id "
                    "in a transaction."
                )
        assert self._key is not None, "there is a message"
        return route.partitions[route.partition_of(self._key)]

    def _pin(self, entity: Place, partition: PartitionHandle) -> None:
        if self._entity is None:
            self._entity, self._partition = entity, partition
        elif self._entity is not entity:
            raise InvalidOperation(
                "Local transactions cannot span multiple top-level entities: this one began with "
                f"'{self._entity.route.name}', so it can't go on with '{entity.route.name}'. Use one for each."
            )
        elif self._partition is not partition:
            assert self._partition is not None, "pinned with the entity"
            raise InvalidOperation(
                f"The transaction began in partition {self._partition.partition_id} of '{entity.route.name}', so it "
                f"can't go on in partition {partition.partition_id}. Use the partition key of the messages that it "
                "began with, or a transaction for each key."
            )

    def _add(self, command: _Operation, messages: int, size_bytes: int) -> None:
        limits = self._connection.limits
        messages_max = self._connection.messages_max()
        if self._messages + messages > messages_max:
            raise QuotaExceeded(
                f"A transaction with {self._messages} messages and {messages} more",
                messages_max,
                "messages",
                "Commit earlier, and go on in another transaction.",
            )
        if self._connection.size_bytes + size_bytes > limits.bytes_max:
            raise QuotaExceeded(
                f"A connection with {self._connection.size_bytes} bytes in open transactions and {size_bytes} more",
                limits.bytes_max,
                "bytes",
                "Commit earlier, or use fewer transactions at a time.",
            )
        self._commands.append(command)
        self._messages += messages
        self.size_bytes += size_bytes
        self._connection.size_bytes += size_bytes

    # -- the end -----------------------------------------------------------------------------------------------------

    def when_over(self, call: OnDone) -> None:
        """Set a callback that runs once, before the commit's, also after a roll-back."""
        self._watchers.append(call)

    def commit(self, on_done: OnDone) -> None:
        """Commit all or none; ``on_done`` is called once, now or later.

        The transaction accepts no further operations.
        """
        self._connection.forget(self)
        self._check_open()
        self._on_done = done = self._telling(on_done) if self._watchers else on_done
        if not self._unnumbered:
            self._submit(done)

    def _telling(self, on_done: OnDone) -> OnDone:
        def done(error: PartibusError | None) -> None:
            for call in self._watchers:
                call(error)
            on_done(error)

        return done

    def roll_back(self) -> None:
        """Discard the operations."""
        self._connection.forget(self)
        self._clear()
        for call in self._watchers:
            call(TransactionRolledBack("its client has not committed it"))

    def expire(self) -> None:
        """Release the operations if the time is over, or the entity was deleted; the next use reports it."""
        self._check_open()

    def _submit(self, on_done: OnDone) -> None:
        error = self._error
        sends = any(type(command) is Enqueue and not command.via for command in self._commands)
        if error is None and self._entity is not None and sends:
            try:
                self._entity.check_send()
            except PartibusError as refusal:
                error = TransactionRolledBack(str(refusal))
        if error is not None or self._entity is None:
            self._clear()
            on_done(error)
            return
        assert self._partition is not None, "pinned with the entity"
        self._submit_to(self._entity.route, self._partition, self._commands, on_done, HOPS_MAX)

    def _submit_to(
        self, route: EntityRoute, partition: PartitionHandle, commands: list[_Operation], on_done: OnDone, hops: int
    ) -> None:
        """Have a partition carry the operations out; follow slots that have moved (ADR 0026)."""

        def answered(reply: Any) -> None:
            if hops and isinstance(reply, Moved) and (owner := _new_owner(route, reply, commands)) is not None:
                self._submit_to(route, owner, commands, on_done, hops - 1)
            elif hops and isinstance(reply, ScreenFirst):
                sends = [command for command in commands if isinstance(command, Enqueue) and not command.via]
                screen(route.numbers, route.partition, partition, sends, list(reply.sources), screened)
            else:
                self._clear()
                on_done(_error_of(reply, commands, route.name))

        def screened(failed: Any) -> None:
            if failed is None:
                self._submit_to(route, partition, commands, on_done, hops - 1)
            else:
                answered(failed)

        partition.submit(Transact(route.numbers.next(), commands), answered)

    def _check_open(self) -> None:
        if self._error is not None:
            return
        if self._deadline_ms is not None and self._connection.now_ms() >= self._deadline_ms:
            self._fail(TransactionTimedOut(self._connection.limits.duration_ms))
        elif self._entity is not None and self._entity.deleted:
            name = self._entity.route.name
            self._fail(TransactionRolledBack(f"'{name}' was deleted. If it was made again, begin another transaction."))

    def _fail(self, error: PartibusError) -> None:
        """Allow only a roll-back from now on; the first error counts."""
        if self._error is None:
            self._error = error
        self._clear()

    def _clear(self) -> None:
        self._commands = []
        self._connection.size_bytes -= self.size_bytes
        self.size_bytes = 0


class Transactions:
    """The open transactions of one connection, by id.

    ``new_id`` makes ids that were never used: an id of a former connection must not be found here. ``messages_max``
    limits the messages that each transaction may send and settle.
    """

    def __init__(
        self, clock: Clock, limits: TransactionLimits, new_id: Callable[[], bytes], messages_max: Callable[[], int]
    ) -> None:
        self.limits = limits
        self.messages_max = messages_max
        self.now_ms = clock.now_ms
        self.size_bytes = 0
        """The total size of all operations."""
        self._new_id = new_id
        self._open: dict[bytes, Transaction] = {}

    def __len__(self) -> int:
        return len(self._open)

    def declare(self, owner: object) -> Transaction:
        """Begin a transaction. Raises `QuotaExceeded`."""
        if len(self._open) >= self.limits.open_max:
            raise QuotaExceeded(
                "A connection with its open transactions",
                self.limits.open_max,
                "transactions",
                "Discharge some first, or use another connection.",
            )
        transaction = Transaction(self, self._new_id(), owner)
        self._open[transaction.id] = transaction
        return transaction

    def find(self, transaction_id: bytes) -> Transaction:
        """Return an open transaction. Raises `TransactionUnknown`."""
        transaction = self._open.get(transaction_id)
        if transaction is None:
            raise TransactionUnknown(transaction_id)
        return transaction

    def forget(self, transaction: Transaction) -> None:
        """Remove a discharged transaction."""
        self._open.pop(transaction.id, None)

    def roll_back_all(self, owner: object) -> None:
        """Roll back all transactions of an owner that has ended."""
        for transaction in [transaction for transaction in self._open.values() if transaction.owner is owner]:
            transaction.roll_back()

    def expire(self) -> None:
        """Release the operations of all transactions whose time is over."""
        for transaction in self._open.values():
            transaction.expire()


def _error_of(reply: Any, commands: list[_Operation], entity: str) -> PartibusError | None:
    if isinstance(reply, Transacted):
        return None
    if isinstance(reply, Moved | ScreenFirst):
        return TransactionRolledBack(str(error_of(reply, entity)))
    if isinstance(reply, TransactionRefused):
        what = _described(commands[reply.index])
        because = _because(reply.because, entity)
        return TransactionRolledBack(f"operation {reply.index + 1} of {len(commands)}, {what}, failed: {because}")
    if reply.executed is not False:  # also of a commit that was done: the answer, which is lost, may be a refusal
        return OutcomeUnknown(
            f"A messaging store of '{entity}' failed in the middle of a commit, so it is unknown whether the "
            f"transaction was done as a whole or not at all: {reply.message}"
        )
    return TransactionRolledBack(str(error_of(reply, entity)))


def _new_owner(route: EntityRoute, reply: Moved, commands: list[_Operation]) -> PartitionHandle | None:
    """Return the partition that carries out the operations instead.

    None: the old one has a part in them. Its messages are settled, too, or clients hold numbers that it gave out.
    """
    places = set(reply.places.values())
    if len(places) != 1:
        return None
    for command in commands:
        if isinstance(command, Settle) or command.via or command.first_sequence is not None:
            return None
    return route.partition(places.pop())


def _described(command: _Operation) -> str:
    """Name an operation for error texts."""
    match command:
        case Enqueue():
            return f"to send {_messages(len(command.messages))}"
        case Settle():
            return f"to {command.outcome.value} {_messages(len(command.tokens))}"


def _because(reply: Settled | Refused, entity: str) -> str:
    if isinstance(reply, Refused):
        return str(error_of(reply, entity))
    return f"the lock of {_messages(len(reply.lost))} is no longer held. Receive again, and commit in time."


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"
