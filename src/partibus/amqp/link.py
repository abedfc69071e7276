"""Links [2.6]: `Sender` and `Receiver`, named from our side.

A link that the peer attached waits for `accept` or `refuse`, as long as the owner needs. Verbs whose time
the peer can spoil (sending or settling on a link that it has just detached) do nothing then; verbs that are
wrong whatever the peer does (accepting twice) raise `UsageError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final

from partibus.amqp.codec.fast import TransferWriter
from partibus.amqp.codec.performatives import Attach, Detach
from partibus.amqp.codec.states import ACCEPTED, DeliveryState
from partibus.amqp.codec.terminus import AnySource, AnyTarget, Source, Target
from partibus.amqp.credit import ReceiverCredit, SenderCredit
from partibus.amqp.endpoint import ENDING, Move, State, after
from partibus.amqp.errors import AmqpError, UsageError

if TYPE_CHECKING:
    from partibus.amqp.events import Delivery
    from partibus.amqp.inbound import Partial
    from partibus.amqp.outbound import Item, Payload
    from partibus.amqp.session import Session


class Role(Enum):
    """Our side of a link; the value is what the attach frame says."""

    SENDER = False
    RECEIVER = True


class SenderSettleMode(Enum):
    UNSETTLED = 0
    SETTLED = 1
    MIXED = 2


class _Echo:
    """Stands for "what the peer sent" where None means null."""


ECHO: Final = _Echo()


class Link:
    """What senders and receivers share.

    `source`, `target`, settle modes, `properties`, capabilities and `remote_max_message_size` are the
    peer's, from its attach; before that they are what we asked for. `max_message_size` is ours. `user`
    belongs to the owner.
    """

    __slots__ = (
        "desired_capabilities",
        "handle",
        "max_message_size",
        "name",
        "offered_capabilities",
        "properties",
        "rcv_settle_mode",
        "refused",
        "remote_handle",
        "remote_max_message_size",
        "session",
        "snd_settle_mode",
        "source",
        "state",
        "target",
        "user",
    )
    role: Role

    def __init__(self, session: Session, handle: int, attach: Attach, state: State) -> None:
        self.session = session
        self.handle = handle
        self.state = state
        self.name = attach.name
        self.remote_handle: int | None = None
        self.max_message_size = session.limits.max_message_size
        self.refused = False
        self.user: object = None
        self._learn(attach)

    def _learn(self, attach: Attach) -> None:
        self.source: AnySource | None = attach.source
        self.target: AnyTarget | None = attach.target
        self.snd_settle_mode = attach.snd_settle_mode
        self.rcv_settle_mode = attach.rcv_settle_mode
        self.properties = attach.properties
        self.offered_capabilities = attach.offered_capabilities
        self.desired_capabilities = attach.desired_capabilities
        self.remote_max_message_size = attach.max_message_size

    @property
    def awaits_answer(self) -> bool:
        """True while the peer's attach waits for `accept` or `refuse`."""
        return self.state is State.OPEN_RECEIVED

    @property
    def is_open(self) -> bool:
        return self.state is State.OPEN and not self.refused

    def on_attach(self, attach: Attach) -> None:
        """The peer's attach: a request, or the answer to ours."""
        self.state = after(self.state, Move.RECEIVE_OPEN, f"link {self.name}")
        self.remote_handle = attach.handle
        self._learn(attach)

    def accept(
        self,
        *,
        source: AnySource | _Echo | None = ECHO,
        target: AnyTarget | _Echo | None = ECHO,
        properties: dict[object, object] | None = None,
        max_message_size: int | None = None,
    ) -> None:
        """Answer the peer's attach: the link is open. By default source and target are echoed.

        A null source or target of the peer is answered by an empty one, since null would mean refusal.
        `max_message_size` in bytes; the default is that of the limits. Does nothing if the peer has gone.
        """
        if self.state in ENDING:
            return
        if max_message_size is not None:
            self.max_message_size = max_message_size
        if not isinstance(source, _Echo):
            self.source = source
        if not isinstance(target, _Echo):
            self.target = target
        self._answer(self.source or Source(), self.target or Target(), properties)

    def refuse(self, error: AmqpError) -> None:
        """Answer the peer's attach with null source and target and a closing detach, back to back [2.6.3]."""
        if self.state in ENDING:
            return
        self._answer(None, None, None)
        self.detach(error)

    def _answer(
        self, source: AnySource | None, target: AnyTarget | None, properties: dict[object, object] | None
    ) -> None:
        if self.state is not State.OPEN_RECEIVED:
            raise UsageError(f"link {self.name} is {self.state.value}: no attach of the peer waits for an answer")
        self.write_attach(source, target, properties)

    def write_attach(
        self, source: AnySource | None, target: AnyTarget | None, properties: dict[object, object] | None
    ) -> None:
        """Send our attach. A sender states its first delivery-count: some clients wait for it forever."""
        self.state = after(self.state, Move.SEND_OPEN, f"link {self.name}")
        self.session.write(
            Attach(
                name=self.name,
                handle=self.handle,
                role=self.role.value,
                snd_settle_mode=self.snd_settle_mode,
                rcv_settle_mode=self.rcv_settle_mode,
                source=source,
                target=target,
                initial_delivery_count=0 if self.role is Role.SENDER else None,
                max_message_size=self.max_message_size,
                properties=properties,
            )
        )

    def detach(self, error: AmqpError | None = None, *, closed: bool = True) -> None:
        """End the link; a request that still waits is refused instead. Does nothing if it has ended."""
        if self.state in ENDING:
            return
        if self.state is State.OPEN_RECEIVED:
            self._answer(None, None, None)
        self._write_detach(error, closed)
        self.forget()

    def _write_detach(self, error: AmqpError | None, closed: bool) -> None:
        self.state = after(self.state, Move.SEND_CLOSE, f"link {self.name}")
        self.session.write(Detach(handle=self.handle, closed=closed, error=error))

    def on_detach(self, detach: Detach) -> bool:
        """The peer's detach. True if it was the peer's wish; then it is answered. An answer never is."""
        if self.state is State.OPEN_RECEIVED:
            self._answer(None, None, None)
        self.state = after(self.state, Move.RECEIVE_CLOSE, f"link {self.name}")
        self.forget()
        if self.state is State.CLOSED:
            return False
        self._write_detach(None, detach.closed)
        return True

    def forget(self) -> None:
        """Drop deliveries in flight; the link is over."""
        raise NotImplementedError


