"""A link on which a client receives the messages of one session (sections 4.2 to 4.4).

```text
 attach ─▶ waits for a session ──▶ attached with its id ─▶ an `OutgoingLink` that holds the session
   │        │                                      │
   │        └─ time-out ──▶ refused: timeout       └─ lock expired ─▶ detached: session-lock-lost
   └─ held by another link ─▶ refused at once
```

A session's lock goes with its link: any end of the link frees the session. The loss of the broker that owns the
session's partition does not free it if others take over: the link stays, and its client notices at most a pause (D21).

The filter by which a receiver asks for a session:

| value under `com.microsoft:session-filter`          | sender                        | answered with              |
|-----------------------------------------------------|-------------------------------|----------------------------|
| a string: that session, the empty one included      | Python, JavaScript, .NET, Java | the string                 |
| null: the next one that is free and has messages    | the same                      | the id that was accepted   |
| either of them with a descriptor                    | Go                            | the id with the descriptor |
| a described list: a session held by several (.NET)  | .NET 7.21                     | refused: not supported     |
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from partibus.amqp import Disposed, Sender, Source
from partibus.amqp.codec.composite import changed
from partibus.amqp.codec.types import Described, Symbol
from partibus.errors import (
    ArgumentError,
    EntityDisabled,
    EntityNotFound,
    InvalidOperation,
    PartibusError,
    SessionLockLost,
    Unsupported,
)
from partibus.frontends.amqp.errors import amqp_error
from partibus.frontends.amqp.link_context import LinkContext
from partibus.frontends.amqp.operations.request import CallLater, HeldSession
from partibus.frontends.amqp.outgoing import OutgoingLink
from partibus.namespace.entity import Entity
from partibus.namespace.names import Subqueue
from partibus.namespace.namespace import Queue
from partibus.partition.protocol.keys import SubqueueKind
from partibus.routing import receive
from partibus.routing.session_source import Resuming, SessionHold, SessionSource

SESSION_FILTER = "com.microsoft:session-filter"
SESSION_ID_MAX = 128
"""The longest session id in characters (section 11.2)."""

_SHARED_DESCRIPTORS = (0x137000000E, "com.microsoft:non-exclusive-session-filter:list")


class SessionFilter(NamedTuple):
    """The requested session, and the form of the request."""

    session: str | None
    """The session id; None: the next one that is free and has messages."""
    key: object
    descriptor: object | None

    def answer(self, source: Source, session: str) -> Source:
        """Return the source to answer with: everything as it came (trap 9), and the accepted session."""
        value = session if self.descriptor is None else Described(self.descriptor, session)
        return changed(source, filter={**(source.filter or {}), self.key: value})


def session_filter_of(source: Source | None) -> SessionFilter | None:
    """Return the session filter of a receiver's source; None if it requests no session.

    Raises `ArgumentError`, and `Unsupported` for a session that several receivers are to hold.
    """
    for key, value in ((source.filter if source is not None else None) or {}).items():
        if isinstance(value, Described) and value.descriptor in _SHARED_DESCRIPTORS:
            raise Unsupported("A session that several receivers hold", "Accept the session for one receiver.")
        if key == SESSION_FILTER:
            return _read(key, value)
    return None


def _read(key: object, value: object) -> SessionFilter:
    descriptor = None
    if isinstance(value, Described):
        descriptor, value = value.descriptor, value.value
    if value is None:
        return SessionFilter(None, key, descriptor)
    if not isinstance(value, str) or len(value) > SESSION_ID_MAX:
        raise ArgumentError(
            SESSION_FILTER, value, f"a string of at most {SESSION_ID_MAX} characters, or null for the next session"
        )
    return SessionFilter(str(value), key, descriptor)


def check_session_filter(wanted: SessionFilter | None, queue: Queue, subqueue: Subqueue) -> None:
    """Check that session entities get session receivers, and other entities do not. Raises `InvalidOperation`.

    A dead-letter sub-queue has no sessions: its messages may be received in any order. One client looks for words of
    the error's text.
    """
    if wanted is None:
        if queue.has_sessions and subqueue is Subqueue.ACTIVE:
            raise InvalidOperation(
                "It is not possible for an entity that requires sessions to create a non-sessionful message receiver. "
                f"'{queue.name}' requires sessions: accept one."
            )
    elif not queue.has_sessions:
        raise InvalidOperation(
            "A sessionful message receiver cannot be created on an entity that does not require sessions. Receive from "
            f"'{queue.name}' without a session, or create it with RequiresSession."
        )
    elif subqueue is not Subqueue.ACTIVE:
        raise InvalidOperation(
            "A sessionful message receiver cannot be created on a dead-letter sub-queue: it has no sessions. Receive "
            f"the dead letters of '{queue.name}' without one."
        )


TIMEOUT = "com.microsoft:timeout"
WAIT_MAX_MS = 65_000
"""The longest wait for a session, and the default wait (section 4.4)."""
EARLY_PART, EARLY_MAX_MS = 20, 250
"""How much earlier than the client's time-out the answer is sent: a twentieth of that time, at most a quarter second. A
client that timed out has ended the AMQP session, and .NET closes the connection when an answer comes after that.
"""

_LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")
_TICKS_PER_MS = 10_000
_TICKS_AT_1970 = 621_355_968_000_000_000
"""The Unix epoch in units of 100 ns since the year 1, as .NET counts."""


def wait_ms_of(properties: Mapping[object, object] | None) -> float:
    """Return how long a receiver waits for the next session, from its link's properties. Raises `ArgumentError`."""
    value = (properties or {}).get(TIMEOUT)
    if value is None:
        value = WAIT_MAX_MS
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ArgumentError(TIMEOUT, value, "a number of milliseconds, 0 or more")
    wait_ms = min(int(value), WAIT_MAX_MS)
    return wait_ms - min(wait_ms / EARLY_PART, EARLY_MAX_MS)


