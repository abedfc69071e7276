"""The filter by which a receiver asks for a session (section 4.2).

| value under `com.microsoft:session-filter`          | who sends it                  | answered with              |
|-----------------------------------------------------|-------------------------------|----------------------------|
| a string: that session, the empty one included      | Python, JavaScript, .NET, Java | the string                 |
| null: the next one that is free and has messages    | the same                      | the id that was accepted   |
| either of them with a descriptor                    | Go                            | the id with the descriptor |
| a described list: a session held by several (.NET)  | .NET 7.21                     | refused: not supported     |
"""

from copy import copy
from typing import NamedTuple

from partibus.amqp import Source
from partibus.amqp.codec.types import Described
from partibus.errors import ArgumentError, InvalidOperation, Unsupported
from partibus.namespace.addresses import Subqueue
from partibus.namespace.namespace import Queue

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
        answered = copy(source)
        answered.filter = {**(source.filter or {}), self.key: value}
        return answered


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
