"""Operations on sessions: renew, state, list (sections 4.4 and 6.3).

All but the list need the session's lock, held by a link of the same connection: the session's id in a request is no
secret.
"""

from typing import Any

from partibus.amqp.codec.types import Array, Int, Timestamp
from partibus.errors import ArgumentError, InvalidOperation, MessageTooLarge, PartibusError, SessionLockLost
from partibus.frontends.amqp.operations.request import (
    SESSION_ID,
    EntityRequest,
    HeldSession,
    failure,
    integer,
    no_content,
    success,
    text,
)
from partibus.partition.protocol.commands import GetSessionState, RenewSession, SetSessionState
from partibus.partition.protocol.keys import SubqueueKind
from partibus.partition.protocol.replies import Failed, Refused, SessionLost
from partibus.routing.partitions import error_of

RENEW = "com.microsoft:renew-session-lock"
GET_STATE = "com.microsoft:get-session-state"
SET_STATE = "com.microsoft:set-session-state"
LIST = "com.microsoft:get-message-sessions"

STATE = "session-state"
EVER_MS = 253_402_300_800_000
"""The year 10000, .NET's latest date: a client without a date lists sessions that have messages or a state."""
NOT_FOUND = "com.microsoft:session-not-found"
STRING = 0xB1
INT_MAX = (1 << 31) - 1


def renew(request: EntityRequest) -> None:
    """Reply with ``expiration``: the end of the lock of the session and of its delivered messages."""
    held = _held(request)

    def answered(reply: Any) -> None:
        if not _refused(request, reply):
            request.respond(success({"expiration": Timestamp(reply.until_ms)}))

    held.partition.submit(RenewSession(_number(request), held.lock_id), answered)


def get_state(request: EntityRequest) -> None:
    """Reply with ``session-state``, binary, or null if none is set."""
    held = _held(request)

    def answered(reply: Any) -> None:
        if not _refused(request, reply):
            request.respond(success({STATE: reply.state}))

    held.partition.submit(GetSessionState(_number(request), held.lock_id), answered)


def set_state(request: EntityRequest) -> None:
    """Set ``session-state``; null clears it. The state may be as large as one message."""
    queue = request.entity.queue
    state = request.arguments.get(STATE)
    if STATE not in request.arguments or not isinstance(state, bytes | None):
        raise ArgumentError(STATE, state, "binary, or null to clear it")
    if state is not None and len(state) > queue.batch_size_max_bytes:
        raise MessageTooLarge(queue.name, len(state), queue.batch_size_max_bytes, "session state")
    held = _held(request)

    def answered(reply: Any) -> None:
        if not _refused(request, reply):
            request.respond(success())

    held.partition.submit(SetSessionState(_number(request), held.lock_id, state), answered)


def list_sessions(request: EntityRequest) -> None:
    """Reply with ``sessions-ids`` (sic) and ``skip``, where the next page begins; 204 after the last one."""
    _check_sessions(request)
    skip = integer(request.arguments, "skip", 0, INT_MAX, 0)
    top = integer(request.arguments, "top", 1, INT_MAX)
    updated_ms = integer(request.arguments, "last-updated-time", -(1 << 63), (1 << 63) - 1, EVER_MS)

    def found(page: list[str] | PartibusError) -> None:
        if isinstance(page, PartibusError):
            request.respond(failure(page))
        elif not page:
            request.respond(no_content(NOT_FOUND))
        else:
            following = Int(min(skip + len(page), INT_MAX))
            request.respond(success({"skip": following, "sessions-ids": Array(STRING, page)}))

    request.entity.route.session_list.page(skip, top, None if updated_ms == EVER_MS else updated_ms, found)


def _check_sessions(request: EntityRequest) -> None:
    if not request.entity.queue.has_sessions or request.kind != SubqueueKind.ACTIVE:
        name = request.entity.queue.name
        raise InvalidOperation(
            f"The operation is about sessions, and '{name}' or this sub-queue of it has none. "
            "Ask a queue that was created with RequiresSession."
        )


def _held(request: EntityRequest) -> HeldSession:
    """Return the lock of the request's session. Raises `SessionLockLost` if this connection does not hold it."""
    _check_sessions(request)
    return request.lock_of(text(request.arguments, SESSION_ID))


def _refused(request: EntityRequest, reply: Any) -> bool:
    """Respond with the error of a reply, if any; return whether there was one."""
    name = request.entity.queue.name
    if isinstance(reply, SessionLost):
        request.respond(failure(SessionLockLost(name, text(request.arguments, SESSION_ID))))
    elif isinstance(reply, Failed | Refused):
        request.respond(failure(error_of(reply, name)))
    else:
        return False
    return True


def _number(request: EntityRequest) -> int:
    return request.entity.route.numbers.next()
