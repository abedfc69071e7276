"""A link on which a client receives from a sub-queue of an entity."""

from collections import deque
from collections.abc import Callable, Iterable

from partibus.amqp import AmqpError, Disposed, Sender
from partibus.amqp.errors import DETACH_FORCED
from partibus.errors import (
    EntityDisabled,
    EntityNotFound,
    MessageLockLost,
    PartibusError,
    ReadExclusively,
    SessionLockLost,
)
from partibus.frontends.amqp.egress import encoder_for
from partibus.frontends.amqp.errors import amqp_error
from partibus.frontends.amqp.link_context import LinkContext
from partibus.frontends.amqp.settling import Context, Settlements, by_partition
from partibus.message import DeliveryEncoder
from partibus.namespace.entity import Entity
from partibus.namespace.names import subqueue_path
from partibus.partition.protocol.commands import LockToken, Outcome, Settle
from partibus.partition.protocol.replies import Granted
from partibus.routing.lock_tokens import delivery_tag, tag_start
from partibus.routing.partitions import PartitionHandle
from partibus.routing.receive import DirectSource, OnFailed, OnGranted, Source
from partibus.throttling.uses import Operation, client_name
from partibus.tracing.tracer import Held

Item = tuple[bytes, tuple[bytes | memoryview, ...], Context]
_RECEIVE = Operation.RECEIVE
"""An enum member takes ten times as long to look up as a global, and each grant needs this one."""

MakeSource = Callable[[OnGranted, OnFailed], Source]


