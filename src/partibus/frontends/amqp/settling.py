"""Settlement of a link's deliveries: from the client's outcome to the answer when it is durable."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from partibus.amqp import ACCEPTED, DeliveryState, Disposed, Received, Rejected, Sender, TransactionalState
from partibus.errors import ArgumentError, MessageLockLost, PartibusError
from partibus.frontends.amqp.errors import amqp_error
from partibus.frontends.amqp.link_context import LinkContext
from partibus.frontends.amqp.outcomes import COMPLETE, Settlement, check_delay, check_target, settlement_of
from partibus.namespace.entity import Entity
from partibus.namespace.requests import Fault, RequestKind, fault_of
from partibus.partition.protocol.commands import LockToken, Outcome
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.replies import Failed
from partibus.routing.partitions import PartitionHandle, error_of
from partibus.tracing.tracer import Held

Context = tuple[PartitionHandle, int, int, int]
"""The context of a delivery on the wire: partition, lock id, position, and the granted end of the lock in ms."""
EXPIRED_PARTS = 3
"""How many times the bound on held messages a link remembers deliveries whose lock has expired."""
_LOOK_MS = 1_000
"""The least time between two looks for expired locks: one reads all unsettled deliveries of an AMQP session."""


class Settlements:
    """The unsettled deliveries of one link.

    ``on_room`` is called after a settlement, if that lets the client get more messages. ``lost`` makes the answer to a
    settlement without its lock.
    """

    def __init__(
        self,
        link: Sender,
        entity: Entity,
        kind: int,
        common: LinkContext,
        traces: Held | None,
        on_room: Callable[[], None],
        lost: Callable[[], PartibusError] = MessageLockLost,
    ) -> None:
        self.unsettled = 0
        """The number of messages that the client was given and has not settled."""
        self.expired = 0
        """The number of those whose lock had expired when `look_for_expired` last counted them."""
        self.is_full = False
        """Whether unsettled messages keep the client from getting as many as it wants."""
        self._look_ms = 0
        """The time before which no further lock expires, or no look is due."""
        self._clock = common.clock
        self._held_max = common.limits.unsettled_max
        self._waiting = 0
        """The settlements that the client waits for."""
        self._link = link
        self._entity = entity
        self._kind = kind
        self._ordered = entity.queue.has_sessions and kind == SubqueueKind.ACTIVE
        self._transactions = common.transactions
        self._completions = common.completions
        self._flush = common.flush
        self._traces = traces
        self._on_room = on_room
        self._lost = lost

    def end(self) -> None:
        """Stop asking for more messages. Answers under way still leave."""
        self._on_room = _nothing

    def look_for_expired(self) -> None:
        """Count the deliveries whose lock has expired: the client may never settle them.

        A lock that was renewed counts as expired, too. A late settlement is answered, until so many locks have expired
        that the oldest deliveries are settled here.
        """
        now_ms = self._clock.now_ms()
        if now_ms < self._look_ms:
            return
        expired: list[int] = []
        next_ms = 0
        contexts: Iterable[tuple[int, Context]] = self._link.unsettled_by_id()  # type: ignore[assignment]
        for delivery_id, (_, _, _, until_ms) in contexts:
            if until_ms <= now_ms:
                expired.append(delivery_id)
            elif until_ms < next_ms or not next_ms:
                next_ms = until_ms
        self._look_ms = max(next_ms, now_ms + _LOOK_MS)
        surplus = max(0, len(expired) - EXPIRED_PARTS * self._held_max)
        self.expired = len(expired) - surplus
        self.unsettled -= self._link.settle_many(expired[:surplus], Rejected(amqp_error(self._lost())))

    def on_disposed(self, event: Disposed) -> None:
        """Settle deliveries as the client asks; if it waits, answer when the settlement is durable."""
        if not event.settled and (event.state is None or isinstance(event.state, Received)):
            return  # no outcome yet
        contexts: list[Context] = event.contexts  # type: ignore[assignment]
        self._entity.requests.requests[RequestKind.SETTLE] += len(contexts)
        if event.settled:
            self.unsettled -= len(contexts)
        try:
            if isinstance(event.state, TransactionalState):
                self._settle_in_transaction(event, event.state)
                return
            settlement = COMPLETE if event.state is ACCEPTED else self._settlement_of(event.state)
        except PartibusError as error:
            self._refuse(event, error)
            return
        first = contexts[0][0]
        if len(contexts) == 1:
            self._settle(first, [contexts[0][1:3]], event.delivery_ids, settlement, event.settled)
        elif all(context[0] is first for context in contexts):
            self._settle(first, [context[1:3] for context in contexts], event.delivery_ids, settlement, event.settled)
        else:
            for partition, indexes in by_partition(contexts).items():
                tokens = [contexts[i][1:3] for i in indexes]
                self._settle(partition, tokens, [event.delivery_ids[i] for i in indexes], settlement, event.settled)
        if event.settled and self.is_full:  # else the deliveries count until they are answered
            self._on_room()

    def _settlement_of(self, state: DeliveryState | None) -> Settlement:
        """Return the settlement of a state. Raises the refusal of one that this sub-queue does not take."""
        settlement = settlement_of(state)
        check_delay(settlement, self._entity.queue.name, ordered=self._ordered)
        check_target(settlement, self._entity.queue.name, self._kind)
        return settlement

    def _settle(
        self,
        partition: PartitionHandle,
        tokens: list[LockToken],
        delivery_ids: list[int],
        settlement: Settlement,
        settled: bool,
    ) -> None:
        traced = None if self._traces is None else self._traces.settling(partition.row, tokens, settlement.outcome.name)
        if settled:
            if traced is not None:
                traced(None)
            if settlement.outcome is Outcome.COMPLETE:
                self._completions.add(partition, self._kind, tokens)
            else:
                partition.submit(settlement.command(0, self._kind, tokens), more=True)
            return
        more = self._waiting > 0
        self._waiting += 1

        answered = partial(self._answer, traced, delivery_ids, settlement)
        if settlement.outcome is Outcome.COMPLETE:
            self._completions.add(partition, self._kind, tokens, answered, more=more)
        else:
            command = settlement.command(self._entity.route.numbers.next(), self._kind, tokens)
            partition.submit(command, answered, more=more)

    def _settle_in_transaction(self, event: Disposed, state: TransactionalState) -> None:
        """Note a settlement for the commit; the lock stays until then (section 8). Raises the refusal."""
        transaction = self._transactions.find(state.txn_id)
        with transaction.operation():
            if state.outcome is None:
                raise ArgumentError("the outcome in a transactional state", None, "accepted, modified or rejected")
            settlement = self._settlement_of(state.outcome)
            contexts: list[Context] = event.contexts  # type: ignore[assignment]
            for partition, indexes in by_partition(contexts).items():
                command = settlement.command(0, self._kind, [contexts[i][1:3] for i in indexes])
                transaction.settle(self._entity, partition, command)
                if self._traces is not None:
                    traced = self._traces.settling(partition.row, command.tokens, settlement.outcome.name)
                    if traced is not None:
                        transaction.when_over(traced)
        if not event.settled:
            answer = TransactionalState(txn_id=transaction.id, outcome=settlement.answer)
            self.unsettled -= self._link.settle_many(event.delivery_ids, answer)
        self._on_room()

    def _answer(
        self,
        traced: Callable[[PartibusError | None], None] | None,
        delivery_ids: list[int],
        settlement: Settlement,
        reply: Any,
    ) -> None:
        """Answer the client's settlement, now that it is durable or has failed."""
        if traced is not None:
            traced(error_of(reply, self._entity.queue.name) if isinstance(reply, Failed) else None)
        self._waiting -= 1
        self._flush()
        if isinstance(reply, Failed):
            # The client may send it again for the same deliveries.
            error = error_of(reply, self._entity.queue.name)
            self._entity.requests.failed[RequestKind.SETTLE][fault_of(error)] += len(delivery_ids)
            self._link.settle_many(delivery_ids, Rejected(amqp_error(error)), retain=True)
            return
        if reply.lost:
            lost = [delivery_ids[i] for i in reply.lost]
            self._entity.requests.failed[RequestKind.SETTLE][Fault.USER] += len(lost)
            self.unsettled -= self._link.settle_many(lost, Rejected(amqp_error(self._lost())))
            gone = set(lost)
            delivery_ids = [i for i in delivery_ids if i not in gone]
        self.unsettled -= self._link.settle_many(delivery_ids, settlement.answer)
        if self.is_full:
            self._on_room()

    def _refuse(self, event: Disposed, error: PartibusError) -> None:
        """Tell the client why nothing was settled; it holds its locks until they end."""
        self._entity.requests.failed[RequestKind.SETTLE][fault_of(error)] += len(event.delivery_ids)
        if not event.settled:
            self.unsettled -= self._link.settle_many(event.delivery_ids, Rejected(amqp_error(error)))
        self._on_room()


def by_partition(contexts: list[Context]) -> dict[PartitionHandle, list[int]]:
    """Return the indexes of contexts by their partition."""
    groups: dict[PartitionHandle, list[int]] = {}
    for index, context in enumerate(contexts):
        groups.setdefault(context[0], []).append(index)
    return groups


def _nothing() -> None:
    """Ask for no message: the link has ended."""
