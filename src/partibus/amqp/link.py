"""Links [2.6]: the common part of `Sender` and `Receiver`, named from our side, and what it needs of its session.

A link that the peer attached waits for `accept` or `refuse`, without a time limit. Calls that the peer can invalidate
(sending or settling on a link that it has just detached) have no effect then. Calls that are wrong regardless of the
peer (accepting twice) raise `UsageError`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Protocol, TypedDict

from partibus.amqp.codec.decoder import Decoding
from partibus.amqp.codec.performatives import AnySource, AnyTarget, Attach, Detach, Open, Source, Target
from partibus.amqp.endpoint import ENDING, Move, State, after
from partibus.amqp.errors import AmqpError, UsageError
from partibus.amqp.frames import Output, frame
from partibus.amqp.limits import Limits


class Role(Enum):
    """Our side of a link; the value is the one in the attach frame."""

    SENDER = False
    RECEIVER = True


class _Echo:
    """A placeholder for the peer's own value, where None means null."""


ECHO: Final = _Echo()


class LinkTerms(TypedDict, total=False):
    """Terms of an attach that we may ask for; the defaults are those of `Attach`."""

    source: AnySource | None
    target: AnyTarget | None
    snd_settle_mode: int
    rcv_settle_mode: int
    properties: dict[object, object] | None


class ConnectionPort(Protocol):
    """The part of a connection that its sessions and links use.

    `peer` is the peer's open; `user` belongs to the owner.
    """

    limits: Limits
    output: Output
    peer: Open | None
    user: object
    max_frame_size_out: int
    """The size of the largest outgoing frame: the peer's limit, but at most our own."""
    link_count: int
    """The number of links on all sessions, including refused ones that the peer has not detached."""
    partial_bytes: int
    """Bytes of incomplete deliveries on all links."""
    message_bytes_max: int
    """The size of the largest message that any accepted link of this connection may bring."""
    ids_looked_at: int
    """The number of deliveries examined for the dispositions of this call of `receive_data`."""
    decoding: Decoding

    @property
    def called(self) -> str | None:
        """The client's name for this server: the host name of its open, or else of its login."""


class SessionPort(Protocol):
    """The part of a session that its links use. `user` belongs to the owner."""

    connection: ConnectionPort
    decoding: Decoding
    limits: Limits
    local_channel: int
    output: Output
    state: State
    user: object

    @property
    def links(self) -> list[Link]:
        """Every link that has not ended."""

    def end(self, error: AmqpError | None = None) -> None:
        """End the session with all its links. Does nothing if it has ended."""

    def write(self, performative: object) -> None:
        """Send a performative on this session's channel."""

    def write_flow(self, link: Link | None = None, *, drain: bool = False) -> None:
        """Send the state of the session, and of `link` if given. It always includes next-incoming-id."""


class Link:
    """The common part of senders and receivers.

    `source`, `target`, settle modes, `properties`, capabilities and `remote_max_message_size` are the peer's, from its
    attach; before that they are the ones that we asked for. `max_message_size` is ours. `user` belongs to the owner.
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
        "remote_max_message_size",
        "session",
        "snd_settle_mode",
        "source",
        "state",
        "taken_bytes_max",
        "target",
        "user",
    )
    role: Role

    def __init__(self, session: SessionPort, handle: int, attach: Attach, state: State) -> None:
        self.session = session
        self.handle = handle
        self.state = state
        self.name = attach.name
        self.max_message_size = self.taken_bytes_max = session.limits.max_message_size
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
        """Whether the peer's attach waits for `accept` or `refuse`."""
        return self.state is State.OPEN_RECEIVED

    @property
    def is_open(self) -> bool:
        """Whether the link is attached on both sides."""
        return self.state is State.OPEN and not self.refused

    def on_attach(self, attach: Attach) -> None:
        """Process the peer's attach: a request, or the answer to ours."""
        self.state = after(self.state, Move.RECEIVE_OPEN, f"link {self.name}")
        self._learn(attach)

    def accept(
        self,
        *,
        source: AnySource | _Echo | None = ECHO,
        target: AnyTarget | _Echo | None = ECHO,
        properties: dict[object, object] | None = None,
        max_message_size: int | None = None,
        leeway_bytes: int = 0,
    ) -> None:
        """Accept the peer's attach, which opens the link. By default source and target are echoed.

        A null source or target of the peer is answered by an empty one, since null would mean refusal.
        `max_message_size` is in bytes and defaults to that of the limits. A message up to `leeway_bytes` larger is
        accepted too. Does nothing if the peer has detached.
        """
        if self.state in ENDING:
            return
        if max_message_size is not None:
            self.max_message_size = max_message_size
            self.taken_bytes_max = max_message_size + leeway_bytes
            connection = self.session.connection
            connection.message_bytes_max = max(connection.message_bytes_max, self.taken_bytes_max)
        if not isinstance(source, _Echo):
            self.source = source
        if not isinstance(target, _Echo):
            self.target = target
        self._answer(self.source or Source(), self.target or Target(), properties)

    def refuse(self, error: AmqpError) -> None:
        """Refuse the peer's attach: null source and target, then at once a closing detach [2.6.3]."""
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
        attach = Attach(
            name=self.name,
            handle=self.handle,
            role=self.role is Role.RECEIVER,
            snd_settle_mode=self.snd_settle_mode,
            rcv_settle_mode=self.rcv_settle_mode,
            source=source,
            target=target,
            initial_delivery_count=0 if self.role is Role.SENDER else None,
            max_message_size=self.max_message_size,
            properties=properties,
        )
        self.session.output.write(frame(self.session.local_channel, attach))

    def detach(self, error: AmqpError | None = None, *, closed: bool = True) -> None:
        """End the link, or refuse one that awaits its answer. Does nothing if it has ended."""
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
        """Process the peer's detach; return whether the peer initiated it.

        In that case it is answered. An answer is never answered.
        """
        if self.state is State.OPEN_RECEIVED:
            self._answer(None, None, None)
        self.state = after(self.state, Move.RECEIVE_CLOSE, f"link {self.name}")
        self.forget()
        if self.state is State.CLOSED:
            return False
        self._write_detach(None, detach.closed)
        return True

    def forget(self) -> None:
        """Drop deliveries in flight, because the link has ended; a link of neither role has none."""
