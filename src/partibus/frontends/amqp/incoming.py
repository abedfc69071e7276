"""A link on which a client sends to an entity."""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from operator import itemgetter

from msgspec import Struct

from partibus.amqp import ACCEPTED, AmqpError, Delivery, DeliveryState, Receiver, Rejected, TransactionalState
from partibus.amqp.errors import DETACH_FORCED
from partibus.errors import EntityNotFound, OutcomeUnknown, PartibusError, QuotaExceeded
from partibus.frontends.amqp.errors import amqp_error
from partibus.frontends.amqp.ingress import ODD_DELIVERY_PAIRS, Ingress
from partibus.frontends.amqp.pattern import Repeats
from partibus.frontends.amqp.transactions import CoordinatorLink, transaction_of
from partibus.message import Message
from partibus.namespace.entity import Entity
from partibus.namespace.requests import RequestKind
from partibus.partition.protocol.fan_out import COPIES_MAX
from partibus.routing.send import OnSent, send, send_in_runs, send_through
from partibus.routing.transactions import Transaction, Transactions
from partibus.throttling.throttle import Throttle
from partibus.throttling.uses import Operation, Uses, client_name
from partibus.tracing.tracer import Step

TRANSFER_DESTINATION = "com.microsoft:transfer-destination-address"
"""The link property for the transfer destination: messages go through the link's entity to the one at this address
(section 3.7).
"""


RUN_MIN = 200
"""Messages of a run to a topic, however many rules it has. All copies of a run are one commit: the runs of a link are
cut so that they stay below `COPIES_MAX`.
"""


class _Run(Struct, eq=False):
    """Deliveries that arrived together; ``errors`` is set once their results are known."""

    deliveries: list[Delivery]
    errors: Sequence[PartibusError | None] | None = None
    done: bool = False