class Sender(Link):
    """We send."""

    __slots__ = ("flow", "settled_writers", "writers")
    role = Role.SENDER

    def __init__(self, session: Session, handle: int, attach: Attach, state: State) -> None:
        super().__init__(session, handle, attach, state)
        self.flow = SenderCredit()
        self.writers: dict[int, TransferWriter] = {}
        self.settled_writers: dict[int, TransferWriter] = {}

    @property
    def credit(self) -> int:
        """Deliveries that the peer takes now."""
        return self.flow.available

    @property
    def drain_requested(self) -> bool:
        """The peer wants what there is, and then `drained`."""
        return self.flow.drain

    @property
    def delivery_count(self) -> int:
        return self.flow.delivery_count

    def send_many(self, items: Sequence[Item], *, settled: bool = False) -> int:
        """Send messages (format 0, no state); returns how many were taken, in order, from the start.

        An item is `(tag, payload, context)`. Taken means sent or waiting for the session window. Fewer are
        taken when the credit ends or too much waits (then `WindowOpened` comes later); none if the link is
        not open.
        """
        if self.state is not State.OPEN:
            return 0
        count = min(len(items), self.flow.available)
        if count <= 0:
            return 0
        taken = self.session.outbound.send_run(self, items, count, settled)
        self.flow.consume(taken)
        return taken

    def send(
        self,
        tag: bytes,
        payload: Payload,
        context: object = None,
        *,
        message_format: int = 0,
        settled: bool = False,
        state: DeliveryState | None = None,
    ) -> bool:
        """Send one message of any format or with a transactional state; False if it was not taken."""
        if self.state is not State.OPEN or not self.flow.available:
            return False
        taken = self.session.outbound.send_one(self, tag, payload, context, message_format, settled, state)
        if taken:
            self.flow.consume(1)
        return taken

    def drained(self) -> None:
        """Answer a drain: nothing more to send, the credit is used up. After what waits, if something does."""
        if self.state is not State.OPEN or self.session.outbound.drained_after_waiting(self):
            return
        self.flow.drained()
        self.session.write_flow(self, drain=True)

    def settle_many(self, delivery_ids: Iterable[int], state: DeliveryState | None, *, retain: bool = False) -> None:
        """Answer `Disposed` events that were not settled, with what became of the deliveries.

        With `retain` a later disposition of the peer for the same ids is reported again: for temporary
        failures, which one client repeats.
        """
        self.session.outbound.settle(delivery_ids, state, retain)

    def forget(self) -> None:
        self.flow.available = 0
        self.session.outbound.drop(self)


class Receiver(Link):
    """The peer sends."""

    __slots__ = ("flow", "partial")
    role = Role.RECEIVER

    def __init__(self, session: Session, handle: int, attach: Attach, state: State) -> None:
        super().__init__(session, handle, attach, state)
        self.flow = ReceiverCredit(attach.initial_delivery_count or 0)
        self.partial: Partial | None = None

    def on_attach(self, attach: Attach) -> None:
        super().on_attach(attach)
        self.flow.delivery_count = attach.initial_delivery_count or 0

    @property
    def credit(self) -> int:
        """Deliveries that the peer may still send; at 0 it should not, but one client does."""
        return self.flow.available

    @property
    def delivery_count(self) -> int:
        return self.flow.delivery_count

    def grant(self, credit: int) -> None:
        """Let the peer send `credit` deliveries from now on: tops up to it, or lowers to it."""
        if self.state is not State.OPEN or (credit == self.flow.available and not self.flow.drain):
            return
        self.flow.available = credit
        self.flow.drain = False
        self.session.write_flow(self)

    def drain(self, credit: int | None = None) -> None:
        """Ask the peer to send what it has, up to the credit, and to give the rest back (`Drained`)."""
        if self.state is not State.OPEN:
            return
        if credit is not None:
            self.flow.available = credit
        self.flow.drain = True
        self.session.write_flow(self, drain=True)

    def settle_many(
        self, deliveries: Iterable[Delivery], state: DeliveryState | None = ACCEPTED, *, settled: bool = True
    ) -> None:
        """Tell the peer what became of deliveries of this session, in as few frames as their ids allow.

        Deliveries that came settled, or were settled before, are passed over. With `settled` false (receiver
        settles second) the peer's answer is reported as `Disposed`.
        """
        self.session.inbound.settle(deliveries, state, settled)

    def forget(self) -> None:
        self.flow.available = 0
        self.session.inbound.drop(self)