class OutgoingLink:
    """A link that requests messages for the client's credit, sends granted messages, and settles them for the client.

    ``make_source`` makes the source of messages; None: the sub-queue, open to any receiver. A source that fails with
    `SessionLockLost` or `ReadExclusively` ends the link with that error. ``lost`` makes the answer to a settlement
    without its lock.
    """

    def __init__(
        self,
        link: Sender,
        entity: Entity,
        kind: int,
        common: LinkContext,
        *,
        delete: bool,
        make_source: MakeSource | None = None,
        lost: Callable[[], PartibusError] = MessageLockLost,
    ) -> None:
        self._link = link
        self._flush = common.flush
        self._entity = entity
        self._kind = kind
        self._throttle = common.throttle
        self._limits = common.limits
        self._congested_links = common.congested_links
        self._delete = delete
        self._asked = 0
        """The messages that the source still owes."""
        self._held: deque[Item] = deque()
        """Granted messages that the client has no credit for, or that wait for its window."""
        self._unpaid: deque[Granted] = deque()
        """Granted messages for which the namespace may lack credits."""
        self._withheld = False
        """Whether the namespace ran out of credits; True until the next period, even if some return."""
        self._stopping = False
        self._closed = False
        self._encoders: dict[int, DeliveryEncoder] = {}
        name = subqueue_path(entity.queue.name, kind)
        self._traces = None if entity.tracer is None else Held(entity.tracer, name)
        self._settlements = Settlements(link, entity, kind, common, self._traces, self.on_credit, lost)
        self.on_disposed: Callable[[Disposed], None] = self._settlements.on_disposed
        """A function that settles deliveries as the client asks."""
        if make_source is None:
            route = entity.route
            self._source = route.source(kind, delete=delete, on_granted=self._on_granted, on_failed=self._on_failed)
        else:
            self._source = make_source(self._on_granted, self._on_failed)
        entity.join(self)
        if delete:
            self._throttle.join(self)

    @property
    def unsettled(self) -> int:
        """The number of messages that the client was given and has not settled."""
        return self._settlements.unsettled

    @property
    def deletes(self) -> bool:
        """Whether messages are deleted as they are received."""
        return self._delete

    def held_positions(self) -> list[int]:
        """Return the positions of locked messages whose settlement has no answer, in order.

        These are delivered or about to be. All are of one partition, that of a session.
        """
        if self._delete:
            return []
        contexts: Iterable[Context] = self._link.unsettled_contexts()  # type: ignore[assignment]
        unpaid = {entry.pos for granted in self._unpaid for entry in granted.entries}
        return sorted({context[2] for context in contexts} | {item[2][2] for item in self._held} | unpaid)

    # -- credit ------------------------------------------------------------------------------------------------------

    def on_credit(self) -> None:
        """Ask for more messages, or take back what the client no longer wants.

        The client has sent a flow, or there is room again on its connection.
        """
        if self._closed:
            return
        if self._held:
            self._send_held()
        if self._stopping:
            return
        flow = self._link.flow
        settlements, unsettled_max = self._settlements, self._limits.unsettled_max
        wanted = flow.available - len(self._held)
        settlements.is_full = wanted > unsettled_max - settlements.unsettled + settlements.expired
        if settlements.is_full:
            settlements.look_for_expired()
            wanted = min(wanted, unsettled_max - settlements.unsettled + settlements.expired)
        wanted = max(0, wanted)
        surplus = flow.available < len(self._held) and not self._delete
        if flow.drain or wanted < self._asked or surplus:
            self._stopping = True
            if flow.drain and wanted > self._asked and not self._held:
                # This credit came with the drain: available messages must come before the answer (section 4.5).
                self._ask(wanted)
            self._source.stop(self._stopped)
        elif wanted > 2 * self._asked and not self._congested_links.holds_back(self):
            # Do not ask for each message: ask again when half of the wanted messages are still to come.
            self._ask(wanted)

    def _ask(self, wanted: int) -> None:
        throttle = self._throttle
        if throttle.enforces:
            if self._withheld or throttle.withholds(self):
                return
            if wanted > throttle.room:
                throttle.call_back(self)
                wanted = throttle.room
        count = wanted - self._asked
        if count > 0:
            self._asked = wanted
            self._source.ask(count, self._limits.outgoing_bytes)

    def on_credits(self) -> None:
        """Deliver the messages that waited for credits (`partibus.throttling.throttle.Withheld`)."""
        self._withheld = False
        self.on_credit()
        self._flush()

    def on_exhausted(self) -> None:
        """Stop asking until there are credits again. Grants already in flight are charged later."""
        if self._asked and not (self._stopping or self._closed):
            self._stopping = True
            self._source.stop(self._stopped)

    @property
    def waiting(self) -> bool:
        """Whether the client waits for messages."""
        return self._asked > 0 or self._link.credit > 0

    def on_entity_changed(self) -> None:
        """Check the queue after an update or deletion: it may be closed for receivers now."""
        queue = self._entity.queue
        if queue.deleted:
            self._end(amqp_error(EntityNotFound(queue.name)))
        elif not queue.can_receive:
            self._end(amqp_error(EntityDisabled(queue.name, queue.description.options.status.value)))
        elif (refusal := self._entity.refusal_of_receivers(self._kind)) is not None:
            self._end(amqp_error(refusal))
        elif isinstance(self._source, DirectSource) and self._entity.route.partitioned:
            self._stopping = True
            self._source.stop(self._outgrown)

    def _outgrown(self) -> None:
        """End a link at the only partition: the queue may have more of them now."""
        if not self._closed:
            why = f"'{self._entity.queue.name}' may have several partitions from now on. Attach again."
            self._end(AmqpError(DETACH_FORCED, why))

    def _stopped(self) -> None:
        self._asked = 0
        self._stopping = False
        if not self._delete:
            # Messages that the client no longer wants must not wait here under lock.
            self._release_held(keep=0 if self._link.drain_requested else self._link.credit)
        elif self._held and self._link.credit and self._link.drain_requested:
            return  # deleted, it exists nowhere else: the answer comes behind it, when the window is open
        if self._link.drain_requested:
            self._link.drained()
            self._flush()
        else:
            self.on_credit()

    # -- deliveries --------------------------------------------------------------------------------------------------

    def _on_granted(self, partition: PartitionHandle, granted: Granted) -> None:
        if self._closed:
            self._release(partition, [(granted.lock_id, entry.pos) for entry in granted.entries])
            return
        self._asked = 0 if granted.ended else max(0, self._asked - len(granted.entries))
        if self._throttle.uses is not None and granted.entries:
            peer, count = self._link.session.connection.peer, len(granted.entries)
            client = client_name(None if peer is None else peer.container_id)
            self._throttle.uses.add(self._entity.queue.name, client, Operation.RECEIVE, count, count)
        if self._throttle.enforces and granted.entries:
            self._charge(partition, granted)
            return
        self._deliver(partition, granted)
        if self._throttle.active and granted.entries:
            self._throttle.charge(_RECEIVE, len(granted.entries))

    def _charge(self, partition: PartitionHandle, granted: Granted) -> None:
        """Deliver the messages that the namespace has credits for; release the locks of the others."""
        count = len(granted.entries)
        if self._delete:
            # The messages exist nowhere else now.
            # First deliver them: if none is left, a draining client is told at once.
            self._deliver(partition, granted)
            self._throttle.charge(Operation.RECEIVE, count)
            return

        def known(admitted: bool) -> None:
            if admitted and not self._closed:
                self._deliver(partition, granted)
                return
            self._release(partition, [(granted.lock_id, entry.pos) for entry in granted.entries])
            if not self._closed:
                self._withheld = True  # also if the broker that grants credits is not known yet
                self._throttle.call_back(self)
                self.on_exhausted()

        def known_later(admitted: bool) -> None:
            self._unpaid.popleft()
            known(admitted)

        self._unpaid.append(granted)
        admitted = self._throttle.admit(Operation.RECEIVE, count, known_later)
        if admitted is not None:
            self._unpaid.pop()
            known(admitted)

    def _deliver(self, partition: PartitionHandle, granted: Granted) -> None:
        entries = granted.entries
        encoder = self._encoders.get(partition.partition_id) or self._new_encoder(partition)
        encode = encoder.encode
        until_ms = granted.until_ms
        locked_until_ms = None if self._delete else until_ms
        lock_id = granted.lock_id
        start = tag_start(partition.partition_id, lock_id)
        items: list[Item] = []
        for entry in entries:
            assert entry.data is not None, "a grant brings bodies"
            parts = encode(
                entry.data,
                sequence=entry.sequence,
                enqueued_ms=entry.enqueued_ms,
                delivery_count=entry.delivery_count,
                locked_until_ms=locked_until_ms,
            )
            items.append((delivery_tag(start, entry.pos), parts, (partition, lock_id, entry.pos, until_ms)))
        if self._traces is not None:
            traced = [(entry.pos, entry.data, entry.enqueued_ms, entry.delivery_count + 1) for entry in entries]
            self._traces.delivered(partition.row, lock_id, traced, settles=not self._delete)
        if self._held:
            self._held.extend(items)
            self._send_held()
        else:
            taken = self._link.send_many(items, settled=self._delete)  # as `_send`
            if not self._delete:
                self._settlements.unsettled += taken
            if taken < len(items):
                self._held.extend(items[taken:])
                self._congested_links.wait(self)
        self._flush()
        if (self._link.flow.available != self._asked or self._held) and not self._stopping:
            self.on_credit()  # otherwise the source owes as many as the client wants

    def _new_encoder(self, partition: PartitionHandle) -> DeliveryEncoder:
        encoder = encoder_for(self._entity, self._kind, partition.partition_id)
        self._encoders[partition.partition_id] = encoder
        return encoder

    def _send(self, items: list[Item]) -> int:
        taken = self._link.send_many(items, settled=self._delete)
        if not self._delete:
            self._settlements.unsettled += taken
        return taken

    def _send_held(self) -> None:
        held = self._held
        taken = self._send(list(held))
        for _ in range(taken):
            held.popleft()
        if held:
            self._congested_links.wait(self)

    def _on_failed(self, error: PartibusError) -> None:
        is_told = isinstance(error, SessionLockLost | ReadExclusively)
        self._end(amqp_error(error) if is_told else AmqpError(DETACH_FORCED, str(error)))

    def _end(self, error: AmqpError) -> None:
        self._link.detach(error)
        self._flush()
        self.on_detached()

    # -- the end -----------------------------------------------------------------------------------------------------

    def on_detached(self) -> None:
        """Handle the end of the link. Locks stay: the client may settle through another link until they end."""
        if self._closed:
            return
        self._closed = True
        self._congested_links.forget(self)
        self._throttle.leave(self)
        self._entity.leave(self)
        self._source.close()
        self._settlements.end()
        self._release_held(keep=0)

    def _release_held(self, keep: int) -> None:
        """Give back the messages that were never sent, except the first ``keep``."""
        surplus = [self._held.pop()[2] for _ in range(len(self._held) - keep)]
        for partition, indexes in by_partition(surplus).items():
            self._release(partition, [surplus[i][1:3] for i in indexes])

    def _release(self, partition: PartitionHandle, tokens: list[LockToken]) -> None:
        """Requeue messages that were never sent, and so can't be settled, without counting a delivery."""
        if not self._delete:
            partition.submit(Settle(0, self._kind, Outcome.RELEASE, tokens))