class IncomingLink:
    """A link that passes runs of deliveries to an entity.

    Their outcomes leave in the order of the deliveries. A message in a transaction is answered at once and stored with
    the commit.
    """

    def __init__(
        self,
        link: Receiver,
        entity: Entity,
        ingress: Ingress,
        transactions: Transactions,
        throttle: Throttle,
        credit: int,
        flush: Callable[[], None],
        find_again: Callable[[Entity], Entity],
        destination: Entity | None = None,
    ) -> None:
        """Take over an attached link.

        ``destination``: where messages go that are sent through ``entity`` (section 3.7). ``find_again`` returns the
        entity that has the path of a deleted one now, or raises `EntityNotFound`.
        """
        self._destination = destination
        self._find_again = find_again
        self._link = link
        self._flush = flush
        self._entity = entity
        self._ingress = ingress
        self._repeats = Repeats()
        self._transactions = transactions
        self._throttle = throttle
        self._credit = credit
        self._runs: deque[_Run] = deque()
        self._awaiting_relief = False
        link.grant(credit)

    @property
    def overloaded(self) -> bool:
        """Whether the entity's stores exceed their limits, so that the broker stops reading from this client (D24)."""
        return self._entity.route.overloaded

    def when_relieved(self, call: Callable[[], None]) -> None:
        """Call once, when a store that is `overloaded` no longer is."""
        self._entity.route.when_relieved(call)

    def on_deliveries(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Store the deliveries; reject each one that can't be stored. Return those left by the ingress."""
        if not deliveries:
            self._finish(_Run(deliveries), None)  # for the credit
            return []
        if self._throttle.enforces and self._throttle.refuses(Operation.SEND):
            self._throttle.refused(Operation.SEND, len(deliveries))
            run = _Run(deliveries)
            self._runs.append(run)
            self._finish(run, [self._throttle.refusal()] * len(deliveries))
            return []
        if self._entity.queue.deleted or (self._destination is not None and self._destination.queue.deleted):
            self._follow_paths()
        left: list[Delivery] = []
        for delivery in deliveries:
            if delivery.state is not None:
                deliveries, left = self._take_transactional(deliveries)
                break
        run = _Run(deliveries)
        self._runs.append(run)
        try:
            self._entity.check_send()
        except PartibusError as refusal:
            self._finish(run, [refusal] * len(deliveries))
            return left
        queue = (self._destination or self._entity).queue
        ingress, repeats = self._ingress, self._repeats
        messages_of = ingress.messages_of
        batches: list[list[Message]] = []
        refused: dict[int, PartibusError] = {}
        for index, delivery in enumerate(deliveries):
            if ingress.pairs_left <= 0:
                left = deliveries[index:] + left
                del deliveries[index:]
                break
            try:
                batches.append(messages_of(delivery, queue, repeats))
            except PartibusError as error:
                refused[index] = error
                ingress.pairs_left -= ODD_DELIVERY_PAIRS
            delivery.payload = b""  # the message has what is needed, and the delivery stays until it is settled
        if self._throttle.uses is not None:
            self._note_use(self._throttle.uses, len(batches), sum(map(len, batches)))
        if batches and self._throttle.enforces:
            self._admit(run, batches, refused)
            return left
        if batches and self._throttle.active:
            self._throttle.observe_sends([len(batch) for batch in batches], self._rule_count)
        self._go_on(run, batches, refused)
        return left

    def _follow_paths(self) -> None:
        """Follow the paths of deleted entities to the entities that replaced them.

        The link belongs to its address, and client libraries keep it open: a detach would fail the next send of two of
        them.
        """
        self._repeats = Repeats()  # a message that one takes another may refuse
        with suppress(EntityNotFound, QuotaExceeded):
            if self._entity.queue.deleted:
                self._entity = self._find_again(self._entity)
            if self._destination is not None and self._destination.queue.deleted:
                self._destination = self._find_again(self._destination)

    def _note_use(self, uses: Uses, requests: int, messages: int) -> None:
        peer, name = self._link.session.connection.peer, self._entity.queue.name
        client = client_name(None if peer is None else peer.container_id)
        uses.add(name, client, Operation.SEND, requests, messages)
        if self._rule_count:
            uses.add(name, client, Operation.FILTER, requests, messages * self._rule_count)

    def _go_on(self, run: _Run, batches: Sequence[Sequence[Message]], refused: dict[int, PartibusError]) -> None:
        """Send the messages that were not refused."""
        count = len(run.deliveries)
        if not batches:
            self._finish(run, [refused[index] for index in range(count)] if count else None)
            return
        on_sent: OnSent = partial(self._finish, run)
        if refused:
            on_sent = partial(self._finish_some, run, refused)
        if self._entity.tracer is not None:
            name = (self._destination or self._entity).queue.name
            traced = [[message.data for message in batch] for batch in batches]
            on_sent = self._entity.tracer.sending(name, traced, on_sent)
        if self._destination is None:
            rules = self._rule_count if len(batches) > 1 else 0
            most = max(RUN_MIN, COPIES_MAX // rules) if rules else 0
            if most and sum(map(len, batches)) > most:
                send_in_runs(self._entity.route, batches, most, on_sent)
            else:
                send(self._entity.route, batches, on_sent)
        elif self._destination.queue.deleted:
            on_sent([EntityNotFound(self._destination.queue.name)] * len(batches))
        else:
            send_through(self._entity.route, self._destination.queue.name, batches, on_sent)

    def _admit(self, run: _Run, batches: list[list[Message]], refused: dict[int, PartibusError]) -> None:
        """Send the messages for which the namespace has credits."""

        def known(admitted: int) -> None:
            if admitted < len(batches):
                busy = self._throttle.refusal()
                left = [index for index in range(len(run.deliveries)) if index not in refused]
                refused.update(dict.fromkeys(left[admitted:], busy))
                del batches[admitted:]
            self._go_on(run, batches, refused)

        def known_later(admitted: int) -> None:
            try:
                self._entity.check_send()
            except PartibusError as refusal:
                self._finish(run, [refusal] * len(run.deliveries))
            else:
                known(admitted)

        admitted = self._throttle.admit_sends([len(batch) for batch in batches], self._rule_count, known_later)
        if admitted is not None:
            known(admitted)

    @property
    def _rule_count(self) -> int:
        return (self._destination or self._entity).queue.rule_count

    def _take_transactional(self, deliveries: list[Delivery]) -> tuple[list[Delivery], list[Delivery]]:
        """Add transactional deliveries to their transactions; return the others, and those left by the ingress."""
        others: list[Delivery] = []
        for index, delivery in enumerate(deliveries):
            if self._ingress.pairs_left <= 0:
                return others, deliveries[index:]
            if delivery.state is None:
                others.append(delivery)
            else:
                self._ingress.pairs_left -= ODD_DELIVERY_PAIRS
                self._link.settle_many([delivery], self._add_to_transaction(delivery, delivery.state))
        return others, []

    def _add_to_transaction(self, delivery: Delivery, state: DeliveryState) -> DeliveryState:
        """Return the answer to a delivery that is sent in a transaction."""
        entity, throttle = self._entity, self._throttle
        if throttle.enforces and throttle.refuses(Operation.SEND):
            # The transaction goes on: the client may send the message again.
            throttle.refused(Operation.SEND)
            return Rejected(amqp_error(throttle.refusal()))
        try:
            transaction = transaction_of(state, self._transactions)
            with transaction.operation():
                to = self._destination or entity
                messages = self._ingress.messages_of(delivery, to.queue)
                if to is not entity or self._goes_through_another(transaction):
                    if to.queue.deleted:
                        raise EntityNotFound(to.queue.name)
                    transaction.send_through(entity if to is not entity else None, to.queue.name, messages)
                else:
                    entity.check_send()
                    transaction.send(entity, messages)
                if entity.tracer is not None:
                    data = (message.data for message in messages)
                    traced = entity.tracer.beginning(Step.SEND, to.queue.name, data)
                    if traced is not None:
                        transaction.when_over(traced)
                if throttle.uses is not None:
                    self._note_use(throttle.uses, 1, len(messages))
                if throttle.active:
                    throttle.charge_sends(len(messages), self._rule_count)
        except PartibusError as error:
            return Rejected(amqp_error(error))
        return TransactionalState(txn_id=transaction.id, outcome=ACCEPTED)

    def _goes_through_another(self, transaction: Transaction) -> bool:
        """Tell whether the transaction concerns another entity, all on one AMQP session, as the client requested."""
        owner = transaction.owner
        return (
            isinstance(owner, CoordinatorLink)
            and owner.session is self._link.session
            and transaction.is_about_another(self._entity)
        )

    def _finish_some(
        self, run: _Run, refused: dict[int, PartibusError], errors: Sequence[PartibusError | None] | None
    ) -> None:
        """Finish a run of which some deliveries were refused before the others were sent."""
        self._finish(run, _merge(len(run.deliveries), refused, errors))

    def _finish(self, run: _Run, errors: Sequence[PartibusError | None] | None) -> None:
        run.done = True
        run.errors = errors
        runs = self._runs
        while runs and runs[0].done:
            self._answer(runs.popleft())
        if 2 * self._link.flow.available <= self._credit:
            self._top_up()
        self._flush()

    def _top_up(self) -> None:
        """Grant credit, now or when the stores have caught up: without credit a client sends nothing that would ask."""
        if not self.overloaded:
            self._link.grant(self._credit)
        elif not self._awaiting_relief:
            self._awaiting_relief = True
            self._entity.route.when_relieved(self._relieved)

    def _relieved(self) -> None:
        self._awaiting_relief = False
        self._top_up()
        self._flush()

    def _answer(self, run: _Run) -> None:
        requests = self._entity.requests
        self._entity.transmissions += 1
        if run.errors is None:
            requests.requests[RequestKind.SEND] += len(run.deliveries)
            self._link.settle_many(run.deliveries, ACCEPTED)
            return
        requests.answered(RequestKind.SEND, len(run.deliveries), run.errors)
        # Reject equal errors together: a flooding client must not get an answer per message.
        for error, pairs in groupby(zip(run.deliveries, run.errors, strict=True), itemgetter(1)):
            deliveries = [delivery for delivery, _ in pairs]
            if error is None:
                self._link.settle_many(deliveries, ACCEPTED)
            elif isinstance(error, OutcomeUnknown):
                # A rejection would say that it was surely not stored.
                self._link.detach(AmqpError(DETACH_FORCED, str(error)))
                return
            else:
                self._link.settle_many(deliveries, Rejected(amqp_error(error)))

    def on_detached(self) -> None:
        """Stop answering: deliveries under way are stored or not, but no client waits for the result."""
        self._runs.clear()


def _merge(
    count: int, refused: dict[int, PartibusError], errors: Sequence[PartibusError | None] | None
) -> list[PartibusError | None]:
    """Merge the errors found here with those of the batches that were sent, for all deliveries."""
    sent = iter(errors) if errors is not None else None
    return [refused[i] if i in refused else (next(sent) if sent is not None else None) for i in range(count)]