class Holds:
    """The sessions that the links of one connection hold, for which it may request operations."""

    def __init__(self) -> None:
        self._holds: dict[tuple[int, str], SessionHold] = {}

    def find(self, entity: Entity, session: str) -> HeldSession | None:
        """Return the lock of a session (`partibus.frontends.amqp.operations.request.HeldSessions`)."""
        hold = self._holds.get((entity.queue.entity_id, session))
        return None if hold is None else HeldSession(hold.partition, hold.lock_id)

    def add(self, entity: Entity, hold: SessionHold) -> None:
        """Add a session that a link of this connection holds."""
        self._holds[entity.queue.entity_id, hold.session] = hold

    def remove(self, entity: Entity, hold: SessionHold) -> None:
        """Remove a released session, unless another link holds it again."""
        key = (entity.queue.entity_id, hold.session)
        if self._holds.get(key) is hold:
            del self._holds[key]


class SessionLink:
    """The owner of a session receiver's link, from its attach on."""

    def __init__(
        self,
        link: Sender,
        entity: Entity,
        wanted: SessionFilter,
        common: LinkContext,
        holds: Holds,
        call_later: CallLater,
        *,
        wait_ms: float,
        delete: bool,
    ) -> None:
        self._link = link
        self._entity = entity
        self._wanted = wanted
        self._common = common
        self._holds = holds
        self._call_later = call_later
        self._delete = delete
        self._hold: SessionHold | None = None
        self._outgoing: OutgoingLink | None = None
        self.on_disposed: Callable[[Disposed], None] = _ignore
        """A function that settles deliveries: that of the link that holds the session, once there is one."""
        self._search = entity.route.sessions.search(wanted.session, self._on_found)
        self._timer = None if wanted.session is not None else call_later(wait_ms, self._search.give_up)
        entity.join(self)
        self._search.start()

    # -- waiting -----------------------------------------------------------------------------------------------------

    @property
    def unsettled(self) -> int:
        """The number of messages that the client was given and still holds."""
        return 0 if self._outgoing is None else self._outgoing.unsettled

    @property
    def deletes(self) -> bool:
        """Whether messages are deleted as they are received."""
        return self._delete

    @property
    def waiting(self) -> bool:
        """Whether the client waits for a session, so that the entity is not idle."""
        return self._outgoing is None

    def on_entity_changed(self) -> None:
        """Check the queue after an update or deletion while the client waits for a session."""
        queue = self._entity.queue
        if queue.deleted:
            self._refuse(EntityNotFound(queue.name))
        elif not queue.can_receive:
            self._refuse(EntityDisabled(queue.name, queue.description.options.status.value))

    def _refuse(self, error: PartibusError) -> None:
        self._stop_waiting()
        self._link.refuse(amqp_error(error))
        self._common.flush()

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._search.cancel()
        self._entity.leave(self)

    def _on_found(self, found: SessionHold | PartibusError) -> None:
        if isinstance(found, PartibusError):
            self._refuse(found)
            return
        self._stop_waiting()
        self._hold = found
        self._holds.add(self._entity, found)
        source = self._link.source
        self._link.accept(
            source=self._wanted.answer(source if isinstance(source, Source) else Source(), found.session),
            properties={_LOCKED_UNTIL: found.until_ms * _TICKS_PER_MS + _TICKS_AT_1970},
            max_message_size=self._entity.queue.message_size_max_bytes,
        )
        self._outgoing = OutgoingLink(
            self._link,
            self._entity,
            SubqueueKind.ACTIVE,
            self._common,
            delete=self._delete,
            make_source=self._make_source,
            lost=partial(SessionLockLost, self._entity.queue.name, found.session),
        )
        self.on_disposed = self._outgoing.on_disposed
        self._outgoing.on_credit()
        self._common.flush()

    # -- holding -----------------------------------------------------------------------------------------------------

    def _make_source(self, on_granted: receive.OnGranted, on_failed: receive.OnFailed) -> receive.Source:
        assert self._hold is not None, "only a link with a session makes one"

        def lost(error: PartibusError) -> None:
            self._forget_hold()
            on_failed(error)

        return SessionSource(
            self._entity.queue.name,
            self._hold,
            self._entity.route.numbers,
            delete=self._delete,
            on_granted=on_granted,
            on_failed=lost,
            resuming=Resuming(self._call_later, self._held),
        )

    def _held(self) -> list[int]:
        return [] if self._outgoing is None else self._outgoing.held_positions()

    def _forget_hold(self) -> None:
        if self._hold is not None:
            self._holds.remove(self._entity, self._hold)
            self._hold = None

    # -- what the client does ----------------------------------------------------------------------------------------

    def on_credit(self) -> None:
        """Pass the client's flow to the link that holds the session."""
        if self._outgoing is not None:
            self._outgoing.on_credit()

    def on_detached(self) -> None:
        """Release the session after the end of the link, or of its AMQP session or connection."""
        if self._outgoing is None:
            self._stop_waiting()
            return
        self._forget_hold()
        self._outgoing.on_detached()


def _ignore(event: Disposed) -> None:
    """Ignore a disposition of a link that has no session: none of its deliveries is out."""
